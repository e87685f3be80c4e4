"""The pure parts of `make headofline`: times, pairs, and which pods there are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.headofline import pods, report, stats
from benchmarks.headofline.stats import ALONE, Gang, Trial

GANGS = [Gang(10.0, ("a0", "a1")), Gang(20.0, ("b0", "b1"))]


def test_a_gang_is_on_its_way_until_its_last_pod_is_bound() -> None:
    at = {"a0": 11.0, "a1": 12.5, "b1": 20.5, "b0": 20.25}
    assert stats.waited(GANGS, at, until=99.0) == ([2.5, 0.5], 0)


@pytest.mark.parametrize("at", [{}, {"b0": 21.0}], ids=["none bound", "one bound"])
def test_a_gang_that_was_not_bound_counts_with_all_that_it_was_waited_for(at: dict[str, float]) -> None:
    seconds, unbound = stats.waited(GANGS, {"a0": 11.0, "a1": 11.0, **at}, until=80.0)
    assert (seconds, unbound) == ([1.0, 60.0], 1)


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (9, 9), (10, 9), (11, 10), (40, 36)])
def test_p90_is_the_nearest_rank(n: int, rank: int) -> None:
    assert stats.p90([float(value) for value in range(n, 0, -1)]) == rank


def test_nothing_has_no_p90() -> None:
    with pytest.raises(ValueError, match="no values"):
        stats.p90([])


@given(st.integers(1, 9), st.permutations(["hangs", "slow", "flood"]))
def test_each_trial_with_a_case_has_a_baseline_beside_it(pairs: int, cases: list[str]) -> None:
    order = stats.order(cases, pairs)
    for first, second in zip(order[::2], order[1::2], strict=True):
        assert first[:2] == second[:2]
        assert {first[2], second[2]} == {ALONE, first[0]}
    firsts = Counter(kind for _, _, kind in order[::2])
    assert len(cases) * (pairs // 2) <= firsts[ALONE] <= len(cases) * (pairs // 2 + 1)


def trial(kind: str, pair: int, *seconds: float, unbound: int = 0) -> Trial:
    return Trial("slow", kind, pair, seconds, unbound)


def test_ratios_are_of_pairs() -> None:
    trials = [
        *(trial(ALONE, 0, 1, 1, 1), trial("slow", 0, 2, 2, 4)),
        *(trial("slow", 1, 90, 90, 90, unbound=1), trial(ALONE, 1, 30, 30, 30)),
        *(trial(ALONE, 2, 1, 1, 1), trial("slow", 2, 5, 5, 5)),
    ]
    (row,) = stats.rows(trials)
    assert (row.case, row.pairs, row.unbound) == ("slow", 3, 1)
    assert row.ratios == (3, 4)
    assert (row.alone, row.beside) == ((1, 30), (5, 90))


def test_a_trial_without_its_baseline_is_left_out() -> None:
    assert stats.rows([trial("slow", 0, 1.0)]) == []
    (row,) = stats.rows([trial("slow", 0, 9.0), trial(ALONE, 1, 1.0), trial("slow", 1, 2.0)])
    assert (row.pairs, row.ratios) == (1, (2, 2))


def test_a_row_says_times_in_ms_and_ratios() -> None:
    beside = replace(trial("slow", 0, 0.25), ready=[0.001, 0.04])
    (row,) = stats.rows([replace(trial(ALONE, 0, 0.1), ready=[0.001]), beside])
    table = report.table([row])
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells == ["slow", "1", "100", "100", "250", "250", "2.50", "2.50", "0", "1", "40"]


def test_pods_that_cannot_fit_ask_for_more_than_a_node_has_left() -> None:
    assert pods.gpus(pods.never("x")[0]) > pods.NODE_GPUS
    (filler,) = [pods.filler("gpu-0001")]
    assert pods.gpus(filler) + pods.gpus(pods.unlike("x", 1)[0]) > pods.NODE_GPUS


def test_unlike_gangs_and_the_members_of_a_slow_one_all_ask_for_something_else() -> None:
    unlike = [pods.unlike(f"u{index}", index)[0] for index in range(200)]
    for bodies in (unlike, pods.slow("s")):
        cpus = {body["spec"]["containers"][0]["resources"]["requests"]["cpu"] for body in bodies}
        assert len(cpus) == len(bodies)


def test_one_member_of_the_hanging_gang_has_the_claim() -> None:
    claims = [body["spec"].get("volumes") for body in pods.hanging("hangs")]
    assert [bool(volumes) for volumes in claims] == [True, False, False, False]
