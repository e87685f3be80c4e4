"""The list of gangs: waiting gangs first, in the order of the planner, then running gangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from muster.domain.printable import printable
from muster.gangs.record.gang import GangView
from muster.gangs.record.phases import Phase

MAX_ROWS = 1_000
"""Largest number of gangs in the list. Totals count all gangs."""
MAX_REASON = 256
"""Largest number of characters of a reason in the list, which shows two lines. The details of the gang have
the whole reason."""

IN_LINE = frozenset({Phase.PLANNING, Phase.UNPLACEABLE, Phase.WITHDRAWN, Phase.GIVEN_UP})
"""Phases of gangs that wait for a place and have all members that they need."""

UNDER_WAY = frozenset({Phase.PLANNED, Phase.RESERVING, Phase.PERMITTED})
"""Phases of gangs with a place that are not fully bound yet."""


@dataclass(frozen=True, slots=True)
class Row:
    """A gang in the list.

    `order` sorts the list: by stage, then by the gang's sort key in the queue.

    Gangs in line have stage 0. The browser computes positions, so that the rows of other gangs stay equal
    when a gang leaves.
    """

    key: str
    namespace: str
    name: str
    phase: str
    present: int
    bound: int
    needed: int
    priority: int
    created: float
    reason: str
    queue: str
    order: tuple[int, bool, int, bool, float]


def rows(views: Iterable[GangView]) -> tuple[list[Row], Counter[str]]:
    """Return the first MAX_ROWS rows, and all gangs by phase. Fair turns of the queue do not count."""
    phases: Counter[str] = Counter()
    ordered = []
    for view in views:
        phases[view.phase.value] += 1
        ordered.append(((_stage(view), *view.queue_order), view.key, view))
    ordered.sort(key=lambda item: item[:2])
    return [_row(view, order) for order, _, view in ordered[:MAX_ROWS]], phases


def with_positions(views: Iterable[GangView]) -> list[GangView]:
    """Return the views. Gangs in line get their positions."""
    gang_views = list(views)
    line = sorted(
        (view for view in gang_views if not _stage(view)), key=lambda view: (view.queue_order, view.key)
    )
    position = {view.key: number for number, view in enumerate(line, 1)}
    return [replace(view, position=position.get(view.key)) for view in gang_views]


def _stage(view: GangView) -> int:
    if view.phase in IN_LINE:
        return 0
    if view.phase in (Phase.COLLECTING, Phase.INVALID):
        return 1
    return 2 if view.phase in UNDER_WAY else 3


def _why(view: GangView) -> str:
    """Return why the gang waits. While it is planned, its last reason is old, so the result is ""."""
    match view.phase:
        case Phase.PLANNING:
            return ""
        case Phase.COLLECTING:
            return " ".join(cause.says for cause in view.causes)
        case _:
            return view.reason


def _row(view: GangView, order: tuple[int, bool, int, bool, float]) -> Row:
    return Row(
        view.key,
        view.namespace,
        printable(view.name),
        view.phase.value,
        view.present,
        view.bound,
        view.needed,
        view.priority,
        view.created,
        printable(_why(view), MAX_REASON),
        view.queue,
        order,
    )
