"""Gangs that wait for the planner, and refused gangs that wait until something comes free that may help.

The latter are what kube-scheduler calls the unschedulable pods.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection

from muster.gangs.capacity import requests
from muster.gangs.capacity.hint_table import HintTable
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.queueing_hints import QueueingHint, may_fit_now
from muster.gangs.messages.instructions import Lane
from muster.gangs.peers.peer_changes import PeerChanges
from muster.gangs.pending.active_queue import Queue
from muster.gangs.pending.watchers import Watchers
from muster.gangs.record.gang import Gang, Solving

_LOOKS = 1024
"""Nodes that are looked at, for one input, for refused gangs that hold places (about 20 ms).

Gangs beyond that are woken without a look.
"""


class SchedulingQueue:
    """Hold each gang as waiting, as refused, or not at all.

    Gangs with equal hints are looked at once, and all hints together. The refusal of a gang that is passed
    over shows old numbers. It is asked about again from `update_at` on, while no other gang waits for the
    planner.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.update_at: float | None = None
        self._ledger = ledger
        self._queues = {lane: Queue() for lane in Lane}
        self._refused: dict[QueueingHint, set[str]] = {}
        self._hint_of: dict[str, QueueingHint] = {}
        """Refused gang → what it must have to fit."""
        self._holding: dict[str, tuple[Gang, QueueingHint]] = {}
        """Refused gangs that held places when they were refused: each is looked at alone."""
        self._hints = HintTable()
        self._watchers = Watchers()
        self._numbers: dict[QueueingHint, int] = {}
        """Hint → the number of its refusal, in the order of time."""
        self._number = 0
        self._passed_over = -1
        """Hints with at most this number were passed over, except for some that may have been asked about."""
        self._to_update: list[str] = []
        self._lacking: dict[str, int] = {}
        """Gangs that lack members which they need, waiting or about to: key → priority."""

    def wait(self, gang: Gang, lane: Lane, partial: bool, first: bool, extras_s: float) -> None:
        """Queue the gang for a planner; `partial` and `first` as in `Queue.put`.

        `extras_s`: how much younger members count that the gang can do without.
        """
        group = gang.group
        created = requests.created(group)
        if partial:  # it is as old as the first of its members that run
            created = min(created, *(pod.created for pod in group.bound))
        if group.enough_bound:
            created += extras_s
        else:
            self.lacks(gang)
        self._queues[lane].put(gang.key, requests.priority(group), created, partial, first)

    def lacks(self, gang: Gang) -> None:
        """Note that a gang which lacks members that it needs will soon wait for the planner."""
        if not gang.group.enough_bound:
            self._lacking[gang.key] = requests.priority(gang.group)

    @property
    def lacking(self) -> Collection[str]:
        """Return the keys of the gangs that wait, or soon will, for members that they need."""
        return self._lacking.keys()

    def any_lacking(self, priority: int) -> bool:
        """Return whether a gang of this priority, or a higher one, waits for members that it needs."""
        return any(other >= priority for other in self._lacking.values())

    def refused(self, gang: Gang, hint: QueueingHint) -> None:
        """Note that the gang does not fit now; `hint` is what it must have to fit."""
        if hint not in self._refused:
            self._refused[hint] = set()
            self._hints.add(hint)
            self._watchers.add(hint)
            self._number += 1
            self._numbers[hint] = self._number
        self._refused[hint].add(gang.key)
        self._hint_of[gang.key] = hint
        if self._own(gang):
            self._holding[gang.key] = (gang, hint)

    @property
    def standing(self) -> set[str]:
        """Return the keys of all gangs that wait or are refused."""
        return set(self._hint_of).union(*self._queues.values())

    @property
    def in_several(self) -> set[str]:
        """Return the keys of the gangs that wait for several planners: none should."""
        counted = Counter(itertools.chain.from_iterable(self._queues.values()))
        return {key for key, count in counted.items() if count > 1}

    def leave(self, gang: Gang) -> None:
        """Note that the gang neither waits nor is refused any more."""
        for queue in self._queues.values():
            queue.drop(gang.key)
        self._lacking.pop(gang.key, None)
        self._holding.pop(gang.key, None)
        hint = self._hint_of.pop(gang.key, None)
        if hint is not None:
            self._refused[hint].discard(gang.key)
            if not self._refused[hint]:
                del self._refused[hint], self._numbers[hint]
                self._hints.discard(hint)
                self._watchers.discard(hint)

    def forget(self, gang: Gang) -> None:
        """Forget a gang that is gone."""
        self.leave(gang)
        for queue in self._queues.values():
            queue.forget(gang.key)

    def waiting(self, lane: Lane) -> int:
        """Return how many gangs wait for this planner."""
        return len(self._queues[lane])

    def next(
        self,
        lane: Lane,
        only_partial: bool = False,
        resting: Collection[str] = (),
        floor: int | None = None,
        held: Collection[str] = (),
    ) -> str | None:
        """Remove and return the gang to be planned now; the arguments are those of `Queue.pop`."""
        key = self._queues[lane].pop(only_partial, resting, floor, held)
        if key is not None:
            self._lacking.pop(key, None)
        return key

    def next_to_update(self) -> str | None:
        """Return a gang to be asked about only for its numbers; None if there is none. It may have been
        planned since."""
        return self._to_update.pop() if self._to_update else None

    def freed(
        self, gained: Collection[str], changes: PeerChanges, anywhere: bool, update_at: float
    ) -> list[str]:
        """Return the refused gangs that a change may help.

        `gained`: nodes with more free capacity; `anywhere`: any node may have. `changes`: other pods that
        changed. `update_at`: when the numbers of the other gangs are updated.
        """
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
            for number, (key, (gang, hint)) in enumerate(self._holding.items())
            if (gained or hint in touched)
            and (number >= looks or self._may_fit(gang, hint, gained, hint in touched))
        )
        return sorted({*keys, *holding})

    def _woken(self, helped: Collection[QueueingHint], update_at: float | None) -> list[str]:
        """Return the gangs with these hints. If the others show old numbers now, note when to update them."""
        if update_at is not None and len(helped) < len(self._refused):
            self._passed_over = self._number
            if self.update_at is None:
                self.update_at = update_at
        return sorted(itertools.chain.from_iterable(self._refused[hint] for hint in helped))

    def overtaken(self, gang: Gang, solving: Solving) -> bool:
        """Return whether what changed since the planner was asked may help a gang that did not fit."""
        since = solving.since
        if since.anywhere:
            return True
        alone = Watchers()
        alone.add(solving.hint)
        return self._may_fit(gang, solving.hint, since.gained, bool(self._touched(alone, since.peers)))

    def _touched(self, watchers: Watchers, changes: PeerChanges) -> set[QueueingHint]:
        return watchers.touched(changes, self._ledger.existing_pods.labels_of) if changes else set()

    def _may_fit(self, gang: Gang, hint: QueueingHint, gained: Collection[str], touched: bool) -> bool:
        return may_fit_now(hint, self._ledger, gained, touched, self._own(gang))

    def _own(self, gang: Gang) -> set[str]:
        """Return the members whose places or devices count as free for the gang."""
        claimants = self._ledger.device_claims.consumers
        holders = {pod.uid for pod in gang.group.unbound if pod.uid in claimants} if claimants else set[str]()
        return gang.retained | holders

    def update(self) -> None:
        """Have the gangs asked about that were passed over."""
        old = (self._refused[hint] for hint, at in self._numbers.items() if at <= self._passed_over)
        self._to_update = sorted({*self._to_update, *itertools.chain.from_iterable(old)}, reverse=True)
        self._passed_over, self.update_at = -1, None
