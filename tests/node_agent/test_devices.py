"""What the node agent answers: the booked devices, or a refusal that says why."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain import allocation
from muster.domain.decision import MemberPlacement
from muster.domain.node import Resources
from muster.domain.pod import Pod
from muster.domain.request import Slice
from muster.node_agent.booking import (
    Ask,
    Booking,
    Refused,
    Waiter,
    bookings_in_order,
    bookings_of,
    container_in_admission,
)
from muster.node_agent.inventory import MEMORY, WHOLE, Gpu, Inventory, InventoryError, uuid_of
from muster.node_agent.turns import Grant, Isolation, allocate, prefer

NODE = Inventory(tuple(Gpu(index, f"GPU-{index}", 16) for index in range(8)))
ALL = tuple(device.id for device in NODE.devices(WHOLE))
ALL_MEMORY = tuple(device.id for device in NODE.devices(MEMORY))


def whole_pod(*containers: tuple[str, int], resource: str = "aliyun.com/gpu") -> Pod:
    count = sum(gpus for _, gpus in containers)
    return Pod(
        "u",
        "team",
        "trainer",
        "muster",
        Resources(),
        gpus=count,
        gpu_resource=resource,
        container_gpus=containers,
    )


def shared_pod(gpus: int, *containers: tuple[str, int]) -> Pod:
    part = Slice(gpus=gpus, units=sum(units for _, units in containers))
    return Pod("u", "team", "web", "muster", Resources(), slice=part, container_gpus=containers)


def written_for(pod: Pod, *gpus: int) -> dict[str, str]:
    """As the Binding of a plan has them."""
    units = pod.slice.units if pod.slice else 0
    place = MemberPlacement(pod.uid, pod.name, "", "n", gpus, units)
    return allocation.write(pod, place, 1, "{}", (16,) * 8)


def test_a_node_offers_gpus_or_their_memory() -> None:
    node = Inventory((Gpu(0, "GPU-a", 2), Gpu(1, "GPU-b", 1, healthy=False)))
    assert [(d.id, d.healthy) for d in node.devices(WHOLE)] == [("GPU-a", True), ("GPU-b", False)]
    assert [(d.id, d.healthy) for d in node.devices(MEMORY)] == [
        ("GPU-a-_-0", True),
        ("GPU-a-_-1", True),
        ("GPU-b-_-0", False),
    ]


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        ((Gpu(0, "a", 1), Gpu(0, "b", 1)), "two GPUs have the index 0"),
        ((Gpu(0, "a", 1), Gpu(1, "a", 1)), "two GPUs have the uuid a"),
        ((Gpu(3, "a", 0),), "GPU 3 (a) has 0 GiB, which is not from 1 to 4096"),
        ((Gpu(3, "a", 10**9),), "GPU 3 (a) has 1000000000 GiB"),
    ],
)
def test_facts_that_contradict_each_other(gpus: tuple[Gpu, ...], sentence: str) -> None:
    with pytest.raises(InventoryError, match=re.escape(sentence)):
        Inventory(gpus)


def test_bookings_are_dealt_as_the_binding_says() -> None:
    pod = whole_pod(("main", 2), ("helper", 1))
    main, helper = bookings_of(pod, written_for(pod, 2, 5, 7))
    assert (main.container, main.gpus, main.size) == ("main", (2, 5), 2)
    assert (helper.container, helper.gpus, helper.size) == ("helper", (7,), 1)
    assert main.pod == "team/trainer"


def test_shares_of_memory_are_by_container() -> None:
    pod = shared_pod(2, ("main", 3), ("idle", 0), ("helper", 1))
    main, helper = bookings_of(pod, written_for(pod, 4, 6))
    assert (main.container, main.gpus, main.units, main.size, main.pod_units) == ("main", (4, 6), 3, 6, 4)
    assert (helper.container, helper.gpus, helper.units, helper.size) == ("helper", (4, 6), 1, 2)


@pytest.mark.parametrize(
    "written",
    [
        {},
        {allocation.ALLOCATION: "no JSON"},
        {allocation.ALLOCATION: '{"version":1,"gpus":[1]}'},
        {allocation.ALLOCATION: '{"version":1,"gpus":[1,1]}'},
        {allocation.ALLOCATION: '{"version":2,"gpus":[1,2]}'},
        {allocation.GROUP: "1"},
    ],
)
def test_annotations_that_cannot_be_true_book_nothing(written: dict[str, str]) -> None:
    assert bookings_of(whole_pod(("main", 2)), written) == ()


def test_other_schedulers_annotations_book_too() -> None:
    (booking,) = bookings_of(whole_pod(("main", 2)), {allocation.GROUP: "6,1"})
    assert booking.gpus == (6, 1)


ONE, TWO = Booking("team/one", "main", (0,)), Booking("team/two", "main", (1,))
HELPER = Booking("team/two", "helper", (2,))


def waiter(*bookings: Booking, admitted: bool = False) -> Waiter:
    asks = tuple(Ask(booking.container, booking.size, booking.lends) for booking in bookings)
    return Waiter(bookings[0].pod, f"uid of {bookings[0].pod}", asks, bookings, admitted)


@pytest.mark.parametrize(
    ("devices_by_pod", "expected"),
    [
        ({"team/one": ["main"], "team/two": []}, TWO),
        ({"team/one": ["main"], "team/two": ["main"]}, HELPER),
        ({"team/two": [], "team/quiet": []}, TWO),
    ],
)
def test_the_pod_that_lacks_devices_is_the_one_that_asks(
    devices_by_pod: dict[str, list[str]], expected: Booking
) -> None:
    pods = (waiter(ONE), waiter(TWO, HELPER))
    assert container_in_admission(pods, devices_by_pod, {}) == (pods[1], expected)


PLANLESS = Waiter("team/three", "u3", (Ask("main", 1),))


@pytest.mark.parametrize(
    ("devices_by_pod", "sentence"),
    [
        (
            {"team/one": [], "team/two": []},
            "not one pod of the node waits for devices, but 2: team/one, team/two",
        ),
        ({"team/one": ["main"]}, "not one pod of the node waits for devices, but 0: none"),
        ({"team/three": []}, "pod team/three has no plan for its GPUs: let Muster schedule it"),
    ],
)
def test_who_asks_is_not_guessed(devices_by_pod: dict[str, list[str]], sentence: str) -> None:
    with pytest.raises(Refused, match=f"^{re.escape(sentence)}"):
        container_in_admission((waiter(ONE), waiter(TWO), PLANLESS), devices_by_pod, {})


def test_a_pod_that_the_kubelet_took_before_does_not_ask() -> None:
    """An init container that ends is never listed with its devices."""
    pods = (waiter(replace(ONE, lends=True), admitted=True), waiter(TWO))
    answer = container_in_admission(pods, {"team/one": [], "team/two": []}, {})
    assert answer == (pods[1], TWO)


INIT = Booking("team/two", "init", (1,), lends=True)


@pytest.mark.parametrize(
    ("with_devices", "served", "expected"),
    [
        ([], [], INIT),
        ([], ["init"], TWO),
        (["main"], [], HELPER),
        (["main"], ["init", "main"], HELPER),
    ],
)
def test_init_containers_have_their_turn_first(
    with_devices: list[str], served: list[str], expected: Booking
) -> None:
    pod = waiter(INIT, TWO, HELPER)
    assert container_in_admission((pod,), {pod.name: with_devices}, {pod.uid: served}) == (pod, expected)


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ((Ask("init", 2, True), Ask("main", 3)), [(2, 5), (2, 5, 7)]),
        ((Ask("init", 3, True), Ask("main", 3)), [(2, 5, 7), (2, 5, 7)]),
        ((Ask("main", 2),), []),
        ((Ask("other", 3),), []),
    ],
)
def test_an_init_container_gets_gpus_of_those_after_it(
    asks: tuple[Ask, ...], expected: list[tuple[int, ...]]
) -> None:
    pod = whole_pod(("main", 3))
    bookings = bookings_in_order(pod, written_for(pod, 2, 5, 7), asks)
    assert [booking.gpus for booking in bookings] == expected


def test_an_init_container_gets_memory_of_all_gpus_of_the_slice() -> None:
    pod = shared_pod(2, ("main", 3))
    init, main = bookings_in_order(pod, written_for(pod, 4, 6), (Ask("init", 4, True), Ask("main", 6)))
    assert (init.gpus, init.units, init.lends) == ((4, 6), 2, True)
    assert (main.gpus, main.units, main.lends) == ((4, 6), 3, False)


BOOKED = Booking("team/trainer", "main", (5, 2))
SHARED = Booking("team/web", "main", (3,), units=3, pod_units=4)


def test_the_preferred_devices_are_the_booked_ones() -> None:
    assert prefer(BOOKED, NODE, ALL, (), 2) == ("GPU-5", "GPU-2")
    assert prefer(SHARED, NODE, ALL_MEMORY, (), 3) == ("GPU-3-_-0", "GPU-3-_-1", "GPU-3-_-2")


def test_devices_that_the_container_has_already_are_kept() -> None:
    devices = prefer(SHARED, NODE, ALL_MEMORY, ("GPU-3-_-9",), 3)
    assert devices == ("GPU-3-_-9", "GPU-3-_-0", "GPU-3-_-1")


SICK = Inventory(tuple(Gpu(index, f"GPU-{index}", 16, healthy=index != 2) for index in range(8)))
SMALL = Inventory(NODE.gpus[:5])


@pytest.mark.parametrize(
    ("booking", "node", "available", "must", "size", "sentence"),
    [
        (BOOKED, NODE, ALL, (), 3, "the kubelet asks for 3 devices and 2 are planned"),
        (BOOKED, NODE, ALL[:5], (), 2, "GPU 5 (GPU-5) of the plan is held by another container"),
        (BOOKED, SMALL, ALL, (), 2, "GPU 5 of the plan is not on the node any more"),
        (BOOKED, SICK, ALL, (), 2, "GPU 2 (GPU-2) of the plan is unhealthy"),
        (BOOKED, NODE, ALL, ("GPU-0",), 2, "the kubelet insists on GPU-0, which is not in the plan"),
        (SHARED, NODE, ("GPU-3-_-1",), (), 3, "GPU 3 (GPU-3) has 1 GiB free and 3 are planned"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused(
    booking: Booking,
    node: Inventory,
    available: tuple[str, ...],
    must: tuple[str, ...],
    size: int,
    sentence: str,
) -> None:
    with pytest.raises(Refused) as refusal:
        prefer(booking, node, available, must, size)
    whose = f"container {booking.container} of pod {booking.pod}"
    assert str(refusal.value) == f"{whose} gets no GPU that is not planned: {sentence}"


def test_a_container_with_whole_gpus() -> None:
    assert allocate(BOOKED, NODE, ("GPU-2", "GPU-5"), Isolation()) == Grant(
        {"NVIDIA_VISIBLE_DEVICES": "GPU-5,GPU-2"}, ("nvidia.com/gpu=GPU-5", "nvidia.com/gpu=GPU-2")
    )


ENVIRONMENT = {
    "NVIDIA_VISIBLE_DEVICES": "GPU-3",
    "ALIYUN_COM_GPU_MEM_IDX": "3",
    "ALIYUN_COM_GPU_MEM_POD": "4",
    "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
    "ALIYUN_COM_GPU_MEM_DEV": "16",
}
UNITS = ("GPU-3-_-4", "GPU-3-_-5", "GPU-3-_-6")
LIBRARY = "/opt/isolation/libvgpu.so"


@pytest.mark.parametrize(
    ("isolation", "more", "mounts"),
    [
        (Isolation(), {"CGPU_DISABLE": "true"}, ()),
        (Isolation(library=LIBRARY), {"CGPU_DISABLE": "true"}, ()),
        (Isolation(True, LIBRARY), {"CUDA_DEVICE_MEMORY_LIMIT": "3g", "LD_PRELOAD": LIBRARY}, (LIBRARY,)),
    ],
)
def test_a_container_with_shared_memory(
    isolation: Isolation, more: dict[str, str], mounts: tuple[str, ...]
) -> None:
    assert allocate(SHARED, NODE, UNITS, isolation) == Grant(
        ENVIRONMENT | more, ("nvidia.com/gpu=GPU-3",), mounts
    )


def test_a_missing_isolation_library_is_told() -> None:
    grant = allocate(SHARED, NODE, UNITS, Isolation(is_on=True))
    assert grant.env == ENVIRONMENT
    (note,) = grant.notes
    assert "no isolation library is installed" in note


@pytest.mark.parametrize(
    ("booking", "devices"),
    [
        (BOOKED, ("GPU-4", "GPU-7")),
        (BOOKED, ("GPU-5",)),
        (BOOKED, ("GPU-5", "GPU-2", "GPU-1")),
        (SHARED, UNITS[:2]),
        (SHARED, ("GPU-3-_-4", "GPU-3-_-5", "GPU-4-_-0")),
    ],
)
def test_other_devices_than_the_booked_ones_are_refused(booking: Booking, devices: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="the kubelet gives"):
        allocate(booking, NODE, devices, Isolation())


@st.composite
def bookings(draw: st.DrawFn) -> Booking:
    gpus = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True)))
    return Booking("team/any", "main", gpus, units=draw(st.integers(0, 4)), pod_units=4)


@given(bookings(), st.data())
def test_what_is_preferred_is_the_plan_and_is_allocated(booking: Booking, data: st.DataObject) -> None:
    """Whatever is free: the answer is all of the plan, and the container then gets it; or a refusal."""
    offered = ALL_MEMORY if booking.units else ALL
    available = data.draw(st.sets(st.sampled_from(offered)))
    try:
        devices = prefer(booking, NODE, available, (), booking.size)
    except Refused:
        free = [uuid_of(device) for device in available]
        assert any(gpu > 7 or free.count(f"GPU-{gpu}") < (booking.units or 1) for gpu in booking.gpus)
        return
    assert set(devices) <= available
    assert len(devices) == len(set(devices)) == booking.size
    assert {uuid_of(device) for device in devices} == {f"GPU-{gpu}" for gpu in booking.gpus}
    grant = allocate(booking, NODE, devices, Isolation())
    assert grant.env["NVIDIA_VISIBLE_DEVICES"] == ",".join(f"GPU-{gpu}" for gpu in booking.gpus)
