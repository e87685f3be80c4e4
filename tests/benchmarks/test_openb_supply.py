"""How many free GPUs a kind of request could use: by hand, and what holds for any state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    # request, millicores, free per GPU, roomy, usable
    (WHOLE, 40_000, [1000] * 4, 4000, 4000),
    (WHOLE, 25_000, [1000] * 4, 4000, 2500),
    (WHOLE, 9_999, [1000] * 4, 0, 0),
    (WHOLE, 40_000, [1000, 999], 1000, 1000),
    (PAIR, 40_000, [1000] * 3, 3000, 3000),
    (PAIR, 40_000, [1000], 0, 0),
    (PAIR, 30_000, [1000] * 4, 4000, 3000),
    (EIGHT, 80_000, [1000] * 8, 8000, 8000),
    (EIGHT, 79_999, [1000] * 8, 0, 0),
    (EIGHT, 80_000, [1000] * 7, 0, 0),
    (HALF, 8_000, [1000, 700, 300], 1700, 1700),
    (HALF, 6_000, [1000, 700, 300], 1700, 1275),
]


@pytest.mark.parametrize(("request_", "cpu", "free", "roomy", "usable"), CASES)
def test_by_hand(request_: Request, cpu: int, free: list[int], roomy: float, usable: float) -> None:
    mix = Mix.of({request_: 1.0}, MODELS)
    assert mix.roomy(states(cpu, free))[0, 0] == pytest.approx(roomy)
    assert mix.usable(states(cpu, free))[0, 0] == pytest.approx(usable)


def test_kinds_that_differ_in_models_share_a_size_and_weigh_where_they_are_accepted() -> None:
    mix = Mix.of({HALF: 0.6, T4: 0.4}, MODELS)
    assert mix.usable(states(8_000, [1000])).tolist() == [[1000]]
    assert mix.weights(mix.share).tolist() == [[0.6], [1.0]]


def test_supply_is_what_all_nodes_have_for_a_kind() -> None:
    both = States(np.array([8_000, 2_000]), np.array([[0] * 7 + [1000], [0] * 7 + [800]]), np.array([0, 1]))
    enough = States(np.array([8_000, 8_000]), both.free, both.model)
    mix = Mix.of({HALF: 0.6, T4: 0.4}, MODELS)
    assert mix.supply(both).tolist() == [1000, 0], "the T4 has too little cpu"
    assert mix.supply(enough).tolist() == [1800, 800]


KINDS = dict.fromkeys((WHOLE, PAIR, EIGHT, HALF), 0.25)


@given(
    st.integers(0, 128_000),
    st.lists(st.integers(0, 10).map(lambda tenths: 100 * tenths), min_size=1, max_size=8),
    st.data(),
)
def test_never_more_than_is_free_and_not_more_with_less_cpu(
    cpu: int, free: list[int], data: st.DataObject
) -> None:
    mix = Mix.of(KINDS, MODELS)
    roomy, usable = mix.roomy(states(cpu, free)), mix.usable(states(cpu, free))
    assert (usable <= roomy + 1e-9).all()
    assert (roomy <= sum(free)).all()
    less_cpu = data.draw(st.integers(0, cpu))
    assert (mix.usable(states(less_cpu, free)) <= usable + 1e-9).all()
