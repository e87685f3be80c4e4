"""gpu_capacity: no group of nodes takes more patterns than it has nodes."""

from __future__ import annotations

from muster.placement.model.variables import LinearExpr, Variables

NAME = "gpu_capacity"


def add(variables: Variables) -> None:
    for g, chosen in enumerate(variables.of_group):
        if len(chosen) > 1:  # with one pattern the variable's own bound says it
            taken = LinearExpr.sum([variables.takes[v] for v in chosen])
            variables.model.add(taken <= variables.groups[g].size).with_name(f"{NAME}/{g}")
