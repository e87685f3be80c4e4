"""Remember the owners of pods under one name: their age, and since when their pods wait."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster.domain.pod import Pod

MAX_GONE = 64
"""Owners without pods that are remembered for each name: a controller may send its next pods later."""


@dataclass(slots=True)
class _Owner:
    """Facts about one owner. Times are in seconds since the Unix epoch."""

    born: float = math.inf
    """When the oldest pod of the owner was created, even if that pod is gone."""
    since: float = math.inf
    """When the oldest pod was created that waits, or that waited and was deleted."""
    pods: int = 0
    began: float = math.inf
    """When the first of its pods began to run."""
    bound: bool = False
    """Whether a pod of the owner was bound since `since` was last computed."""


class Owners:
    """The owners of the pods that have one name.

    A gang is as old as its waiting members. Deleting and recreating a waiting pod keeps the age, unless a pod
    of its owner runs. Pods that are added while one runs count from their own creation.
    """

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._gone: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def see(self, pod: Pod) -> None:
        """Take in a pod that came, or the new state of a pod that was dropped before."""
        owner = self._owners.setdefault(pod.owner, _Owner())
        self._gone.pop(pod.owner, None)
        owner.pods += 1
        owner.born = min(owner.born, pod.created)
        if pod.present and not pod.node:
            owner.since = min(owner.since, pod.created)
        owner.bound |= bool(pod.node)
        self.begins(pod)

    def begins(self, pod: Pod) -> bool:
        """Note when a pod of a known owner began to run. Return whether it is the owner's first."""
        owner = self._owners[pod.owner]
        first = 0 < pod.started < owner.began
        if first:
            owner.began = pod.started
        return first

    def drop(self, pod: Pod) -> None:
        """Remove a pod. The latest owners without pods are remembered."""
        owner = self._owners[pod.owner]
        owner.pods -= 1
        if not owner.pods:
            self._gone[pod.owner] = None
            if len(self._gone) > MAX_GONE:
                oldest = next(iter(self._gone))
                del self._gone[oldest], self._owners[oldest]

    def born(self) -> Mapping[str, float]:
        """Return when the oldest pod of each owner was created, even if that pod is gone."""
        return {name: owner.born for name, owner in self._owners.items()}

    def since(self, by_owner: Mapping[str, Collection[Pod]]) -> Mapping[str, float]:
        """Return since when the pods of each of these owners wait; infinite if none waits."""
        for name, pods in by_owner.items():
            owner = self._owners[name]
            if owner.bound or any(pod.node and pod.present for pod in pods):
                waiting = (pod.created for pod in pods if pod.present and not pod.node)
                owner.since, owner.bound = min(waiting, default=math.inf), False
        return {name: self._owners[name].since for name in by_owner}
