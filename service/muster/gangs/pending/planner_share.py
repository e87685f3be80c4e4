"""How long gangs may have the planner, which decides about one at a time, while others wait for it.

A decision that lasts is ended after `patience_s` while another gang waits. A gang that was ended before may
have twice as long each time, so that one which needs long gets its time in the end. But a namespace has such
long turns seldom: one in `LONG_TURNS` of the time. A namespace whose gangs took long comes after the others
until its share of the planner's time is met: `SHARE`. Where nobody else waits it goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.25
"""Of the planner's time, for one namespace, while gangs of others wait."""

FREE_S = 0.5
"""Shorter decisions are not counted: all but crafted gangs are decided in less."""

MOST_S = 10.0
"""No turn is counted as longer: the planner has a limit of its own."""

LONG_TURNS = 30
"""After a turn longer than `patience_s` a namespace has no other one for so many times its length."""


class PlannerShare:
    """Who has the planner, since when, and which namespaces have had it for too long. `now` is a time of the
    events' clock, in seconds, in all methods."""

    def __init__(self) -> None:
        self.ends_at: float | None = None
        """When the decision that is being made is to be ended, if others wait; None where it is not."""
        self._namespace = ""
        self._since = 0.0
        self._rest: dict[str, float] = {}
        self._no_long_turn: dict[str, float] = {}

    def began(self, namespace: str, now: float, patience_s: float, ended: int = 0) -> None:
        """A gang of this namespace has the planner, about which it was ended so often before."""
        if ended and namespace not in self._no_long_turn:
            patience_s *= 2.0 ** min(ended, 30)
            self._no_long_turn[namespace] = now + LONG_TURNS * min(patience_s, MOST_S)
        self._namespace, self._since, self.ends_at = namespace, now, now + patience_s

    def over(self, now: float, waited_s: float = 0.0) -> float:
        """The planner has answered; returns how long it took, in seconds, without `waited_s`: how long it
        took until it began, for which the gang can do nothing."""
        took, self.ends_at = max(0.0, now - self._since - waited_s), None
        if took > FREE_S:
            begins = max(now, self._rest.get(self._namespace, now))
            self._rest[self._namespace] = begins + took * (1 / SHARE - 1)
        return took

    def late(self, now: float) -> bool:
        """Whether the decision that is being made has lasted too long for others to wait; True once."""
        if self.ends_at is None or now < self.ends_at:
            return False
        self.ends_at = None
        return True

    def resting(self, now: float) -> frozenset[str]:
        """The namespaces whose gangs come after those of all others."""
        self._rest = _after(self._rest, now)
        self._no_long_turn = _after(self._no_long_turn, now)
        return frozenset(self._rest)


def _after(until: Mapping[str, float], now: float) -> dict[str, float]:
    return {namespace: when for namespace, when in until.items() if when > now}
