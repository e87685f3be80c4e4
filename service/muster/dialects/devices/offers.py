"""The GPUs that the ResourceSlices of one node offer: their numbers, and the attributes on which they agree.

GPUs have the numbers of the node's matrix. The annotation `gpu.topology/gpu-uuids` of the node lists their
uuids in the matrix's order, with commas. Without the annotation, their `index` attribute is the number.
Without this attribute, they are numbered by PCI address, as `nvidia-smi topo -m` does, or by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from muster.dialects.devices import shares
from muster.dialects.devices.shares import SharedMemory
from muster.domain.allocation import MAX_BYTES, MAX_GPUS
from muster.domain.node import Device, PoolCounters, PoolKey
from muster.domain.topology import mask_of
from muster.domain.words import natural_key

PARTITION = re.compile(r"gpu\.nvidia\.com/partition([0-9]{1,3})")
"""The attributes that NVIDIA's driver publishes with its gate FabricManagerPartitioning."""
KINDS_OF_NODES = 256
"""Number of different nodes whose agreeing attributes are kept. The attributes of a node with 128 GPUs may
have 100 KiB, and the node may publish new attributes all the time."""


@dataclass(frozen=True, slots=True)
class OfferedGpu:
    """A device that can be planned as a GPU, with the facts that determine its number."""

    device: Device
    tainted: bool
    index: int
    """Its `index` attribute; -1 if it has none."""
    uuid: str
    address: str
    """Its PCI address."""
    shared: SharedMemory | None = None
    """The memory that several claims may share; None if it is given whole."""


Column = tuple[str, tuple[int, ...]]
"""The name of an attribute, and a number for each device. Devices with equal numbers agree; −1 means that the
device does not have the attribute."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The GPUs that one node offers."""

    resources: frozenset[str] = frozenset()
    """The extended resources for which pods get these devices."""
    devices: tuple[OfferedGpu, ...] = ()
    problems: tuple[str, ...] = ()
    agreed_attributes: tuple[Column, ...] = ()
    """The attributes on which some of the devices agree."""
    counters: Mapping[PoolKey, PoolCounters] = field(default_factory=dict)
    """The counters of pools whose devices share them."""
    published: bool = False
    """Whether a driver that may serve GPUs publishes ResourceSlices for the node, even if without GPUs."""

    @property
    def takes_whole_devices(self) -> bool:
        """Return whether a request without capacity takes whole devices."""
        return all(gpu.shared is None or gpu.shared.all_by_default for gpu in self.devices)

    @property
    def memory_name(self) -> str:
        """Return the name of the capacity that claims share; "" if they share none."""
        shared = self.devices[0].shared if self.devices else None
        return shared.name if shared is not None else ""

    @property
    def memory_resources(self) -> frozenset[str]:
        """Return the names by which claims ask for memory of these devices."""
        name = self.memory_name
        return frozenset(shares.slice_resource(name, gpu_resource) for gpu_resource in self.resources if name)

    def memory(self, devices: tuple[Device | None, ...]) -> tuple[int, ...]:
        """Return the GiB that claims may share of each GPU; () if they share no GPU.

        `devices` are as `number_gpus` returns them.
        """
        units = {gpu.device: gpu.shared.units for gpu in self.devices if gpu.shared is not None}
        return tuple(units.get(gpu, 0) if gpu else 0 for gpu in devices) if units else ()


def number_gpus(
    offer: NodeOffer, uuids: str | None, key: str
) -> tuple[tuple[Device | None, ...], int, list[str]]:
    """Return the node's GPUs by number, the bit mask of unhealthy GPUs, and problems.

    `uuids` is the value of the node's annotation `key`. A GPU is unhealthy if it is tainted, or if a number
    has no GPU.
    """
    order, problems = _read_uuids(uuids, key)
    by_uuid = {device.uuid: device for device in offer.devices if device.uuid}
    if order and len(by_uuid) == len(offer.devices) and by_uuid.keys() <= set(order):
        by_number = [by_uuid.get(uuid) for uuid in order]
    else:
        if order:
            problems.append(f"{key} does not name all GPUs of the ResourceSlices: it is not used")
        by_number = _order_by_attributes(offer.devices)
    if len(by_number) > MAX_GPUS:
        problems.append(f"its ResourceSlices have {len(by_number)} GPUs; {MAX_GPUS} of them are used")
        by_number = by_number[:MAX_GPUS]
    unhealthy = mask_of([number for number, gpu in enumerate(by_number) if gpu is None or gpu.tainted])
    return tuple(gpu.device if gpu is not None else None for gpu in by_number), unhealthy, problems


def partitions(groups: Mapping[str, tuple[int, ...]], gpus: int) -> tuple[tuple[int, str], ...]:
    """Return the sizes of the partitions in which NVIDIA's driver starts pods (`Node.partitions`).

    A claim can ask for a partition by `matchAttribute`. An extended resource can't, so its pod would hang on
    the node. `groups` is the result of the function `groups`, and `gpus` the node's number of GPUs.
    """
    name_by_size = {}
    for name, masks in groups.items():
        size = PARTITION.fullmatch(name)
        if size is not None:
            is_all_gpus = masks == ((1 << gpus) - 1,)
            name_by_size[int(size[1])] = "" if is_all_gpus and int(size[1]) == gpus else name
    return tuple(sorted(name_by_size.items()))


def groups(offer: NodeOffer, devices: tuple[Device | None, ...]) -> dict[str, tuple[int, ...]]:
    """Return attribute → bit masks of GPUs that agree on it. `devices` are as `number_gpus` returns them."""
    numbers = {device: number for number, device in enumerate(devices) if device is not None}
    numbers_of_gpus = tuple(numbers.get(gpu.device, -1) for gpu in offer.devices)
    return _cached_groups(offer.agreed_attributes, numbers_of_gpus)


@lru_cache(maxsize=KINDS_OF_NODES)
def _cached_groups(agreed: tuple[Column, ...], numbers: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the groups as above, from a cache: most nodes of a cluster have the same groups."""
    masks_by_name = {}
    for name, column in agreed:
        masks: dict[int, int] = {}
        for value, number in zip(column, numbers, strict=True):
            if value >= 0 and number >= 0:
                masks[value] = masks.get(value, 0) | 1 << number
        masks_by_name[name] = tuple(masks.values())
    return masks_by_name


def _order_by_attributes(devices: tuple[OfferedGpu, ...]) -> list[OfferedGpu | None]:
    indices = {gpu.index: gpu for gpu in devices}
    if len(indices) == len(devices) and all(0 <= index < MAX_GPUS for index in indices):
        return [indices.get(index) for index in range(max(indices, default=-1) + 1)]
    by_address = all(gpu.address for gpu in devices)
    ordered = sorted(
        devices,
        key=lambda gpu: (gpu.address if by_address else "", gpu.device.pool, natural_key(gpu.device.name)),
    )
    return [*ordered]


def _read_uuids(text: str | None, key: str) -> tuple[list[str], list[str]]:
    if text is None:
        return [], []
    uuids = [uuid.strip() for uuid in text.split(",")] if len(text) <= MAX_BYTES else []
    if all(uuids) and 0 < len(uuids) == len(set(uuids)) <= MAX_GPUS:
        return uuids, []
    return [], [f"{key} is no list of different uuids, as in GPU-1,GPU-2: it is not used"]
