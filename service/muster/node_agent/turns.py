"""The answers to a kubelet: the devices that a container should take, and the settings that it gets with
them.

Answers follow the booking. If the booking can't be kept, they refuse, because a wrong GPU is worse than a pod
that fails with a reason. `Turns` has the pod that the kubelet admits now, and the devices that the kubelet
was told to take, until it has taken them.

The kubelet admits pods one by one, and container by container. For each container it asks which devices to
take, and then takes them. Only devices that were answered are given out. There is one exception: the kubelet
does not ask again for devices that an init container of the same pod has had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from muster.domain.allocation import CDI_KIND, MEM_GPUS, MEM_OF_GPU, MEM_OF_POD
from muster.node_agent.booking import Booking, Planless, Refused, Waiter, container_in_admission
from muster.node_agent.inventory import Gpu, Inventory, devices_by_gpu, units_of

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MEM_OF_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
NO_ISOLATION = "CGPU_DISABLE"
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
"""Read by HAMi-core's library: a number and a unit, for each GPU that the container sees."""
PRELOAD = "LD_PRELOAD"


@dataclass(frozen=True, slots=True)
class Isolation:
    """How memory of shared GPUs is limited. `is_on`: the node's label (`cgpu`) asks for a limit.

    `library` is the path of the isolation library on the node and in containers; "" if none is installed.
    """

    is_on: bool = False
    library: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """The settings of a container: environment, CDI devices, and files of the node at the same path,
    read-only.

    `notes` are sentences for the pod's events.
    """

    env: dict[str, str]
    cdi: tuple[str, ...]
    mounts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def prefer(
    booking: Booking, inventory: Inventory, available: Collection[str], must: Collection[str], size: int
) -> tuple[str, ...]:
    """Return the devices that the kubelet should take, all of the booked GPUs.

    There is no shorter answer, because the kubelet would add devices of other GPUs.

    Raises:
        Refused: not all booked devices are free.
    """
    if size != booking.size:
        raise _refusal(booking, f"the kubelet asks for {size} devices and {booking.size} are planned")
    gpus = _booked_gpus(booking, inventory)
    devices: list[str] = []
    for gpu in gpus:
        # devices that the container already has come first: an init container's devices are used again
        free = [device for device in _devices_of(booking, gpu) if device in available]
        free.sort(key=lambda device: device not in must)
        if len(free) < (booking.units or 1):
            raise _refusal(booking, _shortage(booking, gpu, len(free)))
        devices += free[: booking.units or 1]
    if foreign := sorted(set(must) - set(devices)):
        raise _refusal(booking, f"the kubelet insists on {foreign[0]}, which is not in the plan")
    return tuple(devices)


def allocate(booking: Booking, inventory: Inventory, devices: Collection[str], isolation: Isolation) -> Grant:
    """Return the settings that a container gets with these devices.

    Raises:
        Refused: the devices are not the booked ones.
    """
    gpus = _booked_gpus(booking, inventory)
    counts = {uuid: len(ids) for uuid, ids in devices_by_gpu(devices).items()}
    planned = {gpu.uuid: booking.units or 1 for gpu in gpus}
    if counts != planned:
        raise _refusal(booking, f"the kubelet gives {_amounts(counts)}, the plan is {_amounts(planned)}")
    uuids = [gpu.uuid for gpu in gpus]
    cdi = tuple(f"{CDI_KIND}={uuid}" for uuid in uuids)
    env = {VISIBLE: ",".join(uuids)}
    if not booking.units:
        return Grant(env, cdi)
    return _grant_memory(booking, gpus, env, cdi, isolation)


def _grant_memory(
    booking: Booking, gpus: tuple[Gpu, ...], env: dict[str, str], cdi: tuple[str, ...], isolation: Isolation
) -> Grant:
    """Return the settings with the gpushare device plugin's environment for GPU memory, and the limit."""
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


def _booked_gpus(booking: Booking, inventory: Inventory) -> tuple[Gpu, ...]:
    """Return the booked GPUs, in the plan's order."""
    pairs = [(index, inventory.gpu_at(index)) for index in booking.gpus]
    if missing := [str(index) for index, gpu in pairs if gpu is None]:
        raise _refusal(booking, f"GPU {', '.join(missing)} of the plan is not on the node any more")
    gpus = tuple(gpu for _, gpu in pairs if gpu is not None)
    if broken := [gpu for gpu in gpus if not gpu.healthy]:
        raise _refusal(booking, f"GPU {broken[0].index} ({broken[0].uuid}) of the plan is unhealthy")
    return gpus


def _devices_of(booking: Booking, gpu: Gpu) -> tuple[str, ...]:
    return units_of(gpu) if booking.units else (gpu.uuid,)


def _shortage(booking: Booking, gpu: Gpu, free: int) -> str:
    if not booking.units:
        return f"GPU {gpu.index} ({gpu.uuid}) of the plan is held by another container"
    return f"GPU {gpu.index} ({gpu.uuid}) has {free} GiB free and {booking.units} are planned"


def _amounts(counts: dict[str, int]) -> str:
    return ", ".join(f"{uuid} x{count}" if count > 1 else uuid for uuid, count in sorted(counts.items()))


def _refusal(booking: Booking, text: str) -> Refused:
    return Refused(_sentence(booking, text))


def _sentence(booking: Booking, text: str) -> str:
    return f"container {booking.container} of pod {booking.pod} gets no GPU that is not planned: {text}"


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    """The container of a pod that gets devices, with its settings."""

    waiter: Waiter
    booking: Booking
    grant: Grant


@dataclass(slots=True)
class _Turn:
    """The pod that the kubelet admits. `answered`: the booking of the container that asked last, and the
    devices of the answer. `lent`: devices of its init containers, which containers after them may get."""

    waiter: Waiter
    answered: tuple[Booking, frozenset[str]] | None = None
    lent: frozenset[str] = frozenset()


@dataclass(slots=True)
class _PassedOn:
    """A pod without a plan, for which another plugin chooses the devices. `waiter` is None if the pod is not
    known. `answered` are all devices that the plugin chose, `allocated` those that the pod has. `waits`: the
    kubelet will take further devices.
    """

    waiter: Waiter | None
    container: str
    answered: frozenset[str] = frozenset()
    allocated: frozenset[str] = frozenset()
    waits: bool = True


@dataclass(slots=True)
class Turns:
    """Answers for one resource, in the order in which the kubelet asks."""

    _turn: _Turn | _PassedOn | None = None
    _served: dict[str, set[str]] = field(default_factory=dict)

    @property
    def has_untaken_devices(self) -> bool:
        """Return whether the kubelet has yet to take the devices of the last answer."""
        turn = self._turn
        return turn.waits if isinstance(turn, _PassedOn) else turn is not None and turn.answered is not None

    def prefer(
        self,
        waiters: Collection[Waiter],
        devices_by_pod: Mapping[str, Collection[str]],
        inventory: Inventory,
        choice: tuple[Collection[str], Collection[str], int],
    ) -> tuple[str, ...]:
        """Return the devices that the kubelet should take.

        `choice`: the devices that the kubelet has available, those that it insists on, and the number.

        Raises:
            Refused: the plan can't be kept.
            Planless: there is no plan.
        """
        uids = {waiter.uid for waiter in waiters}
        self._served = {uid: names for uid, names in self._served.items() if uid in uids}
        try:
            waiter, booking = container_in_admission(waiters, devices_by_pod, self._served)
        except Planless as planless:
            self._pass_on(planless)
            raise
        try:
            devices = prefer(booking, inventory, *choice)
        except Refused as refusal:
            self._turn, refusal.waiter = None, waiter
            raise
        if not isinstance(self._turn, _Turn) or self._turn.waiter.uid != waiter.uid:
            self._turn = _Turn(waiter)
        self._turn.answered = (booking, frozenset(devices))
        return devices

    def _pass_on(self, planless: Planless) -> None:
        turn = self._turn
        uid = turn.waiter.uid if isinstance(turn, _PassedOn) and turn.waiter else None
        if not isinstance(turn, _PassedOn) or planless.waiter is None or uid != planless.waiter.uid:
            self._turn = turn = _PassedOn(planless.waiter, planless.container)
        turn.container, turn.waits = planless.container, True

    def note_choice(self, devices: Collection[str]) -> None:
        """Remember the devices that another plugin chose for the pod without a plan; none if it did not
        answer."""
        if isinstance(self._turn, _PassedOn):
            self._turn.answered |= frozenset(devices)
            self._turn.waits = bool(devices)

    def take_passed_on(self, devices: Collection[str]) -> tuple[Waiter | None, frozenset[str]] | None:
        """Return the pod without a plan that takes these devices, and all devices that it has then.

        Return None if no other plugin chose these devices for the pod.
        """
        turn = self._turn
        if not isinstance(turn, _PassedOn) or not frozenset(devices) <= turn.answered:
            return None
        turn.allocated, turn.waits = turn.allocated | frozenset(devices), False
        if turn.waiter is not None:
            self._served.setdefault(turn.waiter.uid, set()).add(turn.container)
        return turn.waiter, turn.allocated

    def allocate(
        self, inventory: Inventory, devices: Collection[str], isolation: Isolation
    ) -> ContainerGrant:
        """Return the container that gets these devices, with its settings.

        Raises:
            Refused: the devices are not those that were answered before.
        """
        turn = self._turn
        if not isinstance(turn, _Turn):
            raise Refused(f"the kubelet takes {len(devices)} devices without asking which ones are planned")
        booking = self._booking_in_turn(turn, inventory, frozenset(devices))
        try:
            grant = allocate(booking, inventory, devices, isolation)
        except Refused:
            self._turn = None
            raise
        self._served.setdefault(turn.waiter.uid, set()).add(booking.container)
        turn.answered = None
        turn.lent = turn.lent | set(devices) if booking.lends else turn.lent - set(devices)
        return ContainerGrant(turn.waiter, booking, grant)

    def _booking_in_turn(self, turn: _Turn, inventory: Inventory, devices: frozenset[str]) -> Booking:
        """Return the booking of the container whose turn it is.

        If the kubelet gives it the lent GPUs, the booking has these GPUs, in the plan's order.
        """
        if turn.answered is not None and turn.answered[1] == devices:
            return turn.answered[0]
        served = self._served.get(turn.waiter.uid, set())
        unserved = [planned for planned in turn.waiter.bookings if planned.container not in served]
        booking = unserved[0] if unserved else turn.waiter.bookings[-1]
        indices = [gpu.index for gpu in inventory.gpus if gpu.uuid in devices_by_gpu(devices)]
        if not unserved or not devices <= turn.lent or len(indices) != len(booking.gpus):
            return booking  # with other GPUs than these
        order = [gpu for planned in turn.waiter.bookings for gpu in planned.gpus]
        return replace(booking, gpus=tuple(sorted(indices, key=order.index)))
