"""Pods and groups of Kubernetes' own API in the model, as the service reads them: by the real `Intake`.

The Intake decides whether such a pod is a member of a gang, or is planned alone. Only the pauses in which
it reads pods again are the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import msgspec

from muster.adapters.kube import intake
from muster.dialects.gangs import native
from muster.dialects.objects import CustomObject, PodObject
from muster.dialects.settings import DEFAULTS
from muster.domain.pod import COMPOSITE, KUBERNETES, Pod
from muster.domain.pod import NATIVE as KINDS
from muster.domain.podgroup import PodGroup
from muster.gangs.messages.inputs import Input, PodGroupSeen
from tests.adapters.changes import seen

NATIVE = "n"
"""The PodGroup of Kubernetes' own API that has no parent."""
ROOT, MIDDLE = "t", "m"
"""The CompositePodGroups."""
LEAVES = ("t1", "t2", "t3")
"""The PodGroups that may have a parent."""
TREE = (ROOT, MIDDLE, *LEAVES)
Groups = Mapping[str, CustomObject]
"""Name → group. No two groups have one name, of whichever kind they are."""
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
    """The service's view of the pods and their groups. `put` takes its inputs."""

    reads: LateReads
    """The pods that wait to be read again."""

    def __init__(self, put: Callable[[Input], None]) -> None:
        self._put = put
        self.bindings: dict[str, dict[str, str]] = {}
        """Pod UID → the annotations of its Binding."""
        self.groups: dict[str, CustomObject] = {}
        """The groups that exist."""
        self.refused: Collection[str] = ()
        """The kinds of groups that the API server refuses to the service."""
        self._shown: dict[str, CustomObject] = {}
        """UID → group as the watch showed it last, also of those that are gone."""
        self._trees: list[tuple[PodGroup, Groups]] = []
        """The facts of each tree that was passed on, and the groups that the service knew then."""
        self.begin()

    def begin(self) -> None:
        """A new service knows nothing."""
        with patch.object(intake, "PodRereads", LateReads):
            self._intake = intake.Intake(DEFAULTS, self._take, lambda _: None)
        reads = self._intake._pod_rereads
        assert isinstance(reads, LateReads)
        self.reads = reads

    async def _take(self, message: Input) -> None:
        if isinstance(message, PodGroupSeen) and message.group.dialect == COMPOSITE:
            self._trees.append((message.group, self.known_groups))
        self._put(message)

    @property
    def known_groups(self) -> Groups:
        """The groups by which the service goes now."""
        groups = self._intake.native_groups._forest._groups.values()
        return {group.name: self._shown[group.uid] for group in groups}

    def groups_of(self, tree: PodGroup) -> Groups:
        """Return the groups from which the service has read these facts."""
        return next(groups for facts, groups in self._trees if facts is tree)

    def see_pod(self, pod: Pod) -> None:
        drive(self._intake.on_pod(*seen(_object_of(pod, self.bindings.get(pod.uid, {})))))

    def forget_pod(self, uid: str) -> None:
        drive(self._intake.on_pod(uid, None))

    def make(self, group: CustomObject) -> None:
        """The group is made or changed, and the watch shows it."""
        self.groups[group.metadata.name] = group
        self._see(group)

    def see_groups(self) -> None:
        """The watch shows the groups that exist, or that the service may not read them."""
        for kind in self.refused:
            drive(self._intake.native_groups.on_absence(True, kind))
        for group in self.groups.values():
            self._see(group)

    def _see(self, group: CustomObject) -> None:
        if group.kind not in self.refused:
            self._shown[group.metadata.uid] = group
            drive(self._intake.on_pod_group(*seen(group)))

    def forget_group(self, uid: str) -> None:
        """The group goes, or begins to be refused."""
        drive(self._intake.on_pod_group(uid, None))

    def refuse(self, kinds: Collection[str]) -> None:
        """From now on the API server refuses these kinds of groups to the service, and no others."""
        self.serve()
        self.refused = kinds
        for group in self.groups.values():
            if group.kind in kinds:
                self.forget_group(group.metadata.uid)
        self.see_groups()

    def serve(self) -> None:
        """From now on the service may read all groups."""
        served, self.refused = self.refused, ()
        self.see_groups()
        for kind in served:
            drive(self._intake.native_groups.on_absence(False, kind))

    def known_group(self, pod: Pod) -> PodGroup | None:
        """Return the PodGroup by which the service reads this pod."""
        return self._intake.native_groups.group_of(_object_of(pod, {}))


def group_object(
    uid: str, policy: dict[str, Any], label: str, name: str = NATIVE, parent: str = ""
) -> CustomObject:
    """Return a group with this policy and, unless they are "", a topology constraint and a parent."""
    kind = COMPOSITE if name in (ROOT, MIDDLE) else KUBERNETES
    spec: dict[str, Any] = {"schedulingPolicy": policy}
    if label:
        spec["schedulingConstraints"] = {"topology": [{"key": label}]}
    if parent:
        spec[native.PARENT] = parent
    if name in TREE:
        spec["workloadRef"] = {"workloadName": "w", "templateName": name}
    body = {
        "apiVersion": native.APIS[KINDS.index(kind) + 1],
        "kind": kind,
        "metadata": {"name": name, "namespace": "ns", "uid": uid},
        "spec": spec,
    }
    return msgspec.convert(body, CustomObject)


def gang_around(groups: Groups, name: str) -> list[str]:
    """Return the groups from a PodGroup to the root of its gang; [] while an ancestor is not there, and where
    the parents form a ring."""
    chain = [name]
    while chain[-1] in groups and (parent := groups[chain[-1]].spec.get(native.PARENT)):
        if parent in chain:
            return []
        chain.append(parent)
    if chain[-1] not in groups:
        return []
    while len(chain) > 1 and not _constrains(groups[chain[-1]]):
        chain.pop()
    return chain


def _constrains(group: CustomObject) -> bool:
    return "gang" in group.spec["schedulingPolicy"] or "schedulingConstraints" in group.spec


def may_start(groups: Groups, name: str, counts: Mapping[str, int]) -> bool:
    """Return whether members of this PodGroup may start with as many members of each PodGroup."""
    chain = gang_around(groups, name)
    return bool(chain) and all(_is_enough(groups, group, counts) for group in chain)


def _is_enough(groups: Groups, name: str, counts: Mapping[str, int]) -> bool:
    group = groups[name]
    fields = group.spec["schedulingPolicy"].get("gang", {})
    if group.kind == KUBERNETES:
        return counts.get(name, 0) >= int(fields.get("minCount", 1))
    parts = [part for part, child in groups.items() if child.spec.get(native.PARENT) == name]
    return sum(_is_enough(groups, part, counts) for part in parts) >= int(fields.get("minGroupCount", 1))


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
            "schedulingGroup": {"podGroupName": pod.claim.name if pod.claim else NATIVE},
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
