"""What only kind shows: containers on kubelets, Muster as pods, a leader that is deleted, `muster status`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from e2e import kind
from e2e.audit import EVICTED_S
from e2e.documents import manifests
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.examples.objects import collection
from local_cluster.stack_config import leader

MUSTER = "/api/v1/namespaces/muster-system/pods"


@pytest.fixture(autouse=True)
def on_kind(request: pytest.FixtureRequest) -> None:
    """Skip where the cluster under test is not kind's."""
    if request.config.getoption("--cluster") != "kind":
        pytest.skip("needs the cluster of `make kind-up`: --cluster kind")


@pytest.fixture
def pause(scene: Scene) -> str:
    """Return the pause image that kind's nodes have: a container that runs and does nothing."""
    nodes = scene.client.get("/api/v1/nodes")["items"]
    images = [image for node in nodes for image in node["status"].get("images") or ()]
    names = [name for image in images for name in image.get("names") or ()]
    return str(next(name for name in names if "/pause:" in name))


def idle(body: Object, image: str) -> Object:
    """Return the object with containers that do nothing, and no more CPU or memory than kind's nodes have."""
    changed: Object = deepcopy(body)
    pod: dict[str, Any] = changed if changed["kind"] == "Pod" else changed["spec"].get("template") or {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        container["image"] = image
        container.pop("command", None)
        container.pop("args", None)
        for amounts in (container.get("resources") or {}).values():
            for name in ("cpu", "memory"):
                amounts.pop(name, None)
    return changed


def on_kubelets(scene: Scene, image: str, bodies: list[Object]) -> None:
    """Apply objects in the scene's namespace, for kind's own nodes and no others."""
    for body in bodies:
        idle_body = idle(body, image)
        idle_body["metadata"]["namespace"] = scene.name
        scene.client.post(collection(idle_body), idle_body)


def run_all(scene: Scene, count: int) -> list[str]:
    scene.until(lambda: len(scene.pods()) == count, f"{count} pods")
    names = sorted(scene.pods())
    scene.runs(names)
    return names


DOCUMENTS = {
    "ack/pytorchjob-pods": (2, {"muster-worker", "muster-worker2"}, 1),
    "gputopology/test-gpu": (1, {"muster-worker", "muster-worker2"}, 1),
    "cgpu/cgpu-test": (1, {"muster-worker5"}, 1),
    "cgpu/cgpu-test-no-isolation": (1, {"muster-worker6"}, 1),
    "kai-recipe/multi-node-tas": (2, {"muster-worker3", "muster-worker4"}, 2),
}
"""Example → its pods, the nodes that may run them, and on how many of these they run."""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_gang_of_each_document_runs_on_kubelets(scene: Scene, pause: str, name: str) -> None:
    count, may_run, node_count = DOCUMENTS[name]
    on_kubelets(scene, pause, manifests(name))
    pods = run_all(scene, count)
    nodes = {scene.pods()[pod].node for pod in pods}
    assert nodes <= may_run
    assert len(nodes) == node_count


@pytest.mark.grace(EVICTED_S)
def test_the_leader_is_deleted_and_the_next_gang_is_bound(scene: Scene, pause: str) -> None:
    on_kubelets(scene, pause, manifests("ack/pytorchjob-pods"))
    before = run_all(scene, 2)
    first = leader(scene.client)
    scene.client.delete(f"{MUSTER}/{first.partition('_')[0]}")
    on_kubelets(scene, pause, manifests("kai-recipe/multi-node-tas"))
    after = [name for name in run_all(scene, 4) if name not in before]
    assert len(after) == 2
    assert leader(scene.client) != first


def test_status_in_the_leaders_pod(scene: Scene, pause: str) -> None:
    """The README's command: `muster` is on PATH, and finds the service next to it."""
    on_kubelets(scene, pause, manifests("ack/pytorchjob-pods")[:1])
    scene.event("TopologyWaiting")
    pod = leader(scene.client).partition("_")[0]
    shown = kind.kubectl(
        "exec", "--namespace=muster-system", pod, "--container=service", "--", "muster", "status", "--json"
    )
    assert scene.name in shown
