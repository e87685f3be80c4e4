"""The problem as the model sees it: nodes in classes, what one node may take as patterns, what is needed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from muster.placement.rings import NO_LINK


@dataclass(frozen=True, slots=True, order=True)
class Pattern:
    """What one node takes: members by role, and what that costs at each level.

    `choice` is the index of its GPU set in `best_sets`. `domains` counts NVLink domains inside the node (0
    where the node lies in a wide one, which the class names). `weakest`, `ring` in MB/s, `damage` and
    `left_over` in thousandths, as gpusets and damage define them.
    """

    counts: tuple[int, ...]
    choice: int = 0
    domains: int = 0
    weakest: int = NO_LINK
    ring: int = 0
    damage: int = 0
    left_over: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes of one rack that take the same patterns at the same cost. `zone`, `rack`, `part`: dense indices;
    `domain`: the wide NVLink domain, −1 where there is none."""

    part: int
    zone: int
    rack: int
    domain: int
    patterns: tuple[Pattern, ...]
    nodes: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class Problem:
    """Place `need[role]` members on nodes of one part.

    `exact`: patterns are complete and count what is placed. Otherwise they are the largest ones only, and a
    node may take less: enough for the levels that count parts and nodes. `partial`: as many members as can
    be, up to `need`. `at_most` are levels decided before: name → value.
    """

    need: tuple[int, ...]
    classes: tuple[NodeClass, ...]
    exact: bool
    partial: bool = False
    at_most: tuple[tuple[str, int], ...] = ()

    def keeping(self, **values: int) -> Problem:
        """The problem with these levels decided."""
        return replace(self, at_most=(*self.at_most, *values.items()))


Use = dict[tuple[int, int], int]
"""A solution: (class, pattern) → how many nodes of the class take the pattern; only what is not zero."""


def weakest_ranks(problem: Problem) -> dict[int, int]:
    """The distinct weakest links, fastest first, and their rank; one GPU (no link) is rank 0."""
    links = sorted({p.weakest for c in problem.classes for p in c.patterns} - {NO_LINK}, reverse=True)
    return {NO_LINK: 0, **{link: rank for rank, link in enumerate(links, start=1)}}
