"""The phases of a gang's life, the facts that hold in each phase, and the triggers that move a gang to the
next phase.

`python -m muster.gangs.record.phases` prints this table. docs/gang-life.md draws it; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Usage
from muster.domain.pod import Batch, Pod
from muster.domain.request import Request
from muster.domain.topology import mask_of
from muster.gangs.messages.calls import FilterAnswer, PermitAnswer


@dataclass(slots=True)
class AcceptedPlan:
    """A plan whose capacity is reserved. The answers to the shim are stored, so that a repeated call gets the
    same answer."""

    generation: int
    request: Request
    placed: Placed
    pods: dict[str, Pod]
    order: tuple[str, ...]
    """UIDs of the members, in the order of the verdict."""
    batch: Batch
    trace_id: str = ""
    annotations: tuple[dict[str, str], ...] | None = None
    """Annotations of each member's Binding, in the order of `order`, without the time. None before they are
    made, and after a node change that may alter them."""
    filter_answer: FilterAnswer | None = None

    @property
    def places(self) -> dict[str, MemberPlacement]:
        """Return UID → place of each member."""
        return {member.uid: member for member in self.placed.members}

    @property
    def device_members(self) -> int:
        """Return how many members get devices of a DRA driver."""
        return sum(map(bool, self.filter_answer.devices)) if self.filter_answer is not None else 0

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """Return (name, UID) of the members, in the order of the verdict."""
        return tuple((self.pods[uid].name, uid) for uid in self.order)


def usages(decision: Placed, pods: dict[str, Pod]) -> tuple[Usage, ...]:
    """Return the capacity that each member of a plan takes."""
    return tuple(
        Usage(place.uid, place.node, pods[place.uid].resources, gpus=mask_of(place.gpus), units=place.units)
        for place in decision.members
    )


class Phase(StrEnum):
    """The name of a phase, as users see it."""

    COLLECTING = "collecting"
    INVALID = "invalid"
    PLANNING = "planning"
    UNPLACEABLE = "unplaceable"
    PLANNED = "planned"
    RESERVING = "reserving"
    PERMITTED = "permitted"
    WITHDRAWN = "withdrawn"
    RUNNING = "running"
    GIVEN_UP = "given up"
    FINISHED = "finished"


class InPhase:
    """The facts about a gang that hold only in its phase.

    A transition replaces the object, so facts of an earlier phase cannot be read.
    """

    __slots__ = ()
    phase: ClassVar[Phase]


@dataclass(frozen=True, slots=True)
class Collecting(InPhase):
    """Members that the gang needs are missing, or pods came or went just now, so more may come."""

    phase = Phase.COLLECTING


@dataclass(frozen=True, slots=True)
class Invalid(InPhase):
    """The pods contradict themselves or each other."""

    phase = Phase.INVALID


@dataclass(frozen=True, slots=True)
class Planning(InPhase):
    """The gang waits for the planner or its answer."""

    phase = Phase.PLANNING
    overtaken: bool = False
    """Whether the previous answer was dropped because the cluster had changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Unplaceable(InPhase):
    """The gang was refused, and waits for a change that may help."""

    phase = Phase.UNPLACEABLE
    kinds: tuple[str, ...] = ()
    """The kinds of causes, without their numbers."""
    text: str = ""
    """The sentence about the causes."""
    notes: str = ""
    """What follows the sentence: nodes that are left out, and nodes that are reserved."""


@dataclass(frozen=True, slots=True)
class Planned(InPhase):
    """The shim has the plan. No member has reserved its node yet."""

    phase = Phase.PLANNED
    plan: AcceptedPlan


@dataclass(frozen=True, slots=True)
class Reserving(InPhase):
    """Members reserve their nodes and wait in Permit, until the last member arrives there."""

    phase = Phase.RESERVING
    plan: AcceptedPlan


@dataclass(slots=True)
class Permitted(InPhase):
    """The service has allowed the gang to bind, so Bindings may be under way."""

    phase = Phase.PERMITTED
    plan: AcceptedPlan | None = None
    """The plan of the Bindings. None if it is unknown: the Bindings come from an earlier session, or from the
    time when the pods were in another gang."""
    answer: PermitAnswer | None = None
    """The answer to the shim's Permit, so that a repeated call gets the same answer; None if `plan` is
    None."""
    awaited_bindings: dict[str, float] = field(default_factory=dict)
    """UID of each member whose Binding may be under way → when to give the Binding up."""
    why_lost: str = ""
    """Why the shim gave a member back (Unreserve); "" if the shim gave none back."""


@dataclass(frozen=True, slots=True)
class Withdrawn(InPhase):
    """The plan is void. The gang is planned again after a pause, so that repeated failures cost little."""

    phase = Phase.WITHDRAWN


@dataclass(frozen=True, slots=True)
class Running(InPhase):
    """All members that are there are bound."""

    phase = Phase.RUNNING
    plan: AcceptedPlan | None = None
    """The plan by which the last members were bound; None if another service or session made it."""


@dataclass(slots=True)
class GivenUp(InPhase):
    """The gang was partially bound for too long, so its bound members are evicted."""

    phase = Phase.GIVEN_UP
    evicting: frozenset[str] = frozenset()
    """UIDs of the members whose eviction was requested. Emptied if the gang took over pods of a gang that was
    complete: then no member is evicted."""


@dataclass(frozen=True, slots=True)
class Finished(InPhase):
    """No member is left."""

    phase = Phase.FINISHED
    awaited_bindings: Mapping[str, float]
    """The Bindings awaited when the gang ended. The gangs that now have its pods go on waiting for them."""


class Trigger(StrEnum):
    """What moves a gang to another phase: the words of the column "when". "It" is the gang."""

    MEMBERS_MISSING = "fewer members are there than it needs"
    ILL_FORMED = "its pods contradict themselves or each other"
    COMPLETE = "all that it needs are there, some not bound"
    ALL_BOUND = "all members that are there are bound"
    ALL_GONE = "no member is left"
    PLACED = "the planner placed it"
    NOTHING_FITS = "the planner says that nothing fits, or failed"
    OUTDATED = "the cluster changed under the planner's answer"
    OVERTAKEN = "that happened twice in a row"
    FREED = "something came free, a node changed or an exclusion ended"
    NUMBERS_OLD = "the numbers in its refusal are old"
    RESERVED = "the first member reserves"
    PERMITTED = "the last member asks, and all still holds"
    IN_FLIGHT = "a new session reports Bindings under way"
    MEMBERS_CHANGED = "a planned member changed or went"
    NODE_CHANGED = "a planned node changed, went or was filled by others"
    NODE_REFUSED = "an in-tree plugin refused a planned node"
    GIVEN_BACK = "a member was given back, for another reason or after Permit"
    TOO_LATE = "its deadline passed"
    SESSION_OVER = "the session ended"
    IN_MOTION = "all that it needs are there, and others have come or gone just now"
    PARTIAL_TOO_LONG = "it was partially bound for too long, and its bound members are evicted"


_P, _T = Phase, Trigger

_OPEN = (
    _P.COLLECTING,
    _P.INVALID,
    _P.PLANNING,
    _P.UNPLACEABLE,
    _P.WITHDRAWN,
    _P.RUNNING,
    _P.PERMITTED,
    _P.GIVEN_UP,
)
"""The phases in which the members alone decide which phase follows, because no plan binds the gang.

A permitted gang is among them once all its Bindings are answered; a given-up gang once no member is bound.
"""

_WHAT_MEMBERS_SAY = (
    (_T.MEMBERS_MISSING, _P.COLLECTING),
    (_T.ILL_FORMED, _P.INVALID),
    (_T.COMPLETE, _P.PLANNING),
    (_T.ALL_BOUND, _P.RUNNING),
    (_T.IN_MOTION, _P.COLLECTING),
)
_VOIDS_PLAN = (
    _T.MEMBERS_CHANGED,
    _T.NODE_CHANGED,
    _T.NODE_REFUSED,
    _T.GIVEN_BACK,
    _T.TOO_LATE,
    _T.SESSION_OVER,
)

TRANSITIONS: Mapping[tuple[Phase, Trigger], Phase] = MappingProxyType(
    {
        **{(phase, trigger): to for phase in _OPEN for trigger, to in _WHAT_MEMBERS_SAY},
        (_P.PLANNING, _T.PLACED): _P.PLANNED,
        (_P.PLANNING, _T.NOTHING_FITS): _P.UNPLACEABLE,
        (_P.PLANNING, _T.OUTDATED): _P.PLANNING,
        (_P.PLANNING, _T.OVERTAKEN): _P.WITHDRAWN,
        (_P.UNPLACEABLE, _T.FREED): _P.PLANNING,
        (_P.UNPLACEABLE, _T.NUMBERS_OLD): _P.PLANNING,
        (_P.PLANNED, _T.RESERVED): _P.RESERVING,
        (_P.RESERVING, _T.PERMITTED): _P.PERMITTED,
        **{(phase, _T.IN_FLIGHT): _P.PERMITTED for phase in _OPEN},
        **{(phase, trigger): _P.WITHDRAWN for phase in (_P.PLANNED, _P.RESERVING) for trigger in _VOIDS_PLAN},
        (_P.PERMITTED, _T.GIVEN_BACK): _P.WITHDRAWN,
        (_P.PERMITTED, _T.TOO_LATE): _P.WITHDRAWN,
        **{
            (phase, _T.PARTIAL_TOO_LONG): _P.GIVEN_UP
            for phase in (*_OPEN, _P.PLANNED, _P.RESERVING)
            if phase is not _P.GIVEN_UP
        },
        **{(phase, _T.ALL_GONE): _P.FINISHED for phase in _P if phase is not _P.FINISHED},
    }
)


class ImpossibleTransitionError(Exception):
    """A defect: this trigger cannot come in this phase."""


def next_phase(phase: Phase, trigger: Trigger) -> Phase:
    """Return the phase that follows `phase` after `trigger`.

    Raises:
        ImpossibleTransitionError: `TRANSITIONS` has no such line.
    """
    try:
        return TRANSITIONS[phase, trigger]
    except KeyError:
        raise ImpossibleTransitionError(f"a {phase} gang: {trigger}") from None


def table() -> str:
    """Return the transitions as a Markdown table: one line for each phase reached by one trigger."""
    phases_before: dict[tuple[Trigger, Phase], list[str]] = {}
    for (phase, trigger), reached_phase in TRANSITIONS.items():
        phases_before.setdefault((trigger, reached_phase), []).append(phase)
    lines = ["| from | when | to |", "| --- | --- | --- |"]
    lines += [
        f"| {', '.join(phases)} | {trigger} | {reached_phase} |"
        for (trigger, reached_phase), phases in phases_before.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
