"""Give the model's variables names that say what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from muster.placement.model.cp_sat import cp_model
from muster.placement.model.objective import Level
from muster.placement.model.problem import FREE, Bools, Ints, Problem, Use

LinearExpr = cp_model.LinearExpr
IntVar = cp_model.IntVar
LinearExprT = cp_model.LinearExprT


class Model(cp_model.CpModel):
    """A CP-SAT model without the CamelCase aliases that ortools 9.15 gives to each model.

    They take a millisecond. They also tie the model into a reference cycle that only the garbage collector
    frees.
    """

    def _add_pre_pep8_methods(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Group:
    """Classes that share their variables, because they may take the same.

    They are classes of one cell, or a pool of classes whose cell does not matter: then `cell` is None.
    `patterns` [class][column] is the pattern that each class takes if a variable says column. Patterns of one
    column are equal in everything that the model looks at.
    """

    classes: tuple[int, ...]
    patterns: tuple[tuple[int, ...], ...]
    size: int
    cell: int | None


class Variables:
    """All variables of one model.

    `takes[v]` is how many nodes of group `group[v]` take column `column[v]`. `kind[v]` and `pattern[v]` are
    what that means on the group's first class; other classes are equivalent. `touched[scope][part]` is
    whether the gang touches the part, for each scope that is counted or limited. `placed[role]` is how many
    members are placed. `placed_in[role, cell]` is how many are placed in the cell; it exists only if there
    are rules.
    """

    def __init__(self, problem: Problem, levels: Sequence[Level], pooled: Bools | None = None) -> None:
        """Make the variables. Patterns that differ only in levels other than `levels` share a variable."""
        self.problem = problem
        self.model = model = Model()
        self.groups = _groups(problem, levels, pooled)
        widths = [len(group.patterns[0]) for group in self.groups]
        self.group = np.repeat(np.arange(len(widths)), widths)
        self.column = [column for width in widths for column in range(width)]
        self.pattern = np.array([p for group in self.groups for p in group.patterns[0]], np.int64)
        self.kind = problem.kind[[group.classes[0] for group in self.groups]][self.group]
        sizes = [self.groups[g].size for g in self.group]
        self.takes = [model.new_int_var(0, size, f"takes/{v}") for v, size in enumerate(sizes)]
        ends = np.cumsum(widths).tolist()
        self.of_group = [range(end - width, end) for end, width in zip(ends, widths, strict=True)]
        self.touched: dict[str, dict[int, cp_model.IntVar]] = {}
        for scope in dict.fromkeys(level.scope for level in levels):
            if scope is not None and scope in problem.parts:
                part = problem.parts[scope]
                parts = sorted({int(part[g.cell]) for g in self.groups if g.cell is not None} - {FREE})
                self.touched[scope] = {one: model.new_bool_var(f"{scope}/{one}") for one in parts}
        self.placed = [
            model.new_int_var(0 if problem.partial else need, need, f"placed/{role}")
            for role, need in enumerate(problem.need)
        ]
        self.placed_in = self._by_cell() if problem.rules else {}

    def _by_cell(self) -> dict[tuple[int, int], LinearExprT]:
        cells = sorted({group.cell for group in self.groups if group.cell is not None})
        roles = [(role, need) for role, need in enumerate(self.problem.need) if need]
        return {(role, cell): self._placed_in(role, cell, need) for role, need in roles for cell in cells}

    def _placed_in(self, role: int, cell: int, need: int) -> LinearExprT:
        unit = 1 if self.problem.unit is None else int(self.problem.unit[role, cell])
        units = self.model.new_int_var(0, need // unit, f"placed/{role}/{cell}")
        return units if unit == 1 else unit * units

    def by_part(self, part: Ints, roles: Iterable[int]) -> dict[int, list[LinearExprT]]:
        """Return `placed_in` of these roles by the part of the cell, -1 for none. `part` is [cell]."""
        wanted, found = set(roles), dict[int, list[LinearExprT]]()
        for (role, cell), variable in self.placed_in.items():
            if role in wanted:
                found.setdefault(int(part[cell]), []).append(variable)
        return found

    def total(self, weight: Ints, chosen: Sequence[int] | None = None) -> LinearExprT:
        """Return Σ over nodes of the weight [kind, pattern] of their pattern, over all `takes` or the chosen
        ones.
        """
        at = np.arange(len(self.takes)) if chosen is None else np.asarray(chosen, np.int64)
        values = weight[self.kind[at], self.pattern[at]]
        kept = np.flatnonzero(values)
        return LinearExpr.weighted_sum([self.takes[at[i]] for i in kept], values[kept].tolist())

    def cost(self, level: Level) -> LinearExprT:
        """Return the cost of a level: the sum over the patterns taken, plus the parts touched."""
        summed = self.total(level.cost(self.problem.patterns))
        if level.scope not in self.touched:
            return summed
        return LinearExpr.sum([summed, *self.touched[level.scope].values()])

    def use(self, solution: Sequence[int]) -> Use:
        """Return the solver's solution by class. The first classes of a group get what the group takes."""
        found: Use = {}
        room = self.problem.size.copy()
        for v, variable in enumerate(self.takes):
            left, group = int(solution[variable.index]), self.groups[self.group[v]]
            for c, patterns in zip(group.classes, group.patterns, strict=True) if left else ():
                if taken := min(left, int(room[c])):
                    found[c, patterns[self.column[v]]] = taken
                    room[c] -= taken
                    left -= taken
        return found


def _groups(problem: Problem, levels: Sequence[Level], pooled: Bools | None) -> list[Group]:
    alike = _alike(problem, levels)
    classes, patterns = np.nonzero(problem.open)
    # The first of several equal patterns of a class stands for all.
    _, first = np.unique(classes * (int(alike.max(initial=0)) + 1) + alike, return_index=True)
    alike, classes, patterns = alike[first], classes[first], patterns[first]
    begins = np.flatnonzero(np.diff(classes, prepend=-1)).tolist()
    found: dict[tuple[int | None, bytes], dict[int, tuple[int, ...]]] = {}
    for begin, end in zip(begins, [*begins[1:], len(classes)], strict=True):
        c = int(classes[begin])
        cell = None if pooled is not None and pooled[c] else int(problem.cell[c])
        group = found.setdefault((cell, alike[begin:end].tobytes()), {})
        group[c] = tuple(patterns[begin:end].tolist())
    return [
        Group(tuple(group), tuple(group.values()), int(problem.size[list(group)].sum()), cell)
        for (cell, _), group in found.items()
    ]


def _alike(problem: Problem, levels: Sequence[Level]) -> Ints:
    """Return a number for each open pattern, in the order of np.nonzero.

    Patterns with equal numbers differ neither in members nor in what the levels count.
    """
    classes, pattern = np.nonzero(problem.open)
    at = (problem.kind[classes], pattern)
    weights = [problem.patterns.counts[:, :, role] for role in range(len(problem.need))]
    for level in levels:
        weights += [level.cost(problem.patterns), *([level.touches(problem)] if level.scope else [])]
    code = np.zeros(len(classes), np.int64)
    for weight in weights:
        values, index = np.unique(weight[at], return_inverse=True)
        code = np.unique(code * len(values) + index, return_inverse=True)[1]
    return code
