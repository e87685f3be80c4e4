"""Take in groups of Kubernetes' own API, with the pods that name them, and pass on the facts of gangs.

A gang is a PodGroup, or a whole tree of CompositePodGroups and PodGroups (`Forest`). The groups decide how a
pod is read: whether it is in a gang, and in which. So pods are read again when their gang becomes another: a
group comes late, is deleted, or is made anew with another policy or parent. A PodGroup that is deleted while
its pods run counts until the last of these pods has ended. A CompositePodGroup counts until the last running
pod of its tree has ended. So no running gang is split.

The annotations of its Workload add constraints to a gang. The job that makes the pods of a PodGroup tells how
many pods will come. A PodGroup that makes no gang is passed on once a pod of it was bound, because its
condition then changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from itertools import islice

from muster.adapters.kube.key_groups import KeyGroups
from muster.adapters.turns import in_parts
from muster.dialects.gangs import native
from muster.dialects.gangs.forest import MAX_GROUPS, Forest
from muster.dialects.gangs.native import WorkloadTerms
from muster.dialects.objects import PodObject
from muster.dialects.settings import DialectSettings
from muster.domain.pod import COMPOSITE, KUBERNETES, GangClaim
from muster.domain.podgroup import GroupStatus, PodGroup, PodGroupKey
from muster.gangs.messages.inputs import Input, PodGroupGone, PodGroupSeen

REST_SHARE = 4
"""The pause after each PodGroup of a changed Workload, as a multiple of the time that the PodGroup took."""


class NativeGroups:
    """The groups of Kubernetes' own API. `put` takes inputs in order. `join` lets pods that run, or that were
    planned alone, join the gang of this claim. `read_again` reads the pods again that `waiting_pod` returns.
    """

    def __init__(
        self,
        settings: DialectSettings,
        put: Callable[[Input], Awaitable[None]],
        join: Callable[[Collection[str], GangClaim], Awaitable[None]],
        read_again: Callable[[Iterable[tuple[str, str]]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._put = put
        self._join = join
        self._read_again = read_again
        self._forest = Forest()
        self._deleted: set[PodGroupKey] = set()
        """Groups in `_forest` that are deleted, and that count while pods run (`_runs`)."""
        self._passed: dict[PodGroupKey, PodGroup] = {}
        """The facts of PodGroups that were passed on."""
        self._workloads: dict[str, WorkloadTerms] = {}
        """Namespace and name → annotations, of the Workloads that have some of ours."""
        self._of_workload = KeyGroups[PodGroupKey, str]()
        """The groups in `_forest`, by their Workload."""
        self._pods_of_jobs: dict[PodGroupKey, int] = {}
        """The number of pods that the job makes whose pods name the PodGroup."""
        self._pods: dict[str, PodObject] = {}
        """UID → object, of the pods of ours that wait, and of all whose gang is not there."""
        self._named = KeyGroups[str, PodGroupKey]()
        """UIDs of the pods in `_pods`, by their PodGroup."""
        self._running = KeyGroups[str, PodGroupKey]()
        """UIDs of bound pods of ours that have not ended, by their PodGroup."""
        self._foreign = KeyGroups[str, PodGroupKey]()
        """UIDs of pods of other schedulers that have not ended, by their PodGroup."""
        self._schedulers: dict[str, tuple[str, str]] = {}
        """UID → name and scheduler, of these pods."""
        self._absent: set[str] = set()
        """The kinds of groups that the API server does not serve to this account."""

    def group_of(self, obj: PodObject) -> PodGroup | None:
        """Return the PodGroup that a pod names, or the root of its tree; None if the pod names none."""
        if obj.spec.scheduling_group is None:
            return None
        return self._forest.root_of(native.key_of(obj.metadata.namespace, obj.spec))

    def waiting_pod(self, uid: str) -> PodObject | None:
        """Return the object of a pod that is read again when its gang changes; None for other pods."""
        return self._pods.get(uid)

    async def see_pod(self, uid: str, obj: PodObject | None) -> None:
        """Take in a pod before it is read; None if it is gone."""
        named, running = None, None
        self._pods.pop(uid, None)
        if obj is not None and obj.spec.scheduling_group is not None and self._is_ours(obj):
            key, is_bound = native.key_of(obj.metadata.namespace, obj.spec), bool(obj.spec.node_name)
            running = key if is_bound and not native.has_ended(obj) else None
            is_there = self._forest.get(self._forest.root_of(key).key) is not None
            if not is_there or not (is_bound or native.has_ended(obj)):
                self._pods[uid], named = obj, key
        old_named, old_running = self._named.put(uid, named), self._running.put(uid, running)
        for changed in (named, old_named):
            if changed is not None and (root := self._forest.root_of(changed)).dialect in self._absent:
                await self._pass_on(root.key)
        await self._see_foreign_pod(uid, obj)
        if running is not None and running not in self._passed:
            await self._pass_on(running)
        if old_running is not None and old_running not in self._running.groups:
            await self._forget_deleted(old_running)

    def _is_ours(self, obj: PodObject) -> bool:
        return obj.spec.scheduler_name in self._settings.scheduler_names and not obj.is_static

    async def _see_foreign_pod(self, uid: str, obj: PodObject | None) -> None:
        key = None
        if obj is not None and native.counts_as_foreign(obj, self._settings):
            key = native.key_of(obj.metadata.namespace, obj.spec)
            self._schedulers[uid] = (obj.metadata.name, obj.spec.scheduler_name)
        if self._foreign.group_of(uid) == key:
            return
        old_key = self._foreign.put(uid, key)
        if key is None:
            del self._schedulers[uid]
        if (changed := key or old_key) is not None:
            await self._pass_on(self._forest.root_of(changed).key)

    async def on_absence(self, absent: bool, kind: str = KUBERNETES) -> None:
        """Note whether the API server serves this kind of groups to this account. If not, the pods below a
        group of this kind are refused."""
        self._absent = self._absent | {kind} if absent else self._absent - {kind}
        for key in dict.fromkeys(self._forest.root_of(pod_group).key for pod_group in self._named.groups):
            await self._pass_on(key)

    async def see_workload(self, name: str, terms: WorkloadTerms | None) -> None:
        """Take in the annotations of a Workload; None without any of ours. `name`: its namespace and name.

        It may have thousands of PodGroups, and its user may change it all the time. So there are pauses.
        """
        old_terms = self._workloads.pop(name, None)
        if terms is not None:
            self._workloads[name] = terms
        if old_terms == terms:
            return
        for key in dict.fromkeys(
            self._forest.root_of(group).key for group in self._of_workload.keys_of(name)
        ):
            began = time.monotonic()
            await self._pass_on(key)
            await asyncio.sleep(REST_SHARE * (time.monotonic() - began))

    async def see_pods_of_job(self, key: PodGroupKey, pods: int) -> None:
        """Take in how many pods the job makes whose pods name this PodGroup; 0 if that is not known."""
        if pods == self._pods_of_jobs.get(key, 0):
            return
        self._pods_of_jobs[key] = pods
        if not pods:
            del self._pods_of_jobs[key]
        await self._pass_on(self._forest.root_of(key).key)

    async def see_group(self, group: PodGroup) -> None:
        """Take in a group's new facts."""
        old_top = self._top_of(group.key)
        await self._set(group.key, group)
        if self._top_of(group.key) != old_top:
            await self._forget_deleted_composites(old_top)

    async def forget_group(self, group: PodGroup) -> None:
        """Take in that a group was deleted, unless another object has its name by now."""
        current = self._forest.get(group.key)
        if current is None or current.uid != group.uid:
            return
        if self._runs(group.key):
            self._deleted.add(group.key)
        else:
            await self._set(group.key, None)

    def _runs(self, key: PodGroupKey) -> bool:
        """Return whether pods of ours run in a PodGroup, or in the tree of a CompositePodGroup."""
        top = self._top_of(key) if key[1] == COMPOSITE else key
        return any(pod_group in self._running.groups for pod_group in self._forest.pod_groups_below(top))

    def _top_of(self, key: PodGroupKey) -> PodGroupKey:
        return self._forest.ancestry(key)[-1].key

    async def _forget_deleted(self, pod_group: PodGroupKey) -> None:
        """Forget a PodGroup without running pods if it is deleted. Forget the deleted CompositePodGroups of
        its tree if no pod of the tree runs any more."""
        top = self._top_of(pod_group)
        if pod_group in self._deleted:
            await self._set(pod_group, None)
        await self._forget_deleted_composites(top)

    async def _forget_deleted_composites(self, top: PodGroupKey) -> None:
        if top[1] == COMPOSITE and self._deleted and not self._runs(top):
            for key in self._forest.groups_of_tree(top):
                if key in self._deleted:  # it may have been made anew meanwhile
                    await self._set(key, None)

    async def _set(self, key: PodGroupKey, group: PodGroup | None) -> None:
        """Set the facts of a group; None if it is gone. Of the pods that may get another gang, let those that
        run or were planned alone join it, and read the waiting ones again.

        There may be thousands of groups below it, and other changes come in the pauses. So only facts of now
        are read, and nothing is compared with what held before.
        """
        old_group, gangs = self._forest.get(key), [above.key for above in self._forest.ancestry(key)]
        is_moved = old_group is None or group is None or _links(old_group) != _links(group)
        self._deleted.discard(key)
        self._forest.put(key, group)
        workload = group.workload if group is not None else ""
        self._of_workload.put(key, f"{key[0]}/{workload}" if workload else None)
        gangs += [above.key for above in self._forest.ancestry(key)]
        groups_below = self._forest.groups_of_tree(key) if is_moved else []
        waiting_pods: list[tuple[str, str]] = []
        async for pod_group in in_parts(group for group in groups_below if group[1] == KUBERNETES):
            root, waiting_uids = self._forest.root_of(pod_group), list(self._named.keys_of(pod_group))
            if root.makes_gang and (uids := [*waiting_uids, *self._running.keys_of(pod_group)]):
                await self._join(uids, native.claim_of_member(pod_group[2], root))
            waiting_pods += [(key[0], uid) for uid in waiting_uids]
        await self._read_again(waiting_pods)
        async for gang in in_parts(dict.fromkeys([*gangs, *groups_below])):
            await self._pass_on(gang)

    async def _pass_on(self, key: PodGroupKey) -> None:
        """Pass changed facts on, of a gang or of a PodGroup that makes no gang and has a bound pod."""
        group, old_facts = self._forest.gang(key), self._passed.get(key)
        pod_groups = self._forest.pod_groups_below(key)
        few_pod_groups = list(islice(pod_groups, MAX_GROUPS))  # a tree of more is refused anyway
        if key[1] in self._absent and self._forest.get(key) is None:
            is_named = any(pod_group in self._named.groups for pod_group in few_pod_groups)
            group = native.refused_unread(key) if is_named else None
        if group is None:
            group = self._begun_group(key, old_facts)
        if group is None:
            if self._passed.pop(key, None) is not None:
                await self._put(PodGroupGone(time.monotonic(), key))
            return
        foreign = next((uid for pod_group in few_pod_groups for uid in self._foreign.keys_of(pod_group)), "")
        facts = native.check_scheduler(group, self._schedulers.get(foreign), self._settings)
        facts = native.add_workload(facts, self._workloads.get(f"{key[0]}/{group.workload}"))
        if facts.makes_gang and (more_pods := sum(map(self._more_pods_of_job, facts.objects))):
            facts = replace(facts, size=(facts.size or 0) + more_pods)
        if old_facts is None or facts != old_facts or _statuses(facts) != _statuses(old_facts):
            self._passed[key] = facts
            await self._put(PodGroupSeen(time.monotonic(), facts))

    def _more_pods_of_job(self, pod_group: PodGroup) -> int:
        """Return how many more pods the job of a PodGroup makes than the size of its gang counts for it."""
        counted = (pod_group.size or pod_group.min_member or 1) if pod_group.parent else pod_group.size or 0
        return max(0, self._pods_of_jobs.get(pod_group.key, 0) - counted)

    def _begun_group(self, key: PodGroupKey, old_facts: PodGroup | None) -> PodGroup | None:
        """Return the PodGroup with this key if it makes no gang, is in none, and has had a bound pod."""
        group = self._forest.get(key)
        if group is None or key[1] != KUBERNETES or group.makes_gang or self._forest.root_of(key).key != key:
            return None
        was_begun = old_facts is not None and old_facts.begun and old_facts.uid == group.uid
        return replace(group, begun=True) if was_begun or key in self._running.groups else None


def _links(group: PodGroup) -> tuple[str, bool]:
    """Return what decides in which gangs the pods below a group are. All else changes only these gangs."""
    return group.parent, group.makes_gang


def _statuses(group: PodGroup) -> list[GroupStatus | None]:
    return [pod_group.status for pod_group in group.objects]
