"""skew: no part that receives a member holds too many more than the emptiest eligible one."""

from __future__ import annotations

from muster.placement.model.problem import Skew
from muster.placement.model.variables import LinearExpr, Variables

NAME = "skew"


def add(variables: Variables) -> None:
    for i, rule in enumerate(variables.problem.rules):
        if isinstance(rule, Skew):
            _add(variables, rule, f"{NAME}/{i}")


def _add(variables: Variables, rule: Skew, name: str) -> None:
    problem, model = variables.problem, variables.model
    counted = variables.by_part(rule.counts, rule.counted)
    total = {
        part: LinearExpr.sum([int(rule.there[part]), *counted.get(part, [])])
        for part in range(len(rule.there))
        if rule.eligible[part]
    }
    absent = [int(rule.there[part]) for part in total if part not in counted]
    least = model.new_int_var(rule.lowest, max(rule.lowest, min([rule.highest, *absent])), f"{name}/least")
    for part, members in total.items():
        if rule.highest > rule.lowest and part in counted:
            model.add(least <= members).with_name(f"{name}/{part}/least")
    need = sum(problem.need[role] for role in rule.roles)
    same = set(rule.roles) == set(rule.counted)
    for part, placed in variables.by_part(rule.part, rule.roles).items():
        if part not in total:
            continue  # nothing counts there
        within = total[part] <= least + rule.most
        if same and rule.there[part] <= rule.lowest + rule.most:
            model.add(within).with_name(f"{name}/{part}")
            continue
        receives = model.new_bool_var(f"{name}/{part}/receives")
        model.add(LinearExpr.sum(placed) <= need * receives).with_name(f"{name}/{part}/receives")
        model.add(within).only_enforce_if(receives).with_name(f"{name}/{part}")
