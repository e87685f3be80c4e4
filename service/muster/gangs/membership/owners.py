"""What is remembered of the owners of pods under one name: their age, and since when their pods wait."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster.domain.pod import Pod

MAX_GONE = 64
"""Owners without pods that are remembered of each name: a controller may send its next pods later."""


@dataclass(slots=True)
class _Owner:
    """Times in seconds since the epoch.

    `born`: when the oldest pod of the owner was created, also if that one is gone. `since`: when the oldest
    was created of the pods that wait, or waited and were deleted. `began`: when the first of its pods began
    to run.
    """

    born: float = math.inf
    since: float = math.inf
    pods: int = 0
    began: float = math.inf
    bound: bool = False
    """Whether a pod of it was bound since `since` was last counted."""


class Owners:
    """The owners of the pods that bear one name.

    A gang is as old as its waiting members. To delete a waiting pod and make it again keeps the age, while
    none of its owner's pods runs. Pods that are added beside a running one are as old as they are.
    """

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._gone: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def see(self, pod: Pod) -> None:
        """Take in a pod that came, or the new state of one that was dropped before."""
        owner = self._owners.setdefault(pod.owner, _Owner())
        self._gone.pop(pod.owner, None)
        owner.pods += 1
        owner.born = min(owner.born, pod.created)
        if pod.present and not pod.node:
            owner.since = min(owner.since, pod.created)
        owner.bound |= bool(pod.node)
        self.begins(pod)

    def begins(self, pod: Pod) -> bool:
        """Note when a pod of a known owner began to run; return whether that is the first of its pods."""
        owner = self._owners[pod.owner]
        first = 0 < pod.started < owner.began
        if first:
            owner.began = pod.started
        return first

    def drop(self, pod: Pod) -> None:
        """Take a pod out that was seen. Of the owners without pods the latest are remembered."""
        owner = self._owners[pod.owner]
        owner.pods -= 1
        if not owner.pods:
            self._gone[pod.owner] = None
            if len(self._gone) > MAX_GONE:
                oldest = next(iter(self._gone))
                del self._gone[oldest], self._owners[oldest]

    def born(self) -> Mapping[str, float]:
        """Return when the oldest pod of each owner was created, also if that one is gone."""
        return {name: owner.born for name, owner in self._owners.items()}

    def since(self, by_owner: Mapping[str, Collection[Pod]]) -> Mapping[str, float]:
        """Return since when the pods of each of these owners wait; infinite if none waits."""
        for name, pods in by_owner.items():
            owner = self._owners[name]
            if owner.bound or any(pod.node and pod.present for pod in pods):
                waiting = (pod.created for pod in pods if pod.present and not pod.node)
                owner.since, owner.bound = min(waiting, default=math.inf), False
        return {name: self._owners[name].since for name in by_owner}
