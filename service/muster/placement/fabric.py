"""Where each GPU lies: the parts of every scope, and the shape of a node as the planner sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from muster.domain.request import Request, Scope
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology, bits

DOMAIN_LABELS = ("gpu.topology/nvlink-domain", "nvidia.com/gpu.clique")
"""Labels that name a node's NVLink domain, first that speaks wins: equal values are one domain."""

SCOPE_LABELS = {
    Scope.RACK.value: "topology.kubernetes.io/rack",
    Scope.ZONE.value: "topology.kubernetes.io/zone",
}

CROSSING_SCOPES = (Scope.ZONE.value, Scope.RACK.value, Scope.NODE.value, Scope.NVLINK_DOMAIN.value)
"""The scopes whose touched parts are counted, widest first."""

MAX_RING_GPUS = 16
"""Up to so many GPUs a node's link matrix is used: tables over their subsets grow as 2^n."""


@dataclass(frozen=True)
class Shape:
    """What decides the value of GPU sets on a node, whatever its name: equal shapes share their tables.

    `domains` are the NVLink domains inside the node as bit masks. `pools` are the sets within which a typical
    request must find its GPUs: the domains where the node has NVLink, else all its GPUs at once.
    `hidden` GPUs of those that look free are taken, nobody knows which.
    """

    topology: GpuTopology
    domains: tuple[int, ...]
    pools: tuple[int, ...]
    hidden: int = 0

    @cached_property
    def _hash(self) -> int:
        return hash((self.topology, self.domains, self.pools, self.hidden))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Place:
    """One node as the planner sees it.

    `zone`, `rack` are label values, "" where the node has none. `domains` are (name, mask) of the NVLink
    domains it lies in; `wide` is the domain's name where a label gives it, which may span nodes, else "".
    `promised` says that a scope narrower than the node can be kept: false while GPUs of unknown index are
    taken, unless all the node's GPUs are one domain.
    """

    name: str
    state: NodeState
    shape: Shape
    zone: str
    rack: str
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
        value = self.state.node.labels.get(SCOPE_LABELS.get(scope, scope), "")
        return ((value, self.all_gpus),) if value else ()


def place_of(state: NodeState) -> Place:
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
    shape = Shape(topology, masks, pools, state.unindexed_gpus)
    labels = node.labels
    zone, rack = (labels.get(SCOPE_LABELS[scope], "") for scope in (Scope.ZONE.value, Scope.RACK.value))
    return Place(node.name, state, shape, zone, rack, domains, wide, promised)


def places(snapshot: Snapshot) -> dict[str, Place]:
    """All nodes, in natural order of their names, whatever the order they came in."""
    return {name: place_of(snapshot.nodes[name]) for name in sorted(snapshot.nodes, key=natural)}


def crossing_scopes(places: Iterable[Place], gpus: bool) -> tuple[str, ...]:
    """The levels of "fewest parts crossed" that mean something in this cluster, widest first.

    A scope whose label no node carries is no level (a cluster without zone labels has no zones to cross);
    where some carry it, each node without it counts as a part of its own. cpu-only gangs touch no domain.
    """
    seen = list(places)
    skipped = set()
    if not any(place.zone for place in seen):
        skipped.add(Scope.ZONE.value)
    if not any(place.rack for place in seen):
        skipped.add(Scope.RACK.value)
    if not gpus:
        skipped.add(Scope.NVLINK_DOMAIN.value)
    return tuple(scope for scope in CROSSING_SCOPES if scope not in skipped)


def touched_domains(place: Place, mask: int) -> set[str]:
    """Names of the NVLink domains that these GPUs lie in; one a GPU where indices can't be promised."""
    if not place.promised:
        return {f"{place.name}/gpu{i}" for i in bits(mask)}
    return {name for name, domain in place.domains if domain & mask}


def parts_of(
    request_scopes: tuple[str, ...], places: Iterable[Place]
) -> dict[tuple[str, ...], dict[str, int]]:
    """The parts that satisfy all of these scopes at once: part → {node: mask of the GPUs it may use there}.

    No scope: one part that holds everything. Scopes need not nest: a part is an intersection.
    """
    found: dict[tuple[str, ...], dict[str, int]] = {}
    for place in places:
        combined: list[tuple[tuple[str, ...], int]] = [((), place.all_gpus)]
        for scope in request_scopes:
            combined = [
                ((*key, part), mask & inside)
                for key, mask in combined
                for part, inside in place.parts(scope)
                if (mask & inside) or not place.all_gpus
            ]
        for key, mask in combined:
            found.setdefault(key, {})[place.name] = mask
    return found


def narrowest(request: Request, spots: Iterable[tuple[Place, int]]) -> tuple[str | None, str]:
    """The narrowest scope one part of which holds all these (node, GPUs), and that part; (None, "") if none.

    A member without GPUs lies in the domain or on the GPU when its node does.
    """
    spots = list(spots)
    asked = [scope for scope in (request.required_scope, *request.preferred_scopes) if scope]
    custom = tuple(dict.fromkeys(scope for scope in asked if scope not in set(Scope)))
    narrow, wide = (Scope.GPU.value, Scope.NVLINK_DOMAIN.value, Scope.NODE.value), (Scope.ZONE.value,)
    for scope in (*narrow, Scope.RACK.value, *custom, *wide):
        common: set[str] | None = None
        for place, mask in spots:
            inside = {part for part, gpus in place.parts(scope) if mask & ~gpus == 0}
            common = inside if common is None else common & inside
        if common and (scope != Scope.GPU or any(mask for _, mask in spots)):
            return scope, f"{scope} {min(common, key=natural)}"
    return None, ""


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts worker-2 before worker-10."""
    return tuple(
        (0, int(piece), piece) if piece.isdecimal() else (1, 0, piece)
        for piece in re.split(r"(\d+)", name)
        if piece
    )
