"""`muster place` on each kind of job, written as its users write it: one gang each, with roles and ranks.

The manifests have the form of each project's quick start, reduced to what scheduling reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from muster.adapters.files.decide import Cluster
from muster.adapters.files.reading import sources
from muster.adapters.files.reading.cluster import cluster_of
from muster.dialects.kinds.table import KINDS, modes_of
from muster.dialects.settings import DialectSettings
from tests.files.manifests import Object, decisions, gang, node, place, spec, spots, write

T: Object = {"spec": spec(1)}
CPU: Object = {"spec": {"schedulerName": "muster", "containers": [{"name": "main"}]}}
SMALL = {"name": "driver", "template": {"spec": {"template": CPU}}}


def manifest(api_version: str, kind: str, name: str, fields: Object, **meta: object) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **meta}, "spec": fields}


def kubeflow(kind: str, field: str, version: str = "v1", **counts: int) -> Object:
    types = {name: {"replicas": count, "template": T} for name, count in counts.items()}
    return manifest(f"kubeflow.org/{version}", kind, "x", {field: types})


JOB = {"parallelism": 3, "completions": 3, "completionMode": "Indexed", "template": T}
WORKERS = {
    "name": "workers",
    "replicas": 2,
    "template": {"spec": {**JOB, "parallelism": 2, "completions": 2}},
}
RAY = {
    "headGroupSpec": {"template": CPU},
    "workerGroupSpecs": [{"groupName": "gpus", "replicas": 2, "template": T}],
}
RUNTIME = manifest(
    "trainer.kubeflow.org/v1alpha1",
    "ClusterTrainingRuntime",
    "torch",
    {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {
                                "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                            },
                            "spec": {
                                "template": {
                                    "spec": {"schedulerName": "muster", "containers": [{"name": "node"}]}
                                }
                            },
                        },
                    }
                ]
            }
        },
    },
)
GANG_OF_RAY = "ray.io/gang-scheduling-enabled"
NAMES_ALONE = ["x-gpus-worker-bbbbb", "x-gpus-worker-bbbbc", "x-head-bbbbb"]
NODES = {"numNodes": 3, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}
TRAIN_JOB = manifest(
    "trainer.kubeflow.org/v1alpha1", "TrainJob", "x", {"runtimeRef": {"name": "torch"}, "trainer": NODES}
)


@dataclass(frozen=True)
class Case:
    """Objects → gangs, each with its pods as "role name" in the order of their ranks."""

    objects: tuple[Object, ...]
    gangs: dict[str, list[str]]


CASES = {
    "Job": Case((manifest("batch/v1", "Job", "x", JOB),), {"x": [" x-0-bbbbb", " x-1-bbbbc", " x-2-bbbbd"]}),
    "JobSet": Case(
        (manifest("jobset.x-k8s.io/v1alpha2", "JobSet", "x", {"replicatedJobs": [SMALL, WORKERS]}),),
        {
            "x": [
                "driver x-driver-0-0-bbbbb",
                "workers x-workers-0-0-bbbbb",
                "workers x-workers-0-1-bbbbc",
                "workers x-workers-1-0-bbbbd",
                "workers x-workers-1-1-bbbbf",
            ]
        },
    ),
    "LeaderWorkerSet": Case(
        (
            manifest(
                "leaderworkerset.x-k8s.io/v1",
                "LeaderWorkerSet",
                "x",
                {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": T}},
            ),
        ),
        {
            "x-0": ["leader x-0", "worker x-0-1", "worker x-0-2"],
            "x-1": ["leader x-1", "worker x-1-1", "worker x-1-2"],
        },
    ),
    "PyTorchJob": Case(
        (kubeflow("PyTorchJob", "pytorchReplicaSpecs", Worker=2, Master=1),),
        {"x": ["master x-master-0", "worker x-worker-0", "worker x-worker-1"]},
    ),
    "TFJob": Case(
        (kubeflow("TFJob", "tfReplicaSpecs", Worker=1, Chief=1, PS=1),),
        {"x": ["chief x-chief-0", "ps x-ps-0", "worker x-worker-0"]},
    ),
    "XGBoostJob": Case(
        (kubeflow("XGBoostJob", "xgbReplicaSpecs", Master=1, Worker=1),),
        {"x": ["master x-master-0", "worker x-worker-0"]},
    ),
    "PaddleJob": Case(
        (kubeflow("PaddleJob", "paddleReplicaSpecs", Worker=2),),
        {"x": ["worker x-worker-0", "worker x-worker-1"]},
    ),
    "JAXJob": Case(
        (kubeflow("JAXJob", "jaxReplicaSpecs", Worker=2),), {"x": ["worker x-worker-0", "worker x-worker-1"]}
    ),
    "MPIJob": Case(
        (kubeflow("MPIJob", "mpiReplicaSpecs", Launcher=1, Worker=2),),
        {"x": ["launcher x-launcher", "worker x-worker-0", "worker x-worker-1"]},
    ),
    "MPIJob of mpi-operator": Case(
        (kubeflow("MPIJob", "mpiReplicaSpecs", "v2beta1", Launcher=1, Worker=2),),
        {"x": ["worker x-worker-0", "worker x-worker-1", "launcher x-launcher-bbbbb"]},
    ),
    "RayCluster": Case(
        (manifest("ray.io/v1", "RayCluster", "x", RAY),),
        {"x": ["gpus x-gpus-worker-bbbbb", "gpus x-gpus-worker-bbbbc", "headgroup x-head-bbbbb"]},
    ),
    "RayJob": Case(
        (manifest("ray.io/v1", "RayJob", "x", {"rayClusterSpec": RAY}),),
        {
            "x-bbbbb": [
                "gpus x-bbbbb-gpus-worker-bbbbb",
                "gpus x-bbbbb-gpus-worker-bbbbc",
                "headgroup x-bbbbb-head-bbbbb",
            ]
        },
    ),
    "TrainJob": Case(
        (TRAIN_JOB, RUNTIME),
        {"x": ["node x-node-0-0-bbbbb", "node x-node-0-1-bbbbc", "node x-node-0-2-bbbbd"]},
    ),
    "StatefulSet": Case(
        (
            manifest(
                "apps/v1",
                "StatefulSet",
                "x",
                {"replicas": 2, "podManagementPolicy": "Parallel", "template": T},
            ),
        ),
        {"x": [" x-0", " x-1"]},
    ),
}
ON = DialectSettings(infer_gangs=modes_of(["on", "StatefulSet=on"]))


def read(folder: Path, *objects: Object, settings: DialectSettings = ON) -> Cluster:
    nodes = [node("a", 8), node("b", 8)]
    return cluster_of(sources.read([write(folder, *nodes, *objects)], None), settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_a_job_is_one_gang_with_roles_and_ranks(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    pods_by_gang: dict[str, list[tuple[Any, ...]]] = {}
    for pod in read(tmp_path, *case.objects).pods:
        assert pod.claim is not None
        rank = pod.rank if pod.rank is not None else 10**12
        pods_by_gang.setdefault(pod.claim.name, []).append((rank, pod.name, pod.claim.topology_request.role))
    gangs = {gang: [f"{role} {pod}" for _, pod, role in sorted(pods)] for gang, pods in pods_by_gang.items()}
    assert gangs == case.gangs


@pytest.mark.parametrize("name", CASES)
def test_it_is_placed_when_asked_for(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    file = write(tmp_path, node("a", 8), node("b", 8), *case.objects)
    modes = ("--infer-gangs", "on", "--infer-gangs", "StatefulSet=on")
    answer = decisions(file, *modes)
    assert {gang["name"]: len(gang["members"]) for gang in answer["gangs"]} == {
        gang: len(pods) for gang, pods in case.gangs.items()
    }
    assert {gang["status"] for gang in answer["gangs"]} == {"placed"}
    assert answer["notes"] == []


def test_every_kind_is_tried() -> None:
    assert set(KINDS) <= {name.partition(" ")[0] for name in CASES}


def test_a_job_that_does_not_fit_as_a_whole_takes_nothing(tmp_path: Path) -> None:
    job = kubeflow("PyTorchJob", "pytorchReplicaSpecs", Worker=4)
    small = write(tmp_path, node("a", 3), job)
    assert place(small, "--infer-gangs", "on").exit_code == 3
    (gang,) = decisions(small, "--infer-gangs", "on")["gangs"]
    assert gang["status"] == "unplaceable"


@pytest.mark.parametrize(("nodes", "status"), [(1, "unplaceable"), (2, "placed")])
def test_pods_that_come_later_must_fit_as_a_whole_too(nodes: int, status: str, tmp_path: Path) -> None:
    fields = {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": [SMALL, WORKERS]}
    job_set = manifest("jobset.x-k8s.io/v1alpha2", "JobSet", "x", fields)
    file = write(tmp_path, *(node(f"n{number}", 2) for number in range(nodes)), job_set)
    (gang,) = decisions(file, "--infer-gangs", "on")["gangs"]
    assert gang["status"] == status


def test_a_note_says_what_would_make_the_job_a_gang(tmp_path: Path) -> None:
    file = write(tmp_path, node("a", 8), kubeflow("PyTorchJob", "pytorchReplicaSpecs", Master=1, Worker=3))
    answer = decisions(file)
    assert len(answer["gangs"]) == 4  # as before, four gangs of one
    (note,) = answer["notes"]
    assert note.startswith("PyTorchJob default/x: its 4 pods name no gang: each is placed alone")
    assert "infer_gangs" in note
    assert 'gpu.topology/group: x, gpu.topology/min-member: "4"' in note
    assert decisions(file, "--infer-gangs", "off")["notes"] == []


QUEUE = {"kai.scheduler/queue": "team-a"}
RACK = "topology.kubernetes.io/rack"
PLACEMENT = {"kai.scheduler/topology": "dc", "kai.scheduler/topology-required-placement": RACK}
DC = {
    "apiVersion": "kai.scheduler/v1alpha1",
    "kind": "Topology",
    "metadata": {"name": "dc"},
    "spec": {"levels": [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]},
}


def kai_job(**meta: object) -> Object:
    job = {"parallelism": 4, "completions": 4, "template": {"spec": spec(1)}}
    return manifest("batch/v1", "Job", "train", job, **meta)


def test_a_kai_users_job_is_a_gang_in_one_rack(tmp_path: Path) -> None:
    """Nothing is changed but schedulerName."""
    nodes = [node("a", 3, "r1"), node("b", 3, "r1"), node("c", 3, "r2")]
    job = kai_job(labels=QUEUE, annotations=PLACEMENT)
    (gang,) = decisions(write(tmp_path, *nodes, DC, job))["gangs"]
    assert (gang["name"], gang["status"], len(gang["members"])) == ("train", "placed", 4)
    assert {member["node"] for member in gang["members"]} == {"a", "b"}


def test_a_topology_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    other_topology = {**DC, "metadata": {"name": "other"}}
    (gang,) = decisions(write(tmp_path, node("a", 8), other_topology, kai_job(annotations=PLACEMENT)))[
        "gangs"
    ]
    assert gang["status"] == "invalid"
    assert "job/default/train: annotation kai.scheduler/topology is" in gang["message"]


@pytest.mark.parametrize(
    ("label", "gangs"),
    [({GANG_OF_RAY: "true"}, ["x"]), ({GANG_OF_RAY: "false"}, NAMES_ALONE), ({}, NAMES_ALONE)],
)
def test_a_ray_cluster_with_kuberays_label_for_gangs_is_one(
    tmp_path: Path, label: dict[str, str], gangs: list[str]
) -> None:
    # ray-project/kuberay, ray-operator/config/samples/ray-cluster.scheduler-plugins.yaml
    answer = decisions(
        write(tmp_path, node("a", 8), manifest("ray.io/v1", "RayCluster", "x", RAY, labels=label))
    )
    assert [gang["name"] for gang in answer["gangs"]] == gangs


def test_a_runtime_that_no_train_job_names_is_noted(tmp_path: Path) -> None:
    alone, with_train_job = (
        decisions(write(tmp_path, node("a", 8), RUNTIME, *jobs))["notes"] for jobs in ((), (TRAIN_JOB,))
    )
    says = "ClusterTrainingRuntime torch: no pods are made, since no TrainJob is in the input"
    assert (says in alone, says in with_train_job) == (True, False)


def test_slips_on_a_job_are_said(tmp_path: Path) -> None:
    job = kai_job(
        annotations={"kai.scheduler/topology-required-placment": RACK, "gpu.topology/scope": "rack"}
    )
    answer = decisions(write(tmp_path, node("a", 8), job))
    (gang,) = answer["gangs"]
    assert gang["status"] == "invalid"
    assert "did you mean kai.scheduler/topology-required-placement?" in gang["message"]
    assert answer["notes"] == [
        "Job default/train: gpu.topology/scope has no effect on the job: it belongs on the pod template"
    ]


def test_kais_keys_on_pods_that_no_job_makes_are_noted(tmp_path: Path) -> None:
    pods = gang("train", 6)
    for pod_manifest in pods:
        pod_manifest["metadata"]["annotations"] = {"kai.scheduler/topology-required-placement": RACK}
    assert decisions(write(tmp_path, node("a", 8), *pods))["notes"] == [
        "Pods default/train-0, default/train-1, default/train-2, default/train-3 and 2 more: annotation "
        "kai.scheduler/topology-required-placement has no effect, since the gang is not read from a job: "
        "write gpu.topology/scope"
    ]


def test_kais_placement_on_the_pod_template_of_a_job_is_noted_once(tmp_path: Path) -> None:
    """KAI reads it on the job alone, too."""
    job = kai_job()
    job["spec"]["template"]["metadata"] = {"annotations": PLACEMENT}
    assert decisions(write(tmp_path, node("a", 8), DC, job))["notes"] == [
        "Job default/train: annotation kai.scheduler/topology-required-placement has no effect on the pod "
        "template: write it on the job"
    ]


def test_what_a_pod_says_itself_comes_first(tmp_path: Path) -> None:
    template = {"metadata": {"annotations": {"gpu.topology/group": "mine", "gpu.topology/min-member": "3"}}}
    job = kai_job(labels=QUEUE)
    job["spec"]["template"] |= template
    (gang,) = decisions(write(tmp_path, node("a", 3), job))["gangs"]
    assert (gang["name"], len([m for m in gang["members"] if m["node"]])) == ("mine", 3)


def test_a_count_of_its_own_may_be_smaller_than_its_owners_but_not_larger(tmp_path: Path) -> None:
    job = kubeflow("PyTorchJob", "pytorchReplicaSpecs", Worker=4)
    template: Object = {**T, "metadata": {"annotations": {"gpu.topology/min-member": "3"}}}
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = template
    file = write(tmp_path, node("a", 3), job)
    (gang,) = decisions(file, "--infer-gangs", "on")["gangs"]
    assert (gang["name"], gang["status"]) == ("x", "placed")
    template["metadata"]["annotations"]["gpu.topology/min-member"] = "5"
    (gang,) = decisions(write(tmp_path, node("a", 8), job), "--infer-gangs", "on")["gangs"]
    assert gang["status"] == "invalid"
    assert "PyTorchJob default/x has min-member: 4" in gang["message"]


DIFFERENCES = {
    "the label says more": (
        {"gpu-topology": "g", "gpu-topology-replica": "6"}, {}, "waiting",
        "PyTorchJob default/x: it makes 4 pods at once, and they say gpu-topology-replica: 6. That counts: "
        "unless another job makes the other 2, the gang waits for ever",
    ),
    "the label says fewer": (
        {"gpu-topology": "g", "gpu-topology-replica": "3"}, {}, "invalid",
        "PyTorchJob default/x: it makes 4 pods at once, and they say gpu-topology-replica: 3. That counts: "
        "the gang is refused when more than 3 are there",
    ),
    "the label agrees": ({"gpu-topology": "g", "gpu-topology-replica": "4"}, {}, "placed", ""),
    "a min-member says more": (
        {}, {"gpu.topology/group": "g", "gpu.topology/min-member": "5"}, "waiting",
        "PyTorchJob default/x: it makes 4 pods at once, and they say gpu.topology/min-member: 5. "
        "That counts: unless another job makes the other 1, the gang waits for ever",
    ),
    "a min-member may be smaller": (
        {}, {"gpu.topology/group": "g", "gpu.topology/min-member": "2"}, "placed", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_number_of_the_pods_that_is_not_their_jobs_is_noted_and_counts(name: str, tmp_path: Path) -> None:
    labels, annotations, status, note = DIFFERENCES[name]
    template = {**T, "metadata": {"labels": labels, "annotations": annotations}}
    types = {"Master": {"replicas": 1, "template": template}, "Worker": {"replicas": 3, "template": template}}
    job = manifest("kubeflow.org/v1", "PyTorchJob", "x", {"pytorchReplicaSpecs": types})
    answer = decisions(write(tmp_path, node("a", 8), job))
    assert [gang["status"] for gang in answer["gangs"]] == [status]
    assert answer["notes"] == ([note] if note else [])


def test_a_stored_job_that_can_t_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    template = {"spec": {**T["spec"], "resourceClaims": [{"name": "g"}]}}
    job = manifest("batch/v1", "Job", "k7", {**JOB, "template": template}, uid="u")
    answer = decisions(write(tmp_path, node("a", 8), job, *gang("g", 1)))
    assert [gang["status"] for gang in answer["gangs"]] == ["placed"]
    assert answer["notes"] == [
        "Job default/k7: spec.template.spec.resourceClaims[0]: expected one of resourceClaimName and "
        "resourceClaimTemplateName. Only its pods that are in the input count"
    ]


def test_a_pod_groups_number_above_that_of_its_job_is_noted(tmp_path: Path) -> None:
    template = {**T, "metadata": {"annotations": {"scheduling.run.ai/pod-group": "g"}}}
    job = manifest("batch/v1", "Job", "x", {**JOB, "template": template})
    group = manifest("scheduling.run.ai/v2", "PodGroup", "g", {"minMember": 5})
    answer = decisions(write(tmp_path, node("a", 8), group, job))
    assert [gang["status"] for gang in answer["gangs"]] == ["waiting"]
    assert answer["notes"] == [
        "Job default/x: it makes 3 pods at once, and their PodGroup g says minMember: 5. "
        "That counts: unless another job makes the other 2, the gang waits for ever"
    ]


def test_the_number_of_a_gang_of_several_jobs_is_that_of_all_of_them(tmp_path: Path) -> None:
    template = {**T, "metadata": {"labels": {"gpu-topology": "g", "gpu-topology-replica": "4"}}}
    fields = {**JOB, "parallelism": 2, "completions": 2, "template": template}
    jobs = [manifest("batch/v1", "Job", name, fields) for name in ("a", "b")]
    answer = decisions(write(tmp_path, node("a", 8), *jobs))
    assert ([gang["status"] for gang in answer["gangs"]], answer["notes"]) == (["placed"], [])


def test_a_job_set_that_may_not_start_in_part_says_the_way_out(tmp_path: Path) -> None:
    key = {"kai.scheduler/batch-min-member": "1"}
    parts = {"replicatedJobs": [SMALL, WORKERS]}
    job_set = manifest("jobset.x-k8s.io/v1alpha2", "JobSet", "x", parts, annotations=key)
    (gang,) = decisions(write(tmp_path, node("a", 8), job_set), "--infer-gangs", "on")["gangs"]
    assert gang["status"] == "invalid"
    assert 'batch-min-member is "1", expected 2, since all replicated Jobs start together' in gang["message"]
    assert "write it on the template of a replicated Job" in gang["message"]


@pytest.mark.parametrize(
    ("nodes", "more", "started"),
    [
        (1, {}, None),
        (2, {}, "0-0 1-0"),
        (3, {}, "0-0 0-1 1-0"),
        (5, {}, "0-0 0-1 0-2 1-0 1-1"),
        (5, {"kai.scheduler/topology-required-placement": "topology.kubernetes.io/zone"}, None),
    ],
)
def test_each_job_of_a_job_set_starts_with_its_minimum(
    nodes: int, more: dict[str, str], started: str | None, tmp_path: Path
) -> None:
    keys = {"kai.scheduler/batch-min-member": "1", **more}
    jobs = {"name": "w", "replicas": 2, "template": {"metadata": {"annotations": keys}, "spec": JOB}}
    job_set = manifest("jobset.x-k8s.io/v1alpha2", "JobSet", "x", {"replicatedJobs": [jobs]})
    zone = {"topology.kubernetes.io/zone": "z"}
    file = write(tmp_path, *(node(f"n{i}", 1, labels=zone) for i in range(nodes)), job_set)
    answer = decisions(file, "--infer-gangs", "on")
    (gang,) = answer["gangs"]
    names = sorted(name.removeprefix("x-w-")[:3] for name in spots(gang))
    assert names == (started.split() if started else [])
    assert bool(more) == any("all their pods start together" in note for note in answer["notes"])


def test_a_train_job_needs_its_runtime(tmp_path: Path) -> None:
    result = place(write(tmp_path, node("a"), TRAIN_JOB))
    assert result.exit_code == 2
    assert "spec.runtimeRef: ClusterTrainingRuntime torch is not in the input" in result.stderr


def test_a_job_whose_pods_are_there_makes_none(tmp_path: Path) -> None:
    job_set = manifest("jobset.x-k8s.io/v1alpha2", "JobSet", "x", {"replicatedJobs": [WORKERS]})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "x-workers-0-0-abc",
            "labels": {"jobset.sigs.k8s.io/jobset-name": "x"},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": "x-workers-0",
                    "uid": "u",
                    "controller": True,
                }
            ],
        },
        "spec": spec(1),
    }
    assert [read_pod.name for read_pod in read(tmp_path, job_set, pod).pods] == ["x-workers-0-0-abc"]


def test_an_unknown_mode_is_bad_input(tmp_path: Path) -> None:
    result = place(write(tmp_path, node("a")), "--infer-gangs", "Jobb=on")
    assert result.exit_code == 2
    assert "--infer-gangs: expected a kind of" in result.stderr


def test_pods_whose_job_is_not_in_the_input_are_noted(tmp_path: Path) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": spec(1),
        }
        for name in ("j-a", "j-b")
    ]
    answer = decisions(write(tmp_path, node("a"), *pods))
    assert len(answer["gangs"]) == 2
    assert answer["notes"] == [
        "Job default/j is not in the input, so its 2 pods are placed alone. "
        "If it makes them a gang, add it with -f"
    ]
