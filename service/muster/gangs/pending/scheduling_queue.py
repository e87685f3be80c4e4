"""Gangs that wait for the planner, and those that it has refused until something comes free that may help."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from muster.gangs.capacity import requests
from muster.gangs.capacity.hint_table import HintTable
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.queueing_hints import QueueingHint, may_fit_now
from muster.gangs.peers.peer_changes import PeerChanges
from muster.gangs.pending.active_queue import Queue
from muster.gangs.pending.watchers import Watchers
from muster.gangs.record.gang import Gang

_LOOKS = 1024
"""Looks at nodes for refused gangs that hold places, in one event (some 20 ms). Gangs beyond that are woken
without a look."""


class SchedulingQueue:
    """Each gang is in the queue, refused, or neither.

    Gangs with equal needs are looked at once, and all needs together. What is passed over is shown with
    numbers that are old: it is asked about again from `update_at` on, while no other gang waits for the
    planner.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.update_at: float | None = None
        self._ledger = ledger
        self._queue = Queue()
        self._refused: dict[QueueingHint, set[str]] = {}
        self._holding: dict[str, Gang] = {}
        """Refused gangs that were holding places when they were refused: each is looked at alone."""
        self._hints = HintTable()
        self._watchers = Watchers()
        self._numbers: dict[QueueingHint, int] = {}
        """Refused needs → the number of their refusal, in the order of time."""
        self._number = 0
        self._passed_over = -1
        """Refused needs with at most this number were passed over, but for some that may have been asked."""
        self._gained: set[str] = set()
        self._changes = PeerChanges()
        self._anywhere = False
        self._to_update: list[str] = []

    def wait(self, gang: Gang, partial: bool, first: bool) -> None:
        """Queue the gang for the planner; `partial` and `first` as `Queue.put` takes them."""
        group = gang.group
        self._queue.put(gang.key, requests.priority(group), requests.created(group), partial, first)

    def refused(self, gang: Gang) -> None:
        """Nothing fits it now."""
        assert gang.hint is not None
        if gang.hint not in self._refused:
            self._refused[gang.hint] = set()
            self._hints.add(gang.hint)
            self._watchers.add(gang.hint)
            self._number += 1
            self._numbers[gang.hint] = self._number
        self._refused[gang.hint].add(gang.key)
        if gang.retained:
            self._holding[gang.key] = gang

    def has(self, gang: Gang) -> bool:
        """Whether the gang waits or is refused."""
        refused = self._refused.get(gang.hint, ()) if gang.hint is not None else ()
        return gang.key in self._queue or gang.key in refused

    def leave(self, gang: Gang) -> None:
        """The gang neither waits nor is refused any more."""
        self._queue.drop(gang.key)
        self._holding.pop(gang.key, None)
        if gang.hint in self._refused:
            self._refused[gang.hint].discard(gang.key)
            if not self._refused[gang.hint]:
                del self._refused[gang.hint], self._numbers[gang.hint]
                self._hints.discard(gang.hint)
                self._watchers.discard(gang.hint)

    def forget(self, gang: Gang) -> None:
        """The gang is no more."""
        self.leave(gang)
        self._queue.forget(gang.key)

    @property
    def waiting(self) -> int:
        """How many gangs wait for the planner."""
        return len(self._queue)

    def next(self, only_partial: bool = False, resting: Collection[str] = ()) -> str | None:
        """The gang to be planned now, taken out of the queue; `only_partial` and `resting` as `Queue.pop`
        takes them."""
        return self._queue.pop(only_partial, resting)

    def next_to_update(self) -> str | None:
        """A gang to be asked about for the numbers alone, if it is still refused."""
        return self._to_update.pop() if self._to_update else None

    def freed(
        self, gained: Collection[str], changes: PeerChanges, anywhere: bool, update_at: float
    ) -> list[str]:
        """Something came free on these nodes, or `anywhere`, or these pods changed: the refused gangs that it
        may help."""
        self._gained.update(gained)
        self._changes.add(changes)
        self._anywhere |= anywhere
        if anywhere:
            return self._woken(self._refused.keys(), update_at)
        touched = self._touched(self._watchers, changes)
        helped = self._hints.may_fit(self._ledger, gained, touched) if gained or touched else set()
        keys = self._woken(helped, update_at if gained else None)
        if not self._holding:
            return keys
        looks = _LOOKS // (1 + len(gained))
        holding = (
            key
            for number, (key, gang) in enumerate(self._holding.items())
            if (gained or gang.hint in touched)
            and (number >= looks or self._may_fit(gang, gained, gang.hint in touched))
        )
        return sorted({*keys, *holding})

    def _woken(self, helped: Collection[QueueingHint], update_at: float | None) -> list[str]:
        """Return the gangs with these needs; note from when on the others show old numbers, if they do."""
        if update_at is not None and len(helped) < len(self._refused):
            self._passed_over = self._number
            if self.update_at is None:
                self.update_at = update_at
        return sorted(itertools.chain.from_iterable(self._refused[hint] for hint in helped))

    def asked(self) -> None:
        """The planner is asked about the cluster as it is now."""
        self._gained, self._anywhere = set(), False
        self._changes.clear()

    def overtaken(self, gang: Gang) -> bool:
        """Return whether what came free since the planner was asked may help a gang that did not fit then."""
        assert gang.hint is not None
        if self._anywhere:
            return True
        alone = Watchers()
        alone.add(gang.hint)
        return self._may_fit(gang, self._gained, bool(self._touched(alone, self._changes)))

    def _touched(self, watchers: Watchers, changes: PeerChanges) -> set[QueueingHint]:
        return watchers.touched(changes, self._ledger.existing_pods.labels_of) if changes else set()

    def _may_fit(self, gang: Gang, gained: Collection[str], touched: bool) -> bool:
        assert gang.hint is not None
        return may_fit_now(gang.hint, self._ledger, gained, touched, gang.retained)

    def update(self) -> None:
        """The time has come to ask about what was passed over."""
        old = (self._refused[hint] for hint, at in self._numbers.items() if at <= self._passed_over)
        self._to_update = sorted({*self._to_update, *itertools.chain.from_iterable(old)}, reverse=True)
        self._passed_over, self.update_at = -1, None
