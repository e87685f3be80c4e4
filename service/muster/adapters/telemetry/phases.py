"""How long gangs are in each phase, from the moves that the coordinator tells."""

from __future__ import annotations

from muster.adapters.telemetry.metrics import Metrics
from muster.gangs.messages.instructions import Moved
from muster.gangs.record.phases import Phase

LASTING = (Phase.RUNNING, Phase.FINISHED)
"""Phases in which a gang waits for nothing: how long it is in them is no figure of the scheduler."""


class Phases:
    """Counts moves, and keeps since when each gang that waits is in its phase."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._since: dict[str, tuple[str, float]] = {}
        """Gang → its phase and when it entered it, by the inputs' clock."""

    def moved(self, move: Moved, trace_id: str) -> None:
        """Take in a move. `trace_id`: of the trace that shows it, "" for none."""
        if (before := self._since.pop(move.gang, None)) is not None:
            self._metrics.phase_ended(before[0], move.at - before[1], trace_id)
        if move.phase not in LASTING:
            self._since[move.gang] = (move.phase, move.at)
        if move.phase == "withdrawn":
            self._metrics.withdrawn(move.why)

    def oldest(self, now: float) -> list[tuple[str, float]]:
        """Return phase → seconds since the gang that is in it for longest entered it."""
        longest: dict[str, float] = {}
        for phase, since in self._since.values():
            longest[phase] = max(longest.get(phase, 0.0), now - since)
        return list(longest.items())
