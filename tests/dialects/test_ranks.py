"""The order of members: what each kind of controller writes on its pods, and what they say themselves."""

from __future__ import annotations

from typing import Any

import pytest

from muster.dialects.objects import PodObject
from muster.dialects.pods.pods import read
from muster.domain.request import Member
from muster.placement.gang.blocks import rank_key
from tests.dialects.objects import pod_object

COMPLETION = "batch.kubernetes.io/job-completion-index"
ORDINAL = "apps.kubernetes.io/pod-index"


def job(name: str, index: int) -> PodObject:
    """Of an Indexed Job: the annotation and, since Kubernetes 1.28, the label."""
    labels = {COMPLETION: str(index)}
    return pod_object(name=f"{name}-{index}-x7k2p", generateName=f"{name}-{index}-", annotations=labels)


def stateful(name: str, ordinal: int) -> PodObject:
    labels = {ORDINAL: str(ordinal), "statefulset.kubernetes.io/pod-name": f"{name}-{ordinal}"}
    return pod_object(name=f"{name}-{ordinal}", generateName=f"{name}-", labels=labels)


def old_stateful(name: str, ordinal: int) -> PodObject:
    """Before Kubernetes 1.28, without the label; the name begins with generateName here too, and is none."""
    return pod_object(name=f"{name}-{ordinal}")


def of_set(name: str, group: int, worker: int) -> PodObject:
    """Of a LeaderWorkerSet: the leaders are pods of one StatefulSet, each group's workers of one more."""
    labels = {
        "leaderworkerset.sigs.k8s.io/name": name,
        "leaderworkerset.sigs.k8s.io/group-index": str(group),
        "leaderworkerset.sigs.k8s.io/worker-index": str(worker),
        ORDINAL: str(worker or group),
    }
    end = f"-{worker}" if worker else ""
    return pod_object(name=f"{name}-{group}{end}", generateName=f"{name}-", labels=labels)


def replica(name: str, kind: str, index: int) -> PodObject:
    """Of a PyTorchJob, TFJob, MPIJob …"""
    labels = {
        "training.kubeflow.org/replica-type": kind,
        "training.kubeflow.org/replica-index": str(index),
    }
    return pod_object(name=f"{name}-{kind}-{index}", labels=labels)


def of_jobset(name: str, role: str, in_all: int, index: int, within: int = 0) -> PodObject:
    labels = {
        "jobset.sigs.k8s.io/replicatedjob-name": role,
        "jobset.sigs.k8s.io/job-index": str(within),
        "jobset.sigs.k8s.io/job-global-index": str(in_all),
        COMPLETION: str(index),
    }
    stem = f"{name}-{role}-{within}-{index}-"
    return pod_object(name=f"{stem}h4w9z", generateName=stem, labels=labels)


ORDERS: dict[str, list[PodObject]] = {
    "an Indexed Job": [job("train", index) for index in (0, 1, 2, 9, 10, 11)],
    "a StatefulSet": [stateful("web", ordinal) for ordinal in (0, 2, 10, 11)],
    "a StatefulSet of old": [old_stateful("web", ordinal) for ordinal in (0, 2, 10, 11)],
    "bare pods with numbers": [pod_object(name=f"trainer-node-{i}") for i in (0, 1, 9, 10)],
    "bare pods as the ACK document has them": [
        pod_object(name="pytorch-dist-nccl-master-0"),
        pod_object(name="pytorch-dist-nccl-worker-0"),
        pod_object(name="pytorch-dist-nccl-worker-1"),
    ],
    "a LeaderWorkerSet: group after group, each leader first": [
        of_set("serve", group, worker) for group in (0, 1, 10) for worker in (0, 1, 2)
    ],
    "a PyTorchJob: the master, then its workers": [
        replica("a", "master", 0),
        *(replica("a", "worker", index) for index in (0, 1, 10)),
    ],
    "a TFJob": [
        replica("a", kind, index) for kind in ("chief", "ps", "evaluator", "worker") for index in (0, 1, 10)
    ],
    "an MPIJob": [replica("a", "launcher", 0), replica("a", "worker", 0), replica("a", "worker", 1)],
    "a JobSet: job after job": [
        of_jobset("s", "w", job, index, job) for job in (0, 1, 10) for index in (0, 1)
    ],
    "a JobSet of two replicated jobs": [
        of_jobset("s", "z-first", 0, 0),
        of_jobset("s", "z-first", 0, 1),
        of_jobset("s", "a-second", 1, 0),
        of_jobset("s", "a-second", 1, 1),
    ],
    "a Deployment's pods, by name": [
        pod_object(name=f"web-6f7c9d-{end}", generateName="web-6f7c9d-")
        for end in ("24567", "bcdfg", "zzzzz")
    ],
}
"""Pods with equal requests in the order in which segments count them."""


@pytest.mark.parametrize("pods", ORDERS.values(), ids=ORDERS)
def test_members_are_counted_in_the_order_of_their_controller(pods: list[PodObject]) -> None:
    members = [Member(obj.metadata.name, obj.metadata.name, read(obj).rank) for obj in pods]
    members_by_name = sorted(members, key=lambda member: member.name)
    assert sorted(members_by_name, key=rank_key) == members


RANKS: dict[str, tuple[dict[str, Any], int | None]] = {
    "as it says": ({"name": "p-3", "annotations": {"gpu.topology/rank": "7"}}, 7),
    "the first": ({"name": "p-3", "annotations": {"gpu.topology/rank": "0"}}, 0),
    "as it says, before its controller": (
        {"name": "p-3", "annotations": {"gpu.topology/rank": "7", COMPLETION: "5"}},
        7,
    ),
    "a Job's index": ({"name": "p-3", "annotations": {COMPLETION: "5"}}, 5),
    "a Job's index as label": ({"name": "p-3", "labels": {COMPLETION: "5"}}, 5),
    "an ordinal": ({"name": "web-4", "generateName": "web-", "labels": {ORDINAL: "4"}}, 4),
    "a replica's index without a type": (
        {"name": "x", "labels": {"training.kubeflow.org/replica-index": "2"}},
        2,
    ),
    "a type that nobody knows": (
        {
            "name": "x",
            "labels": {
                "training.kubeflow.org/replica-index": "2",
                "training.kubeflow.org/replica-type": "server",
            },
        },
        2,
    ),
    "a group by hash: the ordinal": (
        {
            "name": "serve-ab12-1",
            "labels": {
                "leaderworkerset.sigs.k8s.io/group-index": "ab12",
                "leaderworkerset.sigs.k8s.io/worker-index": "1",
                ORDINAL: "1",
            },
        },
        1,
    ),
    "an index that is no number": ({"name": "x-7", "annotations": {COMPLETION: "-1"}}, 7),
    "the end of its name": ({"name": "job-worker-3"}, 3),
    "a random name of digits": ({"name": "web-6f7c9d-24567", "generateName": "web-6f7c9d-"}, None),
    "a name of digits alone": ({"name": "12"}, None),
    "nothing": ({"name": "p"}, None),
}


@pytest.mark.parametrize(("metadata", "rank"), RANKS.values(), ids=RANKS)
def test_its_rank(metadata: dict[str, Any], rank: int | None) -> None:
    assert read(pod_object(**metadata)).rank == rank
