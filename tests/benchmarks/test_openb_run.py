"""make openb from end to end, with one short replay; and what it says to options it does not know."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from rich.table import Table

from benchmarks.openb.__main__ import main
from benchmarks.openb.policies import Name
from benchmarks.openb.published import LOADS
from benchmarks.openb.runs import Outcome, Task
from benchmarks.openb.tables import by_policy, gains
from muster.command_line import run_command
from tests.command import invoke

openb = partial(run_command, main, "openb")


def test_tables_and_lines(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "openb.jsonl"
    options = [
        "--lists",
        "default",
        "--policies",
        "best-fit",
        "--seeds",
        "42",
        "--processes",
        "1",
        "--out",
        str(out),
    ]
    shown = invoke(openb, *options)
    assert shown.exit_code == 0, shown.output
    assert "7.14 ± 0.14" in shown.output, "as published"
    (line,) = out.read_text(encoding="utf-8").splitlines()
    outcome = json.loads(line)
    assert outcome["task"] == {"workload": "default", "policy": "best-fit", "seed": 42}
    assert list(outcome["unallocated"]) == [str(load) for load in LOADS]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--lists", "default,other", "other"),
        ("--policies", "kueue", "muster"),
        ("--seeds", "42-x", "42-51,60"),
        ("--load", "99", "100"),
    ],
)
def test_unknown_options_are_refused_with_what_there_is(option: str, value: str, says: str) -> None:
    shown = invoke(openb, option, value)
    assert shown.exit_code == 2
    assert option in shown.output
    assert says in shown.output


def outcome(policy: Name, seed: int, unallocated: float) -> Outcome:
    return Outcome(Task("default", policy, seed), dict.fromkeys(LOADS, unallocated))


OUTCOMES = [
    outcome(Name.FGD, 1, 5.0),
    outcome(Name.FGD, 2, 4.0),
    outcome(Name.MUSTER, 1, 4.0),
    outcome(Name.MUSTER, 2, 4.5),
    outcome(Name.MUSTER, 3, 9.0),
]


def cells(table: Table, row: int) -> list[str]:
    return [str(list(column.cells)[row]) for column in table.columns]


def test_gains_are_taken_on_equal_seeds() -> None:
    table = gains(OUTCOMES, 100, Name.MUSTER, Name.FGD)
    assert cells(table, 0) == ["default", "2", "0.25 ± 1.06", "1 of 2", "0.4"]


def test_ours_stands_below_the_published_figure() -> None:
    table = by_policy(OUTCOMES[:4], 100)
    assert cells(table, 0) == ["default", "published", "4.77 ± 0.11", "-"]
    assert cells(table, 1) == ["", "here", "4.50 ± 0.71", "4.25 ± 0.35"]
