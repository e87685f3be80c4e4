"""What controllers would create."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from muster.dialects.kinds.description import letters
from tests.files.manifests import Object, controller, decisions, node, place, pod, template, write

T = template("g", 2)


@dataclass(frozen=True)
class Case:
    """One object → its pods' names, as placed."""

    manifest: Object
    pods: list[str]
    note: str = ""


def job(**fields: object) -> Object:
    return controller("Job", "batch/v1", "j", **{"template": T, **fields})


def with_status(manifest: Object, **status: object) -> Object:
    return {**manifest, "status": status}


RS = controller("ReplicaSet", "apps/v1", "r", replicas=2, template=T)
TF = {"tfReplicaSpecs": {"Chief": {"template": T}, "PS": {"replicas": 1, "template": T}}}

CASES = {
    "a Job": Case(job(parallelism=2), ["j-bbbbb", "j-bbbbc"]),
    "an indexed Job": Case(
        job(parallelism=2, completions=2, completionMode="Indexed"), ["j-0-bbbbb", "j-1-bbbbc"]
    ),
    "no more at once than completions": Case(job(parallelism=5, completions=2), ["j-bbbbb", "j-bbbbc"]),
    "only what is left to do": Case(
        with_status(job(parallelism=4, completions=4), succeeded=2), ["j-bbbbb", "j-bbbbc"]
    ),
    "a suspended Job": Case(job(suspend=True), [], "Job default/j makes no pods: it is suspended"),
    "a finished Job": Case(
        with_status(job(), conditions=[{"type": "Complete", "status": "True"}]), [], "it has finished"
    ),
    "a ReplicaSet": Case(RS, ["r-bbbbb", "r-bbbbc"]),
    "a ReplicationController": Case({**RS, "kind": "ReplicationController", "apiVersion": "v1"},
        ["r-bbbbb", "r-bbbbc"]),
    "a StatefulSet": Case(
        controller(
            "StatefulSet", "apps/v1", "s", replicas=2, template=T,
            podManagementPolicy="Parallel", ordinals={"start": 3},
        ),
        ["s-3", "s-4"],
    ),
    "a StatefulSet that would hold its own gang up": Case(
        controller("StatefulSet", "apps/v1", "s", replicas=2, template=T),
        ["s-0", "s-1"],
        "StatefulSet default/s: its pods come one after another, so a gang of them would wait for ever",
    ),
    "a TFJob": Case(controller("TFJob", "kubeflow.org/v1", "t", **TF), ["t-chief-0", "t-ps-0"]),
    "a suspended TFJob": Case(
        controller("TFJob", "kubeflow.org/v1", "t", runPolicy={"suspend": True}, **TF), [], "is suspended"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_controllers_stand_for_their_pods(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    file = write(tmp_path, node("a"), case.manifest)
    answer = decisions(file)
    assert sorted(m["pod"] for g in answer["gangs"] for m in g["members"] if m["node"]) == case.pods
    assert case.note in " ".join(answer["notes"])
    assert bool(answer["notes"]) == bool(case.note)
    assert place(file).exit_code == (0 if case.pods else 4)


def test_a_deployments_pods_are_named_by_its_template(tmp_path: Path) -> None:
    def names(gpus: int) -> list[str]:
        manifest = controller("Deployment", "apps/v1", "d", replicas=2, template=template("g", 2, gpus))
        answer = decisions(write(tmp_path, node("a"), manifest))
        return [m["pod"] for m in answer["gangs"][0]["members"]]

    names_of_one, names_of_two = names(1), names(2)
    assert names_of_one == names(1)
    assert [name[:2] + name[-6:] for name in names_of_one] == ["d--bbbbb", "d--bbbbc"]
    assert names_of_one[0] != names_of_two[0]


def test_who_has_pods_already_makes_none(tmp_path: Path) -> None:
    owned = []
    for i in range(2):
        manifest = pod(f"j-real{i}", "g", 2)
        manifest["metadata"]["ownerReferences"] = [
            {"kind": "Job", "name": "j", "uid": "u", "controller": True}
        ]
        owned.append(manifest)
    answer = decisions(write(tmp_path, node("a"), job(parallelism=2), *owned))
    assert [m["pod"] for g in answer["gangs"] for m in g["members"]] == ["j-real0", "j-real1"]


def test_a_deployments_replica_set_speaks_for_it(tmp_path: Path) -> None:
    manifest = controller("Deployment", "apps/v1", "d", replicas=2, template=T)
    rs = {**RS, "metadata": {"name": "d-5f", "ownerReferences": [{"kind": "Deployment", "name": "d"}]}}
    rs["metadata"]["ownerReferences"][0]["controller"] = True
    answer = decisions(write(tmp_path, node("a"), manifest, rs))
    assert [m["pod"] for g in answer["gangs"] for m in g["members"]] == ["d-5f-bbbbb", "d-5f-bbbbc"]


def test_a_deployments_pods_speak_for_it(tmp_path: Path) -> None:
    manifest = controller("Deployment", "apps/v1", "d", replicas=2, template=T)
    rs = {"kind": "ReplicaSet", "name": "d-5f", "uid": "u", "controller": True}
    live = [pod(name, "g", 2) for name in ("d-5f-x", "d-5f-y")]
    for pod_manifest in live:
        pod_manifest["metadata"]["labels"]["pod-template-hash"] = "5f"
        pod_manifest["metadata"]["ownerReferences"] = [rs]
    answer = decisions(write(tmp_path, node("a"), manifest, *live))
    assert [m["pod"] for g in answer["gangs"] for m in g["members"]] == ["d-5f-x", "d-5f-y"]


def test_two_runs_under_one_name_are_two_gangs(tmp_path: Path) -> None:
    """As in the service: the owners tell them apart."""
    jobs = [{**job(parallelism=2), "metadata": {"name": name}} for name in ("first", "second")]
    answer = decisions(write(tmp_path, node("a"), *jobs))
    assert [[m["pod"] for m in g["members"]] for g in answer["gangs"]] == [
        ["first-bbbbb", "first-bbbbc"],
        ["second-bbbbb", "second-bbbbc"],
    ]


def test_generated_names(tmp_path: Path) -> None:
    manifest = pod("")
    manifest["metadata"] = {"generateName": "x-"}
    answer = decisions(write(tmp_path, node("a"), manifest, manifest))
    assert len({g["name"] for g in answer["gangs"]}) == 2


def test_letters_count_up() -> None:
    counted = [letters(n) for n in range(401)]
    assert counted == sorted(set(counted))
    assert not any(character.isdigit() for text in counted for character in text)
