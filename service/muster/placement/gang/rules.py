"""Collect what binds the places of members to each other. Each constraint adds to one `Rules` object.

A rule is in the model if the parts of its scope are nodes or wider. If the parts lie inside a node, it is in
that node's rule (`node_rules`). If existing members decide which part it is, other nodes are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints
from muster.placement.gang.blocks import Blocks
from muster.placement.gpus.node_rules import InNode
from muster.placement.model.problem import Rule

PartsByRow = Ints
"""[row] int64: the part of a scope, −1 for none."""

Counts = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Rules:
    """The rules of a request.

    Constraints add an array of parts by row to `cells`, under a name. Functions in `model` make the rules of
    the model from these names, once the nodes have been grouped into cells.
    """

    view: Columns
    blocks: Blocks
    refused: Bools
    """[block, row] bool: nodes that the block must not use."""
    in_node: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[row] int64: the index in `node_rules`. The entry None means that nothing is bound there."""
    node_rules: tuple[InNode | None, ...] = ()
    cells: dict[str, PartsByRow] = field(default_factory=dict)
    model: list[Callable[[Mapping[str, Ints]], Rule]] = field(default_factory=list)
    """Functions from parts by name, of rows or of the model's cells, to a rule."""
    order: list[tuple[str, ...]] = field(default_factory=list)
    """By block: the `cells` along which its members are ordered by rank, widest first."""
    unit: list[int] = field(default_factory=list)
    domain_unit: list[int] = field(default_factory=list)
    single: list[tuple[int, ...]] = field(default_factory=list)
    together: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    """Blocks that lie in one part of these `cells`."""
    pinned: dict[int, dict[int, int]] = field(default_factory=dict)
    """row → block → NVLink domain of the node in which the block must lie."""
    caps: Ints | None = None
    """[block, row] int64: the most members of the block that the node holds; None without such limits."""
    apart: list[tuple[Bools, Counts, Counts]] = field(default_factory=list)
    """([row] bool, blocks, blocks): on these nodes, members of the first blocks stay off members of the
    others.
    """
    node_most: int = -1
    """The most members of the gang on one node, −1 without such a limit."""
    domain_most: int = -1
    """The most members of the gang in one NVLink domain of a node, −1 without such a limit."""
    limits: list[tuple[Ints, Counts]] = field(default_factory=list)
    """([row] int64, blocks): the most members of these blocks together that the node holds."""
    whole: list[Callable[[Counts], Bools]] = field(default_factory=list)
    """Functions from a packing of the whole gang to [row] bool: whether the node may hold it."""

    @property
    def active(self) -> Counts:
        """The blocks that have members."""
        return tuple(b for b, role in enumerate(self.blocks.roles) if role.members)

    def units_of(self, block: int) -> Counts:
        """Return for each of `node_rules` its unit of the block: such a node takes a multiple of it."""
        return tuple(1 if rule is None else rule.unit_of(block) for rule in self.node_rules)

    def cap(self, block: int, most: Ints) -> None:
        """Let each node hold at most `most` [row] int64 members of the block."""
        if self.caps is None:
            shape = (len(self.blocks.roles), len(self.view.names))
            self.caps = np.full(shape, LARGEST, np.int64)
        self.caps[block] = np.minimum(self.caps[block], most)

    def at_most(self, blocks: Counts, most: Ints) -> None:
        """Let each node hold at most `most` [row] int64 members of these blocks together."""
        for block in blocks:
            self.cap(block, most)
        if len(blocks) > 1:
            self.limits.append((most, blocks))

    def refuse(self, blocks: Counts, rows: Bools) -> None:
        """Keep these blocks off the nodes `rows` [row] bool."""
        for block in blocks:
            self.refused[block] |= rows

    def bind(self, name: str, part: PartsByRow, rule: Callable[[Ints], Rule]) -> None:
        """Add a rule of the model about these parts. `rule` makes the rule from the parts by cell."""
        self.cells[name] = part
        self.model.append(lambda parts: rule(parts[name]))

    def blocks_of(self, roles: Iterable[str]) -> Counts:
        """Return the blocks with members of these roles."""
        names = set(roles)
        return tuple(block for block in self.active if self.blocks.roles[block].name in names)

    def rows(self, nodes: Iterable[str]) -> Ints:
        """Return the rows of those nodes that are in the snapshot."""
        return np.array([self.view.row[node] for node in nodes if node in self.view.row], np.int64)

    @property
    def sliced(self) -> bool:
        """Whether members share GPUs. Then each NVLink domain that a rule names is a node, or wider."""
        return any(role.slice and role.members for role in self.blocks.roles)

    def codes(self, scope: str) -> PartsByRow:
        """Return [row] int64: the domain that a node's members lie in as a whole, −1 for none.

        For the scope `gpu` the domain is the node itself.
        """
        topology = self.view.topology
        if scope == Scope.GPU:
            return topology.index(Scope.NODE)
        whole = self.sliced and scope == Scope.NVLINK_DOMAIN
        return topology.whole_nodes() if whole else topology.index(scope)


def one_node_each(domains: PartsByRow) -> bool:
    """Return whether no domain has several nodes."""
    return int(np.bincount(domains[domains >= 0]).max(initial=0)) <= 1
