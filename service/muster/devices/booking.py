"""What the plan booked for each container of a pod, and which container the kubelet asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster.domain import allocation
from muster.domain.pod import Pod


@dataclass(frozen=True, slots=True)
class Booking:
    """The GPUs of one container. `units`: GiB of each that it gets; 0 for whole GPUs.

    `pod_units`: the same for all containers of the pod together.
    """

    pod: str
    container: str
    gpus: tuple[int, ...]
    units: int = 0
    pod_units: int = 0

    @property
    def size(self) -> int:
        """Return how many devices the kubelet must give."""
        return len(self.gpus) * (self.units or 1)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no devices are given; the text is for the pod's event."""

    text: str


def bookings_of(pod: Pod, annotations: Mapping[str, str]) -> tuple[Booking, ...]:
    """Return the bookings of a bound pod, in the order of its containers; none if its annotations name none
    that can be true."""
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


def asking(
    asks: Mapping[str, Collection[str]],
    bookings: Mapping[str, tuple[Booking, ...]],
    held: Mapping[str, Collection[str]],
) -> Booking | Refusal:
    """Return the booking of the container that the kubelet admits now.

    All are by pod. `asks` has the containers that ask for the resource, `bookings` what plans say. `held` has
    the containers with devices, of each pod that the kubelet knows. It admits pods one by one, and adds a pod
    to those it knows just before: so one known pod lacks devices.
    """
    lacking = [pod for pod in held if set(asks.get(pod, ())) - set(held[pod])]
    if len(lacking) != 1:
        names = ", ".join(sorted(lacking)) or "none"
        return Refusal(f"not one pod of the node waits for devices, but {len(lacking)}: {names}")
    (pod,) = lacking
    waiting = [each for each in bookings.get(pod, ()) if each.container not in held[pod]]
    if not waiting:
        return Refusal(
            f"pod {pod} has no plan for its GPUs: let Muster schedule it (spec.schedulerName: muster)"
        )
    return waiting[0]
