"""One role over several racks: the tables find what the solver proves best."""

from __future__ import annotations

import random
from itertools import product
from types import ModuleType

import numpy as np
import pytest

from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.place import Limits, place
from muster.placement.search import finish, manyracks, onerack
from muster.placement.search.onerack import NEVER
from muster.placement.search.rackchoice import RackChoice
from tests.placement import naive
from tests.placement.drawings import cluster, gang

BOARDS = ("8", "8 = 4+4", "8 pcie", "v100-8x-hybrid-cube-mesh")
RUNS = 60


def drawn(rng: random.Random) -> tuple[Snapshot, Request]:
    """Racks of a few nodes, on one kind of board or on several, and a gang that no rack holds."""
    boards = rng.choice([BOARDS[:1], BOARDS[1:2], BOARDS])
    lines, free = [], 0
    for rack in range(rng.randint(3, 6)):
        nodes = []
        for node in range(rng.randint(2, 5)):
            bits = "".join(rng.choice("01") for _ in range(8))
            free += bits.count("1")
            nodes.append(f"n{rack}{node}[{rng.choice(boards)}, free {bits}, cpu {rng.randint(8, 16)}]")
        lines.append(f"rack r{rack}: {'  '.join(nodes)}")
    gpus = rng.choice((1, 1, 2))
    members = rng.randint(free // 5, free // 2) // gpus
    return cluster("\n".join(lines)), gang(f"{members} x {gpus} GPU 1 cpu")


@pytest.fixture
def tabled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each region that was finished, whether the tables did it."""
    found: list[bool] = []

    def noted(*args: object) -> object:
        plan = manyracks.in_many_racks(*args)  # type: ignore[arg-type]  # passed on as it comes
        found.append(plan is not None)
        return plan

    monkeypatch.setattr(finish, "in_many_racks", noted)
    return found


def test_the_tables_are_as_good_as_the_solver(tabled: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    rng, worlds = random.Random(4), []
    for _ in range(RUNS):
        snapshot, request = drawn(rng)
        decision = place(snapshot, request, Limits(deterministic_time=60))
        worlds.append((snapshot, request, decision))
    assert sum(tabled) > RUNS // 2
    monkeypatch.setattr(finish, "in_many_racks", lambda *_: None)
    for snapshot, request, decision in worlds:
        solved = place(snapshot, request, Limits(deterministic_time=60))
        assert isinstance(decision, Placed) == isinstance(solved, Placed)
        if isinstance(decision, Placed) and isinstance(solved, Placed):
            assert decision.optimal
            assert solved.optimal
            assert decision.objective == solved.objective
            assert naive.worth(snapshot, request, decision.members) == naive.worth(
                snapshot, request, solved.members
            )


@pytest.mark.parametrize("table", [onerack, manyracks], ids=["nodes of a rack", "racks"])
def test_what_is_too_large_is_left_to_the_solver(
    table: ModuleType, tabled: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, request = drawn(random.Random(1))
    best = place(snapshot, request)
    assert any(tabled)
    tabled.clear()
    monkeypatch.setattr(table, "MAX_STEPS", 0)
    solved = place(snapshot, request)
    assert tabled
    assert not any(tabled)
    assert isinstance(best, Placed)
    assert isinstance(solved, Placed)
    assert best.objective == solved.objective


@pytest.mark.parametrize("seed", range(200))
def test_racks_are_chosen_as_by_trying_everything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cost = rng.integers(0, 30, (5, 5))
    cost[rng.random(cost.shape) < 0.4] = NEVER
    cost[:, 0] = NEVER
    choice = RackChoice(cost, rng.random(5) < 0.3, int(rng.integers(1, 5)), int(rng.integers(1, 14)))
    worth = {
        members: int(sum(cost[rack, m] for rack, m in enumerate(members) if m))
        for members in product(range(5), repeat=5)
        if sum(members) == choice.need
        and sum(m > 0 for m in members) == choice.limit
        and all(m or not always for m, always in zip(members, choice.always, strict=True))
        and all(not m or cost[rack, m] < NEVER for rack, m in enumerate(members))
    }
    best = choice.best()
    if best is None:
        assert not worth
    else:
        assert worth[tuple(best.tolist())] == min(worth.values())
