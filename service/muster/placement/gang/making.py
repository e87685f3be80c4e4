"""Make the rules of a request: what its constraints add, and what follows inside each node."""

from __future__ import annotations

import numpy as np

from muster.domain.request import Request
from muster.placement.cluster.columns import LARGEST, Columns
from muster.placement.gang.blocks import Blocks
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.rules import Rules
from muster.placement.gpus.node_rules import InNode


def rules_of(view: Columns, request: Request, blocks: Blocks, existing: ExistingMembers) -> Rules:
    """Return the rules of a request."""
    count = len(blocks.roles)
    rules = Rules(view, blocks, np.zeros((count, len(view.names)), bool))
    rules.unit, rules.domain_unit = [1] * count, [0] * count
    for constraint in CONSTRAINTS:
        constraint.add(rules, request, existing)
    _in_node(rules, existing)
    return rules


def _in_node(rules: Rules, existing: ExistingMembers) -> None:
    """Set the rule of each node, by row. Equal rules share one index."""
    view, count = rules.view, len(rules.blocks.roles)
    in_wide = view.topology.in_wide
    gpus, nothing = tuple(role.gpus for role in rules.blocks.roles), (-1,) * count
    every: dict[InNode | None, int] = {None: 0}
    found = np.zeros(len(view.names), np.int64)

    def index(row: int) -> int:
        wide, domains = in_wide[row], len(view.shapes[view.shape[row]].domains)
        pins = rules.pinned.get(row, {})
        rule = InNode(
            gpus,
            tuple(rules.unit),
            (0,) * count if wide else tuple(rules.domain_unit),
            tuple(pins.get(block, -1) for block in range(count)),
            () if wide else tuple(rules.single),
            rules.node_most,
            (rules.domain_most,) * domains if rules.domain_most >= 0 else (),
            apart=tuple((mine, others) for here, mine, others in rules.apart if here[row]),
            limits=tuple((members, int(most[row])) for most, members in rules.limits if most[row] < LARGEST),
        )
        rule = existing.after(view, row, rule)
        free = max(rule.unit) == 1 and rule.most < 0 and not rule.touched and rule.pinned == nothing
        free = free and not rule.apart and not rule.limits
        return every.setdefault(None if free and not rule.binds_domains else rule, len(every))

    elsewhere = np.arange(len(found))
    if existing.masks:
        elsewhere = np.delete(elsewhere, list(existing.masks))
    code = view.shape[elsewhere] * 2 + in_wide[elsewhere]
    for line in (*(here for here, _, _ in rules.apart), *(most for most, _ in rules.limits)):
        values, dense = np.unique(line[elsewhere], return_inverse=True)
        code = np.unique(code * len(values) + dense, return_inverse=True)[1]
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    if len(elsewhere):
        found[elsewhere] = np.array([index(row) for row in elsewhere[first].tolist()])[inverse]
    for row in existing.masks:
        found[row] = index(row)
    rules.in_node, rules.node_rules = found, tuple(every)
