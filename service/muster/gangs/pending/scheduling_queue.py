"""Gangs that wait for the planner, and refused gangs that wait for a change that may help them.

kube-scheduler has the same two parts: its active queue, and its unschedulable pods.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection
from typing import NamedTuple

from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.queueing_hints import HintTable, QueueingHint
from muster.gangs.messages.instructions import Lane
from muster.gangs.peers.existing_pods import Changes
from muster.gangs.pending.watchers import Watchers
from muster.gangs.record.gang import Gang, PlannerQuestion, QueueOrder

FAIR_TURN = 4
"""In one of this many turns, the gang that was planned longest ago comes first."""


class _Entry(NamedTuple):
    """An entry of the queue. Entries are compared field by field, and False comes before True."""

    last_turn: int
    """The turn in which the gang was planned last, 0 if it never was; −1 for a covered gang, which comes
    first. Always 0 in the order by priority."""
    order: QueueOrder
    key: str
    """The gang's key."""
    number: int
    """Number of the entry. Only a gang's last entry counts: older entries stay in the heap until popped."""

    def is_below(self, floor: int | None) -> bool:
        """Return whether the gang's priority is below `floor`, and the gang is not covered."""
        return floor is not None and not self.order.is_covered and self.order.priority < floor


def namespace_of(key: str) -> str:
    """Return the namespace of a gang's key."""
    return key.partition("/")[0]


class _Order:
    """Entries in one order. `is_current(entry)`: whether the entry still counts.

    Entries of resting and paused namespaces are stored apart, so that other turns need not read them.
    """

    def __init__(self, is_current: Callable[[_Entry], bool]) -> None:
        self._is_current = is_current
        self._heap: list[_Entry] = []
        self._heap_by_namespace: dict[str, list[_Entry]] = {}

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, self._heap_by_namespace.values()))

    def push(self, entry: _Entry) -> None:
        """Add an entry."""
        heapq.heappush(self._heap, entry)

    def first_entry(self, resting: Collection[str], paused: Collection[str]) -> _Entry | None:
        """Return the first entry of namespaces that do not rest, or else of all; None if there is no entry.

        Entries of `paused` namespaces are left out, except for partially bound gangs.
        """
        for namespace in self._heap_by_namespace.keys() - {*resting, *paused}:
            for entry in self._heap_by_namespace.pop(namespace):
                heapq.heappush(self._heap, entry)
        while self._heap:
            entry = self._heap[0]
            namespace = namespace_of(entry.key)
            if not self._is_current(entry):
                heapq.heappop(self._heap)
            elif not entry.order.is_covered and (
                namespace in resting or (namespace in paused and not entry.order.has_precedence)
            ):
                heapq.heappush(self._heap_by_namespace.setdefault(namespace, []), heapq.heappop(self._heap))
            else:
                return entry
        heads = ((namespace, self._head(heap)) for namespace, heap in self._heap_by_namespace.items())
        allowed = (
            head
            for namespace, head in heads
            if head and (head.order.has_precedence or namespace not in paused)
        )
        return min(allowed, default=None)

    def tidy(self, current: int) -> None:
        """Remove entries that no longer count, once they outnumber the current entries."""
        if len(self) > 2 * current + FAIR_TURN:
            for heap in (self._heap, *self._heap_by_namespace.values()):
                heap[:] = filter(self._is_current, heap)
                heapq.heapify(heap)

    def _head(self, heap: list[_Entry]) -> _Entry | None:
        while heap and not self._is_current(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap else None


class Queue:
    """Gang keys waiting to be planned, each once.

    Covered gangs come first: they are partially bound and hold a place for each waiting member, so planning
    them takes nothing from other gangs. Then the highest priority comes first; at equal priority, partially
    bound gangs and then the oldest. Other partially bound gangs do not come before a higher priority, because
    users can make a gang partially bound: they delete a member between Permit and its Binding.

    Each change that frees capacity puts refused gangs back into the queue. If changes come faster than the
    planner answers, these old gangs would come before a young gang for ever, although the young gang fits. So
    every few turns the planner is asked about the gang whose last turn was longest ago, or that had no turn.
    """

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}
        self._by_priority = _Order(self._is_current)
        self._by_last_turn = _Order(self._is_current)
        self._last_turn: dict[str, int] = {}
        self._turn = 0
        self._number = 0

    def put(self, key: str, order: QueueOrder) -> None:
        """Add a gang to the queue, or move it."""
        self._number += 1
        self._entries[key] = self._number
        entry = _Entry(0, order, key, self._number)
        self._by_priority.push(entry)
        last_turn = -1 if order.is_covered else self._last_turn.get(key, 0)
        self._by_last_turn.push(entry._replace(last_turn=last_turn))
        self._tidy()  # here too: without a session nothing is popped, and old entries would pile up

    def __len__(self) -> int:
        return len(self._entries)

    def drop(self, key: str) -> None:
        """Remove a gang, if it is in the queue."""
        self._entries.pop(key, None)

    def forget(self, key: str) -> None:
        """Forget a gang that is gone: a new gang may have its key."""
        self.drop(key)
        self._last_turn.pop(key, None)

    def pop(
        self,
        only_partial: bool = False,
        resting: Collection[str] = (),
        floor: int | None = None,
        paused: Collection[str] = (),
    ) -> str | None:
        """Remove the next gang and return its key; None if none waits.

        `only_partial`: return None unless the first gang by priority is partially bound. Gangs of `resting`
        namespaces come after other gangs, unless they are covered. `floor`: return only a gang of this
        priority or a higher one, or a covered gang. Gangs of `paused` namespaces are left out, except for
        partially bound gangs.
        """
        entry = self._by_priority.first_entry(resting, paused)
        if only_partial and (entry is None or not entry.order.has_precedence):
            return None
        self._turn += 1
        if entry is None or entry.is_below(floor):
            return None
        if self._turn % FAIR_TURN == 0 and not only_partial:
            oldest_turn = self._by_last_turn.first_entry(resting, paused)
            entry = entry if oldest_turn is None or oldest_turn.is_below(floor) else oldest_turn
        key = entry.key
        del self._entries[key]
        self._last_turn[key] = self._turn
        self._tidy()
        return key

    def _tidy(self) -> None:
        for order in (self._by_priority, self._by_last_turn):
            order.tidy(len(self._entries))

    def _is_current(self, entry: _Entry) -> bool:
        return self._entries.get(entry.key) == entry.number


class SchedulingQueue:
    """Hold the gangs that wait for a planner, and the refused gangs by their hints.

    If a change does not wake a refused gang, its refusal shows old numbers. From `update_at` on, the planner
    is asked about such gangs again while no other gang waits.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.update_at: float | None = None
        self._ledger = ledger
        self._queues = {lane: Queue() for lane in Lane}
        self._refused: dict[QueueingHint, set[str]] = {}
        self._hint_of: dict[str, QueueingHint] = {}
        """Refused gang → its hint: what the gang must have to fit."""
        self._hints = HintTable()
        self._watchers = Watchers()
        self._numbers: dict[QueueingHint, int] = {}
        """Hint → number of its refusal. Later refusals have higher numbers."""
        self._number = 0
        self._last_outdated = -1
        """Refusals up to this number may show old numbers: a change did not wake their gangs."""
        self.to_update: list[str] = []
        """Gangs that are planned again only to update the numbers in their refusals, the last gang first.
        They may have been planned since."""
        self._lacking: dict[str, int] = {}
        """Gangs that lack required members and wait for the planner, or soon will: key → priority."""

    def add_waiting(self, gang: Gang, lane: Lane, order: QueueOrder) -> None:
        """Queue the gang for a planner."""
        self.note_lacking(gang)
        self._queues[lane].put(gang.key, order)

    def note_lacking(self, gang: Gang) -> None:
        """If the gang lacks required members, note that it waits for a planner or soon will."""
        if not gang.group.enough_bound:
            self._lacking[gang.key] = gang.group.priority

    def any_lacking(self, priority: int) -> bool:
        """Return whether a gang of this priority or a higher one lacks required members."""
        return any(lacking_priority >= priority for lacking_priority in self._lacking.values())

    def add_refused(self, gang: Gang, hint: QueueingHint) -> None:
        """Add a refused gang; `hint` says what it must have to fit."""
        hint = self._hint_for(gang, hint)
        if hint not in self._refused:
            self._refused[hint] = set()
            self._hints.add(hint)
            self._watchers.add(hint)
            self._number += 1
            self._numbers[hint] = self._number
        self._refused[hint].add(gang.key)
        self._hint_of[gang.key] = hint

    def remove(self, gang: Gang) -> None:
        """Remove a gang that is neither waiting nor refused any more."""
        for queue in self._queues.values():
            queue.drop(gang.key)
        self._lacking.pop(gang.key, None)
        hint = self._hint_of.pop(gang.key, None)
        if hint is not None:
            self._refused[hint].discard(gang.key)
            if not self._refused[hint]:
                del self._refused[hint], self._numbers[hint]
                self._hints.discard(hint)
                self._watchers.discard(hint)

    def forget(self, gang: Gang) -> None:
        """Forget a gang that is gone."""
        self.remove(gang)
        for queue in self._queues.values():
            queue.forget(gang.key)

    def count_waiting(self, lane: Lane) -> int:
        """Return how many gangs wait for this planner."""
        return len(self._queues[lane])

    def pop_next(
        self,
        lane: Lane,
        only_partial: bool = False,
        resting: Collection[str] = (),
        floor: int | None = None,
        paused: Collection[str] = (),
    ) -> str | None:
        """Remove and return the gang to be planned now; the arguments are those of `Queue.pop`."""
        key = self._queues[lane].pop(only_partial, resting, floor, paused)
        if key is not None:
            self._lacking.pop(key, None)
        return key

    def gangs_helped_by(self, changes: Changes, update_at: float) -> list[str]:
        """Return the refused gangs that changes may help.

        If nodes gained capacity, the numbers in the other refusals are old. Then note to update them at
        `update_at`.
        """
        if changes.anywhere:
            return sorted(itertools.chain.from_iterable(self._refused.values()))
        gained_nodes, touched_hints = changes.gained_nodes, self._hints_touched_by(self._watchers, changes)
        helped = set[QueueingHint]()
        if gained_nodes or touched_hints:
            helped = self._hints.may_fit(self._ledger, gained_nodes, touched_hints)
        if gained_nodes and len(helped) < len(self._refused):
            self._last_outdated = self._number
            if self.update_at is None:
                self.update_at = update_at
        return sorted(itertools.chain.from_iterable(self._refused[hint] for hint in helped))

    def is_overtaken(self, gang: Gang, question: PlannerQuestion) -> bool:
        """Return whether changes since the planner was asked may help the gang, which was refused."""
        since = question.since
        if since.anywhere:
            return True
        hint, watchers, hints = self._hint_for(gang, question.hint), Watchers(), HintTable()
        watchers.add(hint)
        hints.add(hint)
        return bool(hints.may_fit(self._ledger, since.gained_nodes, self._hints_touched_by(watchers, since)))

    def _hints_touched_by(self, watchers: Watchers, changes: Changes) -> set[QueueingHint]:
        if not changes.concern_peers:
            return set()
        return watchers.hints_touched_by(changes, self._ledger.existing_pods.labels_of)

    def _hint_for(self, gang: Gang, hint: QueueingHint) -> QueueingHint:
        """Return `hint`, or its variant for a gang that holds places or devices and can use them again."""
        claimants = self._ledger.device_claims.consumers
        holds = gang.retained_uids or (claimants and any(pod.uid in claimants for pod in gang.group.unbound))
        return hint.for_holder() if holds else hint

    def update(self) -> None:
        """Have the gangs planned again whose refusals may show old numbers."""
        outdated = (
            self._refused[hint] for hint, number in self._numbers.items() if number <= self._last_outdated
        )
        self.to_update = sorted({*self.to_update, *itertools.chain.from_iterable(outdated)}, reverse=True)
        self._last_outdated, self.update_at = -1, None
