"""What binds members to each other, scope by scope: in the model where a scope's parts are nodes and more, on
the node where they lie inside it (node_rules), and as nodes refused where running members say which part it
is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from muster.domain.request import Request, Scope
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints
from muster.placement.cluster.topology import own
from muster.placement.gang.blocks import Blocks, Together
from muster.placement.gang.constraints import add_constraints
from muster.placement.gang.existing import ExistingMembers, common_parts
from muster.placement.gang.making import Counts, Making, PartsByRow
from muster.placement.gpus.node_rules import InNode
from muster.placement.limits import takes_gpus
from muster.placement.model.problem import MaxPerPart, Problem, RoleScope, Rule, Segments


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
    for block in range(count):
        _segments(making, block)
    for together in blocks.together:
        _together(making, together, existing)
    node_most, domain_most = _max_per(making, request, existing)
    add_constraints(making, request)
    in_node, node_rules = _in_node(making, existing, node_most, domain_most)
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


def _segments(making: Making, block: int) -> None:
    view, order = making.view, list[str]()
    nested = np.zeros(len(view.names), np.int64)
    for segment in making.blocks.roles[block].segments:
        size, scope = segment.size, segment.scope
        if scope == Scope.GPU:
            making.refused[block] |= _outside_gpus(making, block, several=size > 1)
        if scope in (Scope.NODE, Scope.GPU):
            making.unit[block] = max(making.unit[block], size)
            continue
        codes = making.codes(scope)
        if scope == Scope.NVLINK_DOMAIN and not making.sliced:
            making.domain_unit[block] = size
            making.refused[block] |= (codes < 0) & ~view.promised
        else:
            making.refused[block] |= codes < 0
        if (codes < 0).all():
            continue
        inner = nested * (int(codes.max(initial=0)) + 1) + codes
        part = np.where((codes < 0) | (nested < 0), -1, inner)
        name = f"segment {block} {scope}"
        making.cells[name] = part
        order.append(name)
        making.model.append(_segments_rule(name, block, size))
        nested = np.where(part < 0, nested, np.unique(part, return_inverse=True)[1])
    making.order.append(tuple(order))


def _outside_gpus(making: Making, block: int, *, several: bool) -> Bools:
    """Return the nodes, by row, where no GPU can hold one member of the block, or `several`. A GPU holds any
    number of members without GPUs; where indices are unknown, it holds none."""
    view, gpus = making.view, making.blocks.roles[block].gpus
    if gpus > 1 or (gpus and several):
        return np.ones(len(view.names), bool)
    promised = [shape.topology.gpu_count > 0 and not shape.hidden for shape in view.shapes]
    return ~np.array(promised, bool)[view.shape]


def _segments_rule(name: str, block: int, size: int) -> Callable[[Problem], Rule]:
    return lambda problem: Segments(problem.parts[name], block, size)


def _together(making: Making, together: Together, existing: ExistingMembers) -> None:
    """One part for these blocks: where running members say which one, other nodes are refused."""
    view, scope, blocks = making.view, together.scope, together.blocks
    staying = [stay for stay in existing.members if stay.running in together.running]
    pinned = common_parts(view, scope, staying)
    codes = making.codes(scope)
    inner = scope == Scope.NVLINK_DOMAIN and not making.sliced
    if inner:
        small = codes < 0  # not in a wide domain: its parts lie inside the node
        refused = small & ~view.promised
        making.single += [blocks] if small.any() else []
        codes = own(codes)
    else:
        refused = codes < 0
    if pinned is not None:
        allowed = np.zeros(len(codes), bool)
        if inner:
            for row in {stay.row for stay in staying}:
                _pin(making, row, pinned, blocks)
                allowed |= codes == codes[row]
        else:
            allowed = np.isin(codes, [codes[stay.row] for stay in staying])
        refused = refused | ~allowed if pinned else np.ones(len(codes), bool)
    for block in blocks:
        making.refused[block] |= refused
    if scope == Scope.GPU:
        for block in blocks:
            making.refused[block] |= _outside_gpus(making, block, several=bool(staying))
        taking = tuple(block for block in blocks if making.blocks.roles[block].gpus)
        making.limits += [(np.ones(len(codes), np.int64), taking)] if taking else []
    members = sum(len(making.blocks.roles[block].members) for block in blocks)
    if pinned is None and members > 1:
        name = f"together {blocks} {scope}"
        making.cells[name] = np.where(refused, -1, codes)
        making.model.append(lambda problem: RoleScope(problem.parts[name], blocks))
        making.together.append((name, blocks))


def _pin(making: Making, row: int, parts: frozenset[str], blocks: tuple[int, ...]) -> None:
    topology = making.view.topology
    if topology.in_wide[row]:
        return
    for domain, (name, _) in enumerate(topology.nvlink_domains(row)):
        if name in parts:
            making.pinned.setdefault(row, {}).update(dict.fromkeys(blocks, domain))


def _max_per(making: Making, request: Request, existing: ExistingMembers) -> tuple[int, int]:
    """Limits by label become model rules; the limits a node and an NVLink domain are returned, −1 for
    none."""
    node_most, domain_most = -1, -1
    count = len(making.blocks.roles)
    for rule in request.max_per:
        if rule.scope == Scope.GPU:
            continue  # a GPU holds one member as it is
        if rule.scope != Scope.NVLINK_DOMAIN:  # what a part may not hold, no node of it may
            node_most = rule.members if node_most < 0 else min(node_most, rule.members)
        if rule.scope == Scope.NODE:
            continue
        codes = making.codes(rule.scope)
        blocks = tuple(range(count))
        if rule.scope == Scope.NVLINK_DOMAIN:
            if not making.sliced:
                domain_most = rule.members if domain_most < 0 else min(domain_most, rule.members)
            blocks = tuple(b for b in blocks if takes_gpus(making.blocks.roles[b]))
            if (codes < 0).all():
                continue
        else:
            codes = own(codes)
        taken = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
        for stay in existing.members:
            if codes[stay.row] >= 0 and (rule.scope != Scope.NVLINK_DOMAIN or stay.has_gpus):
                taken[codes[stay.row]] += 1
        name = f"max-per {rule.scope}"
        making.cells[name] = codes
        making.model.append(_max_per_part(name, blocks, np.maximum(0, rule.members - taken)))
    return node_most, domain_most


def _max_per_part(name: str, blocks: tuple[int, ...], left: Ints) -> Callable[[Problem], Rule]:
    return lambda problem: MaxPerPart(problem.parts[name], blocks, left)


def _in_node(
    making: Making, existing: ExistingMembers, node_most: int, domain_most: int
) -> tuple[Ints, tuple[InNode | None, ...]]:
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
            node_most,
            (domain_most,) * domains if domain_most >= 0 else (),
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
