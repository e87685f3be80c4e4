"""Describe the problem as the model sees it: nodes in classes, the patterns of each kind of node, and the
rules that bind members to parts.

The docstring of the package shows the axes of the arrays. With 20,000 nodes, no code here may loop over
classes in Python. The rules themselves are in gang/constraints, with the constraints that make them.
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

ByCell = Ints
ByClass = Ints
ByPart = Ints
ByPattern = Ints
"""Arrays with one axis, which gives the name. `ByPattern` has the axes [kind, pattern]."""

FREE = -1
"""In `Problem.parts`: the cell lies in no part, or in a part that running members touch already. Using the
cell touches no further part.
"""


@dataclass(frozen=True, slots=True)
class Patterns:
    """The patterns of each kind of node, with their values at each level.

    Kinds have different numbers of patterns, so the lines of the arrays are padded.
    """

    counts: Ints
    """[kind, pattern, role] The number of members."""
    valid: Bools
    """[kind, pattern] Whether the pattern exists. The other entries are padding."""
    nodes: ByPattern
    """How many further nodes the pattern touches: 1, or 0 on a node that running members touch already. It
    is also 0 for a pattern without GPUs, if only members with GPUs count.
    """
    weakest: ByPattern
    """The weakest link, in MB/s."""
    gpus: ByPattern
    """The number of GPUs."""
    packing: ByPattern
    """The index of the packing in the kind's list of packings."""
    choice: ByPattern
    """The index of the GPU set among the GPU sets of the packing."""
    costs: Mapping[str, ByPattern] = field(default_factory=dict)
    """The other values by name: `gpusets.SET_VALUES`, `best_fit`, the levels of gpus.costs."""

    def values(self, name: str) -> Ints:
        """Return the cost of this name; 0 if no pattern has the cost."""
        costs: Ints | None = getattr(self, name) if name in self.__slots__ else self.costs.get(name)
        return np.zeros_like(self.nodes) if costs is None else costs

    @classmethod
    def of_counts(cls, packings: list[Ints], roles: int) -> Patterns:
        """Return patterns that have numbers of members, and no GPU sets.

        `packings` has an array for each kind: the counts of all packings, one packing after another.
        """
        length = np.array([len(packing) // roles for packing in packings], np.int64)
        width = int(length.max(initial=0))
        counts = np.zeros((len(packings), width, roles), np.int64)
        valid = np.arange(width) < length[:, None]
        if len(packings):
            counts[valid] = np.concatenate(packings).reshape(-1, roles)
        zero = np.zeros_like(valid, np.int64)
        packing_index = np.broadcast_to(np.arange(width), valid.shape).astype(np.int64)
        return cls(
            counts,
            valid,
            nodes=zero + 1,
            weakest=zero + NO_LINK,
            gpus=zero,
            packing=packing_index,
            choice=zero,
        )


Use = dict[tuple[int, int], int]
"""A solution: (class, pattern) → how many nodes of the class take the pattern. Zero entries are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Place `need[role]` members on the nodes of the classes.

    If `exact`, members are placed exactly as the patterns say. Otherwise a node may take fewer members than
    its pattern, which is enough to count parts and nodes.
    """

    need: tuple[int, ...]
    patterns: Patterns
    cell: ByClass
    kind: ByClass
    size: ByClass
    """The number of nodes."""
    begin: ByClass
    """Where the nodes of the class begin in `rows`."""
    rows: Ints
    """The rows of the nodes in `Columns`, class after class."""
    open: Bools
    """[class, pattern] Whether the pattern is not excluded."""
    parts: Mapping[str, ByCell]
    """Scope → the part of each cell, or FREE."""
    exact: bool
    partial: bool = False
    """Whether some members may be left out."""
    at_most: Mapping[str, int] = field(default_factory=dict)
    """The decided levels: level → value."""
    rules: tuple[Rule, ...] = ()
    unit: Ints | None = None
    """[role, cell] Each node takes a multiple of this number of members; None if all numbers are 1."""
    gpu_only_scopes: frozenset[str] = frozenset()
    """Scopes whose parts are touched only by members with GPUs."""

    def patterns_touching_none(self, scope: str | None) -> Bools | None:
        """Return [kind, pattern] bool: the patterns that touch no part of the scope; None if all do."""
        return self.patterns.gpus == 0 if scope in self.gpu_only_scopes else None

    def open_patterns_of(self, classes: Bools, scope: str | None) -> Bools:
        """Return [class, pattern] bool: the open patterns of these classes, and the open patterns of other
        classes that touch no part of the scope.
        """
        touching_none = self.patterns_touching_none(scope)
        in_classes = classes[:, None]
        return self.open & (in_classes if touching_none is None else in_classes | touching_none[self.kind])

    def classes_without_gpus(self, scopes: Collection[str]) -> Bools:
        """Return [class] bool: whether no open pattern of the class touches a part of these scopes."""
        if not self.gpu_only_scopes.issuperset(scopes) or not scopes:
            return np.zeros(self.classes, bool)
        return np.asarray(~(self.open & (self.patterns.gpus > 0)[self.kind]).any(axis=1))

    def unit_of(self, roles: Sequence[int]) -> int:
        """Return the common unit: each node takes a multiple of this number of members of the roles."""
        return 1 if self.unit is None or not roles else int(np.gcd.reduce(self.unit[list(roles)], axis=None))

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.cell)

    def nodes(self, c: int) -> Ints:
        """Return the rows of the nodes of class `c`."""
        return self.rows[self.begin[c] : self.begin[c] + self.size[c]]

    def part(self, scope: str) -> Ints:
        """Return [class] the part of `scope`; FREE for all classes if the scope is not counted."""
        return self.parts[scope][self.cell] if scope in self.parts else np.full(self.classes, FREE)

    def with_decided(self, **values: int) -> Problem:
        """Return the problem with these levels decided."""
        return replace(self, at_most={**self.at_most, **values})

    def narrow_with_use(self, still_open: Bools, use: Use) -> tuple[Problem, Use]:
        """Return the problem with only these patterns and the solution's, and the solution in its classes."""
        open_or_used = still_open.copy()
        for c, p in use:
            open_or_used[c, p] = True
        narrowed, old_classes = self.narrow_to(open_or_used)
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

    def narrow_to(self, still_open: Bools) -> tuple[Problem, Ints]:
        """Return the problem with only these patterns, and the old indices of the remaining classes."""
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
    """Return the solution in the classes of a narrowed problem. Entries of removed classes are dropped."""
    index = {int(old): new for new, old in enumerate(old_classes)}
    return {(index[c], p): nodes for (c, p), nodes in use.items() if c in index}


def to_full(use: Use, old_classes: Ints) -> Use:
    """Return the solution of a narrowed problem in the classes of the problem before narrowing."""
    return {(int(old_classes[c]), p): nodes for (c, p), nodes in use.items()}


# Rules


NO_LIMIT: Ints = np.zeros(0, np.int64)
"""The `max_members` of rules without a limit for each part."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule(ABC):
    """A rule about the members of `roles`, and of `other_roles`, in each part.

    Methods without a solver understand only `max_members` and `step`. They decline a rule if `in_numbers` is
    false.
    """

    part: ByCell
    """The part of the cell, −1 if it lies in none."""
    roles: tuple[int, ...]
    other_roles: tuple[int, ...] = ()
    max_members: ByPart = field(default_factory=lambda: NO_LIMIT)
    """The most members that the part takes; empty without such a limit."""
    step: int = 1
    """The number of members in a part is a multiple of this number."""

    in_numbers: ClassVar[bool] = False
    """Whether the rule consists of `max_members` and `step` only."""
    in_one_part: ClassVar[bool] = False
    """Whether the rule is that all members lie in one part."""

    @abstractmethod
    def add(self, variables: Variables, name: str) -> None:
        """Add the rule to the model. The names of variables and constraints begin with `name`."""

    def limits(self, problem: Problem) -> PartLimits | None:
        """Return how many members each part may have, for the bound; None if the rule limits no numbers."""
        return None

    @property
    def bound_roles(self) -> tuple[int, ...]:
        """The roles whose members can break the rule."""
        return (*self.roles, *self.other_roles)

    @property
    def distinguished_by(self) -> tuple[Ints, ...]:
        """[cell] arrays by which the rule tells parts apart: parts are equal only if these arrays agree."""
        return (self.of_part(self.max_members),) if len(self.max_members) else ()

    def of_part(self, value: Ints) -> Ints:
        """Return [cell] the value of the cell's part, −1 for a cell in no part."""
        padded = np.append(value, -1)  # the last entry is for no part
        return padded[np.where(self.part < 0, len(value), self.part)]


# Limits of numbers of members that hold in every plan, so that a search without a plan ends early


@dataclass(frozen=True, slots=True, eq=False)
class PartLimits:
    """Limits of the number of members of `roles` in each part."""

    roles: tuple[int, ...]
    part: ByClass
    """The part of the class, −1 if it lies in none."""
    low: ByPart
    """The fewest members in the part."""
    high: ByPart
    """The most members in the part."""
    even: ByPart
    """All parts together may have any numbers from `low` to `even`."""
    capacity: ByClass
    """The most members of the roles that the nodes of the class take, without rules."""

    def fewest_nodes(self, problem: Problem) -> dict[int, int]:
        """Return, for each part that must take members, the fewest nodes that hold `low` members."""
        nodes_of = {}
        for code in np.flatnonzero(self.low > 0).tolist():
            in_part = self.part == code
            size = problem.size[in_part]
            by_node = np.repeat(self.capacity[in_part] // np.maximum(1, size), size)
            nodes_of[code] = fewest_that_hold(by_node, int(self.low[code]))
        return nodes_of

    def fewest_parts(self, other_part: Ints) -> int:
        """Return the fewest parts of another scope, `other_part` [class], that hold each part's `low`."""
        total, largest_count = 0, 0
        codes = np.unique(np.stack([other_part, self.part]), axis=1)
        codes = codes[:, (codes >= 0).all(axis=0)]
        nested = len(np.unique(codes[0])) == codes.shape[1]
        for code in np.flatnonzero(self.low > 0).tolist():
            in_part = self.part == code
            free = int(self.capacity[in_part & (other_part == FREE)].sum())
            in_both = in_part & (other_part != FREE)
            capacities = (
                np.bincount(other_part[in_both], self.capacity[in_both]) if in_both.any() else np.zeros(1)
            )
            count = fewest_that_hold(capacities.astype(np.int64), int(self.low[code]) - free)
            total, largest_count = total + count, max(largest_count, count)
        return total if nested else largest_count

    def classes_in_fullest(self, other_part: Ints, member_counts: Ints) -> Bools:
        """Return [class] bool: the classes in the fullest parts of another scope (`other_part` [class]).

        For each part, the fewest of the fullest parts that hold `member_counts` [part] members are taken.
        Classes that lie in no part are always included.
        """
        is_inside = np.asarray((other_part == FREE) | (self.part < 0))
        for code in np.flatnonzero(member_counts > 0).tolist():
            in_part = (self.part == code) & (other_part != FREE)
            if in_part.any():
                capacities = np.bincount(other_part[in_part], self.capacity[in_part]).astype(np.int64)
                fullest = np.argsort(-capacities, kind="stable")[
                    : fewest_that_hold(capacities, int(member_counts[code]))
                ]
                is_inside |= in_part & np.isin(other_part, fullest)
        return is_inside


def limits_of(problem: Problem) -> Iterator[PartLimits]:
    """Yield the limits of the problem's rules."""
    for rule in problem.rules:
        limits = rule.limits(problem)
        if limits is not None:
            yield limits


def capacity_of_classes(problem: Problem, roles: tuple[int, ...]) -> Ints:
    """Return [class] the most members of the roles that the class's nodes take."""
    counts = problem.patterns.counts[:, :, list(roles)].sum(axis=2)
    return np.asarray(np.where(problem.open, counts[problem.kind], 0).max(axis=1, initial=0) * problem.size)


def fewest_that_hold(capacities: Ints | Floats, target: float) -> int:
    """Return the smallest n such that the n largest capacities sum up to at least `target`.

    The result is `len(capacities) + 1` if all capacities together are less.
    """
    if target <= 0:
        return 0
    return int(np.searchsorted(np.cumsum(np.sort(capacities)[::-1]), target)) + 1
