"""Pods without GPUs that meant to name a gang: none starts alone for a slip in a key."""

from __future__ import annotations

import pytest

from e2e import objects
from e2e.scene import Scene

SLIPS = {
    "a misspelt annotation": objects.Words(annotations={"gpu.topology/gruop": "train"}),
    "the annotation as a label": objects.Words(labels={"gpu.topology/group": "train"}),
    "the label as an annotation": objects.Words(annotations={"gpu-topology": "train"}),
    "the recipe's annotation as a label": objects.Words(labels={"scheduling.run.ai/pod-group": "train"}),
    "a gang of another system": objects.Words(labels={"grove.io/podgang": "train"}),
    "a count without a name": objects.Words(labels={"gpu-topology-replica": "2"}),
}
"""What a pod says → held, with the key in its reason."""


@pytest.mark.parametrize("slip", SLIPS)
def test_a_pod_with_a_slip_is_held_and_says_so(scene: Scene, slip: str) -> None:
    words = SLIPS[slip]
    (key,) = (*words.labels, *words.annotations)
    scene.node(objects.node("a"))
    (held_pod,) = scene.create(objects.pod("launcher", gpus=0, gang=words))
    assert key.partition("-replica")[0] in scene.event("TopologyInvalid", held_pod).message
    scene.says(held_pod, "expected")
    scene.runs(scene.create(objects.pod("cpu", gpus=0)))
    assert held_pod not in scene.bound()


def test_a_mistake_of_many_pods_is_told_once(scene: Scene) -> None:
    scene.node(objects.node("a"))
    words = objects.Words(annotations={"gpu.topology/gruop": "train", "gpu.topology/min-member": "4"})
    held_pods = scene.create(*(objects.pod(f"train-{i}", gpus=1, gang=words) for i in range(4)))
    texts = {
        scene.says(held_pod, 'gpu.topology/gruop is "train", expected none: did you mean gpu.topology/group?')
        for held_pod in held_pods
    }
    assert len(texts) == 1


def test_a_scope_that_no_node_has_is_refused_with_its_label(scene: Scene) -> None:
    scene.node(objects.node("a"))
    words = objects.Words(annotations={"gpu.topology/scope": "rak"})
    (held_pod,) = scene.create(objects.pod("train", gpus=1, gang=words))
    scene.says(held_pod, "No node carries the label rak, which scope rak needs; did you mean rack?")


def test_a_pod_with_a_wish_and_no_gang_is_placed(scene: Scene) -> None:
    """It is a gang of one, that asks for no GPU."""
    scene.node(objects.node("a"))
    words = objects.Words(annotations={"gpu.topology/role": "launcher", "gpu.topology/rank": "0"})
    scene.runs(scene.create(objects.pod("launcher", gpus=0, gang=words)))
