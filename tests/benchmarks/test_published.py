"""The list of published manifests: what is placed and renamed, and which cause explains what is said."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import yaml

from benchmarks.published.__main__ import HERE
from benchmarks.published.judgement import Rule, rules
from benchmarks.published.place import AS_IS, INFERRED, kinds, outcome, renamed
from tests.files.manifests import controller, node, template, write


def test_only_the_name_of_the_scheduler_changes(tmp_path: Path) -> None:
    pods = template()
    pods["spec"]["schedulerName"] = "default-scheduler"
    job = controller("Job", "batch/v1", "x", parallelism=2, completions=2, template=pods)
    changed = renamed(Path(write(tmp_path, job)), tmp_path / "renamed")
    pods["spec"]["schedulerName"] = "muster"
    assert json.loads(changed.read_text()) == yaml.safe_load(yaml.safe_dump(job))


def test_a_file_without_pods_is_left_out_and_a_template_is_not(tmp_path: Path) -> None:
    assert kinds(Path(write(tmp_path, {"apiVersion": "v1", "kind": "Service", "metadata": {}}))) == ()
    unrendered = tmp_path / "t.yaml"
    unrendered.write_text("spec: {{ .x }} {{ .y }}\ncontainers:")
    assert kinds(unrendered) == ("unreadable",)


def test_the_outcome_as_it_is_and_inferred(tmp_path: Path) -> None:
    job = controller(
        "Job", "batch/v1", "x",
        parallelism=2, completions=2, completionMode="Indexed", template=template(),
    )  # fmt: skip
    file = Path(write(tmp_path, node("a"), job))
    as_is, inferred = (outcome([file], mode) for mode in (AS_IS, INFERRED))
    assert (as_is.status, inferred.status) == ("placed 2", "placed 1")
    assert [note.split(": ")[0] for note in as_is.said] == ["Job default/x"]


def test_the_first_cause_explains_a_sentence_and_only_in_its_files() -> None:
    rule = Rule("x", "right", "because", "no GPU", ("kai/docs/*",))
    assert rule.explains("asks for no GPU", "kai/docs/a.yaml")
    assert not rule.explains("asks for no GPU", "hami/a.yaml")


def test_each_cause_of_the_list_is_judged() -> None:
    verdicts = {rule.name: rule.verdict for rule in rules()}
    assert set(verdicts.values()) <= {"right", "wrong", "badly told"}
    with (HERE / "outcomes.csv").open(encoding="utf-8") as file:
        causes = {name for row in csv.DictReader(file) for name in row["causes"].split("; ") if name}
    assert causes <= set(verdicts)
