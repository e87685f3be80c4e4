"""Gangs that do not fit hold nothing, say why, and start when there is room."""

from __future__ import annotations

import random

import pytest

from e2e import objects
from e2e.arena import Arena
from e2e.scene import COMPLETE, Scene

ROUNDS = 10
CHURN_GANGS = 24
CHURN_SEED = 20240607


def test_a_gang_that_does_not_fit_holds_nothing_and_starts_when_a_job_ends(scene: Scene) -> None:
    scene.node(objects.node("a"))
    (job,) = scene.create(objects.pod("job", gpus=5))
    scene.runs([job])
    large = scene.create(*(objects.pod(f"l-{rank}", gpus=2, gang=objects.ack("large", 2)) for rank in (0, 1)))
    scene.event("TopologyUnplaceable", large[0])
    for name in large:
        message = scene.says(name, objects.GPU)
        assert "3" in message
        assert "4" in message
    # three GPUs are free, the large gang waits for four: another gang takes them
    small = scene.create(*(objects.pod(f"s-{rank}", gang=objects.ack("small", 3)) for rank in range(3)))
    scene.runs(small)
    assert not {*large} & scene.bound()
    # asked again with other numbers meanwhile: still one event, on the first pod
    assert [(event.pod, event.count) for event in scene.events("TopologyUnplaceable")] == [(large[0], 1)]

    scene.end(job)
    scene.runs(large)


def test_a_refused_gang_names_who_of_lower_priority_would_make_room(scene: Scene) -> None:
    scene.node(objects.node("a"))
    low = scene.create(*(objects.pod(f"low-{rank}", gpus=3, gang=objects.ack("low", 2)) for rank in (0, 1)))
    scene.runs(low)
    urgent = {"priorityClassName": "system-cluster-critical"}
    high = scene.create(
        *(objects.pod(f"h-{rank}", gpus=2, gang=objects.ack("high", 2), spec=urgent) for rank in (0, 1))
    )
    for name in high:
        scene.says(name, f"The gang would fit if {scene.name}/low ended (priority 0, 6 GPUs")
    assert {*low} <= scene.bound()
    scene.delete(*low)
    scene.runs(high)


def test_of_two_interleaved_gangs_exactly_one_runs(scene: Scene) -> None:
    """Ten times over: three pods of two GPUs each, twice, on eight GPUs, submitted in turns."""
    scene.node(objects.node("a"))
    for number in range(ROUNDS):
        gangs = {
            name: [f"{name}-{rank}" for rank in range(3)] for name in (f"red-{number}", f"blue-{number}")
        }
        for members in zip(*gangs.values(), strict=True):
            scene.create(
                *(objects.pod(name, gpus=2, gang=objects.ack(name.rpartition("-")[0], 3)) for name in members)
            )

        def whole(gangs: dict[str, list[str]] = gangs) -> list[str]:
            return [gang for gang, names in gangs.items() if {*names} <= scene.bound()]

        def refused(gangs: dict[str, list[str]] = gangs) -> bool:
            losers = [gang for gang in gangs if gang not in whole()]
            return all(scene.events("TopologyUnplaceable", gangs[gang][0]) for gang in losers)

        scene.until(lambda: whole() and refused(), f"round {number}: one gang runs, the other is refused")
        (winner,) = whole()
        (loser,) = gangs.keys() - {winner}
        assert not {*gangs[loser]} & scene.bound()
        # the winner makes room, and the other one has it
        scene.delete(*gangs[winner])
        scene.runs(gangs[loser])
        scene.delete(*gangs[loser])


def test_fragments_that_add_up_are_no_room(scene: Scene) -> None:
    """Twelve GPUs are free as 6, 2, 2 and 2; three pods of four need three nodes with four."""
    for name, gpus in {"a": 6, "b": 2, "c": 2, "d": 2}.items():
        scene.node(objects.node(name, gpus=gpus))
    gang = scene.create(*(objects.pod(f"w-{rank}", gpus=4, gang=objects.ack("g", 3)) for rank in range(3)))
    scene.event("TopologyUnplaceable", gang[0])
    for name in gang:
        scene.says(name, objects.GPU)
    scene.runs(scene.create(objects.pod("lone", gpus=6)))
    assert not {*gang} & scene.bound()


def test_a_gang_larger_than_the_cluster_holds_nothing(scene: Scene) -> None:
    for name in "ab":
        scene.node(objects.node(name))
    size = 40
    gang = scene.create(*(objects.pod(f"w-{rank}", gang=objects.ack("g", size)) for rank in range(size)))
    scene.event("TopologyUnplaceable", gang[0])
    for name in gang:
        scene.says(name, objects.GPU)
    scene.runs(scene.create(*(objects.pod(f"s-{rank}", gpus=8, gang=objects.ack("s", 2)) for rank in (0, 1))))
    assert not {*gang} & scene.bound()


def test_new_nodes_let_a_waiting_gang_start(scene: Scene) -> None:
    gang = scene.create(*(objects.pod(f"w-{rank}", gpus=8, gang=objects.ack("g", 2)) for rank in range(2)))
    scene.event("TopologyUnplaceable", gang[0])
    scene.node(objects.node("a"))
    scene.node(objects.node("b"))
    scene.runs(gang)


def test_a_cordoned_node_is_no_room_until_it_is_uncordoned(scene: Scene) -> None:
    node = scene.node(objects.node("a"))
    scene.client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    (name,) = scene.create(objects.pod("w-0"))
    scene.event("TopologyUnplaceable", name)
    scene.says(name, "cordoned")
    scene.client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    scene.runs([name])


def test_what_the_planner_does_not_model_comes_back_as_a_rejection(scene: Scene) -> None:
    """A host port is taken on the one node: the in-tree plugin refuses, and no gang is partially bound."""
    scene.node(objects.node("a"))
    port = {"ports": [{"containerPort": 80, "hostPort": 18080}]}
    holder = objects.pod("holder", gpus=0)
    holder["spec"]["containers"][0] |= port
    scene.runs(scene.create(holder))
    pods = [objects.pod(f"w-{rank}", gang=objects.ack("g", 2)) for rank in range(2)]
    pods[1]["spec"]["containers"][0] |= port
    gang = scene.create(*pods)
    scene.until(lambda: any(scene.condition(name) for name in gang), "the gang says that it does not fit")
    assert not {*gang} & scene.bound()
    scene.node(objects.node("b"))
    scene.runs(gang)


def test_many_gangs_come_and_go(scene: Scene, arena: Arena) -> None:
    """Two dozen gangs of one to five pods, more than there is room for, each at its end soon after its start.

    Room comes free and is taken all the time, as the service sees it and, a little apart, the scheduler.
    """
    if arena.fenced:
        pytest.skip("needs a kwok that ends pods by annotation")
    chance = random.Random(CHURN_SEED)
    for name in "abc":
        scene.node(objects.node(name, topology=objects.DOCUMENT_MESH))
    names = []
    for number in range(CHURN_GANGS):
        size, gpus = chance.randint(1, 5), chance.choice((1, 1, 2, 4))
        pods = [
            objects.pod(f"g{number}-{rank}", gpus=gpus, gang=objects.ack(f"g{number}", size))
            for rank in range(size)
        ]
        for pod in pods:
            pod["metadata"]["annotations"][COMPLETE] = f"{chance.randint(50, 400)}ms"
        names += scene.create(*pods)
    scene.until(
        lambda: all(scene.pods()[name].finished for name in names), "all pods have run to their end", 60
    )


def test_the_gpus_of_a_terminating_pod_are_taken_until_it_is_gone(scene: Scene, arena: Arena) -> None:
    if arena.fenced:
        pytest.skip("needs a kwok that ends pods by annotation")
    scene.node(objects.node("a"))
    slow = objects.pod("slow", gpus=8, spec={"terminationGracePeriodSeconds": 60})
    slow["metadata"]["annotations"]["local-cluster/terminate-after"] = "1s"
    scene.runs(scene.create(slow))
    scene.client.delete(f"/api/v1/namespaces/{scene.name}/pods/slow")
    (after,) = scene.create(objects.pod("after", gpus=8))
    scene.event("TopologyUnplaceable", after)
    assert "slow" in scene.pods()
    scene.runs([after])
    assert "slow" not in scene.pods()
