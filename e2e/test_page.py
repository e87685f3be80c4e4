"""The page of the real service: who has which GPU, and why a gang waits."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import urllib3

from e2e import objects
from e2e.scene import Scene
from e2e.test_placing import mesh_node
from local_cluster.patience import HANG_S
from local_cluster.stack import Stack
from tests.local_cluster.cluster_waiting import eventually


def asked(stack: Stack, path: str) -> Any:
    """Return what the page's own scripts would read."""
    answer = urllib3.request("GET", stack.page_url + path, timeout=HANG_S, retries=False)
    assert answer.status == 200, answer.data
    return json.loads(answer.data)


def owners(state: Any, node: str) -> list[str]:
    """Return the name of the gang of each GPU of a node; "" for none."""
    gang_of_number = {int(number): key.split("/")[2] for number, key in state["owners"].items()}
    first = 0
    for name, gpus, *_ in (box for _, boxes in state["layout"]["groups"] for box in boxes):
        if name == node:
            return [gang_of_number.get(number & ~1, "") for number in state["cells"][first : first + gpus]]
        first += gpus
    return []


def key(state: Any, scene: Scene, name: str) -> str:
    """Return the key of a gang of the scene."""
    keys = (gang for gang in state["gangs"] if (gang["namespace"], gang["name"]) == (scene.name, name))
    return str(next(keys)["key"])


def test_the_page_shows_gpus_with_their_gang_and_why_another_waits(scene: Scene, stack: Stack) -> None:
    node = scene.node(mesh_node())
    pair = scene.create(*(objects.document_replica(f"pair-{rank}", "pair", 2) for rank in range(2)))
    scene.runs(pair)
    scene.create(*(objects.pod(f"big-{rank}", gpus=8, gang=objects.ack("big", 2)) for rank in range(2)))
    state: Any = None

    def both_are_there() -> bool:
        nonlocal state
        state = asked(stack, "api/state")
        phases = {gang["name"]: gang["phase"] for gang in state["gangs"] if gang["namespace"] == scene.name}
        return phases == {"pair": "running", "big": "unplaceable"}

    eventually(both_are_there, "the page shows both gangs")
    theirs = {gpu for pod in pair for gpu in scene.gpus(pod)}
    assert owners(state, node) == ["pair" if gpu in theirs else "" for gpu in range(8)]
    runs = asked(stack, f"api/gang?key={quote(key(state, scene, 'pair'))}")
    assert runs["nodes"][0]["links"] == [["X", "NV2"], ["NV2", "X"]]
    assert [step["phase"] for step in runs["timeline"]][-2:] == ["permitted", "running"]
    waits = asked(stack, f"api/gang?key={quote(key(state, scene, 'big'))}")
    assert waits["gang"]["causes"]
    assert waits["without_place"] == 2
