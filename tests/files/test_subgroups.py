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
    manifest = pod(name)
    manifest["metadata"].setdefault("annotations", {})["pod-group-name"] = "g"
    manifest["metadata"].setdefault("labels", {})["kai.scheduler/subgroup-name"] = role
    return manifest


@pytest.mark.parametrize(
    ("gpus", "placed_pods"),
    [(5, ["d-0", "p-0", "p-1", "p-2", "p-3"]), (4, ["d-0", "p-0", "p-1", "p-2"]), (2, [])],
    ids=["all fit", "all but one fit", "less fits"],
)
def test_as_many_as_fit_start_and_the_least_of_each(
    gpus: int, placed_pods: list[str], tmp_path: Path
) -> None:
    pods = [*(member(f"p-{i}", "prefill") for i in range(4)), member("d-0", "decode")]
    (gang_shown,) = decisions(write(tmp_path, node("a", gpus), GROUP, *pods))["gangs"]
    assert sorted(spots(gang_shown)) == placed_pods


def test_where_no_rack_holds_a_subgroup_it_prefers_one_spine(tmp_path: Path) -> None:
    """After a random cluster: KAI falls back to the next wider level of the Topology."""
    spine, rack = "k8s.io/spine", "k8s.io/rack"
    levels: Object = {"levels": [{"nodeLabel": spine}, {"nodeLabel": rack}]}
    topology = {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": "t"},
        "spec": levels,
    }
    constraint = {"topologyConstraint": {"topology": "t", "preferredTopologyLevel": rack}}
    leaves: list[Object] = [
        {"name": f"{up}{i}", "parent": up, "minMember": 1} for up in "ab" for i in range(2)
    ]
    group = {**GROUP, "spec": {"subGroups": [*({"name": up, **constraint} for up in "ab"), *leaves]}}
    nodes = [node(f"n{s}{i}", 1, labels={spine: s, rack: f"{s}{i}"}) for s in "xy" for i in range(3)]
    pods = [member(leaf["name"], leaf["name"]) for leaf in leaves]
    (gang_shown,) = decisions(write(tmp_path, topology, group, *nodes, *pods))["gangs"]
    at = {name: spot[1] for name, spot in spots(gang_shown).items()}
    assert at["a0"] == at["a1"] != at["b0"] == at["b1"]
    assert {preference["reached"] for preference in gang_shown["objective"]["role_preferences"]} == {spine}
    assert gang_shown["optimal"]
