"""Say in which domain of each scope a node lies. No other code of the planner knows this.

A domain is one part of a scope: a zone, a rack, an NVLink domain. The domains of a scope have the indices 0,
1, 2 … in the natural order of their names. Names are unique: "r1", or "r1 of zone a" if there are several
r1. Labels name the domains above the node. Inside a node, an NVLink domain is a mask of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from muster.domain.constraints import NODE
from muster.domain.levels import NVLINK, UNIQUE_LABELS, FabricLevel, Hierarchy, part_of
from muster.domain.request import Scope
from muster.domain.snapshot import NodeState
from muster.domain.topology import GpuTopology, bits
from muster.domain.words import natural_key
from muster.placement.cluster.fabric import Shape

if TYPE_CHECKING:  # columns import this module
    from muster.placement.cluster.columns import Columns


Codes = NDArray[np.int32]
Source = NDArray[np.intp] | None
"""[row] The row of the node in the previous columns, -1 for a new node. None if all rows are the same."""
T = TypeVar("T")


def with_rows(
    old: NDArray[Any], source: Source, rows: Sequence[int], values: Sequence[object]
) -> NDArray[Any]:
    """Return the array with these rows set. The last axis is the row.

    `rows` must include the rows of all new nodes.
    """
    if source is None:
        if not rows:
            return old
        new = old.copy()
    else:
        new = np.zeros((*old.shape[:-1], len(source)), old.dtype)
        has_source = source >= 0
        new[..., has_source] = old[..., source[has_source]]
    if rows:
        new[..., rows] = np.array(values, old.dtype).T
    return make_read_only(new)


def encode_rows(
    codes: Codes,
    values: tuple[T, ...],
    source: Source,
    rows: Sequence[int],
    new: Sequence[T | None],  # a list, because it is compared with one
    order: Callable[[T], Any] | None,
) -> tuple[Codes, tuple[T, ...]]:
    """Return `codes` with the codes of `new` in these rows, and the values that the codes stand for.

    Values are sorted by `order`; if it is None, by the first row with each value. If nothing changed, the
    result is the same array.
    """
    if source is None and (not rows or [values[c] if c >= 0 else None for c in codes[rows].tolist()] == new):
        return codes, values
    code_of = {value: code for code, value in enumerate(values)}
    new_codes = [-1 if value is None else code_of.setdefault(value, len(code_of)) for value in new]
    codes, values = with_rows(codes, source, rows, new_codes), tuple(code_of)
    # The last assignment wins, so going backwards leaves the first row of each code. The last entry is for
    # -1.
    first = np.full(len(values) + 1, len(codes))
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    codes_in_use = np.flatnonzero(first[:-1] < len(codes)).tolist()
    codes_in_use.sort(key=lambda code: order(values[code]) if order else first[code])
    rank = np.full(len(values) + 1, -1, np.int32)
    rank[codes_in_use] = np.arange(len(codes_in_use))
    return make_read_only(rank[codes]), tuple(values[code] for code in codes_in_use)


def make_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Make the array read-only and return it."""
    array.setflags(write=False)
    return array


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE = -1
"""The index that stands for "in no domain"."""

INSIDE = (Scope.GPU.value, Scope.NVLINK_DOMAIN.value)
"""Scopes whose parts may be smaller than a node."""

NARROW = (*INSIDE, Scope.NODE.value)
"""The scopes up to the node, narrowest first."""


@dataclass(frozen=True, eq=False)
class Domains:
    """The domains of one scope: [row] the index of the node's domain or NONE, and the domains' names.

    `names` are in natural order, so indices compare as names do. Each domain has at least one node.
    """

    codes: Codes
    names: tuple[str, ...]

    @cached_property
    def by_row(self) -> Ints:
        """[row] The indices as int64, the dtype that the planner computes with. The array is read-only."""
        return make_read_only(self.codes.astype(np.int64))

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The index of each domain, by name."""
        return {name: code for code, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """The domains of all nodes of a cluster. All arrays have the axis [row]."""

    _columns: Columns

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes above the node that count in this cluster, widest first.

        A scope counts if at least one node carries its label: a cluster without zone labels has no zones to
        cross. If only some nodes carry the label, each other node counts as a domain of its own.
        """
        return tuple(level.scope for level in self._columns.levels if self._columns.part(level.scope).names)

    def counted_scopes(self, gpus: bool) -> tuple[str, ...]:
        """Return the scopes whose touched domains are counted, widest first.

        Gangs without GPUs touch no NVLink domain.
        """
        domain = (Scope.NVLINK_DOMAIN.value,) if gpus else ()
        return (*self.scopes, Scope.NODE.value, *domain)

    def domains(self, scope: str) -> Domains:
        """Return the domains of a scope that are nodes or wider.

        For scopes inside a node these are the NVLink domains that labels name.
        """
        if scope == Scope.NODE:
            return self._columns.nodes
        return self._columns.wide_domains if scope in INSIDE else self._columns.part(scope)

    def index(self, scope: str) -> Ints:
        """Return [row] int64: the index of each node's domain, NONE for none."""
        return self.domains(scope).by_row

    def index_or_own(self, scope: str) -> Ints:
        """Return [row] int64: the index of each node's domain. A node without one is a domain of its own."""
        return own_part_if_none(self.index(scope))

    def by_label(self, key: str) -> Ints:
        """Return [row] int64: the domain of each node by the topology key of a pod's own constraint.

        Unlike for scopes, an empty label value is a value.
        """
        if key == NODE:
            return np.arange(len(self._columns.names), dtype=np.int64)
        return self._columns.label(key).codes.astype(np.int64)

    def parts(self, row: int, scope: str) -> tuple[tuple[str, int], ...]:
        """Return the parts of `scope` that the node lies in, each with the mask of its GPUs there.

        The result is () if the node has no label of the scope.
        """
        place = self._columns.place(row)
        if scope == Scope.GPU:
            indices = bits(place.all_gpus) if not place.state.unindexed_gpus else ()
            return tuple((f"{place.name}/{i}", 1 << i) for i in indices)
        if scope == Scope.NVLINK_DOMAIN:
            return self.nvlink_domains(row) if place.promised else ()
        part = self.part(row, scope)
        return ((part, place.all_gpus),) if part else ()

    def part(self, row: int, scope: str) -> str:
        """Return the name of the node's domain as in `domains`; "" if it lies in none."""
        domains = self.domains(scope)
        code: int = domains.codes.item(row)
        return domains.names[code] if code >= 0 else ""

    def nvlink_domains(self, row: int) -> tuple[tuple[str, int], ...]:
        """Return the NVLink domains of the node with the masks of its GPUs, whether promised or not."""
        place, wide_domain = self._columns.place(row), self.part(row, Scope.NVLINK_DOMAIN)
        return ((wide_domain, place.all_gpus),) if wide_domain else place.own_domains

    def touched_nvlink_domains(self, row: int, mask: int) -> set[str]:
        """Return the names of the NVLink domains that these GPUs lie in.

        If GPU indices cannot be promised, each GPU counts as a domain.
        """
        place = self._columns.place(row)
        if not place.promised:
            return {f"{place.name}/gpu{i}" for i in bits(mask)}
        return {name for name, domain in self.nvlink_domains(row) if domain & mask}

    @property
    def in_wide(self) -> Bools:
        """[row] Whether a label names the node's NVLink domain, which may span nodes."""
        return np.asarray(self._columns.wide_domains.codes >= 0)

    def domains_of_whole_nodes(self) -> Ints:
        """Return [row] int64: the NVLink domain that holds all GPUs of the node, NONE if none does.

        A label may name the domain. Otherwise the node has one NVLink domain of its own, or several.
        """
        columns, wide_domain = self._columns, self.index(Scope.NVLINK_DOMAIN)
        has_one_domain = np.array([len(shape.domains) == 1 for shape in columns.shapes], bool)[columns.shape]
        return np.where(has_one_domain & (wide_domain < 0), own_part_if_none(wide_domain), wide_domain)

    def regions(self, scope: str | None) -> Ints:
        """Return [row] int64: the region in which a gang with this required scope could lie.

        The region is the node if a domain of the scope may be smaller than a node. Without a scope all nodes
        are one region.
        """
        count = len(self._columns.names)
        if scope is None:
            return np.zeros(count, np.int64)
        if scope in (Scope.NODE, Scope.GPU):
            return np.arange(count, dtype=np.int64)
        return self.index_or_own(scope) if scope == Scope.NVLINK_DOMAIN else self.index(scope)


def own_part_if_none(index: Ints) -> Ints:
    """Return the indices, with a new domain for each node without one."""
    return np.where(index < 0, int(index.max(initial=NONE)) + 1 + np.arange(len(index)), index)


def domains_by_path(columns: Columns, scope: str) -> Domains:
    """Return the domains of a scope that labels give. Wider domains tell domains of one name apart."""
    hierarchy = Hierarchy.of(scope, columns.levels, columns.snapshot.naming)
    own_domains, *wider_domains = (columns.label_names(level.scope) for level in hierarchy.levels)
    ended = _path_ends_at(columns, hierarchy, 0)
    codes_around: list[Ints] = []
    for i, domains in enumerate(wider_domains, start=1):
        codes_around.append(np.where(ended, NONE, domains.codes))
        ended |= _path_ends_at(columns, hierarchy, i)
    if not any(_lie_in_several(own_domains.codes, codes) for codes in codes_around):
        return own_domains
    rows = np.flatnonzero(own_domains.codes >= 0).tolist()
    texts = [(*domains.names, "") for domains in (own_domains, *wider_domains)]
    codes_by_level = [own_domains.codes[rows].tolist(), *(codes[rows].tolist() for codes in codes_around)]
    names_by_row = ([text[code] for code in line] for text, line in zip(texts, codes_by_level, strict=True))
    paths = list(zip(*names_by_row, strict=True))
    names = hierarchy.names(set(paths))
    blank = np.full(len(own_domains.codes), NONE, np.int32)
    return Domains(*encode_rows(blank, (), None, rows, [names[path] for path in paths], natural_key))


def _path_ends_at(columns: Columns, hierarchy: Hierarchy, level_index: int) -> Bools:
    """Return [row] bool: whether the node's path ends at this level, because the name there is unique."""
    level = hierarchy.levels[level_index]
    has_name = columns.label_names(level.scope).codes >= 0
    if level.scope in hierarchy.unique:
        return np.asarray(has_name)
    for label in level.labels:
        if label not in UNIQUE_LABELS:
            values = columns.label(label)
            has_name &= (values.codes < 0) | (values.codes == values.index.get("", NONE))
    return np.asarray(has_name)


def _lie_in_several(codes: Codes, wider: Codes | Ints) -> bool:
    """Return whether nodes of one domain lie in two wider domains."""
    rows = np.flatnonzero((codes >= 0) & (wider >= 0))
    any_of = np.zeros(int(codes.max(initial=NONE)) + 1, np.int64)
    any_of[codes[rows]] = wider[rows]
    return bool((any_of[codes[rows]] != wider[rows]).any())


@dataclass(frozen=True)
class Place:
    """One node as the planner sees it.

    `wide_domain` is the name that a label gives to its NVLink domain, which may span nodes; "" without a
    label. `promised` is whether scopes narrower than the node can be kept. That is impossible while GPUs with
    unknown indices are taken, unless all GPUs of the node are one domain.
    """

    name: str
    state: NodeState
    shape: Shape
    wide_domain: str
    promised: bool

    @property
    def all_gpus(self) -> int:
        """The mask of all GPUs of the node, taken or free."""
        return (1 << self.state.node.topology.gpu_count) - 1

    @cached_property
    def own_domains(self) -> tuple[tuple[str, int], ...]:
        """The NVLink domains inside the node, each with the mask of its GPUs."""
        return tuple((f"{self.name}/{i}", mask) for i, mask in enumerate(self.state.node.topology.domains))


def place_of(state: NodeState) -> Place:
    """Return the node of a state as the planner sees it."""
    node = state.node
    count = node.topology.gpu_count
    everything = (1 << count) - 1
    wide_domain = part_of(node, NVLINK.scope, (NVLINK,)) if count else ""
    topology, masks = node.topology, (everything,) if wide_domain else node.topology.islands
    fabric = bool(wide_domain) or node.topology.has_fabric
    pools = masks if fabric and not state.unindexed_gpus else (everything,)
    if topology.groups:
        wide_domain, masks = "", topology.groups
    promised = not state.unindexed_gpus or len(masks) == 1
    if state.unindexed_gpus:
        # It is unknown which GPUs are free, so neither links nor domains smaller than the node can be
        # promised.
        topology = GpuTopology.unknown(count)
        if not promised:
            masks = tuple(1 << i for i in range(count))
    if node.gpu_memory and not node.gpu_resources:
        pools = ()
    shape = Shape(topology, masks, pools, state.unindexed_gpus, node.gpu_memory, node.spreads_slices)
    return Place(node.name, state, shape, wide_domain, promised)


def narrow_to_wide(levels: tuple[FabricLevel, ...], scopes: Iterable[str]) -> tuple[str, ...]:
    """Return all scopes that a plan may be reported to lie in, narrowest first.

    Label keys that the gang asks for come before the widest level.
    """
    level_scopes = [level.scope for level in levels[::-1]]
    custom = [scope for scope in scopes if scope not in {*Scope, *level_scopes}]
    return tuple(dict.fromkeys((*NARROW, *level_scopes[:-1], *custom, *level_scopes[-1:])))
