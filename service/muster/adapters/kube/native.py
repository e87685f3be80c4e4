"""Take in PodGroups of Kubernetes' own API, with the pods that name them, and pass on the facts of gangs.

Whether a PodGroup makes a gang decides how its pods are read. So the pods are read again when a PodGroup
comes late, is deleted, or is made anew with another policy. A PodGroup that is deleted while its pods run
counts until the last of these pods has ended, so that no running gang is split.

A PodGroup that makes no gang is passed on once a pod of it was bound, because its condition then changes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from muster.adapters.kube.key_groups import KeyGroups
from muster.dialects.gangs import native
from muster.dialects.objects import PodObject
from muster.dialects.settings import DialectSettings
from muster.domain.podgroup import PodGroup, PodGroupKey
from muster.gangs.messages.inputs import Input, PodGroupGone, PodGroupSeen


class NativeGroups:
    """The PodGroups of Kubernetes' own API. `put` takes inputs in order. `read_again` reads the pods again
    that `waiting_pod` returns."""

    def __init__(
        self,
        settings: DialectSettings,
        put: Callable[[Input], Awaitable[None]],
        read_again: Callable[[Iterable[tuple[str, str]]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._put = put
        self._read_again = read_again
        self._groups: dict[PodGroupKey, PodGroup] = {}
        self._deleted: set[PodGroupKey] = set()
        """PodGroups in `_groups` that are deleted, and that still have running pods."""
        self._passed: dict[PodGroupKey, PodGroup] = {}
        """The facts of PodGroups that were passed on."""
        self._pods: dict[str, PodObject] = {}
        """UID → object, of the pods of ours that wait, and of all whose PodGroup is not there."""
        self._named = KeyGroups[str, PodGroupKey]()
        """UIDs of the pods in `_pods`, by their PodGroup."""
        self._running = KeyGroups[str, PodGroupKey]()
        """UIDs of bound pods of ours that have not ended, by their PodGroup."""
        self._foreign = KeyGroups[str, PodGroupKey]()
        """UIDs of pods of other schedulers that have not ended, by their PodGroup."""
        self._schedulers: dict[str, tuple[str, str]] = {}
        """UID → name and scheduler, of these pods."""
        self._absent = False
        """Whether the API server does not serve PodGroups to this account."""

    def group_of(self, obj: PodObject) -> PodGroup | None:
        """Return the PodGroup that a pod names; None if it does not exist (yet), or the pod names none."""
        return self._groups.get(native.key_of(obj.metadata.namespace, obj.spec))

    def waiting_pod(self, uid: str) -> PodObject | None:
        """Return the object of a pod that is read again when its PodGroup changes; None for other pods."""
        return self._pods.get(uid)

    async def see_pod(self, uid: str, obj: PodObject | None) -> None:
        """Take in a pod before it is read; None if it is gone."""
        named, running = None, None
        self._pods.pop(uid, None)
        if obj is not None and obj.spec.scheduling_group is not None and self._is_ours(obj):
            key, is_bound = native.key_of(obj.metadata.namespace, obj.spec), bool(obj.spec.node_name)
            running = key if is_bound and not native.has_ended(obj) else None
            if key not in self._groups or not (is_bound or native.has_ended(obj)):
                self._pods[uid], named = obj, key
        old_named, old_running = self._named.put(uid, named), self._running.put(uid, running)
        for changed in (named, old_named):
            if changed is not None and self._absent:
                await self._pass_on(changed)
        await self._see_foreign_pod(uid, obj)
        if running is not None and running not in self._passed:
            await self._pass_on(running)
        if old_running in self._deleted and old_running not in self._running.groups:
            await self._set(old_running, None)

    def _is_ours(self, obj: PodObject) -> bool:
        return obj.spec.scheduler_name in self._settings.scheduler_names

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
            await self._pass_on(changed)

    async def on_absence(self, absent: bool) -> None:
        """Note whether the API server serves PodGroups to this account. If not, the pods that name one are
        refused."""
        self._absent = absent
        for key in list(self._named.groups):
            await self._pass_on(key)

    async def see_group(self, group: PodGroup) -> None:
        """Take in a PodGroup's new facts."""
        await self._set(group.key, group)

    async def forget_group(self, group: PodGroup) -> None:
        """Take in that a PodGroup was deleted, unless another object has its name by now."""
        current = self._groups.get(group.key)
        if current is None or current.uid != group.uid:
            return
        if group.key in self._running.groups:
            self._deleted.add(group.key)
        else:
            await self._set(group.key, None)

    async def _set(self, key: PodGroupKey, group: PodGroup | None) -> None:
        """Set the facts of a PodGroup; None if it is gone. Read its pods again if they get another gang."""
        old_group = self._groups.pop(key, None)
        self._deleted.discard(key)
        if group is not None:
            self._groups[key] = group
        if _makes_gang(old_group) != _makes_gang(group):
            await self._read_again([(key[0], uid) for uid in self._named.keys_of(key)])
        await self._pass_on(key)

    async def _pass_on(self, key: PodGroupKey) -> None:
        """Pass changed facts of a PodGroup on, if it makes a gang, or if a pod of it was bound."""
        group, old_facts = self._groups.get(key), self._passed.get(key)
        if group is None and self._absent and key in self._named.groups:
            group = native.refused_unread(key)
        if group is not None and not group.makes_gang:
            was_begun = old_facts is not None and old_facts.begun and old_facts.uid == group.uid
            group = replace(group, begun=was_begun or key in self._running.groups)
        if group is None or not (group.makes_gang or group.begun):
            if self._passed.pop(key, None) is not None:
                await self._put(PodGroupGone(time.monotonic(), key))
            return
        foreign = next(iter(self._foreign.keys_of(key)), "")
        facts = native.check_scheduler(group, self._schedulers.get(foreign), self._settings)
        if old_facts is None or facts != old_facts or facts.status != old_facts.status:
            self._passed[key] = facts
            await self._put(PodGroupSeen(time.monotonic(), facts))


def _makes_gang(group: PodGroup | None) -> bool:
    """Return whether the pods of a PodGroup are read as a gang. They are, if they wait for the PodGroup."""
    return group is None or group.makes_gang
