"""What the kubelet takes is what it was answered, container by container."""

from __future__ import annotations

import pytest

from muster.node_agent.booking import Ask, Booking, Refused, Waiter
from muster.node_agent.inventory import MEMORY, WHOLE, Gpu, Inventory
from muster.node_agent.turns import ContainerGrant, Isolation, Turns

NODE = Inventory(tuple(Gpu(index, f"GPU-{index}", 16) for index in range(8)))
ALL = tuple(device.id for device in NODE.devices(WHOLE))


def pod(*bookings: Booking) -> Waiter:
    asks = tuple(Ask(booking.container, booking.size, booking.lends) for booking in bookings)
    return Waiter(bookings[0].pod, "u", asks, bookings)


def whole(container: str, *gpus: int, lends: bool = False) -> Booking:
    return Booking("team/pod", container, gpus, lends=lends)


def ask(
    turns: Turns, waiter: Waiter, size: int, with_devices: tuple[str, ...] = (), must: tuple[str, ...] = ()
) -> tuple[str, ...]:
    return turns.prefer([waiter], {waiter.name: with_devices}, NODE, (ALL, must, size))


def take(turns: Turns, *devices: str) -> ContainerGrant | Refused:
    try:
        return turns.allocate(NODE, devices, Isolation())
    except Refused as refusal:
        return refusal


def test_each_container_gets_what_was_answered_for_it() -> None:
    turns, waiter = Turns(), pod(whole("main", 5, 2), whole("helper", 7))
    assert ask(turns, waiter, 2) == ("GPU-5", "GPU-2")
    assert turns.has_untaken_devices
    allocation = take(turns, "GPU-2", "GPU-5")
    assert isinstance(allocation, ContainerGrant)
    assert (allocation.booking.container, allocation.grant.env["NVIDIA_VISIBLE_DEVICES"]) == (
        "main",
        "GPU-5,GPU-2",
    )
    assert not turns.has_untaken_devices
    assert ask(turns, waiter, 1, ("main",)) == ("GPU-7",)
    assert isinstance(take(turns, "GPU-7"), ContainerGrant)


@pytest.mark.parametrize("devices", [("GPU-0",), ("GPU-5", "GPU-3"), ("GPU-5",), ("GPU-5", "GPU-2", "GPU-1")])
def test_anything_else_is_refused_and_ends_the_turn(devices: tuple[str, ...]) -> None:
    turns, waiter = Turns(), pod(whole("main", 5, 2))
    ask(turns, waiter, 2)
    assert isinstance(take(turns, *devices), Refused)
    assert isinstance(take(turns, "GPU-5", "GPU-2"), Refused)


def test_who_takes_without_asking_gets_nothing() -> None:
    answer = take(Turns(), "GPU-1")
    assert str(answer) == "the kubelet takes 1 devices without asking which ones are planned"


def test_devices_of_an_init_container_are_given_again_without_a_question() -> None:
    turns, waiter = Turns(), pod(whole("init", 5, 2, lends=True), whole("main", 5, 2))
    assert ask(turns, waiter, 2) == ("GPU-5", "GPU-2")
    assert isinstance(take(turns, "GPU-5", "GPU-2"), ContainerGrant)
    again = take(turns, "GPU-2", "GPU-5")
    assert isinstance(again, ContainerGrant)
    assert (again.booking.container, again.grant.env["NVIDIA_VISIBLE_DEVICES"]) == ("main", "GPU-5,GPU-2")


def test_a_container_may_get_a_part_of_what_an_init_container_had() -> None:
    """The kubelet chooses which part; the rest goes to the next container."""
    waiter = pod(whole("init", 5, 2, 7, lends=True), whole("main", 5), whole("helper", 2, 7))
    turns = Turns()
    ask(turns, waiter, 3)
    take(turns, "GPU-5", "GPU-2", "GPU-7")
    main, helper = take(turns, "GPU-7"), take(turns, "GPU-2", "GPU-5")
    assert isinstance(main, ContainerGrant)
    assert isinstance(helper, ContainerGrant)
    assert main.grant.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-7"
    assert helper.grant.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-5,GPU-2"


def test_a_larger_container_keeps_what_the_init_container_had() -> None:
    turns, waiter = Turns(), pod(whole("init", 5, lends=True), whole("main", 5, 2))
    ask(turns, waiter, 1)
    take(turns, "GPU-5")
    assert ask(turns, waiter, 2, must=("GPU-5",)) == ("GPU-5", "GPU-2")
    assert isinstance(take(turns, "GPU-2", "GPU-5"), ContainerGrant)


@pytest.mark.parametrize("devices", [("GPU-5", "GPU-2"), ("GPU-1",)])
def test_what_was_lent_is_no_licence_for_more(devices: tuple[str, ...]) -> None:
    turns, waiter = Turns(), pod(whole("init", 5, 2, lends=True), whole("main", 5))
    ask(turns, waiter, 2)
    take(turns, "GPU-5", "GPU-2")
    assert isinstance(take(turns, *devices), Refused)


def test_memory_that_was_lent_must_be_even() -> None:
    shared = Booking("team/pod", "main", (3, 4), units=1, pod_units=2)
    init = Booking("team/pod", "init", (3, 4), units=2, pod_units=2, lends=True)
    waiter, turns = pod(init, shared), Turns()
    units = tuple(device.id for device in NODE.devices(MEMORY))
    devices = turns.prefer([waiter], {waiter.name: ()}, NODE, (units, (), 4))
    assert isinstance(take(turns, *devices), ContainerGrant)
    assert isinstance(take(turns, "GPU-3-_-0", "GPU-3-_-1"), Refused)


def test_the_end_of_a_pod_forgets_it() -> None:
    turns, waiter = Turns(), pod(whole("main", 5))
    ask(turns, waiter, 1)
    take(turns, "GPU-5")
    next_waiter = Waiter("team/next", "v", (Ask("main", 1),), (Booking("team/next", "main", (6,)),))
    assert turns.prefer([next_waiter], {"team/next": ()}, NODE, (ALL, (), 1)) == ("GPU-6",)
    assert isinstance(take(turns, "GPU-5"), Refused)
