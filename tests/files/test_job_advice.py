"""What a note says would make a job a gang, done to the manifest and placed: it must become that gang."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from muster.dialects.kinds.table import KINDS
from tests.files.manifests import GPU, Object, decisions, node, pod, write
from tests.files.test_kinds import CASES as GANGS
from tests.files.test_kinds import CPU, JOB, RUNTIME, SMALL, TRAIN_JOB, T, kubeflow, manifest

WARN = ("--infer-gangs", "StatefulSet=warn")
PLAIN = {"parallelism": 4, "completions": 4, "template": T}


def job_set(*parts: Object, annotations: dict[str, str] | None = None, **fields: object) -> Object:
    spec = {"replicatedJobs": list(parts), **fields}
    return manifest("jobset.x-k8s.io/v1alpha2", "JobSet", "x", spec, annotations=annotations or {})


def workers(name: str, pods: int, replicas: int = 1) -> Object:
    job = {**JOB, "parallelism": pods, "completions": pods}
    return {"name": name, "replicas": replicas, "template": {"spec": job}}


def stateful_set(policy: str) -> Object:
    spec = {"replicas": 3, "podManagementPolicy": policy, "template": T}
    return manifest("apps/v1", "StatefulSet", "x", spec)


def lws(replicas: int, annotations: dict[str, str] | None = None, **fields: object) -> Object:
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"size": 3, "workerTemplate": T}, **fields}
    metadata_annotations = annotations or {}
    return manifest(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve", spec, annotations=metadata_annotations
    )


def ray(**group: int) -> Object:
    group_spec = {"groupName": "gpus", "template": T, **group}
    spec = {"headGroupSpec": {"template": CPU}, "workerGroupSpecs": [group_spec]}
    return manifest("ray.io/v1", "RayCluster", "x", spec)


def elastic() -> Object:
    job = kubeflow("PyTorchJob", "pytorchReplicaSpecs", Master=1, Worker=3)
    job["spec"]["elasticPolicy"] = {"minReplicas": 2}
    return job


def mpi() -> Object:
    job = kubeflow("MPIJob", "mpiReplicaSpecs", "v2beta1", Launcher=1, Worker=3)
    job["spec"]["launcherCreationPolicy"] = "WaitForWorkersReady"
    return job


def by_cron(template: Object = T) -> Object:
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "c", "controller": True}
    spec = {**PLAIN, "template": template}
    return manifest("batch/v1", "Job", "nightly-1", spec, ownerReferences=[owner])


OBJECTS: dict[str, tuple[Object, ...]] = {
    **{name: case.objects for name, case in GANGS.items()},
    "Job of pods that are not numbered": (manifest("batch/v1", "Job", "x", PLAIN),),
    "Job that is a queue of work": (manifest("batch/v1", "Job", "x", {**PLAIN, "completions": 8}),),
    "Job of a CronJob": (by_cron(),),
    "JobSet in order": (
        job_set(workers("first", 3), workers("later", 2), startupPolicy={"startupPolicyOrder": "InOrder"}),
    ),
    "JobSet with a domain for each Job": (
        job_set(
            workers("w", 3, 2),
            annotations={"alpha.jobset.sigs.k8s.io/exclusive-topology": "topology.kubernetes.io/rack"},
        ),
    ),
    "JobSet whose driver has no GPUs": (job_set(SMALL, workers("w", 3)),),
    "LeaderWorkerSet of two groups": (lws(2),),
    "LeaderWorkerSet of one group": (lws(1),),
    "LeaderWorkerSet whose leader comes first": (lws(2, startupPolicy="LeaderReady"),),
    "MPIJob whose launcher waits": (mpi(),),
    "PyTorchJob that is elastic": (elastic(),),
    "RayCluster of some workers": (ray(replicas=3, minReplicas=1),),
    "StatefulSet pod by pod": (stateful_set("OrderedReady"),),
}
PROMISE = re.compile(
    r"(?P<title>\S+ \S+): its (?P<pods>\d+) pods name no gang: each is placed alone, and the job may start "
    r"in part\. To make them (?:one gang|(?P<gangs>\d+) gangs) of (?P<size>\d+)"
    r"(?:, of which (?P<least>\d+) (?:must start together|comes? first))?, (?P<ways>.*)"
)


@dataclass(frozen=True)
class Promise:
    """What the note says: the number of gangs, their pods, and each way to get there."""

    pods: int
    gangs: int
    size: int
    least: int
    ways: list[str]


def promised(notes: list[str]) -> Promise:
    (note,) = [note for note in notes if "name no gang" in note]
    match = PROMISE.fullmatch(note)
    assert match is not None, note
    size = int(match["size"])
    ways = match["ways"].split("; or ")
    return Promise(int(match["pods"]), int(match["gangs"] or 1), size, int(match["least"] or size), ways)


def applied(way: str, objects: tuple[Object, ...]) -> tuple[tuple[Object, ...], list[str]]:
    """Return the objects and the options after each step of a way."""
    objects, options = copy.deepcopy(objects), [*WARN]
    job = next(manifest for manifest in objects if "Runtime" not in manifest["kind"])
    for step in way.split(", and "):
        if match := re.fullmatch(r"set infer_gangs to on for (\w+)", step):
            options = ["--infer-gangs", f"{match[1]}=on"]
        elif match := re.fullmatch(r"set spec\.(\w+) to (\w+)", step):
            job["spec"][match[1]] = match[2]
        elif match := re.fullmatch(r"label the job (\S+): (\S+)", step):
            job["metadata"].setdefault("labels", {})[match[1]] = match[2]
        elif match := re.fullmatch(r'annotate the job (\S+): "(\d+)"', step):
            job["metadata"].setdefault("annotations", {})[match[1]] = match[2]
        else:
            match = re.fullmatch(r"annotate each pod template: (\S+): (\S+), (\S+): \"(\d+)\"", step)
            assert match is not None, step
            for template in templates(job):
                template_annotations = template.setdefault("metadata", {}).setdefault("annotations", {})
                template_annotations |= {match[1]: match[2], match[3]: match[4]}
    return objects, options


def templates(value: Any) -> Iterator[Object]:
    """Yield every pod template in an object."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(inner, dict) and "containers" in inner.get("spec", {}):
            yield inner
        else:
            yield from templates(inner)


def gpus_of(members: list[Object]) -> int:
    return sum(len(member["gpus"]) for member in members)


@pytest.mark.parametrize("name", OBJECTS)
def test_each_way_makes_the_gang_that_the_note_promises(name: str, tmp_path: Path) -> None:
    """A gang has all its pods, and starts with as many as it says, but with none if one more is missing."""
    objects = OBJECTS[name]
    promise = promised(decisions(write(tmp_path, node("a", 8), *objects), *WARN)["notes"])
    assert promise.pods == promise.gangs * promise.size
    assert promise.ways
    for way in promise.ways:
        done, options = applied(way, objects)
        racks = (node("a", 8), node("b", 8, "r2"))
        answer = decisions(write(tmp_path, *racks, *done), *options)
        assert [note for note in answer["notes"] if "name no gang" in note] == [], way
        assert [gang["status"] for gang in answer["gangs"]] == ["placed"] * promise.gangs, way
        assert all(len(gang["members"]) >= promise.size for gang in answer["gangs"]), way
        for short in range(gpus_of(answer["gangs"][0]["members"])):
            (gang, *_) = decisions(write(tmp_path, node("a", short), *done), *options)["gangs"]
            placed_members = [member for member in gang["members"] if member["node"]]
            assert len(placed_members) in {0, *range(promise.least, len(gang["members"]) + 1)}, (way, short)


def test_every_kind_is_advised() -> None:
    assert set(KINDS) <= {name.partition(" ")[0] for name in OBJECTS}


ADVICE = {
    "Job of pods that are not numbered": (
        'annotate each pod template: gpu.topology/group: x, gpu.topology/min-member: "4"; or set infer_gangs '
        "to on for Job, and set spec.completionMode to Indexed"
    ),
    "Job that is a queue of work": (
        'annotate each pod template: gpu.topology/group: x, gpu.topology/min-member: "4"'
    ),
    "LeaderWorkerSet of two groups": (
        "set infer_gangs to on for LeaderWorkerSet; or label the job kai.scheduler/queue: default"
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_a_way_that_makes_another_gang_is_not_advised(name: str, tmp_path: Path) -> None:
    notes = decisions(write(tmp_path, node("a", 8), *OBJECTS[name]))["notes"]
    assert "; or ".join(promised(notes).ways) == ADVICE[name]


def test_no_template_of_a_shared_runtime_is_to_name_one_gang(tmp_path: Path) -> None:
    """Two TrainJobs of one runtime would be one gang."""
    assert GPU in str(TRAIN_JOB)
    notes = decisions(write(tmp_path, node("a", 8), TRAIN_JOB, RUNTIME))["notes"]
    assert "annotate" not in "".join(promised(notes).ways)


TPU = {"google.com/tpu": "4"}
TPU_POD = {"spec": {"schedulerName": "muster", "containers": [{"name": "c", "resources": {"limits": TPU}}]}}
CLAIMING = {
    "spec": {
        "schedulerName": "muster",
        "containers": [{"name": "c"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
    }
}
CLAIM_TEMPLATE = manifest(
    "resource.k8s.io/v1",
    "ResourceClaimTemplate",
    "t",
    {"spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}},
)
WITH_TPUS: dict[str, tuple[Object, str]] = {
    "Job": (
        manifest("batch/v1", "Job", "x", {**JOB, "parallelism": 4, "completions": 4, "template": TPU_POD}),
        "Job default/x: its 4 pods name no gang: each is placed alone, and the job may start in part. "
        "To make them one gang of 4, annotate each pod template: gpu.topology/group: x, "
        'gpu.topology/min-member: "4"',
    ),
    "Job with claims": (
        manifest("batch/v1", "Job", "x", {**JOB, "parallelism": 4, "completions": 4, "template": CLAIMING}),
        "Job default/x: its 4 pods name no gang: each is placed alone, and the job may start in part. "
        "To make them one gang of 4, annotate each pod template: gpu.topology/group: x, "
        'gpu.topology/min-member: "4"',
    ),
    "Job of a CronJob": (
        by_cron(TPU_POD),
        "Job default/nightly-1: its 4 pods name no gang: each is placed alone, and the job may start in part",
    ),
    "LeaderWorkerSet": (
        lws(1, leaderWorkerTemplate={"size": 2, "workerTemplate": TPU_POD}),
        "LeaderWorkerSet default/serve: its 2 pods name no gang: each is placed alone, and the job may start "
        "in part. To make them one gang of 2, set infer_gangs to on for LeaderWorkerSet; or label the job "
        "kai.scheduler/queue: default",
    ),
}


@pytest.mark.parametrize("name", WITH_TPUS)
def test_pods_with_other_accelerators_are_warned_of(name: str, tmp_path: Path) -> None:
    """The scheduler holds pods without GPUs only for their labels and annotations."""
    job, note = WITH_TPUS[name]
    assert note in decisions(write(tmp_path, node("a"), pod("other"), job, CLAIM_TEMPLATE), *WARN)["notes"]


@pytest.mark.parametrize("template", [TPU_POD, CLAIMING], ids=["TPUs", "claims"])
@pytest.mark.parametrize("keys", [{}, {"kai.scheduler/queue": "q"}])
def test_a_job_without_gpus_that_asks_for_a_gang_is_told_that_it_is_none(
    tmp_path: Path, template: Object, keys: dict[str, str]
) -> None:
    """A Job without GPUs is never a gang, whatever the setting and the keys say."""
    job = manifest("batch/v1", "Job", "x", {**JOB, "parallelism": 4, "completions": 4, "template": template})
    job["metadata"]["labels"] = keys
    path = write(tmp_path, node("a"), pod("other"), job, CLAIM_TEMPLATE)
    notes = decisions(path, *(() if keys else ("--infer-gangs", "on")))["notes"]
    assert any("Job default/x: its 4 pods name no gang" in note for note in notes)
