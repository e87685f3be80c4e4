"""Pairs of the code before and now: which instances are compared, and what counts as worse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import StringIO

import pytest
from rich.console import Console

from benchmarks import pairs
from benchmarks.pairs import Decided, Key

KEY: Key = ("64 × 8 50%", "rack16", 1, 0)
BEST_PLAN = (1, 2, 5)


def record(**more: object) -> str:
    facts = {"kind": "instance", "site": KEY[0], "case": KEY[1], "seed": 1, "warm": True, "ms": 2.0}
    plan = {"plan": dict(zip(("zones", "racks", "nodes"), BEST_PLAN, strict=True)), "optimal": True}
    return json.dumps(facts | plan | {"undecided": False} | more)


def test_warm_instances_are_numbered_by_cell_and_seed() -> None:
    lines = [record(kind="cell"), record(warm=False), record(), record(ms=3.0), record(seed=2)]
    assert pairs.warm_instances(lines) == {
        KEY: Decided(2.0, BEST_PLAN, proven=True),
        (*KEY[:3], 1): Decided(3.0, BEST_PLAN, proven=True),
        (*KEY[:2], 2, 0): Decided(2.0, BEST_PLAN, proven=True),
    }


@pytest.mark.parametrize(("undecided", "proven"), [(False, True), (True, False)])
def test_a_refusal_is_proven_unless_it_is_undecided(undecided: bool, proven: bool) -> None:
    line = record(plan=None, optimal=False, undecided=undecided)
    assert pairs.warm_instances([line]) == {KEY: Decided(2.0, None, proven)}


def test_an_instance_counts_with_its_least_time_of_all_rounds() -> None:
    rounds = [{KEY: Decided(ms, BEST_PLAN, proven=True)} for ms in (3.0, 1.0, 2.0)]
    assert pairs.least(rounds)[KEY].ms == 1.0


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (Decided(1, BEST_PLAN, proven=True), Decided(1, BEST_PLAN, proven=True), (0, 0, 0)),
        (Decided(1, BEST_PLAN, proven=True), Decided(1, (1, 2, 4), proven=True), (1, 0, 0)),
        (Decided(1, BEST_PLAN, proven=True), Decided(1, (2, 1, 1), proven=True), (0, 1, 0)),
        (Decided(1, BEST_PLAN, proven=True), Decided(1, BEST_PLAN, proven=False), (0, 0, 1)),
        (Decided(1, BEST_PLAN, proven=False), Decided(1, None, proven=True), (0, 0, 1)),
        (Decided(1, None, proven=False), Decided(1, BEST_PLAN, proven=False), (0, 0, 0)),
    ],
    ids=["equal", "fewer nodes", "more zones", "no longer proven", "no longer placed", "placed now"],
)
def test_what_is_better_worse_and_lost(before: Decided, after: Decided, counts: tuple[int, int, int]) -> None:
    (row,) = pairs.rows({KEY: before}, {KEY: after})
    assert (row.better, row.worse, row.lost) == counts


def test_only_instances_of_both_sides_are_compared() -> None:
    decided = Decided(1.0, BEST_PLAN, proven=True)
    before: Mapping[Key, Decided] = {KEY: decided, (*KEY[:3], 1): decided}
    (row,) = pairs.rows(before, {KEY: Decided(2.0, BEST_PLAN, proven=True)})
    assert (row.count, row.before.p50, row.after.p50) == (1, 1.0, 2.0)


def test_the_table_has_a_row_for_each_cell_and_names_the_largest_ratio() -> None:
    second_key: Key = ("64 × 8 50%", "many512", 1, 0)
    before = {KEY: Decided(1.0, BEST_PLAN, proven=True), second_key: Decided(4.0, BEST_PLAN, proven=True)}
    after = {KEY: Decided(2.0, BEST_PLAN, proven=True), second_key: Decided(4.0, BEST_PLAN, proven=True)}
    shown = StringIO()
    pairs.show(Console(file=shown, width=160), pairs.rows(before, after))
    text = shown.getvalue()
    assert "rack16" in text
    assert "many512" in text
    assert "largest p99 ratio 2.00: rack16 on 64 × 8 50%" in text
