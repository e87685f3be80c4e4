"""The objects that tests create, as a user would write them. Pure; names are the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from local_cluster.api import Object
from local_cluster.topology import load_topology

GPU = "aliyun.com/gpu"
MUSTER = "muster"
KWOK = {"kwok.x-k8s.io/node": "fake"}
"""Annotation of nodes that kwok keeps alive, also where it does so for some nodes only."""
DOCUMENT_MESH = "v100-8x-gputopology-document"
"""The eight V100 of the gputopology document, a cube mesh, in the document's numbering."""


@dataclass(frozen=True, slots=True)
class Words:
    """Labels and annotations that a pod brings along: its gang, in one dialect or another."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def ack(gang: str, replicas: int | str) -> Words:
    """ACK's labels."""
    return Words(labels={"gpu-topology": gang, "gpu-topology-replica": str(replicas)})


def node(
    name: str,
    *,
    gpus: int = 8,
    topology: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """A node that kwok keeps alive. With a `topology` its links are in the annotation GPU_TOPOLOGY."""
    published = {"GPU_TOPOLOGY": load_topology(topology).annotation()} if topology else {}
    offered = {"cpu": "64", "memory": "256Gi", "pods": "110"} | ({GPU: str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "annotations": {**KWOK, **published, **(annotations or {})},
        },
        "spec": {},
        "status": {"capacity": offered, "allocatable": offered},
    }


def container(name: str, gpus: int) -> Object:
    gpu_amount = {GPU: str(gpus)} if gpus else {}
    return {
        "name": name,
        "image": "example.invalid/nothing:1",
        "resources": {"requests": {"cpu": "100m", **gpu_amount}, "limits": gpu_amount},
    }


def pod(
    name: str,
    *,
    gpus: int = 1,
    gang: Words | None = None,
    scheduler: str = MUSTER,
    spec: Object | None = None,
) -> Object:
    """A pod of one container; `spec` adds to its spec."""
    words = gang or Words()
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(words.labels), "annotations": dict(words.annotations)},
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container("main", gpus)],
            **(spec or {}),
        },
    }


def job(name: str, template_pod: Object, *, completions: int = 1) -> Object:
    """A Job of such pods, all at once."""
    meta = {key: template_pod["metadata"][key] for key in ("labels", "annotations")}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": completions,
            "completions": completions,
            "backoffLimit": 0,
            "template": {"metadata": meta, "spec": template_pod["spec"]},
        },
    }


def document_replica(name: str, gang: str, replicas: int) -> Object:
    """A pod of ACK's PyTorchJob ("Example 2"), as the operator would create it, with our scheduler's name."""
    body = pod(name, gang=ack(gang, replicas))
    body["metadata"]["annotations"]["sidecar.istio.io/inject"] = "false"
    host = {"hostIPC": True, "hostNetwork": True, "hostPID": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    body["spec"] |= {**host, "restartPolicy": "OnFailure"}
    body["spec"]["containers"] = [
        {
            "name": "pytorch",
            "image": "registry.cn-hangzhou.aliyuncs.com/kubernetes-image-hub/pytorch_dist_mnist:1.3-gpu-py3",
            "command": ["python"],
            "args": ["/opt/mnist/src/mnist.py", "--backend", "nccl"],
            "resources": {"limits": {GPU: "1"}},
        }
    ]
    return body


def document_job(name: str, gpus: int) -> Object:
    """The gputopology document's Job, with our scheduler's name."""
    body = pod(f"{name}-template", gpus=gpus)
    main = body["spec"]["containers"][0]
    main["name"] = name
    main["resources"] = {"limits": {GPU: str(gpus)}}
    main["command"] = ["sh", "./launch-example.sh", "1", str(gpus)]
    return job(name, body)
