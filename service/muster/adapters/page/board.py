"""The state that all browsers see. It is read in small parts while a browser is connected, and sent as
changes.

The cluster is not read while no browser is connected. One reading of the cluster takes several short turns of
the event loop. The pause after a reading is at least PAUSE_SHARE times as long as the reading.
"""

from __future__ import annotations

import asyncio
import gzip
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import msgspec
import structlog

from muster.adapters.page import detail
from muster.adapters.page.detail import History
from muster.adapters.page.layout import Cell, Layout, NodeStatus, Numbers, arrange, cells_of, node_status
from muster.adapters.page.rows import Row, rows
from muster.domain.node import Node
from muster.domain.snapshot import Snapshot
from muster.gangs.coordinator import Coordinator

NODES_AT_ONCE = 200
"""Number of nodes that are read before the loop's other tasks get a turn: some milliseconds."""
WAIT_S = 10.0
"""Seconds for which a browser waits for a reading."""
EVERY_S = 1.0
PAUSE_SHARE = 20
"""Length of the pause as a multiple of the reading, so that readings take at most a twentieth of the loop's
time."""
AFTER_DEFECT_S = 30.0
MAX_CHANGE_BYTES = 512 << 10
MAX_CHANGED_CELLS = 16_384
"""Largest number of changed cells that are sent. After a larger change, browsers read the state again."""


log = structlog.get_logger(__name__)


class Source(Protocol):
    """The part of `adapters.control_loop.ControlLoop` that the page needs."""

    @property
    def gangs(self) -> Coordinator:
        """Return the coordinator. The page only reads it."""

    @property
    def is_synced(self) -> bool:
        """Return whether the cluster has been seen in full."""

    @property
    def leads(self) -> bool:
        """Return whether a shim is connected."""

    async def summary(self, namespace: str = "", name: str = "") -> list[Any]:
        """Return all gangs, some at a time."""


@dataclass(frozen=True, slots=True)
class _Map:
    """A layout, its JSON, and the nodes and levels from which it was made."""

    layout: Layout = field(default_factory=Layout)
    static: msgspec.Raw = field(default_factory=lambda: _encode_layout(Layout()))
    nodes: Mapping[str, Node] = field(default_factory=dict)
    levels: object = None

    def is_of(self, snapshot: Snapshot) -> bool:
        """Return whether the snapshot has the same nodes and levels as the layout."""
        if self.levels != (snapshot.levels, snapshot.naming) or self.nodes.keys() != snapshot.nodes.keys():
            return False
        return all(snapshot.nodes[name].node is node for name, node in self.nodes.items())

    def with_snapshot(self, snapshot: Snapshot, model_label: str) -> _Map:
        """Return the map of these nodes. An equal layout stays the same object. This runs in a thread."""
        nodes = {name: state.node for name, state in snapshot.nodes.items()}
        levels = (snapshot.levels, snapshot.naming)
        layout = arrange(snapshot, model_label)
        if layout == self.layout:
            return _Map(self.layout, self.static, nodes, levels)
        return _Map(layout, _encode_layout(layout), nodes, levels)


@dataclass(frozen=True, slots=True)
class _State:
    """The state that browsers have at one generation."""

    map: _Map = field(default_factory=_Map)
    cells: Sequence[int] = ()
    closed: Mapping[int, int] = field(default_factory=dict)
    rows: Mapping[str, Row] = field(default_factory=dict)
    owners: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)


class Board:
    """Reads the cluster for all browsers together."""

    def __init__(self, source: Source, history: History, model_label: str) -> None:
        self._source, self._history = source, history
        self._model_label = model_label
        self.log = Log()
        self._numbers = Numbers()
        self._last_state = _State()
        self._fresh = asyncio.Event()
        """Set while the last reading is recent. A new reading clears it."""
        self._news = asyncio.Event()
        self._watching = 0
        self._watched = asyncio.Event()
        self._body: tuple[str, asyncio.Future[bytes]] | None = None
        """A generation, and its state packed once for all browsers."""

    # --- for the server -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Read the cluster again and again while a browser is connected, until cancelled.

        Only this task reads the cluster, so requests can't make readings more frequent. A defect is logged,
        and the service continues, because gangs are placed without the page too.
        """
        while True:
            await self._watched.wait()
            pause_s = AFTER_DEFECT_S
            try:
                pause_s = max(EVERY_S, PAUSE_SHARE * await self._read_cluster())
                self._fresh.set()
            except Exception:
                log.exception("the page could not look at the cluster")
            await asyncio.sleep(pause_s)
            self._fresh.clear()

    @asynccontextmanager
    async def connect_browser(self) -> AsyncIterator[None]:
        """Keep the cluster read while a browser is connected."""
        self._watching += 1
        self._watched.set()
        try:
            yield
        finally:
            self._watching -= 1
            if not self._watching:
                self._watched.clear()

    async def wait_for(self, shown_generation: int, within_s: float) -> bool:
        """Wait up to `within_s` for a newer generation than `shown_generation`. Return whether it came."""
        if self.log.generation > shown_generation:
            return True
        event = self._news
        try:
            await asyncio.wait_for(event.wait(), within_s)
        except TimeoutError:
            return self.log.generation > shown_generation
        return True

    async def state(self) -> bytes:
        """Return the whole state for a browser, as JSON in gzip.

        Raises:
            TimeoutError: The cluster was not read in time.
        """
        async with self.connect_browser(), asyncio.timeout(WAIT_S):
            await self._fresh.wait()
        if self._body is None or self._body[0] != self.log.id:
            packing = asyncio.ensure_future(asyncio.to_thread(_pack, self._state_for_browsers()))
            self._body = (self.log.id, packing)
        return await asyncio.shield(self._body[1])  # other requests wait for it

    async def detail(self, key: str) -> bytes | None:
        """Return the details of one gang as JSON; None if there is no such gang."""
        details = self._source.gangs.details(key)
        if details is None:
            return None
        snapshot = self._source.gangs.snapshot()
        steps, since = self._history.of(key), self._history.since
        shown_detail = await asyncio.to_thread(detail.describe, details, snapshot, steps, since)
        return msgspec.json.encode(shown_detail)

    # --- looking ------------------------------------------------------------------------------------

    async def _read_cluster(self) -> float:
        """Read the whole cluster once, and send the changes. Return the seconds of the loop that it took."""
        turns, old_state = _Turns(), self._last_state
        with turns.measure():
            snapshot = self._source.gangs.snapshot()
            same = old_state.map.is_of(snapshot)
        map_ = (
            old_state.map
            if same
            else await asyncio.to_thread(old_state.map.with_snapshot, snapshot, self._model_label)
        )
        cells, shut, changed = await self._cells(map_.layout, turns)
        began = time.perf_counter()
        views = await self._source.summary()
        turns.spent += time.perf_counter() - began  # an upper bound: other tasks ran in between
        gang_rows, phases = await asyncio.to_thread(rows, views)
        with turns.measure():
            totals = self._totals(
                cells, _usable(cells, shut, map_.layout), phases, len(views) - len(gang_rows)
            )
        await asyncio.sleep(0)
        with turns.measure():
            owners = self._owners(cells)
            self._last_state = _State(map_, cells, shut, {row.key: row for row in gang_rows}, owners, totals)
            if map_.layout is not old_state.map.layout or len(changed) > MAX_CHANGED_CELLS:
                self._publish(None)
            elif change := _change(old_state, self._last_state, changed):
                self._publish(msgspec.json.encode(change))
        return turns.spent

    async def _cells(
        self, layout: Layout, turns: _Turns
    ) -> tuple[list[int], dict[int, int], list[tuple[int, int]]]:
        """Return the number of each GPU's cell, the closed nodes, and the indices of changed cells."""
        names, firsts = layout.names, layout.first_cell
        old_cells = self._last_state.cells if layout is self._last_state.map.layout else ()
        cells: list[int] = []
        shut: dict[int, int] = {}
        changed: list[tuple[int, int]] = []
        for start in range(0, len(names), NODES_AT_ONCE):
            with turns.measure():
                part = names[start : start + NODES_AT_ONCE]
                nodes = self._source.gangs.snapshot().nodes
                for number, (name, takers) in enumerate(
                    zip(part, self._source.gangs.gpus_of_pods(part), strict=True), start
                ):
                    state, count = nodes.get(name), firsts[number + 1] - firsts[number]
                    now = node_status(state)
                    if now is not NodeStatus.OPEN:
                        shut[number] = int(now)
                    if state is None or state.node.topology.gpu_count != count:
                        cells += [int(Cell.OTHERS)] * count  # the layout is old: the next reading corrects it
                    else:
                        cells += cells_of(state, takers, self._numbers)
                first = firsts[start]
                pairs = enumerate(zip(old_cells[first : len(cells)], cells[first:], strict=False), first)
                changed += [(index, new) for index, (old, new) in pairs if old != new]
            await asyncio.sleep(0)
        return cells, shut, changed

    def _owners(self, cells: list[int]) -> dict[str, int]:
        """Forget the numbers of gangs without GPUs. Return the other gangs with their numbers."""
        numbers_shown = set(cells)
        self._numbers.keep_only(
            [
                gang
                for gang, number in self._numbers.items()
                if number in numbers_shown or number + 1 in numbers_shown
            ]
        )
        return dict(self._numbers.items())

    def _totals(self, cells: list[int], usable: int, phases: Counter[str], left_out: int) -> dict[str, Any]:
        return {
            "ready": self._source.is_synced,
            "leads": self._source.leads,
            "gpus": len(cells),
            "free": usable,
            "unhealthy": cells.count(Cell.UNHEALTHY),
            "phases": dict(sorted(phases.items())),
            "gangs_left_out": left_out,
        }

    # --- telling ------------------------------------------------------------------------------------

    def _publish(self, change: bytes | None) -> None:
        """Begin a generation with this change. After None, or a change that is too large, browsers read the
        state again."""
        if change is None or len(change) > MAX_CHANGE_BYTES:
            self.log.clear()
        else:
            self.log.add(change)
        event, self._news = self._news, asyncio.Event()
        event.set()

    def _state_for_browsers(self) -> dict[str, Any]:
        last_reading = self._last_state
        return {
            "id": self.log.id,
            "layout": last_reading.map.static,
            "cells": last_reading.cells,
            "closed": {str(node): value for node, value in last_reading.closed.items()},
            "owners": {str(number): gang for gang, number in last_reading.owners.items()},
            "gangs": list(last_reading.rows.values()),
            "totals": last_reading.totals,
        }


def _change(old: _State, new: _State, cells: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the changes while the layout stays: `cells`, and the changes of all other fields."""
    shut = sorted(old.closed.items() ^ new.closed.items())
    owners = new.owners.items() - old.owners.items()
    parts = {
        "cells": cells,
        "closed": {str(node): new.closed.get(node, 0) for node, _ in shut},
        "owners": {str(number): gang for gang, number in owners},
        "gone": sorted(old.owners[gang] for gang in old.owners.keys() - new.owners.keys()),
        "gangs": [row for key, row in new.rows.items() if old.rows.get(key) != row],
        "left": sorted(old.rows.keys() - new.rows.keys()),
        "totals": new.totals if new.totals != old.totals else {},
    }
    return {name: part for name, part in parts.items() if part}


def _usable(cells: list[int], shut: Mapping[int, int], layout: Layout) -> int:
    """Return the number of free GPUs on nodes that take pods."""
    firsts = layout.first_cell
    closed_cells = chain.from_iterable(cells[firsts[node] : firsts[node + 1]] for node in shut)
    return cells.count(Cell.FREE) - sum(cell == Cell.FREE for cell in closed_cells)


def _encode_layout(layout: Layout) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(layout.as_json()))


def _pack(state: dict[str, Any]) -> bytes:
    return gzip.compress(msgspec.json.encode(state), 4)


class _Turns:
    """Measures the turns of the loop that a reading takes."""

    def __init__(self) -> None:
        self.spent = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure one turn."""
        began = time.perf_counter()
        yield
        self.spent += time.perf_counter() - began


# --- the log of changes --------------------------------------------------------------------------

MAX_CHANGES = 256
MAX_BYTES = 4 << 20
"""Largest number of bytes of all changes in the log."""


class Log:
    """The last changes, as bytes. An id consists of the log's id and a generation, because each process has
    its own log."""

    def __init__(self, most_bytes: int = MAX_BYTES, most_changes: int = MAX_CHANGES) -> None:
        self._most_bytes, self._most_changes = most_bytes, most_changes
        self._name = secrets.token_hex(4)
        self._changes: deque[bytes] = deque()
        self._bytes = 0
        self.generation = 0

    @property
    def id(self) -> str:
        """Return the id of the newest generation."""
        return self.id_of(self.generation)

    def id_of(self, generation: int) -> str:
        """Return the id of a generation."""
        return f"{self._name}-{generation}"

    def add(self, change: bytes) -> None:
        """Add a change. The oldest changes are dropped while there are too many changes or bytes."""
        self.generation += 1
        self._changes.append(change)
        self._bytes += len(change)
        while len(self._changes) > self._most_changes or self._bytes > self._most_bytes:
            self._bytes -= len(self._changes.popleft())

    def clear(self) -> None:
        """Begin a generation without a change that leads to it: every browser reads the state again."""
        self.generation += 1
        self._changes.clear()
        self._bytes = 0

    def position(self, id_: str) -> int | None:
        """Return the generation of an id; None if the log lacks a change after it."""
        name, _, number = id_.rpartition("-")
        if name != self._name or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        return int(number) if self.has_all_after(int(number)) else None

    def has_all_after(self, generation: int) -> bool:
        """Return whether the log has all changes from this generation to the newest."""
        return self.generation - len(self._changes) <= generation <= self.generation

    def change_after(self, generation: int) -> bytes | None:
        """Return the change after a generation; None if the generation is the newest."""
        return self._changes[generation - self.generation] if generation < self.generation else None
