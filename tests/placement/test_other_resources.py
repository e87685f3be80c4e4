"""Resources besides GPUs, cpu, memory and pods: extended ones, hugepages, ephemeral-storage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.causes.too_little import (
    ClusterTooSmall,
    FreeInPieces,
    MemberTooLarge,
    NotEnoughFree,
    ResourceNotOffered,
)
from muster.domain.decision import Placed, Unplaceable
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import Request, Role
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.placement.place import Limits, place
from muster.placement.verify import verify
from tests.placement.drawings import cluster, gang
from tests.placement.test_properties import examples
from tests.placement.worlds import World, worlds

CARD = "example.com/card"
LOTS = 10**9


def with_cards(world: World, cpu_milli: int | None) -> World:
    """Return the world with as many cards as cpu, offered and asked for; and with this much cpu, if given."""

    def node(name: str) -> Node:
        old = world.snapshot.nodes[name]
        cards = ((CARD, old.free.cpu_milli),) if old.free.cpu_milli > 0 else ()
        return replace(old.node, allocatable=replace(old.node.allocatable, others=cards))

    def role(old: Role) -> Role:
        cards = ((CARD, old.resources.cpu_milli),) if old.resources.cpu_milli else ()
        return replace(old, resources=replace(old.resources, others=cards))

    states = {
        name: replace(
            state,
            node=node(name),
            free=replace(
                state.free,
                others=node(name).allocatable.others,
                cpu_milli=state.free.cpu_milli if cpu_milli is None else cpu_milli,
            ),
        )
        for name, state in world.snapshot.nodes.items()
    }
    request = replace(world.request, roles=tuple(map(role, world.request.roles)))
    return World(replace(world.snapshot, nodes=states), request)


@pytest.mark.brute_force
@given(worlds())
@examples(150)
def test_a_resource_that_is_short_where_cpu_is_short_changes_nothing(world: World) -> None:
    limits = Limits(deterministic_time=60)
    plain, doubled = place(*world, limits), place(*with_cards(world, None), limits)
    assert isinstance(plain, Placed) == isinstance(doubled, Placed)
    if isinstance(plain, Placed) and isinstance(doubled, Placed):
        assert doubled.members == plain.members
        assert doubled.objective == plain.objective


@pytest.mark.brute_force
@given(worlds())
@examples(150)
def test_a_resource_binds_as_cpu_does(world: World) -> None:
    """With enough cpu for all, the cards alone decide which members fit."""
    if world.request.running:
        return  # what they take of cpu is taken in the snapshot
    limits = Limits(deterministic_time=60)
    changed = with_cards(world, LOTS)
    by_cpu, by_cards = place(*world, limits), place(*changed, limits)
    assert isinstance(by_cpu, Placed) == isinstance(by_cards, Placed)
    if isinstance(by_cpu, Placed) and isinstance(by_cards, Placed):
        assert len(by_cards.members) == len(by_cpu.members)
        assert verify(*changed, by_cards) == ()


def cards(snapshot: Snapshot, offered: dict[str, int], taken_cards: dict[str, int]) -> Snapshot:
    """Return the snapshot with nodes that offer cards, some of them taken."""
    nodes = [
        replace(
            state.node,
            allocatable=replace(
                state.node.allocatable, others=((CARD, offered[name]),) if name in offered else ()
            ),
        )
        for name, state in snapshot.nodes.items()
    ]
    usages = [
        Usage(f"other-{name}", name, Resources(pods=1, others=((CARD, count),)))
        for name, count in taken_cards.items()
    ]
    return Snapshot.of(nodes, usages)


def gang_with_cards(request: Request, count: int) -> Request:
    roles = tuple(
        replace(role, resources=replace(role.resources, others=((CARD, count),))) for role in request.roles
    )
    return replace(request, roles=roles)


REFUSALS = {
    "no node offers it": (2, {}, {}, ResourceNotOffered),
    "more than any node has": (3, {"a": 2, "b": 2}, {}, MemberTooLarge),
    "more than all nodes have": (2, {"a": 2}, {}, ClusterTooSmall),
    "taken by others": (2, {"a": 2, "b": 2}, {"a": 2}, NotEnoughFree),
    "free in pieces": (2, {"a": 3, "b": 3}, {"a": 2}, (FreeInPieces, NotEnoughFree)),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_names_the_resource(case: tuple[int, dict[str, int], dict[str, int], type]) -> None:
    count, offered, taken_cards, kind = case
    snapshot = cards(cluster(": a[4] b[4]"), offered, taken_cards)
    decision = place(snapshot, gang_with_cards(gang("2 x 1 GPU"), count))
    assert isinstance(decision, Unplaceable)
    assert isinstance(decision.causes[0], kind), decision.causes
    assert CARD in sentence(decision)


@given(st.integers(1, 4), st.integers(1, 4))
@examples(16)
def test_members_go_where_there_are_enough(on_a: int, on_b: int) -> None:
    snapshot = cards(cluster(": a[4] b[4]"), {"a": on_a, "b": on_b}, {})
    decision = place(snapshot, gang_with_cards(gang("2 x 1 GPU"), 2))
    fits = on_a // 2 + on_b // 2 >= 2
    assert isinstance(decision, Placed) == fits
