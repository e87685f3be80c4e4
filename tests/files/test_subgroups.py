"""Subgroups of KAI through the command: what each needs starts, although not all fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.manifests import Object, decisions, node, pod, spots, write

GROUP: Object = {
    "apiVersion": "scheduling.run.ai/v2alpha2",
    "kind": "PodGroup",
    "metadata": {"name": "g", "namespace": "default"},
    "spec": {"subGroups": [{"name": "prefill", "minMember": 2}, {"name": "decode", "minMember": 1}]},
}


def member(name: str, role: str) -> Object:
    made = pod(name)
    made["metadata"].setdefault("annotations", {})["pod-group-name"] = "g"
    made["metadata"].setdefault("labels", {})["kai.scheduler/subgroup-name"] = role
    return made


@pytest.mark.parametrize(
    ("gpus", "placed"),
    [(5, ["d-0", "p-0", "p-1", "p-2", "p-3"]), (4, ["d-0", "p-0", "p-1"]), (2, [])],
    ids=["all fit", "what each needs fits", "less fits"],
)
def test_of_each_subgroup_its_least_starts(gpus: int, placed: list[str], tmp_path: Path) -> None:
    pods = [*(member(f"p-{i}", "prefill") for i in range(4)), member("d-0", "decode")]
    (said,) = decisions(write(tmp_path, node("a", gpus), GROUP, *pods))["gangs"]
    assert sorted(spots(said)) == placed
