"""No test goes by the clock alone: the length of each wait comes from `local_cluster.patience`."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import patience
from local_cluster.patience import HANG_S, Guard, slowness, stretched

REPOSITORY = Path(__file__).parents[1]
WORDS = ("timeout", "within_s")
"""Arguments that end a wait."""
NAMES = ("DEADLINE_S", "WITHIN_S", "TIMEOUT_S", "PATIENCE_S")
"""How constants are called that do."""
LONG_S = 60.0
ALLOWED = {
    "tests/dashboards/drawing/__main__.py",  # no test
    "tests/adapters/test_grpc_server.py",  # nothing comes meanwhile, however long it takes
    "tests/adapters/test_second_endpoint.py",  # the same
    "tests/adapters/test_solver.py",  # asked again until it is done
    "tests/local_cluster/test_cluster_processes.py",  # a process is still there, however long it takes
    "e2e/chaos/runner.py",  # what is waited for is reported, and not judged
    "e2e/chaos/aim.py",  # a moment that is missed is tried again; stretched as leases are
    "e2e/moments.py",  # the same
    "e2e/record.py",  # joins a thread that may be left behind
    "e2e/kinds/controllers.py",  # asked again until it answers
    "e2e/kind.py",  # why tests are skipped
}


def lengths(tree: ast.AST) -> Iterator[tuple[int, float]]:
    """Yield the line and the seconds of each wait of less than a minute that is written as a number."""
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            values = [keyword.value for keyword in node.keywords if keyword.arg in WORDS]
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("timeout", "wait_for", "wait_end"):
                values += node.args[:2]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = [node.value] if node.targets[0].id.endswith(NAMES) else []
        for value in values:
            seconds = value.value if isinstance(value, ast.Constant) else None
            if isinstance(seconds, int | float) and seconds < LONG_S:
                yield value.lineno, seconds


def test_no_wait_of_a_test_is_a_number_of_seconds() -> None:
    files = [path for folder in ("tests", "e2e") for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    offenders = {
        f"{path.relative_to(REPOSITORY)}:{line}": seconds
        for path in files
        if str(path.relative_to(REPOSITORY)) not in ALLOWED
        for line, seconds in lengths(ast.parse(path.read_text()))
    }
    assert offenders == {}, "use Guard, stretched or HANG_S of local_cluster.patience"


@pytest.mark.parametrize(
    ("load", "cores", "times"), [(0.0, 2, 1.0), (2.0, 2, 1.0), (10.0, 2, 5.0), (10.0, 64, 1.0)]
)
def test_a_machine_is_as_slow_as_processes_share_a_core(
    monkeypatch: pytest.MonkeyPatch, load: float, cores: int, times: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert slowness() == times
    assert stretched(3.0) == 3.0 * times


def test_a_guard_is_longer_on_a_machine_that_becomes_slow_and_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, times = 100.0, 1.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(patience, "slowness", lambda: times)
    guard = Guard(HANG_S, now)
    now += HANG_S - 1
    assert guard.left_s == 1
    now, times = now + 2, 3.0
    assert not guard.over
    times = 1.0
    assert guard.whole_s == 3 * HANG_S
    now += 2 * HANG_S
    assert guard.over
