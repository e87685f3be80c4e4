"""What other schedulers fell into, as far as it is about where a gang goes; each trap named by its victim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, permutations

import pytest

from muster.domain.causes.out_of_place import DomainTooSmall, NodesExcluded
from muster.domain.causes.too_little import ClusterTooSmall, FreeInPieces, MemberTooLarge
from muster.domain.decision import Placed
from muster.domain.node import Node, Resources
from muster.domain.reasons import Cause
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology, Link
from muster.placement.place import place
from muster.placement.verify import verify
from tests.placement.drawings import RESOURCE, cluster, gang


@dataclass(frozen=True)
class Fits:
    """Placed, proven best: the nodes of each role's members, sorted."""

    cluster: str
    gang: str
    on: Mapping[str, str]


@dataclass(frozen=True)
class Refused:
    """Unplaceable: the first cause is of this class and has these numbers; `also` is among the others."""

    cluster: str
    gang: str
    cause: type[Cause]
    numbers: Mapping[str, object]
    also: tuple[type[Cause], ...] = ()


FRAGMENTS = ": a[8, free 1111 1100] b[8, free 1100 0000] c[8, free 1100 0000] d[8, free 1100 0000]"
TWO_POOLS = "rack r1: a[8, pool=p] b[8, pool=q]"

FITS = {
    "scheduler-plugins#429: fragments, and the gang that fits them": Fits(
        FRAGMENTS, "6 x 2 GPU", {"w": "a a a b c d"}
    ),
    "KAI multiplies the largest pod: {8, 1} on a rack with 8 + 1 free": Fits(
        "rack r1: a[8] b[8, free 0000 0001]\n rack r2: c[8] d[8, free 0000 0000]",
        "1 x 8 GPU + 1 x 1 GPU, scope rack",
        {"w": "a", "x": "b"},
    ),
    "… and with the small one first": Fits(
        "rack r1: a[8] b[8, free 0000 0001]", "1 x 1 GPU + 1 x 8 GPU, scope rack", {"w": "b", "x": "a"}
    ),
    "KAI's pre-fit ignores a node selector: only the other rack holds all": Fits(
        f"{TWO_POOLS}\n rack r2: c[8, pool=p] d[4, pool=p]", "3 x 4 GPU pool=p, scope rack", {"w": "c c d"}
    ),
    "Kueue takes eight nodes × 1 where {8, 1} gives one": Fits(
        "\n".join(f"rack r{i}: n{i}[8, free {'1111 1111' if i == 5 else '1000 0000'}]" for i in range(9)),
        "8 x 1 GPU",
        {"w": "n5 n5 n5 n5 n5 n5 n5 n5"},
    ),
    "… and nine take two, not nine": Fits(
        "rack r1: a[8, free 1000 0000] b[8]\n rack r2: "
        + " ".join(f"n{i}[8, free 1000 0000]" for i in range(9)),
        "9 x 1 GPU",
        {"w": "a b b b b b b b b"},
    ),
    "gputopology panics for one GPU": Fits(
        ": a[v100-8x-gputopology-document, free 0000 0100]", "1 x 1 GPU", {"w": "a"}
    ),
    "go-gpuallocator takes 16 s for 16 GPUs": Fits(
        ": a[dgx2-16x-v100-nvswitch] b[8]", "1 x 16 GPU + 2 x 4 GPU", {"w": "a", "x": "b b"}
    ),
    "… and for some of 16": Fits(": a[16, free 0111 1011 1111 1111]", "2 x 7 GPU", {"w": "a a"}),
    "scheduler-plugins#397: the halves of a gang meet again": Fits(
        "rack r1: a[8] b[8]\n rack r2: c[8, free 0011 1111] d[8]",
        "1 x 8 GPU + 1 x 2 GPU, scope rack, running x-9@c/01",
        {"w": "d", "x": "c"},
    ),
    "a gang bigger than the cluster, some of which may start": Fits(
        ": a[8] b[8]", "20 x 1 GPU, min 12", {"w": " ".join("a" * 8 + "b" * 8)}
    ),
}

REFUSED = {
    "scheduler-plugins#429: enough in sum, not in pieces": Refused(
        FRAGMENTS,
        "3 x 4 GPU",
        FreeInPieces,
        {"free": 12, "needed": 12, "members_fit": 1, "members_needed": 3, "largest_node": "a", "largest": 6},
    ),
    "KAI's pre-fit ignores a node selector: no rack is left": Refused(
        TWO_POOLS,
        "3 x 4 GPU pool=p, scope rack",
        ClusterTooSmall,
        {"total": 8, "needed": 12, "members_fit": None, "members_needed": 3},
        (NodesExcluded,),
    ),
    "Kueue's podsets, where one rack must hold both": Refused(
        "rack r0: a[1, cpu 2]\n rack r1: b[0, cpu 1]",
        "2 x 0 GPU 1 cpu + 1 x 1 GPU 1 cpu, scope rack",
        DomainTooSmall,
        {"scope": "rack", "best": "r0", "members_fit": 2, "members_needed": 3},
    ),
    "a gang bigger than the cluster": Refused(
        ": a[8] b[8]", "24 x 1 GPU", ClusterTooSmall, {"total": 16, "needed": 24, "members_fit": 16}
    ),
    "a member bigger than any node": Refused(
        ": a[8] b[4]", "1 x 16 GPU", MemberTooLarge, {"needed": 16, "largest_node": "a", "largest": 8}
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_it_fits(name: str) -> None:
    case = FITS[name]
    snapshot, request = cluster(case.cluster), gang(case.gang)
    decision = place(snapshot, request)
    assert isinstance(decision, Placed), sentence(decision)
    assert decision.optimal
    assert verify(snapshot, request, decision) == ()
    for role, nodes in case.on.items():
        assert " ".join(sorted(m.node for m in decision.members if m.role == role)) == nodes


@pytest.mark.parametrize("name", REFUSED)
def test_it_does_not_fit_and_says_why(name: str) -> None:
    case = REFUSED[name]
    decision = place(cluster(case.cluster), gang(case.gang))
    assert not isinstance(decision, Placed)
    first = decision.causes[0]
    assert type(first) is case.cause
    assert {name: getattr(first, name) for name in case.numbers} == case.numbers
    assert {type(cause) for cause in decision.causes[1:]} >= set(case.also)


FIVE_AND_FIVE = ["rack r1: a[5]\n rack r2: b[5]", "rack r1: a[3] b[2]\n rack r2: c[4] d[1]"]


@pytest.mark.parametrize("racks", FIVE_AND_FIVE)
@pytest.mark.parametrize("sizes", sorted(set(permutations((2, 2, 3, 3)))))
def test_kai_does_not_go_back_between_subgroups(sizes: tuple[int, ...], racks: str) -> None:
    """Racks with 5 + 5 free GPUs, groups of 2, 2, 3 and 3, each in one rack: 2 + 3 in each."""
    snapshot = cluster(racks)
    request = gang(" + ".join(f"{size} x 1 GPU within rack" for size in sizes))
    decision = place(snapshot, request)
    assert isinstance(decision, Placed), sentence(decision)
    assert verify(snapshot, request, decision) == ()
    assert len(decision.members) == 10


A, B = "2 x 0 GPU 1 cpu within rack", "1 x 1 GPU 1 cpu within rack"
R0 = ["rack r0: a[1, cpu 2]", "rack r0: a[1, cpu 1] c[0, cpu 1]"]


@pytest.mark.parametrize("r0", R0)
@pytest.mark.parametrize(("gang_text", "names"), [(f"{A} + {B}", "wx"), (f"{B} + {A}", "xw")])
def test_kueue_places_podsets_one_after_another(gang_text: str, names: str, r0: str) -> None:
    """A = 2 × (1 cpu), B = 1 × (1 gpu, 1 cpu), each in one rack: the one way there is, in either order."""
    snapshot, request = cluster(f"{r0}\n rack r1: b[0, cpu 3]"), gang(gang_text)
    decision = place(snapshot, request)
    assert isinstance(decision, Placed), sentence(decision)
    assert verify(snapshot, request, decision) == ()
    on = {role: "".join(m.node for m in decision.members if m.role == role) for role in names}
    assert on == {names[0]: "bb", names[1]: "a"}


SLOWEST_FIRST = ("SYS", "NODE", "PHB", "PXB", "PIX", "PSB", "NV1", "NV2", "NV4", "NV6", "NV12", "NV18")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("slower", "faster"), list(pairwise(SLOWEST_FIRST)))
def test_gputopology_has_its_pcie_table_reversed_and_ends_at_nv4(
    slower: str, faster: str, first: bool
) -> None:
    """Two pairs of GPUs on one node: two pods get the one with the faster link, wherever it is."""
    pairs = {frozenset({0, 1}): faster if first else slower, frozenset({2, 3}): slower if first else faster}
    links = tuple(
        tuple(None if i == j else Link.of_kind(pairs.get(frozenset({i, j}), "SYS")) for j in range(4))
        for i in range(4)
    )
    node = Node("a", Resources(8000, 2**40, 110), GpuTopology(links), frozenset({RESOURCE}))
    decision = place(Snapshot.of([node], []), gang("2 x 1 GPU"))
    assert isinstance(decision, Placed)
    assert {gpu for member in decision.members for gpu in member.gpus} == ({0, 1} if first else {2, 3})
    assert decision.objective.weakest_link_gb_per_s == Link.of_kind(faster).gb_per_s
