"""Who has which GPUs, as the page reads it: bound and reserved members, other pods, refused nodes."""

from __future__ import annotations

from dataclasses import replace

from muster.gangs.messages.calls import BindingFate
from muster.gangs.messages.instructions import EventReason
from muster.gangs.reporting.places import Owner, PodGpus, RefusedNode, owners
from tests.gangs.world import World, foreign, node, pod


def test_each_pod_on_a_node_has_its_gang() -> None:
    world = World().start(node("a"))
    world.see(foreign("other", "a"), pod("g-0", gpus=1), pod("g-1", gpus=1))
    ((*places,),) = world.coordinator.gpus_of_pods(["a"])
    key = world.verdict().gang
    assert sorted(
        (place.gang, place.gpus.bit_count(), place.unindexed, place.reserved) for place in places
    ) == [
        ("", 0, 1, False),
        (key, 1, 0, True),
        (key, 1, 0, True),
    ]
    world.see(replace(world.pods["g-0"], node="a", running=True, allocation=1))
    assert world.coordinator.owners(["a"]) == [(Owner("", "", 1), Owner("ns", "g", 2))]
    ((*places,),) = world.coordinator.gpus_of_pods(["a"])
    assert sorted(place.reserved for place in places if place.gang) == [False, True]


def test_gangs_of_one_name_keep_their_gpus_apart() -> None:
    world = World().start(node("a"), node("b"))
    runs = [pod(f"old-{at}", gpus=1, owner="job-1", created=1.0) for at in range(2)]
    world.see(
        *(replace(run_pod, node="a", running=True, allocation=1 << at) for at, run_pod in enumerate(runs))
    )
    world.see(*(pod(f"new-{at}", gpus=1, owner="job-2", created=1e9) for at in range(2)))
    places = [place for part in world.coordinator.gpus_of_pods(["a", "b"]) for place in part]
    assert sorted((place.gang, place.reserved) for place in places) == [
        ("ns/ack/g/job-1", False),
        ("ns/ack/g/job-1", False),
        ("ns/ack/g/job-2", True),
        ("ns/ack/g/job-2", True),
    ]


def test_gangs_that_share_a_gpu_count_it_each_and_pods_of_one_gang_once() -> None:
    world = World().start(node("a"))
    world.see(pod("g-0"), pod("g-1"), pod("h-0", gang="h"), pod("h-1", gang="h"))
    key_of_g, key_of_h = sorted(world.coordinator.keys())
    places = [PodGpus(gang, "", "a", 0b1, 0, 4, False) for gang in (key_of_g, key_of_g, key_of_h)]
    assert owners(places, world.coordinator.state.gangs) == (Owner("ns", "g", 1), Owner("ns", "h", 1))


def test_a_gang_says_its_nodes_and_gpus() -> None:
    world = World().start(node("a"), node("b"))
    world.see(*(pod(f"g-{at}", gpus=2, of=3) for at in range(3)))
    for at, on in enumerate("ba"):
        world.see(replace(world.pods[f"g-{at}"], node=on, running=True, allocation=0b11))
    (shown,) = world.coordinator.summary()
    assert (shown.gpus_bound, shown.gpus_waiting, shown.nodes) == (4, 2, ("a", "b"))


def test_a_gang_has_its_places_and_the_nodes_that_were_refused() -> None:
    world = World().start(node("a"), node("b"))
    world.see(pod("g-0"), pod("g-1"), pod("g-2", of=3, gang="h"))
    first = world.home(0)
    world.reserve(0)
    world.unreserve(0, BindingFate.NEVER_SENT, "VolumeZone", "no volume here")
    details = world.coordinator.details(world.verdict().gang)
    assert details is not None
    assert details.refused == (RefusedNode(first, "VolumeZone", "no volume here"),)
    assert [(place.pod, place.node != first) for place in details.places] == [("g-0", True), ("g-1", True)]
    waits = world.coordinator.details(next(key for key in world.coordinator.keys() if "/h" in key))  # noqa: SIM118
    assert waits is not None
    assert (waits.places, waits.without_place) == ((), 1)
    assert world.coordinator.details("no/such/gang") is None


def test_a_refusal_says_who_has_the_gpus() -> None:
    world = World().start(node("a"), node("b"))
    low = [pod(f"low-{at}", gang="low", gpus=2, priority=1) for at in range(2)]
    world.see(
        *(replace(low_pod, node="a", running=True, allocation=3 << 2 * at) for at, low_pod in enumerate(low))
    )
    world.see(foreign("other", "b"))
    world.see(*(pod(f"g-{at}", gpus=4, priority=5) for at in range(2)))
    says = "of the GPUs on nodes that admit it, 1 gang of lower priority has 4 and pods in no gang have 1"
    assert says in world.verdict().reason
    (refused,) = (view for view in world.coordinator.summary() if view.name == "g")
    assert "RoomTaken" in {cause.kind for cause in refused.causes}
    (event,) = (event for event in world.events if event.reason is EventReason.UNPLACEABLE)
    assert says in event.message
