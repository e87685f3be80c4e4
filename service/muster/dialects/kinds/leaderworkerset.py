"""Describe LeaderWorkerSets (kubernetes-sigs/lws): groups of a leader and workers. Each group is a gang."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from muster.dialects.gangs.ranks import GROUP_INDEX, WORKER_INDEX
from muster.dialects.kinds.description import (
    MAX_PODS,
    Described,
    JobObject,
    JobPod,
    JobRole,
    Kind,
    NewPod,
    check_pod_count,
    controller_of,
)
from muster.dialects.objects import Metadata

SET_NAME = "leaderworkerset.sigs.k8s.io/name"
SIZE = "leaderworkerset.sigs.k8s.io/size"
EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
SUBGROUP_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
GROUP_KEY = "leaderworkerset.sigs.k8s.io/group-key"
SUBGROUP_KEY = "leaderworkerset.sigs.k8s.io/subgroup-key"
SUBGROUP_INDEX = "leaderworkerset.sigs.k8s.io/subgroup-index"
LEADER, WORKER = "leader", "worker"


def describe(owner: JobObject) -> Described:
    """Describe the groups.

    With the startup policy LeaderReady, the workers are made when the leader runs. If each group has a
    topology domain of its own, the workers are made when the leader has a node.
    """
    spec = owner.spec
    replicas, template = spec.natural("replicas"), spec.part("leaderWorkerTemplate")
    copies = check_pod_count(spec, "replicas", 1 if replicas is None else replicas)
    size = template.positive("size") or 1
    if copies * size > MAX_PODS:
        template.bad("size", size, f"at most {MAX_PODS:,} pods in all groups")
        size = 1
    template_path = "spec.leaderWorkerTemplate"
    workers = template.raw("workerTemplate")
    leaders = template.raw("leaderTemplate")
    has_leader = leaders is not None
    late = spec.text("startupPolicy") == "LeaderReady" or EXCLUSIVE in (owner.meta.annotations or {})
    role = JobRole(
        LEADER,
        1,
        1,
        leaders if has_leader else workers,
        f"{template_path}.{'leaderTemplate' if has_leader else 'workerTemplate'}",
        _pod_maker(owner, size, 0),
    )
    if size == 1:
        return Described((role,), copies, numbered=True)
    worker_role = JobRole(
        WORKER,
        size - 1,
        size - 1,
        workers,
        f"{template_path}.workerTemplate",
        _pod_maker(owner, size, 1),
        later=size - 1 if late else 0,
        exclusive=EXCLUSIVE in (owner.meta.annotations or {}),
        segments_fill=True,
    )
    return Described((role, worker_role), copies, numbered=True)


def _pod_maker(owner: JobObject, size: int, first: int) -> Callable[[int, int], NewPod]:
    """Return a function that makes a pod. One StatefulSet has all leaders, and each group has a StatefulSet
    for its workers."""
    annotations = owner.meta.annotations or {}
    exclusive = {key: annotations[key] for key in (EXCLUSIVE, SUBGROUP_EXCLUSIVE) if annotations.get(key)}
    subgroup_of = _subgroup_finder(owner, size)

    def pod(group: int, number: int) -> NewPod:
        index, leader = first + number, f"{owner.name}-{group}"
        labels = {
            SET_NAME: owner.name,
            GROUP_INDEX: str(group),
            WORKER_INDEX: str(index),
            GROUP_KEY: _hash(f"{owner.meta.namespace}/{leader}"),
        }
        subgroup = subgroup_of(index)
        if subgroup is not None:
            labels[SUBGROUP_INDEX] = str(subgroup)
            labels[SUBGROUP_KEY] = _hash(f"{leader}/{subgroup}")
        controller = ("StatefulSet", owner.name if index == 0 else leader)
        name = leader if index == 0 else f"{leader}-{index}"
        return NewPod(name, labels, {SIZE: str(size), **exclusive}, controller)

    return pod


def _subgroup_finder(owner: JobObject, size: int) -> Callable[[int], int | None]:
    """Return a function: index of a pod in the group → its subgroup, or None if it is in no subgroup.

    (kubernetes-sigs/lws, pkg/webhooks/pod_webhook.go.)
    """
    policy = owner.spec.part("leaderWorkerTemplate").part("subGroupPolicy")
    subgroup_size = policy.positive("subGroupSize")
    leader_alone = policy.text("subGroupPolicyType") == "LeaderExcluded"
    extra = 1 if subgroup_size and (size - 1) % subgroup_size == 0 and size % subgroup_size != 0 else 0

    def subgroup_of(index: int) -> int | None:
        if subgroup_size is None or (index == 0 and leader_alone):
            return None
        return max(0, index - extra) // subgroup_size

    return subgroup_of


def _hash(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


def member(meta: Metadata) -> JobPod | None:
    """Return the place of a pod in its group, which is the gang <set>-<group>."""
    labels = meta.labels or {}
    name, group = labels.get(SET_NAME), labels.get(GROUP_INDEX)
    if not name or not group or controller_of(meta)[:2] != ("apps", "StatefulSet"):
        return None
    role = LEADER if labels.get(WORKER_INDEX) == "0" else WORKER
    return JobPod("LeaderWorkerSet", name, f"{name}-{group}", role)


LEADER_WORKER_SET = Kind(
    "leaderworkerset.x-k8s.io",
    ("v1",),
    "LeaderWorkerSet",
    "leaderworkersets",
    describe,
    member,
    label=SET_NAME,
    fields=("leaderTemplate", "leaderWorkerTemplate", "size", "startupPolicy", "workerTemplate"),
    keys=(EXCLUSIVE,),
)
