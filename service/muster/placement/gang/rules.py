"""What binds members to each other, scope by scope: in the model where a scope's parts are nodes and more, on
the node where they lie inside it (node_rules), and as nodes refused where running members say which part it
is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from muster.domain.request import Request
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints
from muster.placement.gang.blocks import Blocks
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.making import Counts, Making, PartsByRow
from muster.placement.gpus.node_rules import InNode
from muster.placement.model.problem import Problem
from muster.placement.model.rule import Rule


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """`in_node` indexes `node_rules` by row (None: nothing binds). `cells` are the parts by row that model
    rules speak of, by a name of their own; `model` makes these rules from the parts by cell."""

    in_node: Ints
    node_rules: tuple[InNode | None, ...]
    cells: dict[str, PartsByRow]
    model: tuple[Callable[[Problem], Rule], ...]
    order: tuple[tuple[str, ...], ...]
    """By block, the `cells` along which its members are lined up, widest first."""
    together: tuple[tuple[str, tuple[int, ...]], ...]
    """Blocks that lie in one part of these `cells`."""
    caps: Ints | None = None
    """[block, row]: how many members of the block alone the node holds at most, None without such limits."""
    whole: tuple[Callable[[Counts], Bools], ...] = ()
    """Of a packing that is all of the gang, by row, whether the node may hold it: one for each constraint."""


def rules_of(
    view: Columns, request: Request, blocks: Blocks, existing: ExistingMembers
) -> tuple[Rules, Bools]:
    """The rules of a request, and the nodes that they refuse [block, row]."""
    count = len(blocks.roles)
    making = Making(view, blocks, np.zeros((count, len(view.names)), bool))
    making.unit, making.domain_unit = [1] * count, [0] * count
    for constraint in CONSTRAINTS:
        constraint.add(making, request, existing)
    in_node, node_rules = _in_node(making, existing)
    rules = Rules(
        in_node,
        node_rules,
        making.cells,
        tuple(making.model),
        tuple(making.order),
        tuple(making.together),
        making.caps,
        tuple(making.whole),
    )
    return rules, making.refused


def _in_node(making: Making, existing: ExistingMembers) -> tuple[Ints, tuple[InNode | None, ...]]:
    """What binds members inside each node, by row: equal rules are one."""
    view, count = making.view, len(making.blocks.roles)
    in_wide = view.topology.in_wide
    gpus, nothing = tuple(role.gpus for role in making.blocks.roles), (-1,) * count
    rules: dict[InNode | None, int] = {None: 0}
    found = np.zeros(len(view.names), np.int64)

    def index(row: int) -> int:
        wide, domains = in_wide[row], len(view.shapes[view.shape[row]].domains)
        pins = making.pinned.get(row, {})
        rule = InNode(
            gpus,
            tuple(making.unit),
            (0,) * count if wide else tuple(making.domain_unit),
            tuple(pins.get(block, -1) for block in range(count)),
            () if wide else tuple(making.single),
            making.node_most,
            (making.domain_most,) * domains if making.domain_most >= 0 else (),
            apart=tuple((mine, others) for here, mine, others in making.apart if here[row]),
            limits=tuple((members, int(most[row])) for most, members in making.limits if most[row] < LARGEST),
        )
        rule = existing.after(view, row, rule)
        free = max(rule.unit) == 1 and rule.most < 0 and not rule.touched and rule.pinned == nothing
        free = free and not rule.apart and not rule.limits
        return rules.setdefault(None if free and not rule.binds_domains else rule, len(rules))

    elsewhere = np.delete(np.arange(len(found)), list(existing.masks))
    code = view.shape[elsewhere] * 2 + in_wide[elsewhere]
    for line in (*(here for here, _, _ in making.apart), *(most for most, _ in making.limits)):
        values, dense = np.unique(line[elsewhere], return_inverse=True)
        code = np.unique(code * len(values) + dense, return_inverse=True)[1]
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    if len(elsewhere):
        found[elsewhere] = np.array([index(row) for row in elsewhere[first].tolist()])[inverse]
    for row in existing.masks:
        found[row] = index(row)
    return found, tuple(rules)
