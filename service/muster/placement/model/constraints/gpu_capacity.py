"""gpu_capacity: no class of nodes hosts more patterns than it has nodes."""

from __future__ import annotations

from muster.placement.model.variables import Variables

NAME = "gpu_capacity"


def add(variables: Variables) -> None:
    for c, cls in enumerate(variables.problem.classes):
        if len(cls.patterns) > 1:  # with one pattern the variable's own bound says it
            taken = variables.total(lambda _: 1, [c])
            variables.model.add(taken <= cls.size).with_name(f"{NAME}/{c}")
