"""The record of one gang, which only `lifecycle/` writes, and the timers of all gangs."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.decision import Placed
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.reasons import Cause, CauseView, Relaxation, explained
from muster.domain.request import Role
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.capacity.requests import Asks, asks
from muster.gangs.membership.group import Group, NameKey
from muster.gangs.messages.instructions import EventReason, PushVerdict, Solve
from muster.gangs.peers.existing_pods import Changes
from muster.gangs.record.phases import (
    Collecting,
    Finished,
    ImpossibleTransitionError,
    InPhase,
    Permitted,
    Phase,
    Plan,
    Planned,
    Reserving,
    Running,
    Trigger,
    after,
)

NODE_CHANGED = "NodeChanged"
"""In the place of a plugin: the node itself voided plans of the gang by its changes."""
PATIENCE = 2
"""How many plans of a gang a node may void before the gang leaves it out."""
ROOM = "NodeResourcesFit"
"""The plugin that counts what pods take, also those that are not bound yet."""
ROOM_AFTER_S, ROOM_EVERY_S = 1.0, 5.0
"""When a full node is tried again, as a pod that was not bound is gone: so long after that at the earliest,
so that the scheduler sees it too, and so long after the node was last tried."""


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
        """Return when it ends: a full node earlier, if since then a pod that was not bound is gone.

        Until all other nodes have been tried, it does not end.
        """
        if self.plugin == ROOM and self.since < unbound_gone_at and self.until < math.inf:
            return min(self.until, self.since + ROOM_EVERY_S)
        return self.until


@dataclass(frozen=True, slots=True)
class Solving:
    """A Solve that is not answered yet.

    `floor`: meanwhile no gang of a lower priority is planned; None if any gang is.
    """

    solve: Solve
    hint: QueueingHint
    """What the gang must have to fit, by this request."""
    floor: int | None = None
    partial: bool = False
    """Whether it is about the fewest members with which the gang starts, and the gang has more."""
    since: Changes = field(default_factory=Changes)
    """What changed since the planner was asked."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A member that a running gang lost, and what it had."""

    pod: Pod
    usage: Usage


class Timer(StrEnum):
    """The kinds of timers of a gang."""

    PHASE = "phase"
    """Ends what the gang waits for in its phase. Dropped when the phase ends."""
    RECOUNT = "recount"
    """Counts the gang after pods have come or gone one after another.

    Dropped when the phase ends, unless some pods are not counted yet.
    """
    PARTIAL = "partial"
    """Ends the grace period of a partially bound gang."""
    LOST = "lost"
    """Ends the time for which the places of members are kept that a running gang lost."""
    IN_TREE = "in-tree"
    """Plans the gang without the answers of in-tree plugins, if these have not come.

    Dropped when the phase ends.
    """
    REFUSAL = "refusal"
    """Allows a refusal to be published again because its numbers have changed."""


@dataclass(slots=True)
class Gang:
    """One gang, from its first pod to its last. Times are in seconds of the inputs' clock.

    What is true in one phase alone is in `in_phase`. The other fields outlive phases:

    - Verdict, event and refusal were published, and are not published twice whatever happened in between.
    - A member of the last Permit may be bound, or turn out to be lost, after other phases have followed.
    - A gang stays partially bound, and retains capacity for that, from one plan to the next.
    - Failed attempts count as a row although planning, plan and withdrawal lie between them.
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
    """What the planner found to help against them."""
    kinds: tuple[str, ...] = ()
    """Kinds of causes in its last refusal, whatever their numbers."""
    refused_at: float = -math.inf
    """When its last refusal was published."""
    shown_at: float | None = None
    """When its pods were last told what it waits for; -inf if they were told that it waits no more. None: it
    is unknown what they show."""
    timers: dict[Timer, float] = field(default_factory=dict)
    """Timer → when it expires."""
    missed: bool = True
    """Whether not all members of the last Permit were bound."""
    late: set[str] = field(default_factory=set)
    """UIDs of the members of the last Permit that were given up. They may still be bound."""
    elsewhere: frozenset[str] = frozenset()
    """UIDs of pods that were permitted together with members of this gang and belong to another gang now."""
    retained: set[str] = field(default_factory=set)
    """UIDs of members whose capacity is retained for the gang's next plan: because it is partially bound, or
    because it runs and lost them."""
    lost: dict[str, Lost] = field(default_factory=dict)
    """UID → member that it needs and lost while it ran. See `lifecycle/reconciliation.py`."""
    was_complete: bool = False
    """Whether all required members have been bound at some time.

    Lost members are replaced from then on, and no member is evicted because of them.
    """
    attempts: int = 0
    """Withdrawals in a row."""
    ended: int = 0
    """How often in a row a decision about this gang was ended."""
    pause_s: float = 0.0
    """Seconds that the gang had to wait after the last of these."""
    slow: bool = False
    """Whether the foreground planner ran out of time for it: the background planner decides then."""
    ask_all: bool = False
    """Whether the next question is about all members, because the last one was not, and found nothing."""
    stale: bool = False
    """Whether pods of `group` have changed since it was counted, without effect on the phase.

    A gang of thousands is not counted again for each pod.
    """
    landed: int = 0
    """Members that were seen bound since `group` was counted."""
    arrived: tuple[float, float] | None = None
    """When the first and the last pod came that no plan was requested for; None if there are none."""
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
        """Forget the exclusions that do not stay, by their node."""
        pairs = self.exclusions.items()
        self.exclusions = {pair: exclusion for pair, exclusion in pairs if stays(pair[1], exclusion)}

    def leave_out(self, node: str, pods: Iterable[Pod], now: float) -> bool:
        """Count that a change of the node voids a plan for these pods.

        From the second time on, leave the node out until all others were tried, and then for a time that
        grows. Return whether that is new.
        """
        self.voided[node] += 1
        if self.voided[node] < PATIENCE:
            return False
        sentence = f"it changed {self.voided[node]} times under a plan"
        is_new = False
        for pair in {(asks(pod), node) for pod in pods}:
            is_new |= pair not in self.exclusions
            self.refusals[pair] = self.voided[node] - PATIENCE + 1
            self.exclusions[pair] = Exclusion(now, NODE_CHANGED, sentence)
        return is_new

    def forget_refusals(self, node: str) -> None:
        """Try a node again that has changed. The node can't end its own exclusion by that."""
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
    def plan(self) -> Plan | None:
        """Return the plan in whose course it is, or by which it runs; None if there is none."""
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
        """Return whether too few members are bound, and never were enough.

        Bindings are not atomic: a refused Binding, a crash or a deleted pod can leave a gang like that. Once
        all required members have been bound, lost members are replaced and no member is evicted.
        """
        return not self.was_complete and bool(self.group.bound) and not self.group.enough_bound

    @property
    def has_precedence(self) -> bool:
        """Return whether the gang comes before others of its priority.

        That is so if it is partially bound. It is also so if its waiting members replace what it lost: each
        asks for what a lost member had, and they are as many as the gang needs.
        """
        group, lost_sizes = self.group, Counter(_size(member.pod) for member in self.lost.values())
        if not lost_sizes or any(_size(pod) not in lost_sizes for pod in group.unbound):
            return self.is_partially_bound
        replacements = []
        for pod in group.unbound:
            if lost_sizes[_size(pod)]:
                lost_sizes[_size(pod)] -= 1
                replacements.append(pod)
        return bool(group.bound) and not group.enough_bound and group.enough((*group.bound, *replacements))

    @property
    def idle_places(self) -> set[str]:
        """Return the UIDs of the members with a place, reserved or retained, and no Binding under way."""
        return (self.reserved | self.retained) - self.awaited.keys()

    def enter(self, trigger: Trigger, to: InPhase) -> None:
        """Move to another phase.

        Raises:
            ImpossibleTransitionError: the table of transitions has another phase there, or none.
        """
        if after(self.phase, trigger) is not to.phase:
            raise ImpossibleTransitionError(f"a {self.phase} gang: {trigger}, to {to.phase}")
        self.in_phase = to

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """Return (name, UID) of the members that are not bound, sorted."""
        return tuple((pod.name, pod.uid) for pod in sorted(self.group.unbound, key=lambda p: (p.name, p.uid)))


def _size(pod: Pod) -> tuple[object, ...]:
    """Return what the pod takes of a node, its role and its priority."""
    gpus = (pod.fewest_gpus, pod.gpu_counts, pod.gpu_resource, pod.slice)
    return (pod.wishes.role, pod.priority, pod.resources, *gpus)


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
    queue: str = ""
    """Queue of its PodGroup; "" if it has none."""
    causes: tuple[CauseView, ...] = ()
    """What blocks it now, and what helps against each of these in general."""
    helps: tuple[str, ...] = ()
    """What would help it now, the cheapest first: each was tried."""
    gpus_bound: int = 0
    """Whole GPUs of its bound members."""
    gpus_waiting: int = 0
    """Whole GPUs that its other members ask for."""
    nodes: tuple[str, ...] = ()
    """The nodes of its bound members."""
    position: int | None = None
    """1 for the gang in line that is planned next. It is there in answers about all gangs."""


def view(gang: Gang) -> GangView:
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
        queue=group.pod_group.queue if group.pod_group is not None else "",
        causes=explained(blocks(gang)),
        helps=tuple(map(str, gang.helps)) if gang.phase is Phase.UNPLACEABLE else (),
        gpus_bound=sum(pod.gpus for pod in group.bound),
        gpus_waiting=sum(pod.gpus for pod in group.unbound),
        nodes=tuple(sorted({pod.node for pod in group.bound})),
    )


def blocks(gang: Gang) -> tuple[Cause, ...]:
    """Return what blocks the gang in its phase."""
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
    """The timers of all gangs. A gang has one of each kind; setting it again moves it."""

    def __init__(self, gangs: Mapping[str, Gang], now: Callable[[], float]) -> None:
        self._gangs = gangs
        self.now = now
        self._heap: list[tuple[float, str, Timer]] = []
        self._set_at: dict[tuple[str, Timer], float] | None = None
        """(key, timer) → when it was set, since nothing can be seen; None while all watches work."""

    def set(self, gang: Gang, when: float, timer: Timer = Timer.PHASE) -> None:
        """Set the gang's timer to expire at `when`."""
        gang.timers[timer] = when
        if self._set_at is not None:
            self._set_at[gang.key, timer] = self.now()
        heapq.heappush(self._heap, (when, gang.key, timer))

    def set_earlier(self, gang: Gang, when: float) -> None:
        """Set the timer of the gang's phase, unless it expires earlier.

        A timer that is due earlier stays as it was set: set again, it would look as if the service had stood
        still since then.
        """
        if when < gang.timers.get(Timer.PHASE, math.inf):
            self.set(gang, when)

    def start(self, gang: Gang, when: float, timer: Timer) -> None:
        """Set the gang's timer, unless it is set."""
        if timer not in gang.timers:
            self.set(gang, when, timer)

    def hand_on(self, before: Gang, gang: Gang, timer: Timer) -> None:
        """Set a gang's timer for another gang that has its pods now.

        The timer keeps the time at which it was set.
        """
        set_at = (self._set_at or {}).get((before.key, timer))
        self.set(gang, before.timers[timer], timer)
        if self._set_at is not None:
            self._set_at[gang.key, timer] = -math.inf if set_at is None else set_at

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

    def pause(self) -> None:
        """Note that nothing can be seen from now on, until `postpone`."""
        if self._set_at is None:
            self._set_at = {}

    def postpone(self, seconds: float) -> None:
        """Postpone all timers by the seconds in which nothing could be seen.

        A timer that was set meanwhile is postponed only by the time since then.
        """
        set_at, self._set_at = self._set_at or {}, None
        for gang in self._gangs.values():
            for timer, when in gang.timers.items():
                since_set = self.now() - set_at.get((gang.key, timer), -math.inf)
                self.set(gang, when + min(seconds, since_set), timer)
