"""examples/: each file says what it shows, is in the list of all, and decides as its first lines say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.api import Object
from local_cluster.examples.catalogue import (
    EXAMPLES,
    Example,
    ExampleError,
    Outcome,
    catalogue,
    find,
    objects_in,
    read,
)
from muster.dialects.gangs import own
from tests.files.manifests import decisions

ALL = catalogue()
WITH_PODS = [name for name, example in ALL.items() if example.outcome.pods]
STATUS = {
    "": "placed",
    "TopologyWaiting": "waiting",
    "TopologyUnplaceable": "unplaceable",
    "TopologyInvalid": "invalid",
}


@pytest.mark.parametrize("name", WITH_PODS)
def test_muster_place_decides_as_its_first_lines_say(name: str) -> None:
    """The same files that `make example` applies, without a cluster."""
    example = ALL[name]
    before = [str(ALL[example_before].path) for example_before in example.before]
    gangs = decisions(str(example.cluster), *before, str(example.path))["gangs"]
    members = [member for gang in gangs for member in gang["members"]]
    placed_count = sum(member["node"] is not None for member in members)
    assert (placed_count, len(members)) == (example.outcome.running, example.outcome.pods)
    assert {gang["status"] for gang in gangs} == {STATUS[example.outcome.reason]}, gangs


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("[!c]*/*.yaml")) + sorted(EXAMPLES.glob("cgpu/*.yaml")))
def test_every_file_says_what_it_shows_and_its_pods_are_for_muster(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# Document: ")
    assert "\n# Shows: " in text
    assert all(spec["schedulerName"] == "muster" for body in objects_in(path) for spec in pod_specs(body))


def pod_specs(body: Object) -> Iterator[Object]:
    """The specs of the pods that an object is, or makes."""
    spec = body.get("spec") or {}
    if body["kind"] == "Pod":
        yield spec
    elif "template" in spec:
        yield spec["template"]["spec"]
    for replicas in (spec.get("pytorchReplicaSpecs") or {}).values():
        yield replicas["template"]["spec"]


def test_the_readme_lists_all_of_them_and_no_others() -> None:
    listed = re.findall(
        r"^\| \[`([\w./-]+)`\]\(([\w./-]+)\.yaml\) \|", (EXAMPLES / "README.md").read_text(), re.M
    )
    assert all(label == Path(target).name for label, target in listed)
    assert sorted(target for _, target in listed) == sorted(ALL)


def test_every_dialect_and_every_annotation_of_ours_has_an_example() -> None:
    text = "".join(example.path.read_text() for example in ALL.values())
    ours = {*own.KEYS} - {own.SIZE, own.ROLE_PREFERRED_SCOPES, *own.OF_VICTIMS}
    kai = {f"scheduling.run.ai/{key}" for key in ("pod-group", "topology-policy", "topology-role")}
    slices = {"aliyun.com/gpu-mem", "aliyun.com/gpu-count", "ack.node.gpu.placement"}
    for key in ours | kai | slices | {"gpu-topology", "gpu-topology-replica", "aliyun.com/gpu"}:
        assert re.search(rf"^\s+{re.escape(key)}: ", text, re.M), key


HEAD = "# Document: d\n# Shows:    one,\n#           two\n# Cluster:  documents\n"


def written(folder: Path, text: str) -> Example | None:
    """What is read of such a file."""
    (folder / "clusters").mkdir()
    (folder / "clusters" / "documents.yaml").write_text("")
    (folder / "some").mkdir()
    path = folder / "some" / "file.yaml"
    path.write_text(text)
    return read(path, folder)


def test_the_first_lines_are_read_up_to_the_first_that_is_no_field(tmp_path: Path) -> None:
    example = written(
        tmp_path, f"{HEAD}# With:     a/b c\n# Outcome:  0 of 2 run, TopologyWaiting\n#\n# Cluster: no\n"
    )
    assert example is not None
    assert (example.name, example.shows, example.before) == ("some/file", "one, two", ("a/b", "c"))
    assert example.outcome == Outcome(0, 2, "TopologyWaiting")
    assert str(example.outcome) == "0 of 2 run, TopologyWaiting"


def test_a_part_of_something_else_is_no_example(tmp_path: Path) -> None:
    assert written(tmp_path, "# Document: d\n# Shows:    s\n") is None


@pytest.mark.parametrize(
    ("text", "says"),
    {
        HEAD: "no field 'Outcome'",
        f"{HEAD}# Outcome:  some run\n": "some run",
        f"{HEAD}# Outcome:  1 of 2 run\n": "1 of 2 run",
        f"{HEAD}# Outcome:  2 of 2 run, TopologyWaiting\n": "2 of 2 run, TopologyWaiting",
        HEAD.replace("documents", "nowhere") + "# Outcome:  no pods\n": "nowhere.yaml",
    }.items(),
)
def test_first_lines_that_say_too_little_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ExampleError, match=re.escape(says)):
        written(tmp_path, text)


@pytest.mark.parametrize(
    "word", ["one-rack", "features/one-rack", "features/one-rack.yaml", "examples/features/one-rack.yaml"]
)
def test_an_example_is_found_by_its_name_or_its_path(word: str) -> None:
    assert find(word, ALL).name == "features/one-rack"


def test_a_slip_is_answered_with_what_comes_near() -> None:
    with pytest.raises(ExampleError, match="did you mean features/one-rack"):
        find("features/one-rak", ALL)
