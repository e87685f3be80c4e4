"""How an example's outcome looks: read from a pipe, without colours."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from local_cluster.api import Object
from local_cluster.demo.show import WIDTH, Show
from local_cluster.examples import screen
from local_cluster.examples.catalogue import Outcome
from tests.examples.test_seen import event, pod, waiting


def printed(draw: Callable[[Show], None]) -> list[str]:
    """The lines, without blanks at their ends and empty ones."""
    out = io.StringIO()
    draw(Show(Console(file=out, width=WIDTH, no_color=True)))
    return [line.strip() for line in out.getvalue().splitlines() if line.strip()]


def test_pods_with_what_they_have() -> None:
    pods = [pod("p", gpus=[0], gpu_mem={"0": 3}), waiting("q")]
    assert printed(lambda show: screen.pods_table(show, pods)) == [
        "POD   PHASE     NODE   GPUS",
        "p     Running   a      GPU 0: 3 GiB",
        "q     Pending   –      –",
    ]


def test_of_many_pods_the_first_are_shown() -> None:
    lines = printed(lambda show: screen.pods_table(show, [pod(f"p-{i:02}") for i in range(14)]))
    assert len(lines) == 1 + screen.MANY + 1
    assert lines[-1] == "and 2 more"


def test_equal_events_are_one_line() -> None:
    events = [event("p", "TopologyPlaced"), event("q", "TopologyPlaced"), event("r", "Pulled")]
    assert printed(lambda show: screen.events(show, events)) == ["TopologyPlaced   pod p and 1 more: m"]


def test_podgroups_as_kubectl_prints_them() -> None:
    columns = [{"name": "Name"}, {"name": "Min", "priority": 0}, {"name": "Queue", "priority": 1}]
    table: Object = {"columnDefinitions": columns, "rows": [{"cells": ["g", None, "q"]}]}
    assert printed(lambda show: screen.podgroups(show, table)) == ["NAME   MIN", "g      –"]


def test_the_verdict_says_what_was_expected() -> None:
    expected, outcome = Outcome(2, 2), Outcome(0, 2, "TopologyWaiting")
    assert printed(lambda show: screen.verdict(show, expected, expected, True)) == [
        "✓ as expected: 2 of 2 run"
    ]
    assert printed(lambda show: screen.verdict(show, expected, outcome, False)) == [
        "✗ expected: 2 of 2 run; seen: 0 of 2 run, TopologyWaiting"
    ]


def test_the_condition_of_the_first_that_waits() -> None:
    pods = [pod("p"), waiting("q", "no room"), waiting("r", "no room")]
    assert printed(lambda show: screen.why(show, pods)) == ["condition of q   Unschedulable: no room"]
