"""How long gangs may have a planner while other gangs wait. A planner decides about one gang at a time.

The foreground planner has a short time for each gang. A namespace that takes much of it has its gangs decided
by the background planner, until its share is met.

The background planner has more time. A long decision is ended after `patience_s` if another gang waits. The
next decision about the same gang may take twice as long, so that a slow decision gets its time in the end.
But a namespace has such long turns for only 1/`LONG_TURNS` of the time. A namespace whose gangs took long
comes after the others until its share of the planner's time is met. If no other gang waits, a decision
continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """How the time of a planner is shared."""

    share: float
    """Part of the planner's time for one namespace, from 0 to 1."""
    free_s: float
    """Decisions shorter than this are not counted."""
    burst_s: float = 0.0
    """A namespace rests once it owes more than these seconds of rest."""
    of_processor: bool = False
    """Whether processor time is counted if it is known, so that a busy machine makes no gang slow."""


FOREGROUND = Terms(share=0.02, free_s=0.1, burst_s=15.0, of_processor=True)
"""One slow gang does no harm to the others of its namespace; a second one within 15 seconds does."""

BACKGROUND = Terms(share=0.25, free_s=0.5)

MOST_S = 10.0
"""Largest number of seconds that count for one turn, because the planner has a time limit of its own."""

LONG_TURNS = 30
"""After a turn longer than `patience_s`, a namespace has no other long turn for this many times its length.
"""


class PlannerShare:
    """Track which namespace has a planner and since when, and which namespaces are over their share.

    `now` is in seconds of the inputs' clock in all methods.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.ends_at: float | None = None
        """When to end the current decision if other gangs wait; None if it is not to be ended."""
        self._namespace = ""
        self._since = 0.0
        self._rests_until: dict[str, float] = {}
        """Namespace → until when its share is met again."""
        self._no_long_turn: dict[str, float] = {}
        """Namespace → until when it gets no long turn."""

    def began(self, namespace: str, now: float, patience_s: float, ended_decisions: int = 0) -> None:
        """Note that the planner began with a gang of this namespace.

        `ended_decisions` as in `Gang`.
        """
        if ended_decisions and namespace not in self._no_long_turn:
            patience_s *= 2.0 ** min(ended_decisions, 30)
            self._no_long_turn[namespace] = now + LONG_TURNS * min(patience_s, MOST_S)
        self._namespace, self._since, self.ends_at = namespace, now, now + patience_s

    def over(self, now: float, waited_s: float = 0.0, processor_s: float | None = None) -> float:
        """Note that the planner has answered. Return how long it took, in seconds.

        `waited_s`, the time before the planner began, is not charged to the gang. `processor_s`: seconds of
        processor time that the planner used; None if unknown.
        """
        took, self.ends_at = max(0.0, now - self._since - waited_s), None
        spent_s = took if processor_s is None or not self._terms.of_processor else processor_s
        if spent_s > self._terms.free_s:
            begins = max(now, self._rests_until.get(self._namespace, now))
            self._rests_until[self._namespace] = begins + spent_s * (1 / self._terms.share - 1)
        return took

    def late(self, now: float) -> bool:
        """Return whether the current decision has lasted too long while others wait; True only once."""
        if self.ends_at is None or now < self.ends_at:
            return False
        self.ends_at = None
        return True

    def resting(self, now: float) -> frozenset[str]:
        """Return the namespaces that are over their share."""
        self._rests_until = _after(self._rests_until, now)
        self._no_long_turn = _after(self._no_long_turn, now)
        return frozenset(_after(self._rests_until, now + self._terms.burst_s))


def _after(until: Mapping[str, float], now: float) -> dict[str, float]:
    return {namespace: when for namespace, when in until.items() if when > now}
