# ruff: noqa: E501 — golden sentences are as long as they are
"""Golden sentences: the cause first, with its numbers, short enough for an event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.causes.ill_formed import (
    BadValue,
    DialectsDisagree,
    ForgedAllocation,
    GroupDisagrees,
    MembersDisagree,
    TooManyMembers,
)
from muster.domain.causes.not_planned import (
    ClaimsMissing,
    GroupsMissing,
    JobMissing,
    MembersMissing,
    NotDecided,
    NotSupported,
    ParentMissing,
    PlannerDefect,
    PodGroupMissing,
    RefusedEverywhere,
    TookTooLong,
    TookTooMuchMemory,
    TooManyRoles,
)
from muster.domain.causes.out_of_place import (
    DomainTooSmall,
    GpusNotMatching,
    IndicesUnknown,
    NodesExcluded,
    NoSuchDomain,
    RoleScope,
    RunningElsewhere,
    SegmentsTooLarge,
)
from muster.domain.causes.too_little import (
    ClusterTooSmall,
    FreeApart,
    FreeInPieces,
    GpusNotOffered,
    MembersToCome,
    MemberTooLarge,
    NotEnoughFree,
    ResourceNotOffered,
    RoomTaken,
    SubgroupsNeeded,
)
from muster.domain.constraints import (
    AffinityUnsatisfied,
    AntiAffinityLimits,
    AttributesDiffer,
    DropConstraint,
    RoomTooSmall,
    SkewTooLarge,
    SubgroupScope,
)
from muster.domain.decision import (
    DropSelector,
    FewerMembers,
    Invalid,
    MoreFree,
    Placed,
    SmallerSegments,
    Tolerate,
    Uncordon,
    Unplaceable,
    WiderScope,
)
from muster.domain.reasons import Cause, Relaxation
from muster.domain.request import GangId, RolePreference
from muster.domain.sentences import MAX_CHARACTERS, placed_sentence, sentence
from muster.domain.words import GPU_MEMORY, gpus_with
from muster.placement.place import place
from tests.placement.constraints import TESTED
from tests.placement.drawings import cluster, gang

GPU = "nvidia.com/gpu"

GOLDEN: list[tuple[Cause, str]] = [
    (ResourceNotOffered("w", GPU, 3), "No node offers nvidia.com/gpu, which role w needs"),
    (
        GpusNotOffered("", GPU, 5, 12, 40, ("a", "b", "c", "d")),
        "5 nodes offer 12 of their 40 nvidia.com/gpu: a, b, c, d and 1 more",
    ),
    (
        RoomTaken("in rack r003", 7, 112, 1, 8, 0),
        "Of the GPUs in rack r003, 7 gangs of lower priority have 112 and 1 other gang has 8",
    ),
    (
        NotEnoughFree("w, x", GPU, 1, 8, 1, 4, 16),
        "Roles w, x need 8 nvidia.com/gpu for 4 members, and 1 nvidia.com/gpu is free on nodes that admit them (16 on others): 1 of 4 fits",
    ),
    (
        RefusedEverywhere("worker", "DynamicResources: no claim"),
        "No node admits role worker: DynamicResources: no claim",
    ),
    (ClaimsMissing(("data", "logs")), "PersistentVolumeClaims data, logs do not exist"),
    (
        JobMissing("PyTorchJob ns/train"),
        "PyTorchJob ns/train is not there; its pods wait for it, since it says how many they are",
    ),
    (PodGroupMissing("ns/train"), "PodGroup ns/train does not exist yet; its pods wait for it"),
    (
        ParentMissing("ns/tree"),
        "CompositePodGroup ns/tree does not exist yet; the pods below it wait for it, since "
        "spec.parentCompositePodGroupName of a group names it, and names this namespace's groups alone",
    ),
    (
        GroupsMissing("CompositePodGroup ns/tree", 1, 2),
        "Waiting for 1 more group: 1 of 2 are here (spec.schedulingPolicy.gang.minGroupCount of "
        "CompositePodGroup ns/tree)",
    ),
    (
        TooManyRoles(80, 64, "CompositePodGroup ns/tree"),
        "CompositePodGroup ns/tree has pods of 80 PodGroups or different requests, and a tree may have 64: make "
        "several trees, or give the pods of each PodGroup equal requests",
    ),
    (
        BadValue("pod/default/w-0", "label gpu-topology-replica", "four", "a positive integer"),
        'pod/default/w-0: label gpu-topology-replica is "four", expected a positive integer',
    ),
    (
        MembersDisagree("gpu-topology-replica", (("2", "w-0"), ("3", "w-1"))),
        'Pods of one gang disagree on gpu-topology-replica: "2" (pod w-0), "3" (pod w-1)',
    ),
    (TooManyMembers(5, 4), "The gang has 5 live pods, more than its 4 replicas"),
    (
        ForgedAllocation("w-0", "gpu.topology/allocation"),
        "Pod w-0 came with the annotation gpu.topology/allocation, which only the scheduler may write",
    ),
    (
        DialectsDisagree("w-0", "ack gang a", "kai gang b"),
        "Pod w-0 names two different gangs or counts: ack gang a and kai gang b",
    ),
    (
        GroupDisagrees("w-0", "gpu.topology/scope", "zone", "PodGroup ns/g", "scope", "rack"),
        "Pod w-0 has gpu.topology/scope: zone, and PodGroup ns/g has scope: rack",
    ),
    (MembersMissing(3, 4), "Waiting for 1 more member: 3 of 4 are here"),
    (
        MembersMissing(1, 4, stateful_set="web"),
        "Waiting for 3 more members: 1 of 4 are here; StatefulSet web makes its pods one by one, unless it has "
        "podManagementPolicy: Parallel",
    ),
    (
        MembersToCome(1, ("first", "second")),
        "1 of these members comes when the others have a node: roles first, second",
    ),
    (
        SubgroupsNeeded(2, 3, ("a", "b")),
        "The gang needs 2 of its 3 subgroups, and no others fit either: this is about a, b",
    ),
    (SubgroupsNeeded(2, 2, ("a", "b")), "No other members can start either: this is about a, b"),
    (
        MemberTooLarge("worker", GPU, 16, "a", 8),
        "A member of role worker asks for 16 nvidia.com/gpu, and the largest node that admits it, a, has 8 nvidia.com/gpu",
    ),
    (
        MemberTooLarge("worker", GPU, 16, "a", 8, anywhere=True),
        "A member of role worker asks for 16 nvidia.com/gpu, and the largest node, a, has 8 nvidia.com/gpu",
    ),
    (
        MemberTooLarge("worker", "memory", 3 * 2**30, "a", 2**31),
        "A member of role worker asks for 3 GiB of memory, and the largest node that admits it, a, has 2 GiB of memory",
    ),
    (
        ClusterTooSmall("worker", GPU, 16, 24, 16, 24, "a", 8),
        "Role worker needs 24 nvidia.com/gpu for 24 members, and the nodes that admit it have 16 nvidia.com/gpu in all: 16 of 24 fit, even if nothing else ran",
    ),
    (
        ClusterTooSmall("w, x", GPU, 16, 15, 2, 3, "a", 8),
        "Roles w, x need 15 nvidia.com/gpu for 3 members; the nodes that admit them have 16 nvidia.com/gpu in all, but in pieces too small, at most 8 on one node (a): 2 of 3 fit, even if nothing else ran",
    ),
    (
        ClusterTooSmall("", GPU, 16, 24, None, 24, "a", 8, anywhere=True),
        "The gang needs 24 nvidia.com/gpu for 24 members, and all nodes have 16 nvidia.com/gpu in all",
    ),
    (
        ClusterTooSmall("", GPU, 0, 1, 0, 1, "", 0, anywhere=True),
        "The pod needs 1 nvidia.com/gpu, and there are no nodes",
    ),
    (
        MemberTooLarge("worker", GPU_MEMORY, 40, "n1", 16),
        "A member of role worker asks for 40 GiB of GPU memory on one GPU, and the largest node that admits it, n1, has 16 GiB of GPU memory",
    ),
    (
        MemberTooLarge("worker", gpus_with(10), 2, "n1", 1),
        "A member of role worker asks for 2 GPUs of 10 GiB, and the largest node that admits it, n1, has 1 GPU of 10 GiB",
    ),
    (
        FreeInPieces("worker", GPU_MEMORY, 12, 12, 0, 3, "n1", 3),
        "Role worker needs 12 GiB of GPU memory for 3 members; 12 GiB of GPU memory are free, but in pieces too small, at most 3 GiB on one GPU (n1): none of 3 fits",
    ),
    (
        FreeApart("w, x", ((GPU, 2), (GPU_MEMORY, 35)), 4, 5),
        "Roles w, x need room for 5 members; 2 nvidia.com/gpu and 35 GiB of GPU memory are free, but not at once: 4 of 5 fit",
    ),
    (NotSupported("max-per", "gpu"), "Max-per gpu is not supported where members share GPUs"),
    (
        NotSupported("segment-scope", "nvlink-domain", "example.com/numa"),
        "Segment-scope nvlink-domain is not supported together with matchAttribute example.com/numa",
    ),
    (
        NotEnoughFree("worker", GPU, 10, 12, 2, 3),
        "Role worker needs 12 nvidia.com/gpu for 3 members, and 10 nvidia.com/gpu are free: 2 of 3 fit",
    ),
    (
        NotEnoughFree("worker", GPU, 1, 12, 0, 3),
        "Role worker needs 12 nvidia.com/gpu for 3 members, and 1 nvidia.com/gpu is free: none of 3 fits",
    ),
    (
        NotEnoughFree("master, worker", "cpu", 1500, 3000, 0, 2),
        "Roles master, worker need 3 cpu for 2 members, and 1.5 cpu are free: none of 2 fits",
    ),
    (
        NotEnoughFree("", GPU, 8, 10, 8, 10),
        "The gang needs 10 nvidia.com/gpu for 10 members, and 8 nvidia.com/gpu are free: 8 of 10 fit",
    ),
    (
        FreeInPieces("worker", GPU, 12, 12, 1, 3, "a", 6),
        "Role worker needs 12 nvidia.com/gpu for 3 members; 12 nvidia.com/gpu are free, but in pieces too small, at most 6 on one node (a): 1 of 3 fits",
    ),
    (
        FreeInPieces("worker", "memory", 2**35, 2**34, 1, 2, "a", 2**33),
        "Role worker needs 16 GiB of memory for 2 members; 32 GiB of memory are free, but in pieces too small, at most 8 GiB on one node (a): 1 of 2 fits",
    ),
    (
        FreeApart("worker", ((GPU, 4), ("cpu", 4500)), 0, 2),
        "Role worker needs room for 2 members; 4 nvidia.com/gpu and 4.5 cpu are free, but not on the same nodes: none of 2 fits",
    ),
    (
        FreeApart("w, x", ((GPU, 4), ("cpu", 4500)), 1, 2, even_empty=True),
        "Roles w, x need room for 2 members; 4 nvidia.com/gpu and 4.5 cpu are there, but not on the same nodes: 1 of 2 fits, even if nothing else ran",
    ),
    (
        DomainTooSmall("nvlink-domain", "dgx-07/0", 3, 4),
        "No one nvlink-domain holds all 4 members: the best, dgx-07/0, holds 3",
    ),
    (
        DomainTooSmall("nvlink-domain", "a/0", 1, 2, has_nvlink=False, even_empty=True),
        "No one nvlink-domain holds all 2 members, even if nothing else ran: the best, a/0, holds 1; its node has no NVLink",
    ),
    (
        DomainTooSmall("nvlink-domain", "a/0", 1, 2, has_nvlink=False, links_known=False),
        "No one nvlink-domain holds all 2 members: the best, a/0, holds 1; no links of its node are known: the node annotation GPU_TOPOLOGY or the node label gpu.topology/interconnect would tell",
    ),
    (
        DomainTooSmall("rack", "r1", 0, 1, role="worker"),
        "No one rack holds the one member of role worker: the best, r1, holds 0",
    ),
    (DomainTooSmall("rack", "r1", None, 4), "No one rack holds all 4 members"),
    (
        NoSuchDomain("rack", labels=("example.com/rack",)),
        "No node carries the label example.com/rack, which scope rack needs; "
        "the policies can name another label (docs/policies.md)",
    ),
    (
        NoSuchDomain("rak", "ps", ("a.io/rak", "b.io/rak"), "rack"),
        "No node carries the labels a.io/rak or b.io/rak, which scope rak of role ps needs; did you mean rack?",
    ),
    (
        NoSuchDomain("rack"),
        "The gang must lie in one rack, and no node that admits it lies in any",
    ),
    (
        IndicesUnknown("nvlink-domain", 2),
        "No one nvlink-domain can be promised: on 2 nodes, pods have GPUs and do not say which",
    ),
    (
        RoleScope("decode", "rack", "r1", 2, 4),
        "No one rack holds all 4 members of role decode: the best, r1, holds 2",
    ),
    (
        RoleScope("decode", "rack", "r1", 4, 4),
        "All 4 members of role decode must lie in one rack, and no one holds them beside the other roles",
    ),
    (
        RoleScope("", "rack", "r1", 2, 4),
        "No one rack holds all 4 members: the best, r1, holds 2",
    ),
    (RoleScope("", "rack", "", 0, 1), "No one rack holds the one member"),
    (
        SegmentsTooLarge("worker", ((8, "rack"), (4, "node")), 4, 16, even_empty=True),
        "Members of role worker must lie by segments of 8 in one rack, each of 4 in one node: 4 of 16 fit, even if nothing else ran",
    ),
    (
        AntiAffinityLimits("the podAntiAffinity of web", "kubernetes.io/hostname", 3, 4),
        "By the podAntiAffinity of web, no member may share one kubernetes.io/hostname with a pod that it keeps apart: 3 of 4 fit",
    ),
    (
        AffinityUnsatisfied("the podAffinity of web", "zone", 0, 4, even_empty=True),
        "By the podAffinity of web, members may lie only in one zone with a pod that it names: none of 4 fits, even if nothing else ran",
    ),
    (
        SkewTooLarge("the spread of web", "zone", 1, None, 4),
        "By the spread of web, one zone may have 1 more pod than another at most",
    ),
    (
        SubgroupScope("the level of subgroup decode", "rack", 4, 5),
        "By the level of subgroup decode, its members must lie in one rack: 4 of 5 fit",
    ),
    (
        AttributesDiffer("worker", ("example.com/numa", "example.com/root"), 2, 9, 3, 6),
        "The 2 GPUs of each member of role worker must agree on matchAttribute example.com/numa and example.com/root: 3 of 6 fit",
    ),
    (
        AttributesDiffer("worker", ("example.com/numa",), 2, 0, 0, 6),
        "The 2 GPUs of each member of role worker must agree on matchAttribute example.com/numa, and no node that admits it has two GPUs that do",
    ),
    (
        GpusNotMatching(2, 8, 8, each=4),
        "By allocationMode All each member takes all GPUs that match: 4 GPUs on 2 nodes",
    ),
    (
        GpusNotMatching(12, 40, 96, 3),
        "On 12 nodes resourceClaims match 40 of 96 GPUs; on 3 of them roles match different GPUs, which is not planned yet",
    ),
    (
        RoomTooSmall("worker", 3, 4, 3, 6),
        "Nodes can attach the volumes of 3 members, of 4 of role worker, at most: 3 of 6 fit",
    ),
    (
        RunningElsewhere("rack", "r1", 1),
        "1 member runs already in rack r1, and the others must join it",
    ),
    (
        RunningElsewhere("rack", "", 2),
        "2 members run already, and not in one rack, where the others must join them",
    ),
    (RunningElsewhere("node", "a", 2), "2 members run already on node a, and the others must join them"),
    (
        RunningElsewhere("nvlink-domain", "", 1),
        "1 member runs already, nobody knows in which one nvlink-domain, and the others must join it",
    ),
    (NodesExcluded("", "cordoned", 1), "1 node does not admit the gang: cordoned"),
    (NodesExcluded("worker", "cordoned", 1), "1 node does not admit role worker: cordoned"),
    (
        NodesExcluded("worker", "taint pool=a100:NoSchedule", 3),
        "3 nodes do not admit role worker: taint pool=a100:NoSchedule",
    ),
    (
        NotDecided(truncated=True),
        "The search was ended by wall clock before it found a plan or a proof that there is none",
    ),
    (
        PlannerDefect("GPU 4 of node a is not free"),
        "Not decided: the planner has a defect; please report it with the input (`muster capture` writes it "
        "from a cluster): GPU 4 of node a is not free",
    ),
    (TookTooLong(10.0), "Not decided: the planner was ended after 10.0 s, the limit for one gang"),
    (
        TookTooLong(2.0, others_wait=True),
        "Not decided: the planner was ended after 2.0 s, because other gangs waited",
    ),
    (
        TookTooMuchMemory(1024),
        "Not decided: the planner was ended because it needed more than 1024 MiB of memory, the limit for "
        "one gang",
    ),
    (
        TooManyRoles(450, 64),
        "Its pods are of 450 different roles, and a gang may have 64: give pods that do the same work equal "
        "requests, node selectors and tolerations",
    ),
]

HELPS: list[tuple[Relaxation, str]] = [
    (MoreFree(GPU, 1, (("a", 1),)), "1 more free GPU on a"),
    (MoreFree(GPU, 4, (("a", 2), ("b", 2))), "2 more free GPUs on a and 2 on b"),
    (
        MoreFree(GPU, 9, (("a", 2), ("b", 2), ("c", 2), ("d", 3))),
        "9 more free GPUs in all, 2 to 3 on each of 4 nodes",
    ),
    (Uncordon(("a",)), "to uncordon node a"),
    (Uncordon(("a", "b")), "to uncordon nodes a and b"),
    (Uncordon(tuple("abcdef")), "to uncordon 6 nodes: a, b, c, d and 2 more"),
    (
        Tolerate("worker", "pool=a100:NoSchedule", 3),
        "a toleration of taint pool=a100:NoSchedule for role worker (3 more nodes)",
    ),
    (DropSelector("", "selector pool=p", 1), "no selector pool=p (1 more node)"),
    (WiderScope("nvlink-domain", "node", "a", 4), "scope node instead of nvlink-domain (4 of 4 fit in a)"),
    (WiderScope("rack", "", "", 4, "x"), "no required scope instead of rack for role x (4 of 4 fit)"),
    (
        SmallerSegments("x", ((4, "rack"), (2, "node"))),
        "segments of 4 in one rack, each of 2 in one node for role x",
    ),
    (SmallerSegments("x", ()), "no segments for role x"),
    (DropConstraint("the spread of web"), "to drop the spread of web"),
    (FewerMembers(3, 4), "to start with 3 members instead of 4"),
]
HELPS += [help_ for kind_tested in TESTED for help_ in kind_tested.helps]
OF_LIMITS = [sentence_row for kind_tested in TESTED for sentence_row in kind_tested.sentences]
GOLDEN += [(causes[0], says) for causes, says in OF_LIMITS if len(causes) == 1]


@pytest.mark.parametrize(("cause", "expected"), GOLDEN, ids=lambda value: type(value).__name__)
def test_causes(cause: Cause, expected: str) -> None:
    assert sentence((cause,)) == expected


PAIRS: list[tuple[tuple[Cause, Cause], str]] = [
    (
        (DomainTooSmall("rack", "r0", 0, 1, even_empty=True), RunningElsewhere("rack", "r0", 1)),
        "Rack r0, where 1 member runs, has no room for 1 more",
    ),
    (
        (DomainTooSmall("rack", "r0", 0, 1), RunningElsewhere("rack", "r0", 1)),
        "Rack r0, where 1 member runs, has no room for 1 more",
    ),
    (
        (RoleScope("w", "rack", "r0", 2, 3), RunningElsewhere("rack", "r0", 2)),
        "Rack r0, where 2 members run, has no room for 3 more of role w: 2 of 3 fit",
    ),
    (
        (RoleScope("w", "rack", "r0", 3, 3), RunningElsewhere("rack", "r0", 2)),
        "All 3 members of role w must lie in one rack, and no one holds them beside the other roles; 2 members run already in rack r0, and the others must join them",
    ),
    (
        (DomainTooSmall("rack", "", 0, 1, even_empty=True), RunningElsewhere("rack", "", 2)),
        "No one rack holds the one member; 2 members run already, and not in one rack, where the others must join them",
    ),
    (
        (SegmentsTooLarge("w", ((2, "node"),), 0, 1), RunningElsewhere("node", "n1", 1)),
        "Members of role w must lie by segments of 2 in one node: none of 1 fits; 1 member of one segment runs on node n1, and the rest must join it",
    ),
]
PAIRS += [((causes[0], causes[1]), says) for causes, says in OF_LIMITS if len(causes) == 2]


@pytest.mark.parametrize(("causes", "expected"), PAIRS, ids=str)
def test_two_causes_that_say_one_thing(causes: tuple[Cause, Cause], expected: str) -> None:
    assert sentence(causes) == expected


@pytest.mark.parametrize(("relaxation", "expected"), HELPS, ids=lambda value: type(value).__name__)
def test_relaxations(relaxation: Relaxation, expected: str) -> None:
    assert str(relaxation) == expected


def test_decisions() -> None:
    causes = (DomainTooSmall("nvlink-domain", "a/0", 3, 4), NodesExcluded("w", "cordoned", 1))
    helps = (Uncordon(("a",)), WiderScope("nvlink-domain", "node", "a", 4))
    assert sentence(Unplaceable(GangId("n", "d", "g"), causes, helps)) == (
        "No one nvlink-domain holds all 4 members: the best, a/0, holds 3; 1 node does not admit role w: cordoned. "
        "It would help: to uncordon node a; or scope node instead of nvlink-domain (4 of 4 fit in a)"
    )
    assert sentence(Invalid(GangId("n", "d", "g"), (TooManyMembers(5, 4),))).startswith("The gang has 5")


def test_long_ones_are_cut() -> None:
    causes = tuple(NodesExcluded("w", f"selector {'x' * 100}={i}", i) for i in range(50))
    assert len(sentence(causes)) <= MAX_CHARACTERS


PLACED_SENTENCES = {
    (": a[v100-8x-gputopology-document, free 1001 0000]", "2 x 1 GPU"): (
        "2 of 2 members on node a: GPUs 0,3 (NV2, 50 GB/s modelled), proven optimal"
    ),
    (": a[8, free 0000 0100]", "3 x 1 GPU, min 1"): "1 of 3 members on node a: GPU 5, proven optimal; 2 wait",
    ("rack r1: a[4] b[4]", "2 x 4 GPU"): (
        "2 of 2 members on 2 nodes in rack r1: a ×1 GPUs 0,1,2,3; b ×1 GPUs 0,1,2,3 "
        "(NV12, 300 GB/s modelled inside the nodes), proven optimal"
    ),
    (": a[2, clique k] b[2, clique k]", "2 x 2 GPU"): (
        "2 of 2 members on 2 nodes in nvlink-domain k: a ×1 GPUs 0,1; b ×1 GPUs 0,1 (NV12, 300 GB/s modelled), proven optimal"
    ),
    (": a[2, mem 16 16, left 8 16]", "2 x 4 GiB + 1 x 1 GPU"): (
        "3 of 3 members on node a: GPUs 0 (8 GiB),1 (NV12, 300 GB/s modelled), proven optimal"
    ),
    (": a[4 unknown]", "2 x 1 GPU"): (
        "2 of 2 members on node a: GPUs 0,1, proven optimal as far as links are known; on node a no links are known, "
        "so the choice of GPUs there is arbitrary: the node annotation GPU_TOPOLOGY or the node label "
        "gpu.topology/interconnect would tell"
    ),
    (": a[4 unknown] b[4 unknown]", "2 x 4 GPU"): (
        "2 of 2 members on 2 nodes: a ×1 GPUs 0,1,2,3; b ×1 GPUs 0,1,2,3, proven optimal as far as links are known; "
        "on 2 nodes no links are known, so the choice of GPUs there is arbitrary: the node annotation GPU_TOPOLOGY or "
        "the node label gpu.topology/interconnect would tell"
    ),
    (": a[4 unknown]", "1 x 1 GPU"): "1 of 1 members on node a: GPU 0, proven optimal",
    (": a[0]", "1 x 0 GPU"): "1 of 1 members on node a, proven optimal",
}


@pytest.mark.parametrize("drawing", PLACED_SENTENCES)
def test_placed(drawing: tuple[str, str]) -> None:
    request = gang(drawing[1])
    plan = place(cluster(drawing[0]), request)
    assert isinstance(plan, Placed)
    assert placed_sentence(plan, request) == PLACED_SENTENCES[drawing]


PREFERRED: dict[tuple[str, ...], str] = {
    ("rakc", "zone"): "; no preferred scope holds them (rakc, zone)",
    ("rakc", "rack"): ", proven optimal",
}


def test_a_role_that_no_preferred_scope_holds_is_named() -> None:
    preferences = tuple(
        RolePreference(f"role {scope}", (scope,), frozenset({"w"})) for scope in ("rakc", "rack")
    )
    request = replace(gang("2 x 1 GPU"), role_preferences=preferences)
    plan = place(cluster("rack r1: a[2]"), request)
    assert isinstance(plan, Placed)
    assert plan.objective.role_preferences == (("role rakc", None), ("role rack", "rack"))
    assert placed_sentence(plan, request).endswith("; no preferred scope holds role rakc")
    doubted = replace(plan, optimal=False, unproven="role_preferences")
    ending = "; it was not decided whether a preferred scope holds role rakc"
    assert placed_sentence(doubted, request).endswith(ending)


def test_a_plan_without_gpus_tells_no_link() -> None:
    """A leader without GPUs, whose workers come later, is on a node where these get GPUs."""
    plan = place(cluster(": a[4 = 4]"), gang("2 x 1 GPU + 1 x 0 GPU"))
    assert isinstance(plan, Placed)
    assert " GB/s" in placed_sentence(plan)
    leader = tuple(member for member in plan.members if member.role == "x")
    assert " GB/s" not in placed_sentence(replace(plan, members=leader))


@pytest.mark.parametrize("scopes", PREFERRED)
def test_preferences_that_nothing_holds_are_said(scopes: tuple[str, ...]) -> None:
    request = replace(gang("2 x 1 GPU"), preferred_scopes=scopes)
    plan = place(cluster("rack r1: a[2]"), request)
    assert isinstance(plan, Placed)
    assert placed_sentence(plan, request).endswith(PREFERRED[scopes])
