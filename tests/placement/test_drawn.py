"""Drawn clusters, and where the gang must go: the documents' own cases and the traps others fell into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from muster.domain.causes.out_of_place import DomainTooSmall, IndicesUnknown, NodesExcluded, SegmentsTooLarge
from muster.domain.causes.too_little import ClusterTooSmall, FreeInPieces, MemberTooLarge, NotEnoughFree
from muster.domain.constraints import SubgroupScope
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.reasons import Cause
from muster.domain.request import Request
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.domain.words import GPU_MEMORY
from muster.placement.place import place
from muster.placement.verify import verify
from tests.placement.drawings import cluster, gang

Check = Callable[[Decision], None]


@dataclass(frozen=True)
class Case:
    cluster: str
    gang: str
    expect: Check


def placed(
    counts: dict[str, int] | None = None,
    gpus: dict[str, set[int]] | None = None,
    link: float | None = None,
    nodes: int | None = None,
    domain: str | None = None,
    preferred: str | None = None,
) -> Check:
    """Placed and proven best: members by node, GPUs by node, weakest link, number of nodes, domain."""

    def check(decision: Decision) -> None:
        assert isinstance(decision, Placed), sentence(decision)
        assert decision.optimal
        members: dict[str, int] = {}
        gpus_by_node: dict[str, set[int]] = {}
        for member in decision.members:
            members[member.node] = members.get(member.node, 0) + 1
            gpus_by_node.setdefault(member.node, set()).update(member.gpus)
        assert counts is None or members == counts
        assert gpus is None or gpus_by_node == gpus
        assert link is None or decision.objective.weakest_link_gb_per_s == link
        assert nodes is None or len(members) == nodes
        assert domain is None or decision.domain == domain
        assert preferred is None or decision.objective.preferred_reached == preferred

    return check


def refused(*causes: Cause, helps: str = "") -> Check:
    """Unplaceable for exactly these causes; `helps` occurs in a relaxation."""

    def check(decision: Decision) -> None:
        assert isinstance(decision, Unplaceable)
        assert decision.causes == causes
        assert helps in "; ".join(map(str, decision.relaxations))

    return check


GPU = "nvidia.com/gpu"
DOCUMENT = "v100-8x-gputopology-document"

CASES = {
    "two pods of two GPUs take one island": Case(
        ": a[8 = 4+4, free 0011 1111] b[8 = 4+4, free 0110 0110]",
        "2 x 2 GPU, scope nvlink-domain",
        placed(gpus={"a": {4, 5, 6, 7}}, domain="nvlink-domain a/1"),
    ),
    "two one-GPU pods of one job get an NVLink pair on the cube mesh": Case(
        f": a[{DOCUMENT}]", "2 x 1 GPU", placed(counts={"a": 2}, link=50)
    ),
    "a pod of two GPUs too": Case(f": a[{DOCUMENT}]", "1 x 2 GPU", placed(counts={"a": 1}, link=50)),
    "with GPUs 0, 3 and 6 taken one of the NV2 pairs that are left": Case(
        f": a[{DOCUMENT}, free 0110 1101]", "2 x 1 GPU", placed(counts={"a": 2}, link=50)
    ),
    "with only NV1 left the NV1 pair, not a SYS one": Case(
        f": a[{DOCUMENT}, free 1100 0100]", "2 x 1 GPU", placed(gpus={"a": {0, 1}}, link=25)
    ),
    "the node with the faster pair": Case(
        f": a[{DOCUMENT}, free 1100 0000] b[{DOCUMENT}, free 1001 0000]",
        "2 x 1 GPU",
        placed(gpus={"b": {0, 3}}, link=50),
    ),
    "one GPU leaves the NV2 pair whole": Case(
        f": a[{DOCUMENT}, free 1001 0100]", "1 x 1 GPU", placed(gpus={"a": {5}})
    ),
    "one GPU goes where it breaks nothing": Case(
        ": a[8] b[8, free 0000 0001]", "1 x 1 GPU", placed(gpus={"b": {7}}, domain="gpu b/7")
    ),
    "NVSwitch: any two are as good, lowest first": Case(
        ": a[hgx-h100-8x-nvswitch]", "2 x 1 GPU", placed(gpus={"a": {0, 1}}, link=450)
    ),
    "PCIe only: the pair under one switch": Case(
        ": a[pcie-8x-pix-node-sys, free 1011 0000]", "2 x 1 GPU", placed(gpus={"a": {2, 3}}, link=14)
    ),
    "PCIe only: no nvlink-domain holds two": Case(
        ": a[pcie-8x-pix-node-sys]",
        "2 x 1 GPU, scope nvlink-domain",
        refused(
            DomainTooSmall("nvlink-domain", "a/0", 1, 2, has_nvlink=False, even_empty=True),
            helps="scope node instead of nvlink-domain",
        ),
    ),
    "the best island is one short": Case(
        ": a[8 = 4+4, free 0111 0011]",
        "4 x 1 GPU, scope nvlink-domain",
        refused(DomainTooSmall("nvlink-domain", "a/0", 3, 4), helps="1 more free GPU on a"),
    ),
    "3 x 4 GPUs on 6/2/2/2: enough in sum, not in pieces": Case(
        ": a[8, free 1111 1100] b[8, free 1100 0000] c[8, free 1100 0000] d[8, free 1100 0000]",
        "3 x 4 GPU",
        refused(FreeInPieces("w", GPU, 12, 12, 1, 3, "a", 6), helps="2 more free GPUs on a and 2 on b"),
    ),
    "{8,1} on a rack with 8 + 1 free": Case(
        "rack r1: a[8] b[8, free 0000 0001]", "1 x 8 GPU + 1 x 1 GPU, scope rack", placed({"a": 1, "b": 1})
    ),
    "{8 x 1} takes one node, not eight": Case(
        "\n".join(f"rack r{i}: n{i}[8, free {'1111 1111' if i == 7 else '1000 0000'}]" for i in range(9)),
        "8 x 1 GPU",
        placed({"n7": 8}),
    ),
    "racks 5 + 5, groups of 2, 2, 3, 3": Case(
        "rack r1: a[8, free 1111 1000]\n rack r2: b[8, free 1111 1000]",
        "2 x 2 GPU + 2 x 3 GPU",
        placed({"a": 2, "b": 2}),
    ),
    "Kueue's podsets, A then B": Case(
        "rack r0: a[1, cpu 2] b[0, cpu 0]\n rack r1: c[0, cpu 3]",
        "2 x 0 GPU 1 cpu + 1 x 1 GPU 1 cpu, scope rack",
        refused(
            DomainTooSmall("rack", "r0", 2, 3, even_empty=True),
            helps="no required scope instead of rack",
        ),
    ),
    "Kueue's podsets, each in its own rack, A then B": Case(
        "rack r0: a[1, cpu 2]\n rack r1: c[0, cpu 3]",
        "2 x 0 GPU 1 cpu + 1 x 1 GPU 1 cpu",
        placed({"a": 2, "c": 1}),
    ),
    "Kueue's podsets, each in its own rack, B then A": Case(
        "rack r0: a[1, cpu 2]\n rack r1: c[0, cpu 3]",
        "1 x 1 GPU 1 cpu + 2 x 0 GPU 1 cpu",
        placed({"a": 2, "c": 1}),
    ),
    "prefill's leader and workers in one rack, decode's in another": Case(
        "rack r0: a[4] b[2]\n rack r1: c[4] d[2]",
        "1 x 2 GPU + 2 x 2 GPU + 1 x 2 GPU + 2 x 2 GPU, share rack=w+x rack=y+z",
        placed({"a": 2, "b": 1, "c": 2, "d": 1}),
    ),
    "a rack for two roles of three": Case(
        "rack r0: a[4] b[1]\n rack r1: c[5]",
        "3 x 1 GPU + 2 x 1 GPU + 4 x 1 GPU, share rack=w+x",
        placed({"a": 4, "c": 5}),
    ),
    "no rack for two roles of three": Case(
        "rack r0: a[4]\n rack r1: c[4]",
        "3 x 1 GPU + 2 x 1 GPU + 1 x 1 GPU, share rack=w+x",
        refused(
            SubgroupScope("the level of w+x", "rack", 4, 5, even_empty=True),
            helps="to drop the level of w+x",
        ),
    ),
    "a gang bigger than the cluster": Case(
        ": a[8] b[8]", "24 x 1 GPU", refused(ClusterTooSmall("w", GPU, 16, 24, 16, 24, "a", 8))
    ),
    "a member bigger than any node": Case(
        ": a[8] b[4]", "1 x 16 GPU", refused(MemberTooLarge("w", GPU, 16, "a", 8))
    ),
    "at least min_member, the first of them": Case(
        ": a[8, free 1110 0000]", "4 x 1 GPU, min 3", placed({"a": 3})
    ),
    "the preferred domain is reached": Case(
        ": a[8 = 4+4, free 0011 0011] b[8 = 4+4, free 0011 1111]",
        "4 x 1 GPU, prefer nvlink-domain node",
        placed(gpus={"b": {4, 5, 6, 7}}, preferred="nvlink-domain"),
    ),
    "else the next preferred scope": Case(
        ": a[8 = 4+4, free 0011 0011] b[8, free 1110 0000]",
        "4 x 1 GPU, prefer nvlink-domain node",
        placed({"a": 4}, preferred="node"),
    ),
    "a clique is one domain over several nodes": Case(
        "rack r1: a[4, clique k] b[4, clique k]\n rack r2: c[4] d[4]",
        "2 x 4 GPU, scope nvlink-domain",
        placed({"a": 1, "b": 1}, domain="nvlink-domain k"),
    ),
    "one clique before two nodes of their own": Case(
        "rack r1: a[4] b[4] c[4, clique k] d[4, clique k]", "2 x 4 GPU", placed({"c": 1, "d": 1})
    ),
    "fewest racks before fewest domains": Case(
        "rack r1: a[8 = 4+4, free 1111 0011]\n rack r2: b[4]\n rack r3: c[4]",
        "6 x 1 GPU",
        placed({"a": 6}),
    ),
    "a node without a rack is usable where none is required": Case(
        ": a[8]\n rack r1: b[4]", "8 x 1 GPU", placed({"a": 8})
    ),
    "and is not where one is": Case(
        ": a[8]\n rack r1: b[4]",
        "8 x 1 GPU, scope rack",
        refused(
            DomainTooSmall("rack", "r1", 4, 8, even_empty=True), helps="no required scope instead of rack"
        ),
    ),
    "GPUs of unknown index: counts hold": Case(
        ": a[8, unindexed 6]", "2 x 1 GPU", placed({"a": 2}, domain="nvlink-domain a/0")
    ),
    "GPUs of unknown index: no more than are left": Case(
        ": a[8, unindexed 6]", "3 x 1 GPU", refused(NotEnoughFree("w", GPU, 2, 3, 2, 3), helps="1 more free")
    ),
    "GPUs of unknown index: no island is promised": Case(
        ": a[8 = 4+4, unindexed 1]",
        "2 x 1 GPU, scope nvlink-domain",
        refused(IndicesUnknown("nvlink-domain", 1), helps="scope node instead"),
    ),
    "GPUs of unknown index: no island is promised to a member without GPUs": Case(
        ": a[3 unknown, unindexed 1]",  # after a random cluster: it said "the best, a/0, holds 1" of 1
        "1 x 0 GPU 1 cpu, scope nvlink-domain",
        refused(IndicesUnknown("nvlink-domain", 1), helps="scope node instead"),
    ),
    "GPUs of unknown index: no GPU is promised to a role without GPUs": Case(
        ": a[4, unindexed 1]",
        "2 x 0 GPU within gpu + 1 x 0 GPU",
        refused(IndicesUnknown("gpu", 1, "w"), helps="scope nvlink-domain instead"),
    ),
    "GPUs of unknown index: no island is promised to slices": Case(
        ": a[4 = 2+2, unindexed 1, mem 8 8 8 8]",
        "2 x 4 GiB, scope nvlink-domain",
        refused(IndicesUnknown("nvlink-domain", 1)),
    ),
    "GPUs of unknown index: slices share none of them": Case(
        ": a[4, unindexed 1, mem 8 8 8 8]",  # it said that no memory is free, and not why
        "1 x 4 GiB",
        refused(NotEnoughFree("w", GPU_MEMORY, 0, 4, 0, 1), IndicesUnknown("", 1, "w")),
    ),
    "segments by node that are smaller than those inside it": Case(
        ": a[2 pcie]",  # after a random cluster: numpy warned of a division by zero
        "2 x 1 GPU by 2 nvlink-domain by 1 node",
        refused(SegmentsTooLarge("w", ((2, "nvlink-domain"), (1, "node")), 1, 2, True), helps="no segments"),
    ),
    "a node without GPUs has no NVLink domain for a segment": Case(
        ": a[0, cpu 8]",  # after a random cluster: it said "2 of 2 fit"
        "2 x 0 GPU by 2 nvlink-domain",
        refused(SegmentsTooLarge("w", ((2, "nvlink-domain"),), 0, 2, True), helps="no segments"),
    ),
    "a cordoned node that would do is named": Case(
        ": a[8, cordoned] b[8, free 1000 0000]",
        "2 x 4 GPU",
        refused(NotEnoughFree("w", GPU, 1, 8, 0, 2, elsewhere=8), NodesExcluded("w", "cordoned", 1)),
    ),
    "a selector holds for its role alone": Case(
        ": a[8, pool=p] b[8]", "1 x 4 GPU pool=p + 1 x 8 GPU", placed({"a": 1, "b": 1})
    ),
    "cpu-only members leave GPU nodes alone": Case(": a[8] b[0, cpu 8]", "2 x 0 GPU 1 cpu", placed({"b": 2})),
    "cpu-only members lie in the preferred rack of the others": Case(  # after a random cluster
        "rack r1: a[4, cpu 3] b[0, cpu 3, cordoned]\n rack r2: c[4, cpu 3] d[0, cpu 3]",
        "1 x 1 GPU 1 cpu + 2 x 0 GPU 1.5 cpu, prefer node rack",
        placed({"c": 1, "d": 2}, preferred="rack"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_drawn(name: str) -> None:
    case = CASES[name]
    snapshot, request = cluster(case.cluster), gang(case.gang)
    decision = place(snapshot, request)
    case.expect(decision)
    if isinstance(decision, Placed):
        assert verify(snapshot, request, decision) == ()
        assert_all_members(snapshot, request, decision)


def assert_all_members(snapshot: Snapshot, request: Request, decision: Placed) -> None:
    """Members come in natural order, so that the first ranks are kept and stay together."""
    names = [member.name for member in decision.members]
    assert names == sorted(names, key=lambda name: (name[0], int(name[2:])))


def test_a_rack_in_no_wide_domain_is_weighed_against_racks_that_are_one() -> None:
    """Two racks of four members: as many NVLink domains whichever they are, so the faster links decide."""
    snapshot = cluster("rack r1: a[4]\nrack r2: b[4, clique k2]\nrack r3: c[4 pcie, clique k3]")
    decision = place(snapshot, gang("8 x 1 GPU, max rack=4"))
    assert isinstance(decision, Placed)
    assert {member.node for member in decision.members} == {"a", "b"}
    assert decision.optimal


@pytest.mark.parametrize(
    ("drawn", "gang_text"),
    [
        (": a[62] b[62]", "132 x 1 GPU, scope node, min 1"),
        (": a[62] b[8]", "132 x 1 GPU, scope nvlink-domain, min 1"),
        (": a[62] b[62]", "12 x 1 GPU by 4 nvlink-domain + 8 x 4 GPU by 2 node"),
        ("rack r0: a[8] b[8] c[8]", "100 x 0 GPU + 100 x 0 GPU + 8 x 1 GPU"),
        (": " + " ".join(f"n{i}[8]" for i in range(8)), " + ".join(["3 x 1 GPU"] * 4)),
        (": a[16 pcie] b[16 pcie]", "4 x 0 GPU by 2 nvlink-domain + 12 x 1 GPU"),
    ],
)
def test_nodes_of_many_gpus_and_gangs_of_many_mixes_are_placed(drawn: str, gang_text: str) -> None:
    assert isinstance(place(cluster(drawn), gang(gang_text)), Placed)


def test_a_refusal_on_nodes_of_many_gpus_is_told() -> None:
    decision = place(cluster(": a[62, cpu 3]"), gang("5 x 1 GPU 1 cpu, scope nvlink-domain"))
    assert isinstance(decision, Unplaceable)
    full = ": a[62, cpu 70, free " + "0" * 60 + "11] b[8, free 00000011]"
    decision = place(cluster(full), gang("5 x 1 GPU, scope nvlink-domain"))
    assert isinstance(decision, Unplaceable)
    assert decision.causes
