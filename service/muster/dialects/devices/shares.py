"""Capacity of devices that several claims share (DRAConsumableCapacity) → memory of shared GPUs, in GiB.

A device that may be allocated several times is a shared GPU if memory is its only capacity. A request would
also consume each capacity that it does not name: the default of the capacity's policy, or all of the
capacity. Requested memory is rounded up as the device's `requestPolicy` says, and then to whole GiB, the unit
in which memory of shared GPUs is planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from muster.dialects import quantities
from muster.dialects.devices.objects import (
    AllocatedDevice,
    CapacityRequirements,
    DeviceCapacity,
    SliceDevice,
    ValidRange,
)
from muster.dialects.quantities import Quantity
from muster.domain.allocation import MAX_GPUS
from muster.domain.causes.ill_formed import BadValue
from muster.domain.node import GIB
from muster.domain.request import Slice

MAX_UNITS = 1 << 20
"""Largest number of GiB of one GPU. A larger number is a mistake."""
_MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a device's policy rounds up a requested amount, in bytes."""

    minimum: Fraction = Fraction(0)
    step: Fraction = Fraction(0)
    """Amounts are rounded up to `minimum` plus a multiple of the step. With step 0, any amount from `minimum`
    on is allowed."""
    values: tuple[Fraction, ...] = ()
    """Amounts are rounded up to the next of these values, if the policy lists values."""

    def __call__(self, amount: Fraction) -> Fraction:
        """Return the amount that a claim consumes if it requests `amount`.

        The in-tree plugin decides whether the claim may consume it.
        """
        if self.values:
            return next((value for value in self.values if value >= amount), amount)
        above_minimum = max(Fraction(0), amount - self.minimum)
        return self.minimum + (
            math.ceil(above_minimum / self.step) * self.step if self.step else above_minimum
        )


NOT_ROUNDED = Rounding()


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The memory of a device that claims may share."""

    name: str
    """Name of the capacity."""
    units: int
    """GiB of the capacity."""
    all_by_default: bool
    """Whether a request that does not name the capacity takes all of it."""


def of_device(device: SliceDevice) -> SharedMemory | None:
    """Return the memory that claims may share of a device; None if it has other capacities."""
    (name, capacity), *other_capacities = (device.capacity or {"": DeviceCapacity()}).items()
    value = quantities.parse(capacity.value)
    if other_capacities or not _is_memory(name) or value is None or value < GIB:
        return None
    policy = capacity.request_policy
    default = quantities.parse(policy.default) if policy is not None and policy.default is not None else value
    return SharedMemory(name, min(MAX_UNITS, int(value // GIB)), default is not None and default >= value)


def rounding_of(device: SliceDevice) -> tuple[str, Rounding] | None:
    """Return (name of the capacity, rounding) of the memory that claims share; None if they share none."""
    if not device.allow_multiple_allocations or (shared := of_device(device)) is None:
        return None
    policy = (device.capacity or {})[shared.name].request_policy
    if policy is None:
        return shared.name, NOT_ROUNDED
    valid_range = policy.valid_range or ValidRange()
    values = (quantities.parse(value) for value in policy.valid_values or ())
    valid_values = tuple(sorted(value for value in values if value is not None))
    return shared.name, Rounding(
        _not_negative(valid_range.min), _not_negative(valid_range.step), valid_values
    )


def slice_resource(name: str, gpu_resource: str) -> str:
    """Return the name of the resource for slices of this capacity (`Slice.resource`)."""
    return f"{name} of {gpu_resource}"


def taken_bytes(result: AllocatedDevice) -> int:
    """Return the bytes that a claim takes of a device's memory; 0 if it takes the whole device."""
    consumed = result.consumed_capacity or {}
    if result.share_id is None or len(consumed) != 1:
        return 0
    ((name, amount),) = consumed.items()
    value = quantities.parse(amount)
    return max(1, math.ceil(value)) if _is_memory(name) and value is not None and value >= 0 else 0


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A pod's request for GPUs."""

    field: str
    """Name of the claim and of the request, for sentences."""
    resource: str
    count: int
    """Number of GPUs; 0 for all GPUs of a node."""
    capacity: CapacityRequirements | None


def of_pod(
    object_name: str, requests: Sequence[GpuRequest], roundings: Iterable[tuple[str, Rounding]]
) -> tuple[Slice | None, tuple[BadValue, ...]]:
    """Return the memory of shared GPUs that a pod requests, or the causes for which it can't be planned.

    The allocator gives a request different devices, but two requests may get the same device. So only one
    request is allowed.

    `roundings` are (name of the capacity, rounding) of all devices. The largest result counts, so that the
    plan never takes less than the allocator.
    """
    first = next((request for request in requests if request.capacity and request.capacity.requests), None)
    if first is None:
        return None, ()
    capacities = (first.capacity and first.capacity.requests) or {}
    if (wrong := _why_not_planned(object_name, first, capacities, len(requests))) is not None:
        return None, (wrong,)
    ((name, amount),) = capacities.items()
    value = quantities.parse(amount)
    if value is None or not 0 <= value <= MAX_UNITS * GIB:
        field, limit = f"{first.field}, capacity.requests[{name}]", f"at most {MAX_UNITS}Gi"
        return None, (BadValue(object_name, field, str(amount), f"memory of one GPU, {limit}"),)
    rounded = max((rounding(value) for capacity, rounding in roundings if capacity == name), default=value)
    return Slice(max(1, math.ceil(rounded / GIB)), first.count, slice_resource(name, first.resource)), ()


def _why_not_planned(
    object_name: str, request: GpuRequest, capacities: Mapping[str, Quantity], requests: int
) -> BadValue | None:
    """Return the cause for which a request with capacity can't be planned, whatever its amount; else None."""
    if request.count > MAX_GPUS:
        return BadValue(
            object_name, f"{request.field}, count", str(request.count), f"GPUs of one node: 1 to {MAX_GPUS}"
        )
    expected = ""
    if not request.count:
        expected = "none with allocationMode All: this is not planned yet"
    elif requests > 1:
        expected = "none beside other requests for GPUs in the pod"
    elif len(capacities) > 1 or not all(map(_is_memory, capacities)):
        expected = "memory alone: other capacities are not planned yet"
    names = ", ".join(sorted(capacities))
    return BadValue(object_name, f"{request.field}, capacity", names, expected) if expected else None


def _not_negative(quantity: Quantity | None) -> Fraction:
    value = quantities.parse(quantity) if quantity is not None else None
    return max(Fraction(0), value or Fraction(0))


def _is_memory(name: str) -> bool:
    return name.rpartition("/")[2] == _MEMORY
