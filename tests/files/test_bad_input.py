"""Malformed input: one line a file, naming file, object and field; exit 2, and nothing on stdout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from muster.adapters.files.reading import sources
from tests.files.manifests import controller, node, place, pod, template, write

PRINTED = "`kubectl get … -o yaml` prints it"
NODE = json.dumps(node("a"))
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: "
JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: "


@dataclass(frozen=True)
class Bad:
    text: str
    line: str
    name: str = "bad.yaml"


BAD = {
    "limits are text": Bad(
        f"{NODE}\n---\n---\n{POD}{{containers: [{{name: c, resources: {{limits: x}}}}]}}",
        "bad.yaml: document 3, Pod default/x: spec.containers[0].resources.limits: "
        "expected object, got string",
    ),
    "a label is a number": Bad(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x, labels: {ok: a, gpu-topology-replica: 2}}",
        "bad.yaml: document 1, Pod default/x: metadata.labels[gpu-topology-replica]: "
        "expected string, got integer",
    ),
    "a label's value is none": Bad(
        'apiVersion: v1\nkind: Pod\nmetadata: {name: x, labels: {gpu-topology: "a b"}}',
        'metadata.labels[gpu-topology]: expected a label\'s value, got "a b"',
    ),
    "a key is no text": Bad(
        "apiVersion: v1\nkind: Node\nmetadata: {name: a, labels: {1: a}}",
        "Node a: metadata.labels: expected keys that are string, got integer",
    ),
    "a key is no text, beside a null": Bad(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x, labels: {2: a, k: null}}",
        "Pod default/x: metadata.labels: expected keys that are string, got integer",
    ),
    "an amount is a list": Bad(
        "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {allocatable: {cpu: '1', pods: [1]}}",
        "Node a: status.allocatable.pods: expected integer or number or string, got list",
    ),
    "a pod has no name": Bad(
        "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c}]}",
        "document 1, Pod default/(no name): metadata.name: expected, but not given",
    ),
    "a name that can't be": Bad(
        "apiVersion: v1\nkind: Node\nmetadata: {name: 'A\\e[31m'}".replace("'", '"'),
        "metadata.name: expected lower-case letters, digits, '-' and '.', got \"A\\x1b[31m\"",
    ),
    "no containers": Bad(f"{POD}{{}}", "Pod default/x: spec.containers: expected at least one container"),
    "a list of objects that is one": Bad(
        f"{POD}{{containers: {{name: c}}}}", "Pod default/x: spec.containers: expected list, got object"
    ),
    "no kind": Bad("apiVersion: v1", "document 1: no Kubernetes object: kind missing"),
    "no apiVersion": Bad("kind: Pod", "document 1: no Kubernetes object: apiVersion missing"),
    "a document is text": Bad(
        "hello",
        f"bad.yaml: document 1: expected a Kubernetes object, as {PRINTED}, got string",
    ),
    "items are no list": Bad(
        "apiVersion: v1\nkind: List\nitems: {}", "document 1, List: items: expected list, got object"
    ),
    "an item of a list": Bad(
        f"apiVersion: v1\nkind: List\nitems:\n- {NODE}\n- 5",
        f"bad.yaml: document 1, item 2: expected a Kubernetes object, as {PRINTED}, got integer",
    ),
    "broken YAML": Bad("a: [\n", "bad.yaml: line 2: no valid YAML: "),
    "a key given twice": Bad("kind: Pod\nkind: Node", 'line 2: no valid YAML: "kind" is given twice'),
    "broken JSON": Bad("{", "bad.json: no valid JSON: ", "bad.json"),
    "a key given twice in JSON": Bad('{"a":1,"a":2}', 'no valid JSON: "a" is given twice', "bad.json"),
    "not a number": Bad('{"a":NaN}', "no valid JSON: NaN is no JSON", "bad.json"),
    "nested too deeply": Bad("[" * 100_000, "bad.json: nested too deeply", "bad.json"),
    "nested too deeply in YAML": Bad("- " * 100_000, "bad.yaml: line 1: nested too deeply"),
    "nested too deeply in flow": Bad("a: " + "{b: [" * 100_000, "bad.yaml: line 1: nested too deeply"),
    "a number that nobody can print": Bad(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: x}}\nspec: {{priority: 0x{'f' * 5_000}}}",
        "bad.yaml: line 4: no valid YAML: a number of more than 1024 bits",
    ),
    "half a character": Bad('{"a":"\\ud800"}', "no valid JSON: ", "bad.json"),
    "a kind that is deep": Bad(
        '{"apiVersion":"v1","kind":' + "[" * 900 + "]" * 900 + "}", 'like "Pod", got list', "bad.json"
    ),
    "a field that is deep": Bad(
        '{"apiVersion":"v1","kind":"Pod","spec":' + "[" * 900 + "]" * 900 + "}",
        "spec: expected object, got list",
        "bad.json",
    ),
    "lists without end": Bad(
        '{"apiVersion":"v1","kind":"List","items":[' * 20 + "]}" * 20, "lists within each other"
    ),
    "a template is missing": Bad(f"{JOB}{{}}", "Job default/j: spec.template: expected, but not given"),
    "a count below zero": Bad(
        f"{JOB}{{parallelism: -1}}",
        "Job default/j: spec.parallelism: expected a whole number that is not negative",
    ),
    "a count that is text": Bad(
        f"{JOB}{{completions: 'two'}}",
        'spec.completions: expected a whole number that is not negative: 0, 1, …, got the string "two"',
    ),
    "too many pods": Bad(
        json.dumps(controller("Deployment", "apps/v1", "d", replicas=10**9, template=template())),
        "Deployment default/d: spec.replicas: expected at most 200,000, got 1000000000",
    ),
    "inside a template": Bad(
        f"{JOB}{{template: {{spec: {{containers: [{{name: c, resources: {{requests: 1}}}}]}}}}}}",
        "spec.template.spec.containers[0].resources.requests: expected object, got integer",
    ),
    "a PyTorchJob without replicas": Bad(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: p}\nspec: {}",
        "p: spec.pytorchReplicaSpecs: expected replica types with a pod template each, but not given",
    ),
    "inside a PyTorchJob": Bad(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: p}\n"
        "spec: {pytorchReplicaSpecs: {Worker: {replicas: 1, template: {spec: []}}}}",
        "spec.pytorchReplicaSpecs.Worker.template.spec: expected object, got list",
    ),
    "two nodes of one name": Bad(
        f"{NODE}\n---\n{NODE}", "bad.yaml: document 2, Node a: is given twice, first in "
    ),
    "two pods of one name": Bad(
        f"{NODE}\n---\n{json.dumps(pod('x'))}\n---\n{json.dumps(pod('x'))}",
        "bad.yaml: document 3, Pod default/x: is given twice, first in ",
    ),
    "a controller's pod that is there": Bad(
        "\n---\n".join(
            json.dumps(manifest)
            for manifest in (
                node("a"),
                pod("s-0"),
                controller("StatefulSet", "apps/v1", "s", replicas=1, template=template()),
            )
        ),
        "StatefulSet default/s: its Pod default/s-0 is given twice, first in ",
    ),
    "nothing": Bad("", "the input has no object: there is nothing to place on. Add one file more"),
    "no node": Bad(json.dumps(pod("x")), "no Node in the input (it has Pod 1): there is nothing to place on"),
    "another tool's input": Bad("replicaCount: 1", "Pass what `helm template` prints", "values.yaml"),
    "a template": Bad("a: {{ .Values.x }} {{ .b }}", "it is a template: render it first (Helm: "),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, tmp_path: Path) -> None:
    bad = BAD[case]
    file = tmp_path / bad.name
    file.write_text(bad.text)
    result = place("-f", str(file))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert bad.line in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr[:-1].isprintable()


def test_each_file_has_its_line_and_nothing_is_placed(tmp_path: Path) -> None:
    good = write(tmp_path, node("a"), pod("fits"), name="good.yaml")
    wrong = write(tmp_path, pod("x", containers=5), pod("y", containers=6), name="wrong.yaml")
    second_file = write(tmp_path, node("n", spec=7), name="other.yaml")
    result = place(good, wrong, second_file, "-o", "json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"{wrong}: document 1, Pod default/x: spec.containers: expected list, got integer "
        "(and 1 more in this file)",
        f"{second_file}: document 1, Node n: spec: expected object, got integer",
    ]


def test_two_pods_of_one_uid(tmp_path: Path) -> None:
    pods = [pod("x"), pod("y")]
    for manifest in pods:
        manifest["metadata"]["uid"] = "u"
    assert "metadata.uid: another pod has it too" in place(write(tmp_path, node("a"), *pods)).stderr


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    (tmp_path / "empty").mkdir()
    for path, line in (
        ("none.yaml", "none.yaml: can't be read: No such file or directory"),
        ("latin.yaml", "latin.yaml: byte 4: expected UTF-8 text"),
        ("empty", "no .yaml, .yml, .json in this folder"),
    ):
        result = place(str(tmp_path / path))
        assert (result.exit_code, line in result.stderr) == (2, True), result.output
    assert "given twice" in place("-", "-f", "-", stdin="").stderr
    assert "no input" in place().stderr


def test_a_file_that_is_too_large_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 2**20)
    (tmp_path / "large.yaml").write_bytes(b" " * (2**20 + 1))
    result = place(str(tmp_path / "large.yaml"))
    assert (result.exit_code, "large.yaml: larger than 1 MiB" in result.stderr) == (2, True)


def test_aliases_can_not_make_much_of_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_OBJECTS", 1000)
    laughs = "a0: &a0 {apiVersion: v1, kind: Service}\n"
    for i in range(1, 8):
        items = ", ".join([f"*a{i - 1}"] * 9)
        laughs += f"a{i}: &a{i} {{apiVersion: v1, kind: List, items: [{items}]}}\n"
    file = tmp_path / "laughs.yaml"
    file.write_text(laughs + "apiVersion: v1\nkind: List\nitems: [*a7]\n")
    assert "more than 1,000 objects" in place(str(file)).stderr
