# ruff: noqa: E501 — golden sentences are as long as they are
"""For each kind of cause, what `why` says blocks the gang, with numbers, and what would help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.domain import constraints
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
from muster.domain.reasons import Cause, cause_views, kinds_of

GPU = "nvidia.com/gpu"

GOLDEN: list[tuple[Cause, str, str]] = [
    (
        BadValue("pod/default/w-0", "label gpu-topology-replica", "four", "a positive integer"),
        'pod/default/w-0: label gpu-topology-replica is "four", expected a positive integer.',
        "Set label gpu-topology-replica to a positive integer, and create the pods again.",
    ),
    (
        BadValue("pod/default/w-0", "gpu.topology/scop", "rack", "none: did you mean gpu.topology/scope?"),
        'pod/default/w-0: gpu.topology/scop is "rack", expected none: did you mean gpu.topology/scope?',
        "Write gpu.topology/scope in place of gpu.topology/scop, and create the pods again.",
    ),
    (
        BadValue("podgroup/ns/g", "gpu.topology/scop", "rack", "none: did you mean gpu.topology/scope?"),
        'podgroup/ns/g: gpu.topology/scop is "rack", expected none: did you mean gpu.topology/scope?',
        "In podgroup/ns/g, write gpu.topology/scope in place of gpu.topology/scop: the change counts at once.",
    ),
    (
        BadValue("podgroup/ns/g", "annotation gpu.topology/rank", "1", "none: it is for pods"),
        'podgroup/ns/g: annotation gpu.topology/rank is "1", expected none: it is for pods.',
        "In podgroup/ns/g, remove annotation gpu.topology/rank: the change counts at once.",
    ),
    (
        BadValue("podgroup/ns/g", "spec.minMembr", "", "none of this name: minMember is nearly the same"),
        'podgroup/ns/g: spec.minMembr is "", expected none of this name: minMember is nearly the same.',
        "In podgroup/ns/g, write minMember in place of spec.minMembr; if the API server refuses the change, "
        "create the object and its pods again.",
    ),
    (
        GroupDisagrees("w-0", "gpu.topology/scope", "zone", "PodGroup ns/g", "scope", "rack"),
        "Pod w-0 has gpu.topology/scope: zone, and PodGroup ns/g has scope: rack.",
        "In the pods, set gpu.topology/scope to rack, as PodGroup ns/g has it, or leave gpu.topology/scope out, "
        "and create the pods again.",
    ),
    (
        MembersDisagree("gpu-topology-replica", (("2", "w-0"), ("3", "w-1"))),
        'Pods of one gang disagree on gpu-topology-replica: "2" (pod w-0), "3" (pod w-1).',
        "Give all pods of the gang the same gpu-topology-replica, and create those again that differ.",
    ),
    (
        TooManyMembers(5, 4),
        "The gang has 5 live pods, more than its 4 replicas.",
        "Delete 1 pod, or give each new gang a name of its own.",
    ),
    (
        ForgedAllocation("w-0", "gpu.topology/allocation"),
        "Pod w-0 came with the annotation gpu.topology/allocation, which only the scheduler may write.",
        "Create the pods without the annotation gpu.topology/allocation.",
    ),
    (
        DialectsDisagree("w-0", "ack gang a", "kai gang b"),
        "Pod w-0 names two different gangs or counts: ack gang a and kai gang b.",
        "Name the gang and its size in one way, or in the same words in each.",
    ),
    (
        MembersMissing(2, 4, "worker"),
        "Waiting for 2 more members of role worker: 2 of 4 are here.",
        "Create 2 more pods of role worker, or ask for fewer members. A quota or a suspended job may hold pods back.",
    ),
    (
        MembersMissing(1, 4, stateful_set="web"),
        "Waiting for 3 more members: 1 of 4 are here; StatefulSet web makes its pods one by one, unless it has "
        "podManagementPolicy: Parallel.",
        "Create StatefulSet web again with podManagementPolicy: Parallel.",
    ),
    (
        PodGroupMissing("default/g"),
        "PodGroup default/g does not exist yet; its pods wait for it.",
        "Create PodGroup default/g, or remove its name from the pods.",
    ),
    (
        ParentMissing("default/t"),
        "CompositePodGroup default/t does not exist yet; the pods below it wait for it, since "
        "spec.parentCompositePodGroupName of a group names it, and names this namespace's groups alone.",
        "Create CompositePodGroup default/t, or create the groups again that name it.",
    ),
    (
        GroupsMissing("CompositePodGroup default/t", 1, 3),
        "Waiting for 2 more groups: 1 of 3 are here (spec.schedulingPolicy.gang.minGroupCount of "
        "CompositePodGroup default/t).",
        "Create 2 more groups below CompositePodGroup default/t.",
    ),
    (
        JobMissing("Job default/train"),
        "Job default/train is not there; its pods wait for it, since it says how many they are.",
        "Create Job default/train again, or delete its pods.",
    ),
    (
        ClaimsMissing(("data", "logs")),
        "PersistentVolumeClaims data, logs do not exist.",
        "Create the PersistentVolumeClaims.",
    ),
    (
        RefusedEverywhere("worker", "DynamicResources: no claim"),
        "No node admits role worker: DynamicResources: no claim.",
        "Change what the plugin refuses in the pod, or in the objects that the pod names.",
    ),
    (
        MemberTooLarge("worker", GPU, 16, "a", 8),
        "A member of role worker asks for 16 nvidia.com/gpu, and the largest node that admits it, a, has 8 nvidia.com/gpu.",
        "Ask for at most 8 nvidia.com/gpu in one pod, or add a node with 16 nvidia.com/gpu.",
    ),
    (
        ClusterTooSmall("worker", GPU, 16, 24, 16, 24, "a", 8),
        "Role worker needs 24 nvidia.com/gpu for 24 members, and the nodes that admit it have 16 nvidia.com/gpu in all: 16 of 24 fit, even if nothing else ran.",
        "Ask for fewer members, or add nodes: it does not fit even on an empty cluster.",
    ),
    (
        NotEnoughFree("worker", GPU, 10, 12, 2, 3),
        "Role worker needs 12 nvidia.com/gpu for 3 members, and 10 nvidia.com/gpu are free: 2 of 3 fit.",
        "Wait until 2 nvidia.com/gpu more are free, ask for less, or add nodes.",
    ),
    (
        NotEnoughFree("", "cpu", 1500, 3000, 0, 2),
        "The gang needs 3 cpu for 2 members, and 1.5 cpu are free: none of 2 fits.",
        "Wait until 1.5 cpu more are free, ask for less, or add nodes.",
    ),
    (
        FreeInPieces("worker", GPU, 12, 12, 1, 3, "a", 6),
        "Role worker needs 12 nvidia.com/gpu for 3 members; 12 nvidia.com/gpu are free, but in pieces too small, at most 6 on one node (a): 1 of 3 fits.",
        "Ask for at most 6 nvidia.com/gpu in one pod, or wait until more is free on one node.",
    ),
    (
        NotEnoughFree("", "cpu", 4000, 32000, 0, 1, elsewhere=192_000),
        "The pod needs 32 cpu, and 4 cpu are free on nodes that admit it (192 on others).",
        "Wait until 28 cpu more are free, ask for less, or add nodes.",
    ),
    (
        ResourceNotOffered("", "nvidia.com/gpus", 2, "nvidia.com/gpu"),
        "No node offers nvidia.com/gpus, which the gang needs; did you mean nvidia.com/gpu?",
        "Ask for nvidia.com/gpu in place of nvidia.com/gpus.",
    ),
    (
        GpusNotOffered("", GPU, 1, 0, 8, ("a",)),
        "1 node offers 0 of its 8 nvidia.com/gpu: a.",
        "Find out if the device plugin runs on a, and which GPUs are unhealthy there.",
    ),
    (
        RoomTaken("in rack r3", 7, 112, 2, 16, 4),
        "Of the GPUs in rack r3, 7 gangs of lower priority have 112, 2 other gangs have 16 and pods in no gang have 4.",
        "To make room, end some of the 7 gangs of lower priority: Muster does not.",
    ),
    (
        RoomTaken("on node a", 0, 0, 1, 4, 0),
        "Of the GPUs on node a, 1 gang has 4.",
        "Wait until some of them end: no gang of lower priority is there.",
    ),
    (
        NodesExcluded("", "taint node.kubernetes.io/disk-pressure:NoSchedule", 1),
        "1 node does not admit the gang: taint node.kubernetes.io/disk-pressure:NoSchedule.",
        "Mend what causes taint node.kubernetes.io/disk-pressure:NoSchedule on 1 node: `kubectl describe node` says more. A toleration does not help.",
    ),
    (
        NoSuchDomain(
            "rack", "", ("topology.kubernetes.io/rack",), "", "gke", "cloud.google.com/gce-topology-subblock"
        ),
        "No node carries the label topology.kubernetes.io/rack, which scope rack needs; nodes carry cloud.google.com/gce-topology-subblock: set `preset: gke` in the policies (docs/policies.md).",
        "Set `preset: gke` in the policies: cloud.google.com/gce-topology-subblock is its rack.",
    ),
    (
        FreeApart("worker", ((GPU, 2), ("cpu", 3000)), 1, 2),
        "Role worker needs room for 2 members; 2 nvidia.com/gpu and 3 cpu are free, but not on the same nodes: 1 of 2 fits.",
        "Wait until nvidia.com/gpu and cpu are free on the same nodes, or ask for less of one of them in one pod.",
    ),
    (
        FreeApart("worker", ((GPU, 2), ("cpu", 3000)), 1, 2, even_empty=True),
        "Role worker needs room for 2 members; 2 nvidia.com/gpu and 3 cpu are there, but not on the same nodes: 1 of 2 fits, even if nothing else ran.",
        "Ask for less nvidia.com/gpu or cpu in one pod, or add nodes that have enough of both.",
    ),
    (
        DomainTooSmall("rack", "r1", 6, 8),
        "No one rack holds all 8 members: the best, r1, holds 6.",
        "Require a wider scope than rack, or only prefer rack, or wait until more is free in one rack.",
    ),
    (
        RoleScope("worker", "rack", "r1", 6, 8, even_empty=True),
        "No one rack holds all 8 members of role worker, even if nothing else ran: the best, r1, holds 6.",
        "Require a wider scope than rack, or only prefer rack.",
    ),
    (
        NoSuchDomain("rack", labels=("topology.kubernetes.io/rack",)),
        "No node carries the label topology.kubernetes.io/rack, which scope rack needs; the policies can name another label (docs/policies.md).",
        "Label the nodes with topology.kubernetes.io/rack, or require another scope than rack.",
    ),
    (
        IndicesUnknown("nvlink-domain", 2),
        "No one nvlink-domain can be promised: on 2 nodes, pods have GPUs and do not say which.",
        "Wait until those pods end, or only prefer nvlink-domain.",
    ),
    (
        IndicesUnknown("", 1),
        "No GPU of 1 node can be shared: pods there have GPUs and do not say which.",
        "Wait until those pods end.",
    ),
    (
        SegmentsTooLarge("worker", ((16, "rack"),), 8, 16),
        "Members of role worker must lie by segments of 16 in one rack: 8 of 16 fit.",
        "Make the segments smaller, or their scope wider, or wait until more is free in one rack.",
    ),
    (
        NoSuchDomain("rak", labels=("rak",), meant="rack"),
        "No node carries the label rak, which scope rak needs; did you mean rack?",
        "Require scope rack in place of rak, or label the nodes with rak.",
    ),
    (
        NoSuchDomain("rack", "worker"),
        "Role worker must lie in one rack, and no node that admits it lies in any.",
        "Let nodes that lie in one rack admit role worker, or require another scope than rack.",
    ),
    (
        constraints.AntiAffinityLimits("the podAntiAffinity of web", "kubernetes.io/hostname", 3, 4),
        "By the podAntiAffinity of web, no member may share one kubernetes.io/hostname with a pod that it keeps apart: 3 of 4 fit.",
        "Relax the podAntiAffinity of web, or add nodes in another kubernetes.io/hostname, or wait until pods that it keeps apart end.",
    ),
    (
        constraints.AffinityUnsatisfied("the podAffinity of web", "zone", 0, 4, even_empty=True),
        "By the podAffinity of web, members may lie only in one zone with a pod that it names: none of 4 fits, even if nothing else ran.",
        "Relax the podAffinity of web, or start a pod that it names in one zone with room for 4 members.",
    ),
    (
        constraints.SkewTooLarge("the spread of web", "zone", 1, 2, 4),
        "By the spread of web, one zone may have 1 more pod than another at most: 2 of 4 fit.",
        "Raise maxSkew above 1 in the spread of web, or add nodes in the zone that has the fewest pods, or wait until more is free there.",
    ),
    (
        constraints.RoomTooSmall("worker", 3, 4, 3, 6, even_empty=True),
        "Nodes can attach the volumes of 3 members, of 4 of role worker, at most: 3 of 6 fit, even if nothing else ran.",
        "Start at most 3 members of role worker, give each pod fewer volumes, or add nodes that can attach them.",
    ),
    (
        constraints.RoomTooSmall("", 0, 4, 0, 4),
        "Nodes can attach the volumes of 0 members, of 4, at most: none of 4 fits.",
        "Give each pod fewer volumes, or add nodes that can attach them, or wait until other pods' volumes are detached.",
    ),
    (
        constraints.AttributesDiffer("worker", ("example.com/numa",), 2, 9, 3, 6),
        "The 2 GPUs of each member of role worker must agree on matchAttribute example.com/numa: 3 of 6 fit.",
        "Ask for fewer than 2 GPUs in one pod, drop matchAttribute example.com/numa, or add nodes with 2 GPUs that agree on it, or wait until more of such GPUs are free.",
    ),
    (
        constraints.TooFewParts("rack", 2, 3, 4, even_empty=True),
        "At most 2 members may lie in one rack: 3 of 4 fit, even if nothing else ran.",
        "Raise max-per rack above 2, or add nodes in another rack.",
    ),
    (
        constraints.SubgroupScope("the level of subgroup decode", "rack", 4, 5, even_empty=True),
        "By the level of subgroup decode, its members must lie in one rack: 4 of 5 fit, even if nothing else ran.",
        "Make the level of subgroup decode wider than rack, or its members fewer.",
    ),
    (
        constraints.SubgroupScope("the level of subgroup decode", "rack", 4, 5),
        "By the level of subgroup decode, its members must lie in one rack: 4 of 5 fit.",
        "Make the level of subgroup decode wider than rack, or its members fewer, or wait until more is free in one rack.",
    ),
    (
        RunningElsewhere("rack", "r1", 3),
        "3 members run already in rack r1, and the others must join them.",
        "Wait until more is free in rack r1, or start the whole gang again, so that all its members are placed together.",
    ),
    (
        RunningElsewhere("rack", "", 3),
        "3 members run already, and not in one rack, where the others must join them.",
        "Start the whole gang again, so that all its members are placed together, or only prefer rack.",
    ),
    (
        NodesExcluded("worker", "cordoned", 2),
        "2 nodes do not admit role worker: cordoned.",
        "Uncordon some of 2 nodes.",
    ),
    (
        NodesExcluded("worker", "not ready", 1),
        "1 node does not admit role worker: not ready.",
        "Make 1 node ready: `kubectl describe node` says why it is not.",
    ),
    (
        NodesExcluded("worker", "taint gpu=only:NoSchedule", 2),
        "2 nodes do not admit role worker: taint gpu=only:NoSchedule.",
        "Give the pods of role worker a toleration of gpu=only:NoSchedule, or remove this taint from 2 nodes.",
    ),
    (
        NodesExcluded("worker", "selector pool in (a)", 2),
        "2 nodes do not admit role worker: selector pool in (a).",
        "Remove the selector pool in (a) from the pods of role worker, or label 2 nodes so that it admits them.",
    ),
    (
        ResourceNotOffered("worker", GPU, 2),
        "No node offers nvidia.com/gpu, which role worker needs.",
        "Let nodes offer nvidia.com/gpu, or ask for a resource that nodes offer.",
    ),
    (
        GpusNotMatching(1, 1, 1, each=1),
        "By allocationMode All each member takes all GPUs that match: 1 GPU on 1 node.",
        "Ask with selectors that match as many GPUs on more nodes, or for a number of GPUs.",
    ),
    (
        GpusNotMatching(12, 40, 96, 3),
        "On 12 nodes resourceClaims match 40 of 96 GPUs; on 3 of them roles match different GPUs, which is not planned yet.",
        "Ask with selectors that more GPUs match, or make each role a gang of its own.",
    ),
    (
        NodesExcluded("", "VolumeBinding: no volume", 2),
        "2 nodes do not admit the gang: VolumeBinding: no volume.",
        "Change what the plugin refuses, on 2 nodes or in the pods of the gang: VolumeBinding: no volume.",
    ),
    (
        NotSupported("max-per", "nvlink-domain", "example.com/numa"),
        "Max-per nvlink-domain is not supported together with matchAttribute example.com/numa.",
        "Remove max-per or matchAttribute example.com/numa.",
    ),
    (
        NotSupported("max-per", "gpu"),
        "Max-per gpu is not supported where members share GPUs.",
        "Remove max-per, or ask for whole GPUs.",
    ),
    (
        NotSupported("role-scope", "gpu"),
        "Role-scope gpu is not supported where members share GPUs.",
        "Let one pod ask for the memory of all, or make the role a gang of its own with scope gpu.",
    ),
    (
        MembersToCome(3, ("worker",)),
        "3 of these members come when the others have a node: role worker.",
        "The first members start where those that come later fit too: else they would wait for them.",
    ),
    (
        SubgroupsNeeded(2, 3, ("a", "b")),
        "The gang needs 2 of its 3 subgroups, and no others fit either: this is about a, b.",
        "Lower minSubGroup, or make the subgroups smaller: any of them may start the gang.",
    ),
    (
        SubgroupsNeeded(1, 1, ("role-1",)),
        "No other members can start either: this is about role-1.",
        "Make the members smaller: other members may start the gang too.",
    ),
    (
        NotDecided(True),
        "The search was ended by wall clock before it found a plan or a proof that there is none.",
        "It is tried again. If that does not help, make the pods more alike.",
    ),
    (
        PlannerDefect("ValueError: x"),
        "Not decided: the planner has a defect; please report it with the input (`muster capture` writes it from a cluster): ValueError: x.",
        "Report it with the output of `muster capture`.",
    ),
    (
        TookTooLong(10.0),
        "Not decided: the planner was ended after 10.0 s, the limit for one gang.",
        "It is tried again. If that does not help, make the pods more alike.",
    ),
    (
        TookTooMuchMemory(1024),
        "Not decided: the planner was ended because it needed more than 1024 MiB of memory, the limit for one gang.",
        "Make the pods more alike, or raise planner.memory_mib.",
    ),
    (
        TooManyRoles(80, 64),
        "Its pods are of 80 different roles, and a gang may have 64: give pods that do the same work equal requests, node selectors and tolerations.",
        "Give pods that do the same work equal requests: a gang may have 64 roles.",
    ),
]


@pytest.mark.parametrize(("cause", "says", "helps"), GOLDEN, ids=lambda cause: type(cause).__name__)
def test_what_blocks_and_what_would_help(cause: Cause, says: str, helps: str) -> None:
    (view,) = cause_views([cause])
    assert view.kind == type(cause).__name__
    assert (view.says, view.helps) == (says, helps)


def test_every_kind_of_cause_has_a_golden_sentence_and_advice() -> None:
    assert {*kinds_of(Cause)} == {type(cause).__name__ for cause, _, _ in GOLDEN}
    assert all(says and helps for _, says, helps in GOLDEN)


@pytest.mark.parametrize(
    "cause",
    [cause for cause, _, _ in GOLDEN if hasattr(cause, "even_empty")],
    ids=lambda cause: type(cause).__name__,
)
def test_no_advice_is_to_wait_if_it_is_so_on_empty_nodes_too(cause: Any) -> None:
    assert "wait" not in replace(cause, even_empty=True).advice.lower()
    assert "even if nothing else ran" in str(replace(cause, even_empty=True))


def test_members_that_run_where_there_is_no_room_are_started_again() -> None:
    for even_empty, begins in ((False, "Wait until more is free in rack r1"), (True, "Start the whole gang")):
        small = DomainTooSmall("rack", "r1", 1, 8, even_empty=even_empty)
        causes: tuple[Cause, ...] = (small, RunningElsewhere("rack", "r1", 3))
        assert cause_views(causes)[1].helps.startswith(begins)


@pytest.mark.parametrize("where", ["podgroup/ns/x", "compositepodgroup/ns/x"])
def test_the_name_of_an_object_keeps_its_first_letter(where: str) -> None:
    (view,) = cause_views([BadValue(where, "spec.priority", "x", "a whole number")])
    assert view.says == f'{where}: spec.priority is "x", expected a whole number.'


def test_what_users_wrote_is_one_line() -> None:
    (view,) = cause_views([BadValue("pod/a/b", "label x\n<script>", "y\x1b[31m", "z")])
    assert view.says.isprintable()
    assert view.helps.isprintable()
