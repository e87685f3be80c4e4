"""Why nothing fits, and what would help: drawn clusters with all that must be told of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from muster.domain.causes.out_of_place import (
    DomainTooSmall,
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
    MemberTooLarge,
    NotEnoughFree,
    ResourceNotOffered,
)
from muster.domain.constraints import DropConstraint, SubgroupScope
from muster.domain.decision import (
    DropSelector,
    FewerMembers,
    MoreFree,
    SmallerSegments,
    Tolerate,
    Uncordon,
    Unplaceable,
    WiderScope,
)
from muster.domain.node import Resources, Taint, Usage
from muster.domain.reasons import Cause, Relaxation, cause_json
from muster.domain.request import GangId, Request
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.candidates import UNSCHEDULABLE
from muster.placement.place import place
from tests.placement.constraints import TESTED
from tests.placement.drawings import RESOURCE as GPU
from tests.placement.drawings import cluster, gang


@dataclass(frozen=True)
class Case:
    cluster: str
    gang: str
    causes: tuple[Cause, ...]
    helps: tuple[Relaxation, ...] = ()


PIECES = ": a[8, free 1111 1100] b[8, free 1100 0000] c[8, free 1100 0000] d[8, free 1100 0000]"

CASES = {
    "the best island is one short": Case(
        ": a[8 = 4+4, free 0111 0011]",
        "4 x 1 GPU, scope nvlink-domain",
        (DomainTooSmall("nvlink-domain", "a/0", 3, 4),),
        (MoreFree(GPU, 1, (("a", 1),)), WiderScope("nvlink-domain", "node", "a", 4), FewerMembers(3, 4)),
    ),
    "enough in sum, not in pieces": Case(
        PIECES,
        "3 x 4 GPU",
        (FreeInPieces("w", GPU, 12, 12, 1, 3, "a", 6),),
        (MoreFree(GPU, 4, (("a", 2), ("b", 2))), FewerMembers(1, 3)),
    ),
    "what must fit counts, not what might": Case(
        PIECES,
        "12 x 4 GPU, min 3",
        (FreeInPieces("w", GPU, 12, 12, 1, 3, "a", 6),),
        (MoreFree(GPU, 4, (("a", 2), ("b", 2))), FewerMembers(1, 3)),
    ),
    "too little is free": Case(
        ": a[8, free 1000 0000] b[8, free 1000 0000]",
        "6 x 1 GPU, min 4",
        (NotEnoughFree("w", GPU, 2, 4, 2, 4),),
        (MoreFree(GPU, 2, (("a", 2),)), FewerMembers(2, 4)),
    ),
    "memory of a shared GPU is short": Case(
        ": a[4, mem 16 16 16 16, left 16 3 0 16] b[1, mem 16, left 2]",
        "9 x 4 GiB",
        (FreeInPieces("w", GPU_MEMORY, 37, 36, 8, 9, "a", 16),),
        (MoreFree(GPU_MEMORY, 1, (("a", 1),)), FewerMembers(8, 9)),
    ),
    "memory of GPUs is short where it costs least": Case(
        ": a[2, mem 8 8, left 3 0] b[2, mem 8 8, left 7 7]",
        "2 x 8 GiB on 2 GPUs",
        (NotEnoughFree("w", GPU_MEMORY, 17, 32, 0, 2),),
        (MoreFree(GPU_MEMORY, 15, (("a", 13), ("b", 2))),),
    ),
    "memory of GPUs is short in each rack": Case(
        "rack r1: a[2, mem 8 8, left 3 0]\n rack r2: b[2, mem 8 8, left 7 0]",
        "3 x 4 GiB, scope rack",
        (NotEnoughFree("w", GPU_MEMORY, 10, 12, None, 3),),
        (MoreFree(GPU_MEMORY, 5, (("b", 5),)), FewerMembers(1, 3)),
    ),
    "memory of the GPUs of one domain is short": Case(
        ": a[4 = 2+2, mem 8 8 8 8, left 4 2 1 3]",
        "3 x 4 GiB, scope nvlink-domain",
        (NotEnoughFree("w", GPU_MEMORY, 10, 12, None, 3),),
        (MoreFree(GPU_MEMORY, 6, (("a", 6),)), FewerMembers(1, 3)),
    ),
    "memory of GPUs is short in a domain of several nodes": Case(
        ": a[2, mem 16 16, left 3 3, clique k] b[2, mem 16 16, left 8 3, clique k]",
        "3 x 8 GiB, scope nvlink-domain",
        (NotEnoughFree("w", GPU_MEMORY, 17, 24, None, 3),),
        (MoreFree(GPU_MEMORY, 10, (("a", 10),)), FewerMembers(1, 3)),
    ),
    "pods have more GPUs than there are": Case(
        ": a[8, unindexed 9]",
        "1 x 8 GPU",
        (NotEnoughFree("w", GPU, 0, 8, 0, 1),),
        (MoreFree(GPU, 8, (("a", 8),)),),
    ),
    "bigger than the cluster: no waiting helps": Case(
        ": a[8] b[8, free 1100 0000]",
        "24 x 1 GPU",
        (ClusterTooSmall("w", GPU, 16, 24, 16, 24, "a", 8),),
        (FewerMembers(10, 24),),
    ),
    "bigger than the cluster, piece by piece": Case(
        ": a[8] b[8]",
        "3 x 5 GPU",
        (ClusterTooSmall("w", GPU, 16, 15, 2, 3, "a", 8),),
        (FewerMembers(2, 3),),
    ),
    "a member larger than any node": Case(
        ": a[8] b[4]", "1 x 16 GPU", (MemberTooLarge("w", GPU, 16, "a", 8),)
    ),
    "a member larger than any node that admits it": Case(
        ": a[16, pool=q] b[8, pool=p]",
        "1 x 16 GPU pool=p",
        (MemberTooLarge("w", GPU, 16, "b", 8), NodesExcluded("w", "selector pool=p", 1)),
        (DropSelector("w", "selector pool=p", 1),),
    ),
    "a member larger than any node, and none admits it": Case(
        ": a[8, cordoned] b[4, cordoned]",
        "1 x 16 GPU",
        (MemberTooLarge("w", GPU, 16, "a", 8, anywhere=True),),
    ),
    "cpu is what no node has": Case(
        ": a[8, cpu 4] b[0, cpu 8]", "1 x 1 GPU 6 cpu", (MemberTooLarge("w", "cpu", 6000, "a", 4000),)
    ),
    "no node admits it": Case(
        ": a[8, cordoned] b[8, pool=q]",
        "1 x 4 GPU pool=p",
        (NodesExcluded("w", "selector pool=p", 2),),
        (DropSelector("w", "selector pool=p", 1),),
    ),
    "two reasons, each of which would do if it went": Case(
        ": a[8, cordoned, pool=p] b[8, pool=q]",
        "1 x 4 GPU pool=p",
        (NodesExcluded("w", "cordoned", 1), NodesExcluded("w", "selector pool=p", 1)),
        (Uncordon(("a",)), DropSelector("w", "selector pool=p", 1)),
    ),
    "no node admits it, and the one that would is full": Case(
        ": a[4, free 0001, pool=p, cordoned] b[4, pool=q]",
        "1 x 2 GPU pool=p",
        (NotEnoughFree("w", GPU, 1, 2, 0, 1, elsewhere=4), NodesExcluded("w", "selector pool=p", 1)),
        (DropSelector("w", "selector pool=p", 1),),
    ),
    "nobody offers GPUs": Case(": a[0] b[0]", "1 x 1 GPU", (ResourceNotOffered("w", GPU, 2),)),
    "no nodes": Case("", "1 x 1 GPU", (ClusterTooSmall("w", GPU, 0, 1, 0, 1, "", 0, anywhere=True),)),
    "a cordoned node would do": Case(
        ": a[8, cordoned] b[8, free 1000 0000]",
        "2 x 4 GPU",
        (NotEnoughFree("w", GPU, 1, 8, 0, 2, elsewhere=8), NodesExcluded("w", "cordoned", 1)),
        (Uncordon(("a",)), MoreFree(GPU, 7, (("b", 7),))),
    ),
    "a cordon that does not matter": Case(
        ": a[8, cordoned, free 0000 0000] b[8, free 1000 0000]",
        "2 x 8 GPU",
        (NotEnoughFree("w", GPU, 1, 16, 0, 2),),
    ),
    "a pool that is too small": Case(
        ": a[8, pool=p] b[8] c[8]",
        "2 x 8 GPU pool=p",
        (ClusterTooSmall("w", GPU, 8, 16, 1, 2, "a", 8), NodesExcluded("w", "selector pool=p", 2)),
        (DropSelector("w", "selector pool=p", 2), FewerMembers(1, 2)),
    ),
    "a rack that is too small": Case(
        "rack r1: a[8] b[8, free 0000 0000]\n rack r2: c[8]",
        "3 x 8 GPU, scope rack",
        (DomainTooSmall("rack", "r1", 2, 3, even_empty=True),),
        (FewerMembers(1, 3),),
    ),
    "a rack that is too full": Case(
        "zone z1 rack r1: a[8] b[8, free 1111 0000]\n zone z1 rack r2: c[8]",
        "2 x 8 GPU, scope rack",
        (DomainTooSmall("rack", "r1", 1, 2),),
        (MoreFree(GPU, 4, (("b", 4),)), WiderScope("rack", "zone", "z1", 2), FewerMembers(1, 2)),
    ),
    "no rack has room for one member": Case(
        "rack r1: a[8, free 1100 0000]\n rack r2: b[8, free 1110 0000]\n : c[8]",
        "1 x 8 GPU, scope rack",
        (DomainTooSmall("rack", "r2", 0, 1),),
        (MoreFree(GPU, 5, (("b", 5),)), WiderScope("rack", "", "", 1)),
    ),
    "no island has room for one member": Case(
        ": a[8 = 4+4, free 1100 1000] b[8 = 4+4, free 1000 1110]",
        "1 x 4 GPU, scope nvlink-domain",
        (DomainTooSmall("nvlink-domain", "b/1", 0, 1),),
        (MoreFree(GPU, 1, (("b", 1),)), WiderScope("nvlink-domain", "node", "b", 1)),
    ),
    "no node says its rack": Case(
        ": a[8]", "1 x 8 GPU, scope rack", (NoSuchDomain("rack", labels=("topology.kubernetes.io/rack",)),)
    ),
    "a scope that is misspelt": Case(
        ": a[8]", "1 x 8 GPU, scope rakc", (NoSuchDomain("rakc", labels=("rakc",), meant="rack"),)
    ),
    "nobody knows which GPUs are taken": Case(
        ": a[8 = 4+4, unindexed 1]",
        "2 x 1 GPU, scope nvlink-domain",
        (IndicesUnknown("nvlink-domain", 1),),
        (WiderScope("nvlink-domain", "node", "a", 2),),
    ),
    "nobody knows which GPUs are taken, and a role asks": Case(
        ": a[8 = 4+4, unindexed 1] b[4 = 2+2, unindexed 2]",
        "2 x 1 GPU within nvlink-domain",
        (IndicesUnknown("nvlink-domain", 2, "w"),),
        (WiderScope("nvlink-domain", "node", "", 2, "w"),),
    ),
    "nobody knows which GPUs are taken, and segments ask": Case(
        ": a[8 = 4+4, unindexed 1]",
        "4 x 1 GPU by 2 nvlink-domain",
        (IndicesUnknown("nvlink-domain", 1, "w"),),
        (SmallerSegments("w", ()),),
    ),
    "nobody knows which GPUs are taken, and two roles share": Case(
        ": a[8 = 4+4, unindexed 1]",
        "2 x 1 GPU + 1 x 2 GPU, share nvlink-domain=w+x",
        (
            SubgroupScope("the level of w+x", "nvlink-domain", 0, 2),
            IndicesUnknown("nvlink-domain", 1),
        ),
        (DropConstraint("the level of w+x"),),
    ),
    "a domain larger than what nobody knows": Case(
        ": a[8 = 4+4, unindexed 1]",
        "5 x 1 GPU within nvlink-domain",
        (RoleScope("w", "nvlink-domain", "a/0", 4, 5, even_empty=True),),
        (WiderScope("nvlink-domain", "node", "", 5, "w"),),
    ),
    "a domain that is the whole node, with GPUs that nobody knows": Case(
        ": a[8, unindexed 3]",
        "6 x 1 GPU, scope nvlink-domain",
        (NotEnoughFree("w", GPU, 5, 6, None, 6),),
        (MoreFree(GPU, 1, (("a", 1),)), FewerMembers(5, 6)),
    ),
    "no NVLink": Case(
        ": a[pcie-8x-pix-node-sys]",
        "2 x 1 GPU, scope nvlink-domain",
        (DomainTooSmall("nvlink-domain", "a/0", 1, 2, has_nvlink=False, even_empty=True),),
        (WiderScope("nvlink-domain", "node", "a", 2), FewerMembers(1, 2)),
    ),
    "one role of two": Case(
        "rack r1: a[8] b[8, free 1100 0000]",
        "2 x 8 GPU + 1 x 1 GPU",
        (NotEnoughFree("w", GPU, 10, 16, 1, 2),),
        (),
    ),
    "one role of two in a rack": Case(
        "rack r1: a[8] b[4]\n rack r2: c[8]",
        "2 x 8 GPU + 1 x 1 GPU, scope rack",
        (DomainTooSmall("rack", "r1", 1, 2, even_empty=True, role="w"),),
        (WiderScope("rack", "", "", 3),),
    ),
    "two roles of three, beside each other": Case(
        ": a[4, cpu 4] b[0, cpu 1]",
        "1 x 0 GPU + 2 x 2 GPU 1 cpu + 4 x 0 GPU 1 cpu",
        (ClusterTooSmall("x, y", "cpu", 5000, 6000, 5, 6, "a", 4000),),
        (),
    ),
    "cpu where the GPUs are not": Case(
        ": a[2, cpu 3] b[2, cpu 3]",
        "2 x 1 GPU 2 cpu + 1 x 2 GPU 0.5 cpu",
        (FreeApart("w, x", ((GPU, 4), ("cpu", 6000)), 2, 3, even_empty=True),),
        (),
    ),
    "a role's own scope": Case(
        "rack r1: a[2]\n rack r2: b[2]",
        "3 x 1 GPU within rack + 1 x 1 GPU",
        (RoleScope("w", "rack", "r1", 2, 3, even_empty=True),),
        (WiderScope("rack", "", "", 4, "w"),),
    ),
    "one GPU holds one member of a role": Case(
        ": a[4 = 2+2]",
        "2 x 1 GPU within gpu",
        (RoleScope("w", "gpu", "a/0", 1, 2, even_empty=True),),
        (WiderScope("gpu", "nvlink-domain", "", 2, "w"), FewerMembers(1, 2)),
    ),
    "one GPU holds no member of two GPUs": Case(
        ": a[4 = 2+2]",
        "1 x 2 GPU within gpu",
        (RoleScope("w", "gpu", "", 0, 1, even_empty=True),),
        (WiderScope("gpu", "nvlink-domain", "", 1, "w"),),
    ),
    "the GPU of a member that runs is taken": Case(
        ": a[4 = 2+2, free 1110]",
        "1 x 1 GPU within gpu, running w-9@a/3",
        (RoleScope("w", "gpu", "a/3", 0, 1, even_empty=True), RunningElsewhere("gpu", "a/3", 1)),
        (WiderScope("gpu", "nvlink-domain", "", 1, "w"),),
    ),
    "no GPU of unknown index is promised to a segment": Case(
        ": a[4 = 2+2, unindexed 1]",
        "1 x 1 GPU by 1 gpu",
        (IndicesUnknown("gpu", 1, "w"),),
        (SmallerSegments("w", ()),),
    ),
    "segments that others leave too little for": Case(
        ": a[4, free 1110] b[4, free 1110] c[4, free 1100]",
        "8 x 1 GPU by 4 node",
        (SegmentsTooLarge("w", ((4, "node"),), 3, 8),),
        (SmallerSegments("w", ()), FewerMembers(3, 8)),
    ),
    "segments larger than nodes": Case(
        ": a[3] b[3] c[3]",
        "8 x 1 GPU by 4 node",
        (SegmentsTooLarge("w", ((4, "node"),), 3, 8, even_empty=True),),
        (SmallerSegments("w", ()), FewerMembers(3, 8)),
    ),
    "members that run hold the others where they are": Case(
        "rack r1: a[4, free 0011]\n rack r2: b[4]",
        "3 x 1 GPU, scope rack, running w-8@a/01",
        (DomainTooSmall("rack", "r1", 2, 3, even_empty=True), RunningElsewhere("rack", "r1", 1)),
        (WiderScope("rack", "", "", 3),),
    ),
    "the rack where a member runs is full": Case(
        "rack r0: a[2, free 0000]\n rack r1: b[4]",
        "1 x 1 GPU, scope rack, running w-8@a/0",
        (DomainTooSmall("rack", "r0", 0, 1), RunningElsewhere("rack", "r0", 1)),
        (MoreFree(GPU, 1, (("a", 1),)), WiderScope("rack", "", "", 1)),
    ),
    "nobody knows where a member runs": Case(
        ": a[8 = 4+4, unindexed 1] b[8]",
        "1 x 1 GPU, scope nvlink-domain, running w-8@a",
        (
            DomainTooSmall("nvlink-domain", "", 0, 1, even_empty=True),
            RunningElsewhere("nvlink-domain", "", 1),
        ),
        (WiderScope("nvlink-domain", "node", "a", 1),),
    ),
    "those of the role that run, not those of another": Case(
        "rack r0: a[1, free 0] b[4, free 0111]\n rack r1: c[4]",
        "1 x 1 GPU within node + 1 x 1 GPU, running w-8@a/0 x-8@b/0",
        (RoleScope("w", "node", "a", 0, 1, even_empty=True), RunningElsewhere("node", "a", 1)),
        (WiderScope("node", "rack", "", 2, "w"),),
    ),
    "a segment that runs in part, not the one that has room": Case(
        ": a[3, free 001] b[1, free 0] c[4]",
        "2 x 1 GPU by 2 node, running w-0b@a/0 w-1b@b/0",
        (SegmentsTooLarge("w", ((2, "node"),), 1, 2, even_empty=True), RunningElsewhere("node", "b", 1)),
        (SmallerSegments("w", ()),),
    ),
    "no node has the label of a role's scope": Case(
        ": a[8]",
        "2 x 1 GPU within block + 1 x 1 GPU",
        (NoSuchDomain("block", "w", ("block",)),),
    ),
    "no node has the label of a segment's scope": Case(
        ": a[8]", "2 x 1 GPU by 2 block", (NoSuchDomain("block", "w", ("block",)),)
    ),
    "the gang itself fills the nodes": Case(
        ": a[4, free 0000] b[4, free 0000]",
        "2 x 4 GPU, min 1, running w-8@a/0123 w-9@b/0123",
        (ClusterTooSmall("w", GPU, 8, 12, 2, 3, "a", 4),),
    ),
    "a rule binds: how many fit one by one is not said": Case(
        ": a[4] b[2, free 00]",
        "5 x 1 GPU, max node=4",
        (NotEnoughFree("w", GPU, 4, 5, None, 5),),
        (MoreFree(GPU, 1, (("b", 1),)), FewerMembers(4, 5)),
    ),
}
CASES |= {name: Case(*row) for kind_tested in TESTED for name, row in kind_tested.refused.items()}


def gang_with_count(drawing: str) -> Request:
    """The gang, with a count that the user sets."""
    return replace(gang(drawing), gang=GangId("default", "annotations", "gang"))


@pytest.mark.parametrize("name", CASES)
def test_drawn(name: str) -> None:
    case = CASES[name]
    decision = place(cluster(case.cluster), gang_with_count(case.gang))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == case.causes, sentence(decision)
    assert decision.relaxations == case.helps, sentence(decision)


@pytest.mark.parametrize(
    ("dialect", "gang_text"),
    [
        ("ack", "3 x 8 GPU"),
        ("annotations", "2 x 8 GPU + 1 x 8 GPU"),
        ("annotations", "3 x 8 GPU, running w-8@c/01234567"),
    ],
)
def test_fewer_members_are_told_only_where_the_user_says_how_many(dialect: str, gang_text: str) -> None:
    request = replace(gang(gang_text), gang=GangId("default", dialect, "gang"))
    decision = place(cluster(": a[8] b[8] c[8, free 0000 0000]"), request)
    assert isinstance(decision, Unplaceable)
    assert not any(isinstance(relaxation, FewerMembers) for relaxation in decision.relaxations)


def test_gpus_and_cpu_are_free_apart() -> None:
    usages = [
        Usage("other-a", "a", Resources(cpu_milli=4000)),
        Usage("other-b", "b", Resources(), gpus=0b1111),
    ]
    decision = place(cluster(": a[4, cpu 4] b[4, cpu 4]").with_usages(usages), gang("2 x 1 GPU 1 cpu"))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (FreeApart("w", ((GPU, 4), ("cpu", 4000)), 0, 2),)
    assert cause_json(decision.causes[0])["units"] == ["count", "cpu_milli"]


def test_a_taint_is_named_and_tolerating_it_is_told_to_help() -> None:
    snapshot = cluster(": a[8]")
    state = snapshot.nodes["a"]
    taints = (Taint("pool", "a100", "NoSchedule"),)
    tainted = replace(snapshot, nodes={"a": replace(state, node=replace(state.node, taints=taints))})
    decision = place(tainted, gang("1 x 1 GPU"))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (NodesExcluded("w", "taint pool=a100:NoSchedule", 1),)
    assert decision.relaxations == (Tolerate("w", "pool=a100:NoSchedule", 1),)


def test_the_taint_of_a_cordon_is_no_reason_of_its_own() -> None:
    """The API server puts the taint on a cordoned node: told apart, neither would help alone."""
    snapshot = cluster(": a[8, cordoned]")
    (state,) = snapshot.nodes.values()
    tainted = replace(state.node, taints=(UNSCHEDULABLE,))
    decision = place(Snapshot.of([tainted], ()), gang("1 x 1 GPU"))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (NodesExcluded("w", "cordoned", 1),)
    assert decision.relaxations == (Uncordon((state.node.name,)),)
