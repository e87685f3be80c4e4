"""Keys that have no effect: misspelt, or in the wrong place. Keys of others stay without a word."""

from __future__ import annotations

from typing import Any

import pytest

from muster.dialects.gangs import kai, misspelt, other_systems
from muster.dialects.gangs.misspelt import meant_key
from muster.dialects.pods.pods import read
from muster.dialects.reading import ANNOTATION
from muster.domain.pod import GangClaim
from muster.domain.sentences import sentence
from tests.dialects.objects import pod_object

GPU = {"nvidia.com/gpu": 1}

MEANT = {
    "gpu.topology/gruop": "gpu.topology/group",
    "gpu.topology/min-members": "gpu.topology/min-member",
    "gpu.topology/prefered-scopes": "gpu.topology/preferred-scopes",
    "gpu.toplogy/group": "gpu.topology/group",
    "gpu-toplogy": "gpu-topology",
    "gpu-topology-replicas": "gpu-topology-replica",
    "kai.scheduler/subgroup-nmae": "kai.scheduler/subgroup-name",
    "kai.schedular/queue": "kai.scheduler/queue",
    "kai.scheduler/topology-required-placment": "kai.scheduler/topology-required-placement",
    "scheduling.run.ai/pod-gruop": "scheduling.run.ai/pod-group",
    "scheduling.run.ai/topology-polcy": "scheduling.run.ai/topology-policy",
    "scheduling.x-k8s.io/podgroup": "scheduling.x-k8s.io/pod-group",
    "aliyun.com/gpu-counts": "aliyun.com/gpu-count",
    "pod-group-nam": "pod-group-name",
}


@pytest.mark.parametrize("key", MEANT)
def test_the_key_that_was_meant(key: str) -> None:
    assert meant_key(key) == MEANT[key]


THEIRS = other_systems.places()
OTHER_KEYS = (
    "app", "gpu-type", "gpu-topology-policy", "gpu.topology/zone", "run.ai/top-owner-metadata",
    "kai.scheduler/shard",
    "scheduling.k8s.io/pod-group", "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name",
    "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/queue-name", "kubernetes.io/hostname",
    "leaderworkerset.sigs.k8s.io/subgroup-size", "aliyun.com/gpu-core.percentage", "group", "x" * 400,
)  # fmt: skip


@pytest.mark.parametrize("key", [*OTHER_KEYS, *sorted(misspelt.known_keys())])
def test_a_key_of_others_and_a_known_one_are_no_mistake(key: str) -> None:
    assert meant_key(key) == ""


@pytest.mark.parametrize("key", misspelt.KAI_KEYS)
def test_keys_of_kai_stay_without_a_word(key: str) -> None:
    assert read(pod_object(labels={key: "x"}, annotations={key: "x"}, limits=GPU)).causes == ()


@pytest.mark.parametrize(
    "key", [key for key, place in misspelt.known_keys().items() if place == ANNOTATION and key not in THEIRS]
)
def test_one_letter_too_many_is_said_of_each_annotation(key: str) -> None:
    if key in ("gpu.topology/allocation", "gpu.topology/decision") or "/" not in key:
        return  # only the scheduler writes these, and device plugins
    causes = read(pod_object(annotations={f"{key}x": "x"}, limits=GPU)).causes
    use_of_key = ", which names a PodGroup" if key in kai.GANG_KEYS else ""
    assert f"did you mean {key}{use_of_key}?" in sentence(causes)


def test_a_misspelt_label_says_that_an_annotation_is_meant() -> None:
    pod = read(pod_object(labels={"gpu.topology/gruop": "g"}, limits=GPU))
    assert sentence(pod.causes) == (
        'pod/ns/p: label gpu.topology/gruop is "g", '
        "expected none: did you mean the annotation gpu.topology/group?"
    )


CLAIMS: dict[str, tuple[dict[str, Any], GangClaim]] = {
    "a misspelt annotation": ({"annotations": {"gpu.topology/gruop": "g"}}, GangClaim("annotations", "g")),
    "the annotation as a label": ({"labels": {"gpu.topology/group": "g"}}, GangClaim("annotations", "g")),
    "a misspelt label": ({"labels": {"gpu-toplogy": "g"}, "limits": GPU}, GangClaim("ack", "g")),
    "a PodGroup as a label": (
        {"labels": {"scheduling.run.ai/pod-group": "g"}},
        GangClaim("kai", "g", by_object=True),
    ),
    "the right key stands there too": (
        {"annotations": {"gpu.topology/gruop": "f", "gpu.topology/group": "g"}},
        GangClaim("annotations", "g"),
    ),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_the_pod_is_one_of_the_gang_that_it_means(case: str) -> None:
    fields, claim = CLAIMS[case]
    pod = read(pod_object(**fields))
    assert pod.claim == claim
    assert pod.causes


def test_what_is_bound_is_not_corrected() -> None:
    pod = read(pod_object(annotations={"gpu.topology/gruop": "g"}, limits=GPU, node="a"))
    assert pod.claim is not None
    assert pod.claim.lone
    assert pod.causes == ()


def test_of_thousands_of_keys_few_are_compared() -> None:
    misspelt.meant_key.cache_clear()
    labels = {f"gpu-toplogy{number}": "x" for number in range(5000)}
    read(pod_object(labels=labels, limits=GPU))
    assert misspelt.meant_key.cache_info().misses <= misspelt.MAX_COMPARED
