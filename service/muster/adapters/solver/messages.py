"""What the service and the planner's process say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.adapters.solver.replica import Difference
from muster.domain.alternatives import Alternatives, Question
from muster.domain.decision import Decision
from muster.domain.request import Request
from muster.placement.limits import Stretch


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has loaded the planner."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Decide about one gang, or find its alternatives.

    `until`: when its wall clock is spent, on the monotonic clock, which is the same in all processes.
    `memory_bytes`: how much more memory the process may use meanwhile. `slice_s`: when its processor time is
    spent, from the beginning of the decision.
    """

    difference: Difference
    request: Request | Question
    excluded: Mapping[tuple[str, str], str]
    deterministic_time: float
    until: float
    memory_bytes: int
    most_roles: int
    slice_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decided. `processor_s`: seconds of processor time that it took. `stretches`: what the time was
    spent on, on the monotonic clock. `ends`: the process ends now, because it has grown too much over many
    decisions."""

    decision: Decision | Alternatives
    processor_s: float
    stretches: dict[str, Stretch] = field(default_factory=dict)
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The planner has a defect. `error` is its type and its text."""

    error: str
    trace: str


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The decision reached the memory limit; the process ends."""
