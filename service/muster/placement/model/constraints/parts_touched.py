"""parts_touched: a part of a counted scope is touched as soon as one node in it is used; a member without
GPUs touches no NVLink domain."""

from __future__ import annotations

from muster.placement.model.objective import WIDE
from muster.placement.model.problem import FREE
from muster.placement.model.variables import LinearExpr, Variables

NAME = "parts_touched"


def add(variables: Variables) -> None:
    for scope, touched in variables.touched.items():
        part = variables.problem.parts[scope]
        for g, group in enumerate(variables.groups):
            if group.cell is None or part[group.cell] == FREE:
                continue
            chosen = [v for v in variables.of_group[g] if scope != WIDE or _with_gpus(variables, v)]
            taken = LinearExpr.sum([variables.takes[v] for v in chosen])
            room = group.size * touched[int(part[group.cell])]
            variables.model.add(taken <= room).with_name(f"{NAME}/{scope}/{g}")


def _with_gpus(variables: Variables, v: int) -> bool:
    return bool(variables.problem.patterns.gpus[variables.kind[v], variables.pattern[v]])
