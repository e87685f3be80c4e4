"""The pod that the kubelet admits now: what it was told to take, until it has taken that.

The kubelet admits pods one by one, and container by container. For each it asks which devices to take, and
then takes them. Only what was answered is given out. There is one exception: it does not ask again for
devices that an init container of the same pod has had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from muster.devices.answers import Grant, Isolation, allocate, prefer
from muster.devices.booking import Booking, Planless, Refusal, Waiter, container_in_admission
from muster.devices.inventory import Inventory, by_gpu


@dataclass(frozen=True, slots=True)
class Given:
    """What a container of a pod gets."""

    waiter: Waiter
    booking: Booking
    grant: Grant


@dataclass(slots=True)
class _Turn:
    """`lent`: devices of the pod's init containers, which containers after them may get."""

    waiter: Waiter
    answered: tuple[Booking, frozenset[str]] | None = None
    lent: frozenset[str] = frozenset()


@dataclass(slots=True)
class _PassedOn:
    """A pod without a plan, for which another plugin chooses the devices. `waiter` is None if the pod is not
    known. `answered` are all devices that the plugin chose, `allocated` the ones that the pod has. `waits`:
    the kubelet will take some.
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
    def pending(self) -> bool:
        """Return whether the kubelet was told of devices that it has not taken yet."""
        turn = self._turn
        return turn.waits if isinstance(turn, _PassedOn) else turn is not None and turn.answered is not None

    def prefer(
        self,
        waiters: Collection[Waiter],
        devices_by_pod: Mapping[str, Collection[str]],
        inventory: Inventory,
        choice: tuple[Collection[str], Collection[str], int],
    ) -> tuple[Waiter, tuple[str, ...]] | tuple[Waiter | None, Refusal]:
        """Return the devices that the kubelet should take, with the pod that they are for.

        `choice`: what the kubelet has available, what it insists on, and how many it needs.
        """
        uids = {waiter.uid for waiter in waiters}
        self._served = {uid: names for uid, names in self._served.items() if uid in uids}
        turn = container_in_admission(waiters, devices_by_pod, self._served)
        if isinstance(turn, Planless):
            self._pass_on(turn)
        if isinstance(turn, Refusal):
            return None, turn
        waiter, booking = turn
        devices = prefer(booking, inventory, *choice)
        if isinstance(devices, Refusal):
            self._turn = None
            return waiter, devices
        if not isinstance(self._turn, _Turn) or self._turn.waiter.uid != waiter.uid:
            self._turn = _Turn(waiter)
        self._turn.answered = (booking, frozenset(devices))
        return waiter, devices

    def _pass_on(self, planless: Planless) -> None:
        turn = self._turn
        uid = turn.waiter.uid if isinstance(turn, _PassedOn) and turn.waiter else None
        if not isinstance(turn, _PassedOn) or planless.waiter is None or uid != planless.waiter.uid:
            self._turn = turn = _PassedOn(planless.waiter, planless.container)
        turn.container, turn.waits = planless.container, True

    def chose(self, devices: Collection[str]) -> None:
        """Remember what another plugin chose for the pod without a plan; nothing if it did not answer."""
        if isinstance(self._turn, _PassedOn):
            self._turn.answered |= frozenset(devices)
            self._turn.waits = bool(devices)

    def take_passed_on(self, devices: Collection[str]) -> tuple[Waiter | None, frozenset[str]] | None:
        """Return the pod without a plan that takes these devices, with all that it has.

        None if another plugin did not choose them for it.
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
    ) -> Given | Refusal:
        """Return what the container of these devices gets, if they are what was answered before."""
        turn = self._turn
        if not isinstance(turn, _Turn):
            return Refusal(f"the kubelet takes {len(devices)} devices without asking which ones are planned")
        booking = self._booking(turn, inventory, frozenset(devices))
        grant = allocate(booking, inventory, devices, isolation)
        if isinstance(grant, Refusal):
            self._turn = None
            return grant
        self._served.setdefault(turn.waiter.uid, set()).add(booking.container)
        turn.answered = None
        turn.lent = turn.lent | set(devices) if booking.lends else turn.lent - set(devices)
        return Given(turn.waiter, booking, grant)

    def _booking(self, turn: _Turn, inventory: Inventory, devices: frozenset[str]) -> Booking:
        """Return the booking of the container whose turn it is.

        If the kubelet gives it the GPUs that were lent, the booking has these, in the plan's order.
        """
        if turn.answered is not None and turn.answered[1] == devices:
            return turn.answered[0]
        served = self._served.get(turn.waiter.uid, set())
        unserved = [planned for planned in turn.waiter.bookings if planned.container not in served]
        booking = unserved[0] if unserved else turn.waiter.bookings[-1]
        indices = [gpu.index for gpu in inventory.gpus if gpu.uuid in by_gpu(devices)]
        if not unserved or not devices <= turn.lent or len(indices) != len(booking.gpus):
            return booking  # with other GPUs than these
        order = [gpu for planned in turn.waiter.bookings for gpu in planned.gpus]
        return replace(booking, gpus=tuple(sorted(indices, key=order.index)))
