"""Shared counters of a ResourceSlice pool → which devices can't be allocated together.

Counter sets stand in slices of their own, often of no single node. The in-tree allocator uses nothing of a
pool whose devices consume counters that are not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from muster.dialects import quantities
from muster.dialects.devices.objects import CounterSet, CounterUse, CounterValue, SliceDevice
from muster.dialects.devices.offers import KINDS_OF_NODES, Offered
from muster.domain.counters import Need, PoolCounters
from muster.domain.node import PoolKey

_LONGEST = 64
"""Characters of an amount. A quantity of the API server is shorter."""
_SHOWN = 4
"""How many devices a sentence names."""


class BadCountersError(ValueError):
    """Says why the in-tree allocator would use nothing of a pool."""


def counters_of(sets: list[CounterSet], devices: list[SliceDevice]) -> PoolCounters | None:
    """Return what devices of a pool consume; None if none of them consumes counters.

    Raise BadCountersError if the counters are not those that the devices name.
    """
    names = [group.name for group in sets]
    if len(names) != len(set(names)):
        raise BadCountersError("it has two counter sets of one name")
    available = {
        (group.name, counter): _amount(value)
        for group in sets
        for counter, value in (group.counters or {}).items()
    }
    if not any(device.consumes_counters for device in devices):
        return None
    number = {key: at for at, key in enumerate(available)}
    for device in devices:
        for use in device.consumes_counters or ():
            if use.counter_set not in names:
                problem = f"device {device.name} consumes counters of set {use.counter_set}"
                raise BadCountersError(f"{problem}, which is not there")
    needs = tuple(
        (device.name, _need(device, device.consumes_counters, number))
        for device in devices
        if device.consumes_counters
    )
    return _shared(PoolCounters(tuple(available.values()), needs))


def apart(
    offered: list[Offered], counters: dict[PoolKey, PoolCounters], node: str
) -> tuple[list[Offered], list[str]]:
    """Return the devices without those that overlap, and a sentence for each pool that has such.

    Devices overlap if there is not enough of a counter for all of them, as of a GPU and its partitions.
    """
    problems = list[str]()
    for key, of_pool in counters.items():
        names = [gpu.device.name for gpu in offered if gpu.device.pool_key == key]
        exceeded = of_pool.exceeded_by(names)
        if not exceeded:
            continue
        needs = dict(of_pool.needs)
        out = [name for name in names if any(at in exceeded for at, _ in needs.get(name, ()))]
        gone = {(key, name) for name in out}
        offered = [gpu for gpu in offered if (gpu.device.pool_key, gpu.device.name) not in gone]
        shown = ", ".join(out[:_SHOWN]) + (f" and {len(out) - _SHOWN} more" if len(out) > _SHOWN else "")
        problems.append(
            f"node {node}: of pool {key[1]} of {key[0]} the devices {shown} overlap, since there are too few "
            "counters for all of them: these are not planned. Their DeviceClass should match whole GPUs alone"
        )
    return offered, problems


def _need(device: SliceDevice, uses: Iterable[CounterUse], number: dict[tuple[str, str], int]) -> Need:
    amounts = list[tuple[int, int]]()
    for use in uses:
        for name, value in (use.counters or {}).items():
            at = number.get((use.counter_set, name))
            if at is None:
                problem = f"device {device.name} consumes counter {name} of set {use.counter_set}"
                raise BadCountersError(f"{problem}, which is not there")
            amounts.append((at, _amount(value)))
    return tuple(amounts)


def _amount(value: CounterValue) -> int:
    return quantities.billionths(value.value[:_LONGEST]) or 0


@lru_cache(maxsize=KINDS_OF_NODES)
def _shared(counters: PoolCounters) -> PoolCounters:
    """Return the first of all equal arguments, since thousands of nodes have equal ones."""
    return counters
