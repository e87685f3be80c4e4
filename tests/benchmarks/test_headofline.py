"""The pure parts of `make headofline`: times, pairs, and which pods there are."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.headofline import __main__ as command
from benchmarks.headofline import hostile, pods, report, stats
from benchmarks.headofline.cases import Sizes, cases
from benchmarks.headofline.changing import NothingAcceptedError, changing
from benchmarks.headofline.stats import ALONE, Changes, Gang, Inputs, Trial
from e2e.fuzz import largest
from local_cluster.api import Answer, Api
from muster.dialects.devices.published import MAX_DEVICES
from muster.dialects.nodes import bounds
from muster.domain.allocation import MAX_GPUS

DOCUMENT = Path(__file__).parents[2] / "docs" / "measurements-appendix.md"

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


def test_each_case_is_in_the_table_in_the_help_and_in_the_document() -> None:
    unused: Any = None
    assert {*cases(unused, unused, Sizes(1, 1, 1.0))} == {*command.CASES}
    helped = {line.split()[0] for line in (command.main.__doc__ or "").splitlines() if line.strip()}
    assert {*command.CASES} <= helped
    text = DOCUMENT.read_text()
    assert [case for case in command.CASES if f"| `{case}` |" not in text] == []


class Answering:
    """Answers changes with one status after another, and with the last one from then on."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = [*statuses]
        self.ended = Event()

    def send(self, *_: object, **__: object) -> Answer:
        """Return the next answer."""
        if len(self._statuses) == 1:
            self.ended.set()
            return Answer(self._statuses[0], b"12345")
        return Answer(self._statuses.pop(0), b"12345")


def changed(answering: Answering) -> Changes:
    """Return what was counted until its last status was answered."""
    with changing(cast("Api", answering), lambda _: ("/path", {}), 1_000.0) as changes:
        answering.ended.wait()
    return changes


def test_changes_are_counted() -> None:
    changes = changed(Answering(200, 409, 200))
    assert changes.accepted >= 2
    assert (changes.refused, changes.largest, changes.refusal) == (1, 5, "12345")


def test_a_case_shows_nothing_if_all_of_its_changes_are_refused() -> None:
    with pytest.raises(NothingAcceptedError, match="took none: 12345"):
        changed(Answering(403))


def test_a_line_says_how_many_changes_were_accepted() -> None:
    with_changes = replace(trial("slow", 0, 0.25), inputs=Inputs(9, 0.001), changes=Changes(8, 1, 1_500_000))
    assert report.line(with_changes) == (
        "slow, slow: p50 250 ms, p90 250, not bound 0, 9 inputs that waited 1.0 ms, "
        "8 changes of up to 1500 kB accepted, 1 refused"
    )


def test_one_matrix_is_as_large_as_is_read_and_one_as_an_annotation_may_be() -> None:
    read, next_size = (len(largest.matrix(hostile.MATRIX_GPUS + more, "NV1")) for more in (0, 1))
    assert read <= bounds.MAX_TEXT < next_size
    of_all = len(largest.matrix(hostile.LARGEST_MATRIX, "NV1"))
    assert 0.9 * largest.OF_ANNOTATIONS < of_all < largest.OF_ANNOTATIONS


def test_the_slices_that_are_read_have_as_many_devices_as_are_read() -> None:
    assert hostile.READ_SLICES * hostile.DEVICES == MAX_DEVICES
    assert hostile.DEVICES >= MAX_GPUS


def test_a_large_node_is_large_in_each_field() -> None:
    node = largest.node({"metadata": {"name": "n"}})
    assert 0.9 * largest.OF_A_NODE < len(json.dumps(node)) < 1.1 * largest.OF_A_NODE
    assert len(node["metadata"]["labels"]) > bounds.MAX_LABELS // 2
    assert len(node["spec"]["taints"]) > bounds.MAX_TAINTS
    assert len(node["status"]["allocatable"]) > bounds.MAX_RESOURCES


def test_the_changes_of_a_large_node_are_read() -> None:
    """It has more resources than are read, which are the first by name."""
    node = largest.node({"metadata": {"name": "n"}})
    assert min(node["metadata"]["labels"]) > "a"
    assert min(node["status"]["allocatable"]) > "a.a/a"
