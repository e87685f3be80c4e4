"""Handle Ticks, and the return after a time in which the service could see nothing."""

from __future__ import annotations

import math
from itertools import islice

from muster.gangs.lifecycle import inflight, planning, timeouts
from muster.gangs.lifecycle.pod_changes import Pods
from muster.gangs.lifecycle.state import State
from muster.gangs.record.phases import Permitted

_STOOD_STILL_S = 2.0
"""If a Tick comes this many seconds late, the process stood still and has not seen yet what happened."""


AT_ONCE = 128
"""Timers that one Tick handles: about 10 ms. Those of thousands of gangs end together after a start. The next
Tick goes on with the rest, after the inputs that came meanwhile."""


class Clock:
    """Handle Ticks and interrupted watches. Times are in seconds of the inputs' clock."""

    def __init__(self, state: State, pods: Pods) -> None:
        self._state = state
        self._pods = pods
        self._interrupted: dict[str, float] = {}
        """Resource whose watch is interrupted → since when."""
        self._unfinished = -math.inf
        """When the last Tick came, if it left timers to the next one."""

    def interrupted(self, resource: str, now: float) -> None:
        """Pause all timers: the watch of this resource is interrupted."""
        self._interrupted.setdefault(resource, now)
        self._state.interrupted = True
        self._state.timers.pause()

    def resumed(self, resource: str, now: float) -> None:
        """Take in that a watch is back. When the last one is, postpone everything that is due.

        Events that were seen late, because the watches were interrupted, then have their full time again.
        """
        if resource not in self._interrupted:
            return
        since = min(self._interrupted.values())
        del self._interrupted[resource]
        if not self._interrupted:
            self._state.interrupted = False
            _postpone(self._state, now - since)
        else:
            self._interrupted = dict.fromkeys(self._interrupted, since)

    def tick(self, now: float) -> None:
        """Handle everything that is due."""
        state = self._state
        if state.interrupted:
            return
        due = min((state.timers.next() or now, *state.orphans.values()))
        if now - max(due, self._unfinished) > _STOOD_STILL_S:
            _postpone(state, now - due + _STOOD_STILL_S)
            return
        if state.queue.update_at is not None and state.queue.update_at <= now:
            state.queue.update()
        if (look_at := state.backfill.next_at()) is not None and look_at <= now:
            planning.review_backfill(state, now)
        for uid in [uid for uid, until in state.orphans.items() if until <= now]:
            inflight.drop_orphan(state, uid)
        for gang, timer in list(islice(state.timers.due(now), AT_ONCE)):
            phase = gang.phase
            if gang.stale and gang.key in state.gangs:
                self._pods.regroup({gang.name}, now)
            if gang.key in state.gangs:
                timeouts.due(state, gang, timer, now, same=gang.phase is phase)
        self._unfinished = now if (state.timers.next() or math.inf) <= now else -math.inf

    def next_deadline(self) -> float | None:
        """Return when the next Tick is due, in seconds of the inputs' clock; None if no Tick is needed."""
        state = self._state
        found = (
            state.timers.next(),
            state.queue.update_at,
            state.background_ends_at,
            state.backfill.next_at(),
            state.now if state.catches_up else None,
            *state.orphans.values(),
        )
        return min((when for when in found if when is not None), default=None)


def _postpone(state: State, seconds: float) -> None:
    """Postpone everything that is due by the seconds in which the service could see nothing."""
    state.timers.postpone(seconds)
    state.backfill.postpone(seconds)
    state.orphans = {uid: until + seconds for uid, until in state.orphans.items()}
    for gang in state.gangs.values():
        if isinstance(permitted := gang.in_phase, Permitted):
            permitted.awaited = {uid: until + seconds for uid, until in permitted.awaited.items()}
            # A timer that was set again meanwhile has the old time, which would look like a standstill.
            state.timers.set(gang, min(permitted.awaited.values()))
