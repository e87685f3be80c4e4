"""The record of one gang: its phase, its plan and what it waits for. Only `lifecycle/` writes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Usage
from muster.domain.pod import Batch, Pod
from muster.domain.request import Request, Role
from muster.domain.snapshot import Snapshot
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.capacity.requests import Asks, asks
from muster.gangs.membership.roster import Group, NameKey
from muster.gangs.messages.calls import FilterAnswer, PermitAnswer
from muster.gangs.messages.instructions import EventReason, Lane, PushVerdict
from muster.gangs.peers.peer_changes import PeerChanges
from muster.gangs.record.phases import HOLDING, Phase


@dataclass(slots=True)
class Plan:
    """A decision that holds capacity.

    Answers to the shim are stored, so that the same question gets the same answer.
    """

    generation: int
    request: Request
    placed: Placed
    pods: dict[str, Pod]
    order: tuple[str, ...]
    """UIDs of the members, in the order of the verdict."""
    batch: Batch
    trace_id: str = ""
    annotations: tuple[dict[str, str], ...] | None = None
    """Annotations of each member's Binding in that order, without their time; None if a member has moved
    since."""
    filter_answer: FilterAnswer | None = None
    permit_answer: PermitAnswer | None = None

    @property
    def places(self) -> dict[str, MemberPlacement]:
        """Return UID → place of each member."""
        return {member.uid: member for member in self.placed.members}

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """Return (name, UID) of the members, in the order of the verdict."""
        return tuple((self.pods[uid].name, uid) for uid in self.order)

    @property
    def nodes(self) -> frozenset[str]:
        """Return the names of the nodes that the plan uses."""
        return frozenset(member.node for member in self.placed.members)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node that an in-tree plugin refused: pods with equal requests must not use it.

    Times are in seconds of the events' clock. `until` is infinite until all other nodes have been tried.
    """

    since: float
    plugin: str
    message: str
    until: float = math.inf


@dataclass(slots=True)
class Since:
    """What changed since a planner was asked.

    `gained`: nodes with more free capacity; `anywhere`: any node may have. `peers`: other pods.
    """

    gained: set[str] = field(default_factory=set)
    anywhere: bool = False
    peers: PeerChanges = field(default_factory=PeerChanges)

    def add(self, gained: Iterable[str], peers: PeerChanges, anywhere: bool) -> None:
        """Add a change."""
        self.gained.update(gained)
        self.peers.add(peers)
        self.anywhere |= anywhere


@dataclass(frozen=True, slots=True)
class Solving:
    """A Solve that is not answered yet.

    `floor`: meanwhile no gang of a lower priority is planned; None if any gang is.
    """

    gang: str
    generation: int
    request: Request
    snapshot: Snapshot
    lane: Lane
    floor: int | None = None
    since: Since = field(default_factory=Since)


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
    IN_TREE = "in-tree"
    """Plans the gang without the answers of in-tree plugins, if these have not come.

    Dropped when the phase ends.
    """
    REFUSAL = "refusal"
    """Allows a refusal to be published again because its numbers have changed."""


@dataclass(slots=True)
class Gang:
    """One gang, from its first pod to its last. Times are in seconds of the events' clock."""

    key: str
    name: NameKey
    group: Group
    phase: Phase = Phase.COLLECTING
    generation: int = 0
    """Number of the attempt to plan it. It never falls."""
    plan: Plan | None = None
    verdict: PushVerdict | None = None
    announced: tuple[EventReason, str] | None = None
    """The last event posted about it, so that no event is posted twice."""
    reason: str = ""
    kinds: tuple[str, ...] = ()
    """Kinds of causes in its last refusal, whatever their numbers."""
    refused_at: float = -math.inf
    """When its last refusal was published."""
    timers: dict[Timer, float] = field(default_factory=dict)
    """Timer → when it expires."""
    awaited: dict[str, float] = field(default_factory=dict)
    """UID of each member whose Binding may be under way → when to give it up. Only while permitted."""
    missed: bool = True
    """Whether not all awaited members were bound."""
    late: set[str] = field(default_factory=set)
    """UIDs of awaited members that were given up. They may still be bound."""
    elsewhere: frozenset[str] = frozenset()
    """UIDs of pods that were permitted together with members of this gang and belong to another gang now."""
    retained: set[str] = field(default_factory=set)
    """UIDs of members whose capacity is retained for the gang's next plan, because it is partially bound."""
    was_complete: bool = False
    """Whether all required members have been bound at some time.

    Lost members are replaced from then on, and no member is evicted because of them.
    """
    evicting: frozenset[str] = frozenset()
    """UIDs of the members that it asked to evict. Empty once it is part of a gang that was complete."""
    lost: str = ""
    """Why a permitted member was given back; "" if none was."""
    attempts: int = 0
    """Withdrawals in a row."""
    ended: int = 0
    """How often in a row a decision about this gang was ended."""
    pause_s: float = 0.0
    """Seconds that the gang had to wait after the last of these."""
    slow: bool = False
    """Whether the foreground planner ran out of time for it: the background planner decides then."""
    overtaken: bool = False
    """Whether the previous answer was dropped because the cluster had changed meanwhile."""
    stale: bool = False
    """Whether pods of `group` have changed since it was counted, without effect on the phase.

    A gang of thousands is not counted again for each pod.
    """
    landed: int = 0
    """Members that were seen bound since `group` was counted."""
    arrived: tuple[float, float] | None = None
    """When the first and the last pod came that no plan was requested for; None if there are none."""
    hint: QueueingHint | None = None
    """What the gang must have to fit, from its last Solve. None if it was never asked about."""
    exclusions: dict[tuple[Asks, str], Exclusion] = field(default_factory=dict)
    """(requests of the refused pod, node) → exclusion. Role names may change as other pods come and go."""
    refusals: dict[tuple[Asks, str], int] = field(default_factory=dict)
    """The same key → how often an in-tree plugin has refused the node since it last changed."""

    def excluded(self, roles: Iterable[Role], pods: Mapping[str, Pod]) -> dict[tuple[str, str], str]:
        """Return (role, node) → the plugin that refused the pair, in the planner's form.

        `pods`: the members by UID.
        """
        if not self.exclusions:
            return {}
        asking = {
            role.name: asks(pods[member.uid])
            for role in roles
            for member in role.members
            if member.uid in pods
        }
        return {
            (name, node): out.plugin
            for (refused, node), out in self.exclusions.items()
            for name, asked in asking.items()
            if asked == refused
        }

    @property
    def holds(self) -> bool:
        """Return whether the gang may have reservations."""
        return self.phase in HOLDING

    @property
    def reserved(self) -> set[str]:
        """Return the UIDs of the members whose places the plan holds.

        For a permitted gang these are the members still awaited.
        """
        if self.phase is Phase.PERMITTED:
            return set(self.awaited)
        return set(self.plan.order) if self.plan is not None and self.holds else set()

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """Return (name, UID) of the members that are not bound, sorted."""
        return tuple((pod.name, pod.uid) for pod in sorted(self.group.unbound, key=lambda p: (p.name, p.uid)))


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


def usages(placed: Placed, pods: dict[str, Pod]) -> tuple[Usage, ...]:
    """Return what a plan takes, member by member."""
    taken = []
    for member in placed.members:
        mask = sum(1 << gpu for gpu in set(member.gpus))
        taken.append(
            Usage(member.uid, member.node, pods[member.uid].resources, gpus=mask, units=member.units)
        )
    return tuple(taken)


def view(gang: Gang, priority: int, created: float) -> GangView:
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
        priority=priority,
        created=created,
        reason=gang.reason,
        plan=gang.plan.placed if gang.plan is not None else None,
        queue=group.pod_group.queue if group.pod_group is not None else "",
    )
