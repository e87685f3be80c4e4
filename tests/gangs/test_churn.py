"""Memory is what it was, however many pods, PodGroups and nodes have come and gone: `make churn` in short."""

from __future__ import annotations

import pytest

from muster.gangs.pending.scheduling_queue import Queue
from tests.gangs.churn import SLACK, churned
from tests.gangs.reachable import sizes

ROUNDS = 2 * SLACK


@pytest.mark.slow
async def test_nothing_grows() -> None:
    outcome = await churned(ROUNDS)
    assert not outcome.grown
    assert outcome.pods > 9 * ROUNDS


@pytest.mark.slow
async def test_a_leak_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "forget", Queue.drop)
    outcome = await churned(ROUNDS)
    assert outcome.grown
    assert all("_last_turn" in path for path in outcome.grown)


def test_all_containers_are_counted_once() -> None:
    shared = [1, 2, 3]
    size_of = sizes({"a": shared, "b": {"c": (shared, {4})}})
    assert size_of == {"dict": 2, "dict[]": 3 + 1, "dict[][]": 2, "dict[][][]": 1}
