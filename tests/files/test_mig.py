"""MIG devices are counted by node and profile, as any other extended resource."""

from __future__ import annotations

from pathlib import Path

from tests.files.manifests import GPU, Object, decisions, gang, node, write

SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def mig_node(name: str, **devices: int) -> Object:
    manifest = node(name)
    names = {"small": SMALL, "large": LARGE}
    manifest["status"]["allocatable"] |= {names[key]: str(count) for key, count in devices.items()}
    return manifest


def asking(name: str, of: int, limits: dict[str, int]) -> list[Object]:
    pods = gang(name, of)
    for pod in pods:
        pod["spec"]["containers"][0]["resources"] = {"limits": limits}
    return pods


def test_a_gang_goes_where_there_are_enough_devices_of_its_profile(tmp_path: Path) -> None:
    nodes = [mig_node("a", small=3, large=4), mig_node("b", small=4)]
    answer = decisions("-f", write(tmp_path, *nodes, *asking("train", 2, {SMALL: 2})))
    (train,) = answer["gangs"]
    assert train["status"] == "placed"
    assert [member["node"] for member in train["members"]] == ["b", "b"]


def test_whole_gpus_and_devices_of_one_pod_are_on_one_node(tmp_path: Path) -> None:
    nodes = [mig_node("a"), mig_node("b", large=2)]
    answer = decisions("-f", write(tmp_path, *nodes, *asking("train", 2, {LARGE: 1, GPU: 2})))
    (train,) = answer["gangs"]
    assert [(member["node"], len(member["gpus"])) for member in train["members"]] == [("b", 2), ("b", 2)]


def test_a_refusal_names_the_profile_and_its_numbers(tmp_path: Path) -> None:
    answer = decisions("-f", write(tmp_path, mig_node("a", small=3), *asking("train", 2, {SMALL: 2})))
    (train,) = answer["gangs"]
    assert train["status"] == "unplaceable"
    (cause,) = train["causes"]
    assert cause["resource"] == SMALL
    assert cause["unit"] == "count"
    assert f"4 {SMALL}" in train["message"]
