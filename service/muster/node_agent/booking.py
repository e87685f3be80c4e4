"""The GPUs that the plan booked for each container of a pod, and the container for which the kubelet asks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from muster.domain import allocation
from muster.domain.pod import Pod


@dataclass(frozen=True, slots=True)
class Booking:
    """The GPUs of one container. `units`: GiB that it gets of each GPU; 0 for whole GPUs.

    `pod_units`: GiB of each GPU for all containers of the pod together. `lends`: whether the container is an
    init container that ends, whose devices the kubelet gives to the containers after it.
    """

    pod: str
    container: str
    gpus: tuple[int, ...]
    units: int = 0
    pod_units: int = 0
    lends: bool = False

    @property
    def size(self) -> int:
        """Return how many devices the kubelet must give."""
        return len(self.gpus) * (self.units or 1)


@dataclass(frozen=True, slots=True)
class Ask:
    """A container that requests devices of the resource. `lends`: as in Booking."""

    container: str
    count: int
    lends: bool = False


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod of the node that requests devices.

    `asks` and `bookings` are in the order in which the kubelet asks. A pod without a plan has no bookings.
    `has_plan` is true even if the plan is not credible. `admitted`: by its status the kubelet admitted it.
    """

    name: str
    uid: str
    asks: tuple[Ask, ...]
    bookings: tuple[Booking, ...] = ()
    admitted: bool = False
    has_plan: bool = False


class Refused(Exception):
    """No devices are given. The kubelet puts the text into the status of the pod, `waiter` if it is known."""

    def __init__(self, text: str, waiter: Waiter | None = None) -> None:
        super().__init__(text)
        self.waiter = waiter


class Planless(Refused):
    """The kubelet admits a pod without a plan. `waiter` and `container` are None and "" if the pod is not
    known: a static pod comes to the API server later. `planned`: the GPUs that plans of other pods name."""

    def __init__(self, text: str, waiter: Waiter | None = None, container: str = "") -> None:
        super().__init__(text, waiter)
        self.container = container
        self.planned = frozenset[str]()


def bookings_of(pod: Pod, annotations: Mapping[str, str]) -> tuple[Booking, ...]:
    """Return the bookings of a bound pod, in the order of its containers; () without a credible plan."""
    gpus = allocation.read_gpus(annotations, pod)
    if gpus is None:
        return ()
    name = f"{pod.namespace}/{pod.name}"
    units = dict(pod.container_gpus) if pod.slice is not None else {}
    pod_units = pod.slice.units if pod.slice is not None else 0
    return tuple(
        Booking(name, container, tuple(part), units.get(container, 0), pod_units)
        for container, part in allocation.container_gpus(pod, gpus).items()
    )


def bookings_in_order(pod: Pod, annotations: Mapping[str, str], asks: Iterable[Ask]) -> tuple[Booking, ...]:
    """Return a booking for each container that asks, in the kubelet's order; () if a booking is unknown.

    The plan has no GPUs for an init container that ends. Such a container gets the first GPUs of the pod,
    because the kubelet gives these devices again to the containers after it.
    """
    by_container = {booking.container: booking for booking in bookings_of(pod, annotations)}
    gpus, bookings = allocation.read_gpus(annotations, pod), []
    for ask in asks:
        booking = _booking_of_init_container(ask, pod, gpus) if ask.lends else by_container.get(ask.container)
        if booking is None or booking.size != ask.count:
            return ()
        bookings.append(booking)
    return tuple(bookings)


def _booking_of_init_container(ask: Ask, pod: Pod, gpus: tuple[int, ...] | None) -> Booking | None:
    if gpus is None:
        return None
    name = f"{pod.namespace}/{pod.name}"
    if pod.slice is None:
        return Booking(name, ask.container, gpus[: ask.count], lends=True)
    units = ask.count // pod.slice.gpus
    return Booking(name, ask.container, gpus, units, pod.slice.units, lends=True)


def container_in_admission(
    waiters: Collection[Waiter],
    devices_by_pod: Mapping[str, Collection[str]],
    served: Mapping[str, Collection[str]],
) -> tuple[Waiter, Booking]:
    """Return the container that the kubelet admits now, with its pod.

    `devices_by_pod` has, for each pod that the kubelet knows, the containers with devices. The kubelet admits
    pods one by one, and lists a pod just before its admission: so one listed pod lacks devices. The kubelet
    does not list init containers that end. `served` has, by the pod's uid, the containers that got devices
    from this agent.

    Raises:
        Refused: no such container, or its plan does not name its GPUs.
        Planless: its pod has no plan.
    """
    lacking = [
        (waiter, unserved)
        for waiter in waiters
        if waiter.name in devices_by_pod
        and not waiter.admitted
        and (
            unserved := _unserved_containers(waiter, devices_by_pod[waiter.name], served.get(waiter.uid, ()))
        )
    ]
    if len(lacking) != 1:
        names = ", ".join(sorted(waiter.name for waiter, _ in lacking)) or "none"
        sentence = f"not one pod of the node waits for devices, but {len(lacking)}: {names}"
        raise (Refused if any(waiter.has_plan for waiter, _ in lacking) else Planless)(sentence)
    ((waiter, unserved),) = lacking
    booking = next((planned for planned in waiter.bookings if planned.container == unserved[0]), None)
    if booking is not None:
        return waiter, booking
    if waiter.has_plan:
        raise Refused(f"the plan of pod {waiter.name} does not name the GPUs of its container {unserved[0]}")
    sentence = f"pod {waiter.name} has no plan for its GPUs"
    raise Planless(f"{sentence}: let Muster schedule it (spec.schedulerName: muster)", waiter, unserved[0])


def _unserved_containers(waiter: Waiter, with_devices: Collection[str], served: Collection[str]) -> list[str]:
    """Return the containers without devices. An init container had its turn if a later container has some."""
    names = [ask.container for ask in waiter.asks]
    last_served = max((place for place, name in enumerate(names) if name in with_devices), default=-1)
    return [
        ask.container
        for place, ask in enumerate(waiter.asks)
        if ask.container not in with_devices
        and ask.container not in served
        and not (ask.lends and place < last_served)
    ]
