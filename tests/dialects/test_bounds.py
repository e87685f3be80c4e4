"""Reading a pod takes time in proportion to its size, and little of it is kept, whichever field is large.

Users may make pods of 3 MiB for any scheduler, and change them all the time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.fuzz import largest
from muster.adapters.kube import decode
from muster.adapters.kube.decode import ObjectChange
from muster.dialects.keys import MIRROR
from muster.dialects.objects import PodObject
from muster.dialects.pods import bounds, peers, pods, requests
from muster.domain.causes.ill_formed import BadValue
from muster.domain.node import Resources, total
from muster.domain.pod import Pod
from muster.domain.policies import DEFAULT_POLICIES
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.membership.consistency import MAX_NAMES, ill_formed
from tests.dialects.objects import pod_object

SMALL, LARGE = 60_000, 240_000
"""Bytes. Work that grows with the square grows by 16."""
CONTAINERS = [field for field in largest.OF_PODS if "containers" in field or "sidecars" in field]


def obj(field: str, size: int = LARGE, **spec: Any) -> PodObject:
    """Return a pod as the API server sends it, before anything is cut off."""
    pod = largest.pod(field, size, **spec)
    pod["metadata"] |= {"namespace": "ns", "uid": "u"}
    return msgspec.convert(pod, PodObject)


def calls(work: Callable[[], object]) -> int:
    """Return how many functions are called."""
    count = 0

    def seen(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def reading(field: str, size: int, **spec: Any) -> Callable[[], object]:
    large = obj(field, size, **spec)

    def read() -> object:
        requests._cached_sum.cache_clear()
        pod = pods.read(bounds.cut_to_limits(large))
        return Ledger().see(pod)

    return read


@pytest.mark.parametrize("node", ["", "n"], ids=["waits", "bound"])
@pytest.mark.parametrize("scheduler", ["muster", "another"])
@pytest.mark.parametrize("field", largest.OF_PODS)
def test_work_grows_no_faster_than_the_pod(field: str, scheduler: str, node: str) -> None:
    spec = {"schedulerName": scheduler, "nodeName": node}
    small, large = (calls(reading(field, size, **spec)) for size in (SMALL, LARGE))
    assert large <= 6 * small


@pytest.mark.parametrize("field", largest.OF_PODS)
def test_what_is_kept_of_a_large_pod_is_small_and_cutting_it_again_changes_nothing(field: str) -> None:
    cut = bounds.cut_to_limits(obj(field, 1_000_000))
    assert len(msgspec.json.encode(cut)) < 120_000
    assert bounds.cut_to_limits(cut) == cut
    assert pods.read(cut) == pods.read(bounds.cut_to_limits(cut))


@pytest.mark.parametrize("field", largest.OF_PODS)
def test_a_pod_means_the_same_before_and_after_it_is_cut(field: str) -> None:
    """So it does not matter whether it came in a watch or in a file."""
    for node in ("", "n"):
        whole = obj(field, LARGE, nodeName=node)
        before, after = pods.read(whole), pods.read(bounds.cut_to_limits(whole))
        assert (before.usage, before.peers) == (after.usage, after.peers)
        assert [slip.field for slip in _slips(before)] == [slip.field for slip in _slips(after)]


def _slips(pod: Pod) -> list[BadValue]:
    return [cause for cause in pod.causes if isinstance(cause, BadValue)]


REFUSED = {
    "labels": "number of labels",
    "annotations": "number of annotations",
    "containers": "number of containers",
    "sidecars with a resource each": "number of initContainers",
    "resources": "number of resources",
    "overhead": "number of resources",
    "tolerations": f"number of {peers.NODE_FIELD}",
    "node selector": f"number of {peers.NODE_FIELD}",
    "terms of node affinity": f"number of {peers.NODE_FIELD}",
    "expressions of node affinity": f"number of {peers.NODE_FIELD}",
    "values of node affinity": f"number of {peers.NODE_FIELD}",
    "volumes": "number of PersistentVolumeClaims in volumes",
}


@pytest.mark.parametrize(("field", "field_shown"), REFUSED.items())
def test_a_pod_that_waits_is_told_what_is_too_much(field: str, field_shown: str) -> None:
    read = pods.read(bounds.cut_to_limits(obj(field)))
    assert read.claim is not None
    sentences = [str(cause) for cause in read.causes]
    assert any(line.startswith(f'pod/ns/large: {field_shown} is "more than ') for line in sentences), (
        sentences
    )


def test_a_pod_that_is_no_member_and_asks_for_no_gpu_is_left_to_the_in_tree_plugins() -> None:
    read = pods.read(bounds.cut_to_limits(obj("tolerations", containers=[{"name": "c"}])))
    assert (read.claim, read.causes) == (None, ())


@pytest.mark.parametrize("field", ["containers with GPUs", *REFUSED])
def test_a_bound_pod_takes_its_gpus_however_large_it_is(field: str) -> None:
    cut = bounds.cut_to_limits(obj(field, nodeName="n"))
    usage = pods.read(cut).usage
    assert usage is not None
    containers = len(cut.spec.containers or ()) if field == "containers with GPUs" else 1
    assert usage.unindexed_gpus == containers
    assert pods.read(cut).causes == ()


@pytest.mark.parametrize("field", CONTAINERS)
def test_of_a_bound_pod_all_containers_are_summed_up(field: str) -> None:
    whole = obj(field, nodeName="n")
    cut = bounds.cut_to_limits(whole)
    assert (cut.spec.containers, cut.spec.init_containers) == (
        whole.spec.containers,
        whole.spec.init_containers,
    )
    resources = pods.read(cut).resources
    assert len(resources.others) <= requests.MAX_RESOURCES


def test_the_large_pod_of_a_watch_is_cut_and_of_a_deleted_one_only_its_identity_is_read() -> None:
    large = largest.pod("labels", LARGE)
    large["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    arrival, deleted = (
        decode.pods().event(json.dumps({"type": kind, "object": large}).encode())
        for kind in ("ADDED", "DELETED")
    )
    assert isinstance(arrival, ObjectChange)
    assert arrival.object is not None
    assert len(arrival.object.metadata.labels or ()) == bounds.MAX_KEYS + 1
    assert isinstance(deleted, ObjectChange)
    assert deleted.object is None
    assert (deleted.metadata.uid, deleted.metadata.resource_version) == ("u", "7")
    assert not hasattr(deleted.metadata, "labels")


def test_keys_that_muster_knows_are_read_among_any_number_of_others() -> None:
    large = largest.pod("annotations")
    large["metadata"]["annotations"]["gpu.topology/group"] = "g"
    large["metadata"]["annotations"]["gpu.topology/allocation"] = '{"version":1,"gpus":[3]}'
    large["spec"]["nodeName"] = "n"
    read = pods.read(bounds.cut_to_limits(msgspec.convert(large, PodObject)))
    assert read.allocation == 1 << 3
    assert read.claim is not None
    assert read.claim.name == "g"


@pytest.mark.parametrize("text", ["name", "uid", "kind", "apiVersion"])
def test_an_owner_with_a_long_text_is_no_owner(text: str) -> None:
    """Its UID would be part of the gang's key, in each message to the shim."""
    owner = {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": True}
    large = largest.pod("owners", 0)
    large["metadata"]["ownerReferences"] = [owner | {text: "x" * 1_000_000}]
    read = pods.read(bounds.cut_to_limits(msgspec.convert(large, PodObject)))
    assert (read.owner, read.controller) == ("", None)


def test_the_controller_is_found_among_any_number_of_owners() -> None:
    large = largest.pod("owners")
    large["metadata"]["ownerReferences"][-1] |= {"controller": True, "uid": "mine"}
    assert pods.read(bounds.cut_to_limits(msgspec.convert(large, PodObject))).owner == "mine"


def test_the_documented_bounds_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "what-a-pod-may-ask.md").read_text()
    table = page.partition("## Bounds of one pod\n")[2].partition("\n## ")[0]
    for bound in (
        f"| {requests.MAX_CONTAINERS} each |",
        f"| {requests.MAX_RESOURCES} names |",
        f"| {peers.MAX_NODE_NAMES:,} together; {MAX_NAMES:,} in a gang of unlike members |",
        f"| {bounds.MAX_KEYS} each |",
        f"| {peers.MAX_CLAIMS} |",
    ):
        assert bound in table


# --- sums ------------------------------------------------------------------------------------------------

AMOUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 9))


@given(st.lists(AMOUNTS, max_size=3), st.lists(st.tuples(AMOUNTS, st.booleans()), max_size=6))
def test_sidecars_add_up_as_kube_scheduler_adds_them_up(
    containers: list[dict[str, int]], inits: list[tuple[dict[str, int], bool]]
) -> None:
    """Container by container, as in k8s.io/component-helpers/resource, AggregateContainerRequests."""
    expected: dict[str, int] = {}
    for name in "abc":
        sidecars = peak = 0
        for amounts, stays in inits:
            peak = max(peak, sidecars + amounts.get(name, 0))
            sidecars += amounts.get(name, 0) * stays
        most = max(sum(amounts.get(name, 0) for amounts in containers) + sidecars, peak)
        expected |= {name: most} if most else {}
    assert {name: amount for name, amount in requests.sum_of(containers, inits).items() if amount} == expected


RESOURCES = st.builds(
    lambda cpu, amounts: Resources(cpu, cpu, 1, tuple(sorted(amounts.items()))), st.integers(0, 9), AMOUNTS
)


@given(st.lists(RESOURCES))
def test_a_total_is_the_sum(resources: list[Resources]) -> None:
    assert total(resources) == sum(resources, Resources(pods=0))


# --- gangs -----------------------------------------------------------------------------------------------


def members(unlike: int, alike: int) -> tuple[Any, ...]:
    members = []
    for number in range(unlike):
        large = largest.pod("owners", 0, name=f"p{number}")
        values = [f"v{number}-{value}" for value in range(alike)]
        terms = [{"matchExpressions": [{"key": "x", "operator": "In", "values": values}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        large["spec"]["affinity"] = {"nodeAffinity": required}
        large["metadata"] |= {
            "uid": f"u{number}",
            "annotations": {"gpu.topology/group": "g", "gpu.topology/min-member": "2"},
        }
        members.append(pods.read(msgspec.convert(large, PodObject)))
    return tuple(members)


def test_a_gang_of_unlike_members_with_many_rules_is_refused_before_it_is_planned() -> None:
    few, many = members(2, 1_000), members(70, 1_000)
    assert ill_formed("gang/ns/g", 2, few, {pod.claim for pod in few}, DEFAULT_POLICIES) == ()
    (cause,) = ill_formed("gang/ns/g", 70, many, {pod.claim for pod in many}, DEFAULT_POLICIES)
    assert f"expected at most {MAX_NAMES:,}" in str(cause)
    assert "of unlike members" in str(cause)


def test_pods_of_one_template_share_their_node_rules() -> None:
    first, second = members(1, 1_000)[0], members(1, 1_000)[0]
    assert first.rules is second.rules
    assert first.rules.size == 1_001


def test_the_annotation_of_static_pods_is_never_left_out() -> None:
    many = {f"example.com/{number}": "" for number in range(2 * bounds.MAX_KEYS)} | {MIRROR: "4f2a"}
    assert MIRROR in (bounds.cut_to_limits(pod_object(annotations=many)).metadata.annotations or {})
