"""The record of one gang, which only `lifecycle/` writes, and the timers of all gangs."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from muster.domain.decision import Placed
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.reasons import Cause, CauseView, Relaxation, cause_views
from muster.domain.request import Role
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.capacity.requests import Asks, asks
from muster.gangs.membership.group import Group, NameKey
from muster.gangs.messages.instructions import EventReason, PushVerdict, Solve
from muster.gangs.peers.existing_pods import Changes
from muster.gangs.record.phases import (
    AcceptedPlan,
    Collecting,
    Finished,
    ImpossibleTransitionError,
    InPhase,
    Permitted,
    Phase,
    Planned,
    Reserving,
    Running,
    Trigger,
    after,
)

NODE_CHANGED = "NodeChanged"
"""Stands for a plugin: the node's own changes voided plans of the gang."""
MAX_VOIDED_PLANS = 2
"""The number of voided plans from which on a gang leaves the node out."""
ROOM = "NodeResourcesFit"
"""The plugin that counts what pods take. It also counts pods that are not bound yet."""
ROOM_AFTER_S, ROOM_EVERY_S = 1.0, 5.0
"""When a full node is tried again after an unbound pod has gone, in seconds. `ROOM_AFTER_S` is the least time
after the pod went, so that the scheduler has seen it too. `ROOM_EVERY_S` is the least time between two tries
of a node."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node that an in-tree plugin refused: pods with equal requests must not use it.

    Times are in seconds of the inputs' clock. `until` is infinite until all other nodes have been tried.
    """

    since: float
    plugin: str
    message: str
    until: float = math.inf

    def ends(self, unbound_gone_at: float) -> float:
        """Return when the exclusion ends.

        It does not end before all other nodes have been tried. If the node was full and an unbound pod has
        gone since, it ends earlier.
        """
        if self.plugin == ROOM and self.since < unbound_gone_at and self.until < math.inf:
            return min(self.until, self.since + ROOM_EVERY_S)
        return self.until


@dataclass(frozen=True, slots=True)
class Solving:
    """A Solve that is not answered yet."""

    solve: Solve
    hint: QueueingHint
    """The conditions of this request: what the gang must have to fit."""
    floor: int | None = None
    """Until the answer comes, no gang of a lower priority is planned; None if any gang may be."""
    partial: bool = False
    """Whether the request is for the fewest members with which the gang starts, and the gang has more."""
    since: Changes = field(default_factory=Changes)
    """The changes since the planner was asked."""


@dataclass(frozen=True, slots=True)
class LostMember:
    """A member that a running gang lost, with the capacity that the member had."""

    pod: Pod
    usage: Usage


class QueueOrder(NamedTuple):
    """Sort key of a gang in the queue: the gang with the lowest key is planned first."""

    not_covered: bool
    """Whether the gang holds no place for some waiting member."""
    negative_priority: int
    not_partial: bool
    """Whether the gang has no precedence over gangs of its priority."""
    created: float
    """Since when the gang waits, in seconds since the Unix epoch."""


class Timer(StrEnum):
    """The kinds of timers of a gang."""

    PHASE = "phase"
    """Ends the gang's wait in its phase. Dropped when the phase ends."""
    RECOUNT = "recount"
    """Counts the gang after pods have come or gone one after another.

    Dropped when the phase ends, unless some pods are not counted yet.
    """
    PARTIAL = "partial"
    """Ends the grace period of a partially bound gang."""
    LOST = "lost"
    """Ends the time for which a running gang keeps the places of lost members."""
    IN_TREE = "in-tree"
    """Plans the gang without answers of in-tree plugins that have not come.

    Dropped when the phase ends.
    """
    REFUSAL = "refusal"
    """Allows a refusal to be published again because its numbers have changed."""


@dataclass(slots=True)
class Gang:
    """One gang, from its first pod to its last. Times are in seconds of the inputs' clock.

    Facts of one phase are in `in_phase`. The other fields outlive phases:

    - Verdict, event and refusal: the same one is not published twice, whatever happened in between.
    - A member of the last Permit may be bound, or turn out to be lost, after other phases have followed.
    - A gang stays partially bound, and retains capacity for that, from one plan to the next.
    - Withdrawals count as consecutive although the gang passes through other phases between them.
    - Pods come, and the counts of `group` become old, in any phase.
    """

    key: str
    name: NameKey
    group: Group
    in_phase: InPhase = field(default_factory=Collecting)
    generation: int = 0
    """Number of the attempt to plan it. It never falls."""
    verdict: PushVerdict | None = None
    announced: tuple[EventReason, str] | None = None
    """The last event posted about it, so that no event is posted twice."""
    reason: str = ""
    blocked: tuple[Cause, ...] = ()
    """Causes of its last refusal."""
    helps: tuple[Relaxation, ...] = ()
    """Changes that would help against these causes: the planner tried each."""
    kinds: tuple[str, ...] = ()
    """Kinds of causes in its last refusal, whatever their numbers."""
    refused_at: float = -math.inf
    """When its last refusal was published."""
    shown_at: float | None = None
    """When the conditions of its pods were last set to what the gang waits for. -inf: they were set back,
    because the gang waits no more. None: their state is unknown."""
    timers: dict[Timer, float] = field(default_factory=dict)
    """Timer → when it expires."""
    permit_incomplete: bool = True
    """Whether some members of the last Permit were not bound."""
    given_up_uids: set[str] = field(default_factory=set)
    """UIDs of the members of the last Permit whose Bindings were given up. A Binding may still arrive."""
    permitted_elsewhere_uids: frozenset[str] = frozenset()
    """UIDs of pods that were permitted with members of this gang and now belong to another gang."""
    retained: set[str] = field(default_factory=set)
    """UIDs of members whose capacity is retained for the gang's next plan. The gang is partially bound, or it
    runs and lost these members."""
    lost: dict[str, LostMember] = field(default_factory=dict)
    """UID → member that the running gang lost and needs. See `lifecycle/reconciliation.py`."""
    was_complete: bool = False
    """Whether all required members have been bound at some time.

    Lost members are replaced from then on, and no member is evicted because of them.
    """
    attempts: int = 0
    """Consecutive withdrawals."""
    ended_decisions: int = 0
    """Consecutive decisions about this gang that were ended because other gangs waited."""
    pause_s: float = 0.0
    """Length of the gang's pause after the last ended decision, in seconds."""
    slow: bool = False
    """Whether the foreground planner ran out of time for this gang. The background planner decides about slow
    gangs."""
    plan_all_members_next: bool = False
    """Whether the next request to the planner is for all members. The last one was for the fewest members,
    and they did not fit."""
    stale: bool = False
    """Whether pods of `group` have changed since it was counted, without effect on the phase.

    A gang of thousands is not counted again for each pod.
    """
    bound_since_count: int = 0
    """Number of members that were seen bound since `group` was counted."""
    arrival_window: tuple[float, float] | None = None
    """When the first and the last pod came since the planner was last asked; None if no pod came."""
    exclusions: dict[tuple[Asks, str], Exclusion] = field(default_factory=dict)
    """(requests of the refused pod, node) → exclusion. Role names may change as other pods come and go."""
    refusals: dict[tuple[Asks, str], int] = field(default_factory=dict)
    """The same key → how often an in-tree plugin has refused the node since it last changed."""

    voided: Counter[str] = field(default_factory=Counter)
    """Node → how many plans of the gang its changes have voided."""

    def end_exclusions(self, now: float, unbound_gone_at: float) -> None:
        """Forget the exclusions that have ended (see `Exclusion.ends`)."""
        self.keep_exclusions(lambda _, exclusion: exclusion.ends(unbound_gone_at) > now)

    def keep_exclusions(self, stays: Callable[[str, Exclusion], bool]) -> None:
        """Remove the exclusions for which `stays(node, exclusion)` is false."""
        pairs = self.exclusions.items()
        self.exclusions = {pair: exclusion for pair, exclusion in pairs if stays(pair[1], exclusion)}

    def leave_out(self, node: str, pods: Iterable[Pod], now: float) -> bool:
        """Count that a change of the node voids a plan for these pods.

        From the second time on, leave the node out: first until all other nodes were tried, then for a time
        that grows. Return whether the node was not left out before.
        """
        self.voided[node] += 1
        if self.voided[node] < MAX_VOIDED_PLANS:
            return False
        sentence = f"it changed {self.voided[node]} times under a plan"
        is_new = False
        for pair in {(asks(pod), node) for pod in pods}:
            is_new |= pair not in self.exclusions
            self.refusals[pair] = self.voided[node] - MAX_VOIDED_PLANS + 1
            self.exclusions[pair] = Exclusion(now, NODE_CHANGED, sentence)
        return is_new

    def forget_refusals(self, node: str) -> None:
        """Allow a node again because it has changed. This does not end an exclusion that the node's own
        changes caused (`NODE_CHANGED`)."""
        if not self.refusals and not self.exclusions:
            return
        self.keep_exclusions(lambda name, exclusion: name != node or exclusion.plugin == NODE_CHANGED)
        self.refusals = {
            pair: times for pair, times in self.refusals.items() if pair[1] != node or pair in self.exclusions
        }

    def excluded(self, roles: Iterable[Role], pods: Iterable[Pod]) -> dict[str, dict[str, str]]:
        """Return role → node → the plugin that refused the pair, in the planner's form.

        `pods`: its members.
        """
        nodes_by_asks: dict[Asks, dict[str, str]] = {}
        for (refused, node), exclusion in self.exclusions.items():
            nodes_by_asks.setdefault(refused, {})[node] = exclusion.plugin
        pod_by_uid = {pod.uid: pod for pod in pods} if nodes_by_asks else {}
        asking = {
            role.name: asks(pod_by_uid[member.uid])
            for role in roles
            for member in role.members
            if member.uid in pod_by_uid
        }
        return {
            name: nodes_by_asks[pod_asks] for name, pod_asks in asking.items() if pod_asks in nodes_by_asks
        }

    @property
    def phase(self) -> Phase:
        """Return the name of its phase."""
        return self.in_phase.phase

    @property
    def plan(self) -> AcceptedPlan | None:
        """Return the plan that the gang follows or runs by; None if it has no plan."""
        match self.in_phase:
            case Planned(plan) | Reserving(plan) | Permitted(plan) | Running(plan):
                return plan
            case _:
                return None

    @property
    def awaited(self) -> Mapping[str, float]:
        """Return the Bindings that may be under way: UID → when to give it up."""
        return self.in_phase.awaited if isinstance(self.in_phase, Permitted | Finished) else {}

    @property
    def reserved(self) -> set[str]:
        """Return the UIDs of the members whose places are reserved for the current plan."""
        match self.in_phase:
            case Planned(plan) | Reserving(plan):
                return set(plan.order)
            case _:
                return set(self.awaited)

    @property
    def is_partially_bound(self) -> bool:
        """Return whether some members are bound, and enough members never were.

        Bindings of a gang are not atomic, so a refused Binding, a crash or a deleted pod can leave it
        partially bound. Once all required members have been bound, lost members are replaced and no member is
        evicted.
        """
        return not self.was_complete and bool(self.group.bound) and not self.group.enough_bound

    @property
    def has_precedence(self) -> bool:
        """Return whether the gang comes before others of its priority.

        A partially bound gang has precedence. So has a gang whose waiting members replace lost ones: each
        requests as much as a lost member had, and together with the bound members they are enough.
        """
        group, lost_sizes = self.group, Counter(_size(member.pod) for member in self.lost.values())
        if not lost_sizes or any(_size(pod) not in lost_sizes for pod in group.unbound):
            return self.is_partially_bound
        replacements = []
        for pod in group.unbound:
            if lost_sizes[_size(pod)]:
                lost_sizes[_size(pod)] -= 1
                replacements.append(pod)
        return bool(group.bound) and not group.enough_bound and group.is_enough((*group.bound, *replacements))

    def queue_order(self, is_covered: bool, extras_s: float) -> QueueOrder:
        """Return the gang's sort key in the queue. `is_covered`: it holds a place for each waiting member.

        A gang that waits only for optional members counts as `extras_s` younger. So gangs that lack required
        members come first, if they came within this time.
        """
        created, is_partial = self.group.since, self.has_precedence
        if is_partial:  # the gang is as old as its oldest bound member
            created = min(created, *(pod.created for pod in self.group.bound))
        if self.group.enough_bound:
            created += extras_s
        return QueueOrder(not is_covered, -self.group.priority, not is_partial, created)

    @property
    def idle_places(self) -> set[str]:
        """Return the UIDs of the members that have a reserved or retained place and no Binding under way."""
        return (self.reserved | self.retained) - self.awaited.keys()

    def enter(self, trigger: Trigger, new_phase: InPhase) -> None:
        """Move to another phase.

        Raises:
            ImpossibleTransitionError: the table of transitions has another phase there, or none.
        """
        if after(self.phase, trigger) is not new_phase.phase:
            raise ImpossibleTransitionError(f"a {self.phase} gang: {trigger}, to {new_phase.phase}")
        self.in_phase = new_phase

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """Return (name, UID) of the members that are not bound, sorted."""
        return tuple((pod.name, pod.uid) for pod in sorted(self.group.unbound, key=lambda p: (p.name, p.uid)))


def _size(pod: Pod) -> tuple[object, ...]:
    """Return the pod's role, priority, and requests."""
    gpus = (pod.fewest_gpus, pod.gpu_counts, pod.gpu_resource, pod.slice)
    return (pod.topology_request.role, pod.priority, pod.resources, *gpus)


@dataclass(frozen=True, slots=True)
class GangView:
    """A gang as status pages and metrics show it."""

    key: str
    namespace: str
    name: str
    dialect: str
    phase: Phase
    generation: int
    present: int
    bound: int
    needed: int
    priority: int
    created: float
    reason: str
    plan: Placed | None
    queue_order: QueueOrder
    queue: str = ""
    """Queue of its PodGroup; "" if it has none."""
    causes: tuple[CauseView, ...] = ()
    """The causes that block the gang now, each with the general advice."""
    helps: tuple[str, ...] = ()
    """Changes that would help the gang now, the cheapest first. The planner tried each."""
    gpus_bound: int = 0
    """Whole GPUs of its bound members."""
    gpus_waiting: int = 0
    """Whole GPUs that its other members ask for."""
    nodes: tuple[str, ...] = ()
    """The nodes of its bound members."""
    position: int | None = None
    """Position in the queue: 1 for the gang that is planned next. Only answers about all gangs have
    positions."""


def view(gang: Gang, queue_order: QueueOrder) -> GangView:
    """Return a read-only view of the gang as it is now."""
    group = gang.group
    return GangView(
        key=gang.key,
        namespace=group.gang.namespace,
        name=group.gang.name,
        dialect=group.gang.dialect,
        phase=gang.phase,
        generation=gang.generation,
        present=group.present,
        bound=len(group.bound),
        needed=group.needed,
        priority=group.priority,
        created=group.since,
        reason=gang.reason,
        plan=gang.plan.placed if gang.plan is not None else None,
        queue_order=queue_order,
        queue=group.pod_group.queue if group.pod_group is not None else "",
        causes=cause_views(blocks(gang)),
        helps=tuple(map(str, gang.helps)) if gang.phase is Phase.UNPLACEABLE else (),
        gpus_bound=sum(pod.gpus for pod in group.bound),
        gpus_waiting=sum(pod.gpus for pod in group.unbound),
        nodes=tuple(sorted({pod.node for pod in group.bound})),
    )


def blocks(gang: Gang) -> tuple[Cause, ...]:
    """Return the causes that block the gang in its phase."""
    match gang.phase:
        case Phase.UNPLACEABLE:
            return gang.blocked
        case Phase.INVALID:
            return tuple(gang.group.causes)
        case Phase.COLLECTING if gang.group.waits_for is not None:
            return (gang.group.waits_for,)
        case _:
            return ()


class Timers:
    """The timers of all gangs. A gang has one timer of each kind; setting a timer again moves it."""

    def __init__(
        self, gangs: Mapping[str, Gang], now: Callable[[], float], interrupted: Mapping[str, float]
    ) -> None:
        self._gangs = gangs
        self.now = now
        self._interrupted = interrupted
        """As `State.interrupted`."""
        self._heap: list[tuple[float, str, Timer]] = []
        self._set_at: dict[tuple[str, Timer], float] = {}
        """(key, timer) → when the timer was set while a watch was interrupted."""

    def set(self, gang: Gang, when: float, timer: Timer = Timer.PHASE) -> None:
        """Set the gang's timer to expire at `when`."""
        gang.timers[timer] = when
        if self._interrupted:
            self._set_at[gang.key, timer] = self.now()
        heapq.heappush(self._heap, (when, gang.key, timer))

    def set_earlier(self, gang: Gang, when: float) -> None:
        """Set the timer of the gang's phase, unless it expires earlier.

        An earlier timer is not set again. Setting an overdue timer again would look as if the service had
        stood still since then.
        """
        if when < gang.timers.get(Timer.PHASE, math.inf):
            self.set(gang, when)

    def start(self, gang: Gang, when: float, timer: Timer) -> None:
        """Set the gang's timer, unless it is set."""
        if timer not in gang.timers:
            self.set(gang, when, timer)

    def hand_on(self, before: Gang, gang: Gang, timer: Timer) -> None:
        """Set the timer of gang `before` for the gang that now has its pods.

        The timer keeps the time at which it was set.
        """
        set_at = self._set_at.get((before.key, timer), -math.inf)
        self.set(gang, before.timers[timer], timer)
        if self._interrupted:
            self._set_at[gang.key, timer] = set_at

    def next(self) -> float | None:
        """Return when the first timer expires; None if none is set."""
        while self._heap:
            when, key, timer = self._heap[0]
            gang = self._gangs.get(key)
            if gang is not None and gang.timers.get(timer) == when:
                return when
            heapq.heappop(self._heap)
        return None

    def due(self) -> Iterator[tuple[Gang, Timer]]:
        """Remove and yield the timers that have expired."""
        while (when := self.next()) is not None and when <= self.now():
            _, key, timer = heapq.heappop(self._heap)
            gang = self._gangs[key]
            del gang.timers[timer]
            yield gang, timer

    def postpone(self, seconds: float) -> None:
        """Postpone all timers by the seconds in which the cluster could not be seen.

        A timer that was set in this time is postponed only by the time since it was set.
        """
        set_at, self._set_at = self._set_at, {}
        for gang in self._gangs.values():
            for timer, when in gang.timers.items():
                since_set = self.now() - set_at.get((gang.key, timer), -math.inf)
                self.set(gang, when + min(seconds, since_set), timer)
