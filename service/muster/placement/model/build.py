"""Build the model of the whole problem: what holds in every model, then the rules that bind members."""

from __future__ import annotations

from collections.abc import Sequence

from muster.placement.model import by_part
from muster.placement.model.objective import SUMS, WIDE, Level, parts_level
from muster.placement.model.problem import FREE, Bools, Problem
from muster.placement.model.variables import LinearExpr, LinearExprT, Variables


def build(problem: Problem, level: Level | None = None, pooled: Bools | None = None) -> Variables:
    """Return the model of the problem that minimises `level`.

    Every plan touches the part of the `pooled` [class] bool classes. So the nodes of these are counted
    together.
    """
    variables = Variables(problem, levels_of(problem, level), pooled)
    _members_placed(variables)
    _nodes_taken(variables)
    _parts_touched(variables)
    for i, rule in enumerate(problem.rules):
        rule.add(variables, f"{type(rule).__name__}/{i}")
    for name, value in problem.at_most.items():
        cost = variables.cost(SUMS.get(name) or parts_level(name))
        variables.model.add(cost <= value).with_name(f"decided/{name}")
    by_part.add(variables, level)
    if level is not None:
        variables.model.minimize(variables.cost(level))
    return variables


def levels_of(problem: Problem, level: Level | None) -> list[Level]:
    """Return the levels that a model of the problem counts: those decided, and the one to minimise."""
    levels = [SUMS.get(name) or parts_level(name) for name in problem.at_most]
    return levels if level is None else [*levels, level]


def _members_placed(variables: Variables) -> None:
    """Place all members of every role; if the gang may be partial, as many as `placed` counts."""
    cells: dict[int, list[int]] = {}
    for v, g in enumerate(variables.group.tolist()):
        cell = variables.groups[g].cell
        if cell is not None:
            cells.setdefault(cell, []).append(v)
    for role, placed in enumerate(variables.placed):
        here = {cell: variable for (r, cell), variable in variables.placed_in.items() if r == role}
        if not here:
            _hosted(variables, role, None, placed, f"members/{role}")
            continue
        for cell, variable in here.items():
            _hosted(variables, role, cells[cell], variable, f"members/{role}/{cell}")
        variables.model.add(LinearExpr.sum(list(here.values())) == placed).with_name(f"members/{role}")


def _hosted(
    variables: Variables, role: int, chosen: Sequence[int] | None, placed: LinearExprT, name: str
) -> None:
    hosted = variables.total(variables.problem.patterns.counts[:, :, role], chosen)
    rule = hosted == placed if variables.problem.exact else hosted >= placed
    variables.model.add(rule).with_name(name)


def _nodes_taken(variables: Variables) -> None:
    """Let no group of nodes take more patterns than it has nodes."""
    for g, chosen in enumerate(variables.of_group):
        if len(chosen) > 1:  # a single pattern is limited by the variable's own bound
            taken = LinearExpr.sum([variables.takes[v] for v in chosen])
            variables.model.add(taken <= variables.groups[g].size).with_name(f"nodes/{g}")


def _parts_touched(variables: Variables) -> None:
    """Count a part of a counted scope as touched as soon as one of its nodes is used.

    Members without GPUs do not touch NVLink domains, nor the scopes that the problem spares.
    """
    gpus = variables.problem.patterns.gpus[variables.kind, variables.pattern]
    for scope, touched in variables.touched.items():
        part, with_gpus = variables.problem.parts[scope], scope in (WIDE, *variables.problem.spared)
        for g, group in enumerate(variables.groups):
            if group.cell is None or part[group.cell] == FREE:
                continue
            chosen = [v for v in variables.of_group[g] if gpus[v] or not with_gpus]
            taken = LinearExpr.sum([variables.takes[v] for v in chosen])
            room = group.size * touched[int(part[group.cell])]
            variables.model.add(taken <= room).with_name(f"touched/{scope}/{g}")
