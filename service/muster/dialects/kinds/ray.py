"""Describe RayClusters (ray-project/kuberay): a head and groups of workers. A RayJob makes a RayCluster."""

from __future__ import annotations

from collections.abc import Callable

from muster.dialects import ranks
from muster.dialects.fields import Fields
from muster.dialects.kinds import kai_keys
from muster.dialects.kinds.description import (
    MAX_ROLES,
    Described,
    Kind,
    Member,
    NewPod,
    Owner,
    Role,
    bounded,
    controller_of,
    letters,
    why_idle,
)
from muster.dialects.objects import Metadata

CLUSTER = "ray.io/cluster"
RAY_GROUP = "ray.io/group"
NODE_TYPE = "ray.io/node-type"
HEAD = "headgroup"


def describe(owner: Owner) -> Described:
    """Describe a cluster. The head must start, and the smallest number of workers of each group."""
    spec = owner.spec
    head = spec.part("headGroupSpec")
    roles = [_role(owner, HEAD, head, "spec.headGroupSpec.template", (1, 1))]
    for number, item in enumerate(spec.listed("workerGroupSpecs", MAX_ROLES - 1)):
        if item.raw("suspend") is True:
            continue
        name = item.text("groupName") or f"worker-group-{number}"
        roles.append(_role(owner, name, item, f"spec.workerGroupSpecs[{number}].template", _workers(item)))
    return Described(tuple(roles), idle=why_idle(owner, spec.raw("suspend")))


def _workers(item: Fields) -> tuple[int, int]:
    """Return how many pods a group has, and how many must start. Without minReplicas, all must start."""
    least, most = item.natural("minReplicas"), item.natural("maxReplicas")
    hosts = _hosts(item)
    wanted = max(item.natural("replicas") or 0, least or 0)
    if most is not None:
        wanted = min(wanted, max(most, least or 0))
    return bounded(item, "replicas", wanted * hosts), (least or wanted) * hosts


def _hosts(item: Fields) -> int:
    """Return how many pods serve together as one replica of a group."""
    return max(1, item.natural("numOfHosts") or 1)


def _role(owner: Owner, name: str, group: Fields, path: str, counts: tuple[int, int]) -> Role:
    template = group.part("template")
    keys = kai_keys.annotations_of(template.part("metadata"))
    count, least = counts
    hosts = _hosts(group)
    pod = _pod(owner, name, hosts)
    return Role(name, count, min(least, count), group.raw("template"), path, pod, keys=keys, hosts=hosts)


def _pod(owner: Owner, group: str, hosts: int) -> Callable[[int, int], NewPod]:
    kind = "head" if group == HEAD else "worker"
    prefix = owner.name if kind == "head" else f"{owner.name}-{group}"

    def pod(_: int, number: int) -> NewPod:
        labels = {CLUSTER: owner.name, RAY_GROUP: group, NODE_TYPE: kind, "ray.io/is-ray-node": "yes"}
        if hosts > 1:
            labels |= {ranks.RAY_REPLICA: str(number // hosts), ranks.RAY_HOST: str(number % hosts)}
        return NewPod(f"{prefix[:50]}-{kind}-{letters(number)}", labels)

    return pod


def member(meta: Metadata) -> Member | None:
    """Return the place of a pod in its cluster. Its role is its group."""
    group, kind, name = controller_of(meta)
    if (group, kind) != ("ray.io", "RayCluster"):
        return None
    return Member("RayCluster", name, name, (meta.labels or {}).get(RAY_GROUP, ""))


RAY_CLUSTER = Kind(
    "ray.io",
    ("v1", "v1alpha1"),
    "RayCluster",
    "rayclusters",
    describe,
    member,
    made_by=("RayJob",),
    label=CLUSTER,
)
