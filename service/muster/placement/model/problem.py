"""The problem as the model sees it: nodes in classes, what a node of each kind may take as patterns.

Arrays throughout: at 20,000 nodes nothing here may loop over classes in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from muster.placement.gpus.rings import NO_LINK
from muster.placement.model.rule import Rule

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FREE = -1
"""In `Problem.parts`: a cell that lies in no part, or in one that the gang touches anyway: costs nothing."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """What one node of each kind may take, and what that costs at each level: arrays [kind, pattern].

    Rows are padded; `valid` says which patterns there are. `counts` [kind, pattern, role]: members by role.
    `nodes` is 1, or 0 on a node that the gang is on already. `domains` counts NVLink domains inside the node.
    `weakest`, `ring` in MB/s, `damage` in GPU-thousandths, `left_over` the best fit: see gpusets, on_node.
    `choice` is the index of the GPU set among those of its packing (`packing`: index in the kind's own list).
    """

    counts: Ints
    valid: Bools
    nodes: Ints
    domains: Ints
    weakest: Ints
    ring: Ints
    damage: Ints
    left_over: Ints
    gpus: Ints
    packing: Ints
    choice: Ints
    more: Mapping[str, Ints] = field(default_factory=dict)
    """Costs by the names of further levels (gpus.costs)."""

    def values(self, name: str) -> Ints:
        """One of the costs by its name; 0 where no pattern has it."""
        found: Ints | None = getattr(self, name) if name in self.__slots__ else self.more.get(name)
        return np.zeros_like(self.nodes) if found is None else found

    @classmethod
    def of_counts(cls, packings: list[Ints], roles: int) -> Patterns:
        """Patterns that say how many members fit, and nothing about GPU sets. `packings`: by kind, the counts
        of one packing after another."""
        length = np.array([len(packing) // roles for packing in packings], np.int64)
        width = int(length.max(initial=0))
        counts = np.zeros((len(packings), width, roles), np.int64)
        valid = np.arange(width) < length[:, None]
        if len(packings):
            counts[valid] = np.concatenate(packings).reshape(-1, roles)
        zero = np.zeros_like(valid, np.int64)
        at = np.broadcast_to(np.arange(width), valid.shape).astype(np.int64)
        one, none = zero + 1, zero + NO_LINK
        return cls(counts, valid, one, zero, none, zero, zero, zero, zero, at, zero)


Use = dict[tuple[int, int], int]
"""A solution: (class, pattern) → how many nodes of the class take the pattern; only what is not zero."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Place `need[role]` members on the nodes of the classes.

    A class is the nodes of one kind in one cell, and a cell is where all scopes in play agree: one rack, one
    zone, one wide NVLink domain. [class] arrays: `cell`, `kind`, `size`, and `start` into `rows`, the nodes
    of each class in order (as rows of Columns). `open` [class, pattern]: patterns not ruled out. `parts`:
    scope → part by cell, or FREE.

    `exact`: members are placed as the patterns say. Otherwise a node may take less than its pattern: enough
    for the levels that count parts and nodes. `at_most`: what was decided, level → value.
    """

    need: tuple[int, ...]
    patterns: Patterns
    cell: Ints
    kind: Ints
    size: Ints
    start: Ints
    rows: Ints
    open: Bools
    parts: Mapping[str, Ints]
    exact: bool
    partial: bool = False
    at_most: Mapping[str, int] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    @property
    def classes(self) -> int:
        return len(self.cell)

    def nodes(self, c: int) -> Ints:
        """The rows of the nodes of class `c`."""
        return self.rows[self.start[c] : self.start[c] + self.size[c]]

    def part(self, scope: str) -> Ints:
        """The part of `scope` by class; FREE for all where the scope is not in play."""
        return self.parts[scope][self.cell] if scope in self.parts else np.full(self.classes, FREE)

    def keeping(self, **values: int) -> Problem:
        """The problem with these levels decided."""
        return replace(self, at_most={**self.at_most, **values})

    def keeping_use(self, still_open: Bools, use: Use) -> tuple[Problem, Use]:
        """The problem with these patterns and those of a solution, and the solution in its terms."""
        kept_open = still_open.copy()
        for c, p in use:
            kept_open[c, p] = True
        narrowed, kept = self.narrowed(kept_open)
        return narrowed, carried(use, kept)

    def taken(self, use: Use) -> Iterator[tuple[int, int, int]]:
        """The nodes of a solution, as rows, and the kind and the pattern that each takes: of a class the
        first ones."""
        used: dict[int, int] = {}
        for (c, p), count in sorted(use.items()):
            start = used.get(c, 0)
            used[c] = start + count
            for row in self.nodes(c)[start : start + count].tolist():
                yield row, int(self.kind[c]), p

    def narrowed(self, still_open: Bools) -> tuple[Problem, Ints]:
        """The problem with these patterns alone, and the classes that are left of it, by old index."""
        kept = np.flatnonzero(still_open.any(axis=1))
        return (
            replace(
                self,
                cell=self.cell[kept],
                kind=self.kind[kept],
                size=self.size[kept],
                start=self.start[kept],
                open=still_open[kept],
            ),
            kept,
        )


def carried(use: Use, kept: Ints) -> Use:
    """A solution in terms of the classes that `Problem.narrowed` kept; what used others is lost."""
    index = {int(old): new for new, old in enumerate(kept)}
    return {(index[c], p): nodes for (c, p), nodes in use.items() if c in index}


def carried_back(use: Use, kept: Ints) -> Use:
    """The other way: a solution of a narrowed problem in terms of the classes it was narrowed from."""
    return {(int(kept[c]), p): nodes for (c, p), nodes in use.items()}
