"""Keep members out of a domain that has a pod, or a member, from which they must stay apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.domain.constraints import AntiAffinity, AntiAffinityLimits
from muster.placement.cluster.columns import LARGEST
from muster.placement.gang.constraints.max_per import MaxPerPart
from muster.placement.gang.rules import Rules, one_node_each
from muster.placement.model.rule import Rule
from muster.placement.model.variables import IntVar, LinearExpr, Variables


@dataclass(frozen=True, slots=True, eq=False)
class Apart(Rule):
    """Let no part hold a member of `roles` and another member of `others`.

    A role in both has at most one member in each part.
    """

    def add(self, variables: Variables, name: str) -> None:
        """Let each part have members of one side only, or a single member that is on both sides."""
        problem, model = variables.problem, variables.model
        both = tuple(role for role in self.roles if role in self.others)
        sides = (
            (tuple(role for role in self.roles if role not in both), None),
            (tuple(role for role in self.others if role not in both), None),
            (both, 1),
        )
        chosen: dict[int, list[IntVar]] = {}
        for side, (roles, most) in enumerate(sides):
            need = sum(problem.need[role] for role in roles) if most is None else most
            for part, placed in variables.by_part(self.part, roles).items():
                if part >= 0:
                    here = model.new_bool_var(f"{name}/{part}/{side}")
                    model.add(LinearExpr.sum(placed) <= need * here).with_name(f"{name}/{part}/{side}")
                    chosen.setdefault(part, []).append(here)
        for part, sides_here in chosen.items():
            if len(sides_here) > 1:
                model.add_at_most_one(sides_here).with_name(f"{name}/{part}")


def cause(rule: AntiAffinity, fit: int | None, needed: int, even_empty: bool) -> AntiAffinityLimits:
    """Return the cause that says why the gang does not fit."""
    return AntiAffinityLimits(rule.name, rule.topology_key, fit, needed, even_empty)


def add(rules: Rules, rule: AntiAffinity, name: str) -> None:
    """Add one anti-affinity constraint of the request to the rules.

    Members are kept off the domains of pods that they must stay apart from, and out of each other's domains.
    """
    domains = rules.view.topology.by_label(rule.topology_key)
    mine, others = rules.blocks_of(rule.roles), rules.blocks_of(rule.others)
    taken = domains[rules.rows(rule.existing)]
    rules.refuse(mine, (domains >= 0) & np.isin(domains, taken))
    if not mine or not others:
        return
    labelled = domains >= 0
    for block in set(mine) & set(others):
        rules.cap(block, np.where(labelled, 1, LARGEST))
    if len({*mine, *others}) > 1:
        rules.apart.append((labelled, mine, others))
    if one_node_each(domains):
        return
    if set(mine) == set(others):
        left = np.ones(int(domains.max(initial=0)) + 1, np.int64)
        rules.bind(name, domains, lambda part: MaxPerPart(part, mine, left=left))
    else:
        rules.bind(name, domains, lambda part: Apart(part, mine, others))
