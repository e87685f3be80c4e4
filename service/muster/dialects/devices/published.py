"""Compute the GPUs that a node offers, from its ResourceSlices.

Reading a node with many devices is slow. So `NodeSlices` is an immutable value that any thread may read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TypeVar

import msgspec

from muster.dialects import quantities
from muster.dialects.devices import selectors, shares
from muster.dialects.devices.objects import (
    CounterSet,
    CounterUse,
    CounterValue,
    DeviceTaint,
    SliceDevice,
    SliceSpec,
    TaintedDevices,
)
from muster.dialects.devices.offers import KINDS_OF_NODES, PARTITION, Column, NodeOffer, OfferedGpu
from muster.dialects.devices.selectors import AttributeTerm
from muster.dialects.devices.shares import Rounding
from muster.domain.node import Device, Need, PoolCounters, PoolKey

MAX_DEVICES = 1024
"""Largest number of devices in a node's ResourceSlices. Drivers publish up to some 40 for each GPU: the GPU
and its partitions."""
MAX_POOLS = 64
"""Largest number of pools with devices of the node. Drivers publish one."""
MAX_ROUNDINGS = 16
"""Largest number of different roundings of the memory of a node's devices. A driver has few. A node with more
counts as a node without roundings."""

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A ResourceSlice, with devices or with counters."""

    key: PoolKey
    generation: int
    count: int
    """Number of slices of the pool, by the driver."""
    node: str
    """The node that it names; "" if it names no node."""
    devices: bytes
    """Its devices as JSON: decoded devices of 5,000 nodes would take 100 MB."""
    size: int = 0
    """Number of its devices."""
    roundings: frozenset[tuple[str, Rounding]] = frozenset()
    """(name of the capacity, rounding) of the memory that claims share of its devices."""
    counters: bytes = b""
    """Its counter sets as JSON."""

    @classmethod
    def of(cls, spec: SliceSpec) -> PublishedSlice | None:
        """Return the slice; None if its devices belong to no single node, because no driver of GPUs publishes
        such slices."""
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
        encoded = _encoder.encode([*map(_without_unshared_capacities, devices)])
        return cls(key, pool.generation, count, node, encoded, len(devices), roundings)


@dataclass(frozen=True, slots=True)
class PoolOnNode:
    """The slices of a pool that count on a node, sorted by name."""

    key: PoolKey
    slices: tuple[PublishedSlice, ...] = ()
    problem: str = ""
    """Why no device of the pool is used on the node; "" if they are used."""
    self_contained: bool = True
    """Whether slices of other nodes do not matter."""


@dataclass(slots=True)
class PoolIndex:
    """All slices of a pool, selected for a node as the in-tree allocator does.

    On a node, the newest slices of the pool count that name this node, or no node. If they are all slices of
    the pool, slices of other nodes do not matter. Otherwise slices of other nodes may complete the pool, or
    be newer. So no node can take a complete pool from another node by slices that name the pool.
    """

    slices: dict[str, dict[str, PublishedSlice]] = field(default_factory=dict)
    """Node → name → slice. The node is "" for slices that name no node."""
    nodes_in_part: set[str] = field(default_factory=set)
    """Nodes whose own slices are not the complete pool, so that slices of other nodes matter."""

    def add(self, name: str, new_slice: PublishedSlice) -> None:
        """Take in a slice."""
        self.slices.setdefault(new_slice.node, {})[name] = new_slice

    def remove(self, name: str, node: str) -> None:
        """Forget a slice of this node."""
        del self.slices[node][name]
        if not self.slices[node]:
            del self.slices[node]

    def nodes_depending_on(self, changed: PublishedSlice) -> set[str]:
        """Return the nodes on which this slice may decide which slices of the pool count."""
        return {changed.node} | self.nodes_in_part if changed.node else set(self.slices) - {""}

    def select_for(self, key: PoolKey, node: str) -> PoolOnNode:
        """Return the slices that count on a node which a slice of the pool names."""
        pool = self._select_for(key, node)
        (self.nodes_in_part.discard if pool.self_contained else self.nodes_in_part.add)(node)
        return pool

    def _select_for(self, key: PoolKey, node: str) -> PoolOnNode:
        near_slices = {**self.slices.get(node, {}), **self.slices.get("", {})}
        newest = max(pool_slice.generation for pool_slice in near_slices.values())
        current = {name: entry for name, entry in near_slices.items() if entry.generation == newest}
        count = current[min(current)].count
        if len(current) == count:
            return PoolOnNode(key, _sort_by_name(current))
        all_slices = [entry for slices in self.slices.values() for entry in slices.items()]
        last = max(pool_slice.generation for _, pool_slice in all_slices)
        same_generation = {name: entry for name, entry in all_slices if entry.generation == newest}
        if last > newest or len(same_generation) != count:
            slices_clause = f"{len(same_generation)} of {count} slices of generation {newest} are there"
            newer = f", and generation {last} of other nodes" if last > newest else ""
            problem = f"is published in part ({slices_clause}{newer}): nothing of it is used"
        elif any(entry.node != node and not entry.counters for entry in same_generation.values()):
            problem = "has slices of several nodes, which is not planned yet"
        else:
            return PoolOnNode(key, _sort_by_name(same_generation), self_contained=False)
        return PoolOnNode(key, problem=f"pool {key[1]} of {key[0]} {problem}", self_contained=False)


def _sort_by_name(slices: dict[str, PublishedSlice]) -> tuple[PublishedSlice, ...]:
    return tuple(pool_slice for _, pool_slice in sorted(slices.items()))


def _without_unshared_capacities(device: SliceDevice) -> SliceDevice:
    """Return the device without its capacities, if claims share none of them."""
    return device if device.allow_multiple_allocations else msgspec.structs.replace(device, capacity=None)


_PCI = ("resource.kubernetes.io/pciBusID", "pciBusID", "pciAddr")

_devices = msgspec.json.Decoder(list[SliceDevice])
_counters = msgspec.json.Decoder(list[CounterSet])
_LONGEST = 64
"""Largest number of characters of an amount that are read. A quantity of the API server is shorter."""
_SHOWN = 4
"""Number of devices that a sentence names."""


V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class GpuClass:
    """A DeviceClass whose extended resource counts GPUs; `problem` if its selectors can't be read."""

    name: str
    resource: str
    created: str
    terms: tuple[AttributeTerm, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _ReadPool:
    """The usable devices of a pool on a node, or the `problem` for which no device is usable."""

    problem: str
    devices: list[SliceDevice] = field(default_factory=list)
    counters: PoolCounters | None = None


@dataclass(frozen=True)
class NodeSlices:
    """The slices that count on a node, with the classes and rules that apply to their devices."""

    node: str
    pools: tuple[PoolOnNode, ...] = ()
    """Pools of drivers that may serve GPUs, sorted."""
    classes: tuple[GpuClass, ...] = ()
    """The class of each GPU resource, in the order of the resources."""
    rules: tuple[TaintedDevices, ...] = ()
    """Devices that DeviceTaintRules keep pods away from."""
    left_out: int = 0
    """Number of further pools, which are not read."""

    @property
    def to_decode(self) -> int:
        """Return how many bytes `offer` must still decode."""
        if "offer" in self.__dict__:
            return 0
        return sum(len(part.devices) + len(part.counters) for pool in self.pools for part in pool.slices)

    @cached_property
    def offer(self) -> NodeOffer:
        """Return the GPUs that the node's slices offer."""
        problems, devices = list[str](), list[tuple[PoolKey, SliceDevice]]()
        counters = dict[PoolKey, PoolCounters]()
        if self.left_out:
            pools_there = f"it has slices of {len(self.pools) + self.left_out} pools"
            problems.append(f"{pools_there}: the first {MAX_POOLS} by driver and name are read")
        for pool in self._pools_within_limit(problems):
            usable = _read_pool(pool)
            problems += [usable.problem] if usable.problem else []
            devices += [(pool.key, device) for device in self._with_rule_taints(pool.key, usable.devices)]
            if usable.counters is not None:
                counters[pool.key] = usable.counters
        offers = dict[str, tuple[OfferedGpu, ...]]()
        for device_class in self.classes:
            problems += [device_class.problem] if device_class.problem else []
            planned, left_out = _drop_unlike_shared(*_gpus_of_class(device_class, devices))
            if left_out:
                and_more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
                problems.append(f"{left_out[0]}{and_more}: it is not planned yet")
            planned, overlap = _without_overlapping(planned, counters, self.node)
            problems += overlap
            if planned:
                offers[device_class.resource] = tuple(planned)
        merged_offer = _merged_offer(offers, problems)
        if counters:
            gpu_pools = {gpu.device.pool_key for gpu in merged_offer.devices}
            counters = {key: pool_counters for key, pool_counters in counters.items() if key in gpu_pools}
        attributes = _agreed_attributes(merged_offer.devices, devices)
        return replace(
            merged_offer, agreed_attributes=attributes, counters=counters, published=bool(self.pools)
        )

    def _pools_within_limit(self, problems: list[str]) -> Iterator[PoolOnNode]:
        """Yield pools with at most MAX_DEVICES devices together. Add a problem for each other pool."""
        device_count = 0
        for pool in self.pools:
            size = sum(pool_slice.size for pool_slice in pool.slices)
            if device_count + size <= MAX_DEVICES:
                device_count += size
                yield pool
            else:
                driver, name = pool.key
                problem = f"pool {name} of {driver} has {size} devices beside {device_count} of other pools"
                problems.append(f"{problem}; at most {MAX_DEVICES} are read: nothing of it is used")

    def _with_rule_taints(self, key: PoolKey, devices: list[SliceDevice]) -> Iterator[SliceDevice]:
        """Yield the devices of a pool with the taints of DeviceTaintRules."""
        tainted_names = {rule.device for rule in self.rules if may_taint(rule, key)}
        taints = [DeviceTaint(effect=selectors.KEEPS_AWAY[0])]
        for device in devices:
            is_tainted = None in tainted_names or device.name in tainted_names
            yield msgspec.structs.replace(device, taints=taints) if is_tainted else device


def may_taint(rule: TaintedDevices, pool: PoolKey) -> bool:
    """Return whether a rule may taint devices of a pool."""
    return rule.driver in (None, pool[0]) and rule.pool in (None, pool[1])


def _read_pool(pool: PoolOnNode) -> _ReadPool:
    """Return the usable devices of a pool."""
    if pool.problem:
        return _ReadPool(pool.problem)
    pool_name = f"pool {pool.key[1]} of {pool.key[0]}"
    devices = [device for part in pool.slices if part.devices for device in _devices.decode(part.devices)]
    names = {device.name for device in devices}
    if len(names) != len(devices):
        return _ReadPool(f"{pool_name} names a device twice: nothing of it is used")
    sets = [group for part in pool.slices if part.counters for group in _counters.decode(part.counters)]
    try:
        return _ReadPool("", devices, counters_of(sets, devices))
    except _BadCountersError as error:
        return _ReadPool(f"{pool_name}: {error}: nothing of it is used")


def _gpus_of_class(
    device_class: GpuClass, devices: list[tuple[PoolKey, SliceDevice]]
) -> tuple[list[OfferedGpu], list[str]]:
    """Return the devices of a class that can be planned, and a sentence about each other device."""
    planned, left_out = list[OfferedGpu](), list[str]()
    for (driver, pool), device in devices if not device_class.problem else ():
        if selectors.are_satisfied(device_class.terms, driver, selectors.attributes(driver, device)):
            if why := _why_unsupported(device):
                left_out.append(f"device {device.name} of {driver} {why}")
            else:
                planned.append(_as_offered_gpu(driver, pool, device))
    return planned, left_out


def _drop_unlike_shared(planned: list[OfferedGpu], left_out: list[str]) -> tuple[list[OfferedGpu], list[str]]:
    """Leave out devices that claims share, unless claims share all GPUs in the same way.

    Otherwise the allocator could give a request a whole GPU where a share was planned.
    """
    sharings = {gpu.shared and (gpu.shared.name, gpu.shared.all_by_default) for gpu in planned}
    if len(sharings) < 2:
        return planned, left_out
    for gpu in planned:
        if gpu.shared is not None:
            problem = f"device {gpu.device.name} of {gpu.device.driver} may be allocated several times"
            left_out.append(f"{problem}, and other GPUs of the node may not, or by other rules")
    return [gpu for gpu in planned if gpu.shared is None], left_out


def _agreed_attributes(
    planned: tuple[OfferedGpu, ...], devices: list[tuple[PoolKey, SliceDevice]]
) -> tuple[Column, ...]:
    """Return the attributes on which some of the planned devices agree, and all attributes of partitions.

    The allocator compares values of one type. An attribute without a domain has that of its driver.
    """
    attributes_of = {(*key, device.name): device.attributes or {} for key, device in devices}
    values: dict[str, dict[int, Hashable]] = {}
    for index, gpu in enumerate(planned):
        device = gpu.device
        for name, attribute in attributes_of[device.driver, device.pool, device.name].items():
            value = (attribute.string, attribute.int_, attribute.bool_, attribute.version)
            if value != (None, None, None, None):
                values.setdefault("/".join(selectors.qualified_name(device.driver, name)), {})[index] = value
    columns = []
    for name, by_device in sorted(values.items()):
        codes = {value: code for code, value in enumerate(dict.fromkeys(by_device.values()))}
        if len(codes) < len(by_device) or PARTITION.fullmatch(name):
            column = tuple(
                codes[by_device[index]] if index in by_device else -1 for index in range(len(planned))
            )
            columns.append((name, column))
    interned_columns: tuple[Column, ...] = _intern(tuple(columns))
    return interned_columns


class _BadCountersError(ValueError):
    """Its text says why the in-tree allocator would use no device of a pool."""


def counters_of(sets: list[CounterSet], devices: list[SliceDevice]) -> PoolCounters | None:
    """Return the counters that devices of a pool consume; None if no device consumes counters.

    Counter sets are in slices of their own, which often belong to no single node. If devices consume counters
    that do not exist, the in-tree allocator uses no device of the pool.

    Raises:
        _BadCountersError: The counters are not those that the devices name.
    """
    names = [group.name for group in sets]
    if len(names) != len(set(names)):
        raise _BadCountersError("it has two counter sets of one name")
    available = {
        (group.name, counter): _amount(value)
        for group in sets
        for counter, value in (group.counters or {}).items()
    }
    if not any(device.consumes_counters for device in devices):
        return None
    number = {key: index for index, key in enumerate(available)}
    for device in devices:
        for use in device.consumes_counters or ():
            if use.counter_set not in names:
                problem = f"device {device.name} consumes counters of set {use.counter_set}"
                raise _BadCountersError(f"{problem}, which is not there")
    needs = tuple(
        (device.name, _counters_needed(device, device.consumes_counters, number))
        for device in devices
        if device.consumes_counters
    )
    counters: PoolCounters = _intern(PoolCounters(tuple(available.values()), needs))
    return counters


def _without_overlapping(
    offered: list[OfferedGpu], counters: dict[PoolKey, PoolCounters], node: str
) -> tuple[list[OfferedGpu], list[str]]:
    """Return the devices that do not overlap, and a sentence for each pool with overlapping devices.

    Devices overlap if a counter does not suffice for all of them, as for a GPU and its partitions.
    """
    problems = list[str]()
    for key, pool_counters in counters.items():
        names = [gpu.device.name for gpu in offered if gpu.device.pool_key == key]
        exceeded = pool_counters.exceeded_by(names)
        if not exceeded:
            continue
        needs = dict(pool_counters.needs)
        overlapping = [
            name for name in names if any(counter in exceeded for counter, _ in needs.get(name, ()))
        ]
        overlapping_keys = {(key, name) for name in overlapping}
        offered = [gpu for gpu in offered if (gpu.device.pool_key, gpu.device.name) not in overlapping_keys]
        shown = ", ".join(overlapping[:_SHOWN]) + (
            f" and {len(overlapping) - _SHOWN} more" if len(overlapping) > _SHOWN else ""
        )
        problems.append(
            f"node {node}: of pool {key[1]} of {key[0]} the devices {shown} overlap, since there are too few "
            "counters for all of them: these are not planned. Their DeviceClass should match whole GPUs alone"
        )
    return offered, problems


def _counters_needed(
    device: SliceDevice, uses: Iterable[CounterUse], number: dict[tuple[str, str], int]
) -> Need:
    amounts = list[tuple[int, int]]()
    for use in uses:
        for name, value in (use.counters or {}).items():
            counter_index = number.get((use.counter_set, name))
            if counter_index is None:
                problem = f"device {device.name} consumes counter {name} of set {use.counter_set}"
                raise _BadCountersError(f"{problem}, which is not there")
            amounts.append((counter_index, _amount(value)))
    return tuple(amounts)


def _amount(value: CounterValue) -> int:
    return quantities.billionths(value.value[:_LONGEST]) or 0


@lru_cache(maxsize=KINDS_OF_NODES)
def _intern(value: V) -> V:
    """Return the first of all equal values, because thousands of nodes have equal values."""
    return value


def _merged_offer(offers: dict[str, tuple[OfferedGpu, ...]], problems: list[str]) -> NodeOffer:
    """Return the devices of the first resource, with all resources that have the same devices."""
    if not offers:
        return NodeOffer(problems=tuple(problems))
    first, devices = next(iter(offers.items()))
    same = frozenset(name for name, other_devices in offers.items() if other_devices == devices)
    if other_devices := sorted(offers.keys() - same):
        problems.append(
            f"{first} and {other_devices[0]} are different devices of the node: {first} alone is planned"
        )
    return NodeOffer(same, devices, tuple(problems))


def _as_offered_gpu(driver: str, pool: str, device: SliceDevice) -> OfferedGpu:
    attributes = selectors.attributes(driver, device)
    index = attributes.get((driver, "index"))
    addresses = (
        selectors.text_value(attributes.get(selectors.qualified_name(driver, name))) for name in _PCI
    )
    return OfferedGpu(
        Device(driver, pool, device.name),
        any(map(selectors.keeps_away, device.taints or ())),
        index if type(index) is int else -1,
        selectors.text_value(attributes.get((driver, "uuid"))),
        next((address.lower() for address in addresses if address), ""),
        shares.of_device(device) if device.allow_multiple_allocations else None,
    )


def _why_unsupported(device: SliceDevice) -> str:
    if device.allow_multiple_allocations and shares.of_device(device) is None:
        return "may be allocated several times, and has more capacities than memory, or too little of it"
    return "has binding conditions" if device.binding_conditions else ""
