"""The manifests of docs/native.md, and its table of mistakes with the sentence for each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.files.manifests import REPOSITORY, Object, decisions, node, nodes_of, pod, write

PAGE = (REPOSITORY / "docs/native.md").read_text()
TRAIN, TREE = re.findall(r"(?ms)^```yaml\n(.*?)^```", PAGE)
NODES = [node("a"), node("b"), node("c", rack="r2"), node("d", rack="r3")]


def train(annotations: dict[str, str] | None = None, **fields: Any) -> Object:
    """The PodGroup of the first manifest, with these annotations and fields."""
    group: Object = next(yaml.safe_load_all(TRAIN))
    group["metadata"] |= {"annotations": annotations or {}}
    group["spec"] |= fields
    return group


def tree(*names: str) -> list[Object]:
    """The groups of the second manifest with these names."""
    return [group for group in yaml.safe_load_all(TREE) if group["metadata"]["name"] in names]


def members(count: int, of: str = "train", **fields: Any) -> list[Object]:
    group = {"podGroupName": of}
    return [pod(f"{of}-{number}", gpus=4, schedulingGroup=group, **fields) for number in range(count)]


def in_domain(key: str) -> Object:
    return {"schedulingConstraints": {"topology": [{"key": key}]}}


MISTAKES: dict[str, Callable[[], list[Object]]] = {
    "the PodGroup is missing": lambda: members(4),
    "a pod is missing": lambda: [train(), *members(3)],
    "a key is Muster's word `rack`, not the label": lambda: [train(**in_domain("rack")), *members(4)],
    "no node has the label of a key": lambda: [train(**in_domain("example.com/row")), *members(4)],
    "the annotation `min-member` is not `minCount`": lambda: [
        train({"gpu.topology/min-member": "3"}),
        *members(4),
    ],
    "the PodGroup has a priority, its pods have none": lambda: [train(priority=1000), *members(4)],
    "a pod has another scheduler": lambda: [
        train(),
        *members(4),
        pod("other", schedulingGroup={"podGroupName": "train"}, schedulerName="default-scheduler"),
    ],
    "the CompositePodGroup is missing": lambda: [*tree("prefill"), *members(2, "prefill")],
    "a group of the tree is missing": lambda: [*tree("llm", "prefill"), *members(2, "prefill")],
}
TABLE = PAGE.partition("| mistake | sentence |")[2].partition("\n\n")[0]
ROWS = dict(re.findall(r"(?m)^\| (.+?) \| `(.+)` \|$", TABLE))


def test_the_table_has_each_mistake() -> None:
    assert list(ROWS) == list(MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_the_sentence_of_the_table(mistake: str, tmp_path: Path) -> None:
    (shown,) = decisions(write(tmp_path, *NODES, *MISTAKES[mistake]()))["gangs"]
    assert shown["status"] != "placed"
    assert ROWS[mistake] in shown["message"]


def test_the_groups_of_the_tree_start_together_with_one_part_in_a_rack(tmp_path: Path) -> None:
    pods = [*members(2, "prefill"), *members(1, "decode")]
    answer = decisions(write(tmp_path, *NODES, *tree("llm", "prefill", "decode"), *pods))
    (shown,) = answer["gangs"]
    assert (shown["name"], shown["status"], answer["notes"]) == ("llm", "placed", [])
    nodes = nodes_of(answer)
    assert {nodes["prefill-0"], nodes["prefill-1"]} == {"a", "b"}


def test_each_group_of_the_tree_names_one_workload() -> None:
    names = {group["spec"]["workloadRef"]["workloadName"] for group in yaml.safe_load_all(TREE)}
    assert names == {"llm"}
