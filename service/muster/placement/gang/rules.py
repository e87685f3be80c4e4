"""Collect the rules that bind the places of members to each other. Each constraint adds to one `Rules`
object.

A rule is in the model if the parts of its scope are nodes or wider. If the parts lie inside a node, the rule
is part of that node's rule (`node_rules`). If running members decide the part, all nodes outside it are
excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints
from muster.placement.gang.blocks import Blocks
from muster.placement.gang.running import RunningMembers
from muster.placement.gpus.node_rules import Counts, NodeRule
from muster.placement.model.problem import Rule

PartsByRow = Ints
"""[row] int64: the part of a scope, −1 for none."""

BlockIndices = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Rules:
    """The rules of a request.

    Constraints add an array of parts by row to `cells`, under a name. Functions in `model` make the rules of
    the model from these names, once the nodes have been grouped into cells. `unit`, `domain_unit` and
    `one_domain_blocks` are as in `NodeRule`.
    """

    columns: Columns
    blocks: Blocks
    excluded: Bools
    """[block, row] bool: nodes that the block must not use."""
    in_node: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[row] int64: the index in `node_rules`. Entry None of `node_rules` is for nodes without a rule."""
    node_rules: tuple[NodeRule | None, ...] = ()
    cells: dict[str, PartsByRow] = field(default_factory=dict)
    model: list[Callable[[Mapping[str, Ints]], Rule]] = field(default_factory=list)
    """Functions that make a rule. The argument is the arrays of `cells` by name: by row at first, later by
    cell of the model.
    """
    order: list[tuple[str, ...]] = field(default_factory=list)
    """By block: the `cells` along which its members are ordered by rank, widest first."""
    unit: list[int] = field(default_factory=list)
    domain_unit: list[int] = field(default_factory=list)
    one_domain_blocks: list[BlockIndices] = field(default_factory=list)
    together: list[tuple[str, BlockIndices]] = field(default_factory=list)
    """Blocks that lie in one part of these `cells`."""
    pinned: dict[int, dict[int, int]] = field(default_factory=dict)
    """row → block → NVLink domain of the node in which the block must lie."""
    caps: Ints | None = None
    """[block, row] int64: the most members of the block that the node holds; None without such limits."""
    repulsions: list[tuple[Bools, BlockIndices, BlockIndices]] = field(default_factory=list)
    """([row] bool, blocks, blocks): on these nodes, members of the first blocks and members of the second
    blocks exclude each other.
    """
    max_per_node: int = -1
    """The most members of the gang on one node, −1 without such a limit."""
    max_per_domain: int = -1
    """The most members of the gang in one NVLink domain of a node, −1 without such a limit."""
    limits: list[tuple[Ints, BlockIndices]] = field(default_factory=list)
    """([row] int64, blocks): the most members of these blocks together that the node holds."""
    gang_on_node_checks: list[Callable[[Counts], Bools]] = field(default_factory=list)
    """Functions from a packing of the whole gang to [row] bool: whether the node may hold it."""

    @classmethod
    def of(cls, columns: Columns, blocks: Blocks) -> Rules:
        """Return an empty set of rules."""
        count = len(blocks.roles)
        refused = np.zeros((count, len(columns.names)), bool)
        return cls(columns, blocks, refused, unit=[1] * count, domain_unit=[0] * count)

    def set_node_rules(self, running: RunningMembers) -> None:
        """Set the rule of each node from what constraints have added. Equal rules share one index."""
        columns, in_wide = self.columns, self.columns.topology.in_wide
        index_of_rule: dict[NodeRule | None, int] = {None: 0}
        self.in_node, self.node_rules = np.zeros(len(columns.names), np.int64), tuple(index_of_rule)
        collected = (self.pinned, self.one_domain_blocks, self.repulsions, self.limits, running)
        units = (*(unit - 1 for unit in self.unit), *self.domain_unit)
        if not any(collected) and not any(units) and max(self.max_per_node, self.max_per_domain) < 0:
            return

        def rule_at(row: int) -> int:
            rule = running.rule_for_new_members(columns, row, self._rule_on(row, bool(in_wide[row])))
            return index_of_rule.setdefault(rule if rule.binds else None, len(index_of_rule))

        other_rows = np.arange(len(self.in_node))
        if running.masks:
            other_rows = np.delete(other_rows, list(running.masks))
        code = columns.shape[other_rows] * 2 + in_wide[other_rows]
        for line in (*(nodes for nodes, _, _ in self.repulsions), *(cap for cap, _ in self.limits)):
            values, dense = np.unique(line[other_rows], return_inverse=True)
            code = np.unique(code * len(values) + dense, return_inverse=True)[1]
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        if len(other_rows):
            self.in_node[other_rows] = np.array([rule_at(row) for row in other_rows[first].tolist()])[inverse]
        for row in running.masks:
            self.in_node[row] = rule_at(row)
        self.node_rules = tuple(index_of_rule)

    def _rule_on(self, row: int, in_wide: bool) -> NodeRule:
        """Return the rule of a node without running members. If `in_wide`, the node is one domain."""
        columns, count, pins = self.columns, len(self.blocks.roles), self.pinned.get(row, {})
        domains = len(columns.shapes[columns.shape[row]].domains)
        return NodeRule(
            tuple(role.gpus for role in self.blocks.roles),
            tuple(self.unit),
            (0,) * count if in_wide else tuple(self.domain_unit),
            tuple(pins.get(block, -1) for block in range(count)),
            () if in_wide else tuple(self.one_domain_blocks),
            self.max_per_node,
            (self.max_per_domain,) * domains if self.max_per_domain >= 0 else (),
            repulsions=tuple((first, repelled) for nodes, first, repelled in self.repulsions if nodes[row]),
            limits=tuple((members, int(cap[row])) for cap, members in self.limits if cap[row] < LARGEST),
        )

    @property
    def active(self) -> BlockIndices:
        """The blocks that have members."""
        return tuple(b for b, role in enumerate(self.blocks.roles) if role.members)

    def units_of(self, block: int) -> Counts:
        """Return for each of `node_rules` the unit of the block: nodes with the rule take multiples of it."""
        return tuple(1 if rule is None else rule.unit_of(block) for rule in self.node_rules)

    def cap_role(self, block: int, max_members: Ints) -> None:
        """Let each node hold at most `max_members` [row] int64 members of the block."""
        if self.caps is None:
            shape = (len(self.blocks.roles), len(self.columns.names))
            self.caps = np.full(shape, LARGEST, np.int64)
        self.caps[block] = np.minimum(self.caps[block], max_members)

    def cap_together(self, blocks: BlockIndices, max_members: Ints) -> None:
        """Let each node hold at most `max_members` [row] int64 members of these blocks together."""
        for block in blocks:
            self.cap_role(block, max_members)
        if len(blocks) > 1:
            self.limits.append((max_members, blocks))

    def exclude(self, blocks: BlockIndices, rows: Bools) -> None:
        """Keep these blocks off the nodes `rows` [row] bool."""
        for block in blocks:
            self.excluded[block] |= rows

    def add_rule(self, name: str, part: PartsByRow, rule: Callable[[Ints], Rule]) -> None:
        """Add a rule of the model about these parts. `rule` makes the rule from the parts by cell."""
        self.cells[name] = part
        self.model.append(lambda parts: rule(parts[name]))

    def blocks_of(self, roles: Iterable[str]) -> BlockIndices:
        """Return the blocks with members of these roles."""
        names = set(roles)
        return tuple(block for block in self.active if self.blocks.roles[block].name in names)

    def rows_of(self, nodes: Iterable[str]) -> Ints:
        """Return the rows of those nodes that are in the snapshot."""
        return np.array([self.columns.row[node] for node in nodes if node in self.columns.row], np.int64)

    @property
    def sliced(self) -> bool:
        """Whether members share GPUs. Then each NVLink domain that a rule names is a node, or wider."""
        return any(role.slice and role.members for role in self.blocks.roles)

    def codes(self, scope: str) -> PartsByRow:
        """Return [row] int64: the domain that holds the whole node, −1 for none.

        For the scope `gpu` the domain is the node itself.
        """
        topology = self.columns.topology
        if scope == Scope.GPU:
            return topology.index(Scope.NODE)
        needs_whole_node = self.sliced and scope == Scope.NVLINK_DOMAIN
        return topology.domains_of_whole_nodes() if needs_whole_node else topology.index(scope)


def one_node_each(domains: PartsByRow) -> bool:
    """Return whether no domain has several nodes."""
    return int(np.bincount(domains[domains >= 0]).max(initial=0)) <= 1
