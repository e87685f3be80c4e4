"""max_per_part: no part of a scope holds more than so many members of the gang."""

from __future__ import annotations

from muster.placement.model.problem import MaxPerPart
from muster.placement.model.variables import LinearExpr, Variables

NAME = "max_per_part"


def add(variables: Variables) -> None:
    for i, rule in enumerate(variables.problem.rules):
        if isinstance(rule, MaxPerPart):
            for part, placed in variables.by_part(rule.part, rule.roles).items():
                if part >= 0:
                    limit = int(rule.left[part])
                    variables.model.add(LinearExpr.sum(placed) <= limit).with_name(f"{NAME}/{i}/{part}")
