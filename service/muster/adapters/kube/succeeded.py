"""Tell the gangs how many pods of each Job have succeeded.

A member that has succeeded needs no place again. Its pod may be deleted with its node, and its Job does not
make it again. So the gang would wait for it for ever if pods alone were counted.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from muster.dialects.kinds import batch
from muster.dialects.objects import CustomObject
from muster.domain.pod import Pod
from muster.gangs.messages.inputs import JobSeen


class Succeeded:
    """What the Jobs of the cluster say, by their UIDs. The gangs learn it of Jobs with pods of ours.

    What a deleted Job said last counts until its last pod is gone, so that no gang waits for members again.
    `put` takes inputs in order.
    """

    def __init__(self, put: Callable[[JobSeen], Awaitable[None]]) -> None:
        self._put = put
        self._said: dict[str, int] = {}
        """Only numbers above 0."""
        self._uids: dict[str, str] = {}
        """Namespace and name → UID of the Job that exists and is in `_said`."""
        self._pods: dict[str, set[str]] = {}
        """Job → UIDs of its pods of ours."""
        self._owners: dict[str, str] = {}
        """The same, from each pod to its Job."""
        self._gone: set[str] = set()
        """Deleted Jobs in `_said` and `_pods`."""

    async def see_job(self, obj: CustomObject) -> None:
        """Take in a Job's change."""
        meta, number = obj.metadata, batch.succeeded(obj)
        name = f"{meta.namespace}/{meta.name}"
        if self._uids.get(name) != meta.uid:
            self.forget_job(name)  # the watch may skip a deletion
        if number == self._said.get(meta.uid, 0):
            return
        self._uids[name], self._said[meta.uid] = meta.uid, number
        if meta.uid in self._pods:
            await self._put(JobSeen(time.monotonic(), meta.uid, number))
        if not number:
            del self._uids[name], self._said[meta.uid]

    def forget_job(self, name: str) -> None:
        """Forget a Job without pods of ours, by its namespace and name."""
        uid = self._uids.pop(name, "")
        if uid in self._pods:
            self._gone.add(uid)
        else:
            self._said.pop(uid, None)

    async def see_pod(self, pod: Pod) -> None:
        """Take in a pod of ours."""
        by = pod.controller
        if by is None or by.kind != batch.JOB.kind or pod.uid in self._owners:
            return
        self._owners[pod.uid] = by.uid
        first = by.uid not in self._pods
        self._pods.setdefault(by.uid, set()).add(pod.uid)
        if first and by.uid in self._said:
            await self._put(JobSeen(time.monotonic(), by.uid, self._said[by.uid]))

    async def forget_pod(self, uid: str) -> None:
        """Forget a pod."""
        if (job := self._owners.pop(uid, None)) is None:
            return
        self._pods[job].discard(uid)
        if self._pods[job]:
            return
        del self._pods[job]
        if job in self._said:
            await self._put(JobSeen(time.monotonic(), job, 0))
            if job in self._gone:
                del self._said[job]
        self._gone.discard(job)
