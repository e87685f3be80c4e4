"""Describe RayClusters (ray-project/kuberay): a head and groups of workers. A RayJob makes a RayCluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from muster.dialects.gangs import kai, ranks
from muster.dialects.kinds.description import (
    MAX_ROLES,
    Described,
    JobObject,
    JobPod,
    JobRole,
    Kind,
    NewPod,
    check_pod_count,
    container,
    controller_of,
    letters,
    why_idle,
)
from muster.dialects.objects import Container, Metadata, ResourceRequirements
from muster.dialects.reading import Fields

CLUSTER = "ray.io/cluster"
RAY_GROUP = "ray.io/group"
NODE_TYPE = "ray.io/node-type"
HEAD = "headgroup"
GANG = "ray.io/gang-scheduling-enabled"
"""The label of a RayCluster or RayJob by which KubeRay makes a gang with batch schedulers."""
_WAITS_FOR_HEAD = container("wait-gcs-ready", "200m", "256Mi")
"""The init container that KubeRay adds to workers."""


def describe(owner: JobObject) -> Described:
    """Describe a cluster. The head must start, and the smallest number of workers of each group."""
    spec = owner.spec
    head = spec.part("headGroupSpec")
    roles = [_role(owner, HEAD, head, "spec.headGroupSpec.template", (1, 1))]
    notes = list[str]()
    for number, item in enumerate(spec.objects_in("workerGroupSpecs", MAX_ROLES - 1)):
        if item.raw("suspend") is True:
            continue
        name = item.text("groupName") or f"worker-group-{number}"
        roles.append(_role(owner, name, item, f"spec.workerGroupSpecs[{number}].template", _workers(item)))
        if item.raw("minReplicas") == 0 and roles[-1].min_members:
            notes.append(_note_all_start(number, roles[-1]))
    return Described(tuple(roles), idle=why_idle(owner, spec.raw("suspend")), gang_notes=tuple(notes))


def _note_all_start(number: int, role: JobRole) -> str:
    least, name = role.min_members, role.name[:63]
    pods = f"all {least} pods of {name}" if least > 1 else f"the pod of {name}"
    return (
        f"spec.workerGroupSpecs[{number}].minReplicas is 0, which counts as not given, as with KAI: {pods} "
        "must start with the head. To start with fewer, set minReplicas to 1 or more, or replicas to 0"
    )


def _workers(item: Fields) -> tuple[int, int]:
    """Return how many pods a group has, and how many must start. Without minReplicas, all must start."""
    min_replicas, max_replicas = item.natural("minReplicas"), item.natural("maxReplicas")
    hosts = _hosts(item)
    replicas = max(item.natural("replicas") or 0, min_replicas or 0)
    if max_replicas is not None:
        replicas = min(replicas, max(max_replicas, min_replicas or 0))
    return check_pod_count(item, "replicas", replicas * hosts), (min_replicas or replicas) * hosts


def _hosts(item: Fields) -> int:
    """Return how many pods serve together as one replica of a group."""
    return max(1, item.natural("numOfHosts") or 1)


def _role(owner: JobObject, name: str, group: Fields, path: str, counts: tuple[int, int]) -> JobRole:
    template = group.part("template")
    keys = kai.annotations_of(template.part("metadata"))
    count, least = counts
    hosts = _hosts(group)
    pod = _pod_maker(owner, name, hosts, group.part("labels"))
    return JobRole(name, count, min(least, count), group.raw("template"), path, pod, keys=keys, hosts=hosts)


def _pod_maker(owner: JobObject, group: str, hosts: int, base_labels: Fields) -> Callable[[int, int], NewPod]:
    """Return a function that makes a pod. `base_labels` are the labels of the worker group.

    (ray-project/kuberay, ray-operator/controllers/ray/common/pod.go.)
    """
    kind = "head" if group == HEAD else "worker"
    prefix = owner.name if kind == "head" else f"{owner.name}-{group}"
    sidecars = tuple(_sidecars(owner)) if kind == "head" else ()
    first = (_WAITS_FOR_HEAD,) if kind == "worker" else ()
    own_labels = {key: base_labels.text(key) or "" for key in base_labels.names()}

    def pod(_: int, number: int) -> NewPod:
        labels = {
            **own_labels,
            CLUSTER: owner.name,
            RAY_GROUP: group,
            NODE_TYPE: kind,
            "ray.io/is-ray-node": "yes",
        }
        if hosts > 1:
            labels |= {ranks.RAY_REPLICA: str(number // hosts), ranks.RAY_HOST: str(number % hosts)}
        name = f"{prefix[:50]}-{kind}-{letters(number)}"
        return NewPod(name, labels, containers=sidecars, init_containers=first)

    return pod


def _sidecars(owner: JobObject) -> Iterator[Container]:
    """Yield the container that KubeRay adds to the head if the cluster scales itself."""
    if owner.spec.raw("enableInTreeAutoscaling") is not True:
        return
    options = owner.spec.part("autoscalerOptions")
    autoscaler = container("autoscaler", "500m", "512Mi")
    if options.raw("resources") is not None:
        try:
            resources = msgspec.convert(options.raw("resources"), ResourceRequirements)
        except msgspec.ValidationError:
            options.bad("resources", options.raw("resources"), "limits and requests of quantities")
        else:
            autoscaler = Container(autoscaler.name, resources)
    yield autoscaler


def member(meta: Metadata) -> JobPod | None:
    """Return the place of a pod in its cluster. Its role is its group."""
    group, kind, name = controller_of(meta)
    if (group, kind) != ("ray.io", "RayCluster"):
        return None
    return JobPod("RayCluster", name, name, (meta.labels or {}).get(RAY_GROUP, ""))


RAY_CLUSTER = Kind(
    "ray.io",
    ("v1", "v1alpha1"),
    "RayCluster",
    "rayclusters",
    describe,
    member,
    made_by=("RayJob",),
    label=CLUSTER,
    gang_label=GANG,
    fields=("groupName", "headGroupSpec", "maxReplicas", "minReplicas", "numOfHosts", "workerGroupSpecs"),
    keys=(GANG,),
)
