"""Share each planner's time between namespaces while several gangs wait.

A planner decides about one gang at a time. A namespace that has used more than its share of the planner's
time rests until its share is met again. The foreground planner has a short time for each gang, and the
background planner decides about the gangs of resting namespaces. For the background planner, they come after
the gangs of other namespaces.

If another gang waits, a decision is ended after `patience_s`. The next decision about the same gang may take
twice as long, so that a slow decision succeeds in the end. But a namespace has such long turns for only
1/`LONG_TURNS` of the time. If no other gang waits, a decision continues.
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
    """Shorter decisions are not counted, because they hardly delay other gangs."""
    burst_s: float = 0.0
    """A namespace rests once it owes more than these seconds of rest."""
    counts_processor_time: bool = False
    """Whether processor time counts, if known. The time by the clock also grows if the machine is busy."""


FOREGROUND = Terms(share=0.02, free_s=0.1, burst_s=15.0, counts_processor_time=True)
"""A namespace may owe 15 s of rest, and a gang that uses 0.3 s of processor time costs 14.7 s of rest. So one
such gang has no effect on other gangs of its namespace. A second such gang within that time sends the
namespace's gangs to the background planner."""

BACKGROUND = Terms(share=0.25, free_s=0.5)

MAX_TURN_S = 10.0
"""Most seconds that count for one turn. The planner has a time limit, so no turn lasts much longer."""

LONG_TURNS = 30
"""After a turn longer than `patience_s`, a namespace has no other long turn for this many times its length.
"""


class PlannerShare:
    """Track which namespace's gang a planner decides about, since when, and which namespaces rest.

    `now` is in seconds of the inputs' clock in all methods.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.ends_at: float | None = None
        """When to end the current decision if other gangs wait; None if no decision is to be ended."""
        self._namespace = ""
        self._since = 0.0
        self._rests_until: dict[str, float] = {}
        """Namespace → when its share is met again."""
        self._long_turn_at: dict[str, float] = {}
        """Namespace → when it may get a long turn again."""

    def note_begin(self, namespace: str, now: float, patience_s: float, ended_decisions: int = 0) -> None:
        """Note that the planner began to decide about a gang of this namespace.

        `ended_decisions` as in `Gang`.
        """
        if ended_decisions and namespace not in self._long_turn_at:
            patience_s *= 2.0 ** min(ended_decisions, 30)
            self._long_turn_at[namespace] = now + LONG_TURNS * min(patience_s, MAX_TURN_S)
        self._namespace, self._since, self.ends_at = namespace, now, now + patience_s

    def note_end(self, now: float, waited_s: float = 0.0, processor_s: float | None = None) -> float:
        """Note that the planner has answered. Return how long it took, in seconds.

        `waited_s`, the time before the planner began, is not charged to the gang. `processor_s`: seconds of
        processor time that the planner used; None if unknown.
        """
        took_s, self.ends_at = max(0.0, now - self._since - waited_s), None
        spent_s = took_s if processor_s is None or not self._terms.counts_processor_time else processor_s
        if spent_s > self._terms.free_s:
            begins = max(now, self._rests_until.get(self._namespace, now))
            self._rests_until[self._namespace] = begins + spent_s * (1 / self._terms.share - 1)
        return took_s

    def becomes_late(self, now: float) -> bool:
        """Return whether the current decision lasts too long, now that other gangs wait; True only once."""
        if self.ends_at is None or now < self.ends_at:
            return False
        self.ends_at = None
        return True

    def resting_namespaces(self, now: float) -> frozenset[str]:
        """Return the namespaces that have used more than their share."""
        self._rests_until = _later_than(self._rests_until, now)
        self._long_turn_at = _later_than(self._long_turn_at, now)
        return frozenset(_later_than(self._rests_until, now + self._terms.burst_s))


def _later_than(times: Mapping[str, float], now: float) -> dict[str, float]:
    return {namespace: when for namespace, when in times.items() if when > now}
