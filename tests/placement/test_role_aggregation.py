"""Roles that ask for multiples of the smallest are placed as one: as well as by trying everything, and as by
the solver."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.decision import Placed
from muster.domain.node import Resources
from muster.domain.request import Member, Request, Role
from muster.domain.snapshot import Snapshot
from muster.placement.cluster.matching import GangCluster
from muster.placement.gang.instance import Instance, instance_of
from muster.placement.gpus.gpusets import GpuSet
from muster.placement.place import Limits, place
from muster.placement.search.plan import NodePlan
from muster.placement.search.roles import Aggregation, aggregate_roles
from tests.placement.brute_force import assert_as_good_as_trying_everything
from tests.placement.drawings import RESOURCE, cluster, gang
from tests.placement.test_one_role import assert_as_good_as_solved, leave_out_methods, racks_drawn
from tests.placement.test_properties import examples
from tests.placement.worlds import World, worlds

NODES = "rack r1: a[8, cpu 8] b[8, cpu 8, pool=p]\n rack r2: c[4, cpu 4]"

SIZES = {
    # a gang on these nodes: the sizes of its roles, None if the roles are not aggregated
    "pairs": ("4 x 1 GPU 1 cpu + 4 x 2 GPU 2 cpu", (1, 2)),
    "the largest first": ("1 x 8 GPU + 4 x 2 GPU + 4 x 4 GPU", (4, 1, 2)),
    "alike": ("4 x 2 GPU 1 cpu + 4 x 2 GPU 1 cpu", (1, 1)),
    "one role": ("4 x 1 GPU", None),
    "without GPUs": ("4 x 0 GPU 1 cpu + 4 x 0 GPU 2 cpu", None),
    "one with a loader": ("4 x 1 GPU + 4 x 0 GPU 1 cpu", None),
    "two beside a loader": ("4 x 1 GPU + 4 x 0 GPU 1 cpu + 4 x 2 GPU", (1, 0, 2)),
    "two beside another": ("4 x 1 GPU 1 cpu + 4 x 2 GPU 3 cpu + 4 x 4 GPU 4 cpu", (1, 0, 4)),
    "no multiple": ("4 x 2 GPU + 4 x 3 GPU", None),
    "multiples of the smallest, not of each other": ("4 x 1 GPU + 2 x 2 GPU + 2 x 3 GPU", None),
    "more cpu for a GPU": ("4 x 1 GPU 1 cpu + 4 x 2 GPU 3 cpu", None),
    "nodes that admit one of them": ("4 x 1 GPU + 4 x 2 GPU pool=p", None),
    "segments": ("4 x 1 GPU by 2 rack + 4 x 2 GPU", None),
    "a role in one rack": ("4 x 1 GPU + 2 x 2 GPU within rack", None),
    "a limit": ("4 x 1 GPU + 4 x 2 GPU, max rack=6", None),
    "terms": ("4 x 1 GPU + 4 x 2 GPU, terms numa:pack", None),
    "members that run": ("4 x 1 GPU + 4 x 2 GPU, running w-8@a/0", None),
}


def aggregation_of(snapshot: Snapshot, request: Request) -> tuple[Instance, Aggregation | None]:
    instance = instance_of(GangCluster(snapshot, request), {})
    alike = aggregate_roles(instance, instance.need)
    return instance, alike if isinstance(alike, Aggregation) else None


@pytest.mark.parametrize(("text", "sizes"), SIZES.values(), ids=SIZES.keys())
def test_sizes(text: str, sizes: tuple[int, ...] | None) -> None:
    _, alike = aggregation_of(cluster(NODES), gang(text))
    assert (alike and alike.sizes) == sizes


def test_nodes_that_run_out_of_pods_are_not_of_one_size() -> None:
    # Two pods of two GPUs fit on it, four of one do not.
    snapshot = cluster(": a[4]")
    state = snapshot.nodes["a"]
    few = replace(state.node, allocatable=replace(state.node.allocatable, pods=3))
    request = gang("2 x 1 GPU + 1 x 2 GPU")
    assert aggregation_of(snapshot, request)[1] is not None
    assert aggregation_of(Snapshot.of([few], []), request)[1] is None


@pytest.mark.parametrize("seed", range(100))
def test_members_are_dealt_out_wherever_they_fit(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choice([(1, 2), (2, 1), (1, 3), (1, 1), (4, 1, 2)])
    room = [rng.randint(1, 8) for _ in range(3)]
    packings = [
        [packing for packing in product(range(9), repeat=len(sizes)) if _size(packing, sizes) == units]
        for units in room
    ]
    fitting = {tuple(map(sum, zip(*plan, strict=True))) for plan in product(*packings)}
    every = product(range(sum(room) + 1), repeat=len(sizes))
    instance, _ = aggregation_of(cluster(NODES), gang(" + ".join(f"1 x {size} GPU" for size in sizes)))
    unit = sizes.index(1)
    nodes = [
        NodePlan(
            row, tuple(units if role == unit else 0 for role in range(len(sizes))), GpuSet(0, 0, 0, 0, 0, 0)
        )
        for row, units in enumerate(room)
    ]
    for need in (packing for packing in every if _size(packing, sizes) == sum(room)):
        dealt = Aggregation(need, sizes, unit).assign(instance, nodes)
        assert bool(dealt) == (need in fitting)
        if dealt:
            assert tuple(map(sum, zip(*(node.counts for node in dealt), strict=True))) == need
            assert [_size(node.counts, sizes) for node in dealt] == room


def _size(packing: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    return sum(count * size for count, size in zip(packing, sizes, strict=True))


def test_each_role_lies_together() -> None:
    racks = "\n".join(f"rack r{i}: a{i}[8] b{i}[8]" for i in range(4))
    decision = place(cluster(racks), gang("32 x 1 GPU + 16 x 2 GPU"))
    assert isinstance(decision, Placed)
    racks_by_role = {role: {m.node[1:] for m in decision.members if m.role == role} for role in "wx"}
    assert not racks_by_role["w"] & racks_by_role["x"]


@st.composite
def gangs_of_several_sizes(draw: st.DrawFn) -> World:
    """Gangs whose members ask for multiples of each other, some with a loader as well."""
    snapshot, request = draw(st.one_of(worlds(), worlds("levels", "ranks"), worlds("typical")))
    cpu = draw(st.sampled_from([0, 500, 1000]))
    first, *other_roles = request.roles
    more = replace(first, name="y", members=tuple(replace(m, uid=f"y{m.uid}") for m in first.members))
    gpus = draw(st.sampled_from([(1, 2), (2, 1), (1, 1), (2, 2), (1, 3), (1, 4)]))
    roles = tuple(
        replace(role, gpus=size, gpu_resource=RESOURCE, resources=Resources(cpu * size))
        for role, size in zip((first, *(other_roles or [more])), gpus, strict=True)
    )
    if draw(st.booleans()):
        roles = (*roles, Role("z", (Member("z0", "z-0"),), Resources(1000)))
    size = sum(len(role.members) for role in roles)
    return World(snapshot, replace(request, roles=roles, min_member=min(request.min_member, size)))


@pytest.mark.brute_force
@examples(300)
@given(gangs_of_several_sizes())
def test_as_good_as_trying_everything(world: World) -> None:
    assert_as_good_as_trying_everything(*world)


def draw_gang(rng: random.Random) -> tuple[Snapshot, Request]:
    """Racks of a few nodes, and a gang of several sizes that fills a good part of them."""
    text, free = racks_drawn(rng, fewest=2, cpu=6)
    sizes = rng.choice([(1, 2), (2, 4), (1, 1), (4, 1), (1, 2, 4)])
    parts = [rng.random() for _ in sizes]
    units = rng.uniform(0.2, 0.6) * free / sum(parts)
    roles = [
        f"{max(1, int(part * units / size))} x {size} GPU {size} cpu"
        for part, size in zip(parts, sizes, strict=True)
    ]
    roles += [f"{rng.randint(1, 4)} x 0 GPU 2 cpu"] * rng.choice((0, 0, 1))
    return cluster(text), gang(" + ".join(roles))


@pytest.mark.slow
def test_as_one_role_they_are_placed_as_well_as_by_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, dealt, decisions = random.Random(7), list[bool](), []
    whole = Aggregation.assign

    def note_result(*args: object) -> object:
        nodes = whole(*args)  # type: ignore[arg-type]  # passed on as it comes
        dealt.append(bool(nodes))
        return nodes

    monkeypatch.setattr(Aggregation, "assign", note_result)
    for _ in range(60):
        snapshot, request = draw_gang(rng)
        decisions.append((snapshot, request, place(snapshot, request, Limits(deterministic_time=60))))
    assert sum(dealt) > len(dealt) // 2
    assert not all(dealt)
    leave_out_methods(monkeypatch, "role-aggregation")
    for snapshot, request, decision in decisions:
        assert_as_good_as_solved(snapshot, request, decision)
