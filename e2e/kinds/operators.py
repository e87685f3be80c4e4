"""Make the pods of a job as its operator makes them, with their names, labels and owners.

This follows the code of the Go modules in `local_cluster.modules`: training-operator (pkg/controller.v1),
mpi-operator (pkg/controller), KubeRay (controllers/ray) and the trainer (pkg/runtime). Nothing of Muster is
imported, so that its reading of these kinds is tried against pods that it did not describe. Pure.
"""

from __future__ import annotations

from copy import deepcopy

from local_cluster.api import Object

TRAINING = "training.kubeflow.org"
REPLICA_SPECS = ("pytorch", "tf", "xgb", "paddle", "jax", "mpi")
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"


def made_of(owner: Object) -> list[Object]:
    """Return what an operator creates for this object, which has its UID: pods, or another object."""
    group = owner["apiVersion"].partition("/")[0]
    if owner["kind"] == "RayJob":
        return [_cluster_of(owner)]
    if group == "ray.io":
        return _ray(owner)
    if owner["apiVersion"] == "kubeflow.org/v2beta1":
        return _mpi(owner)
    return _kubeflow(owner)


def job_set_of(train_job: Object, runtime: Object, scheduler: str) -> Object:
    """Return the JobSet of a TrainJob: its runtime's, with the TrainJob's number of nodes and resources."""
    trainer, spec = train_job["spec"]["trainer"], deepcopy(runtime["spec"]["template"]["spec"])
    for replicated in spec["replicatedJobs"]:
        template = replicated["template"]
        if (template["metadata"].get("labels") or {}).get(ANCESTOR) == "trainer":
            template["spec"] |= {"parallelism": trainer["numNodes"], "completions": trainer["numNodes"]}
            pod = template["spec"]["template"]["spec"]
            pod["schedulerName"] = scheduler
            pod["containers"][0]["resources"] = trainer["resourcesPerNode"]
    meta = _owned(train_job, train_job["metadata"]["name"])
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec}


def _kubeflow(job: Object) -> list[Object]:
    """Return the pods of the training operator."""
    (types,) = (
        job["spec"][f"{key}ReplicaSpecs"] for key in REPLICA_SPECS if f"{key}ReplicaSpecs" in job["spec"]
    )
    name, pods = job["metadata"]["name"], []
    for kind, replicas in types.items():
        for index in range(replicas.get("replicas", 1)):
            labels = {
                f"{TRAINING}/operator-name": f"{job['kind'].lower()}-controller",
                f"{TRAINING}/job-name": name,
                f"{TRAINING}/replica-type": kind.lower(),
            }
            pod = f"{name}-{kind.lower()}"
            if (job["kind"], kind) != ("MPIJob", "Launcher"):
                labels[f"{TRAINING}/replica-index"] = str(index)
                pod += f"-{index}"
            pods.append(_pod(job, pod, replicas["template"], labels))
    return pods


def _mpi(job: Object) -> list[Object]:
    """Return the workers of mpi-operator, and the Job of its launcher."""
    name, types = job["metadata"]["name"], job["spec"]["mpiReplicaSpecs"]
    labels = {f"{TRAINING}/operator-name": "mpi-operator", f"{TRAINING}/job-name": name}
    workers = [
        _pod(
            job,
            f"{name}-worker-{index}",
            types["Worker"]["template"],
            labels | {f"{TRAINING}/job-role": "worker", f"{TRAINING}/replica-index": str(index)},
        )
        for index in range(types["Worker"]["replicas"])
    ]
    launcher = deepcopy(types["Launcher"]["template"])
    launcher.setdefault("metadata", {})["labels"] = labels | {f"{TRAINING}/job-role": "launcher"}
    launcher["spec"]["restartPolicy"] = "Never"
    meta = _owned(job, f"{name}-launcher")
    spec = {"backoffLimit": 6, "template": launcher}
    return [*workers, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}]


def _cluster_of(ray_job: Object) -> Object:
    meta = _owned(ray_job, f"{ray_job['metadata']['name']}-x7k2p")
    meta["labels"] = {"ray.io/originated-from-cr-name": ray_job["metadata"]["name"]}
    spec = ray_job["spec"]["rayClusterSpec"]
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta, "spec": spec}


def _ray(cluster: Object) -> list[Object]:
    """Return the head and the workers of a RayCluster."""
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    pods = [_ray_pod(cluster, f"{name}-head", "headgroup", "head", spec["headGroupSpec"]["template"])]
    for group in spec.get("workerGroupSpecs", ()):
        least, most = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
        count = min(max(group.get("replicas", 0), least), most) * max(1, group.get("numOfHosts", 1))
        for index in range(0 if group.get("suspend") else count):
            prefix = f"{name}-{group['groupName']}-worker-"
            pod = _ray_pod(cluster, prefix + _random(index), group["groupName"], "worker", group["template"])
            pod["metadata"]["generateName"] = prefix
            pods.append(pod)
    return pods


def _ray_pod(cluster: Object, name: str, group: str, kind: str, template: Object) -> Object:
    labels = {"ray.io/is-ray-node": "yes", "ray.io/cluster": cluster["metadata"]["name"]}
    return _pod(cluster, name, template, labels | {"ray.io/node-type": kind, "ray.io/group": group})


def _random(index: int) -> str:
    """Return five characters as the API server adds to generated names."""
    return "".join("bcdfghjklmnpqrstvwxz2456789"[(index * 7 + digit * 5) % 27] for digit in range(5))


def _pod(owner: Object, name: str, template: Object, labels: Object) -> Object:
    template_meta = template.get("metadata") or {}
    meta = _owned(owner, name)
    meta["labels"] = {**(template_meta.get("labels") or {}), **labels}
    meta["annotations"] = dict(template_meta.get("annotations") or {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": deepcopy(template["spec"])}


def _owned(owner: Object, name: str) -> Object:
    by = {key: owner[key] for key in ("apiVersion", "kind")} | {
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"name": name, "ownerReferences": [by]}
