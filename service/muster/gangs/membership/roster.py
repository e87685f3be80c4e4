"""Group present pods into gangs by namespace, dialect, name and owners (`incarnations`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from muster.domain.pod import Pod
from muster.domain.podgroup import PodGroup, PodGroupKey
from muster.domain.policies import DEFAULT_POLICIES
from muster.domain.words import natural_key
from muster.gangs.membership.group import (
    Group,
    NameKey,
    complete_pod,
    group_of,
    key_of,
    name_key,
    planning_facts,
)
from muster.gangs.membership.incarnations import (
    Owners,
    assign,
    is_ambiguous,
    without_earlier,
    without_strangers,
)

_MAX_DELETED = 10_000
"""Largest number of deleted pods of a Job that are counted: a Job's status may hold any number."""


class Roster:
    """All pods that claim a gang, by UID and by gang name, completed by their PodGroups."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.policies = DEFAULT_POLICIES
        self._named: dict[NameKey, dict[str, Pod]] = {}
        self._present: Counter[tuple[NameKey, str | None]] = Counter()
        """(name, owner) → number of present pods; (name, None) → number over all owners."""
        self._pod_groups: dict[PodGroupKey, PodGroup] = {}
        self._by_object: dict[PodGroupKey, dict[str, Pod]] = {}
        """PodGroup → UID → the pod as it is without the PodGroup."""
        self._owners: dict[NameKey, Owners] = {}
        self.begun_names: set[NameKey] = set()
        """Names with an owner that began to run, so that waiting pods may belong to another incarnation now.
        A reader removes the names."""
        self._names_of: dict[str, Counter[NameKey]] = {}
        """Owner → name → number of its pods with the name."""
        self._succeeded: dict[str, int] = {}
        """Owner → number of succeeded pods, including deleted pods, as the Job's status states."""
        self.changed_pod_groups: set[PodGroupKey] = set()
        """PodGroups whose status may have changed."""

    @property
    def names(self) -> Collection[NameKey]:
        """Return the names of all pods."""
        return self._named.keys()

    @property
    def pod_groups(self) -> Mapping[PodGroupKey, PodGroup]:
        """Return all PodGroups that exist."""
        return self._pod_groups

    def pods_named(self, key: NameKey) -> Collection[Pod]:
        """Return the pods with this name, present or not."""
        return self._named.get(key, {}).values()

    def count_pods_naming(self, key: PodGroupKey) -> int:
        """Return how many pods name this PodGroup."""
        return len(self._by_object.get(key, ()))

    def see_pod_group(self, key: PodGroupKey, group: PodGroup | None) -> set[NameKey]:
        """Take in a PodGroup's new state; None if it is gone.

        Return the names whose groups may have changed.
        """
        if self._pod_groups.get(key) == group:
            if group is not None:
                self._pod_groups[key] = group  # its status may differ
            return set()
        if group is None:
            del self._pod_groups[key]
        else:
            self._pod_groups[key] = group
        self.changed_pod_groups.add(key)
        incomplete_pods = self._by_object.get(key, {}).values()
        for incomplete in incomplete_pods:  # the pods keep their identity, so their counts stay
            pod = complete_pod(incomplete, self._pod_groups)
            self.pods[pod.uid] = self._named[name_key(pod)][pod.uid] = pod
        return {(*key, "")} if incomplete_pods else set()

    def see(self, pod: Pod) -> set[NameKey]:
        """Take in a pod's new state. Return the names whose groups may have changed."""
        incomplete, key = pod, key_of(pod)
        pod = complete_pod(pod, self._pod_groups)
        names = self._see(pod)
        if key is not None:
            self._by_object.setdefault(key, {})[pod.uid] = incomplete
            self.changed_pod_groups.add(key)
        return names

    def _see(self, pod: Pod) -> set[NameKey]:
        """Take in a pod that its PodGroup has completed. Return the names whose groups may have changed."""
        old_pod = self.pods.get(pod.uid)
        if old_pod is None and pod.claim is None:
            return set()
        if old_pod is not None and _grouping_facts(old_pod) == _grouping_facts(pod):
            key = name_key(pod)
            self.pods[pod.uid] = pod
            self._named[key][pod.uid] = pod
            if pod.started and not old_pod.started and self._owners[key].note_begin(pod):
                self.begun_names.add(key)
            return set()
        names = self._drop(pod.uid)
        if pod.claim is not None:
            key = name_key(pod)
            self.pods[pod.uid] = pod
            self._named.setdefault(key, {})[pod.uid] = pod
            self._count(key, pod, 1)
            self._owners.setdefault(key, Owners()).see(pod)
            names.add(key)
            natural_key(pod.name)  # is cached: members are sorted by it, and 10,000 keys take 14 ms
        return self._sweep(names)

    def drop(self, uid: str) -> set[NameKey]:
        """Forget a pod. Return the names whose groups may have changed."""
        pod = self.pods.get(uid)
        names = self._sweep(self._drop(uid))
        return names if pod is not None and _counts(pod) else set()

    def _sweep(self, names: set[NameKey]) -> set[NameKey]:
        """Forget the owners of those names that no pod has any more. Return all the names."""
        for name in names:
            if name not in self._named:
                self._owners.pop(name, None)
        return names

    def _drop(self, uid: str) -> set[NameKey]:
        """Remove a pod from all indexes. Return its name."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return set()
        key = name_key(pod)
        del self._named[key][uid]
        self._owners[key].drop(pod)
        self._count(key, pod, -1)
        if not self._named[key]:
            del self._named[key]
        group_key = key[:3]
        if self._by_object.get(group_key, {}).pop(uid, None) is not None:
            self.changed_pod_groups.add(group_key)
            if not self._by_object[group_key]:
                del self._by_object[group_key]
        return {key}

    def _count(self, key: NameKey, pod: Pod, change: int) -> None:
        """Count a pod (`change` is 1), or no longer (-1)."""
        names = self._names_of.setdefault(pod.owner, Counter())
        names[key] += change
        if not names[key]:
            del names[key]
        if not names:
            del self._names_of[pod.owner]
        for owner in (pod.owner, None):
            self._present[key, owner] += change * pod.present
            if not self._present[key, owner]:
                del self._present[key, owner]

    def see_succeeded(self, owner: str, number: int) -> set[NameKey]:
        """Take in how many pods of an owner have succeeded, including deleted pods.

        Return the names whose groups may have changed.
        """
        if number:
            self._succeeded[owner] = number
        else:
            self._succeeded.pop(owner, None)
        return {name for name in self._names_of.get(owner, ()) if not name[3]}

    def size(self, key: NameKey, owner: str | None = None) -> int:
        """Return how many present pods have the name; with `owner`, only pods of this owner."""
        return self._present[key, owner]

    def groups(self, key: NameKey) -> list[Group]:
        """Return the gangs of one name, by the age of their owners."""
        by_owner: dict[str, list[Pod]] = {}
        for pod in self._named.get(key, {}).values():
            if _counts(pod):
                by_owner.setdefault(pod.owner, []).append(pod)
        if ownerless := without_earlier(by_owner.pop("", ())):
            by_owner[""] = ownerless
        if not by_owner:
            return []
        owners, pod_group = self._owners[key], self._pod_groups.get(key[:3])
        born, since = owners.came_at(), owners.waiting_since(by_owner)
        for owner, pods in by_owner.items():
            pods.extend(self._stand_ins_for_deleted(key, pods, born[owner]))
        return [
            group_of(key, incarnation, self.policies, pod_group, is_ambiguous(incarnation, born), since)
            for assigned in assign(by_owner, born)
            for incarnation in without_strangers(assigned)
            if any(pod.present for pods in incarnation.values() for pod in pods)
        ]

    def _stand_ins_for_deleted(self, key: NameKey, pods: Collection[Pod], born: float) -> list[Pod]:
        """Return a stand-in for each succeeded pod that was deleted: the Job's status states their number."""
        sample = next(iter(pods))
        succeeded = self._succeeded.get(sample.owner, 0)
        if not succeeded or key[3]:
            return []
        missing = min(succeeded - sum(pod.succeeded for pod in pods), _MAX_DELETED)
        return missing * [replace(sample, node="", started=0.0, created=born, finished=True, succeeded=True)]


def _counts(pod: Pod) -> bool:
    """Return whether the pod may be part of its gang: it is present, or has succeeded."""
    return pod.present or pod.succeeded


def _grouping_facts(pod: Pod) -> tuple[object, ...]:
    """Return all facts that grouping and planning read; whether containers run is none of these."""
    return (
        planning_facts(pod),
        pod.present,
        pod.node,
        pod.succeeded,
        pod.owner,
        pod.causes,
        pod.unallocated_claims,
        pod.created,
        pod.name,
    )
