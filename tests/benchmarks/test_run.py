"""A small run from end to end: what must be right is right. Times are not looked at."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from benchmarks import report
from benchmarks.clusters import Boards
from benchmarks.compactness import Compactness
from benchmarks.gangs import CASES, Case, cases
from benchmarks.measure import PEERS, PeerResult, Sample
from benchmarks.suite import Cell, Run, Site
from benchmarks.summary import summary
from benchmarks.watch_events import event_cost

SITES = [
    Site(64, 0.0, 2),
    Site(64, 0.5, 2),
    Site(64, 0.5, 2, boards=Boards.MIXED),
    Site(64, 0.5, 2, racks_per_zone=2),
    Site(64, 0.8, 2),
]
SMALL = cases(shrink=16)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in SMALL])
def test_never_worse_than_a_greedy_and_never_refused_what_it_places(case: Case) -> None:
    run = Run.of(SITES, [case], seed=1, seconds=120, guard_s=2)
    run.go()
    rows = [summary(cell) for cell in run.cells]
    assert [failure for row in rows for failure in row.failures] == []
    assert run.complete
    assert any(row.answered for row in rows)


def sample(plan: Compactness | None, theirs: Compactness | None, **more: object) -> Sample:
    facts: dict[str, object] = {
        "seed": 1,
        "warm": True,
        "ms": 1.0,
        "plan": plan,
        "optimal": plan is not None,
        "proven_compact": None if plan is None else True,
        "gap": None,
        "undecided": False,
        "phases_ms": {"scan": 0.5},
        "peers": {name: PeerResult(1.0, theirs) for name in PEERS},
    }
    return Sample(**(facts | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sample", "failures"),
    [
        (sample(Compactness(1, 2, 5), Compactness(1, 2, 6)), 0),
        (sample(Compactness(1, 2, 5), None), 0),
        (sample(None, None), 0),
        (sample(Compactness(1, 3, 3), Compactness(1, 2, 6)), len(PEERS)),
        (sample(None, Compactness(1, 2, 6)), len(PEERS)),
        (sample(None, None, defect="GPU 1 of node a is given twice"), 1),
    ],
)
def test_what_counts_as_wrong(sample: Sample, failures: int) -> None:
    assert len(summary(Cell(SITES[0], CASES["many512"], [sample], [0.5])).failures) == failures


def test_a_row_counts_savings_and_shares() -> None:
    plans = [
        sample(Compactness(1, 2, 5), Compactness(1, 4, 5)),
        sample(Compactness(1, 1, 1), None, warm=False),
    ]
    row = summary(Cell(Site(20_000, 0.5, 2), CASES["many512"], plans, [0.5, 0.4]))
    assert row.peers["kueue"].racks_saved == 0.5
    assert row.peers["kueue"].nodes_saved == 0
    assert (row.peers["kueue"].better, row.peers["kueue"].refused_by_peer) == (1, 1)
    assert row.ms is not None
    assert row.cold_ms is not None
    assert row.target_ms == 5 * 60


def test_tables_and_json_lines() -> None:
    rows = [summary(Cell(SITES[1], CASES["many512"], [sample(Compactness(1, 2, 5), None)], [0.5]))]
    lines, shown = StringIO(), StringIO()
    report.write(lines, "cell", report.record(rows[0]))
    assert json.loads(lines.getvalue())["case"] == "many512"
    costs = [event_cost(64, 10, seed=1)]
    fills = {"topologies": {"two-islands-of-four": {"ours_mean_ring_gb_per_s": 1.0, "wins": 1}}}
    report.show(Console(file=shown, width=250), rows, costs, fills)
    for word in ("many512", "kueue", "watch event", "two-islands-of-four"):
        assert word in shown.getvalue()
