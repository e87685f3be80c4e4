"""Incomplete gangs hold: nothing of them is bound, everything else goes on."""

from __future__ import annotations

import pytest

from e2e import objects
from e2e.arena import Arena, unary_calls
from e2e.scene import Scene
from local_cluster.stack import Stack

WAITING = "gpu.topology/WaitingForMembers"


def waits(scene: Scene, pod: str) -> str:
    """The status of the pod's condition; "" if it has none."""
    return str(scene.conditions(pod).get(WAITING, {}).get("status", ""))


def test_an_incomplete_gang_waits_for_its_last_member(scene: Scene) -> None:
    scene.node(objects.node("a"))
    first, second = scene.create(*(objects.pod(f"w-{rank}", gang=objects.ack("g", 3)) for rank in (0, 1)))
    waiting = scene.event("TopologyWaiting", first)
    assert "2" in waiting.message
    assert "3" in waiting.message
    scene.until(
        lambda: [waits(scene, pod) for pod in (first, second)] == ["True"] * 2, "the pods say that they wait"
    )
    assert scene.conditions(first)[WAITING]["reason"] == "MembersMissing"
    # others go past it: a lone GPU pod, a cpu-only pod, another gang
    scene.runs(scene.create(objects.pod("lone"), objects.pod("cpu", gpus=0)))
    scene.runs(scene.create(*(objects.pod(f"o-{rank}", gang=objects.ack("other", 2)) for rank in (0, 1))))
    assert not {first, second} & scene.bound()

    (last,) = scene.create(objects.pod("w-2", gang=objects.ack("g", 3)))
    scene.runs([first, second, last])
    assert len(scene.events("TopologyWaiting", first)) == 1
    scene.until(
        lambda: [waits(scene, pod) for pod in (first, second)] == ["False"] * 2,
        "bound pods do not wait any more",
    )
    assert not {waits(scene, pod) for pod in (last, "lone", "cpu", "o-0", "o-1")} - {""}, "they never waited"


def test_a_deleted_waiting_member_is_replaced(scene: Scene) -> None:
    scene.node(objects.node("a"))
    gang = objects.ack("g", 3)
    first, second = scene.create(objects.pod("w-0", gang=gang), objects.pod("w-1", gang=gang))
    scene.event("TopologyWaiting", first)
    scene.delete(second)
    (third,) = scene.create(objects.pod("w-2", gang=gang))
    scene.runs(scene.create(objects.pod("lone")))  # time for a wrong decision: two of three are there again
    assert not {first, third} & scene.bound()
    (replacement,) = scene.create(objects.pod("w-1", gang=gang))
    scene.runs([first, third, replacement])


def test_a_member_of_an_unplaceable_gang_is_deleted_and_replaced(scene: Scene) -> None:
    scene.node(objects.node("a", gpus=2))
    gang = objects.ack("g", 3)
    names = scene.create(*(objects.pod(f"w-{rank}", gang=gang) for rank in range(3)))
    scene.event("TopologyUnplaceable", names[0])
    for name in names:
        scene.says(name, objects.GPU)
    scene.delete(names[0])
    scene.node(objects.node("b", gpus=2))
    scene.runs(scene.create(objects.pod("lone")))
    assert not {*names} & scene.bound()
    (replacement,) = scene.create(objects.pod("w-0", gang=gang))
    scene.runs([replacement, *names[1:]])


def test_a_cpu_only_member_waits_for_its_gang(scene: Scene) -> None:
    scene.node(objects.node("a"))
    gang = objects.ack("g", 2)
    (master,) = scene.create(objects.pod("master", gpus=0, gang=gang))
    scene.event("TopologyWaiting", master)
    scene.runs(scene.create(objects.pod("cpu", gpus=0)))
    assert master not in scene.bound()
    (worker,) = scene.create(objects.pod("worker", gpus=1, gang=gang))
    scene.runs([master, worker])


def test_a_cpu_only_pod_costs_no_unary_call(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a"))
    before = unary_calls(stack)
    scene.runs(scene.create(*(objects.pod(f"cpu-{number}", gpus=0) for number in range(5))))
    assert unary_calls(stack) == before
    assert not [event for event in scene.all_events() if event.reason.startswith("Topology")]


def test_a_podgroup_that_comes_after_half_of_its_pods(scene: Scene) -> None:
    """The halves meet, at once."""
    scene.node(objects.node("a"))
    words = objects.Words({}, {"scheduling.run.ai/pod-group": "g"})
    first = scene.create(*(objects.pod(f"w-{rank}", gang=words) for rank in (0, 1)))
    scene.runs(scene.create(objects.pod("lone")))
    assert scene.bound() == {"lone"}
    group = {"apiVersion": "scheduling.run.ai/v2", "kind": "PodGroup", "metadata": {"name": "g"}}
    scene.apply(group | {"spec": {"minMember": 4}})
    scene.event("TopologyWaiting", first[0])
    scene.runs(first + scene.create(*(objects.pod(f"w-{rank}", gang=words) for rank in (2, 3))))


def test_a_replacement_runs_though_its_sibling_has_completed(scene: Scene, arena: Arena) -> None:
    if arena.fenced:
        pytest.skip("needs a kwok that ends pods by annotation")
    scene.node(objects.node("a"))
    train = objects.job("train", objects.pod("template", gang=objects.ack("g", 2)), completions=2)
    train["spec"]["backoffLimit"] = 3  # a pod that somebody deletes counts as failed
    job = scene.create_job(train)
    scene.until(lambda: len(scene.pods_of_job(job)) == 2, "the job has two pods")
    done, deleted = scene.pods_of_job(job)
    scene.runs([done, deleted])
    scene.end(done)
    scene.client.delete(f"/api/v1/namespaces/{scene.name}/pods/{deleted}", grace_s=0)
    scene.until(lambda: {*scene.pods_of_job(job)} - {done, deleted}, "the job replaces the deleted pod")
    scene.runs({*scene.pods_of_job(job)} - {done, deleted})


def test_a_gated_member_is_not_there_yet(scene: Scene) -> None:
    scene.node(objects.node("a"))
    gang = objects.ack("g", 2)
    (gated,) = scene.create(
        objects.pod("w-0", gang=gang, spec={"schedulingGates": [{"name": "e2e.muster.dev/later"}]})
    )
    (ungated,) = scene.create(objects.pod("w-1", gang=gang))
    scene.event("TopologyWaiting", ungated)
    assert not scene.bound()
    scene.client.patch(f"/api/v1/namespaces/{scene.name}/pods/{gated}", {"spec": {"schedulingGates": None}})
    scene.runs([gated, ungated])


def test_a_gangs_name_is_used_again(scene: Scene) -> None:
    scene.node(objects.node("a"))
    for _ in range(2):
        names = scene.create(*(objects.pod(f"w-{rank}", gang=objects.ack("g", 2)) for rank in range(2)))
        scene.runs(names)
        scene.delete(*names)
    (alone,) = scene.create(objects.pod("w-0", gang=objects.ack("g", 2)))
    scene.event("TopologyWaiting", alone)
    assert alone not in scene.bound()
