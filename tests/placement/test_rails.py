"""Network rails: the GPUs of a gang on several nodes lie on as few as the levels above allow."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from muster.domain.decision import Placed
from muster.domain.snapshot import Snapshot
from muster.placement.place import Limits, place
from muster.placement.search import rails
from tests.placement.drawings import cluster, gang

RACKS = """
    rack r1: a[8, free 1110 0000] b[8, free 0011 1000]
    rack r2: c[8, free 0110 1000] d[8, free 0110 0011]
"""

# the cluster, the rails of its nodes if these are published, the gang; how many rails, and the GPUs by node
CASES: dict[str, tuple[str, dict[str, tuple[int, ...]], str, int | None, dict[str, str]]] = {
    "the same indices on boards of eight": (
        ": a[8, free 0110 0000] b[8, free 1110 0000]",
        {},
        "4 x 1 GPU",
        2,
        {"a": "12", "b": "12"},
    ),
    "members that take whole nodes": (": a[8] b[8]", {}, "2 x 8 GPU", 8, {"a": "01234567", "b": "01234567"}),
    "a gang on one node": (": a[8] b[8]", {}, "4 x 1 GPU", None, {"a": "0123"}),
    "nodes without rails": (
        ": a[4, free 0110] b[4, free 1100]",
        {},
        "4 x 1 GPU",
        None,
        {"a": "12", "b": "01"},
    ),
    "network cards in another order": (
        ": a[4, free 1100] b[4, free 0111]",
        {"a": (3, 2, 1, 0), "b": (0, 1, 2, 3)},
        "4 x 1 GPU",
        2,
        {"a": "01", "b": "23"},
    ),
    "two GPUs on one card": (
        ": a[4, free 1110] b[4, free 0111]",
        {"a": (0, 1, 1, 2), "b": (0, 0, 1, 1)},
        "4 x 1 GPU, max node=2",
        1,
        {"a": "12", "b": "23"},
    ),
    "unknown is not better than known": (
        ": a[8, free 1000 0000] b[8, free 1000 0000] c[4, free 1000] d[4, free 0100]",
        {},
        "2 x 1 GPU",
        1,
        {"a": "0", "b": "0"},
    ),
    "members without GPUs on other nodes": (
        ": a[8, free 0110 0000, cpu 4] b[8, free 1110 0000, cpu 4] c[0, cpu 8]",
        {},
        "4 x 1 GPU 2 cpu + 2 x 0 GPU 1 cpu",
        2,
        {"a": "12", "b": "12", "c": ""},
    ),
    "links inside the nodes come first": (
        ": a[8 = 4+4, free 1100 1000] b[8 = 4+4, free 0100 1100]",
        {},
        "4 x 1 GPU",
        4,
        {"a": "01", "b": "45"},
    ),
    "rails are not known beside GPUs of unknown index": (
        ": a[2 = 1+1] b[4, unindexed 1, cpu 2]",
        {"a": (0, 1), "b": (0, 0, 0, 0)},
        "3 x 1 GPU 1 cpu, running w-8@b",
        3,
        {"a": "0", "b": "01"},
    ),
    "the rack with the fewest rails": (
        RACKS,
        {},
        "4 x 1 GPU, scope rack, max node=2",
        2,
        {"c": "12", "d": "12"},
    ),
    "with those of running members": (
        ": a[8, free 1101 1111] b[8, free 1011 1111]",
        {},
        "1 x 1 GPU, max node=1, running w-8@a/2",
        1,
        {"b": "2"},
    ),
}


def with_rails(snapshot: Snapshot, published: dict[str, tuple[int, ...]]) -> Snapshot:
    """The cluster where these nodes say on which rails their GPUs lie."""
    states = dict(snapshot.nodes)
    for name, of_node in published.items():
        node = states[name].node
        states[name] = replace(
            states[name], node=replace(node, topology=replace(node.topology, rails=of_node))
        )
    return replace(snapshot, nodes=states)


def by_node(decision: Placed) -> dict[str, str]:
    gpus: dict[str, list[int]] = {}
    for member in decision.members:
        gpus.setdefault(member.node, []).extend(member.gpus)
    return {node: "".join(map(str, sorted(indices))) for node, indices in gpus.items()}


@pytest.mark.parametrize(("nodes", "published", "asked", "number", "gpus"), CASES.values(), ids=CASES)
def test_rails(
    nodes: str, published: dict[str, tuple[int, ...]], asked: str, number: int | None, gpus: dict[str, str]
) -> None:
    decision = place(with_rails(cluster(nodes), published), gang(asked))
    assert isinstance(decision, Placed)
    assert (decision.objective.rails, by_node(decision), decision.optimal) == (number, gpus, True)
    assert ("rails" in {step.level for step in decision.steps}) == (number is not None)


def test_what_the_time_leaves_open_is_not_proven() -> None:
    limits = Limits(deterministic_time=0.0)
    decision = place(cluster(": a[8, free 0110 0000] b[8, free 1110 0000]"), gang("4 x 1 GPU"), limits)
    assert isinstance(decision, Placed)
    assert (decision.objective.rails, decision.unproven, decision.truncated) == (3, "rails", False)


@pytest.mark.parametrize("seconds", [0.0, 9.0], ids=["before the first search", "in time"])
def test_when_time_ends_the_plan_so_far_counts(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    seconds_left, room_of = [9.0], rails._Room.of

    def room_when_time_ends(*args: Any) -> Any:
        seconds_left[0] = seconds
        return room_of(*args)

    monkeypatch.setattr(rails._Room, "of", room_when_time_ends)
    limits = Limits(seconds_left=lambda: seconds_left[0])
    decision = place(cluster(RACKS), gang("4 x 1 GPU, scope rack, max node=2"), limits)
    assert isinstance(decision, Placed)
    assert (decision.truncated, decision.unproven) == ((False, None) if seconds else (True, "rails"))


@pytest.mark.parametrize("number", range(8))
def test_sums_leave_out_no_set_that_holds_the_gang(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    drawn = random.Random(number)
    racks = "\n".join(
        f"rack r{rack}: " + " ".join(f"n{rack}{node}[{_board(drawn)}]" for node in range(3))
        for rack in range(2)
    )
    roles = " + ".join(f"{drawn.randint(2, 6)} x {size} GPU" for size in drawn.choice(((1,), (2,), (1, 3))))
    asked, limits = gang(f"{roles}{drawn.choice((', scope rack', ''))}"), Limits(deterministic_time=100.0)
    by_sums = place(cluster(racks), asked, limits)
    monkeypatch.setattr(rails._Room, "holds", _holds_all)
    by_searches = place(cluster(racks), asked, limits)
    assert type(by_sums) is type(by_searches)
    if isinstance(by_sums, Placed) and isinstance(by_searches, Placed):
        assert (by_sums.objective, by_sums.optimal) == (by_searches.objective, True)


def _holds_all(room: Any, sets: Any) -> Any:
    return np.ones((len(sets), int(room.home.max()) + 1), bool)


def _board(drawn: random.Random) -> str:
    """A board of eight with some of its GPUs free."""
    free = "".join(drawn.choices("01", (1, 2), k=8))
    return f"8{drawn.choice((' = 4+4', ' pcie', '', ''))}, free {free[:4]} {free[4:]}"


ODD = {
    "nodes of 62 GPUs": (": a[62] b[62]", {}, "4 x 31 GPU"),
    "beside nodes of 62 GPUs": (
        f": a[62, free {'0' * 60}11] b[8, free 0110 0000] c[8, free 1110 0000]",
        {},
        "6 x 1 GPU, max node=2",
    ),
    "all on one rail": (": a[4, free 1110] b[4]", {"a": (0,) * 4, "b": (0,) * 4}, "5 x 1 GPU"),
    "each on its own rail": (": a[4, free 1110] b[4]", {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7)}, "5 x 1 GPU"),
    "huge numbers": (
        ": a[4, free 1110] b[4]",
        {"a": (2**70, 1, 2, 3), "b": (2**80, 1, 2, 2**63)},
        "5 x 1 GPU",
    ),
}


@pytest.mark.parametrize(("nodes", "published", "asked"), ODD.values(), ids=ODD)
def test_odd_rails(nodes: str, published: dict[str, tuple[int, ...]], asked: str) -> None:
    decision = place(with_rails(cluster(nodes), published), gang(asked))
    assert isinstance(decision, Placed)
    assert decision.optimal
