"""decided_levels: the levels decided before, on the coarse problem, are kept."""

from __future__ import annotations

from muster.placement.model.objective import LEVELS
from muster.placement.model.variables import Variables

NAME = "decided_levels"


def add(variables: Variables) -> None:
    for name, value in variables.problem.at_most:
        variables.model.add(LEVELS[name].cost(variables) <= value).with_name(f"{NAME}/{name}")
