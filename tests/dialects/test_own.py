"""Our own annotations: what is read of them, what is refused, and how they go with the other dialects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from muster.dialects.gangs.own import KEYS, PREFIX
from muster.dialects.pods.pods import read
from muster.domain.causes.ill_formed import BadValue, DialectsDisagree
from muster.domain.constraints import PER_SCOPE
from muster.domain.pod import GangClaim, TopologyRequest
from muster.domain.request import Segment
from muster.domain.sentences import MAX_CHARACTERS, sentence
from tests.dialects.objects import pod_object
from tests.placement.constraints import TESTED

GPU = {"nvidia.com/gpu": 1}
ACK = {"gpu-topology": "train", "gpu-topology-replica": "2"}
OF_ACK = GangClaim("ack", "train", min_member=2, replicas=2)
LONE = GangClaim("gputopology", "p", min_member=1, replicas=1, lone=True)


def own_keys(**annotations: str) -> dict[str, str]:
    """`min_member="4"` → gpu.topology/min-member: "4"."""
    return {PREFIX + key.replace("_", "-"): text for key, text in annotations.items()}


TOPOLOGY_REQUESTS: dict[str, tuple[dict[str, str], TopologyRequest]] = {
    "a scope": (own_keys(scope="rack"), TopologyRequest(required_scope="rack")),
    "a label key is a scope": (
        own_keys(scope="example.com/row"),
        TopologyRequest(required_scope="example.com/row"),
    ),
    "spaces around it": (own_keys(scope=" rack\n"), TopologyRequest(required_scope="rack")),
    "a role and its scope": (
        own_keys(role="prefill", role_scope="nvlink-domain"),
        TopologyRequest(role="prefill", role_scope="nvlink-domain"),
    ),
    "preferred scopes of a role": (
        own_keys(role="prefill", role_preferred_scopes="nvlink-domain,rack"),
        TopologyRequest(role="prefill", role_preferred=("nvlink-domain", "rack")),
    ),
    "preferred scopes keep their order": (
        own_keys(preferred_scopes="nvlink-domain, node,rack"),
        TopologyRequest(preferred_scopes=("nvlink-domain", "node", "rack")),
    ),
    "segments": (
        own_keys(segment_size="4", segment_scope="nvlink-domain"),
        TopologyRequest(segments=(Segment(4, "nvlink-domain"),)),
    ),
    "segments in segments": (
        own_keys(segment_size="16, 4", segment_scope="rack,nvlink-domain"),
        TopologyRequest(segments=(Segment(16, "rack"), Segment(4, "nvlink-domain"))),
    ),
    "the same size twice": (
        own_keys(segment_size="4,4", segment_scope="rack,node"),
        TopologyRequest(segments=(Segment(4, "rack"), Segment(4, "node"))),
    ),
}
"""Annotations → request."""
TOPOLOGY_REQUESTS |= {
    f"{constraint.kind.annotation}: {name}": (
        own_keys(**{constraint.kind.annotation: text}),
        TopologyRequest(per_scope=numbers),
    )
    for constraint in TESTED
    for name, (text, numbers) in constraint.read.items()
}


@pytest.mark.parametrize(
    ("annotations", "topology_request"), TOPOLOGY_REQUESTS.values(), ids=TOPOLOGY_REQUESTS.keys()
)
def test_what_a_pod_wishes(annotations: dict[str, str], topology_request: TopologyRequest) -> None:
    grouped = read(pod_object(annotations={**annotations, **own_keys(group="g", min_member="4")}))
    assert (grouped.claim, grouped.causes) == (
        GangClaim("annotations", "g", 4, topology_request=topology_request),
        (),
    )
    lone = read(pod_object(annotations=annotations, limits=GPU))
    assert lone.claim == GangClaim("gputopology", "p", 1, 1, topology_request, lone=True)
    ack = read(pod_object(annotations=annotations, labels=ACK))
    assert ack.claim == GangClaim("ack", "train", 2, 2, topology_request)
    assert ack.causes == lone.causes == ()


BAD: dict[str, tuple[dict[str, str], str]] = {
    "no name": (own_keys(group=""), "group"),
    "a name that no label could have": (own_keys(group="a/b"), "group"),
    "a name of 64 letters": (own_keys(group="a" * 64), "group"),
    "no number of members": (own_keys(group="g", min_member="four"), "min-member"),
    "no member": (own_keys(group="g", min_member="0"), "min-member"),
    "a count without a gang": (own_keys(min_member="1"), "min-member"),
    "a size without a gang": (own_keys(size="1"), "size"),
    "a size that is no number": (own_keys(group="g", min_member="2", size="all"), "size"),
    "a size below what must fit": (own_keys(group="g", min_member="4", size="3"), "size"),
    "a role of two words": (own_keys(role="a, b"), "role"),
    "a scope that is no label key": (own_keys(scope="/rack"), "scope"),
    "two required scopes": (own_keys(scope="rack,node"), "scope"),
    "no role scope": (own_keys(role_scope=" "), "role-scope"),
    "an empty list": (own_keys(preferred_scopes=""), "preferred-scopes"),
    "a comma too many": (own_keys(preferred_scopes="rack,"), "preferred-scopes"),
    "a scope twice": (own_keys(preferred_scopes="rack,node,rack"), "preferred-scopes"),
    "nine scopes": (own_keys(preferred_scopes=",".join("abcdefghi")), "preferred-scopes"),
    "sizes without scopes": (own_keys(segment_size="4"), "segment-scope"),
    "scopes without sizes": (own_keys(segment_scope="rack"), "segment-size"),
    "no size": (own_keys(segment_size="0", segment_scope="rack"), "segment-size"),
    "half a size": (own_keys(segment_size="4,x", segment_scope="rack,node"), "segment-size"),
    "sizes that do not nest": (own_keys(segment_size="6,4", segment_scope="rack,node"), "segment-size"),
    "the narrow one first": (own_keys(segment_size="4,16", segment_scope="node,rack"), "segment-size"),
    "four levels": (own_keys(segment_size="8,4,2,1", segment_scope="zone,rack,node,x"), "segment-size"),
    "fewer scopes than sizes": (own_keys(segment_size="8,4", segment_scope="rack"), "segment-scope"),
    "more scopes than sizes": (own_keys(segment_size="8", segment_scope="rack,node"), "segment-scope"),
    "one scope for two sizes": (own_keys(segment_size="4,2", segment_scope="node,node"), "segment-scope"),
    "several members on one GPU": (own_keys(segment_size="4", segment_scope="gpu"), "segment-scope"),
    "a rank below zero": (own_keys(rank="-1"), "rank"),
    "a rank of another alphabet": (own_keys(rank="٢"), "rank"),
    "a slip in the key": (own_keys(prefered_scopes="rack"), "prefered-scopes"),
    "longer than any value": (own_keys(preferred_scopes="a," * 600), "preferred-scopes"),
    "a long list of sizes": (own_keys(segment_size="1," * 600, segment_scope="rack"), "segment-size"),
}
"""Annotations → the one that is refused."""
BAD |= {
    f"{constraint.kind.annotation}: {name}": (
        own_keys(**{constraint.kind.annotation: text}),
        constraint.kind.annotation,
    )
    for constraint in TESTED
    for name, text in constraint.misread.items()
}


@pytest.mark.parametrize(("annotations", "key"), BAD.values(), ids=BAD.keys())
def test_what_can_not_be_read_says_so(annotations: dict[str, str], key: str) -> None:
    pod = read(pod_object(annotations=annotations, limits=GPU))
    assert pod.claim is not None
    (cause,) = pod.causes
    assert isinstance(cause, BadValue)
    assert (cause.where, cause.field) == ("pod/ns/p", PREFIX + key)
    assert cause.expected
    assert len(cause.value) <= 80
    assert len(sentence([cause])) < MAX_CHARACTERS
    assert read(pod_object(annotations=annotations, limits=GPU, node="n")).causes == ()


def test_a_key_among_the_labels_says_where_it_belongs() -> None:
    (cause,) = read(pod_object(labels=own_keys(group="g"), limits=GPU)).causes
    assert sentence([cause]) == (
        'pod/ns/p: label gpu.topology/group is "g", expected none: it is an annotation'
    )


def test_labels_of_ack_among_the_annotations_say_where_they_belong() -> None:
    pod = read(pod_object(annotations=ACK, limits=GPU))
    assert [sentence([cause]) for cause in pod.causes] == [
        'pod/ns/p: annotation gpu-topology is "train", expected none: it is a label',
        'pod/ns/p: annotation gpu-topology-replica is "2", expected none: it is a label',
    ]
    assert read(pod_object(annotations=ACK, limits=GPU, node="n")).causes == ()


EXPECTED_KEYS = (
    "none: the annotations gpu.topology/… are group, min-member, size, role, scope, role-scope, "
    "role-preferred-scopes, preferred-scopes, segment-size, segment-scope, "
    f"{', '.join(kind.annotation for kind in PER_SCOPE)}, rank, "
    "preemptible, min-runtime, checkpoint-every, last-checkpoint"
)
UNKNOWN: dict[str, tuple[dict[str, dict[str, str]], tuple[str, ...]]] = {
    "one label": ({"labels": own_keys(rack="r1")}, ("label gpu.topology/rack", "r1", EXPECTED_KEYS)),
    "one of each kind": (
        {"labels": own_keys(rack="r1"), "annotations": own_keys(zone="z")},
        ("gpu.topology/zone", "z", f"{EXPECTED_KEYS}; nor is there label gpu.topology/rack"),
    ),
    "eight": (
        {"annotations": own_keys(**dict.fromkeys("hgfedcba", "x"))},
        (
            "gpu.topology/a",
            "x",
            f"{EXPECTED_KEYS}; nor is there gpu.topology/b, gpu.topology/c, gpu.topology/d and 4 more",
        ),
    ),
    "labels of nodes": (
        {"labels": own_keys(nvlink_domain="d", nvlink_domain_size="8", interconnect="ib")},
        (),
    ),
}
"""Labels and annotations → the one cause."""


@pytest.mark.parametrize(("pod", "cause"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_all_keys_that_nobody_knows_are_one_cause(pod: dict[str, Any], cause: tuple[str, ...]) -> None:
    expected = (BadValue("pod/ns/p", cause[0], cause[1], cause[2]),) if cause else ()
    assert read(pod_object(**pod, limits=GPU)).causes == expected


@dataclass(frozen=True)
class Case:
    """A pod of two dialects, or none, and what becomes of it."""

    pod: dict[str, Any]
    claim: GangClaim | None
    causes: tuple[object, ...] = field(default=())


TWO_DIALECTS = {
    "ACK and the same": Case({"labels": ACK, "annotations": own_keys(group="train", min_member="2")}, OF_ACK),
    "ACK and the same name": Case({"labels": ACK, "annotations": own_keys(group="train")}, OF_ACK),
    "ACK and the same count": Case({"labels": ACK, "annotations": own_keys(min_member="2")}, OF_ACK),
    "ACK and another name": Case(
        {"labels": ACK, "annotations": own_keys(group="other")},
        OF_ACK,
        (DialectsDisagree("p", "ack: gang train of 2", "annotations: gang other"),),
    ),
    "ACK and another count": Case(
        {"labels": ACK, "annotations": own_keys(min_member="1")},
        OF_ACK,
        (DialectsDisagree("p", "ack: gang train of 2", "annotations: gang train of 1"),),
    ),
    "ACK and both": Case(
        {"labels": ACK, "annotations": own_keys(group="other", min_member="3")},
        OF_ACK,
        (DialectsDisagree("p", "ack: gang train of 2", "annotations: gang other of 3"),),
    ),
    "a gang without a count": Case({"annotations": own_keys(group="g")}, GangClaim("annotations", "g")),
    "a lone pod with GPUs": Case({"limits": GPU}, LONE),
    "a lone pod without GPUs": Case({}, None),
    "a wish without GPUs": Case({"annotations": own_keys(rank="3")}, LONE),
    "another scheduler's pod": Case(
        {"annotations": own_keys(group="", scope="!"), "scheduler": "other", "limits": GPU}, None
    ),
}


@pytest.mark.parametrize("case", TWO_DIALECTS.values(), ids=TWO_DIALECTS.keys())
def test_beside_other_dialects(case: Case) -> None:
    pod = read(pod_object(**case.pod))
    assert (pod.claim, pod.causes) == (case.claim, case.causes)


def test_a_member_without_gpus_is_held_for_its_gang_and_refused_without_one() -> None:
    assert read(pod_object(annotations=own_keys(group="g", min_member="2"))).causes == ()
    without_gang = read(pod_object(annotations=own_keys(min_member="2")))
    assert without_gang.claim == LONE
    assert sentence(without_gang.causes) == (
        'pod/ns/p: gpu.topology/min-member is "2", expected a gang beside it: '
        "add the annotation gpu.topology/group"
    )


SLIPS: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt group": ({"annotations": own_keys(gruop="g", role="master")}, "gpu.topology/gruop"),
    "a wish that can't be read": ({"annotations": own_keys(scope="!")}, "gpu.topology/scope"),
    "a count alone": ({"annotations": own_keys(min_member="2")}, "gpu.topology/min-member"),
    "the group as a label": ({"labels": own_keys(group="g")}, "label gpu.topology/group"),
    "a misspelt label": ({"labels": own_keys(gruop="g")}, "label gpu.topology/gruop"),
    "ACK's labels as annotations": ({"annotations": ACK}, "annotation gpu-topology"),
    "ACK's count alone": ({"labels": {"gpu-topology-replica": "2"}}, "gpu-topology"),
    "the recipe's as a label": (
        {"labels": {"scheduling.run.ai/pod-group": "g"}},
        "label scheduling.run.ai/pod-group",
    ),
    "coscheduling's as an annotation": (
        {"annotations": {"scheduling.x-k8s.io/pod-group": "g"}},
        "annotation scheduling.x-k8s.io/pod-group",
    ),
}
"""Pods without GPUs that meant to name a gang → the field of the first cause."""


@pytest.mark.parametrize(("pod", "field"), SLIPS.values(), ids=SLIPS)
def test_a_slip_is_said_of_a_pod_without_gpus_too(pod: dict[str, Any], field: str) -> None:
    waiting = read(pod_object(**pod))
    cause = waiting.causes[0]
    assert isinstance(cause, BadValue)
    assert (cause.field, waiting.claim is None) == (field, False)


def test_all_of_them_on_one_pod() -> None:
    annotations = own_keys(
        group="g", min_member="8", size="16", role="w", scope="zone", role_scope="rack",
        preferred_scopes="rack", role_preferred_scopes="node", segment_size="4", segment_scope="node",
        rank="0", **{kind.annotation: "node=4" for kind in PER_SCOPE}, preemptible="true", min_runtime="1m",
        checkpoint_every="1m", last_checkpoint="2026-01-01T00:00:00Z",
    )  # fmt: skip
    assert set(annotations) == set(KEYS)
    pod = read(pod_object(annotations=annotations))
    assert (pod.causes, pod.rank) == ((), 0)
