"""The figures for people (tables) and for programs (JSON lines)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from benchmarks.measure import PEERS, PHASES
from benchmarks.summary import Spread, Summary
from benchmarks.watch_events import TARGET_US, EventCost

NOTHING = "-"
SHOWN_DEFECTS = 3


def write(out: TextIO, kind: str, record: Mapping[str, Any]) -> None:
    """One JSON line."""
    out.write(json.dumps({"kind": kind, **record}, ensure_ascii=False) + "\n")
    out.flush()


def record(summary: Summary) -> dict[str, Any]:
    """A row as JSON has it: of the defects how many there are, and the first ones."""
    defects = {"count": len(summary.defects), "first": summary.defects[:SHOWN_DEFECTS]}
    return {**asdict(summary), "defects": defects}


def show(
    console: Console, rows: Sequence[Summary], costs: Sequence[EventCost], fills: Mapping[str, Any]
) -> None:
    """All tables."""
    for title, table in (
        ("Latency, ms, warm; one core", _latency(rows)),
        (
            "Beside the peers: plans better / equal / worse by (zones, racks, nodes), mean savings",
            _compactness(rows),
        ),
        (f"One watch event, µs, p50 / p99; target {TARGET_US}", _events(costs)),
        ("GPUs inside a node: mean sums of best rings, GB/s, ours and go-gpuallocator's", _fills(fills)),
    ):
        if table.row_count:
            console.print(title, style="bold", highlight=False)
            console.print(table)
            console.print()


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < 2 else "right", no_wrap=True)
    return table


def _latency(rows: Sequence[Summary]) -> Table:
    table = _table(
        *("cluster", "gang", "n", "p50", "p99", "max", "target", "cold", "× kueue"),
        *("optimal", "compact", "gap", "undecided", *PHASES),
    )
    site = ""
    for row in rows:
        if site and row.site != site:
            table.add_section()
        late = row.ms and row.target_ms and row.ms.p99 > row.target_ms
        p99 = _number(row.ms.p99 if row.ms else None)
        kueue = row.peers["kueue"].ms
        table.add_row(
            row.site if row.site != site else "",
            row.case,
            str(row.answered),
            _number(row.ms.p50 if row.ms else None),
            f"[red]{p99}[/]" if late else p99,
            _number(row.ms.max if row.ms else None),
            _number(row.target_ms),
            _number(row.cold_ms.p50 if row.cold_ms else None),
            _number(row.ms.p50 / kueue.p50 if row.ms and kueue else None),
            _share(row.optimal),
            _share(row.compact),
            _share(row.gap.max if row.gap else None),
            str(row.undecided or NOTHING),
            *(_number(spread.p99 if (spread := row.phases_ms.get(name)) else None) for name in PHASES),
        )
        site = row.site
    return table


def _compactness(rows: Sequence[Summary]) -> Table:
    table = _table(
        *("cluster", "gang"),
        *(
            f"{name} {column}"
            for name in PEERS
            for column in ("b/e/w", "racks", "nodes", "only us", "only it", "ms")
        ),
    )
    site = ""
    for row in rows:
        if site and row.site != site:
            table.add_section()
        cells = []
        for peer in row.peers.values():
            wrong = peer.worse or peer.refused_by_us
            verdict = f"{peer.better}/{peer.equal}/{peer.worse}"
            cells += [
                f"[red]{verdict}[/]" if wrong else verdict,
                _share(peer.racks_saved),
                _share(peer.nodes_saved),
                str(peer.refused_by_peer or NOTHING),
                str(peer.refused_by_us or NOTHING),
                _number(peer.ms.p50 if peer.ms else None),
            ]
        table.add_row(row.site if row.site != site else "", row.case, *cells)
        site = row.site
    return table


def _events(costs: Iterable[EventCost]) -> Table:
    table = _table("nodes", "", "book", "snapshot", "columns")
    for cost in costs:
        spreads = (cost.bind_us, cost.snapshot_us, cost.columns_us)
        table.add_row(str(cost.nodes), "", *(_pair(spread) for spread in spreads))
    return table


def _fills(fills: Mapping[str, Any]) -> Table:
    table = _table(
        *("links", "", "ours", "theirs", "wins", "ties", "losses"),
    )
    for name, results in fills.get("topologies", {}).items():
        ours, theirs = (_number(results.get(f"{side}_mean_ring_gb_per_s")) for side in ("ours", "theirs"))
        counts = (str(results.get(key, NOTHING)) for key in ("wins", "ties", "losses"))
        table.add_row(name, "", ours, theirs, *counts)
    return table


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def _pair(spread: Spread | None) -> str:
    return NOTHING if spread is None else f"{_number(spread.p50)} / {_number(spread.p99)}"
