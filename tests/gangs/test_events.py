"""Kubernetes events: one a change of state of a gang, on its first pod and on what made it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.causes.ill_formed import BadValue
from muster.domain.pod import Controller, Pod
from muster.gangs.messages.instructions import EmitEvent, EventReason, Outcome
from tests.gangs.world import World, foreign, node, pod

JOB = Controller("batch/v1", "Job", "train", "job-uid")
PYTORCH_JOB = Controller("kubeflow.org/v1", "PyTorchJob", "train", "ptj-uid")


def posted(world: World, reason: EventReason) -> list[tuple[str, str, str]]:
    """(API version, kind, name) of each object that has an event of this reason."""
    return [
        (event.api_version, event.kind, name)
        for event in world.events
        if event.reason is reason
        for name, _ in event.objects
    ]


def gang(size: int, controller: Controller | None) -> list[Pod]:
    owner = controller.uid if controller else ""
    return [replace(pod(f"p{rank}", of=size), owner=owner, controller=controller) for rank in range(size)]


@pytest.mark.parametrize("controller", [JOB, PYTORCH_JOB, None])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_placed_gang_has_one_event_on_its_first_pod_and_its_controller(
    size: int, controller: Controller | None
) -> None:
    world = World().start(node("a", 8))
    world.see(*reversed(gang(size, controller)))
    world.run()
    by = [(controller.api_version, controller.kind, controller.name)] if controller else []
    assert posted(world, EventReason.PLACED) == [("v1", "Pod", "p0"), *by]
    assert {event.reason for event in world.events} == {EventReason.PLACED}


def test_a_refused_gang_has_one_event_and_each_pod_its_condition() -> None:
    world = World().start(node("a", 8))
    world.see(foreign("f", "a", gpus=6), *gang(4, JOB))
    assert posted(world, EventReason.UNPLACEABLE) == [("v1", "Pod", "p0"), ("batch/v1", "Job", "train")]
    verdict = world.verdict()
    assert verdict.outcome is Outcome.REFUSED
    assert {name for name, _ in verdict.members} == {"p0", "p1", "p2", "p3"}, "each is let through to fail"
    assert verdict.reason == world.events[-1].message


def test_an_incomplete_gang_waits_with_one_event() -> None:
    world = World().start(node("a", 8))
    world.see(*gang(4, JOB)[1:])
    world.wait(10)
    assert posted(world, EventReason.WAITING) == [("v1", "Pod", "p1"), ("batch/v1", "Job", "train")]


def test_an_ill_formed_gang_has_one_event_and_each_pod_its_condition() -> None:
    world = World().start(node("a", 8))
    cause = BadValue("ns/p2", "gpu-topology-replica", "x", "a positive whole number")
    members = gang(4, JOB)
    members[2] = replace(members[2], causes=(cause,))
    world.see(*members)
    last = [event for event in world.events if event.reason is EventReason.INVALID][-2:]
    assert [(event.kind, event.objects) for event in last] == [
        ("Pod", (("p0", "p0"),)),
        ("Job", (("train", "job-uid"),)),
    ]
    assert len(world.verdict().members) == 4


def test_a_withdrawn_plan_is_told_once() -> None:
    world = World().start(node("a", 8))
    world.see(*gang(4, JOB))
    world.wait(120)  # it is not permitted
    assert posted(world, EventReason.WITHDRAWN)[:2] == [("v1", "Pod", "p0"), ("batch/v1", "Job", "train")]


def test_members_of_two_jobs_name_the_controller_of_the_first() -> None:
    master = replace(
        pod("master-0", of=2), owner="m", controller=Controller("batch/v1", "Job", "master", "m")
    )
    worker = replace(
        pod("worker-0", of=2), owner="w", controller=Controller("batch/v1", "Job", "worker", "w")
    )
    world = World().start(node("a", 8))
    world.see(worker, master)
    world.run()
    assert posted(world, EventReason.PLACED) == [("v1", "Pod", "master-0"), ("batch/v1", "Job", "master")]


def test_every_event_is_on_one_object() -> None:
    world = World().start(node("a", 2))
    world.see(*gang(8, JOB))
    world.wait(120)
    assert world.events
    assert all(isinstance(event, EmitEvent) and len(event.objects) == 1 for event in world.events)
