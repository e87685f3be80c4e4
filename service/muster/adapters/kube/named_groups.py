"""Remember which jobs have waiting pods that name a PodGroup, so that their numbers can be compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from muster.domain.pod import GangClaim
from muster.domain.podgroup import PodGroup, PodGroupKey

JobKey = tuple[str, str, str]
"""Kind, namespace, name."""


class NamedGroups:
    """PodGroup objects, and the jobs whose waiting pods name them."""

    def __init__(self) -> None:
        self._groups: dict[PodGroupKey, PodGroup] = {}
        self._by_uid: dict[str, tuple[PodGroupKey, JobKey]] = {}
        self._jobs: dict[PodGroupKey, Counter[JobKey]] = {}

    def names(self, uid: str, job: JobKey, group: PodGroupKey | None) -> None:
        """Note the PodGroup that a waiting pod of a job names. None: it names none, or is bound."""
        if self._by_uid.get(uid) == (group, job):
            return
        self.forget(uid)
        if group is not None:
            self._by_uid[uid] = (group, job)
            self._jobs.setdefault(group, Counter())[job] += 1

    def forget(self, uid: str) -> None:
        """Forget a pod."""
        group, job = self._by_uid.pop(uid, (None, None))
        if group is None or job is None:
            return
        jobs = self._jobs[group]
        jobs[job] -= 1
        if not jobs[job]:
            del jobs[job]
        if not jobs:
            del self._jobs[group]

    def see(self, group: PodGroup) -> list[JobKey]:
        """Take in a PodGroup, and return the jobs whose waiting pods name it."""
        self._groups[group.key] = group
        return list(self._jobs.get(group.key, ()))

    def gone(self, key: PodGroupKey) -> None:
        """Forget a PodGroup."""
        self._groups.pop(key, None)

    def complete(self, namespace: str, claim: GangClaim) -> GangClaim:
        """Return a pod's claim with the minMember of the PodGroup that it names."""
        group = self._groups.get((namespace, claim.dialect, claim.name)) if claim.by_object else None
        if group is None:
            return claim
        return replace(claim, min_member=claim.min_member or group.min_member)
