"""The record of one gang, which only `lifecycle/` writes, and the timers of all gangs."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from muster.domain.clearing_words import ClearingJson
from muster.domain.decision import Placed
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.reasons import Cause, CauseView, Relaxation, cause_views
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.membership.group import Group, NameKey
from muster.gangs.messages.instructions import EventReason, PushVerdict, Solve
from muster.gangs.peers.existing_pods import Changes
from muster.gangs.record.exclusions import Exclusions
from muster.gangs.record.phases import (
    AcceptedPlan,
    Collecting,
    Finished,
    ImpossibleTransitionError,
    InPhase,
    Permitted,
    Phase,
    Planned,
    Planning,
    Reserving,
    Running,
    Trigger,
    next_phase,
)
from muster.gangs.record.victims import VictimsAnswer


@dataclass(frozen=True, slots=True)
class PlannerQuestion:
    """A question to a planner, with the facts that matter when its answer comes."""

    solve: Solve
    """The instruction that asks the planner."""
    hint: QueueingHint
    """What the gang must have to fit."""
    floor: int | None = None
    """Until the answer comes, no gang of a priority below `floor` is planned; None if any gang may be
    planned."""
    partial: bool = False
    """Whether the request is for the fewest members with which the gang starts, and not for all members."""
    since: Changes = field(default_factory=Changes)
    """The changes since the planner was asked."""

    @property
    def gang(self) -> str:
        """Return the key of the gang that the question is about."""
        return self.solve.gang

    @property
    def request(self) -> Request:
        """Return what the gang asks for."""
        return self.solve.request

    @property
    def snapshot(self) -> Snapshot:
        """Return the cluster as the planner was shown it."""
        return self.solve.snapshot


@dataclass(frozen=True, slots=True)
class LostMember:
    """A member that a running gang lost, with the capacity that the member had."""

    pod: Pod
    usage: Usage


@dataclass(slots=True)
class LastPermit:
    """The members of a gang's last Permit that may not be bound yet, whatever phases have followed."""

    is_incomplete: bool = True
    """Whether some members were not bound."""
    given_up_uids: set[str] = field(default_factory=set)
    """Members whose Bindings were given up. A Binding may still arrive."""
    uids_elsewhere: frozenset[str] = frozenset()
    """Pods that were permitted with members of this gang and now belong to another gang."""

    @property
    def lacks_bindings(self) -> bool:
        """Return whether some members were not bound, or their Bindings were given up."""
        return self.is_incomplete or bool(self.given_up_uids)


class QueueOrder(NamedTuple):
    """Sort key of a gang in the queue: the gang with the lowest key is planned first."""

    # The fields are negated where the higher value comes first. Readers use the properties.
    not_covered: bool
    negative_priority: int
    no_precedence: bool
    created: float
    """Since when the gang waits, in seconds since the Unix epoch."""

    @classmethod
    def of(cls, *, is_covered: bool, priority: int, has_precedence: bool, created: float) -> QueueOrder:
        """Return the sort key of a gang with these properties."""
        return cls(not is_covered, -priority, not has_precedence, created)

    @property
    def is_covered(self) -> bool:
        """Return whether the gang holds a place for each waiting member."""
        return not self.not_covered

    @property
    def priority(self) -> int:
        """Return the gang's priority."""
        return -self.negative_priority

    @property
    def has_precedence(self) -> bool:
        """Return whether the gang comes before others of its priority, as `Gang.has_precedence`."""
        return not self.no_precedence


class Timer(StrEnum):
    """The kinds of timers of a gang."""

    PHASE = "phase"
    """Ends the gang's wait in its phase. The timer is dropped when the phase ends."""
    REGROUP = "regroup"
    """Regroups the gang after pods have come or gone one after another.

    The timer is dropped when the phase ends, unless some pods are not grouped yet.
    """
    PARTIAL = "partial"
    """Ends the grace period of a partially bound gang."""
    LOST = "lost"
    """Ends the time for which a running gang keeps the places of lost members."""
    IN_TREE = "in-tree"
    """Plans the gang although answers of in-tree plugins are missing. The timer is dropped when the phase
    ends."""
    REPORT_REFUSAL = "report-refusal"
    """Reports a refusal again because its numbers have changed."""


@dataclass(slots=True)
class Gang:
    """One gang, from its first pod to its last. Times are in seconds of the inputs' clock.

    Facts of one phase are in `in_phase`. The other fields outlive phases:

    - The same verdict, event or refusal is not published twice, whatever happened in between.
    - A member of the last Permit may be bound, or turn out to be lost, after other phases have followed.
    - A partially bound gang retains capacity from one plan to the next.
    - Withdrawals count as consecutive although the gang passes through other phases between them.
    - Pods come in any phase, and make `group` old.
    """

    key: str
    name: NameKey
    group: Group
    in_phase: InPhase = field(default_factory=Collecting)
    generation: int = 0
    """Number of the last attempt or refusal. The number never falls."""
    verdict: PushVerdict | None = None
    last_event: tuple[EventReason, str] | None = None
    """The last event posted about the gang, so that no event is posted twice."""
    reason: str = ""
    """What users read about the gang's phase, in one sentence; "" if there is nothing to say."""
    refusal_causes: tuple[Cause, ...] = ()
    """Causes of the last refusal."""
    relaxations: tuple[Relaxation, ...] = ()
    """Changes that would help against these causes: the planner tried each."""
    victims: VictimsAnswer | None = None
    """The cheapest victims with whose end the gang would fit, if they are known and still there."""
    refusal_kinds: tuple[str, ...] = ()
    """Kinds of causes in the last published refusal, without their numbers."""
    refused_at: float = -math.inf
    """When the last refusal was published."""
    waiting_shown_at: float = -math.inf
    """When the condition that says why the gang waits was last set on its pods; -inf if no pod is known to
    have the condition."""
    waiting_taken_back: bool = False
    """Whether that condition was taken back from its pods, because the gang waits no more."""
    timers: dict[Timer, float] = field(default_factory=dict)
    """Timer → when it expires."""
    last_permit: LastPermit = field(default_factory=LastPermit)
    retained_uids: set[str] = field(default_factory=set)
    """UIDs of members whose capacity is retained for the gang's next plan. The gang is partially bound, or
    runs and has lost these members."""
    lost_members: dict[str, LostMember] = field(default_factory=dict)
    """UID → member that the running gang lost and needs. See `lifecycle/reconciliation.py`."""
    was_complete: bool = False
    """Whether all required members have been bound at some time.

    Lost members are replaced from then on, and no member is evicted because of them.
    """
    failed_attempts: int = 0
    """Consecutive withdrawals, and refusals because the planner could not decide."""
    ended_decisions: int = 0
    """Consecutive decisions about this gang that were ended because other gangs waited."""
    pause_s: float = 0.0
    """Length of the gang's pause after the last ended decision, in seconds."""
    slow: bool = False
    """Whether the foreground planner ran out of time for this gang. The background planner decides about slow
    gangs."""
    plan_all_members_next: bool = False
    """Whether the next request to the planner is for all members. The last request was for the fewest
    members, and they did not fit."""
    stale: bool = False
    """Whether pods have changed since `group` was made: a gang of thousands is not regrouped for each
    pod."""
    newly_bound_count: int = 0
    """Number of members that were seen bound since `group` was made."""
    change_window: tuple[float, float] | None = None
    """When the first and the last pod came or went since the planner was last asked; None if no pod did."""
    exclusions: Exclusions = field(default_factory=Exclusions)

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
    def was_overtaken(self) -> bool:
        """Return whether the gang is planned again because the cluster changed while it was planned."""
        return isinstance(self.in_phase, Planning) and self.in_phase.overtaken

    @property
    def awaited_bindings(self) -> Mapping[str, float]:
        """Return the Bindings that may be under way: UID of the pod → when to give the Binding up."""
        return self.in_phase.awaited_bindings if isinstance(self.in_phase, Permitted | Finished) else {}

    @property
    def reserved_uids(self) -> set[str]:
        """Return the UIDs of the members whose places are reserved for the current plan."""
        match self.in_phase:
            case Planned(plan) | Reserving(plan):
                return set(plan.order)
            case _:
                return set(self.awaited_bindings)

    @property
    def is_partially_bound(self) -> bool:
        """Return whether some members are bound, and enough members never were.

        Bindings of a gang are not atomic, so a refused Binding, a crash or a deleted pod can leave the gang
        partially bound. Once all required members have been bound, lost members are replaced and no member is
        evicted.
        """
        return not self.was_complete and bool(self.group.bound) and not self.group.enough_bound

    @property
    def has_precedence(self) -> bool:
        """Return whether the gang comes before others of its priority.

        A partially bound gang has precedence. So has a gang whose waiting members replace lost members: each
        of them requests as much as a lost member had, and with the bound members they are enough.
        """
        group, lost_sizes = (
            self.group,
            Counter(_replacement_key(member.pod) for member in self.lost_members.values()),
        )
        if not lost_sizes or any(_replacement_key(pod) not in lost_sizes for pod in group.unbound):
            return self.is_partially_bound
        replacements = []
        for pod in group.unbound:
            if lost_sizes[_replacement_key(pod)]:
                lost_sizes[_replacement_key(pod)] -= 1
                replacements.append(pod)
        return bool(group.bound) and not group.enough_bound and group.is_enough((*group.bound, *replacements))

    def queue_order(self, is_covered: bool, optional_delay_s: float) -> QueueOrder:
        """Return the gang's sort key in the queue. `is_covered`: the gang holds a place for each waiting
        member.

        A gang that waits only for optional members counts as `optional_delay_s` younger. So gangs that lack
        required members come first, if they came within this time.
        """
        created, has_precedence = self.group.since, self.has_precedence
        if has_precedence:  # the gang is as old as its oldest bound member
            created = min(created, *(pod.created for pod in self.group.bound))
        if self.group.enough_bound:
            created += optional_delay_s
        return QueueOrder.of(
            is_covered=is_covered,
            priority=self.group.priority,
            has_precedence=has_precedence,
            created=created,
        )

    @property
    def idle_uids(self) -> set[str]:
        """Return the UIDs of members with a reserved or retained place and no Binding under way."""
        return (self.reserved_uids | self.retained_uids) - self.awaited_bindings.keys()

    def enter(self, trigger: Trigger, new_phase: InPhase) -> None:
        """Move to another phase.

        Raises:
            ImpossibleTransitionError: the table of transitions does not lead there.
        """
        if next_phase(self.phase, trigger) is not new_phase.phase:
            raise ImpossibleTransitionError(f"a {self.phase} gang: {trigger}, to {new_phase.phase}")
        self.in_phase = new_phase

    def waiting_members(self) -> tuple[tuple[str, str], ...]:
        """Return (name, UID) of the members that are not bound, sorted."""
        return tuple((pod.name, pod.uid) for pod in sorted(self.group.unbound, key=lambda p: (p.name, p.uid)))


def _replacement_key(pod: Pod) -> tuple[object, ...]:
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
    clearing: ClearingJson | None = None
    """Whose end would make room for the gang now; None if that is not known."""
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
        causes=cause_views(blocking_causes(gang)),
        helps=tuple(map(str, gang.relaxations)) if gang.phase is Phase.UNPLACEABLE else (),
        clearing=gang.victims.facts if gang.victims and gang.phase is Phase.UNPLACEABLE else None,
        gpus_bound=sum(pod.gpus for pod in group.bound),
        gpus_waiting=sum(pod.gpus for pod in group.unbound),
        nodes=tuple(sorted({pod.node for pod in group.bound})),
    )


def blocking_causes(gang: Gang) -> tuple[Cause, ...]:
    """Return the causes that block the gang in its phase."""
    match gang.phase:
        case Phase.UNPLACEABLE:
            return gang.refusal_causes
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
        """The same object as `State.interrupted`."""
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
        """Set the timer of the gang's phase, unless that timer expires earlier.

        If an overdue timer were set again, the service would look as if it had stood still.
        """
        if when < gang.timers.get(Timer.PHASE, math.inf):
            self.set(gang, when)

    def start(self, gang: Gang, when: float, timer: Timer) -> None:
        """Set the gang's timer, unless it is set."""
        if timer not in gang.timers:
            self.set(gang, when, timer)

    def hand_over(self, predecessor: Gang, gang: Gang, timer: Timer) -> None:
        """Set the timer of gang `predecessor` for the gang that now has its pods.

        The timer keeps the time at which it was set.
        """
        set_at = self._set_at.get((predecessor.key, timer), -math.inf)
        self.set(gang, predecessor.timers[timer], timer)
        if self._interrupted:
            self._set_at[gang.key, timer] = set_at

    def next_at(self) -> float | None:
        """Return when the first timer expires; None if none is set."""
        while self._heap:
            when, key, timer = self._heap[0]
            gang = self._gangs.get(key)
            if gang is not None and gang.timers.get(timer) == when:
                return when
            heapq.heappop(self._heap)
        return None

    def pop_due(self) -> Iterator[tuple[Gang, Timer]]:
        """Remove and yield the timers that have expired."""
        while (when := self.next_at()) is not None and when <= self.now():
            _, key, timer = heapq.heappop(self._heap)
            gang = self._gangs[key]
            del gang.timers[timer]
            yield gang, timer

    def postpone(self, seconds: float) -> None:
        """Postpone all timers by the seconds in which the cluster could not be seen.

        A timer that was set in this time is postponed only by the seconds since then.
        """
        set_at, self._set_at = self._set_at, {}
        for gang in self._gangs.values():
            for timer, when in gang.timers.items():
                since_set = self.now() - set_at.get((gang.key, timer), -math.inf)
                self.set(gang, when + min(seconds, since_set), timer)
