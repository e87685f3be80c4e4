"""What controllers and their webhooks add to the pods of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.files.manifests import GPU, Object, controller, decisions, node, nodes_of, place, pod, spec, write

ON = ("--infer-gangs", "on")

# --- exclusive topologies ---------------------------------------------------------------------------

JOBSET = "alpha.jobset.sigs.k8s.io/"
LWS = "leaderworkerset.sigs.k8s.io/"
RACK = "topology.kubernetes.io/rack"


def job_set(annotations: Mapping[str, str], on_job: Mapping[str, str] | None = None, jobs: int = 2) -> Object:
    job = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": {"spec": spec(1)}}
    template = {"metadata": {"annotations": dict(on_job or {})}, "spec": job}
    manifest = controller(
        "JobSet",
        "jobset.x-k8s.io/v1alpha2",
        "js",
        replicatedJobs=[{"name": "w", "replicas": jobs, "template": template}],
    )
    manifest["metadata"]["annotations"] = dict(annotations)
    return manifest


@pytest.mark.parametrize("on_job", [False, True])
def test_each_job_of_a_job_set_has_a_rack(tmp_path: Path, on_job: bool) -> None:
    wish = {f"{JOBSET}exclusive-topology": RACK}
    manifest = job_set({}, wish) if on_job else job_set(wish)
    racks = [node(f"{rack}{i}", rack=rack) for rack in ("r1", "r2") for i in range(2)]
    node_of = nodes_of(decisions(write(tmp_path, *racks, manifest), *ON))
    by_job = [
        {(node or "")[:2] for name, node in node_of.items() if f"-w-{job}-" in name} for job in range(2)
    ]
    assert sorted(map(sorted, by_job)) == [["r1"], ["r2"]]
    assert decisions(write(tmp_path, *racks[:2], manifest), *ON)["gangs"][0]["status"] == "unplaceable"


def test_a_job_set_stays_away_from_a_running_one_of_its_priority(tmp_path: Path) -> None:
    runs = pod("other", nodeName="r1a")
    manifest = job_set({f"{JOBSET}exclusive-topology": RACK}, jobs=1)
    racks = [node("r1a", rack="r1"), node("r2a", 1, rack="r2"), node("r2b", 1, rack="r2")]
    for priority, racks_used in (("0", {"r2a", "r2b"}), ("7", {"r1a"})):
        runs["metadata"]["labels"] = {
            "jobset.sigs.k8s.io/job-key": "x",
            "jobset.sigs.k8s.io/priority": priority,
        }
        answer = decisions(write(tmp_path, *racks, runs, manifest), *ON)
        assert set(nodes_of(answer).values()) == racks_used


def test_a_job_set_by_node_selector_goes_to_its_nodes(tmp_path: Path) -> None:
    manifest = job_set({f"{JOBSET}exclusive-topology": RACK, f"{JOBSET}node-selector": "true"})
    taint = {"taints": [{"key": f"{JOBSET}no-schedule", "effect": "NoSchedule", "value": "true"}]}
    labelled = [
        node(f"n{job}", labels={f"{JOBSET}namespaced-job": f"default_js-w-{job}"}, spec=taint)
        for job in range(2)
    ]
    answer = decisions(write(tmp_path, node("free", 8), *labelled, manifest), *ON)
    assert nodes_of(answer) == {
        "js-w-0-0-bbbbb": "n0",
        "js-w-0-1-bbbbc": "n0",
        "js-w-1-0-bbbbd": "n1",
        "js-w-1-1-bbbbf": "n1",
    }


@pytest.mark.parametrize(("kind", "subgroups"), [("LeaderWorker", 2), ("LeaderExcluded", 2)])
def test_each_subgroup_has_a_rack(tmp_path: Path, kind: str, subgroups: int) -> None:
    size = 4 if kind == "LeaderWorker" else 5
    template = {
        "size": size,
        "workerTemplate": {"spec": spec(1)},
        "subGroupPolicy": {"subGroupSize": 2, "subGroupPolicyType": kind},
    }
    manifest = controller(
        "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "x", replicas=1, leaderWorkerTemplate=template
    )
    manifest["metadata"]["annotations"] = {f"{LWS}subgroup-exclusive-topology": RACK}
    racks = [node(f"r{i}a", 8, rack=f"r{i}") for i in range(subgroups + 1)]
    node_of = nodes_of(decisions(write(tmp_path, *racks, manifest), *ON))
    first = 0 if kind == "LeaderWorker" else 1
    names = ["x-0", *(f"x-0-{i}" for i in range(1, size))][first:]
    assert node_of[names[0]] == node_of[names[1]] != node_of[names[2]] == node_of[names[3]]


# --- what controllers add ---------------------------------------------------------------------------


def ray(**fields: Any) -> Object:
    head = {"template": {"spec": spec(0)}}
    head["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "60"}}
    return {"headGroupSpec": head, **fields}


@pytest.mark.parametrize(
    ("fields", "cpus"),
    [
        ({}, 60.0),
        ({"enableInTreeAutoscaling": False}, 60.0),
        ({"enableInTreeAutoscaling": True}, 60.5),
        (
            {
                "enableInTreeAutoscaling": True,
                "autoscalerOptions": {"resources": {"limits": {"cpu": "5"}}},
            },
            65.0,
        ),
    ],
)
def test_the_head_of_a_ray_cluster_has_its_sidecars(
    tmp_path: Path, fields: Mapping[str, Any], cpus: float
) -> None:
    """The node has just too little for the head, so the sentence says what the head asks for."""
    small = node("a")
    small["status"]["allocatable"]["cpu"] = "59"
    manifest = controller("RayCluster", "ray.io/v1", "r", **ray(**fields))
    manifest["metadata"]["labels"] = {"kai.scheduler/queue": "q"}
    worker = {"groupName": "g", "replicas": 1, "minReplicas": 1, "template": {"spec": spec(1)}}
    manifest["spec"]["workerGroupSpecs"] = [worker]
    answer = decisions(write(tmp_path, small, manifest))
    assert f"asks for {cpus:g} cpu" in answer["gangs"][0]["message"]


def test_the_submitter_in_the_head_counts(tmp_path: Path) -> None:
    small = node("a")
    small["status"]["allocatable"]["cpu"] = "59"
    worker = {"groupName": "g", "replicas": 1, "minReplicas": 1, "template": {"spec": spec(1)}}
    cluster = ray(workerGroupSpecs=[worker])
    manifest = controller("RayJob", "ray.io/v1", "r", rayClusterSpec=cluster, submissionMode="SidecarMode")
    answer = decisions(write(tmp_path, small, manifest), *ON)
    assert "asks for 60.5 cpu" in answer["gangs"][0]["message"]


def test_the_labels_of_a_ray_group_are_on_its_pods(tmp_path: Path) -> None:
    """The pods keep away from others with the label, so each has a node of its own."""
    apart = {"labelSelector": {"matchLabels": {"pool": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    group = {"groupName": "g", "replicas": 2, "minReplicas": 2, "template": {"spec": spec(1, affinity=rules)}}
    for labels, nodes in (({}, {"a"}), ({"pool": "x", "ray.io/group": "other"}, {"a", "b"})):
        fields = ray(workerGroupSpecs=[{**group, "labels": labels}])
        manifest = controller("RayCluster", "ray.io/v1", "r", **fields)
        answer = decisions(write(tmp_path, node("a"), node("b"), manifest), *ON)
        assert {at for name, at in nodes_of(answer).items() if "-worker-" in name} == nodes


def test_an_autoscaler_with_odd_resources_is_refused(tmp_path: Path) -> None:
    options = {"enableInTreeAutoscaling": True, "autoscalerOptions": {"resources": {"limits": 3}}}
    result = place(write(tmp_path, node("a"), controller("RayCluster", "ray.io/v1", "r", **ray(**options))))
    assert result.exit_code == 2
    assert "spec.autoscalerOptions.resources: expected limits and requests" in result.output


# --- TrainJob ---------------------------------------------------------------------------------------

STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def runtime(**fields: Any) -> Object:
    pods = {
        "schedulerName": "muster",
        "containers": [{"name": "node", "resources": {"requests": {"cpu": "1"}}}],
    }
    job = {
        "name": "node",
        "template": {"metadata": {"labels": STEP}, "spec": {"template": {"spec": pods}}},
    }
    template = {"spec": {"replicatedJobs": [job]}}
    spec_ = {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": template, **fields}
    return controller("ClusterTrainingRuntime", "trainer.kubeflow.org/v1alpha1", "torch", **spec_)


def train_job(**fields: Any) -> Object:
    trainer = {"numNodes": 2, "resourcesPerNode": {"limits": {GPU: 1}}}
    fields = {"runtimeRef": {"name": "torch"}, "trainer": trainer, **fields}
    return controller("TrainJob", "trainer.kubeflow.org/v1alpha1", "t", **fields)


SELECT = {"nodeSelector": {"pool": "h100"}, "tolerations": [{"key": "h100", "operator": "Exists"}]}
PATCHES = {
    "runtimePatches": [
        {
            "manager": "me",
            "trainingRuntimeSpec": {
                "template": {
                    "spec": {
                        "replicatedJobs": [
                            {"name": "node", "template": {"spec": {"template": {"spec": SELECT}}}}
                        ]
                    }
                }
            },
        }
    ],
    "podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": SELECT}],
    "podSpecOverrides": [{"targetJobs": [{"name": "node"}], **SELECT}],
}


@pytest.mark.parametrize("field", PATCHES)
def test_patches_of_each_version_of_the_api(tmp_path: Path, field: str) -> None:
    tainted = node("h", labels={"pool": "h100"}, spec={"taints": [{"key": "h100", "effect": "NoSchedule"}]})
    manifest = train_job(**{field: PATCHES[field]})
    answer = decisions(write(tmp_path, node("a"), tainted, runtime(), manifest), *ON)
    assert set(nodes_of(answer).values()) == {"h"}


@pytest.mark.parametrize("field", PATCHES)
def test_a_patch_of_a_job_that_the_runtime_has_not_is_bad_input(tmp_path: Path, field: str) -> None:
    """Trainer's webhook refuses it (pkg/runtime/framework/plugins/jobset)."""
    patch = json.loads(json.dumps(PATCHES[field]).replace('"node"', '"nod"'))
    result = place(write(tmp_path, node("a"), runtime(), train_job(**{field: patch})))
    assert result.exit_code == 2
    says = f'TrainJob default/t: spec.{field}[0]: expected replicated Jobs of its runtime (node), got "nod"'
    assert says in result.output


def test_resources_of_the_train_job_come_on_top(tmp_path: Path) -> None:
    small = node("a")
    small["status"]["allocatable"]["cpu"] = "1"
    (gang_shown,) = decisions(write(tmp_path, small, runtime(), train_job()), *ON)["gangs"]
    assert gang_shown["status"] == "unplaceable"


@pytest.mark.parametrize("policy", [{"torch": {}}, {"mpi": {"runLauncherAsNode": True}}])
def test_a_number_of_nodes_that_is_text(tmp_path: Path, policy: Object) -> None:
    manifest = train_job(trainer={"numNodes": "2"})
    result = place(write(tmp_path, node("a"), runtime(mlPolicy=policy), manifest))
    assert result.exit_code == 2
    assert 'TrainJob default/t: numNodes: expected a whole number, got string "2"' in result.output


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_the_labels_and_annotations_of_an_older_train_job_are_on_its_job_set(
    tmp_path: Path, field: str
) -> None:
    """Before runtimePatches it had them (kubeflow/trainer, before version 2.2)."""
    metadata = {"labels": {"kai.scheduler/queue": "q"}, "annotations": {"kai.scheduler/topology": "t"}}[field]
    manifest = train_job(
        trainer={"numNodes": 2, "resourcesPerNode": {"limits": {GPU: 1}}}, **{field: metadata}
    )
    (gang,) = decisions(write(tmp_path, node("a"), runtime(), manifest))["gangs"]
    assert (gang["dialect"], gang["present"]) == ("JobSet", 2)


def test_the_topology_of_volcano_is_not_dropped(tmp_path: Path) -> None:
    policy = {"volcano": {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}}
    manifest = train_job(trainer={"numNodes": 2, "resourcesPerNode": {"limits": {GPU: 1}}})
    (gang,) = decisions(write(tmp_path, node("a"), runtime(podGroupPolicy=policy), manifest))["gangs"]
    assert gang["status"] == "invalid"
    assert "spec.networkTopology" in gang["message"]


@pytest.mark.parametrize(("as_node", "cpus"), [(True, "50"), (False, "1")])
def test_resources_are_for_the_nodes_of_mpi_where_the_launcher_is_one(
    tmp_path: Path, as_node: bool, cpus: str
) -> None:
    """(kubeflow/trainer, pkg/runtime/core/trainingruntime.go: newRuntimeInfo.)"""
    manifest = runtime(mlPolicy={"numNodes": 1, "mpi": {"runLauncherAsNode": as_node}})
    (job,) = manifest["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"].pop("metadata")
    of_job = train_job(trainer={"resourcesPerNode": {"requests": {"cpu": "50"}}})
    small = node("a")
    small["status"]["allocatable"]["cpu"] = "0"
    on_set = {"labels": {"kai.scheduler/queue": "q"}}
    (gang,) = decisions(write(tmp_path, small, manifest, {**of_job, "spec": {**of_job["spec"], **on_set}}))[
        "gangs"
    ]
    assert f"{cpus} cpu" in gang["message"]


def test_the_pod_group_of_a_train_job(tmp_path: Path) -> None:
    of_runtime = runtime(podGroupPolicy={"coscheduling": {"scheduleTimeoutSeconds": 60}})
    (gang_shown,) = decisions(write(tmp_path, node("a"), of_runtime, train_job()))["gangs"]
    assert (gang_shown["dialect"], gang_shown["name"], gang_shown["needed"]) == ("coscheduling", "t", 2)
    assert gang_shown["status"] == "placed"


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "kind", "fields"),
    [
        ("batch/v1", "Job", {"template": {"spec": spec(1)}}),
        ("apps/v1", "Deployment", {"template": {"spec": spec(1)}}),
        ("ray.io/v1", "RayCluster", ray()),
        ("ray.io/v1", "RayJob", {"rayClusterSpec": ray()}),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", train_job()["spec"]),
    ],
)
def test_each_kind_may_have_a_generated_name(
    tmp_path: Path, version: str, kind: str, fields: Mapping[str, Any]
) -> None:
    manifest = controller(kind, version, "", **fields)
    manifest["metadata"] = {"generateName": "x-"}
    result = place(write(tmp_path, node("a"), runtime(), manifest, manifest))
    assert result.exit_code != 2, result.output
    assert f"{kind} default/x-bbbbb, {kind} default/x-bbbbc: the name is made up" in result.stderr


def test_a_made_up_name_is_not_one_that_is_given(tmp_path: Path) -> None:
    manifest = pod("")
    manifest["metadata"] = {"generateName": "x-"}
    answer = decisions(write(tmp_path, node("a"), manifest, pod("x-bbbbb")))
    assert sorted(gang["name"] for gang in answer["gangs"]) == ["x-bbbbb", "x-bbbbc"]


def test_a_suspended_ray_job_makes_no_pods(tmp_path: Path) -> None:
    """KubeRay makes its RayCluster once `suspend` is false again."""
    manifest = controller("RayJob", "ray.io/v1", "r", rayClusterSpec=ray(), suspend=True)
    result = place(write(tmp_path, node("a"), manifest), *ON)
    assert result.exit_code == 4
    assert "makes no pods: it is suspended" in result.output
