"""Subgroups of KAI through the command: as many members as fit start, and what each subgroup needs."""

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
    [(5, ["d-0", "p-0", "p-1", "p-2", "p-3"]), (4, ["d-0", "p-0", "p-1", "p-2"]), (2, [])],
    ids=["all fit", "all but one fit", "less fits"],
)
def test_as_many_as_fit_start_and_the_least_of_each(gpus: int, placed: list[str], tmp_path: Path) -> None:
    pods = [*(member(f"p-{i}", "prefill") for i in range(4)), member("d-0", "decode")]
    (said,) = decisions(write(tmp_path, node("a", gpus), GROUP, *pods))["gangs"]
    assert sorted(spots(said)) == placed
