"""The model behind waits-though-fits: which waiting gangs it says there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from e2e import objects
from e2e.chaos.auditor import NATIVE_PODGROUPS, POD_GROUP, PODGROUPS, WAITS, ChaosAuditor
from e2e.chaos.fits import DRA_RESOURCE, GPUS_BY_CLAIM
from e2e.facts import DRA_GPUS
from e2e.forged import NAMESPACE, bound_by_others, gated, greedy, node, own, pod, sharing, slice_pod
from e2e.objects import Words
from e2e.record import PODS, Change
from local_cluster.api import Object
from local_cluster.nodes import RACK, SCHEDULE


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pods and nodes at one moment, and the gangs that fit according to the model."""

    pods: Sequence[Object]
    nodes: Sequence[Object]
    fit: set[str] = field(default_factory=set)


def gang(size: int, gpus: int, scope: str = "", min_member: int = 0) -> list[Object]:
    words = own("w", min_member or size, scope)
    return [pod(f"w-{rank}", gpus=gpus, gang=words) for rank in range(size)]


def mesh(name: str) -> Object:
    """A node with the cube mesh of the gputopology document: one domain of eight."""
    body = node(name)
    body["metadata"]["annotations"] |= objects.node(name, topology=objects.DOCUMENT_MESH)["metadata"][
        "annotations"
    ]
    return body


def islands(name: str) -> Object:
    return node(name, labels={"gpu.topology/nvlink-domain-size": "4"})


def served(name: str) -> Object:
    """A node of eight GPUs that a DRA driver serves."""
    body = node(name, gpus=0)
    body["metadata"].setdefault("annotations", {})[DRA_GPUS] = f"{DRA_RESOURCE}=8"
    return body


def claiming(member: Object, gpus: int) -> Object:
    """The member with GPUs by a claim."""
    member["metadata"]["labels"][GPUS_BY_CLAIM] = str(gpus)
    return member


def asking(member: Object, gpus: int) -> Object:
    """The member with GPUs by the driver's resource."""
    member["spec"]["containers"][0]["resources"]["limits"] = {DRA_RESOURCE: str(gpus)}
    return member


def apart(*members: Object) -> list[Object]:
    """Add anti-affinity by hostname to members."""
    term = {"labelSelector": {"matchLabels": {"x": "y"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return [member | {"spec": member["spec"] | {"affinity": affinity}} for member in members]


def mounting(claim: str, member: Object) -> Object:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    return member | {"spec": member["spec"] | {"volumes": [volume]}}


W = f"{NAMESPACE}/gpu.topology/group/w"
FILLER = pod("filler", "a", (0, 1, 2, 3, 4), gpus=5)
ENDED = FILLER | {"status": {"phase": "Succeeded"}}
MEMBER = pod("w-0", "a", (0,), gang=own("w", 2, "rack"))
SLICE = slice_pod("x", 10)
BESIDE = slice_pod("y", 10, {0: 10})

WAITING = {
    "an empty cluster": Waiting(gang(2, 4), [node("a")], {W}),
    "anti-affinity, a node each": Waiting(apart(*gang(2, 1)), [node("a"), node("b")], {W}),
    "anti-affinity, one node for two": Waiting(apart(*gang(2, 1)), [node("a")]),
    "anti-affinity beside one that runs": Waiting(
        apart(*gang(1, 1, min_member=2), pod("w-1", "a", (0,), gang=own("w", 2))), [node("a")]
    ),
    "a volume of the node's rack": Waiting(
        [mounting("data-r1", *gang(1, 1))], [node("a", labels={RACK: "r1"})], {W}
    ),
    "a volume of another rack": Waiting([mounting("data-r0", *gang(1, 1))], [node("a", labels={RACK: "r1"})]),
    "no room": Waiting(gang(2, 4), [node("a", gpus=4)]),
    "fragments that add up": Waiting(gang(3, 4), [node("a", gpus=6), node("b", gpus=6)]),
    "several nodes": Waiting(gang(3, 4), [node("a"), node("b", gpus=4)], {W}),
    "what others hold is taken": Waiting([*gang(1, 4), FILLER], [node("a")]),
    "what others leave is free": Waiting([*gang(1, 3), FILLER], [node("a")], {W}),
    "what has ended is free": Waiting([*gang(1, 4), ENDED], [node("a")], {W}),
    "what terminates is taken": Waiting(
        [*gang(1, 4), pod("t", "a", (0, 1, 2, 3, 4), gpus=5, deletionTimestamp="now")], [node("a")]
    ),
    "a member is missing": Waiting(gang(2, 1, min_member=3), [node("a")]),
    "an elastic gang needs fewer": Waiting(gang(3, 4, min_member=2), [node("a")], {W}),
    "an elastic gang that runs could grow": Waiting(
        [pod("w-9", "a", (0,), gang=own("w", 1)), *gang(1, 4, min_member=1)], [node("a")], {W}
    ),
    "a member that goes is none": Waiting(
        [*gang(1, 1, min_member=2), pod("w-1", gang=own("w", 2), deletionTimestamp="now")], [node("a")]
    ),
    "a member behind a gate is none": Waiting(
        [*gang(1, 1, min_member=2), gated(pod("w-1", gang=own("w", 2)))], [node("a")]
    ),
    "a cordoned node": Waiting(gang(1, 1), [node("a", unschedulable=True)]),
    "a tainted node": Waiting(gang(1, 1), [node("a", taints=[{"key": "k", "effect": "NoSchedule"}])]),
    "a node that is not ready": Waiting(
        gang(1, 1), [node("a") | {"status": {"allocatable": {"aliyun.com/gpu": "8"}}}]
    ),
    "a node that serves others": Waiting(gang(1, 1), [node("a", labels={SCHEDULE: "share"})]),
    "a node that serves by topology": Waiting(gang(1, 1), [node("a", labels={SCHEDULE: "topology"})], {W}),
    "no cpu is left": Waiting([*gang(1, 1), greedy()], [node("a")]),
    "a slice on an empty node": Waiting([SLICE], [sharing("s")], {"n/x"}),
    "a slice where whole GPUs are": Waiting([SLICE], [node("a")]),
    "a whole GPU where slices are": Waiting(gang(1, 1), [sharing("s")]),
    "a slice beside others": Waiting([SLICE, BESIDE], [sharing("s")], {"n/x"}),
    "memory that adds up over GPUs": Waiting([SLICE, BESIDE, slice_pod("z", 7, {1: 7})], [sharing("s")]),
    "a slice of two GPUs": Waiting([slice_pod("x", 12, gpus=2), BESIDE], [sharing("s")], {"n/x"}),
    "a slice of two GPUs, one too full": Waiting([slice_pod("x", 14, gpus=2), BESIDE], [sharing("s")]),
    "a slice of three of two GPUs": Waiting([slice_pod("x", 3, gpus=3)], [sharing("s")]),
    "devices by claims": Waiting([claiming(member, 4) for member in gang(2, 0)], [served("a")], {W}),
    "devices by a resource": Waiting([asking(member, 4) for member in gang(2, 0)], [served("a")], {W}),
    "devices on nodes with a device plugin": Waiting(
        [claiming(member, 1) for member in gang(2, 0)], [node("a")]
    ),
    "devices that claims hold": Waiting(
        [
            claiming(pod("w-0", gpus=0, gang=own("w", 1)), 4),
            claiming(pod("x", "a", (0, 1, 2, 3, 4), gpus=0), 5),
        ],
        [served("a")],
    ),
    "another scheduler's pods took the cpu": Waiting(
        [*gang(1, 1), greedy() | {"spec": greedy()["spec"] | {"schedulerName": "default-scheduler"}}],
        [node("a")],
    ),
    "one rack has room": Waiting(
        gang(3, 4, "rack"), [node("a", labels={RACK: "r"}), node("b", labels={RACK: "r"})], {W}
    ),
    "two racks have room together": Waiting(
        gang(3, 4, "rack"), [node("a", labels={RACK: "r"}), node("b", labels={RACK: "s"})]
    ),
    "a replacement must join its rack, which is full": Waiting(
        [MEMBER, pod("w-1", gpus=8, gang=own("w", 2, "rack"))],
        [node("a", labels={RACK: "r"}), node("b", labels={RACK: "s"})],
    ),
    "a replacement joins its rack": Waiting(
        [MEMBER, pod("w-1", gpus=7, gang=own("w", 2, "rack"))],
        [node("a", labels={RACK: "r"}), node("b", labels={RACK: "s"})],
        {W},
    ),
    "one node has room": Waiting(gang(2, 4, "node"), [node("a"), node("b")], {W}),
    "no single node has room": Waiting(gang(3, 4, "node"), [node("a"), node("b")]),
    "a mesh is one domain": Waiting(gang(2, 3, "nvlink-domain"), [mesh("a")], {W}),
    "an island is one": Waiting(gang(2, 2, "nvlink-domain"), [islands("a")], {W}),
    "two islands are two": Waiting(gang(2, 3, "nvlink-domain"), [islands("a")]),
    "an island is half taken": Waiting(
        [*gang(2, 2, "nvlink-domain"), pod("x", "a", (0, 4), gpus=2)], [islands("a")]
    ),
    "nobody knows which GPUs others have": Waiting(
        [*gang(2, 2, "nvlink-domain"), bound_by_others("o", "a", 1)], [islands("a")]
    ),
    "no NVLink, no domain": Waiting(gang(1, 1, "nvlink-domain"), [node("a")]),
    "words that the model does not know": Waiting(gang(1, 1, "example.com/pod"), [node("a")]),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_waiting_gang_fits_or_not(name: str) -> None:
    case = WAITING[name]
    assert {fit.gang for fit in ChaosAuditor(NAMESPACE, 8).fits(case.pods, case.nodes)} == case.fit


def test_a_waiting_gang_that_fits_is_reported_with_its_placement() -> None:
    auditor = ChaosAuditor(NAMESPACE, 8)
    pods, nodes = gang(2, 4), [node("a")]
    for body in pods:
        auditor.see(Change(0, PODS, "ADDED", body))
    auditor.waits_though_fits("in the end", auditor.fits(pods, nodes))
    (sentence,) = auditor.verdict(pods, nodes)[WAITS]
    assert "n/w-0 on a, n/w-1 on a" in sentence


def test_a_podgroup_says_how_many_and_where() -> None:
    group: Object = {"metadata": {"namespace": NAMESPACE, "name": "pg"}, "spec": {"minMember": 2}}
    members = [pod(f"m-{rank}", gpus=4, gang=Words({}, {POD_GROUP: "pg"})) for rank in range(2)]
    nodes = [node("a", gpus=4, labels={RACK: "r"}), node("b", gpus=4, labels={RACK: "s"})]
    auditor = ChaosAuditor(NAMESPACE, 8)
    auditor.see(Change(0, PODGROUPS, "ADDED", group))
    assert [fit.gang for fit in auditor.fits(members, nodes)] == [f"{NAMESPACE}/{POD_GROUP}/pg"]
    assert not auditor.fits(members[:1], nodes)
    group["spec"]["topologyPolicy"] = {"scope": "rack"}
    assert not auditor.fits(members, nodes)


def test_a_podgroup_of_kubernetes_says_how_many_and_where_as_it_is_now() -> None:
    members = [pod(f"m-{rank}", gpus=4) for rank in range(2)]
    for member in members:
        member["spec"]["schedulingGroup"] = {"podGroupName": "pg"}
    nodes = [node("a", gpus=4, labels={RACK: "r"}), node("b", gpus=4, labels={RACK: "s"})]
    auditor = ChaosAuditor(NAMESPACE, 8)
    assert not auditor.fits(members, nodes)

    def says(at: float, count: int, **spec: Object) -> None:
        body: Object = {"metadata": {"namespace": NAMESPACE, "name": "pg"}, "spec": spec}
        body["spec"]["schedulingPolicy"] = {"gang": {"minCount": count}}
        auditor.see(Change(at, NATIVE_PODGROUPS, "MODIFIED", body))

    says(0, 2)
    assert [fit.gang for fit in auditor.fits(members, nodes)] == [f"{NAMESPACE}/schedulingGroup/pg"]
    assert not auditor.fits(members[:1], nodes)
    says(1, 1)
    assert auditor.fits(members[:1], nodes)
    says(2, 3)
    assert not auditor.fits(members, nodes)
    says(3, 2, schedulingConstraints={"topology": [{"key": RACK}]})
    assert not auditor.fits(members, nodes)
