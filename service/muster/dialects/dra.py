"""ResourceSlices and DeviceClasses → the GPUs that a DRA driver serves on each node.

A pool counts with the slices of its highest generation, and only if all of them are there: kube-scheduler's
allocator uses nothing of another pool. Devices of a DeviceClass are GPUs if its extended resource is one of
the GPU resources of the settings. The newest class of a resource counts, as for kube-scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import msgspec

from muster.dialects import dra_attributes, dra_counters, selectors, shares
from muster.dialects.dra_attributes import KEEPS_AWAY
from muster.dialects.dra_counters import BadCountersError
from muster.dialects.dra_objects import (
    CounterSet,
    DeviceClassObject,
    DeviceTaint,
    DeviceTaintRule,
    ResourceSlice,
    SliceDevice,
    SliceSpec,
    TaintedDevices,
)
from muster.dialects.dra_offer import KINDS_OF_NODES, PARTITION, Column, Offer, Offered
from muster.dialects.selectors import Term, UnreadableSelectorError
from muster.dialects.settings import Settings
from muster.dialects.shares import Rounding
from muster.domain.counters import PoolCounters
from muster.domain.node import Device, PoolKey

_PCI = ("resource.kubernetes.io/pciBusID", "pciBusID", "pciAddr")

_encoder = msgspec.json.Encoder()
_devices = msgspec.json.Decoder(list[SliceDevice])
_counters = msgspec.json.Decoder(list[CounterSet])

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Class:
    """A DeviceClass whose extended resource counts GPUs; `problem` if its selectors can't be read."""

    name: str
    resource: str
    created: str
    terms: tuple[Term, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Slice:
    """A ResourceSlice. Its devices stay encoded: decoded ones of 5,000 nodes would take 100 MB. One with
    counters has no devices, and counts for the pool whatever nodes it names: its node is ""."""

    key: PoolKey
    generation: int
    count: int
    node: str
    devices: bytes
    roundings: frozenset[tuple[str, Rounding]] = frozenset()
    """Of the memory that claims share of its devices, by the capacity's name."""
    counters: bytes = b""


@dataclass(frozen=True, slots=True)
class _Pool:
    """What can be used of a pool on a node, and why nothing can; "" if it can."""

    problem: str
    devices: list[SliceDevice]
    counters: PoolCounters | None = None


class Slices:
    """What DRA drivers publish in a cluster. `see_…` return the nodes whose offer may have changed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._slices: dict[str, _Slice] = {}
        self._pools: dict[PoolKey, dict[str, _Slice]] = {}
        self._on: dict[str, dict[str, PoolKey]] = {}
        """Node → slice → its pool."""
        self._classes: dict[str, _Class] = {}
        self._rules: dict[str, TaintedDevices] = {}
        """What DeviceTaintRules keep pods away from."""
        self._roundings: dict[str, Counter[tuple[str, Rounding]]] = {}
        """Of the slices of each driver, with the number of these."""
        self._offers: dict[str, Offer] = {}
        """By node, since the last change: a kubelet writes its node's status all the time."""

    def see_slice(self, name: str, obj: ResourceSlice | None) -> set[str]:
        """Take in a slice, or None if it is gone."""
        before, after = self._slices.get(name), _slice(obj.spec) if obj is not None else None
        if before == after:
            return set()
        touched = self._nodes_of(before)
        if before is not None:
            del self._slices[name]
            self._count_roundings(before, -1)
            _remove(self._pools, before.key, name)
            if before.node:
                _remove(self._on, before.node, name)
        if after is not None:
            self._slices[name] = after
            self._count_roundings(after, 1)
            self._pools.setdefault(after.key, {})[name] = after
            if after.node:
                self._on.setdefault(after.node, {})[name] = after.key
        touched |= self._nodes_of(after)
        for node in touched:
            self._offers.pop(node, None)
        drivers = {each.key[0] for each in (before, after) if each is not None}
        return touched if any(map(self.serves_gpus, drivers)) else set()

    def see_class(self, name: str, obj: DeviceClassObject | None) -> set[str]:
        """Take in a DeviceClass, or None if it is gone."""
        found = _class(obj) if obj is not None else None
        if found is not None and found.resource not in self._settings.gpu_resources:
            found = None
        if self._classes.get(name) == found:
            return set()
        if found is None:
            del self._classes[name]
        else:
            self._classes[name] = found
        self._offers.clear()
        return set(self._on)

    def see_rule(self, name: str, obj: DeviceTaintRule | None) -> set[str]:
        """Take in a DeviceTaintRule, or None if it is gone."""
        before, after = self._rules.pop(name, None), _keeps_away_from(obj)
        if after is not None:
            self._rules[name] = after
        if before == after:
            return set()
        rules = [rule for rule in (before, after) if rule is not None]
        touched = {
            each.node
            for key, found in self._pools.items()
            if any(_is_of(rule, key) for rule in rules) and self.serves_gpus(key[0])
            for each in found.values()
            if each.node
        }
        for node in touched:
            self._offers.pop(node, None)
        return touched

    def resource_of(self, name: str) -> str:
        """Return the GPU resource of a DeviceClass, "" if it has none."""
        found = self._classes.get(name)
        return found.resource if found is not None else ""

    @property
    def roundings(self) -> Collection[tuple[str, Rounding]]:
        """Return how memory that claims share is rounded up on some GPU, by the capacity's name."""
        served = (found for driver, found in self._roundings.items() if self.serves_gpus(driver))
        return set[tuple[str, Rounding]]().union(*served)

    @property
    def drivers(self) -> frozenset[str]:
        """Return the drivers that publish devices of nodes."""
        return frozenset(driver for of in self._on.values() for driver, _ in of.values())

    def offer(self, node: str) -> Offer:
        """Return what the node's slices offer as GPUs."""
        if node not in self._on or not self._classes:
            return Offer()
        if node not in self._offers:
            self._offers[node] = self._read_offer(node)
        return self._offers[node]

    def _read_offer(self, node: str) -> Offer:
        problems, devices = list[str](), list[tuple[PoolKey, SliceDevice]]()
        counters = dict[PoolKey, PoolCounters]()
        for key in sorted(set(self._on[node].values())):
            if not self.serves_gpus(key[0]):
                continue
            pool = self._pool(key, node)
            problems += [pool.problem] if pool.problem else []
            devices += [(key, device) for device in self._tainted(key, pool.devices)]
            if pool.counters is not None:
                counters[key] = pool.counters
        offers = dict[str, tuple[Offered, ...]]()
        for resource in self._settings.gpu_resources:
            if (by := self._class_for(resource)) is None:
                continue
            problems += [by.problem] if by.problem else []
            chosen, left_out = _alike(*_matching(by, devices))
            problems += [f"{left_out[0]}{_more(left_out)}: it is not planned yet"] if left_out else []
            chosen, overlap = dra_counters.apart(chosen, counters, node)
            problems += overlap
            if chosen:
                offers[resource] = tuple(chosen)
        joined = _joined(offers, problems)
        if counters:
            of_gpus = {each.device.pool_key for each in joined.devices}
            counters = {key: found for key, found in counters.items() if key in of_gpus}
        return replace(joined, agreed=_agreed(joined.devices, devices), counters=counters)

    def _count_roundings(self, of: _Slice, step: int) -> None:
        found = self._roundings.pop(of.key[0], Counter())
        found.update(dict.fromkeys(of.roundings, step))
        if left := +found:
            self._roundings[of.key[0]] = left

    def serves_gpus(self, driver: str) -> bool:
        """Return whether some class may have devices of this driver: another one may serve network cards."""
        terms = (each.terms for each in self._classes.values())
        return any(all(it.value == driver for it in found if it.attribute == ("", "")) for found in terms)

    def _pool(self, key: PoolKey, node: str) -> _Pool:
        """Return what can be used of the pool on the node."""
        slices = self._pools[key]
        newest = max(each.generation for each in slices.values())
        current = [each for _, each in sorted(slices.items()) if each.generation == newest]
        if len(current) != current[0].count:
            said = f"{len(current)} of {current[0].count} slices of generation {newest} are there"
            return _Pool(
                f"pool {key[1]} of {key[0]} is published in part ({said}): nothing of it is used", []
            )
        if any(each.node not in (node, "") for each in current):
            return _Pool(
                f"pool {key[1]} of {key[0]} has slices of several nodes, which is not planned yet", []
            )
        devices = [device for each in current if each.node for device in _devices.decode(each.devices)]
        names = {device.name for device in devices}
        if len(names) != len(devices):
            return _Pool(f"pool {key[1]} of {key[0]} names a device twice: nothing of it is used", [])
        sets = [found for each in current if each.counters for found in _counters.decode(each.counters)]
        try:
            return _Pool("", devices, dra_counters.read(sets, devices))
        except BadCountersError as error:
            return _Pool(f"pool {key[1]} of {key[0]}: {error}: nothing of it is used", [])

    def _tainted(self, key: PoolKey, devices: list[SliceDevice]) -> Iterator[SliceDevice]:
        """Return the devices of a pool with the taints of DeviceTaintRules."""
        named = {rule.device for rule in self._rules.values() if _is_of(rule, key)}
        taints = [DeviceTaint(effect=KEEPS_AWAY[0])]
        for device in devices:
            is_tainted = None in named or device.name in named
            yield msgspec.structs.replace(device, taints=taints) if is_tainted else device

    def _class_for(self, resource: str) -> _Class | None:
        """Return the class of an extended resource: the newest, and of equally new ones the first by name."""
        found = sorted(each.name for each in self._classes.values() if each.resource == resource)
        return max((self._classes[name] for name in found), key=lambda each: each.created, default=None)

    def _nodes_of(self, each: _Slice | None) -> set[str]:
        """Return the nodes of all slices of the pool: the pool is complete or not for all of them."""
        if each is None:
            return set()
        return ({other.node for other in self._pools.get(each.key, {}).values()} | {each.node}) - {""}


def _matching(by: _Class, devices: list[tuple[PoolKey, SliceDevice]]) -> tuple[list[Offered], list[str]]:
    """Return the devices of a class that can be planned, and sentences about those that can't be yet."""
    chosen, left_out = list[Offered](), list[str]()
    for (driver, pool), device in devices if not by.problem else ():
        if selectors.satisfied(by.terms, driver, dra_attributes.attributes(driver, device)):
            if why := _unsupported(device):
                left_out.append(f"device {device.name} of {driver} {why}")
            else:
                chosen.append(_offered(driver, pool, device))
    return chosen, left_out


def _alike(chosen: list[Offered], left_out: list[str]) -> tuple[list[Offered], list[str]]:
    """Leave out devices that claims share, unless claims share all in the same way. Otherwise a request would
    get a whole GPU on some of them."""
    ways = {each.shared and (each.shared.name, each.shared.whole) for each in chosen}
    if len(ways) < 2:
        return chosen, left_out
    for each in chosen:
        if each.shared is not None:
            said = f"device {each.device.name} of {each.device.driver} may be allocated several times"
            left_out.append(f"{said}, and other GPUs of the node may not, or by other rules")
    return [each for each in chosen if each.shared is None], left_out


def _agreed(chosen: tuple[Offered, ...], devices: list[tuple[PoolKey, SliceDevice]]) -> tuple[Column, ...]:
    """Return the attributes on which some of the chosen devices agree, and all that tell partitions. The
    allocator compares values of one type. It knows an attribute without a domain by that of its driver."""
    found = {(*key, device.name): device.attributes or {} for key, device in devices}
    values: dict[str, dict[int, Hashable]] = {}
    for at, each in enumerate(chosen):
        device = each.device
        for name, said in found[device.driver, device.pool, device.name].items():
            value = (said.string, said.int_, said.bool_, said.version)
            if value != (None, None, None, None):
                values.setdefault("/".join(dra_attributes.qualified(device.driver, name)), {})[at] = value
    columns = []
    for name, by_device in sorted(values.items()):
        codes = {value: code for code, value in enumerate(dict.fromkeys(by_device.values()))}
        if len(codes) < len(by_device) or PARTITION.fullmatch(name):
            column = tuple(codes[by_device[at]] if at in by_device else -1 for at in range(len(chosen)))
            columns.append((name, column))
    return _shared(tuple(columns))


@lru_cache(maxsize=KINDS_OF_NODES)
def _shared(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the first of all equal arguments, since thousands of nodes have equal ones."""
    return columns


def _remove(index: dict[K, dict[str, V]], key: K, name: str) -> None:
    del index[key][name]
    if not index[key]:
        del index[key]


def _joined(offers: dict[str, tuple[Offered, ...]], problems: list[str]) -> Offer:
    """One set of devices counts: that of the first resource, and of others that have the same."""
    if not offers:
        return Offer(problems=tuple(problems))
    first, devices = next(iter(offers.items()))
    same = frozenset(name for name, others in offers.items() if others == devices)
    if others := sorted(offers.keys() - same):
        problems.append(
            f"{first} and {others[0]} are different devices of the node: {first} alone is planned"
        )
    return Offer(same, devices, tuple(problems))


def _slice(spec: SliceSpec) -> _Slice | None:
    """Return the slice; None for one with devices of no single node, since no GPU's driver publishes such."""
    pool = spec.pool
    key, count = (spec.driver, pool.name), pool.resource_slice_count
    if spec.shared_counters:
        counters = _encoder.encode(spec.shared_counters)
        return _Slice(key, pool.generation, count, "", b"", counters=counters)
    if not spec.node_name:
        return None
    roundings = frozenset(filter(None, map(shares.rounding_of, spec.devices or ())))
    devices = _encoder.encode([*map(_kept, spec.devices or ())])
    return _Slice(key, pool.generation, count, spec.node_name, devices, roundings)


def _kept(device: SliceDevice) -> SliceDevice:
    """Return the device without its capacities, if claims share none of them."""
    return device if device.allow_multiple_allocations else msgspec.structs.replace(device, capacity=None)


def _class(obj: DeviceClassObject) -> _Class:
    name, resource = obj.metadata.name, obj.spec.extended_resource_name or ""
    created = obj.metadata.creation_timestamp or ""
    expressions = [each.cel.expression for each in obj.spec.selectors or () if each.cel is not None]
    try:
        return _Class(name, resource, created, selectors.read(expressions))
    except UnreadableSelectorError as error:
        return _Class(
            name, resource, created, (), f"DeviceClass {name}: {error}; its devices are not planned"
        )


def _offered(driver: str, pool: str, device: SliceDevice) -> Offered:
    said = dra_attributes.attributes(driver, device)
    index = said.get((driver, "index"))
    addresses = (dra_attributes.text(said.get(dra_attributes.qualified(driver, name))) for name in _PCI)
    return Offered(
        Device(driver, pool, device.name),
        any(map(dra_attributes.keeps_away, device.taints or ())),
        index if type(index) is int else -1,
        dra_attributes.text(said.get((driver, "uuid"))),
        next((address.lower() for address in addresses if address), ""),
        shares.of_device(device) if device.allow_multiple_allocations else None,
    )


def _keeps_away_from(rule: DeviceTaintRule | None) -> TaintedDevices | None:
    """Return which devices a rule keeps pods away from. Without a selector it taints none."""
    if rule is None or not dra_attributes.keeps_away(rule.spec.taint):
        return None
    return rule.spec.device_selector


def _is_of(rule: TaintedDevices, pool: PoolKey) -> bool:
    return rule.driver in (None, pool[0]) and rule.pool in (None, pool[1])


def _unsupported(device: SliceDevice) -> str:
    if device.allow_multiple_allocations and shares.of_device(device) is None:
        return "may be allocated several times, and has more capacities than memory, or too little of it"
    return "has binding conditions" if device.binding_conditions else ""


def _more(found: list[str]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
