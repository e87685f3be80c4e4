"""A mistake is told once for all its pods, and a scope in which no node lies by the label that is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.files.manifests import Object, decisions, node, place, pod, write


def annotated(name: str, **annotations: str) -> Object:
    manifest = pod(name)
    keys = {f"gpu.topology/{key.replace('_', '-')}": value for key, value in annotations.items()}
    manifest["metadata"]["annotations"] = keys
    return manifest


def one_gang(tmp_path: Path, *objects: Object) -> Any:
    (gang,) = decisions("-f", write(tmp_path, *objects))["gangs"]
    return gang


def test_twelve_pods_with_one_mistake_are_one_gang_with_one_cause(tmp_path: Path) -> None:
    pods = [annotated(f"train-{i:02}", gruop="train", min_member="12") for i in range(12)]
    gang = one_gang(tmp_path, node("a", 8), node("b", 8), *pods)
    assert (gang["name"], gang["status"], gang["present"]) == ("train", "invalid", 12)
    assert gang["message"] == (
        '12 pods (pod/default/train-00 is the first): gpu.topology/gruop is "train", '
        "expected none: did you mean gpu.topology/group?"
    )
    (cause,) = gang["causes"]
    assert cause == {
        "type": "bad-value",
        "where": "pod/default/train-00",
        "field": "gpu.topology/gruop",
        "value": "train",
        "expected": "none: did you mean gpu.topology/group?",
        "pods": 12,
    }


def test_one_misspelt_pod_of_a_gang_is_named(tmp_path: Path) -> None:
    pods = [annotated(f"train-{i}", group="train", min_member="3") for i in range(2)]
    gang = one_gang(tmp_path, node("a", 8), *pods, annotated("train-2", gruop="train", min_member="3"))
    assert gang["status"] == "invalid"
    assert gang["message"].startswith("pod/default/train-2: gpu.topology/gruop is")


@pytest.mark.parametrize(
    ("key", "message"),
    {
        "gpu-toplogy": '2 pods (pod/default/a is the first): label gpu-toplogy is "g", '
        "expected none: did you mean gpu-topology?",
        "kai.scheduler/subgroup-nmae": "expected none: did you mean kai.scheduler/subgroup-name?",
        "kai.scheduler/qeue": "expected none: did you mean kai.scheduler/queue?",
    }.items(),
)
def test_keys_of_other_dialects(tmp_path: Path, key: str, message: str) -> None:
    pods = [annotated(name, group="g", min_member="2") for name in "ab"]
    for manifest in pods:
        manifest["metadata"]["labels"] = {key: "g"}
    gangs = decisions("-f", write(tmp_path, node("a"), *pods))["gangs"]
    assert [gang["status"] for gang in gangs] == ["invalid"]
    assert message in gangs[0]["message"]


SCOPES = {
    "a level's label": (
        {"scope": "zone"},
        "No node carries the label topology.kubernetes.io/zone, which scope zone needs; "
        "the policies can name another label (docs/policies.md)",
    ),
    "a label key": (
        {"scope": "example.com/row"},
        "No node carries the label example.com/row, which scope example.com/row needs",
    ),
    "a misspelt word": (
        {"scope": "rak"},
        "No node carries the label rak, which scope rak needs; did you mean rack?",
    ),
    "a misspelt label of nodes": (
        {"scope": "topology.kubernetes.io/rak"},
        "No node carries the label topology.kubernetes.io/rak, which scope topology.kubernetes.io/rak needs; "
        "did you mean topology.kubernetes.io/rack?",
    ),
    "a role's": (
        {"role": "w", "role_scope": "zone"},
        "No node carries the label topology.kubernetes.io/zone, which scope zone of role w needs; "
        "the policies can name another label (docs/policies.md)",
    ),
}


@pytest.mark.parametrize("case", SCOPES)
def test_a_required_scope_without_a_label_is_refused_with_that_sentence(tmp_path: Path, case: str) -> None:
    keys, message = SCOPES[case]
    pods = [annotated(f"x-{i}", group="g", min_member="2", **keys) for i in range(2)]
    gang = one_gang(tmp_path, node("a"), *pods)
    assert gang["status"] == "unplaceable"
    assert gang["message"] == message
    assert gang["relaxations"] == []


def test_a_pod_that_is_not_held_is_noted_with_the_key_that_it_means(tmp_path: Path) -> None:
    """The scheduler's in-tree plugins place it: it asks for no GPU, and has no key of a gang."""
    launcher = pod("launcher", gpus=0)
    launcher["spec"]["containers"][0]["resources"] = {}
    launcher["metadata"]["labels"] = {"gpu-toplogy": "train"}
    result = place("-f", write(tmp_path, node("a"), launcher))
    assert "gpu-toplogy has no effect; did you mean gpu-topology?" in result.output
