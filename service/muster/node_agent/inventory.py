"""The devices that a node offers to its kubelet, from the facts of its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

WHOLE, MEMORY = "aliyun.com/gpu", "aliyun.com/gpu-mem"
UNIT = "-_-"
"""Between a GPU's uuid and the number of one of its GiB, as the gpushare device plugin writes it."""
MAX_GIB = 4096
"""Largest memory of one GPU that is believed, because each GiB is a device, and the kubelet keeps all
devices."""


class InventoryError(ValueError):
    """The facts of a node's GPUs contradict each other. The text names the GPUs."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the node. `index` is its place in the order of PCI addresses, as plans count GPUs."""

    index: int
    uuid: str
    memory_gib: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class KubeletDevice:
    """One device as the kubelet knows it."""

    id: str
    healthy: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of one node, by index.

    Raises InventoryError for two GPUs with one index or one uuid, and for memory that can't be.
    """

    gpus: tuple[Gpu, ...]

    def __post_init__(self) -> None:
        for key, values in (("index", [g.index for g in self.gpus]), ("uuid", [g.uuid for g in self.gpus])):
            repeated = [value for value, count in Counter(values).items() if count > 1]
            if repeated:
                raise InventoryError(
                    f"two GPUs have the {key} {repeated[0]}: read the GPUs of the node again"
                )
        for gpu in self.gpus:
            if not 0 < gpu.memory_gib <= MAX_GIB:
                fact = f"GPU {gpu.index} ({gpu.uuid}) has {gpu.memory_gib} GiB"
                raise InventoryError(f"{fact}, which is not from 1 to {MAX_GIB}")

    def gpu_at(self, index: int) -> Gpu | None:
        """Return the GPU with this index; None without such a GPU."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def index_of(self, uuid: str) -> int | None:
        """Return the index of the GPU with this uuid; None without such a GPU."""
        return next((gpu.index for gpu in self.gpus if gpu.uuid == uuid), None)

    def devices(self, resource: str) -> tuple[KubeletDevice, ...]:
        """Return the devices of a resource: GPUs, or each GiB of their memory."""
        if resource == MEMORY:
            return tuple(KubeletDevice(unit, gpu.healthy) for gpu in self.gpus for unit in units_of(gpu))
        return tuple(KubeletDevice(gpu.uuid, gpu.healthy) for gpu in self.gpus)


def units_of(gpu: Gpu) -> tuple[str, ...]:
    """Return the devices of a GPU's memory, one for each GiB."""
    return tuple(f"{gpu.uuid}{UNIT}{number}" for number in range(gpu.memory_gib))


def uuid_of(device: str) -> str:
    """Return the uuid of the GPU that a device, of either resource, belongs to."""
    return device.partition(UNIT)[0]


def devices_by_gpu(devices: Iterable[str]) -> dict[str, list[str]]:
    """Return the devices by the uuid of their GPU, in their order."""
    by_uuid: dict[str, list[str]] = {}
    for device in devices:
        by_uuid.setdefault(uuid_of(device), []).append(device)
    return by_uuid
