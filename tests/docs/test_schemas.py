"""docs/schemas: generated from the code, and true of what the commands print."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import ValidationError

from checks.schemas import CHART, FOLDER, chart, texts
from muster.domain.causes.ill_formed import BadValue, IllFormed
from muster.domain.causes.not_planned import MembersMissing, Waiting
from muster.domain.reasons import Cause, cause_json, cause_type, kinds_of
from tests.files.manifests import DEMO, EXAMPLES, REPOSITORY, decisions, gang, node, place, pod, write
from tests.gangs.world import World
from tests.gangs.world import node as worlds_node
from tests.gangs.world import pod as worlds_pod
from tests.placement.test_sentences import GOLDEN
from tests.published import assert_as_published, validator

FEATURES = sorted((EXAMPLES / "features").glob("*.yaml"))


def test_the_files_are_what_the_types_give() -> None:
    published = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert published == texts(), "python -m checks.schemas writes them"


def test_the_chart_has_the_settings_of_the_service() -> None:
    written = CHART.read_text()
    assert written == chart(written), "python -m checks.schemas writes it"
    sections = json.loads(written)["$defs"]
    assert {"level", "format"} == {*sections["Log"]["properties"]}, "names of settings stay"


def as_printed(*arguments: str) -> Any:
    return json.loads(place(*arguments, "-o", "json").stdout)


@pytest.mark.parametrize("example", FEATURES, ids=lambda path: path.stem)
def test_answers_of_the_examples(example: Path) -> None:
    for nodes in (DEMO, EXAMPLES / "clusters" / "two-racks.yaml"):
        assert_as_published(as_printed("-f", str(nodes), "-f", str(example)), "place-v1.json")


def test_an_answer_of_each_status(tmp_path: Path) -> None:
    waiting, wrong = gang("waits", 3)[:2], gang("wrong", 2)
    wrong[0]["metadata"]["labels"]["gpu-topology-replica"] = "two"
    shared = pod("shares", gpus=0)
    shared["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": "3"}}
    sharing = node("b", 0)
    sharing["status"]["allocatable"] |= {"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "32"}
    objects = (node("a"), sharing, *gang("fits", 2), *gang("large", 2, gpus=8), *waiting, *wrong, shared)
    answer = as_printed("-f", write(tmp_path, *objects), "--explain")
    assert {gang["status"] for gang in answer["gangs"]} == {"placed", "waiting", "unplaceable", "invalid"}
    assert any("gpu_mem" in member for gang in answer["gangs"] for member in gang["members"])
    assert_as_published(answer, "place-v1.json")


@pytest.mark.parametrize("cause", [cause for cause, _ in GOLDEN], ids=str)
def test_each_cause(cause: Cause) -> None:
    validator("place-v1.json", type(cause).__name__).validate(json.loads(json.dumps(cause_json(cause))))


def test_every_class_of_causes_is_tried() -> None:
    assert {*kinds_of(Cause)} == {type(cause).__name__ for cause, _ in GOLDEN}


def test_a_status_says_of_each_gang_the_same_causes_as_place() -> None:
    """Refused, waiting and invalid ones, as the service encodes them."""
    world = World()
    world.start(worlds_node("a", 2))
    world.see(*(worlds_pod(f"l{i}", "large", of=2, gpus=2) for i in range(2)))
    world.see(worlds_pod("w0", "waits", of=3))
    wrong = BadValue("pod/ns/x", "label gpu-topology-replica", "two", "a positive integer")
    world.see(worlds_pod("x", "wrong", of=1, causes=(wrong,)))
    world.wait(1)
    gangs = world.coordinator.summary()
    assert {gang.phase: gang.causes[0].kind for gang in gangs} == {
        "unplaceable": "ClusterTooSmall",
        "collecting": "MembersMissing",
        "invalid": "BadValue",
    }
    status = {"version": 1, "kind": "status", "ready": True, "gangs": gangs, "notes": []}
    printed = json.loads(msgspec.json.encode(status))
    assert_as_published(printed, "status-v1.json")
    causes = {gang["name"]: gang["causes"][0]["cause"] for gang in printed["gangs"]}
    missing = {"type": "members-missing", "present": 1, "needed": 3, "role": ""}
    missing |= {"stateful_set": "", "stated_by": ""}
    assert causes["waits"] == missing
    assert causes["wrong"] == json.loads(json.dumps(cause_json(wrong)))
    assert causes["large"]["type"] == "cluster-too-small"


@pytest.mark.parametrize("field", ["type", "present"])
def test_a_cause_without_its_fields_is_no_status(field: str) -> None:
    cause = cause_json(MembersMissing(1, 3))
    del cause[field]
    view = {"kind": "MembersMissing", "says": "", "helps": "", "cause": cause}
    with pytest.raises(ValidationError):
        validator("status-v1.json", "CauseView").validate(view)


def test_the_page_lists_the_causes_by_status() -> None:
    text = (REPOSITORY / "docs/place.md").read_text()
    (row,) = re.findall(r"(?m)^\| `causes` .*$", text)
    listed = {
        status: {*re.findall(r"[\w-]+", types)}
        for status, types in re.findall(r"(?i)of `(\w+)`: ((?:`[\w-]+`(?:, )?)+)", row)
    }
    by_status = {"invalid": {*kinds_of(IllFormed).values()}, "waiting": {*kinds_of(Waiting).values()}}
    by_status["unplaceable"] = {*kinds_of(Cause).values()}.difference(*by_status.values())
    assert listed == {status: {*map(cause_type, causes)} for status, causes in by_status.items()}
    schema = json.loads((FOLDER / "place-v1.json").read_text())["$defs"]
    types = {schema[reference["$ref"].rpartition("/")[2]]["title"] for reference in schema["Cause"]["oneOf"]}
    assert set[str]().union(*listed.values()) == types


@pytest.mark.parametrize("change", [{"version": 2}, {"more": 1}, {"gangs": [{"name": "x"}]}], ids=str)
def test_another_answer_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    answer = decisions("-f", write(tmp_path, node("a"), *gang("train", 2)))
    with pytest.raises(ValidationError):
        assert_as_published({**answer, **change}, "place-v1.json")
