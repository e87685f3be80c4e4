"""Let members lie only in domains with a matching pod, which runs already or is planned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.domain.constraints import Affinity, AffinityUnsatisfied
from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gang.constraints.role_scope import RoleScope
from muster.placement.gang.rules import Counts, Rules
from muster.placement.model.rule import Rule
from muster.placement.model.variables import LinearExpr, Variables


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Near(Rule):
    """Keep members of `roles` in parts that are `opened` [part] bool, or that a member of `others` opens.

    A member that is in both may open a part only if `first` is true, and then only one part.
    """

    opened: Bools
    first: bool

    @property
    def told_by(self) -> tuple[Ints, ...]:
        """Return [row] arrays that tell apart nodes for which this rule makes a difference."""
        return (self.of_part(self.opened.astype(np.int64)),)

    def add(self, variables: Variables, name: str) -> None:
        """Add the rule to the model, with a variable for each part that a member may open."""
        problem, model = variables.problem, variables.model
        need = sum(problem.need[role] for role in self.roles)
        opening = variables.by_part(self.part, set(self.others) - set(self.roles))
        themselves = variables.by_part(self.part, set(self.others) & set(self.roles)) if self.first else {}
        first = []
        for part, placed in variables.by_part(self.part, self.roles).items():
            if part < 0:
                model.add(LinearExpr.sum(placed) == 0).with_name(f"{name}/none")
                continue
            if self.opened[part]:
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


def cause(rule: Affinity, fit: int | None, needed: int, even_empty: bool) -> AffinityUnsatisfied:
    """Return the cause that says why the gang does not fit."""
    return AffinityUnsatisfied(rule.name, rule.topology_key, fit, needed, even_empty)


def add(rules: Rules, rule: Affinity, name: str) -> None:
    """Add one affinity constraint of the request to the rules.

    If no member can open a domain, members are only kept off nodes without a matching pod.
    """
    domains = rules.view.topology.by_label(rule.topology_key)
    mine, others = rules.blocks_of(rule.roles), rules.blocks_of(rule.others)
    if not mine:
        return
    rules.refuse(mine, domains < 0)
    opened = np.zeros(int(domains.max(initial=0)) + 1, bool)
    there = domains[rules.rows(rule.existing)]
    opened[there[there >= 0]] = True
    both, opening = set(mine) & set(others), set(others) - set(mine)
    first = bool(both) and not rule.existing
    if not opening and not first:
        rules.refuse(mine, (domains < 0) | ~opened[np.maximum(domains, 0)])
        return
    if not opening and both == set(mine):
        if sum(len(rules.blocks.roles[block].members) for block in mine) > 1:
            rules.bind(name, domains, lambda part: RoleScope(part, mine))
            rules.together.append((name, mine))
        return
    rules.bind(name, domains, lambda part: Near(part, mine, others, opened=opened, first=first))

    def may_hold(packing: Counts) -> Bools:
        needed = any(packing[block] for block in mine)
        opens = any(packing[block] for block in opening) or (first and any(packing[block] for block in both))
        return np.asarray(opened[np.maximum(domains, 0)] | (opens or not needed))

    rules.whole.append(may_hold)
