"""The answers to a kubelet: which devices it should take, and what a container gets with them.

Both hold to the booking. Where that can't be kept they refuse, since a wrong GPU is worse than a pod that
fails with a reason.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from muster.devices.booking import Booking, Refusal
from muster.devices.inventory import Gpu, Inventory, by_gpu, units_of
from muster.domain.allocation import MEM_GPUS, MEM_OF_GPU, MEM_OF_POD

CDI_KIND = "nvidia.com/gpu"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MEM_OF_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
NO_ISOLATION = "CGPU_DISABLE"
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
"""Read by HAMi-core's library: a number and a unit, for each GPU that the container sees."""
PRELOAD = "LD_PRELOAD"


@dataclass(frozen=True, slots=True)
class Isolation:
    """How memory of shared GPUs is limited. `is_on` is what the node's label says (`cgpu`).

    `library` is the path of the isolation library on the node and in containers; "" if none is installed.
    """

    is_on: bool = False
    library: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container gets: environment, CDI devices, and files of the node at the same path, read-only.

    `notes` are sentences for the pod's events.
    """

    env: dict[str, str]
    cdi: tuple[str, ...]
    mounts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def prefer(
    booking: Booking, inventory: Inventory, available: Collection[str], must: Collection[str], size: int
) -> tuple[str, ...] | Refusal:
    """Return the devices that the kubelet should take, all of the booked GPUs.

    A shorter answer would be filled up with devices of other GPUs, so there is none.
    """
    if size != booking.size:
        return Refusal(
            _sentence(booking, f"the kubelet asks for {size} devices and {booking.size} are planned")
        )
    gpus = _gpus(booking, inventory)
    if isinstance(gpus, Refusal):
        return gpus
    devices: list[str] = []
    for gpu in gpus:
        # what the container has already comes first: an init container's devices are used again
        free = [device for device in _devices(booking, gpu) if device in available]
        free.sort(key=lambda device: device not in must)
        if len(free) < (booking.units or 1):
            return Refusal(_sentence(booking, _shortage(booking, gpu, len(free))))
        devices += free[: booking.units or 1]
    if foreign := sorted(set(must) - set(devices)):
        return Refusal(_sentence(booking, f"the kubelet insists on {foreign[0]}, which is not in the plan"))
    return tuple(devices)


def allocate(
    booking: Booking, inventory: Inventory, devices: Collection[str], isolation: Isolation
) -> Grant | Refusal:
    """Return what a container gets with these devices, if they are the booked ones."""
    gpus = _gpus(booking, inventory)
    if isinstance(gpus, Refusal):
        return gpus
    counts = {uuid: len(ids) for uuid, ids in by_gpu(devices).items()}
    planned = {gpu.uuid: booking.units or 1 for gpu in gpus}
    if counts != planned:
        return Refusal(
            _sentence(booking, f"the kubelet gives {_amounts(counts)}, the plan is {_amounts(planned)}")
        )
    uuids = [gpu.uuid for gpu in gpus]
    cdi = tuple(f"{CDI_KIND}={uuid}" for uuid in uuids)
    env = {VISIBLE: ",".join(uuids)}
    if not booking.units:
        return Grant(env, cdi)
    return _share(booking, gpus, env, cdi, isolation)


def _share(
    booking: Booking, gpus: tuple[Gpu, ...], env: dict[str, str], cdi: tuple[str, ...], isolation: Isolation
) -> Grant:
    """Add what the gpushare device plugin tells a container about its GPU memory, and the limit."""
    env |= {
        MEM_GPUS: ",".join(str(gpu.index) for gpu in gpus),
        MEM_OF_POD: str(booking.pod_units * len(gpus)),
        MEM_OF_CONTAINER: str(booking.size),
        MEM_OF_GPU: str(min(gpu.memory_gib for gpu in gpus)),
    }
    if not isolation.is_on:
        return Grant(env | {NO_ISOLATION: "true"}, cdi)
    if not isolation.library:
        clause = "the node's label asks for isolated GPU memory, and no isolation library is installed there"
        return Grant(
            env, cdi, notes=(_sentence(booking, f"{clause}: the container sees all memory of its GPUs"),)
        )
    limit = {MEMORY_LIMIT: f"{booking.units}g", PRELOAD: isolation.library}
    return Grant(env | limit, cdi, mounts=(isolation.library,))


def _gpus(booking: Booking, inventory: Inventory) -> tuple[Gpu, ...] | Refusal:
    """Return the booked GPUs, in the plan's order."""
    pairs = [(index, inventory.find(index)) for index in booking.gpus]
    if missing := [str(index) for index, gpu in pairs if gpu is None]:
        return Refusal(
            _sentence(booking, f"GPU {', '.join(missing)} of the plan is not on the node any more")
        )
    gpus = tuple(gpu for _, gpu in pairs if gpu is not None)
    if broken := [gpu for gpu in gpus if not gpu.healthy]:
        return Refusal(
            _sentence(booking, f"GPU {broken[0].index} ({broken[0].uuid}) of the plan is unhealthy")
        )
    return gpus


def _devices(booking: Booking, gpu: Gpu) -> tuple[str, ...]:
    return units_of(gpu) if booking.units else (gpu.uuid,)


def _shortage(booking: Booking, gpu: Gpu, free: int) -> str:
    if not booking.units:
        return f"GPU {gpu.index} ({gpu.uuid}) of the plan is held by another container"
    return f"GPU {gpu.index} ({gpu.uuid}) has {free} GiB free and {booking.units} are planned"


def _amounts(counts: dict[str, int]) -> str:
    return ", ".join(f"{uuid} x{count}" if count > 1 else uuid for uuid, count in sorted(counts.items()))


def _sentence(booking: Booking, text: str) -> str:
    return f"container {booking.container} of pod {booking.pod} gets no GPU that is not planned: {text}"
