"""What DRA drivers publish on one node → the GPUs that they offer there.

This takes long where a node publishes much. So it is asked of an immutable value, which any thread may read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import msgspec

from muster.dialects.devices import selectors, shares
from muster.dialects.devices.counters import BadCountersError, apart, counters_of
from muster.dialects.devices.objects import CounterSet, DeviceTaint, SliceDevice, TaintedDevices
from muster.dialects.devices.offers import KINDS_OF_NODES, PARTITION, Column, Offer, Offered
from muster.dialects.devices.pools import Gathered
from muster.dialects.devices.selectors import Term
from muster.dialects.nodes.bounds import MAX_DEVICES, MAX_POOLS
from muster.domain.counters import PoolCounters
from muster.domain.node import Device, PoolKey

_PCI = ("resource.kubernetes.io/pciBusID", "pciBusID", "pciAddr")

_devices = msgspec.json.Decoder(list[SliceDevice])
_counters = msgspec.json.Decoder(list[CounterSet])


@dataclass(frozen=True, slots=True)
class Class:
    """A DeviceClass whose extended resource counts GPUs; `problem` if its selectors can't be read."""

    name: str
    resource: str
    created: str
    terms: tuple[Term, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Pool:
    """What can be used of a pool on a node, and why nothing can; "" if it can."""

    problem: str
    devices: list[SliceDevice] = field(default_factory=list)
    counters: PoolCounters | None = None


@dataclass(frozen=True)
class Published:
    """What counts of the slices of a node: `pools` of drivers that may serve GPUs, in order, `classes` by
    resource, and `rules` with what DeviceTaintRules keep pods away from. `left_out` are further pools."""

    node: str
    pools: tuple[Gathered, ...] = ()
    classes: tuple[Class, ...] = ()
    rules: tuple[TaintedDevices, ...] = ()
    left_out: int = 0

    @property
    def to_decode(self) -> int:
        """Return how many bytes `offer` has still to decode."""
        if "offer" in self.__dict__:
            return 0
        return sum(len(each.devices) + len(each.counters) for of in self.pools for each in of.slices)

    @cached_property
    def offer(self) -> Offer:
        """Return what the node's slices offer as GPUs."""
        problems, devices = list[str](), list[tuple[PoolKey, SliceDevice]]()
        counters = dict[PoolKey, PoolCounters]()
        if self.left_out:
            said = f"it has slices of {len(self.pools) + self.left_out} pools"
            problems.append(f"{said}: the first {MAX_POOLS} by driver and name are read")
        for each in self._bounded(problems):
            pool = _read(each)
            problems += [pool.problem] if pool.problem else []
            devices += [(each.key, device) for device in self._tainted(each.key, pool.devices)]
            if pool.counters is not None:
                counters[each.key] = pool.counters
        offers = dict[str, tuple[Offered, ...]]()
        for by in self.classes:
            problems += [by.problem] if by.problem else []
            chosen, left_out = _alike(*_matching(by, devices))
            problems += [f"{left_out[0]}{_more(left_out)}: it is not planned yet"] if left_out else []
            chosen, overlap = apart(chosen, counters, self.node)
            problems += overlap
            if chosen:
                offers[by.resource] = tuple(chosen)
        joined = _joined(offers, problems)
        if counters:
            of_gpus = {each.device.pool_key for each in joined.devices}
            counters = {key: found for key, found in counters.items() if key in of_gpus}
        agreed = _agreed(joined.devices, devices)
        return replace(joined, agreed=agreed, counters=counters, published=bool(self.pools))

    def _bounded(self, problems: list[str]) -> Iterator[Gathered]:
        """Yield the pools that are read: those with which the node has no more than MAX_DEVICES."""
        there = 0
        for each in self.pools:
            size = sum(of.size for of in each.slices)
            if there + size <= MAX_DEVICES:
                there += size
                yield each
            else:
                driver, pool = each.key
                said = f"pool {pool} of {driver} has {size} devices beside {there} of other pools"
                problems.append(f"{said}; at most {MAX_DEVICES} are read: nothing of it is used")

    def _tainted(self, key: PoolKey, devices: list[SliceDevice]) -> Iterator[SliceDevice]:
        """Return the devices of a pool with the taints of DeviceTaintRules."""
        named = {rule.device for rule in self.rules if is_of(rule, key)}
        taints = [DeviceTaint(effect=selectors.KEEPS_AWAY[0])]
        for device in devices:
            is_tainted = None in named or device.name in named
            yield msgspec.structs.replace(device, taints=taints) if is_tainted else device


def is_of(rule: TaintedDevices, pool: PoolKey) -> bool:
    """Return whether a rule may taint devices of a pool."""
    return rule.driver in (None, pool[0]) and rule.pool in (None, pool[1])


def _read(of: Gathered) -> _Pool:
    """Return what can be used of a pool."""
    if of.problem:
        return _Pool(of.problem)
    said = f"pool {of.key[1]} of {of.key[0]}"
    devices = [device for each in of.slices if each.devices for device in _devices.decode(each.devices)]
    names = {device.name for device in devices}
    if len(names) != len(devices):
        return _Pool(f"{said} names a device twice: nothing of it is used")
    sets = [found for each in of.slices if each.counters for found in _counters.decode(each.counters)]
    try:
        return _Pool("", devices, counters_of(sets, devices))
    except BadCountersError as error:
        return _Pool(f"{said}: {error}: nothing of it is used")


def _matching(by: Class, devices: list[tuple[PoolKey, SliceDevice]]) -> tuple[list[Offered], list[str]]:
    """Return the devices of a class that can be planned, and sentences about those that can't be yet."""
    chosen, left_out = list[Offered](), list[str]()
    for (driver, pool), device in devices if not by.problem else ():
        if selectors.satisfied(by.terms, driver, selectors.attributes(driver, device)):
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
                values.setdefault("/".join(selectors.qualified(device.driver, name)), {})[at] = value
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


def _offered(driver: str, pool: str, device: SliceDevice) -> Offered:
    said = selectors.attributes(driver, device)
    index = said.get((driver, "index"))
    addresses = (selectors.text(said.get(selectors.qualified(driver, name))) for name in _PCI)
    return Offered(
        Device(driver, pool, device.name),
        any(map(selectors.keeps_away, device.taints or ())),
        index if type(index) is int else -1,
        selectors.text(said.get((driver, "uuid"))),
        next((address.lower() for address in addresses if address), ""),
        shares.of_device(device) if device.allow_multiple_allocations else None,
    )


def _unsupported(device: SliceDevice) -> str:
    if device.allow_multiple_allocations and shares.of_device(device) is None:
        return "may be allocated several times, and has more capacities than memory, or too little of it"
    return "has binding conditions" if device.binding_conditions else ""


def _more(found: list[str]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
