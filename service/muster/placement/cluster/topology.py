"""Which domain a node lies in, scope by scope: the only code of the planner that knows.

A domain is one part of a scope: a zone, a rack, an NVLink domain. Domains of a scope have dense indices in
the natural order of their names, and equal names are one domain. Labels name the domains above the node;
inside a node an NVLink domain is a mask of its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from muster.domain.constraints import NODE
from muster.domain.levels import DEFAULT_LEVELS, Level, part_of
from muster.domain.request import Scope
from muster.domain.snapshot import NodeState
from muster.domain.topology import GpuTopology, bits
from muster.placement.cluster.arrays import Codes, fixed
from muster.placement.cluster.fabric import Shape

if TYPE_CHECKING:  # columns are made of domains
    from muster.placement.cluster.columns import Columns

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE = -1
"""The index of no domain."""

DOMAIN_LABELS = ("gpu.topology/nvlink-domain", "nvidia.com/gpu.clique")
"""Labels that name a node's NVLink domain, first that speaks wins: equal values are one domain."""

INSIDE = (Scope.GPU.value, Scope.NVLINK_DOMAIN.value)
"""Scopes whose parts may be smaller than a node."""


@dataclass(frozen=True, eq=False)
class Domains:
    """The domains of one scope: by row the index of the node's domain, NONE for none; and their names.

    `names` are in natural order, so codes compare as names do; each is the name of at least one node's.
    """

    codes: Codes
    names: tuple[str, ...]

    @cached_property
    def by_row(self) -> Ints:
        """The codes as 64-bit numbers, which the planner computes with; read-only."""
        return fixed(self.codes.astype(np.int64))

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Name → code."""
        return {name: code for code, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """The domains of all nodes of a view. Arrays are by row."""

    _view: Columns

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes above the node that mean something in this cluster, widest first.

        A scope whose label no node carries is none (a cluster without zone labels has no zones to cross);
        where some carry it, each node without it counts as a domain of its own.
        """
        return tuple(level.scope for level in self._view.levels if self._view.part(level.scope).names)

    def crossed(self, gpus: bool) -> tuple[str, ...]:
        """Return the scopes whose touched domains are counted, widest first. Gangs without GPUs touch no
        NVLink domain."""
        domain = (Scope.NVLINK_DOMAIN.value,) if gpus else ()
        return (*self.scopes, Scope.NODE.value, *domain)

    def domains(self, scope: str) -> Domains:
        """Return the domains of a scope that are nodes or wider; of those inside nodes, the NVLink domains
        that a label names."""
        if scope == Scope.NODE:
            return self._view.nodes
        return self._view.wide_domains if scope in INSIDE else self._view.part(scope)

    def index(self, scope: str) -> Ints:
        """Return the index of each node's domain, NONE for none."""
        return self.domains(scope).by_row

    def index_or_own(self, scope: str) -> Ints:
        """Return the index of each node's domain; a node without one is a domain of its own."""
        return own(self.index(scope))

    def by_label(self, key: str) -> Ints:
        """Return the domain of each node by the topology key of a pod's constraint. Other than for scopes, an
        empty value is a value."""
        if key == NODE:
            return np.arange(len(self._view.names), dtype=np.int64)
        return self._view.label(key).codes.astype(np.int64)

    @property
    def in_wide(self) -> Bools:
        """Whether a label names the node's NVLink domain, which may span nodes."""
        return np.asarray(self._view.wide_domains.codes >= 0)

    def whole_nodes(self) -> Ints:
        """Return the NVLink domain that holds all GPUs of each node: one that a label names, or one of its
        own; NONE where there are several, or none."""
        view, wide = self._view, self.index(Scope.NVLINK_DOMAIN)
        alone = np.array([len(shape.domains) == 1 for shape in view.shapes], bool)[view.shape]
        return np.where(alone & (wide < 0), own(wide), wide)

    def regions(self, scope: str | None) -> Ints:
        """Return the domain of each node in which a gang with this required scope could lie: the node itself
        where a domain lies inside it; one domain of all nodes for no scope."""
        count = len(self._view.names)
        if scope is None:
            return np.zeros(count, np.int64)
        if scope in (Scope.NODE, Scope.GPU):
            return np.arange(count, dtype=np.int64)
        return self.index_or_own(scope) if scope == Scope.NVLINK_DOMAIN else self.index(scope)


def own(index: Ints) -> Ints:
    """Return the index with a domain of its own for each node without one."""
    return np.where(index < 0, int(index.max(initial=NONE)) + 1 + np.arange(len(index)), index)


@dataclass(frozen=True, slots=True)
class Place:
    """One node as the planner sees it.

    `levels` are those of the snapshot. `domains` are (name, mask) of the NVLink
    domains it lies in; `wide` is the domain's name where a label gives it, which may span nodes, else "".
    `promised` says that a scope narrower than the node can be kept: false while GPUs of unknown index are
    taken, unless all the node's GPUs are one domain.
    """

    name: str
    state: NodeState
    shape: Shape
    levels: tuple[Level, ...]
    domains: tuple[tuple[str, int], ...]
    wide: str
    promised: bool

    @property
    def all_gpus(self) -> int:
        """The mask of all GPUs of the node, taken or free."""
        return (1 << self.state.node.topology.gpu_count) - 1

    def parts(self, scope: str) -> tuple[tuple[str, int], ...]:
        """The parts of `scope` that the node lies in, with the mask of its GPUs there; () if unlabelled."""
        if scope == Scope.GPU:
            indices = bits(self.all_gpus) if not self.state.unindexed_gpus else ()
            return tuple((f"{self.name}/{i}", 1 << i) for i in indices)
        if scope == Scope.NVLINK_DOMAIN:
            return self.domains if self.promised else ()
        if scope == Scope.NODE:
            return ((self.name, self.all_gpus),)
        value = self.part(scope)
        return ((value, self.all_gpus),) if value else ()

    def part(self, scope: str) -> str:
        """The part of a scope that labels give, "" where the node has none."""
        return part_of(self.state.node, scope, self.levels)


def place_of(state: NodeState, levels: tuple[Level, ...] = DEFAULT_LEVELS) -> Place:
    """The view of one node under its state."""
    node = state.node
    count = node.topology.gpu_count
    everything = (1 << count) - 1
    wide = (
        next((node.labels[label] for label in DOMAIN_LABELS if node.labels.get(label)), "") if count else ""
    )
    if wide:
        domains: tuple[tuple[str, int], ...] = ((wide, everything),)
    else:
        domains = tuple((f"{node.name}/{i}", mask) for i, mask in enumerate(node.topology.islands))
    topology, masks = node.topology, tuple(mask for _, mask in domains)
    fabric = bool(wide) or node.topology.has_fabric
    pools = masks if fabric and not state.unindexed_gpus else (everything,)
    promised = not state.unindexed_gpus or len(domains) == 1
    if state.unindexed_gpus:
        # Which GPUs are free is a guess: no link can be promised, and no domain but the whole node.
        topology = GpuTopology.unknown(count)
        if not promised:
            masks = tuple(1 << i for i in range(count))
    if node.gpu_memory and not node.gpu_resources:
        pools = ()
    shape = Shape(topology, masks, pools, state.unindexed_gpus, node.gpu_memory, node.spread)
    return Place(node.name, state, shape, levels, domains, wide, promised)


def touched_domains(place: Place, mask: int) -> set[str]:
    """Names of the NVLink domains that these GPUs lie in; one a GPU where indices can't be promised."""
    if not place.promised:
        return {f"{place.name}/gpu{i}" for i in bits(mask)}
    return {name for name, domain in place.domains if domain & mask}


def narrow_to_wide(levels: tuple[Level, ...], asked: Iterable[str]) -> tuple[str, ...]:
    """All scopes that a plan may be said to lie in, narrowest first; label keys asked for before the widest
    level."""
    named = [level.scope for level in levels[::-1]]
    narrow = (Scope.GPU.value, Scope.NVLINK_DOMAIN.value, Scope.NODE.value)
    custom = [scope for scope in asked if scope not in {*Scope, *named}]
    return tuple(dict.fromkeys((*narrow, *named[:-1], *custom, *named[-1:])))
