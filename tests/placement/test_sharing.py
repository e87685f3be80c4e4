"""Slices of GPU memory: where they go, what they share GPUs with, and the answer if there is no room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from local_cluster.demo.baseline import first_fit
from muster.domain.causes.not_planned import NotSupported
from muster.domain.causes.out_of_place import DomainTooSmall
from muster.domain.causes.too_little import (
    FreeApart,
    FreeInPieces,
    MemberTooLarge,
    NotEnoughFree,
    ResourceNotOffered,
)
from muster.domain.decision import MemberPlacement, Placed, Unplaceable
from muster.domain.node import Node, Resources, Usage
from muster.domain.reasons import Cause
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.columns import columns_of
from muster.placement.gang.packings import packing_table
from muster.placement.gpus.choices import LowerBounds, choices
from muster.placement.gpus.costs import SHARING_COSTS, Cost, NodeContext
from muster.placement.gpus.slices import MemberAsk, NodeGpus
from muster.placement.moves import alternates, move
from muster.placement.place import Limits, place
from muster.placement.verify import verify
from tests.placement import naive
from tests.placement.cases import Fits
from tests.placement.drawings import RESOURCE, cluster, gang, plan

ONE_NODE = ": a[4, mem 16 16 16 16, left 16 3 0 16]"

FITS = {
    "binpack: least left that is enough": Fits(
        ": a[4, share, mem 16 16 16 16, left 16 6 5 4]", "1 x 4 GiB", "w-0@a/3"
    ),
    "binpack: no GPU is opened while a used one has room": Fits(
        ": a[4, share, mem 16 16 16 16, left 16 16 9 16]", "2 x 4 GiB", "w-0@a/2 w-1@a/2"
    ),
    "binpack: of used GPUs as few as can be": Fits(
        ": a[4, share, mem 16 16 16 16, left 4 8 4 16]", "2 x 4 GiB", "w-0@a/1 w-1@a/1"
    ),
    "spread: most left": Fits(
        ": a[4, share, spread, mem 16 16 16 16, left 9 6 12 4]", "1 x 4 GiB", "w-0@a/2"
    ),
    "spread: a wholly free one, then others": Fits(
        ": a[4, share, spread, mem 16 16 16 16, left 9 16 5 2]", "3 x 4 GiB", "w-0@a/0 w-1@a/1 w-2@a/2"
    ),
    "spread: evenly": Fits(
        ": a[2, share, spread, mem 16 16]", "4 x 4 GiB", "w-0@a/0 w-1@a/0 w-2@a/1 w-3@a/1"
    ),
    "one member on two GPUs": Fits(": a[2, share, mem 16 16, left 8 9]", "1 x 8 GiB on 2 GPUs", "w-0@a/01"),
    "members on two GPUs each, three GPUs in turn": Fits(
        ": a[3, share, mem 8 8 8]", "3 x 4 GiB on 2 GPUs", "w-0@a/01 w-1@a/02 w-2@a/12"
    ),
    "GPUs of several sizes": Fits(": a[3, share, mem 8 24 16]", "1 x 20 GiB + 1 x 8 GiB", "w-0@a/1 x-0@a/0"),
    "whole GPUs and slices of one gang": Fits(
        ": a[4, mem 16 16 16 16, left 16 12 16 16]",
        "3 x 1 GPU + 2 x 4 GiB",
        "w-0@a/0 w-1@a/2 w-2@a/3 x-0@a/1 x-1@a/1",
    ),
    "of one union the linked GPUs are taken whole": Fits(
        ": a[3 = 2+1, mem 8 8 8]", "1 x 2 GPU + 1 x 4 GiB", "w-0@a/01 x-0@a/2"
    ),
    "slices beside whole GPUs that others run on": Fits(
        ": a[4, mem 16 16 16 16, free 0011]", "2 x 16 GiB", "w-0@a/2 w-1@a/3"
    ),
    "whole GPUs beside slices that others run on": Fits(
        ": a[4, mem 16 16 16 16, left 15 16 15 16]", "2 x 1 GPU", "w-0@a/1 w-1@a/3"
    ),
    "members on one GPU": Fits(ONE_NODE, "3 x 5 GiB, scope gpu", "w-0@a/0 w-1@a/0 w-2@a/0"),
    "unhealthy GPUs are left alone": Fits(
        ": a[4, mem 8 8 8 8, share, unhealthy 0 2]", "2 x 8 GiB", "w-0@a/1 w-1@a/3"
    ),
    "a running member is joined on its GPU": Fits(
        ": a[4, share, mem 8 8 8 8, left 4 4 8 8]", "1 x 4 GiB, running w-9@a/1", "w-0@a/1"
    ),
    "a pair of slices on GPUs that NVLink joins": Fits(
        ": a[4 = 1+2+1, share, mem 8 8 8 8, left 4 4 4 4]", "2 x 4 GiB", "w-0@a/1 w-1@a/2"
    ),
    "a node that has room beside one that serves none": Fits(": a[4] b[1, mem 8]", "1 x 8 GiB", "w-0@b/0"),
    "GPUs that nobody can name are not given": Fits(
        ": a[2, mem 8 8, left 8 5, unindexed 1] b[1, mem 8]", "1 x 6 GiB", "w-0@b/0"
    ),
    "one rack, and the rest of its nodes stays empty": Fits(
        "rack r1: a[2, share, mem 8 8] b[2, share, mem 8 8]\n rack r2: c[2, share, mem 8 8, left 8 4]",
        "5 x 4 GiB, scope rack",
        "w-0@a/0 w-1@a/0 w-2@a/1 w-3@a/1 w-4@b/0",
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_slices_go_where_they_should(name: str) -> None:
    FITS[name].check()


@dataclass(frozen=True)
class Refused:
    """Unplaceable: the first cause, and its numbers."""

    cluster: str
    gang: str
    cause: type[Cause]
    numbers: Mapping[str, object]


REFUSED = {
    "no GPU is so large": Refused(
        ONE_NODE, "1 x 40 GiB", MemberTooLarge, {"resource": GPU_MEMORY, "largest": 16}
    ),
    "too few GPUs of that size": Refused(
        ": a[2, mem 24 8]", "1 x 9 GiB on 2 GPUs", MemberTooLarge, {"resource": "GPUs of 9 GiB", "largest": 1}
    ),
    "too little is free": Refused(
        ONE_NODE, "9 x 4 GiB", NotEnoughFree, {"free": 35, "needed": 36, "members_fit": 8}
    ),
    "free in pieces": Refused(
        ": a[4, mem 16 16 16 16, left 3 3 3 3]", "3 x 4 GiB", FreeInPieces, {"free": 12, "largest": 3}
    ),
    "no node serves slices": Refused(
        ": a[4]", "1 x 1 GiB", ResourceNotOffered, {"resource": "aliyun.com/gpu-mem"}
    ),
    "not on one GPU": Refused(
        ONE_NODE, "5 x 4 GiB, scope gpu", DomainTooSmall, {"members_fit": 4, "best": "a/0"}
    ),
    "a whole GPU of a node that shares all": Refused(
        ": a[2, share, mem 8 8]", "1 x 1 GPU", ResourceNotOffered, {"resource": RESOURCE}
    ),
    "a slice and a whole GPU are two": Refused(
        ": a[1, mem 8]", "1 x 1 GPU + 1 x 1 GiB", FreeApart, {"members_fit": 1}
    ),
    "a rule inside the node": Refused(
        ONE_NODE, "2 x 4 GiB, max gpu=1", NotSupported, {"rule": "max-per", "scope": "gpu"}
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_there_is_no_room_and_it_says_why(name: str) -> None:
    case = REFUSED[name]
    decision = place(cluster(case.cluster), gang(case.gang))
    assert isinstance(decision, Unplaceable)
    first = decision.causes[0]
    assert isinstance(first, case.cause)
    assert {name: getattr(first, name) for name in case.numbers} == case.numbers


def test_the_label_of_a_node_changes_while_pods_run() -> None:
    """What runs keeps its GPUs: whole ones are no place for slices now, nor the other way round."""
    shared = Node("a", Resources(8000, 2**40, 110), GpuTopology.unknown(2), gpu_memory=(8, 8))
    whole = replace(shared, gpu_memory=(), gpu_resources=frozenset({RESOURCE}))
    took_all = Usage("p", "a", Resources(), gpus=0b01)
    took_some = Usage("p", "a", Resources(), gpus=0b01, units=2)
    slices = place(Snapshot.of([shared], [took_all]), gang("2 x 4 GiB"))
    assert isinstance(slices, Placed)
    assert {member.gpus for member in slices.members} == {(1,)}
    gpus = place(Snapshot.of([whole], [took_some]), gang("1 x 1 GPU"))
    assert isinstance(gpus, Placed)
    assert gpus.members[0].gpus == (1,)
    assert isinstance(place(Snapshot.of([whole], [took_some]), gang("2 x 1 GPU")), Unplaceable)


BROKEN = {
    "a GPU overbooked by one": ("w-0@a/0 w-1@a/0 w-2@a/0", "has 14 units left, the plan takes 15"),
    "a slice on a GPU that a member has whole": ("w-0@a/3 w-1@a/0 w-2@a/0", "GPU 3 of node a is given twice"),
    "a slice on a GPU that others have whole": ("w-0@a/1 w-1@a/0 w-2@a/0", "node a has 0 units left"),
    "two GPUs for a slice of one": ("w-0@a/02 w-1@a/0 w-2@a/2", "asks for 1 GPUs and gets 2"),
    "on a node that serves none": ("w-0@b/0 w-1@a/0 w-2@a/0", "does not admit role w"),
    "on a GPU that is not there": ("w-0@c/1 w-1@a/0 w-2@a/0", "GPU 1 of node c has 0 units left"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_plans_are_refused(name: str) -> None:
    places, says = BROKEN[name]
    snapshot = cluster(": a[4, mem 16 16 16 16, left 14 16 16 16, free 1011] b[4] c[1, mem 16]")
    request = gang("3 x 5 GiB + 1 x 1 GPU")
    good = plan(snapshot, request, "w-0@a/0 w-1@a/0 w-2@a/2 x-0@a/3")
    assert verify(snapshot, request, good) == ()
    spots = plan(snapshot, request, "w-0@a/0 w-1@a/0 w-2@a/2 x-0@a/3").members
    bad = replace(good, members=(*gang_places(places, spots), spots[3]))
    violations = verify(snapshot, request, bad)
    assert any(says in violation for violation in violations), violations


def gang_places(places: str, spots: Sequence[MemberPlacement]) -> Iterator[MemberPlacement]:
    """The members at other places."""
    for text, member in zip(places.split(), spots, strict=False):
        node, _, gpus = text.partition("@")[2].partition("/")
        yield replace(member, node=node, gpus=tuple(int(digit) for digit in gpus))


@pytest.mark.parametrize(
    ("units", "gpus", "says"),
    [
        (6, (0,), "asks for 5 units of a GPU and gets 6"),
        (0, (0,), "asks for 5 units of a GPU and gets 0"),
        (5, (0, 0), "do not rise"),
    ],
)
def test_false_slices_are_refused(units: int, gpus: tuple[int, ...], says: str) -> None:
    snapshot, request = cluster(": a[1, mem 16]"), gang("1 x 5 GiB")
    good = plan(snapshot, request, "w-0@a/0")
    assert verify(snapshot, request, good) == ()
    bad = replace(good, members=(replace(good.members[0], units=units, gpus=gpus),))
    assert any(says in violation for violation in verify(snapshot, request, bad))


def test_a_gpu_twice_in_a_slice_of_two() -> None:
    snapshot, request = cluster(": a[2, mem 16 16]"), gang("1 x 5 GiB on 2 GPUs")
    good = plan(snapshot, request, "w-0@a/01")
    bad = replace(good, members=(replace(good.members[0], gpus=(1, 1)),))
    assert verify(snapshot, request, good) == ()
    assert any("do not rise" in violation for violation in verify(snapshot, request, bad))


def test_the_damage_counts_pieces_of_gpu_memory() -> None:
    """16 GiB: 10 left are of no use to a request for all, 3 to none of ¼, ½ and all; nor to a whole one."""
    shared = cluster(": a[2, share, mem 16 16, left 13 16]")
    decision = place(shared, gang("1 x 3 GiB"))
    assert isinstance(decision, Placed)
    assert decision.objective.damage == 1000 * 10 // 48 - 1000 * 13 // 48
    plan = place(cluster(": a[2, mem 16 16, left 13 16]"), gang("1 x 3 GiB"))
    assert isinstance(plan, Placed)
    assert plan.objective.damage == decision.objective.damage + 1000 * 10 // 16 - 1000 * 13 // 16


def test_moves_and_alternates_of_slices() -> None:
    b, c = "b[2, share, mem 8 8, left 8 3]", "c[2, share, mem 8 8, left 3 3]"
    snapshot = cluster(f"rack r1: a[2, share, mem 8 8] {b} {c}")
    request = gang("2 x 4 GiB")
    plan = place(snapshot, request)
    assert isinstance(plan, Placed)
    home = plan.members[0].node
    second_node = "b" if home == "a" else "a"
    assert alternates(snapshot, request, plan) == ((home, second_node),) * 2
    moved = move(snapshot, request, plan, "w0", second_node)
    assert moved is not None
    assert verify(snapshot, request, moved) == ()
    assert (moved.members[0].node, moved.members[0].units) == (second_node, 4)
    assert move(snapshot, request, plan, "w0", "c") is None


def test_first_fit_takes_the_first_gpu_with_room() -> None:
    snapshot, request = cluster(": a[2, mem 8 8, left 3 8]"), gang("2 x 4 GiB + 1 x 2 GiB")
    plan = first_fit(snapshot, request)
    assert [(member.gpus, member.units) for member in plan.members] == [((1,), 4), ((1,), 4), ((0,), 2)]
    assert plan.complete


def test_mixes_of_sizes_are_packed_not_summed() -> None:
    """Two GPUs of 8: 5 + 3 twice, but not 5 + 5 + 6, nor 3 slices of 5."""
    asks = (MemberAsk(1, 5), MemberAsk(1, 3), MemberAsk(1))
    caps, nothing = np.full((3, 1), 3), np.zeros((0, 3), np.int64)
    table = packing_table(
        asks, caps, nothing, nothing[:, :1], np.array([[8], [8]]), np.array([[False], [True]])
    )
    assert table is not None
    fitting = set(map(tuple, table.all_of_kind(0).tolist()))
    assert {(2, 2, 0), (1, 0, 1), (1, 1, 1)} <= fitting
    assert not {(3, 0, 0), (2, 0, 1)} & fitting


COSTS = (Cost.NVLINK_DOMAINS, *SHARING_COSTS)


def test_a_node_with_too_many_ways_is_filled_by_first_fit() -> None:
    """16 GPUs, no two alike: not all sets are looked at, and the choice says so."""
    memory = tuple(range(10, 26))
    snapshot = cluster(f": a[16 pcie, share, mem {' '.join(['30'] * 16)}, left {' '.join(map(str, memory))}]")
    decision = place(snapshot, gang("2 x 9 GiB + 3 x 4 GiB + 2 x 7 GiB on 2 GPUs"))
    assert isinstance(decision, Placed)
    assert not decision.optimal
    assert len(decision.members) == 7


@pytest.mark.parametrize("gang_text", ["5 x 4 GiB + 4 x 3 GiB", "9 x 4 GiB, scope rack"])
def test_without_time_a_plan_is_given_and_not_called_best(gang_text: str) -> None:
    racks = "\n".join(
        f"rack r{i}: " + " ".join(f"{name}{i}[2, share, mem 8 8, left 8 {i + 4}]" for name in "abcdef")
        for i in range(3)
    )
    decision = place(cluster(racks), gang(gang_text), Limits(seconds_left=lambda: 0.0))
    assert isinstance(decision, Placed)
    assert decision.truncated
    assert not decision.optimal


@pytest.mark.parametrize(
    "drawn",
    [
        ": a[4, share, mem 8 8 8 8, left 8 3 5 8]",
        ": a[4 = 2+2, mem 8 4 8 6, left 8 4 5 6]",
        ": a[4 = 3+1, share, spread, mem 8 8 8 8, left 8 3 5 8]",
        ": a[4 pcie, mem 8 8 8 8, left 1 2 3 8]",
    ],
)
@pytest.mark.parametrize("ask", [MemberAsk(1, 1), MemberAsk(1, 3), MemberAsk(2, 2)])
def test_no_choice_is_better_than_its_bound(drawn: str, ask: MemberAsk) -> None:
    snapshot = cluster(drawn)
    place_of_a = next(iter(snapshot.nodes.values()))
    columns = columns_of(snapshot)
    shape = columns.shapes[0]
    least = LowerBounds(shape, columns.gpu_memory, columns.free_gpus, (ask,))
    node = NodeGpus(shape, place_of_a.free_gpus, place_of_a.free_memory)
    table = choices((ask,), tuple((n,) for n in range(1, 6)), node, NodeContext(COSTS))
    assert len(table.packing)
    for m in sorted(set(table.packing.tolist())):
        bound = least.of((m + 1,), COSTS, False)[:, 0].tolist()
        first_choice = table.packing.tolist().index(m)
        values = (
            -table.weakest[first_choice],
            -table.ring[first_choice],
            table.sockets[first_choice],
            table.damage[first_choice],
        )
        worth = [*table.costs[:, first_choice], *values]
        assert bound <= worth


def test_the_oracle_knows_slices() -> None:
    """A case counted by hand: two slices of 4 on one used GPU open nothing and lie on one GPU."""
    snapshot, request = cluster(": a[2, share, mem 16 16, left 8 16]"), gang("2 x 4 GiB")
    value_and_plan = naive.best_value_and_plan(snapshot, request)
    assert value_and_plan is not None
    value, best_plan = value_and_plan
    assert [member.gpus for member in best_plan.members] == [(0,), (0,)]
    assert (value.opened, value.shared, value.damage) == (0, 1, -(1000 * 8 // 48))


def test_slices_go_to_nodes_that_serve_them_by_their_name() -> None:
    drawn, by_resource = cluster(": a[2, share, mem 16 16] b[2, share, mem 16 16]"), gang("2 x 8 GiB")
    served = replace(drawn.nodes["b"].node, memory_resources=frozenset({"memory of g"}))
    snapshot = replace(drawn, nodes={**drawn.nodes, "b": replace(drawn.nodes["b"], node=served)})
    (role,) = by_resource.roles
    assert role.slice is not None
    by_claim = replace(role, slice=replace(role.slice, resource="memory of g"))
    for request, home, second_node in (
        (by_resource, "a", "b"),
        (replace(by_resource, roles=(by_claim,)), "b", "a"),
    ):
        plan = place(snapshot, request, Limits())
        assert isinstance(plan, Placed)
        assert {member.node for member in plan.members} == {home}
        assert not verify(snapshot, request, plan)
        moved = tuple(replace(member, node=second_node) for member in plan.members)
        (wrong, *_) = verify(snapshot, request, replace(plan, members=moved))
        assert wrong.startswith(f"node {second_node} does not admit role w: it does not offer")
