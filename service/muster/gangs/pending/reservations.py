"""Capacity that waiting gangs keep: retained capacity, and the backfill reservation.

A gang retains places for its next plan while it is partially bound, or while it runs and lacks a lost member
that it needs. No other gang is planned on retained capacity.

Without the backfill reservation, smaller gangs could pass the gang that has waited longest for ever. The
planner says where it would place that gang if all pods with GPUs had ended. GPUs on these nodes that are
free, or come free, are reserved for the gang. A gang that would not fit even then has no reservation. It is
not known when the pods end, so reservations are limited: there is one at a time, a reservation ends after a
term, and the namespaces take turns. A reservation hides nothing from more urgent gangs, and covers at most a
share of the cluster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from muster.domain.decision import Decision, Placed
from muster.domain.node import Resources, Usage
from muster.domain.pod import Pod
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits, mask_of
from muster.gangs.capacity.ledger import Ledger, fits
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.gang import Gang

_REVIEW_EVERY_S = 0.5
"""Pause between two reviews, in seconds."""
_MAX_MOVED_PER_REVIEW = 256
"""Most gangs that one review moves from `_waiting_too_short` to `_by_priority`, so that it stays short."""
_NOTHING = Resources(pods=0)
_NAMED = 8
"""Largest number of nodes that the sentence about a reservation names."""


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """Nodes that are reserved for a gang until a time."""

    gang: str
    wants: Mapping[str, int] = field(hash=False)
    """Node → number of GPUs that the gang would take. This number of GPUs is reserved there, once they are
    free."""
    until: float
    """End of the term, in seconds of the inputs' clock less `Backfill._unseen_s`, which prolongs the term."""
    priority: int = 0
    """The gang's priority."""
    resources: Mapping[str, Resources] = field(default_factory=dict, hash=False)
    """Node → other resources that the gang would take."""

    def hides_from(self, gang: Gang) -> bool:
        """Return whether the gang must not use these nodes.

        Gangs with a higher priority or with precedence may use them, so that lost members are replaced and
        partially bound gangs are completed.
        """
        if gang.key == self.gang or gang.group.priority > self.priority:
            return False
        return not gang.has_precedence

    def __str__(self) -> str:
        names = sorted(self.wants)
        and_more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"What comes free on {', '.join(names[:_NAMED])}{and_more} is reserved for it for a while"


def _usages_of(reservation: BackfillReservation, snapshot: Snapshot) -> Iterator[Usage]:
    """Yield the reserved capacity, which counts as taken for other gangs."""
    uid, resources = f"reserved for {reservation.gang}", reservation.resources
    for name, gpus in sorted(reservation.wants.items()):
        if name in snapshot.nodes:
            mask = _first_gpus(snapshot.nodes[name], gpus)
            yield Usage(uid, name, resources.get(name, _NOTHING), gpus=mask)


def _first_gpus(state: NodeState, gpus: int) -> int:
    """Return the bit mask of the first `gpus` free GPUs; of all free GPUs if there are no more."""
    return state.free_gpus if state.free_gpu_count <= gpus else mask_of(list(bits(state.free_gpus))[:gpus])


def with_scores(request: Request, snapshot: Snapshot) -> Request:
    """Return the request with scores by which members prefer nodes with more free GPUs.

    So of equally good places the planner takes the place where the fewest GPUs must still come free.
    """
    gpus = (
        (name, state.free_gpu_count, state.node.topology.gpu_count) for name, state in snapshot.nodes.items()
    )
    scores = {name: 100 * free // gpu_count for name, free, gpu_count in gpus if free}
    largest = max(request.roles, key=lambda role: role.gpus * len(role.members))
    roles = (replace(role, scores=scores if role is largest else {}) for role in request.roles)
    return replace(request, roles=tuple(roles))


@dataclass(slots=True)
class _Waiting:
    since: float
    """Begin of its wait, in seconds of the inputs' clock less `Backfill._unseen_s`."""
    namespace: str
    priority: int


class Backfill:
    """Decide which gang has the reservation, and which is next.

    Among the gangs that have waited `backfill_after_s`, the highest priority comes first. At equal priority
    the namespaces take turns, and within a namespace the longest wait comes first. Each review does a bounded
    amount of work.
    """

    def __init__(self, settings: GangSettings, ledger: Ledger, now: Callable[[], float]) -> None:
        self.current: BackfillReservation | None = None
        self._now = now
        self._settings = settings
        self._ledger = ledger
        self._unseen_s = 0.0
        """Seconds, so far, in which the cluster could not be seen."""
        self._waiting: dict[str, _Waiting] = {}
        self._waiting_too_short: dict[str, None] = {}
        """Gangs that have not waited long enough, the longest wait first."""
        self._by_priority: dict[int, dict[str, dict[str, None]]] = {}
        """The gangs that have waited long enough: priority → namespace → gangs. The namespace whose turn is
        next comes first."""
        self._failed_nodes: dict[str, frozenset[str]] = {}
        """Gang → nodes on which too little came free in the gang's term. Its next term avoids these."""
        self._turn_of: str | None = None
        """The gang whose turn it is, while the planner decides where its reservation would lie."""
        self._review_at: float | None = None

    def add_waiting(self, gang: Gang) -> None:
        """Add a gang that was refused, if it is not waiting yet."""
        priority, waiting = gang.group.priority, self._waiting.get(gang.key)
        if waiting is None:
            self._waiting[gang.key] = _Waiting(math.inf, gang.name[0], priority)
            self._wait_anew(gang.key)
        elif waiting.priority != priority:
            if self._leave_turns(gang.key):
                self._gangs_at(priority, waiting.namespace)[gang.key] = None
            waiting.priority = priority

    def remove(self, gang: Gang) -> None:
        """Remove a gang that no longer waits: it was planned, has changed or is gone."""
        if self._waiting.get(gang.key) is None:
            return
        self._waiting_too_short.pop(gang.key, None)
        self._leave_turns(gang.key)
        del self._waiting[gang.key]
        self._failed_nodes.pop(gang.key, None)
        if self._turn_of == gang.key:
            self._turn_of = None
        if self.current is not None and self.current.gang == gang.key:
            self._end_current()
            self._review_at = self._now()

    def snapshot_for(self, gang: Gang, snapshot: Snapshot) -> Snapshot:
        """Return the cluster as the gang may use it. Capacity that is reserved for another gang counts as
        taken."""
        hidden = self.hidden_usages(gang, snapshot)
        return snapshot.with_usages(hidden) if hidden else snapshot

    def hidden_usages(self, gang: Gang, snapshot: Snapshot) -> list[Usage]:
        """Return the capacity that is reserved for another gang, if it counts as taken for this gang."""
        if self.current is None or not self.current.hides_from(gang):
            return []
        return list(_usages_of(self.current, snapshot))

    def postpone(self, seconds: float) -> None:
        """Postpone all deadlines by the seconds in which the cluster could not be seen."""
        self._unseen_s += seconds

    def next_at(self) -> float | None:
        """Return when the next review is due, in seconds of the inputs' clock; None if no gang waits."""
        if self._review_at is not None:
            return self._review_at
        if self.current is not None:
            return self.current.until + self._unseen_s
        oldest = next(iter(self._waiting_too_short), None)
        if oldest is None:
            return None
        return self._waiting[oldest].since + self._settings.backfill_after_s + self._unseen_s

    def review(self) -> str:
        """End a reservation whose term is over, and note the next few gangs that have waited long enough.

        Return the key of the gang whose term ended; "" if no term ended.
        """
        self._review_at, ended = None, ""
        if self.current is not None and self.current.until + self._unseen_s <= self._now():
            ended = self.current.gang
            failed_nodes = self._nodes_lacking_gpus(self.current)
            self._failed_nodes[ended] = self._failed_nodes.get(ended, frozenset()) | failed_nodes
            self._wait_anew(ended)
            self._end_current()
        if self._move_due() or (self._by_priority and self.current is None):
            self._review_at = self._now() + _REVIEW_EVERY_S
        return ended

    def next_turn(self) -> str | None:
        """Return the gang whose turn is next; None if no gang is due, or another gang has its turn."""
        if self.current is None and self._turn_of is None:
            self._turn_of = self._pop_turn()
            return self._turn_of
        return None

    def snapshot_after_all_ended(self, gang: Gang) -> Snapshot:
        """Return the cluster as if all pods with GPUs had ended, except on the gang's `_failed_nodes`."""
        own_uids = {pod.uid for pod in gang.group.bound}
        return self._ledger.snapshot_after_all_ended(own_uids, self._failed_nodes.get(gang.key, frozenset()))

    def skip_turn(self, key: str) -> None:
        """End the gang's turn without a reservation, and let the gang wait anew."""
        self._failed_nodes.pop(key, None)  # from the gang's next turn on, all nodes are allowed again
        self._turn_of = None
        self._wait_anew(key)

    def take_answer(self, key: str, request: Request, decision: Decision | None) -> bool:
        """Reserve the plan of the gang whose turn it is. Return whether the gang has a reservation now.

        It has no reservation if the planner found no place, or more than `backfill_share` of all GPUs on
        several nodes.
        """
        if self._turn_of != key:
            return False  # the gang no longer waits
        roles = {role.name: role for role in request.roles}
        wants: Counter[str] = Counter()
        resources: dict[str, Resources] = {}
        for member in decision.members if isinstance(decision, Placed) else ():
            wants[member.node] += 0 if member.units else len(member.gpus)
            member_resources = roles[member.role].resources
            resources[member.node] = resources.get(member.node, _NOTHING) + member_resources
        gpus = {name: node.topology.gpu_count for name, node in self._ledger.nodes.items()}
        covered_gpus = sum(gpus.get(name, 0) for name in +wants)
        largest_share = self._settings.backfill_share * sum(gpus.values())
        if not covered_gpus or (len(+wants) > 1 and covered_gpus > largest_share):
            self.skip_turn(key)
            return False
        self._turn_of = None
        until = self._now() + self._settings.backfill_s - self._unseen_s
        self.current = BackfillReservation(key, +wants, until, self._waiting[key].priority, resources)
        return True

    def _nodes_lacking_gpus(self, reservation: BackfillReservation) -> frozenset[str]:
        """Return the nodes on which too few GPUs came free; all nodes of the reservation if enough came free
        everywhere."""
        free = {
            name: state.free_gpu_count for name in reservation.wants if (state := self._ledger.state(name))
        }
        lacking = {name for name, gpus in reservation.wants.items() if free.get(name, 0) < gpus}
        return frozenset(lacking or reservation.wants)

    def _end_current(self) -> None:
        """End the reservation: other gangs may use its nodes again."""
        assert self.current is not None
        self._ledger.note_gained(self.current.wants)
        self.current = None

    def _wait_anew(self, key: str) -> None:
        self._waiting[key].since = self._now() - self._unseen_s
        self._waiting_too_short[key] = None

    def _move_due(self) -> bool:
        """Move gangs that have waited long enough from `_waiting_too_short` to `_by_priority`.

        Return whether there may be more such gangs.
        """
        for _ in range(_MAX_MOVED_PER_REVIEW):
            key = next(iter(self._waiting_too_short), None)
            if key is None:
                return False
            waiting = self._waiting[key]
            if waiting.since + self._settings.backfill_after_s + self._unseen_s > self._now():
                return False
            del self._waiting_too_short[key]
            self._gangs_at(waiting.priority, waiting.namespace)[key] = None
        return True

    def _gangs_at(self, priority: int, namespace: str) -> dict[str, None]:
        """Return the gangs of the namespace with this priority that have waited long enough."""
        return self._by_priority.setdefault(priority, {}).setdefault(namespace, {})

    def _pop_turn(self) -> str | None:
        """Remove the gang whose turn is next, and return its key; None if no gang has waited long enough.

        The turn of the gang's namespace is last from then on.
        """
        if not self._by_priority:
            return None
        namespaces = self._by_priority[max(self._by_priority)]
        namespace = next(iter(namespaces))
        key = next(iter(namespaces[namespace]))
        gangs = namespaces.pop(namespace)
        namespaces[namespace] = gangs
        self._leave_turns(key)
        return key

    def _leave_turns(self, key: str) -> bool:
        """Remove a gang from `_by_priority`. Return whether it was there."""
        waiting = self._waiting[key]
        namespaces = self._by_priority.get(waiting.priority, {})
        gangs = namespaces.get(waiting.namespace, {})
        if key not in gangs:
            return False
        del gangs[key]
        if not gangs:
            del namespaces[waiting.namespace]
        if not namespaces:
            del self._by_priority[waiting.priority]
        return True


_PlaceSize = tuple[Resources, int, int]
"""Resources other than GPUs, number of GPUs, and GiB of each GPU (0 for whole GPUs)."""


class Retained:
    """Track retained capacity: `Gang.retained_uids` has the members, and the ledger their places."""

    def __init__(self, gangs: Mapping[str, Gang], ledger: Ledger) -> None:
        self._gangs = gangs
        self._ledger = ledger
        self._holders: set[str] = set()
        """Keys of the gangs that retain capacity."""

    def keep(self, gang: Gang, uids: Iterable[str]) -> None:
        """Retain the reservations of these members for the gang's next plan."""
        gang.retained_uids |= {uid for uid in uids if uid in self._ledger.reservations}
        if gang.retained_uids:
            self._holders.add(gang.key)

    def keep_lost(self, gang: Gang) -> None:
        """Retain the places of lost members that are still free, as many as the gang lacks members.

        The retained places have no more GPUs together than the gang's bound members. Otherwise a user could
        retain many times a quota, because the quota is free as soon as a pod is deleted.
        """
        bound = [usage for pod in gang.group.bound if (usage := self._ledger.bound.get(pod.uid)) is not None]
        missing_members = max(1, gang.group.fewest_needed - len(bound))  # 1 if only one role lacks members
        places = missing_members - len(gang.reserved_uids)
        max_gpus, kept_uids = sum(map(_count_gpus, bound)), set[str]()
        for uid, lost_member in sorted(gang.lost_members.items()):
            usage = lost_member.usage
            if uid in self._ledger.bound or places <= 0 or _count_gpus(usage) > max_gpus:
                continue
            if uid not in self._ledger.reservations:  # a reserved place is still free for the gang
                if not self._is_free(usage):
                    continue
                self._ledger.hold([usage])
            kept_uids.add(uid)
            places, max_gpus = places - 1, max_gpus - _count_gpus(usage)
        self.release(gang, (gang.retained_uids & gang.lost_members.keys()) - kept_uids)
        self.keep(gang, kept_uids)

    def _is_free(self, usage: Usage) -> bool:
        """Return whether the place is free. Devices that the lost pod's claim may hold count as free."""
        name, uid = usage.node, usage.pod_uid
        node = self._ledger.states_without((uid,)).get(name) or self._ledger.state(name)
        return node is not None and fits(Snapshot({name: node}), [usage])

    def release(self, gang: Gang, uids: Collection[str]) -> None:
        """End reservations of the gang, retained or not."""
        self._ledger.release(tuple(uids))
        gang.retained_uids = gang.retained_uids.difference(uids)
        if not gang.retained_uids:
            self._holders.discard(gang.key)

    def release_taken(self, node: str) -> None:
        """Release retained capacity that other pods took on this node, or that the node no longer has."""
        reserved_uids = self._ledger.stated_usages_on(node).keys() & self._ledger.reservations.keys()
        for key in sorted(
            key for key in self._holders if not self._gangs[key].retained_uids.isdisjoint(reserved_uids)
        ):
            gang = self._gangs[key]
            usages = [usage for usage in self.retained_usages(gang) if usage.node == node]
            uids = {usage.pod_uid for usage in usages}
            if usages and not fits(self._ledger.snapshot_without(uids), usages):
                self.release(gang, uids)

    def covers(self, gang: Gang) -> bool:
        """Return whether a place of exactly the requested size is retained for each waiting member.

        Then the gang's plan takes nothing from other gangs, and the gang may be planned before them.
        """
        if not gang.retained_uids:
            return False
        places = Counter(
            (usage.resources, _count_gpus(usage), usage.units) for usage in self.retained_usages(gang)
        )
        for pod in sorted(gang.group.unbound, key=lambda pod: len(pod.gpu_counts)):
            size = next((size for size in _place_sizes(pod, places) if places[size] > 0), None)
            if size is None:
                return False
            places[size] -= 1
        return True

    def retained_usages(self, gang: Gang) -> list[Usage]:
        """Return the usages that are retained for the gang."""
        usages = self._ledger.reservations
        return [usages[uid] for uid in sorted(gang.retained_uids) if uid in usages]


def _count_gpus(usage: Usage) -> int:
    return usage.gpus.bit_count() + usage.unindexed_gpus


def _place_sizes(pod: Pod, places: Iterable[_PlaceSize]) -> list[_PlaceSize]:
    """Return the sizes that a place of the pod may have: several if its claims leave the number of GPUs
    open."""
    if pod.slice is not None:
        return [(pod.resources, pod.slice.gpus, pod.slice.units)]
    if not pod.gpu_counts:
        return [(pod.resources, pod.gpus, 0)]
    return [(pod.resources, gpus, 0) for _, gpus, _ in places if pod.may_take(gpus)]
