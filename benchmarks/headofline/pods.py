"""The pods of this benchmark. Pure."""

from __future__ import annotations

from e2e.objects import GPU, ack, pod
from local_cluster.api import Object

HOST = "kubernetes.io/hostname"
SIZE = 4
"""Pods of an ordinary gang, of one GPU each."""
NODE_GPUS = 8
NO_SCHEDULER = "nobody"
ROLES = 60
"""Of a slow gang; by default the planner takes gangs of at most 64."""


def ordinary(name: str) -> list[Object]:
    """A gang of four pods of one GPU."""
    return [pod(f"{name}-{member}", gang=ack(name, SIZE)) for member in range(SIZE)]


def filler(node: str) -> Object:
    """A pod that takes one GPU of this node, so that no pod of eight fits there."""
    return pod(f"filler-{node}", spec={"nodeSelector": {HOST: node}})


def never(name: str) -> list[Object]:
    """A gang of one pod that asks for twice the GPUs that any node has."""
    return [pod(name, gpus=2 * NODE_GPUS, gang=ack(name, 1))]


def huge(name: str, members: int) -> list[Object]:
    """A gang of this number of pods that fit nowhere."""
    return [
        pod(f"{name}-{member:05}", gpus=2 * NODE_GPUS, gang=ack(name, members)) for member in range(members)
    ]


def impossible(name: str) -> list[Object]:
    """A gang of a pod that could have GPUs, but not on any node that there is."""
    return [pod(name, gpus=NODE_GPUS - 1, gang=ack(name, 1), spec={"nodeSelector": {HOST: "nowhere"}})]


def unlike(name: str, index: int) -> list[Object]:
    """A gang of one pod that wants a whole node, which no node with a filler is, and its own share of CPU."""
    return [with_cpu(pod(name, gpus=NODE_GPUS, gang=ack(name, 1)), 1000 + index)]


def slow(name: str) -> list[Object]:
    """A gang of many roles: each of its members, of one GPU, asks for another share of CPU."""
    bodies = [pod(f"{name}-{member:02}", gang=ack(name, ROLES)) for member in range(ROLES)]
    return [with_cpu(body, 1000 + 37 * member) for member, body in enumerate(bodies)]


def of(scheduler: str, body: Object) -> Object:
    """Have the pod name this scheduler."""
    body["spec"]["schedulerName"] = scheduler
    return body


def hanging(name: str) -> list[Object]:
    """Return a gang of four pods; one uses the claim `name`."""
    bodies = ordinary(name)
    claim = {"persistentVolumeClaim": {"claimName": name}}
    bodies[0]["spec"]["volumes"] = [{"name": "data", **claim}]
    return bodies


def claim(name: str, storage_class: str) -> Object:
    """A claim that waits for its first consumer, and then for the provisioner of its class."""
    return {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class,
        },
    }


def nobodys_class(name: str) -> Object:
    """Return a storage class whose provisioner does not run."""
    return {
        "metadata": {"name": name},
        "provisioner": "example.invalid/nobody",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def with_cpu(body: Object, millicores: int) -> Object:
    """Have the pod request this much CPU."""
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{millicores}m"
    return body


def gpus(body: Object) -> int:
    """How many GPUs the pod asks for."""
    return int(body["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0))
