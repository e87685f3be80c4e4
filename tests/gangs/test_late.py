"""Bindings that were given up as late, and land all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from muster.gangs.messages.calls import BindingFate
from tests.gangs.world import World, bound, foreign, node, pod


@dataclass(frozen=True)
class Case:
    """What becomes of pods p0, p1, … of a permitted gang, in this order: "+p0" is bound, "-p0" dies, "!p0" is
    given back, and "late" is when those are given up that were not bound. Then nothing is free any more."""

    story: Sequence[str]
    evicted: Sequence[str] = ()
    of: int = 3


CASES = {
    "all were bound, one of them late": Case(("+p0", "+p1", "late", "-p0", "+p2")),
    "all were bound, two of them late": Case(("+p0", "late", "+p1", "-p0", "+p2")),
    "all were bound, the last one alone": Case(("+p0", "late", "-p0", "+p1"), of=2),
    "all were bound at one time": Case(("+p0", "late", "+p1", "+p2", "-p0")),
    "one was never bound": Case(("+p0", "late", "+p1", "-p0"), ("p1",)),
    "one went before it was bound": Case(("+p0", "late", "+p1", "-p2"), ("p0", "p1")),
    "one was given back, another landed late": Case(("+p0", "!p1", "late", "-p0", "+p2"), ("p2",)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_gang_is_partially_bound_if_one_member_was_never_bound(case: Case) -> None:
    world = World().start(node("a", gpus=case.of))
    world.see(*(pod(f"p{number}", of=case.of) for number in range(case.of)))
    assert world.reserve().claimed
    answer, order = world.permit(), [uid for _, uid in world.verdict().members]
    for step in case.story:
        uid = step[1:]
        match step[0]:
            case "+":
                world.see(bound(world.pods[uid], "a", answer.annotations[order.index(uid)]))
            case "-":
                world.see(replace(world.pods[uid], finished=True))
            case "!":
                world.unreserve(order.index(uid), BindingFate.REFUSED)
            case _:
                world.wait(21)
    world.see(foreign("f", "a"))
    world.wait(40)
    assert {uid for eviction in world.evictions for _, uid in eviction.pods} == set(case.evicted)
