"""What binds members to each other, scope by scope. Each constraint adds to it.

It is in the model where a scope's parts are nodes and more, on the node where they lie inside it
(node_rules), and as nodes refused where running members say which part it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints
from muster.placement.gang.blocks import Blocks
from muster.placement.gpus.node_rules import InNode
from muster.placement.model.problem import Problem
from muster.placement.model.rule import Rule

PartsByRow = Ints
"""The part of a scope by row, −1 for none."""

Counts = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Rules:
    """The rules of a request. `cells` are the parts by row that model rules speak of, by a name of their own;
    `model` makes these rules from the parts by cell."""

    view: Columns
    blocks: Blocks
    refused: Bools
    """[block, row]: nodes that the block may not use."""
    in_node: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """By row, the index in `node_rules` (None: nothing binds)."""
    node_rules: tuple[InNode | None, ...] = ()
    cells: dict[str, PartsByRow] = field(default_factory=dict)
    model: list[Callable[[Problem], Rule]] = field(default_factory=list)
    order: list[tuple[str, ...]] = field(default_factory=list)
    """By block, the `cells` along which its members are lined up, widest first."""
    unit: list[int] = field(default_factory=list)
    domain_unit: list[int] = field(default_factory=list)
    single: list[tuple[int, ...]] = field(default_factory=list)
    together: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    """Blocks that lie in one part of these `cells`."""
    pinned: dict[int, dict[int, int]] = field(default_factory=dict)
    """row → block → domain."""
    caps: Ints | None = None
    """[block, row]: how many members of the block the node holds at most, None without such limits."""
    apart: list[tuple[Bools, Counts, Counts]] = field(default_factory=list)
    """By row, whether members of these blocks stay off a node with members of those."""
    node_most: int = -1
    """The most members of the gang on one node, −1 without such a limit; and in one NVLink domain of it."""
    domain_most: int = -1
    limits: list[tuple[Ints, Counts]] = field(default_factory=list)
    """By row, how many members of these blocks the node holds at most."""
    whole: list[Callable[[Counts], Bools]] = field(default_factory=list)
    """Of a packing that is all of the gang, by row, whether the node may hold it."""

    @property
    def active(self) -> Counts:
        """The blocks that have members."""
        return tuple(b for b, role in enumerate(self.blocks.roles) if role.members)

    def cap(self, block: int, most: Ints) -> None:
        """Let each node [row] hold at most so many members of the block."""
        if self.caps is None:
            shape = (len(self.blocks.roles), len(self.view.names))
            self.caps = np.full(shape, LARGEST, np.int64)
        self.caps[block] = np.minimum(self.caps[block], most)

    def at_most(self, blocks: Counts, most: Ints) -> None:
        """Let each node [row] hold at most so many members of these blocks together."""
        for block in blocks:
            self.cap(block, most)
        if len(blocks) > 1:
            self.limits.append((most, blocks))

    def refuse(self, blocks: Counts, rows: Bools) -> None:
        """Keep these blocks off the nodes [row]."""
        for block in blocks:
            self.refused[block] |= rows

    def bind(self, name: str, part: PartsByRow, rule: Callable[[Ints], Rule]) -> None:
        """Add a rule of the model about these parts; `rule` makes it from the parts by cell."""
        self.cells[name] = part
        self.model.append(lambda problem: rule(problem.parts[name]))

    def blocks_of(self, roles: Iterable[str]) -> Counts:
        """Return the blocks with members of these roles."""
        names = set(roles)
        return tuple(block for block in self.active if self.blocks.roles[block].name in names)

    def rows(self, nodes: Iterable[str]) -> Ints:
        """Return the rows of those nodes that are there."""
        return np.array([self.view.row[node] for node in nodes if node in self.view.row], np.int64)

    @property
    def sliced(self) -> bool:
        """Whether members share GPUs: then each NVLink domain that a rule speaks of is a node, or wider."""
        return any(role.slice and role.members for role in self.blocks.roles)

    def codes(self, scope: str) -> PartsByRow:
        """Return the domain of each node, of those that its members can lie in as a whole; for GPUs, which
        hold one member with GPUs at most, the node itself."""
        topology = self.view.topology
        if scope == Scope.GPU:
            return topology.index(Scope.NODE)
        whole = self.sliced and scope == Scope.NVLINK_DOMAIN
        return topology.whole_nodes() if whole else topology.index(scope)


def one_node_each(domains: PartsByRow) -> bool:
    """Tell whether no domain has several nodes."""
    return int(np.bincount(domains[domains >= 0]).max(initial=0)) <= 1
