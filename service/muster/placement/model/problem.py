"""Describe the problem as the model sees it: nodes in classes, and what one node of each kind may take as
patterns; and the rules that bind members to parts.

Everything is an array: with 20,000 nodes no code here may loop over classes in Python. The rules themselves
are with the constraints that make them, in gang/constraints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from muster.placement.gpus.links import NO_LINK

if TYPE_CHECKING:  # a rule adds to the model of a problem
    from muster.placement.model.build import Variables

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

FREE = -1
"""In `Problem.parts`: the cell lies in no part, or in a part that the gang touches
anyway. It costs nothing.
"""


@dataclass(frozen=True, slots=True)
class Patterns:
    """What one node of each kind may take, and what that costs at each level: int64 arrays [kind, pattern].

    Lines are padded; `valid` is which patterns exist. `counts` [kind, pattern, role] is the number of
    members. `nodes` is 1, or 0 on a node that the gang is on already. `weakest` is the weakest link in MB/s.
    `costs` has the other values by name: those of `gpusets.SET_VALUES`, `left_over`, which is the best fit,
    and the levels of gpus.costs. `packing` is the index of the packing in the kind's own list. `choice` is
    the index of the GPU set among those of the packing.
    """

    counts: Ints
    valid: Bools
    nodes: Ints
    weakest: Ints
    gpus: Ints
    packing: Ints
    choice: Ints
    costs: Mapping[str, Ints] = field(default_factory=dict)

    def values(self, name: str) -> Ints:
        """Return one of the costs by its name; 0 if no pattern has it."""
        costs: Ints | None = getattr(self, name) if name in self.__slots__ else self.costs.get(name)
        return np.zeros_like(self.nodes) if costs is None else costs

    @classmethod
    def of_counts(cls, packings: list[Ints], roles: int) -> Patterns:
        """Return patterns that say how many members fit, and nothing about GPU sets.

        `packings` has for each kind the counts of one packing after another.
        """
        length = np.array([len(packing) // roles for packing in packings], np.int64)
        width = int(length.max(initial=0))
        counts = np.zeros((len(packings), width, roles), np.int64)
        valid = np.arange(width) < length[:, None]
        if len(packings):
            counts[valid] = np.concatenate(packings).reshape(-1, roles)
        zero = np.zeros_like(valid, np.int64)
        at = np.broadcast_to(np.arange(width), valid.shape).astype(np.int64)
        return cls(
            counts,
            valid,
            nodes=zero + 1,
            weakest=zero + NO_LINK,
            gpus=zero,
            packing=at,
            choice=zero,
        )


Use = dict[tuple[int, int], int]
"""A solution: (class, pattern) → how many nodes of the class take the pattern. Entries of 0 are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Place `need[role]` members on the nodes of the classes.

    A class is the nodes of one kind in one cell. A cell is the nodes that agree in all scopes that are
    counted: one rack, one zone, one wide NVLink domain. `cell`, `kind` and `size` are [class]. `begin`
    [class] is where the nodes of the class begin in `rows`, which are rows of Columns. `open` [class,
    pattern] bool is which patterns are not ruled out. `parts` maps a scope to the part of each cell, or FREE.

    `exact` is whether members are placed as the patterns say. Otherwise a node may take less than its
    pattern, which is enough for the levels that count parts and nodes. It takes multiples of `unit` [role,
    cell] members, None if any number will do. `partial` is whether some members may stay out. `at_most` has
    what was decided: level → value.
    """

    need: tuple[int, ...]
    patterns: Patterns
    cell: Ints
    kind: Ints
    size: Ints
    begin: Ints
    rows: Ints
    open: Bools
    parts: Mapping[str, Ints]
    exact: bool
    partial: bool = False
    at_most: Mapping[str, int] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    unit: Ints | None = None
    gpu_only_scopes: frozenset[str] = frozenset()
    """The scopes of whose parts only members with GPUs count as touching."""

    def patterns_touching_none(self, scope: str | None) -> Bools | None:
        """Return [kind, pattern] bool: the patterns that touch no part of the scope; None if all do."""
        return self.patterns.gpus == 0 if scope in self.gpu_only_scopes else None

    def open_patterns_of(self, classes: Bools, scope: str | None) -> Bools:
        """Return [class, pattern] bool: the open patterns of these classes, and of the others those that
        touch no part of the scope.
        """
        touching_none = self.patterns_touching_none(scope)
        inside = classes[:, None]
        return self.open & (inside if touching_none is None else inside | touching_none[self.kind])

    def without_gpus(self, scopes: Collection[str]) -> Bools:
        """Return [class] bool: whether no open pattern of the class touches a part of these scopes."""
        if not self.gpu_only_scopes.issuperset(scopes) or not scopes:
            return np.zeros(self.classes, bool)
        return np.asarray(~(self.open & (self.patterns.gpus > 0)[self.kind]).any(axis=1))

    def unit_of(self, roles: Sequence[int]) -> int:
        """Return a number such that each node takes a multiple of it of these roles together."""
        return 1 if self.unit is None or not roles else int(np.gcd.reduce(self.unit[list(roles)], axis=None))

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.cell)

    def nodes(self, c: int) -> Ints:
        """Return the rows of the nodes of class `c`."""
        return self.rows[self.begin[c] : self.begin[c] + self.size[c]]

    def part(self, scope: str) -> Ints:
        """Return [class] the part of `scope`; FREE for all if the scope is not counted."""
        return self.parts[scope][self.cell] if scope in self.parts else np.full(self.classes, FREE)

    def keeping(self, **values: int) -> Problem:
        """Return the problem with these levels decided."""
        return replace(self, at_most={**self.at_most, **values})

    def keeping_use(self, still_open: Bools, use: Use) -> tuple[Problem, Use]:
        """Return the problem with only these patterns and those of a solution, and the solution in its
        classes.
        """
        open_or_used = still_open.copy()
        for c, p in use:
            open_or_used[c, p] = True
        narrowed, old_classes = self.narrowed(open_or_used)
        return narrowed, to_narrowed(use, old_classes)

    def used_nodes(self, use: Use) -> Iterator[tuple[int, int, int]]:
        """Yield the row of each node of a solution, with its kind and its pattern.

        The first nodes of a class are used first.
        """
        used_counts: dict[int, int] = {}
        for (c, p), count in sorted(use.items()):
            start = used_counts.get(c, 0)
            used_counts[c] = start + count
            for row in self.nodes(c)[start : start + count].tolist():
                yield row, int(self.kind[c]), p

    def narrowed(self, still_open: Bools) -> tuple[Problem, Ints]:
        """Return the problem with only these patterns, and the old indices of the classes that are left."""
        old_classes = np.flatnonzero(still_open.any(axis=1))
        return (
            replace(
                self,
                cell=self.cell[old_classes],
                kind=self.kind[old_classes],
                size=self.size[old_classes],
                begin=self.begin[old_classes],
                open=still_open[old_classes],
            ),
            old_classes,
        )


def to_narrowed(use: Use, old_classes: Ints) -> Use:
    """Return a solution in the classes that `Problem.narrowed` left; that of other classes is dropped."""
    index = {int(old): new for new, old in enumerate(old_classes)}
    return {(index[c], p): nodes for (c, p), nodes in use.items() if c in index}


def to_full(use: Use, old_classes: Ints) -> Use:
    """Return a solution of a narrowed problem in terms of the classes that it was narrowed from."""
    return {(int(old_classes[c]), p): nodes for (c, p), nodes in use.items()}


# Rules


NO_LIMIT: Ints = np.zeros(0, np.int64)
"""The `left` of rules without a limit for each part."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule(ABC):
    """A rule about the members of `roles`, and of `others`, in each part. `part` [cell] is −1 for none.

    `max_members` [part] is the most members that a part takes, empty without such a limit. The members in a part are
    a multiple of `step`. Methods without a solver use these two, and decline rules that say more.
    """

    part: Ints
    roles: tuple[int, ...]
    others: tuple[int, ...] = ()
    max_members: Ints = field(default_factory=lambda: NO_LIMIT)
    step: int = 1

    in_numbers: ClassVar[bool] = False
    """Whether `max_members` and `step` are all of the rule."""
    in_one_part: ClassVar[bool] = False
    """Whether the rule is that all members lie in one part."""

    @abstractmethod
    def add(self, variables: Variables, name: str) -> None:
        """Add the rule to the model. The names of variables and constraints begin with `name`."""

    def share(self, problem: Problem) -> PartShare | None:
        """Return how many members each part takes, for the bound; None if the rule does not limit numbers."""
        return None

    @property
    def bound_roles(self) -> tuple[int, ...]:
        """The roles whose members can break the rule."""
        return (*self.roles, *self.others)

    @property
    def distinguished_by(self) -> tuple[Ints, ...]:
        """[cell] arrays: what else tells a part apart from others."""
        return (self.of_part(self.max_members),) if len(self.max_members) else ()

    def of_part(self, value: Ints) -> Ints:
        """Return [cell] the value of the cell's part, −1 for none."""
        padded = np.append(value, -1)  # the last entry is for no part
        return padded[np.where(self.part < 0, len(value), self.part)]


# What rules say about numbers: bounds that hold in every plan, which end hopeless searches early


@dataclass(frozen=True, slots=True, eq=False)
class PartShare:
    """How many members of `roles` each part takes.

    `part` [class] is −1 for none. Each part takes `low` [part] to `high` [part] members. The rule allows all
    numbers from `low` to `even` [part] at once. `capacity` [class] is the most of these roles that the
    class's nodes take, rules aside.
    """

    roles: tuple[int, ...]
    part: Ints
    low: Ints
    high: Ints
    even: Ints
    capacity: Ints

    def fewest_nodes(self, problem: Problem) -> dict[int, int]:
        """Return the fewest nodes that hold its members, for each part that must take members."""
        nodes_of = {}
        for code in np.flatnonzero(self.low > 0).tolist():
            inside = self.part == code
            size = problem.size[inside]
            by_node = np.repeat(self.capacity[inside] // np.maximum(1, size), size)
            nodes_of[code] = fewest(by_node, int(self.low[code]))
        return nodes_of

    def fewest_parts(self, other_part: Ints) -> int:
        """Return the fewest parts of another scope (`other_part` [class]) for what each part must take."""
        total, largest_count = 0, 0
        codes = np.unique(np.stack([other_part, self.part]), axis=1)
        codes = codes[:, (codes >= 0).all(axis=0)]
        nested = len(np.unique(codes[0])) == codes.shape[1]
        for code in np.flatnonzero(self.low > 0).tolist():
            inside = self.part == code
            free = int(self.capacity[inside & (other_part == FREE)].sum())
            counted = inside & (other_part != FREE)
            capacities = (
                np.bincount(other_part[counted], self.capacity[counted]) if counted.any() else np.zeros(1)
            )
            count = fewest(capacities.astype(np.int64), int(self.low[code]) - free)
            total, largest_count = total + count, max(largest_count, count)
        return total if nested else largest_count

    def in_fullest(self, other_part: Ints, most: Ints) -> Bools:
        """Return [class] bool: the classes in the fullest parts of another scope (`other_part` [class]).

        For each part as many of them are taken as hold `most` [part] members. Classes that lie in no part
        are always included.
        """
        is_inside = np.asarray((other_part == FREE) | (self.part < 0))
        for code in np.flatnonzero(most > 0).tolist():
            inside = (self.part == code) & (other_part != FREE)
            if inside.any():
                capacities = np.bincount(other_part[inside], self.capacity[inside]).astype(np.int64)
                fullest = np.argsort(-capacities, kind="stable")[: fewest(capacities, int(most[code]))]
                is_inside |= inside & np.isin(other_part, fullest)
        return is_inside


def shares(problem: Problem) -> Iterator[PartShare]:
    """Yield the limits of the problem's rules."""
    for rule in problem.rules:
        share = rule.share(problem)
        if share is not None:
            yield share


def capacity(problem: Problem, roles: tuple[int, ...]) -> Ints:
    """Return [class] the most members of the roles that the class's nodes take."""
    counts = problem.patterns.counts[:, :, list(roles)].sum(axis=2)
    return np.asarray(np.where(problem.open, counts[problem.kind], 0).max(axis=1, initial=0) * problem.size)


def fewest(capacities: Ints | Floats, target: float) -> int:
    """Return how many of the largest capacities reach `target`; one more than there are if all do not."""
    if target <= 0:
        return 0
    return int(np.searchsorted(np.cumsum(np.sort(capacities)[::-1]), target)) + 1
