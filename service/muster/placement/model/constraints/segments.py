"""segments: the members of a role come in whole segments, each in one part of the scope."""

from __future__ import annotations

from muster.placement.model.problem import Segments
from muster.placement.model.variables import LinearExpr, Variables

NAME = "segments"


def add(variables: Variables) -> None:
    problem, model = variables.problem, variables.model
    for i, rule in enumerate(problem.rules):
        if isinstance(rule, Segments):
            for part, placed in variables.by_part(rule.part, (rule.role,)).items():
                if part >= 0:
                    number = model.new_int_var(0, problem.need[rule.role] // rule.size, f"{NAME}/{i}/{part}")
                    model.add(LinearExpr.sum(placed) == rule.size * number).with_name(f"{NAME}/{i}/{part}")
