"""How long the planner may search, and what it must leave out: data handed in by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from muster.domain.node import Resources
from muster.domain.request import Request, Role
from muster.placement.exclusions import of_role

PHASES = ("scan", "bound", "build", "solve", "sets", "verify", "explain")
"""What a decision's time is spent on. The rest of it, naming members for one, is in none."""


MOST_ROLES = 64
"""Roles of one gang, by default. To place crafted gangs of so many takes 2 s of a core, of 100 a minute; to
explain a refusal takes up to 16 s, which the wall clock bounds."""


@dataclass(slots=True)
class Timings:
    """A stop watch of one decision, by phase, in seconds. `clock` is the caller's; the decision is the same
    with or without one."""

    clock: Callable[[], float]
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one decision.

    `deterministic_time` is CP-SAT's own measure (about a second of a core), over all solves of the decision:
    same input, same answer. `seconds_left` is an outer guard: called before a solve, it says how much wall
    clock is left; a decision that it cut short says `truncated`. `excluded` maps (role, node) to the name of
    the plugin that refused the pair. `timings` is filled in where it is given. A gang of more than
    `most_roles` unlike roles is refused before any search.
    """

    deterministic_time: float = 0.5
    seconds_left: Callable[[], float] | None = None
    excluded: Mapping[tuple[str, str], str] = field(default_factory=dict)
    timings: Timings | None = None
    most_roles: int = MOST_ROLES


class Budget:
    """What is left of the limits while one decision is made."""

    def __init__(self, limits: Limits) -> None:
        self._whole = self._deterministic = limits.deterministic_time
        self._kept = 0.0
        self._seconds_left = limits.seconds_left
        self._timings = limits.timings
        self.truncated = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block under a phase of PHASES; blocks do not nest."""
        if self._timings is None:
            yield
            return
        began = self._timings.clock()
        try:
            yield
        finally:
            self._timings.seconds[name] += self._timings.clock() - began

    @property
    def deterministic_time(self) -> float:
        """Deterministic time left, never negative."""
        return max(0.0, self._deterministic - self._kept)

    @contextmanager
    def share(self, share: float) -> Iterator[None]:
        """Let the block use no more than a share of what there was at first: the rest is for what follows."""
        before = self._kept
        self._kept = max(before, self._deterministic - share * self._whole)
        try:
            yield
        finally:
            self._kept = before

    def seconds(self) -> float | None:
        """Wall clock left, None without a guard."""
        return None if self._seconds_left is None else max(0.0, self._seconds_left())

    @property
    def late(self) -> bool:
        """Whether no wall clock is left; notes it if so."""
        late = self.seconds() == 0
        self.truncated |= late
        return late

    @property
    def spent(self) -> bool:
        """Whether nothing is left; notes when it was the wall clock."""
        return self.late or self._deterministic <= self._kept

    def spend(self, deterministic_time: float) -> None:
        """Take what a solve has used."""
        self._deterministic -= deterministic_time


def member_room(asked: Resources, free: Resources) -> int:
    """How many times `asked` fits in `free`, as kube-scheduler counts: what is not asked is not checked."""
    counts = [max(0, free.pods) // max(1, asked.pods)]
    if asked.cpu_milli > 0:
        counts.append(max(0, free.cpu_milli) // asked.cpu_milli)
    if asked.memory_bytes > 0:
        counts.append(max(0, free.memory_bytes) // asked.memory_bytes)
    counts += [max(0, free.other(name)) // amount for name, amount in asked.others]
    return min(counts)


def unlike_roles(request: Request, excluded: Mapping[tuple[str, str], str]) -> int:
    """Return how many roles there are, those that differ in the nodes alone which plugins refuse as one.

    Pods with a volume each are such: their users can't make them alike, and the nodes bound the search.
    """
    rules = [(at, rule.roles) for at, rule in enumerate(request.constraints)]
    return len(
        {
            (
                "" if of_role(excluded, role.name) else role.name,
                role.resources,
                role.gpus,
                role.gpu_resource,
                role.slice,
                role.rules,
                role.required_scope,
                role.segments,
                frozenset(group.name for group in request.subgroups if role.name in group.roles),
                frozenset(at for at, roles in rules if role.name in roles),
            )
            for role in request.roles
        }
    )


def takes_gpus(role: Role) -> bool:
    """Whether members of the role take whole GPUs, or slices."""
    return bool(role.gpus or role.slice)


def asks_gpus(request: Request) -> bool:
    """Whether any member asks for a GPU, or for memory of one."""
    return any(takes_gpus(role) and role.members for role in request.roles)
