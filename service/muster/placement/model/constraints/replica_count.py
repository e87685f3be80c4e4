"""replica_count: every role has its members placed; where the gang may be partial, as many as are counted."""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from muster.placement.model.variables import LinearExpr, Variables

NAME = "replica_count"


def add(variables: Variables) -> None:
    cells: dict[int, list[int]] = {}
    for v, g in enumerate(variables.group.tolist()):
        cell = variables.groups[g].cell
        if cell is not None:
            cells.setdefault(cell, []).append(v)
    for role, placed in enumerate(variables.placed):
        here = {cell: variable for (r, cell), variable in variables.placed_in.items() if r == role}
        if not here:
            _hosted(variables, role, None, placed, f"{NAME}/{role}")
            continue
        for cell, variable in here.items():
            _hosted(variables, role, cells[cell], variable, f"{NAME}/{role}/{cell}")
        variables.model.add(LinearExpr.sum(list(here.values())) == placed).with_name(f"{NAME}/{role}")


def _hosted(
    variables: Variables, role: int, chosen: Sequence[int] | None, placed: cp_model.IntVar, name: str
) -> None:
    hosted = variables.total(variables.problem.patterns.counts[:, :, role], chosen)
    rule = hosted == placed if variables.problem.exact else hosted >= placed
    variables.model.add(rule).with_name(name)
