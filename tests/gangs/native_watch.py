"""Pods and PodGroups of Kubernetes' own API in the model, as the service reads them: by the real `Intake`.

The Intake decides whether such a pod is a member of the gang, or is planned alone. Only the pauses in which
it reads pods again are the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import msgspec

from muster.adapters.kube import intake
from muster.dialects.gangs import native
from muster.dialects.objects import CustomObject, PodObject
from muster.dialects.settings import DEFAULTS
from muster.domain.pod import Pod
from muster.domain.podgroup import PodGroup
from muster.gangs.messages.inputs import Input
from tests.adapters.changes import seen

NATIVE = "n"
"""The gang whose PodGroup is of Kubernetes' own API."""
AT_ONCE = 1
"""Number of pods that are read again at once."""


def drive(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing but its turn."""
    try:
        while True:
            work.send(None)
    except StopIteration:
        return


class LateReads:
    """Stands for `PodRereads`: the first pods are read at once, the others when the model says so."""

    def __init__(self, read: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self._read = read
        self.starts = True
        self._later: dict[str, None] = {}

    async def read(self, pods: Iterable[tuple[str, str]], at_once: bool = False) -> None:
        uids = [uid for _, uid in pods]
        count = len(uids) if at_once or self.starts else AT_ONCE
        for uid in uids[:count]:
            await self._read(uid)
        self._later.update(dict.fromkeys(uids[count:]))

    def read_later(self, count: int | None = None) -> None:
        """Read the next pods, all by default."""
        for uid in list(self._later)[:count]:
            del self._later[uid]
            drive(self._read(uid))


class NativeWatch:
    """The service's view of the pods and the PodGroup of NATIVE. `put` takes its inputs."""

    reads: LateReads
    """The pods that wait to be read again."""

    def __init__(self, put: Callable[[Input], None]) -> None:
        self._put = put
        self.bindings: dict[str, dict[str, str]] = {}
        """Pod UID → the annotations of its Binding."""
        self.group: CustomObject | None = None
        """The PodGroup that exists."""
        self.refused = False
        """Whether the API server refuses PodGroups to the service."""
        self.begin()

    def begin(self) -> None:
        """A new service knows nothing."""
        with patch.object(intake, "PodRereads", LateReads):
            self._intake = intake.Intake(DEFAULTS, self._take, lambda _: None)
        reads = self._intake._pod_rereads
        assert isinstance(reads, LateReads)
        self.reads = reads

    async def _take(self, message: Input) -> None:
        self._put(message)

    def see_pod(self, pod: Pod) -> None:
        drive(self._intake.on_pod(*seen(_object_of(pod, self.bindings.get(pod.uid, {})))))

    def forget_pod(self, uid: str) -> None:
        drive(self._intake.on_pod(uid, None))

    def see_group(self) -> None:
        """The watch shows the PodGroup that exists, or that the service may not read it."""
        if self.refused:
            drive(self._intake.native_groups.on_absence(True))
        elif self.group is not None:
            drive(self._intake.on_pod_group(*seen(self.group)))

    def forget_group(self, uid: str) -> None:
        """The PodGroup goes, or begins to be refused."""
        drive(self._intake.on_pod_group(uid, None))

    def refuse(self) -> None:
        """From now on the API server refuses PodGroups to the service."""
        self.refused = True
        if self.group is not None:
            self.forget_group(self.group.metadata.uid)
        self.see_group()

    def serve(self) -> None:
        """From now on the service may read PodGroups."""
        self.refused = False
        self.see_group()
        drive(self._intake.native_groups.on_absence(False))

    def known_group(self, pod: Pod) -> PodGroup | None:
        """Return the PodGroup by which the service reads this pod."""
        return self._intake.native_groups.group_of(_object_of(pod, {}))


def group_object(uid: str, policy: dict[str, Any], label: str) -> CustomObject:
    """Return a PodGroup with this policy and, unless it is "", a topology constraint.

    A tree of CompositePodGroups would be drawn here too.
    """
    constraints = {"schedulingConstraints": {"topology": [{"key": label}]}} if label else {}
    body = {
        "apiVersion": native.APIS[1],
        "kind": "PodGroup",
        "metadata": {"name": NATIVE, "namespace": "ns", "uid": uid},
        "spec": {"schedulingPolicy": policy, **constraints},
    }
    return msgspec.convert(body, CustomObject)


def _object_of(pod: Pod, annotations: dict[str, str]) -> PodObject:
    phase = "Running" if pod.running else "Pending"
    if pod.finished:
        phase = "Succeeded" if pod.succeeded else "Failed"
    owner = {"apiVersion": "example.com/v1", "kind": "Run", "name": pod.owner, "uid": pod.owner}
    body = {
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "labels": dict(pod.labels),
            "annotations": annotations,
            "creationTimestamp": _timestamp(pod.created),
            "deletionTimestamp": _timestamp(pod.created) if pod.terminating else None,
            "ownerReferences": [owner | {"controller": True}] if pod.owner else [],
        },
        "spec": {
            "schedulerName": pod.scheduler_name,
            "nodeName": pod.node,
            "priority": pod.priority,
            "schedulingGroup": {"podGroupName": NATIVE},
            "containers": [{"name": "main", "resources": {"limits": _limits(pod)}}],
        },
        "status": {"phase": phase, "startTime": _timestamp(pod.started) if pod.started else None},
    }
    return msgspec.convert(body, PodObject)


def _limits(pod: Pod) -> dict[str, str]:
    resources = pod.resources
    amounts = {"cpu": f"{resources.cpu_milli}m", "memory": str(resources.memory_bytes)}
    return amounts | {pod.gpu_resource: str(pod.gpus)}


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def at(message: Input, now: float) -> Input:
    """Return an input of the Intake, on the model's clock."""
    return replace(message, now=now)
