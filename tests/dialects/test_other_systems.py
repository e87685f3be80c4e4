"""Gangs in the words of other systems: read where they say the same as ours, else refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.dialects.gangs import misspelt, other_systems, podgroups
from muster.dialects.kinds.description import JobPod
from muster.dialects.objects import Metadata
from muster.dialects.pods.pods import read
from muster.domain.causes.ill_formed import BadValue, DialectsDisagree
from muster.domain.pod import GangClaim, Pod
from muster.domain.podgroup import PodGroup
from tests.dialects.objects import custom_object, pod_object

GPU = {"nvidia.com/gpu": 8}
KOORDINATOR, ACK = "gang.scheduling.koordinator.sh", "pod-group.scheduling.sigs.k8s.io"
KUEUE, ARMADA = "kueue.x-k8s.io", "armadaproject.io"
OF_TWO = {f"{KUEUE}/pod-group-total-count": "2"}
IN_GROUP = {f"{KUEUE}/pod-group-name": "g"}


def pod(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **more: Any) -> Pod:
    return read(pod_object(labels=labels, annotations=annotations, **{"limits": GPU, **more}))


READ: dict[str, tuple[dict[str, str], dict[str, str], GangClaim]] = {
    # name: labels, annotations, the gang
    "Koordinator": (
        {},
        {f"{KOORDINATOR}/name": "g", f"{KOORDINATOR}/min-available": "2"},
        GangClaim("koordinator", "g", 2),
    ),
    "Koordinator, more than must start": (
        {},
        {
            f"{KOORDINATOR}/name": "g",
            f"{KOORDINATOR}/min-available": "2",
            f"{KOORDINATOR}/total-number": "4",
            f"{KOORDINATOR}/mode": "NonStrict",
            f"{KOORDINATOR}/waiting-time": "60s",
        },
        GangClaim("koordinator", "g", 2, size=4),
    ),
    "Koordinator, by a PodGroup": (
        {},
        {f"{KOORDINATOR}/name": "g"},
        GangClaim("coscheduling", "g", by_object=True),
    ),
    "ACK's labels": (
        {f"{ACK}/name": "g", f"{ACK}/min-available": "2"},
        {},
        GangClaim("ack-pod-group", "g", 2),
    ),
    "ACK's label, with Koordinator's number": (
        {f"{ACK}/name": "g"},
        {f"{KOORDINATOR}/min-available": "2"},
        GangClaim("ack-pod-group", "g", 2),
    ),
    "Koordinator's name, with ACK's number": (
        {f"{ACK}/min-available": "2"},
        {f"{KOORDINATOR}/name": "g"},
        GangClaim("koordinator", "g", 2),
    ),
    "ACK's label, by a PodGroup": ({f"{ACK}/name": "g"}, {}, GangClaim("coscheduling", "g", by_object=True)),
    "coscheduling": (
        {"scheduling.x-k8s.io/pod-group": "g"},
        {},
        GangClaim("coscheduling", "g", by_object=True),
    ),
    "coscheduling, older": ({ACK: "g"}, {}, GangClaim("coscheduling", "g", by_object=True)),
    "Volcano": ({}, {"scheduling.k8s.io/group-name": "g"}, GangClaim("volcano", "g", by_object=True)),
    "Volcano, both keys, as Grove writes them": (
        {"grove.io/podgang": "other"},
        {"scheduling.k8s.io/group-name": "g", "scheduling.volcano.sh/group-name": "g"},
        GangClaim("volcano", "g", by_object=True),
    ),
    "Kueue": (IN_GROUP, OF_TWO, GangClaim("kueue", "g", 2, size=2)),
    "Kueue, with a long name": ({}, {**IN_GROUP, **OF_TWO}, GangClaim("kueue", "g", 2, size=2)),
    "Armada": (
        {},
        {f"{ARMADA}/gangId": "g", f"{ARMADA}/gangCardinality": "2"},
        GangClaim("armada", "g", 2, size=2),
    ),
    "Fluence": (
        {"fluence.pod-group": "g", "fluence.group-size": "2"},
        {},
        GangClaim("fluence", "g", 2, size=2),
    ),
    "Fluence, by a PodGroup": (
        {"scheduling.x-k8s.io/pod-group": "g", "fluence.group-size": "2"},
        {},
        GangClaim("coscheduling", "g", by_object=True),
    ),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("limits", [GPU, {}], ids=["GPUs", "a launcher without GPUs"])
def test_words_that_say_the_same_are_read(name: str, limits: dict[str, int]) -> None:
    labels, annotations, claim = READ[name]
    read_pod = pod(labels, annotations, limits=limits)
    assert (read_pod.claim, read_pod.causes) == (claim, ())


@pytest.mark.parametrize("name", READ)
def test_the_keys_of_pods_of_other_schedulers_mean_nothing(name: str) -> None:
    labels, annotations, _ = READ[name]
    read_pod = pod(labels, annotations, scheduler="default-scheduler")
    assert (read_pod.claim, read_pod.causes) == (None, ())


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    # name: the pod, the field that is named, the system or what to use
    "YuniKorn": (
        {
            "labels": {"applicationId": "app-1", "queue": "root.sandbox"},
            "annotations": {
                "yunikorn.apache.org/task-group-name": "w",
                "yunikorn.apache.org/task-groups": '[{"name": "w", "minMember": 2}]',
            },
        },
        "yunikorn.apache.org/task-group-name",
        "YuniKorn",
    ),
    "YuniKorn's first pod": (
        {"annotations": {"yunikorn.apache.org/task-groups": "[]"}},
        "yunikorn.apache.org/task-groups",
        "YuniKorn",
    ),
    "Grove": (
        {"labels": {"grove.io/podgang": "pd-0", "grove.io/podclique": "pd-0-decode"}},
        "grove.io/podgang",
        "Grove",
    ),
    "Gödel": (
        {"annotations": {"godel.bytedance.com/pod-group-name": "g"}},
        "godel.bytedance.com/pod-group-name",
        "Gödel",
    ),
    "HiveD": (
        {"annotations": {"hivedscheduler.microsoft.com/pod-scheduling-spec": "affinityGroup:\n  name: g\n"}},
        "hivedscheduler.microsoft.com/pod-scheduling-spec",
        "HiveD",
    ),
    "Sakkara": ({"labels": {"sakkara.group.name": "g"}}, "sakkara.group.name", "Sakkara"),
    "KubeShare": ({"labels": {"sharedgpu/group_name": "g"}}, "sharedgpu/group_name", "KubeShare"),
    "batch-scheduler": (
        {"labels": {"group.batch.scheduler.tencent.com": "g"}},
        "group.batch.scheduler.tencent.com",
        "batch-scheduler",
    ),
    "Koordinator's size alone": (
        {"annotations": {f"{KOORDINATOR}/total-number": "2"}},
        f"{KOORDINATOR}/total-number",
        f"add {KOORDINATOR}/name",
    ),
    "Volcano's number alone": (
        {"annotations": {"scheduling.volcano.sh/group-min-member": "2"}},
        "scheduling.volcano.sh/group-min-member",
        "Volcano",
    ),
    "Kubernetes 1.35": (
        {"spec": {"workloadRef": {"name": "wl", "podGroup": "workers"}}},
        "spec.workloadRef",
        "spec.schedulingGroup",
    ),
    "Koordinator: gangs that start together": (
        {
            "annotations": {
                f"{KOORDINATOR}/name": "g",
                f"{KOORDINATOR}/min-available": "2",
                f"{KOORDINATOR}/groups": '["ns/g", "ns/h"]',
            },
        },
        f"{KOORDINATOR}/groups",
        "one gang for all",
    ),
    "Armada: one domain": (
        {
            "annotations": {
                f"{ARMADA}/gangId": "g",
                f"{ARMADA}/gangCardinality": "2",
                f"{ARMADA}/gangNodeUniformityLabel": "example.com/rack",
            },
        },
        f"{ARMADA}/gangNodeUniformityLabel",
        "gpu.topology/scope",
    ),
    "Kueue: no number": (
        {"labels": IN_GROUP},
        f"{KUEUE}/pod-group-total-count",
        "how many pods start together",
    ),
    "Kueue: no name": ({"annotations": OF_TWO}, f"{KUEUE}/pod-group-total-count", "a gang beside it"),
    "Koordinator: no name": (
        {"annotations": {f"{KOORDINATOR}/min-available": "2"}},
        f"{KOORDINATOR}/min-available",
        "a gang beside it",
    ),
    "Koordinator: no number": (
        {"annotations": {f"{KOORDINATOR}/name": "g", f"{KOORDINATOR}/min-available": "two"}},
        f"{KOORDINATOR}/min-available",
        "a positive whole number",
    ),
    "Koordinator: fewer than must start": (
        {
            "annotations": {
                f"{KOORDINATOR}/name": "g",
                f"{KOORDINATOR}/min-available": "2",
                f"{KOORDINATOR}/total-number": "1",
            },
        },
        f"{KOORDINATOR}/total-number",
        "at least",
    ),
    "Koordinator: a label": (
        {"labels": {f"{KOORDINATOR}/name": "g"}},
        f"label {KOORDINATOR}/name",
        "it is an annotation",
    ),
    "Volcano: no name": (
        {"annotations": {"scheduling.k8s.io/group-name": "My Group"}},
        "scheduling.k8s.io/group-name",
        "the name of a PodGroup",
    ),
}


HIVED = "hivedscheduler.microsoft.com/pod-scheduling-spec"


@pytest.mark.parametrize(
    "given_pod",
    [
        {"annotations": {HIVED: "virtualCluster: vc1\naffinityGroup: null\nleafCellNumber: 1\n"}},
        {"annotations": {HIVED: '{"virtualCluster": "vc1", "affinityGroup": null}'}},
        {"annotations": {HIVED: "virtualCluster: vc1\nleafCellNumber: 1\n"}},
        {"labels": {"sharedgpu/group_name": "g"}, "limits": {}},
    ],
    ids=["HiveD's null", "HiveD's null in JSON", "HiveD without a group", "no GPUs in KubeShare's group"],
)
def test_words_of_others_that_name_no_gang_are_not_refused(given_pod: dict[str, Any]) -> None:
    assert pod(**given_pod).causes == ()


@pytest.mark.parametrize("name", REFUSED)
def test_other_words_are_refused_with_the_key_and_the_way_out(name: str) -> None:
    given_pod, field, says = REFUSED[name]
    (cause,) = pod(**given_pod).causes
    assert isinstance(cause, BadValue)
    assert cause.field == field
    assert says in cause.expected


@pytest.mark.parametrize(
    "name",
    ["YuniKorn", "Grove", "Gödel", "HiveD", "Sakkara", "Volcano's number alone", "YuniKorn's first pod"],
)
@pytest.mark.parametrize(
    "ours",
    [
        {"annotations": {"gpu.topology/group": "g", "gpu.topology/min-member": "2"}},
        {"labels": {"gpu-topology": "g", "gpu-topology-replica": "2"}},
        {"annotations": {"pod-group-name": "g"}},
    ],
)
def test_the_way_out_is_one(name: str, ours: dict[str, dict[str, str]]) -> None:
    """Operators write their labels all the same."""
    theirs, _, _ = REFUSED[name]
    merged = {part: {**theirs.get(part, {}), **ours.get(part, {})} for part in ("labels", "annotations")}
    read_pod = pod(**merged)
    assert read_pod.causes == ()
    assert read_pod.claim is not None
    assert read_pod.claim.name == "g"


def test_a_job_that_is_a_gang_needs_no_other_words() -> None:
    member = JobPod("PyTorchJob", "train", "train", "worker")
    obj = pod_object(labels={"grove.io/podgang": "pd-0"}, limits=GPU)
    read_pod = read(obj, member=member)
    assert read_pod.causes == ()
    assert read_pod.claim is not None
    assert read_pod.claim.name == "train"


@pytest.mark.parametrize("name", REFUSED)
def test_a_bound_pod_is_a_fact(name: str) -> None:
    given_pod, _, _ = REFUSED[name]
    assert pod(**given_pod, node="a").causes == ()


def test_the_pods_of_one_refused_gang_are_told_together() -> None:
    read_pod = pod({"grove.io/podgang": "pd-0"})
    assert read_pod.claim == GangClaim("Grove", "pd-0")
    bound = pod({"grove.io/podgang": "pd-0"}, node="a")
    assert bound.claim is not None
    assert bound.claim.lone


@pytest.mark.parametrize(
    "apart",
    [
        {f"{KUEUE}/pod-group-serving": "true"},
        {f"{KUEUE}/pod-group-fast-admission": "true"},
        {f"{KUEUE}/pod-suspending-parent": "statefulset"},
    ],
)
def test_groups_of_kueue_whose_pods_come_one_after_another_are_no_gangs(apart: dict[str, str]) -> None:
    read_pod = pod(IN_GROUP, {**OF_TWO, **apart})
    assert read_pod.causes == ()
    assert read_pod.claim is not None
    assert read_pod.claim.lone


def test_a_group_of_kueue_counts_only_if_nothing_else_names_the_gang() -> None:
    """Its groups are those of quota, and its integrations name them after the Workload."""
    read_pod = pod(IN_GROUP, {**OF_TWO, "gpu.topology/group": "mine", "gpu.topology/min-member": "4"})
    assert (read_pod.claim, read_pod.causes) == (GangClaim("annotations", "mine", 4), ())


def test_two_systems_that_name_different_gangs_are_refused() -> None:
    read_pod = pod({f"{ACK}/name": "a", f"{ACK}/min-available": "2"}, {"scheduling.k8s.io/group-name": "b"})
    assert any(isinstance(cause, DialectsDisagree) for cause in read_pod.causes)


def test_a_pod_that_kueue_holds_is_not_there_yet() -> None:
    gates = {"schedulingGates": [{"name": f"{KUEUE}/admission"}]}
    assert not pod(IN_GROUP, OF_TWO, spec=gates).present


@pytest.mark.parametrize("key", sorted(other_systems.places()))
def test_advice_never_goes_by_the_spelling_of_another_systems_key(key: str) -> None:
    """Their prefixes have more keys than those that are read, some nearly alike."""
    assert misspelt.meant_key(key) == ""
    if not key.startswith("scheduling.x-k8s.io/") and "/" in key:
        assert misspelt.meant_key(f"{key}s") == ""


UNKNOWN = (
    "scheduling.k8s.io/pod-group",
    "gang.scheduling.koordinator.sh/pod-group",
    "example.com/gang",
    "example.com/gang-id",
    "x.io/gangName",
    "x.io/pod-group",
    "x.io/podGroup",
    "batch.example.com/min-member",
    "gang-id",
)
OTHER_KEYS = (
    "app",
    "gangway",
    "example.com/group",
    "rbg.workloads.x-k8s.io/group-name",
    f"{KUEUE}/pod-group-pod-index",
    "leaderworkerset.sigs.k8s.io/group-index",
    "kai.scheduler/stale-podgroup-timestamp",
    "x.io/minimum",
    f"{KOORDINATOR}/mode",
    "example.com/gangster-rap",
)


@pytest.mark.parametrize("key", [*UNKNOWN, *OTHER_KEYS])
def test_a_key_that_looks_like_that_of_an_unknown_system_is_told(key: str) -> None:
    notes = list(other_systems.unknown_gang_keys(Metadata(annotations={key: "x"}), misspelt.known_keys()))
    note = f"annotation {key} is not read: if it is about a gang, use {other_systems.WAY_OUT}"
    assert notes == ([note] if key in UNKNOWN else [])


KEYS = st.sampled_from(sorted(other_systems.places()))
TEXTS = st.text(max_size=12) | st.sampled_from(["g", "2", "0", "true", "-1", "g" * 300])


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(KEYS, TEXTS, max_size=5), st.dictionaries(KEYS, TEXTS, max_size=5))
def test_no_pod_that_names_a_gang_starts_alone(labels: dict[str, str], annotations: dict[str, str]) -> None:
    read_pod = pod(labels, annotations)
    assert read_pod.claim is not None
    gang_keys = {*labels, *annotations} & {*other_systems.GANG_KEYS} - {f"{KUEUE}/pod-group-name", HIVED}
    if gang_keys:
        assert read_pod.causes or not read_pod.claim.lone
    hash(read_pod.causes)


def volcano(**spec: Any) -> PodGroup:
    return podgroups.read(custom_object(podgroups.VOLCANO_API, "PodGroup", "g", spec))


def test_a_pod_group_of_volcano() -> None:
    group = volcano(
        minMember=3, minTaskMember={"master": 1, "worker": 2}, queue="q", minResources={"cpu": "1"}
    )
    assert (group.key, group.causes, group.problems) == (("ns", "volcano", "g"), (), ())
    assert (group.min_member, group.role_min, group.queue) == (3, {"master": 1, "worker": 2}, "q")


@pytest.mark.parametrize(
    ("spec", "least"),
    [({}, 1), ({"minMember": 0}, 1), ({"minTaskMember": {"a": 2, "b": 2}}, 4), ({"minMember": 5}, 5)],
)
def test_how_many_must_start_by_a_pod_group_of_volcano(spec: dict[str, Any], least: int) -> None:
    assert volcano(**spec).min_member == least


@pytest.mark.parametrize(
    "spec",
    [
        {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}},
        {"networkTopology": {"highestTierAllowed": 1}},
        {"subGroupPolicy": [{"name": "a", "subGroupSize": 2}]},
        {"minMember": "two"},
        {"minTaskMember": {str(i): 1 for i in range(100)}},
        {"minTaskMember": {"no task": 1}},
        {"minTaskMember": {"x" * 64: 1}},
    ],
)
def test_what_is_not_read_of_a_pod_group_of_volcano_is_refused(spec: dict[str, Any]) -> None:
    assert volcano(**{"minMember": 2, **spec}).causes


def test_a_preferred_topology_of_volcano_is_noted() -> None:
    group = volcano(minMember=2, networkTopology={"mode": "soft", "highestTierAllowed": 2})
    assert (group.causes, len(group.problems)) == ((), 1)


@pytest.mark.parametrize("key", other_systems.MORE_OF_GROUPS)
def test_pod_groups_of_koordinator_that_ask_for_more_are_refused(key: str) -> None:
    obj = custom_object(podgroups.OLD_COSCHEDULING_API, "PodGroup", "g", {"minMember": 2})
    assert podgroups.read(obj).causes == ()
    assert obj.metadata.annotations is None
    metadata = Metadata(name="g", namespace="ns", annotations={key: "x"})
    (cause,) = podgroups.read(type(obj)(obj.api_version, metadata, obj.spec)).causes
    assert isinstance(cause, BadValue)
    assert cause.field == f"annotation {key}"


def test_a_task_of_volcano_is_a_role() -> None:
    annotations = {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": "worker"}
    read_pod = pod(annotations=annotations)
    assert read_pod.claim is not None
    assert read_pod.claim.topology_request.role == "worker"
    read_pod = pod({"volcano.sh/task-spec": "worker"}, {"pod-group-name": "g"})
    assert read_pod.claim is not None
    assert read_pod.claim.topology_request.role == ""  # KAI's subgroups have other names
    read_pod = pod({"volcano.sh/task-spec": "worker"}, {**annotations, "gpu.topology/role": "mine"})
    assert read_pod.claim is not None
    assert (read_pod.claim.topology_request.role, read_pod.causes) == ("mine", ())
