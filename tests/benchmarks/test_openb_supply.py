"""How many free GPUs a kind of request could use, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.openb.cluster import States
from benchmarks.openb.supply import Mix
from benchmarks.openb.trace import Request

MODELS = ("G2", "T4")

WHOLE, PAIR, EIGHT = (Request(10_000 * gpus, 0, gpus, 1000) for gpus in (1, 2, 8))
HALF = Request(4_000, 0, 1, 500)
T4 = Request(4_000, 0, 1, 500, ("T4",))


def states(cpu: int, free: list[int]) -> States:
    return States(np.array([cpu]), np.array([[0] * (8 - len(free)) + sorted(free)]), np.array([0]))


CASES = [
    # request, millicores, free per GPU, roomy
    (WHOLE, 40_000, [1000] * 4, 4000),
    (WHOLE, 10_000, [1000] * 4, 4000),
    (WHOLE, 9_999, [1000] * 4, 0),
    (WHOLE, 40_000, [1000, 999], 1000),
    (PAIR, 40_000, [1000] * 3, 3000),
    (PAIR, 40_000, [1000], 0),
    (EIGHT, 80_000, [1000] * 8, 8000),
    (EIGHT, 79_999, [1000] * 8, 0),
    (EIGHT, 80_000, [1000] * 7, 0),
    (HALF, 8_000, [1000, 700, 300], 1700),
]


@pytest.mark.parametrize(("request_", "cpu", "free", "roomy"), CASES)
def test_by_hand(request_: Request, cpu: int, free: list[int], roomy: float) -> None:
    mix = Mix.of({request_: 1.0}, MODELS)
    assert mix.roomy(states(cpu, free)).tolist() == [[roomy]]


def test_kinds_that_differ_in_models_share_a_size_and_weigh_where_they_are_accepted() -> None:
    mix = Mix.of({HALF: 0.6, T4: 0.4}, MODELS)
    assert mix.roomy(states(8_000, [1000])).tolist() == [[1000]]
    assert mix.weights(mix.share).tolist() == [[0.6], [1.0]]
