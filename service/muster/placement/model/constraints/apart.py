"""apart: no part holds members that keep away from each other."""

from __future__ import annotations

from muster.placement.model.problem import Apart
from muster.placement.model.variables import IntVar, LinearExpr, Variables

NAME = "apart"


def add(variables: Variables) -> None:
    for i, rule in enumerate(variables.problem.rules):
        if isinstance(rule, Apart):
            _add(variables, rule, f"{NAME}/{i}")


def _add(variables: Variables, rule: Apart, name: str) -> None:
    """Let each part have members of one side, or of the other, or one member that is of both."""
    problem, model = variables.problem, variables.model
    both = tuple(role for role in rule.roles if role in rule.others)
    sides = (
        (tuple(role for role in rule.roles if role not in both), None),
        (tuple(role for role in rule.others if role not in both), None),
        (both, 1),
    )
    chosen: dict[int, list[IntVar]] = {}
    for side, (roles, most) in enumerate(sides):
        need = sum(problem.need[role] for role in roles) if most is None else most
        for part, placed in variables.by_part(rule.part, roles).items():
            if part >= 0:
                here = model.new_bool_var(f"{name}/{part}/{side}")
                model.add(LinearExpr.sum(placed) <= need * here).with_name(f"{name}/{part}/{side}")
                chosen.setdefault(part, []).append(here)
    for part, sides_here in chosen.items():
        if len(sides_here) > 1:
            model.add_at_most_one(sides_here).with_name(f"{name}/{part}")
