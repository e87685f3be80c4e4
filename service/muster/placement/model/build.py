"""Build the CP-SAT model of a problem: the constraints of every problem, then the rules that bind members.

Implied constraints for each part are added too (valid inequalities). They exclude no plan, but CP-SAT would
take long to derive them. If rules force members into a part, the number of nodes that the part uses is
bounded below. The cost of these members is bounded below in the same way: a table gives the least cost of k
members on n nodes of the part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from muster.domain.quorums import Leaf, Quorum
from muster.placement.model.objective import NODES, SUMMED_LEVELS, WIDE, Level, parts_level
from muster.placement.model.problem import FREE, Bools, Ints, PartLimits, Problem, Use, limits_of
from muster.placement.model.solver import cp_model

# Variables


LinearExpr = cp_model.LinearExpr
IntVar = cp_model.IntVar
LinearExprT = cp_model.LinearExprT


class Model(cp_model.CpModel):
    """A CP-SAT model without the CamelCase aliases that ortools 9.15 gives to each model.

    The aliases take a millisecond, and tie the model into a reference cycle that only the garbage collector
    frees.
    """

    def _add_pre_pep8_methods(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class ClassGroup:
    """Classes that share their variables, because they may take equal patterns.

    The classes lie in one cell. If `cell` is None, they are a pool of classes whose cell does not matter.
    `patterns[class][column]` is the pattern of the class in this column. The patterns of one column are equal
    in all values that the model uses.
    """

    classes: tuple[int, ...]
    patterns: tuple[tuple[int, ...], ...]
    size: int
    cell: int | None


class Variables:
    """All variables of one model.

    - `takes[v]`: how many nodes of group `group[v]` take column `column[v]`. On the group's first class, that
      is pattern `pattern[v]` of kind `kind[v]`; the other classes are equivalent.
    - `in_group[g]`: the indices v of group g.
    - `touched[scope][part]`: whether the gang touches the part, for each scope that is counted or limited.
    - `placed[role]`: how many members are placed.
    - `placed_in[role, cell]`: how many members are placed in the cell; only if the problem has rules.
    """

    def __init__(self, problem: Problem, levels: Sequence[Level], pooled: Bools | None = None) -> None:
        """Make the variables. Patterns that differ only in levels other than `levels` share a variable."""
        self.problem = problem
        self.model = model = Model()
        self.groups = _class_groups(problem, levels, pooled)
        widths = [len(group.patterns[0]) for group in self.groups]
        self.group = np.repeat(np.arange(len(widths)), widths)
        self.column = [column for width in widths for column in range(width)]
        self.pattern = np.array([p for group in self.groups for p in group.patterns[0]], np.int64)
        self.kind = problem.kind[[group.classes[0] for group in self.groups]][self.group]
        sizes = [self.groups[g].size for g in self.group]
        self.takes = [model.new_int_var(0, size, f"takes/{v}") for v, size in enumerate(sizes)]
        ends = np.cumsum(widths).tolist()
        self.in_group = [range(end - width, end) for end, width in zip(ends, widths, strict=True)]
        self.touched: dict[str, dict[int, cp_model.IntVar]] = {}
        for scope in dict.fromkeys(level.scope for level in levels):
            if scope is not None and scope in problem.parts:
                part = problem.parts[scope]
                parts = sorted({int(part[g.cell]) for g in self.groups if g.cell is not None} - {FREE})
                self.touched[scope] = {code: model.new_bool_var(f"{scope}/{code}") for code in parts}
        self.placed = [
            model.new_int_var(0 if problem.partial else need, need, f"placed/{role}")
            for role, need in enumerate(problem.need)
        ]
        self.placed_in = self._placed_by_cell() if problem.rules else {}

    def _placed_by_cell(self) -> dict[tuple[int, int], LinearExprT]:
        cells = sorted({group.cell for group in self.groups if group.cell is not None})
        roles = [(role, need) for role, need in enumerate(self.problem.need) if need]
        return {(role, cell): self._placed_in(role, cell, need) for role, need in roles for cell in cells}

    def _placed_in(self, role: int, cell: int, need: int) -> LinearExprT:
        unit = 1 if self.problem.unit is None else int(self.problem.unit[role, cell])
        units = self.model.new_int_var(0, need // unit, f"placed/{role}/{cell}")
        return units if unit == 1 else unit * units

    def by_part(self, part: Ints, roles: Iterable[int]) -> dict[int, list[LinearExprT]]:
        """Return `placed_in` of these roles by the part of the cell, -1 for none. `part` is [cell]."""
        role_set, by_code = set(roles), dict[int, list[LinearExprT]]()
        for (role, cell), variable in self.placed_in.items():
            if role in role_set:
                by_code.setdefault(int(part[cell]), []).append(variable)
        return by_code

    def total(self, weight: Ints, indices: Sequence[int] | None = None) -> LinearExprT:
        """Return Σ over nodes of the `weight` [kind, pattern] of the node's pattern.

        `indices` selects variables of `takes`; None means all variables.
        """
        variable_indices = np.arange(len(self.takes)) if indices is None else np.asarray(indices, np.int64)
        values = weight[self.kind[variable_indices], self.pattern[variable_indices]]
        nonzero = np.flatnonzero(values)
        return LinearExpr.weighted_sum(
            [self.takes[variable_indices[i]] for i in nonzero], values[nonzero].tolist()
        )

    def cost(self, level: Level) -> LinearExprT:
        """Return the cost of a level: the sum over the patterns taken, plus the parts touched."""
        summed = self.total(level.cost(self.problem.patterns))
        if level.scope not in self.touched:
            return summed
        return LinearExpr.sum([summed, *self.touched[level.scope].values()])

    def use(self, solution: Sequence[int]) -> Use:
        """Return the solver's solution by class. The patterns of a group go to its first classes first."""
        by_class: Use = {}
        room = self.problem.size.copy()
        for v, variable in enumerate(self.takes):
            nodes, group = int(solution[variable.index]), self.groups[self.group[v]]
            for c, patterns in zip(group.classes, group.patterns, strict=True) if nodes else ():
                if nodes_here := min(nodes, int(room[c])):
                    by_class[c, patterns[self.column[v]]] = nodes_here
                    room[c] -= nodes_here
                    nodes -= nodes_here
        return by_class


def _class_groups(problem: Problem, levels: Sequence[Level], pooled: Bools | None) -> list[ClassGroup]:
    """Return the classes of each cell, and the pooled classes, in groups with equal patterns."""
    pattern_code = _pattern_codes(problem, levels)
    classes, patterns = np.nonzero(problem.open)
    # The first of several equal patterns of a class stands for all.
    _, first = np.unique(classes * (int(pattern_code.max(initial=0)) + 1) + pattern_code, return_index=True)
    pattern_code, classes, patterns = pattern_code[first], classes[first], patterns[first]
    begins = np.flatnonzero(np.diff(classes, prepend=-1)).tolist()
    by_key: dict[tuple[int | None, bytes], dict[int, tuple[int, ...]]] = {}
    for begin, end in zip(begins, [*begins[1:], len(classes)], strict=True):
        c = int(classes[begin])
        cell = None if pooled is not None and pooled[c] else int(problem.cell[c])
        group = by_key.setdefault((cell, pattern_code[begin:end].tobytes()), {})
        group[c] = tuple(patterns[begin:end].tolist())
    return [
        ClassGroup(tuple(group), tuple(group.values()), int(problem.size[list(group)].sum()), cell)
        for (cell, _), group in by_key.items()
    ]


def _pattern_codes(problem: Problem, levels: Sequence[Level]) -> Ints:
    """Return a number for each open pattern, in the order of np.nonzero.

    Patterns with equal numbers have equal members and equal values at these levels.
    """
    classes, pattern = np.nonzero(problem.open)
    pattern_index = (problem.kind[classes], pattern)
    weights = [problem.patterns.counts[:, :, role] for role in range(len(problem.need))]
    for level in levels:
        weights += [level.cost(problem.patterns), *([level.touches(problem)] if level.scope else [])]
    code = np.zeros(len(classes), np.int64)
    for weight in weights:
        values, index = np.unique(weight[pattern_index], return_inverse=True)
        code = np.unique(code * len(values) + index, return_inverse=True)[1]
    return code


# The model


def build(problem: Problem, level: Level | None = None, pooled: Bools | None = None) -> Variables:
    """Return the model of the problem that minimises `level`.

    `pooled` [class] bool: every plan touches the part of these classes, so their nodes are counted together.
    """
    variables = Variables(problem, levels_of(problem, level), pooled)
    _add_members(variables)
    _add_node_limits(variables)
    _add_touched_parts(variables)
    for i, rule in enumerate(problem.rules):
        rule.add(variables, f"{type(rule).__name__}/{i}")
    for name, value in problem.at_most.items():
        cost = variables.cost(SUMMED_LEVELS.get(name) or parts_level(name))
        variables.model.add(cost <= value).with_name(f"decided/{name}")
    _add_bounds_by_part(variables, level)
    if level is not None:
        variables.model.minimize(variables.cost(level))
    return variables


def levels_of(problem: Problem, level: Level | None) -> list[Level]:
    """Return the levels that a model of the problem counts: the decided levels, and the level to minimise."""
    levels = [SUMMED_LEVELS.get(name) or parts_level(name) for name in problem.at_most]
    return levels if level is None else [*levels, level]


def _add_members(variables: Variables) -> None:
    """Place all members of each role, or if the gang may be partial, as many as `Variables.placed` says."""
    cells: dict[int, list[int]] = {}
    for v, g in enumerate(variables.group.tolist()):
        cell = variables.groups[g].cell
        if cell is not None:
            cells.setdefault(cell, []).append(v)
    for role, members in enumerate(variables.placed):
        by_cell = {cell: variable for (r, cell), variable in variables.placed_in.items() if r == role}
        if not by_cell:
            _add_hosting(variables, role, None, members, f"members/{role}")
            continue
        for cell, variable in by_cell.items():
            _add_hosting(variables, role, cells[cell], variable, f"members/{role}/{cell}")
        variables.model.add(LinearExpr.sum(list(by_cell.values())) == members).with_name(f"members/{role}")


def _add_hosting(
    variables: Variables, role: int, indices: Sequence[int] | None, members: LinearExprT, name: str
) -> None:
    hosted = variables.total(variables.problem.patterns.counts[:, :, role], indices)
    rule = hosted == members if variables.problem.exact else hosted >= members
    variables.model.add(rule).with_name(name)


def _add_node_limits(variables: Variables) -> None:
    """Let no group of nodes take more patterns than it has nodes."""
    for g, indices in enumerate(variables.in_group):
        if len(indices) > 1:  # a single pattern is limited by the variable's own bound
            nodes = LinearExpr.sum([variables.takes[v] for v in indices])
            variables.model.add(nodes <= variables.groups[g].size).with_name(f"nodes/{g}")


def _add_touched_parts(variables: Variables) -> None:
    """Count a part of a counted scope as touched as soon as one of its nodes is used.

    Members without GPUs do not touch NVLink domains, nor parts of `Problem.gpu_only_scopes`.
    """
    gpus = variables.problem.patterns.gpus[variables.kind, variables.pattern]
    for scope, is_touched in variables.touched.items():
        part, with_gpus = variables.problem.parts[scope], scope in (WIDE, *variables.problem.gpu_only_scopes)
        for g, group in enumerate(variables.groups):
            if group.cell is None or part[group.cell] == FREE:
                continue
            indices = [v for v in variables.in_group[g] if gpus[v] or not with_gpus]
            nodes = LinearExpr.sum([variables.takes[v] for v in indices])
            room = group.size * is_touched[int(part[group.cell])]
            variables.model.add(nodes <= room).with_name(f"touched/{scope}/{g}")


# Implied constraints by part


MAX_MEMBER_CHOICES = 16
"""The most possible member counts of one part for which the model has a choice for each count."""

MAX_MEMBERS = 256
"""The most members, and the most nodes, of a part for which tables are made."""

MAX_CLASSES = 128
"""The most classes of nodes for which tables are made."""

FORBIDDEN = np.int64(1) << 50


def _add_bounds_by_part(variables: Variables, level: Level | None) -> None:
    """Add lower bounds of each part: its number of nodes, and its cost at the level to minimise."""
    problem = variables.problem
    if not problem.rules or (problem.patterns.nodes[problem.patterns.valid] == 0).any():
        return
    # With several roles, or with very different nodes, tables of members are too weak to help.
    tables_help = sum(map(bool, problem.need)) == 1 and problem.classes <= MAX_CLASSES
    for i, limits in enumerate(limits_of(problem)):
        fewest = limits.fewest_nodes(problem)
        for part, nodes in fewest.items():
            indices = [
                v
                for g, group in enumerate(variables.groups)
                if limits.part[group.classes[0]] == part
                for v in variables.in_group[g]
            ]
            taken_nodes = LinearExpr.sum([variables.takes[v] for v in indices])
            variables.model.add(taken_nodes >= nodes).with_name(f"by_part/{i}/{part}/nodes")
            if tables_help and level is not None and problem.exact and NODES.name in problem.at_most:
                nodes_elsewhere = sum(fewest.values()) - nodes
                spare = problem.at_most[NODES.name] - nodes_elsewhere
                _add_cost_bound(variables, level, limits, (part, indices), spare, f"by_part/{i}/{part}")


def _add_cost_bound(
    variables: Variables,
    level: Level,
    limits: PartLimits,
    part_indices: tuple[int, list[int]],
    nodes: int,
    name: str,
) -> None:
    """Bound the cost of the part below by the least cost of its members, on at most `nodes` nodes."""
    problem, (part, indices) = variables.problem, part_indices
    low, high = int(limits.low[part]), int(limits.high[part])
    if not 0 <= high - low < MAX_MEMBER_CHOICES or high > MAX_MEMBERS or not 0 < nodes <= MAX_MEMBERS:
        return
    counts = np.asarray(problem.patterns.counts[:, :, list(limits.roles)].sum(axis=2), np.int64)
    cost = level.cost(problem.patterns)
    least = _least_costs(problem, counts, cost, limits.part == part, (nodes, high))
    options, model = [], variables.model
    for members in range(low, high + 1):
        if least[members] < FORBIDDEN // 2:
            options.append((members, int(least[members]), model.new_bool_var(f"{name}/{members}")))
    model.add_exactly_one([is_count for *_, is_count in options])
    total = LinearExpr.weighted_sum(
        [variable for *_, variable in options], [members for members, *_ in options]
    )
    model.add(variables.total(counts, indices) == total).with_name(f"{name}/members")
    least_cost = LinearExpr.weighted_sum(
        [variable for *_, variable in options], [price for _, price, _ in options]
    )
    model.add(variables.total(cost, indices) >= least_cost).with_name(f"{name}/cost")


def _least_costs(problem: Problem, counts: Ints, cost: Ints, in_part: Ints, limits: tuple[int, int]) -> Ints:
    """Return [members] the least cost on up to `nodes` nodes, as if each node were the best of the part."""
    nodes, members = limits
    kind = problem.kind[in_part][:, None]
    pattern = np.arange(problem.open.shape[1])
    still_open = problem.open[in_part]
    node_cost = np.full(int(counts.max(initial=0)) + 1, FORBIDDEN)
    np.minimum.at(node_cost, counts[kind, pattern][still_open], cost[kind, pattern][still_open])
    table = np.full(members + 1, FORBIDDEN)
    table[0] = 0
    cheapest = table.copy()
    for _ in range(nodes):
        grown = np.full_like(table, FORBIDDEN)
        for count in np.flatnonzero(node_cost < FORBIDDEN).tolist():
            if count <= members:
                reached = table[: members + 1 - count] + node_cost[count]
                np.minimum(grown[count:], reached, out=grown[count:])
        table = np.minimum(grown, FORBIDDEN)
        cheapest = np.minimum(cheapest, table)
    return cheapest


# Quorums


@dataclass(frozen=True, slots=True)
class QuorumRule:
    """A quorum whose roles are given by index. Several roles can have the same name in `names`.

    `need` is the number of members of each role. `representatives[i]` is the role that stands for role i in
    the model, because equal roles are merged. So the model has few packings, even if many subgroups have
    equal requests.
    """

    quorum: Quorum
    names: tuple[str, ...]
    need: tuple[int, ...]
    representatives: tuple[int, ...]

    @property
    def need_in_model(self) -> tuple[int, ...]:
        """Return the number of members of each role in the model, after equal roles are merged."""
        roles = range(len(self.need))
        return tuple(sum(self.need[i] for i in roles if self.representatives[i] == role) for role in roles)

    def add(self, model: cp_model.CpModel, placed: Sequence[LinearExprT]) -> list[IntVar]:
        """Let members be placed only so that the gang starts. Return the number of placed members of each
        role.

        `placed` has the number by representative.
        """
        by_role = [model.new_int_var(0, need, f"of/{role}") for role, need in enumerate(self.need)]
        for role, placed_members in enumerate(placed):
            model.add(
                LinearExpr.sum(
                    [
                        by_role[i]
                        for i, representative in enumerate(self.representatives)
                        if representative == role
                    ]
                )
                == placed_members
            )
        model.add(self._starts(model, by_role, self.quorum, "quorum") == 1)
        return by_role

    def _starts(
        self, model: cp_model.CpModel, by_role: list[IntVar], part: Quorum | Leaf, name: str
    ) -> IntVar:
        """Add a part of the quorum, and return whether the part starts. Else the part gets no members."""
        started = model.new_bool_var(name)
        if isinstance(part, Leaf):
            roles = [role for role, role_name in enumerate(self.names) if role_name in part.roles]
            members = LinearExpr.sum([by_role[role] for role in roles])
            model.add(members >= part.min_members * started)
            model.add(members <= part.limit(sum(self.need[role] for role in roles)) * started)
            if part.unit > 1:
                self._add_replicas(model, members, part, name)
            return started
        parts = [self._starts(model, by_role, inner, f"{name}/{i}") for i, inner in enumerate(part.parts)]
        for inner in parts:
            model.add_implication(inner, started)
        count = LinearExpr.sum(parts)
        model.add(count >= part.min_parts * started)
        if part.only:
            model.add(count <= part.min_parts)
        return started

    def _add_replicas(self, model: cp_model.CpModel, members: LinearExpr, leaf: Leaf, name: str) -> None:
        """Let members complete whole replicas, together with the members that already run, or place none.

        Members that return to existing replicas may return one by one.
        """
        max_members = sum(self.need)
        any_member = model.new_bool_var(f"{name}/some")
        replicas = model.new_int_var(0, max_members // leaf.unit + 1, f"{name}/replicas")
        model.add(members >= any_member)
        model.add(members <= max_members * any_member)
        only_returning = model.new_bool_var(f"{name}/alone")
        model.add(members <= leaf.back).only_enforce_if(only_returning)
        model.add(members + leaf.begun * any_member == leaf.unit * replicas).only_enforce_if(~only_returning)
