"""role_scope: all members of a role lie in one part of the scope that the role requires."""

from __future__ import annotations

from muster.placement.model.problem import RoleScope
from muster.placement.model.variables import LinearExpr, Variables

NAME = "role_scope"


def add(variables: Variables) -> None:
    problem, model = variables.problem, variables.model
    for i, rule in enumerate(problem.rules):
        if isinstance(rule, RoleScope):
            chosen = []
            need = sum(problem.need[role] for role in rule.roles)
            for part, placed in variables.by_part(rule.part, rule.roles).items():
                here = model.new_bool_var(f"{NAME}/{i}/{part}") if part >= 0 else model.new_constant(0)
                model.add(LinearExpr.sum(placed) <= need * here).with_name(f"{NAME}/{i}/{part}")
                chosen.append(here)
            if chosen:
                model.add_at_most_one(chosen).with_name(f"{NAME}/{i}")
