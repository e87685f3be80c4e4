"""decided_levels: the levels decided before are kept."""

from __future__ import annotations

from muster.placement.model.objective import SUMS, parts_level
from muster.placement.model.variables import Variables

NAME = "decided_levels"


def add(variables: Variables) -> None:
    for name, value in variables.problem.at_most.items():
        level = SUMS.get(name) or parts_level(name)
        variables.model.add(variables.cost(level) <= value).with_name(f"{NAME}/{name}")
