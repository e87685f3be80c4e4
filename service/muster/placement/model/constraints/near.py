"""near: members lie only where a pod is that they need beside them."""

from __future__ import annotations

from muster.placement.model.problem import Near
from muster.placement.model.variables import LinearExpr, Variables

NAME = "near"


def add(variables: Variables) -> None:
    for i, rule in enumerate(variables.problem.rules):
        if isinstance(rule, Near):
            _add(variables, rule, f"{NAME}/{i}")


def _add(variables: Variables, rule: Near, name: str) -> None:
    problem, model = variables.problem, variables.model
    need = sum(problem.need[role] for role in rule.roles)
    opening = variables.by_part(rule.part, set(rule.others) - set(rule.roles))
    themselves = variables.by_part(rule.part, set(rule.others) & set(rule.roles)) if rule.first else {}
    first = []
    for part, placed in variables.by_part(rule.part, rule.roles).items():
        if part < 0:
            model.add(LinearExpr.sum(placed) == 0).with_name(f"{name}/none")
            continue
        if rule.opened[part]:
            continue
        openers = []
        for kind, members in (("others", opening.get(part)), ("first", themselves.get(part))):
            if members:
                opens = model.new_bool_var(f"{name}/{part}/{kind}")
                model.add(opens <= LinearExpr.sum(members)).with_name(f"{name}/{part}/{kind}")
                openers.append(opens)
                first += [opens] if kind == "first" else []
        model.add(LinearExpr.sum(placed) <= need * LinearExpr.sum(openers)).with_name(f"{name}/{part}")
    if first:
        model.add_at_most_one(first).with_name(f"{name}/first")
