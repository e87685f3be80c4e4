"""ResourceSlices of a pool → what can be used of it on a node, as the in-tree allocator gathers pools.

A pool counts on a node with the newest slices that name the node, or no node. They are enough if they are all
slices of the pool. Only if not, slices of other nodes are looked at: whether they make the pool whole, or are
newer. So no node can take a whole pool from another node by slices that name it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from muster.dialects.devices import shares
from muster.dialects.devices.objects import SliceDevice, SliceSpec
from muster.dialects.devices.shares import Rounding
from muster.domain.node import PoolKey

MAX_DEVICES = 1024
"""Devices of ResourceSlices. The driver with most has some 40 for each GPU: the GPU and its partitions."""
MAX_POOLS = 64
"""Pools of ResourceSlices with devices of the node. Drivers publish one."""
MAX_ROUNDINGS = 16
"""Of the memory of a node's devices. Those of one driver are alike. A node with more counts as without."""

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Slice:
    """A ResourceSlice. Its devices stay encoded: decoded ones of 5,000 nodes would take 100 MB. One with
    counters has no devices. `node` is "" if it names none. `count` is how many slices the pool has."""

    key: PoolKey
    generation: int
    count: int
    node: str
    devices: bytes
    size: int = 0
    """Its number of devices."""
    roundings: frozenset[tuple[str, Rounding]] = frozenset()
    """Of the memory that claims share of its devices, by the capacity's name."""
    counters: bytes = b""

    @classmethod
    def of(cls, spec: SliceSpec) -> Slice | None:
        """Return the slice; None for one with devices of no single node: no driver of GPUs publishes such."""
        pool, node = spec.pool, spec.node_name or ""
        key, count = (spec.driver, pool.name), pool.resource_slice_count
        if spec.shared_counters:
            counters = _encoder.encode(spec.shared_counters)
            return cls(key, pool.generation, count, node, b"", counters=counters)
        if not node:
            return None
        devices = spec.devices or []
        roundings = frozenset(filter(None, map(shares.rounding_of, devices)))
        if len(roundings) > MAX_ROUNDINGS:
            roundings = frozenset()
        encoded = _encoder.encode([*map(_kept, devices)])
        return cls(key, pool.generation, count, node, encoded, len(devices), roundings)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The slices of a pool that count on a node, by name, or why nothing of the pool is used there. `alone`:
    slices of other nodes do not matter."""

    key: PoolKey
    slices: tuple[Slice, ...] = ()
    problem: str = ""
    alone: bool = True


@dataclass(slots=True)
class Pool:
    """All slices of a pool, by the node that they name and by name. On the nodes `in_part` slices of other
    nodes matter."""

    slices: dict[str, dict[str, Slice]] = field(default_factory=dict)
    in_part: set[str] = field(default_factory=set)

    def add(self, name: str, new_slice: Slice) -> None:
        """Take in a slice."""
        self.slices.setdefault(new_slice.node, {})[name] = new_slice

    def remove(self, name: str, node: str) -> None:
        """Forget a slice of this node."""
        del self.slices[node][name]
        if not self.slices[node]:
            del self.slices[node]

    def depending_on(self, changed: Slice) -> set[str]:
        """Return the nodes on which the pool may change with this slice."""
        return {changed.node} | self.in_part if changed.node else set(self.slices) - {""}

    def gathered(self, key: PoolKey, node: str) -> Gathered:
        """Return what counts of the pool on a node that a slice of it names."""
        gathered = self._gathered(key, node)
        (self.in_part.discard if gathered.alone else self.in_part.add)(node)
        return gathered

    def _gathered(self, key: PoolKey, node: str) -> Gathered:
        of_node = [entry for name in (node, "") for entry in self.slices.get(name, {}).items()]
        newest = max(pool_slice.generation for _, pool_slice in of_node)
        current = {name: pool_slice for name, pool_slice in of_node if pool_slice.generation == newest}
        count = current[min(current)].count
        if len(current) == count:
            return Gathered(key, _sorted(current))
        everywhere = [entry for slices in self.slices.values() for entry in slices.items()]
        last = max(pool_slice.generation for _, pool_slice in everywhere)
        whole = {name: pool_slice for name, pool_slice in everywhere if pool_slice.generation == newest}
        if last > newest or len(whole) != count:
            there = f"{len(whole)} of {count} slices of generation {newest} are there"
            newer = f", and generation {last} of other nodes" if last > newest else ""
            problem = f"is published in part ({there}{newer}): nothing of it is used"
        elif any(pool_slice.node != node and not pool_slice.counters for pool_slice in whole.values()):
            problem = "has slices of several nodes, which is not planned yet"
        else:
            return Gathered(key, _sorted(whole), alone=False)
        return Gathered(key, problem=f"pool {key[1]} of {key[0]} {problem}", alone=False)


def _sorted(slices: dict[str, Slice]) -> tuple[Slice, ...]:
    return tuple(pool_slice for _, pool_slice in sorted(slices.items()))


def _kept(device: SliceDevice) -> SliceDevice:
    """Return the device without its capacities, if claims share none of them."""
    return device if device.allow_multiple_allocations else msgspec.structs.replace(device, capacity=None)
