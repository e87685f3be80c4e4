"""Limit how long the planner may search, and exclude nodes: data that the caller passes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from muster.domain.request import Request, Role
from muster.placement.cluster.candidates import Excluded

PHASES = ("scan", "bound", "build", "solve", "sets", "verify", "explain")
"""The phases of a decision. Some of its time, for example for naming members, is in no phase."""


MAX_UNLIKE_ROLES = 64
"""The most roles of one gang, by default.

To place a gang of 64 roles made to be hard takes 2 s of a core; one of 100 takes a minute. To explain a
refusal of 64 takes up to 16 s, which the wall clock bounds.
"""


@dataclass(frozen=True, slots=True)
class Stretch:
    """When a phase of a decision first began and last ended, by the clock, and the seconds spent on it."""

    began: float
    ended: float
    seconds: float = 0.0


@dataclass(slots=True)
class Timings:
    """A stop watch for the phases of one decision, in seconds. `clock` is the caller's.

    A decision is the same with and without a stop watch.
    """

    clock: Callable[[], float]
    stretches: dict[str, Stretch] = field(default_factory=dict)
    """The stretch of each phase that occurred, and of each exact method that decided a level."""

    @property
    def seconds(self) -> dict[str, float]:
        """Return the time that was spent on each phase."""
        return {name: self.stretches[name].seconds if name in self.stretches else 0.0 for name in PHASES}

    def note(self, name: str, began: float) -> None:
        """Add the time since `began` to a phase or a method."""
        now = self.clock()
        stretch = self.stretches.get(name, Stretch(began, now))
        self.stretches[name] = Stretch(stretch.began, now, stretch.seconds + now - began)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one decision.

    `deterministic_time` is CP-SAT's own measure (about a second of a core), over all solves of the decision.
    So the same input gives the same answer. `seconds_left` is an outer guard: it is called before each solve
    and returns the remaining wall clock time. A decision that this guard ends is `truncated`. `excluded` has
    the nodes that plugins refuse, by role. If `timings` is there, each phase adds its time. A gang with more
    than `most_roles` unlike roles is refused before any search.
    """

    deterministic_time: float = 0.5
    seconds_left: Callable[[], float] | None = None
    excluded: Excluded = field(default_factory=dict)
    timings: Timings | None = None
    most_roles: int = MAX_UNLIKE_ROLES


class Budget:
    """The remaining limits while one decision is made."""

    def __init__(self, limits: Limits) -> None:
        self._total = self._deterministic = limits.deterministic_time
        self._reserved = 0.0
        self._seconds_left = limits.seconds_left
        self._timings = limits.timings
        self.truncated = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block under a phase of PHASES. Blocks must not be nested."""
        if self._timings is None:
            yield
            return
        began = self.now()
        try:
            yield
        finally:
            self._timings.note(name, began)

    def now(self) -> float:
        """Return the time by the caller's clock, 0 without one."""
        return self._timings.clock() if self._timings is not None else 0.0

    def note_decision(self, method: str, began: float) -> None:
        """Count the time since `began` for an exact method that has decided a level."""
        if self._timings is not None:
            self._timings.note(method, began)

    @property
    def deterministic_time(self) -> float:
        """The remaining deterministic time, never negative."""
        return max(0.0, self._deterministic - self._reserved)

    @contextmanager
    def share(self, share: float) -> Iterator[None]:
        """Let the block use at most this share of the whole time of the decision. Later blocks get the time
        that remains.
        """
        reserved_outside = self._reserved
        self._reserved = max(reserved_outside, self._deterministic - share * self._total)
        try:
            yield
        finally:
            self._reserved = reserved_outside

    def seconds(self) -> float | None:
        """Return the remaining wall clock time, None without a guard."""
        return None if self._seconds_left is None else max(0.0, self._seconds_left())

    @property
    def late(self) -> bool:
        """Whether the wall clock time is over. If so, the decision is marked as truncated."""
        late = self.seconds() == 0
        self.truncated |= late
        return late

    @property
    def spent(self) -> bool:
        """Whether no time remains. If the wall clock time is over, the decision is marked as truncated."""
        return self.late or self._deterministic <= self._reserved

    def spend(self, deterministic_time: float) -> None:
        """Take away the deterministic time that a solve has used."""
        self._deterministic -= deterministic_time


def count_unlike_roles(request: Request, excluded: Excluded) -> int:
    """Return the number of different roles. Roles for which plugins refuse nodes count as one role if they
    are equal otherwise.

    Such roles are pods with a volume each. Users cannot make these pods equal, and each volume leaves few
    nodes, which bounds the search.
    """
    rules = [(rule_index, rule.roles) for rule_index, rule in enumerate(request.constraints)]
    return len(
        {
            (
                "" if excluded.get(role.name) else role.name,
                role.resources,
                role.gpus,
                role.gpu_resource,
                role.slice,
                role.rules,
                role.required_scope,
                role.segments,
                role.match_attributes,
                frozenset(group.name for group in request.subgroups if role.name in group.roles),
                frozenset(rule_index for rule_index, roles in rules if role.name in roles),
            )
            for role in request.roles
        }
    )


def takes_gpus(role: Role) -> bool:
    """Return whether members of the role take whole GPUs, or slices."""
    return bool(role.gpus or role.slice)


def asks_gpus(request: Request) -> bool:
    """Return whether any member asks for a GPU, or for a part of its memory."""
    return any(takes_gpus(role) and role.members for role in request.roles)
