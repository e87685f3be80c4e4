"""Capacity that waiting gangs keep: retained capacity, and the backfill reservation.

Partially bound gangs retain capacity for their next plan, and so do running gangs that lost members which
they need. No other gang is planned on retained capacity.

The backfill reservation keeps smaller gangs from passing the gang that has waited longest for ever. The
planner says where it would place that gang if all pods with GPUs had ended. GPUs on these nodes that are
free, or come free, are reserved for the gang. A gang that would not fit even then has no reservation. It is
not known when the pods end, so reservations are limited: there is one at a time, a reservation ends after a
term, and the namespaces take turns. A reservation hides nothing from more urgent gangs, and covers at most a
share of the cluster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from muster.domain.decision import Decision, Placed
from muster.domain.node import Resources, Usage
from muster.domain.pod import Pod
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits, mask_of
from muster.gangs.capacity.ledger import Ledger, fits
from muster.gangs.messages.settings import Settings
from muster.gangs.record.gang import Gang

_REVIEW_EVERY_S = 0.5
"""Pause between two reviews, in seconds."""
_MAX_MOVED_PER_REVIEW = 256
"""Largest number of gangs that one review moves from `_young` to `_due`."""
_NOTHING = Resources(pods=0)
_NAMED = 8


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """Nodes that are reserved for a gang until a time."""

    gang: str
    wants: Mapping[str, int] = field(hash=False)
    """Node → number of GPUs that the gang would take. As many GPUs are reserved there, once they are free."""
    until: float
    """End of the term: seconds of the inputs' clock, less the time in which the cluster could not be seen."""
    priority: int = 0
    """The gang's priority."""
    resources: Mapping[str, Resources] = field(default_factory=dict, hash=False)
    """Node → other resources that the gang would take."""

    def hides_from(self, gang: Gang) -> bool:
        """Return whether the gang must not use these nodes.

        A gang with a higher priority or with precedence may use them. So lost members of a running gang are
        replaced, and a partially bound gang is completed.
        """
        if gang.key == self.gang or gang.group.priority > self.priority:
            return False
        return not gang.has_precedence

    def __str__(self) -> str:
        names = sorted(self.wants)
        and_more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"What comes free on {', '.join(names[:_NAMED])}{and_more} is reserved for it for a while"


def _hidden_by(reservation: BackfillReservation, snapshot: Snapshot) -> Snapshot:
    """Return the cluster as other gangs see it: the reserved capacity counts as taken."""
    uid, resources = f"reserved for {reservation.gang}", reservation.resources
    return snapshot.with_usages(
        Usage(uid, name, resources.get(name, _NOTHING), gpus=_first_gpus(snapshot.nodes[name], gpus))
        for name, gpus in sorted(reservation.wants.items())
        if name in snapshot.nodes
    )


def _first_gpus(state: NodeState, gpus: int) -> int:
    """Return the bit mask of the first `gpus` free GPUs; of all free GPUs if there are no more."""
    return state.free_gpus if state.free_gpu_count <= gpus else mask_of(list(bits(state.free_gpus))[:gpus])


def with_scores(request: Request, snapshot: Snapshot) -> Request:
    """Return the request for members that prefer nodes with more free GPUs.

    So among equally good places the planner takes one where fewer GPUs must still come free.
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
    """A refused gang."""

    since: float
    """Begin of its wait, in the seconds of `BackfillReservation.until`."""
    namespace: str
    priority: int


class Backfill:
    """Decide which gang has the reservation, and which is next.

    Among the gangs that have waited `backfill_after_s`, the highest priority comes first. At equal priority
    the namespaces take turns, and within a namespace the longest wait comes first. Each review does a bounded
    amount of work.
    """

    def __init__(self, settings: Settings, ledger: Ledger, now: Callable[[], float]) -> None:
        self.current: BackfillReservation | None = None
        self._now = now
        self._settings = settings
        self._ledger = ledger
        self._unseen = 0.0
        """Seconds, so far, in which the cluster could not be seen."""
        self._waiting: dict[str, _Waiting] = {}
        self._young: dict[str, None] = {}
        """Gangs that have not waited long enough, the longest wait first."""
        self._due: dict[int, dict[str, dict[str, None]]] = {}
        """Priority → namespace → gangs. The namespace whose turn is next comes first."""
        self._failed: dict[str, frozenset[str]] = {}
        """Gang → nodes on which too little came free during the gang's own term."""
        self._turn: str | None = None
        """The gang whose turn it is, while the planner decides where its reservation would lie."""
        self._review_at: float | None = None

    def add_waiting(self, gang: Gang) -> None:
        """Add a gang that was refused, if it is not waiting yet."""
        priority, waiting = gang.group.priority, self._waiting.get(gang.key)
        if waiting is None:
            self._waiting[gang.key] = _Waiting(math.inf, gang.name[0], priority)
            self._wait_anew(gang.key)
        elif waiting.priority != priority:
            if self._drop_due(gang.key):
                self._due_of(priority, waiting.namespace)[gang.key] = None
            waiting.priority = priority

    def remove(self, gang: Gang) -> None:
        """Remove a gang that no longer waits: it was planned, or it is gone or changed."""
        if self._waiting.get(gang.key) is None:
            return
        self._young.pop(gang.key, None)
        self._drop_due(gang.key)
        del self._waiting[gang.key]
        self._failed.pop(gang.key, None)
        if self._turn == gang.key:
            self._turn = None
        if self.current is not None and self.current.gang == gang.key:
            self._end_current()
            self._review_at = self._now()

    def snapshot_for(self, gang: Gang, snapshot: Snapshot) -> Snapshot:
        """Return the cluster as the gang may use it. Capacity that is reserved for another gang counts as
        taken."""
        if self.current is None or not self.current.hides_from(gang):
            return snapshot
        return _hidden_by(self.current, snapshot)

    def postpone(self, seconds: float) -> None:
        """Postpone all deadlines by the seconds in which the cluster could not be seen."""
        self._unseen += seconds

    def next_at(self) -> float | None:
        """Return when the next review is due, in seconds of the inputs' clock; None if no gang waits."""
        if self._review_at is not None:
            return self._review_at
        if self.current is not None:
            return self.current.until + self._unseen
        oldest = next(iter(self._young), None)
        if oldest is None:
            return None
        return self._waiting[oldest].since + self._settings.backfill_after_s + self._unseen

    def review(self) -> str:
        """End a term that is over, and note the next few gangs that have waited long enough.

        Return the key of the gang whose term ended; "" if no term ended.
        """
        self._review_at, ended = None, ""
        if self.current is not None and self.current.until + self._unseen <= self._now():
            ended = self.current.gang
            self._failed[ended] = self._failed.get(ended, frozenset()) | self._lacking(self.current)
            self._wait_anew(ended)
            self._end_current()
        if self._note_due() or (self._due and self.current is None):
            self._review_at = self._now() + _REVIEW_EVERY_S
        return ended

    def next_turn(self) -> str | None:
        """Return the gang whose turn is next; None if no gang is due, or another gang has its turn."""
        if self.current is None and self._turn is None:
            self._turn = self._pop_due()
            return self._turn
        return None

    def after_all_ended(self, gang: Gang) -> Snapshot:
        """Return the cluster as if all pods with GPUs had ended, except on nodes of `_failed`."""
        own_uids = {pod.uid for pod in gang.group.bound}
        return self._ledger.after_all_ended(own_uids, self._failed.get(gang.key, frozenset()))

    def skip_turn(self, key: str) -> None:
        """End the gang's turn without a reservation, and let the gang wait anew."""
        self._failed.pop(key, None)  # from the gang's next turn on, all nodes are allowed again
        self._turn = None
        self._wait_anew(key)

    def take_answer(self, key: str, request: Request, decision: Decision | None) -> bool:
        """Reserve the plan of the gang whose turn it is. Return whether the gang has a reservation now.

        It has no reservation if the planner found no place, or more than `backfill_share` of all GPUs on
        several nodes.
        """
        if self._turn != key:
            return False  # the gang no longer waits
        roles = {role.name: role for role in request.roles}
        wants: Counter[str] = Counter()
        resources: dict[str, Resources] = {}
        for member in decision.members if isinstance(decision, Placed) else ():
            wants[member.node] += 0 if member.units else len(member.gpus)
            member_resources = roles[member.role].resources
            resources[member.node] = resources.get(member.node, _NOTHING) + member_resources
        gpus = {name: node.topology.gpu_count for name, node in self._ledger.nodes.items()}
        covered = sum(gpus.get(name, 0) for name in +wants)
        if not covered or (len(+wants) > 1 and covered > self._settings.backfill_share * sum(gpus.values())):
            self.skip_turn(key)
            return False
        self._turn = None
        until = self._now() + self._settings.backfill_s - self._unseen
        self.current = BackfillReservation(key, +wants, until, self._waiting[key].priority, resources)
        return True

    def _lacking(self, reservation: BackfillReservation) -> frozenset[str]:
        """Return the nodes on which too few GPUs came free. If enough came free and the gang still does not
        fit, return all nodes of the reservation."""
        free = {
            name: state.free_gpu_count for name in reservation.wants if (state := self._ledger.state(name))
        }
        lacking = {name for name, gpus in reservation.wants.items() if free.get(name, 0) < gpus}
        return frozenset(lacking or reservation.wants)

    def _end_current(self) -> None:
        assert self.current is not None
        self._ledger.gain(self.current.wants)
        self.current = None

    def _wait_anew(self, key: str) -> None:
        self._waiting[key].since = self._now() - self._unseen
        self._young[key] = None

    def _note_due(self) -> bool:
        """Move gangs that have waited long enough from `_young` to `_due`.

        Return whether more of them remain.
        """
        for _ in range(_MAX_MOVED_PER_REVIEW):
            key = next(iter(self._young), None)
            if key is None:
                return False
            waiting = self._waiting[key]
            if waiting.since + self._settings.backfill_after_s + self._unseen > self._now():
                return False
            del self._young[key]
            self._due_of(waiting.priority, waiting.namespace)[key] = None
        return True

    def _due_of(self, priority: int, namespace: str) -> dict[str, None]:
        return self._due.setdefault(priority, {}).setdefault(namespace, {})

    def _pop_due(self) -> str | None:
        """Remove the gang whose turn is next and return its key; None if no gang is due. The gang's namespace
        goes to the end."""
        if not self._due:
            return None
        namespaces = self._due[max(self._due)]
        namespace = next(iter(namespaces))
        key = next(iter(namespaces[namespace]))
        gangs = namespaces.pop(namespace)
        namespaces[namespace] = gangs
        self._drop_due(key)
        return key

    def _drop_due(self, key: str) -> bool:
        """Remove a gang from `_due`. Return whether it was there."""
        waiting = self._waiting[key]
        namespaces = self._due.get(waiting.priority, {})
        gangs = namespaces.get(waiting.namespace, {})
        if key not in gangs:
            return False
        del gangs[key]
        if not gangs:
            del namespaces[waiting.namespace]
        if not namespaces:
            del self._due[waiting.priority]
        return True


_Size = tuple[Resources, int, int]
"""Other resources, GPUs, and units of each GPU."""


class Retained:
    """Track retained capacity. `Gang.retained` are the UIDs; the ledger holds the places."""

    def __init__(self, gangs: Mapping[str, Gang], ledger: Ledger) -> None:
        self._gangs = gangs
        self._ledger = ledger
        self._holders: set[str] = set()
        """Keys of the gangs that retain capacity."""

    def keep(self, gang: Gang, uids: Iterable[str]) -> None:
        """Retain the reservations of these members for the gang's next plan."""
        gang.retained |= {uid for uid in uids if uid in self._ledger.reservations}
        if gang.retained:
            self._holders.add(gang.key)

    def keep_lost(self, gang: Gang) -> None:
        """Retain the places of lost members that are still free, as many as the gang lacks.

        The retained places have no more GPUs together than the gang's bound members. Otherwise a user could
        retain many times a quota, because the quota is free as soon as a pod is deleted.
        """
        bound = [usage for pod in gang.group.bound if (usage := self._ledger.bound.get(pod.uid)) is not None]
        missing_members = max(1, gang.group.fewest_needed - len(bound))  # 1 if only a role lacks it
        places = missing_members - len(gang.reserved)
        room, kept_uids = sum(map(_gpus, bound)), set[str]()
        for uid, lost_member in sorted(gang.lost.items()):
            usage = lost_member.usage
            if uid in self._ledger.bound or places <= 0 or _gpus(usage) > room:
                continue
            if uid not in self._ledger.reservations:  # what is held already is still free for the gang
                if not self._is_free(usage):
                    continue
                self._ledger.hold([usage])
            kept_uids.add(uid)
            places, room = places - 1, room - _gpus(usage)
        self.release(gang, (gang.retained & gang.lost.keys()) - kept_uids)
        self.keep(gang, kept_uids)

    def _is_free(self, usage: Usage) -> bool:
        """Return whether the place is free. The pod's claim may still exist, and does not count."""
        name, uid = usage.node, usage.pod_uid
        node = self._ledger.states_without((uid,)).get(name) or self._ledger.state(name)
        return node is not None and fits(Snapshot({name: node}), [usage])

    def release(self, gang: Gang, uids: Collection[str]) -> None:
        """End reservations of the gang, retained or not."""
        self._ledger.release(tuple(uids))
        gang.retained = gang.retained.difference(uids)
        if not gang.retained:
            self._holders.discard(gang.key)

    def release_taken(self, node: str) -> None:
        """Release retained capacity on this node that other pods took, or that the node no longer has."""
        reserved_uids = self._ledger.on_node(node).keys() & self._ledger.reservations.keys()
        for key in sorted(
            key for key in self._holders if not self._gangs[key].retained.isdisjoint(reserved_uids)
        ):
            gang = self._gangs[key]
            usages = [usage for usage in self.places(gang) if usage.node == node]
            uids = {usage.pod_uid for usage in usages}
            if usages and not fits(self._ledger.without(uids), usages):
                self.release(gang, uids)

    def covers(self, gang: Gang) -> bool:
        """Return whether a place of exactly the requested size is retained for each waiting member."""
        if not gang.retained:
            return False
        places = Counter((usage.resources, _gpus(usage), usage.units) for usage in self.places(gang))
        for pod in sorted(gang.group.unbound, key=lambda pod: len(pod.gpu_counts)):
            place = next((size for size in _sizes(pod, places) if places[size] > 0), None)
            if place is None:
                return False
            places[place] -= 1
        return True

    def places(self, gang: Gang) -> list[Usage]:
        """Return the usages that are retained for the gang."""
        usages = self._ledger.reservations
        return [usages[uid] for uid in sorted(gang.retained) if uid in usages]


def _gpus(usage: Usage) -> int:
    return usage.gpus.bit_count() + usage.unindexed_gpus


def _sizes(pod: Pod, places: Iterable[_Size]) -> list[_Size]:
    """Return the sizes of a place for the pod. There are several if its claims leave the number of GPUs
    open."""
    if pod.slice is not None:
        return [(pod.resources, pod.slice.gpus, pod.slice.units)]
    if not pod.gpu_counts:
        return [(pod.resources, pod.gpus, 0)]
    return [(pod.resources, gpus, 0) for _, gpus, _ in places if pod.may_take(gpus)]
