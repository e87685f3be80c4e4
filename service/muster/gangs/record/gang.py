"""The record of one gang: its phase, its plan and what it waits for. `lifecycle/` alone writes it."""

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
from muster.gangs.messages.instructions import EventReason, PushVerdict
from muster.gangs.record.phases import HOLDING, Phase


@dataclass(slots=True)
class Plan:
    """A decision that holds capacity. `order` are the members' UIDs as the verdict numbers them; answers are
    kept, so that a question asked twice is answered alike. `annotations`: of each member's Binding in that
    order, all but their time; None where a member has moved since they were written."""

    generation: int
    request: Request
    placed: Placed
    pods: dict[str, Pod]
    order: tuple[str, ...]
    batch: Batch
    trace_id: str = ""
    annotations: tuple[dict[str, str], ...] | None = None
    filter_answer: FilterAnswer | None = None
    permit_answer: PermitAnswer | None = None

    @property
    def places(self) -> dict[str, MemberPlacement]:
        return {member.uid: member for member in self.placed.members}

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """(name, UID), in the verdict's order."""
        return tuple((self.pods[uid].name, uid) for uid in self.order)

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(member.node for member in self.placed.members)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node that pods which ask alike must not take until then, because an in-tree plugin refused it, at
    `since`. The end is open until all other nodes have been tried."""

    since: float
    plugin: str
    message: str
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Solving:
    """The Solve that is out."""

    gang: str
    generation: int
    request: Request
    snapshot: Snapshot


class Timer(StrEnum):
    """What is due for a gang when no event comes."""

    PHASE = "phase"
    """What its phase waits for; ends with the phase."""
    RECOUNT = "recount"
    """Its pods have come one after another: they are to be counted. Ends with the phase, unless some are
    not counted yet."""
    PARTIAL = "partial"
    """It has been bound in part for as long as it may be."""
    IN_TREE = "in-tree"
    """In-tree plugins were asked about it: it is planned without their answers then; ends with the phase."""
    REFUSAL = "refusal"
    """The numbers in its refusal may be told again."""


@dataclass(slots=True)
class Gang:
    """One gang, from its first pod to its last.

    `generation` numbers attempts to plan it and never falls. `awaited` are members whose Binding may be under
    way → when to give them up (only while permitted). `attempts` counts withdrawals in a row. `lost` says why
    a permitted member was given back. `overtaken`: the answer before this one was thrown away, because the
    cluster had changed. `stale`: pods of `group` have changed since in a way that can't move the gang (a gang
    of thousands is not counted again for each pod); `landed`: so many of it have been seen bound since.
    `arrived`: when the first and the last pod came that no plan has been asked for.

    `whole`: all that it needs have been bound at some time; what dies then is replaced, and nobody evicted
    for it. `missed`: not all of the awaited were bound; `late` are those that were given up, and may be bound
    yet. `kept` are UIDs whose places are kept for the next plan of half a gang, `evicting` those that it has
    asked to be evicted: none where it has become part of what ran whole.

    `kinds` and `said_at`: what kinds of reasons its last refusal had, and when it was told. `needs`: what it
    can't do without, of the last Solve.
    """

    key: str
    name: NameKey
    group: Group
    phase: Phase = Phase.COLLECTING
    generation: int = 0
    plan: Plan | None = None
    verdict: PushVerdict | None = None
    announced: tuple[EventReason, str] | None = None
    reason: str = ""
    kinds: tuple[str, ...] = ()
    refused_at: float = -math.inf
    timers: dict[Timer, float] = field(default_factory=dict)
    awaited: dict[str, float] = field(default_factory=dict)
    missed: bool = True
    late: set[str] = field(default_factory=set)
    elsewhere: frozenset[str] = frozenset()
    """UIDs of pods that were let go together with members of this gang, and that are of another gang now."""
    retained: set[str] = field(default_factory=set)
    was_complete: bool = False
    evicting: frozenset[str] = frozenset()
    lost: str = ""
    attempts: int = 0
    ended: int = 0
    """How often in a row the planner was ended while it decided about this gang."""
    pause_s: float = 0.0
    """How long it had to wait after the last of these."""
    overtaken: bool = False
    stale: bool = False
    landed: int = 0
    arrived: tuple[float, float] | None = None
    hint: QueueingHint | None = None
    exclusions: dict[tuple[Asks, str], Exclusion] = field(default_factory=dict)
    """By what the refused pod asks for, and node: a role's name may change as other pods come and go."""
    refusals: dict[tuple[Asks, str], int] = field(default_factory=dict)
    """The same → how often an in-tree plugin has refused the node since it last changed."""

    def excluded(self, roles: Iterable[Role], pods: Mapping[str, Pod]) -> dict[tuple[str, str], str]:
        """(role, node) → the plugin that refused it, as the planner takes it. `pods`: the members by UID."""
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
        """Whether it may have reservations."""
        return self.phase in HOLDING

    @property
    def reserved(self) -> set[str]:
        """UIDs of the members whose places its plan holds: once it is permitted, of those still awaited."""
        if self.phase is Phase.PERMITTED:
            return set(self.awaited)
        return set(self.plan.order) if self.plan is not None and self.holds else set()

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """(name, UID) of the members that are not bound, in a fixed order."""
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
    """Of its PodGroup."""


def usages(placed: Placed, pods: dict[str, Pod]) -> tuple[Usage, ...]:
    """What a plan takes, member by member."""
    taken = []
    for member in placed.members:
        mask = sum(1 << gpu for gpu in set(member.gpus))
        taken.append(
            Usage(member.uid, member.node, pods[member.uid].resources, gpus=mask, units=member.units)
        )
    return tuple(taken)


def view(gang: Gang, priority: int, created: float) -> GangView:
    """A read-only picture of the gang now."""
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
