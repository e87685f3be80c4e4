"""Read gangs from the jobs of the cluster: take in jobs and pods, and pass on PodGroups and places of pods.

A job is any object of a kind in `dialects.kinds`. The jobs of all namespaces are watched, but few have pods
of ours. So each job is kept as JSON, and read only when a pod of ours names it. Each gang with a pod gets a
PodGroup.

The last numbers of a deleted job count until its last pod is gone. Its pods stay its members if they lose
their owner references. A kind that is not served, or that the account may not read, makes no gangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field

import msgspec
import structlog

from muster.adapters.kube.decode import jobs
from muster.adapters.kube.key_groups import KeyGroups
from muster.adapters.kube.leftout import PendingEvents
from muster.dialects.devices import accelerators
from muster.dialects.gangs import native, own
from muster.dialects.gangs.subgroups import Topologies
from muster.dialects.jobs import slips
from muster.dialects.jobs.families import JobGangs, job_gangs
from muster.dialects.jobs.pruned import prune, words
from muster.dialects.kinds import batch
from muster.dialects.kinds.description import JobPod, controller_of
from muster.dialects.kinds.table import KINDS, member
from muster.dialects.objects import CustomObject, Metadata, PodObject
from muster.dialects.settings import DialectSettings
from muster.domain.levels import DEFAULT_LEVELS, FabricLevel
from muster.domain.pod import Controller, GangClaim, Pod
from muster.domain.podgroup import PodGroup, PodGroupKey
from muster.domain.words import counted_noun
from muster.gangs.membership.group import key_of
from muster.gangs.messages.inputs import Input, JobSeen, PodGroupGone, PodGroupSeen
from muster.gangs.messages.instructions import EmitEvent, EventReason

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CustomObject)
Key = tuple[str, str, str]
"""Kind, namespace, name."""
GONE_S = 30.0
"""Seconds from the deletion of a job to the event about it, if some of its pods still wait.

Usually the API server deletes these pods too.
"""

log = structlog.get_logger(__name__)


class SucceededPods:
    """The number of succeeded pods of each Job, by the Job's UID. Numbers of Jobs with pods of ours are
    passed on.

    A succeeded member needs no place again. Its pod may be deleted with its node, and its Job does not make
    the pod again. If only pods were counted, the gang would wait for that pod for ever.

    The last number of a deleted Job counts until its last pod is gone, so that no gang waits for members
    again. `put` takes inputs in order.
    """

    def __init__(self, put: Callable[[JobSeen], Awaitable[None]]) -> None:
        self._put = put
        self._numbers: dict[str, int] = {}
        """Only numbers above 0."""
        self._uids: dict[str, str] = {}
        """Namespace and name → UID of the existing Job that is in `_numbers`."""
        self._pods = KeyGroups[str, str]()
        """UIDs of pods of ours, by their Job."""
        self._gone: set[str] = set()
        """Deleted Jobs in `_numbers` and `_pods`."""

    async def see_job(self, name: str, obj: CustomObject) -> None:
        """Take in a Job's change. `name`: its namespace and name."""
        meta, number = obj.metadata, batch.count_succeeded(obj)
        if self._uids.get(name) != meta.uid:
            self.forget_job(name)  # the watch may skip a deletion
        if number == self._numbers.get(meta.uid, 0):
            return
        self._uids[name], self._numbers[meta.uid] = meta.uid, number
        if meta.uid in self._pods.groups:
            await self._put(JobSeen(time.monotonic(), meta.uid, number))
        if not number:
            del self._uids[name], self._numbers[meta.uid]

    def forget_job(self, name: str) -> None:
        """Forget a Job without pods of ours, by its namespace and name."""
        uid = self._uids.pop(name, "")
        if uid in self._pods.groups:
            self._gone.add(uid)
        else:
            self._numbers.pop(uid, None)

    async def see_pod(self, pod: Pod) -> None:
        """Take in a pod of ours."""
        owner = pod.controller
        if owner is None or owner.kind != batch.JOB.kind or self._pods.group_of(pod.uid) is not None:
            return
        first = owner.uid not in self._pods.groups
        self._pods.put(pod.uid, owner.uid)
        if first and owner.uid in self._numbers:
            await self._put(JobSeen(time.monotonic(), owner.uid, self._numbers[owner.uid]))

    async def forget_pod(self, uid: str) -> None:
        """Forget a pod."""
        job = self._pods.put(uid, None)
        if job is None or job in self._pods.groups:
            return
        if job in self._numbers:
            await self._put(JobSeen(time.monotonic(), job, 0))
            if job in self._gone:
                del self._numbers[job]
        self._gone.discard(job)


class IgnoredKeys:
    """Says once for each gang which keys on its pods have no effect: of KAI, or of unknown systems."""

    def __init__(self, standing: PendingEvents) -> None:
        self._standing = standing
        self._pods = KeyGroups[str, Hashable]()

    def see(self, obj: PodObject, pod: Pod) -> None:
        """Take in a pod, and post an event on it if it is the first of its gang."""
        slip_text = "; ".join(slips.ineffective_on_pod(obj.metadata, pod))
        if not slip_text:
            self.forget(pod.uid)
        elif self._pods.group_of(pod.uid) is None:
            gang = _identity_of_gang(pod)
            first = gang not in self._pods.groups
            self._pods.put(pod.uid, gang)
            if first:
                pods_of_event = ((pod.name, pod.uid),)
                event = EmitEvent(pod.namespace, pods_of_event, EventReason.KEY_IGNORED, slip_text)
                self._standing.post(gang, event)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        gang = self._pods.put(uid, None)
        if gang is not None and gang not in self._pods.groups:
            self._standing.drop(gang)


def _identity_of_gang(pod: Pod) -> Hashable:
    """Return what the pods of a gang have in common; of pods that are alone, their controller."""
    if pod.claim is None or pod.claim.lone:
        return pod.controller.uid if pod.controller is not None else pod.uid
    return pod.namespace, pod.claim.dialect, pod.claim.name


@dataclass(frozen=True, slots=True)
class _WaitingPod:
    """A pod that waits, and what was read of it."""

    obj: PodObject
    pod: Pod
    place: JobPod
    gang: str


@dataclass(slots=True)
class _Job:
    """One job."""

    text: bytes | None = None
    """Its object as JSON; None if it was not seen."""
    is_deleted: bool = False
    gangs: JobGangs | None = None
    """Read from the object when needed."""
    pods: KeyGroups[str, str] = field(default_factory=KeyGroups)
    """UIDs of the pods of our schedulers, by gang; "" for pods that are alone or name their gang
    themselves."""
    present: KeyGroups[str, str] = field(default_factory=KeyGroups)
    """UIDs of the pods that neither ended nor are being deleted, by gang."""
    members: KeyGroups[str, PodGroupKey] = field(default_factory=KeyGroups)
    """UIDs of the pods that name a PodGroup of Kubernetes' own API, by this PodGroup."""
    waiting: dict[str, _WaitingPod] = field(default_factory=dict)
    """Pods that are not bound, and all pods until the job is known.

    They are read again when the job becomes a gang, or stops being a gang.
    """
    posted: set[EventReason] = field(default_factory=set)
    """Reasons of the events that were posted on the job."""
    unposted: set[EventReason] = field(default_factory=set)
    """Reasons of the events that wait until this replica leads."""


class Jobs:
    """The jobs of the cluster and the pods of ours that they made.

    `put` takes inputs in order. `standing` posts events on jobs.
    `read_again` reads the pods that `waiting_pod` returns. `see_pods_of_job` takes a PodGroup of Kubernetes'
    own API and the number of pods that its job makes; 0 if that is not known.
    """

    def __init__(
        self,
        settings: DialectSettings,
        put: Callable[[Input], Awaitable[None]],
        standing: PendingEvents,
        read_again: Callable[[Iterable[tuple[str, str]], bool], Awaitable[None]],
        see_pods_of_job: Callable[[PodGroupKey, int], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._put = put
        self._standing = standing
        self._read_again = read_again
        self._see_pods_of_job = see_pods_of_job
        self._jobs: dict[Key, _Job] = {}
        self._makers: dict[Key, Metadata] = {}
        self._by_uid: dict[str, Key] = {}
        self._places: dict[str, JobPod] = {}
        """UID → place, of the same pods. A pod keeps its place if its owner references are removed."""
        self._groups: dict[PodGroupKey, PodGroup] = {}
        self._named = KeyGroups[str, PodGroupKey]()
        """UIDs of waiting pods of jobs, by the PodGroup that they name. The PodGroup's number may differ from
        a job's."""
        self._makers_of = KeyGroups[tuple[PodGroupKey, Key], PodGroupKey]()
        """The jobs whose pods name a PodGroup of Kubernetes' own API, by this PodGroup."""
        self._ignored = IgnoredKeys(standing)
        self._succeeded = SucceededPods(put)
        self._absent: set[str] = set()
        self._levels: tuple[FabricLevel, ...] = DEFAULT_LEVELS
        self._topologies: Topologies | None = None

    # --- the watches' sinks --------------------------------------------------------------------------

    async def on_job(self, kind: str, name: str, obj: CustomObject | None) -> None:
        """Take in the change of a job, whose namespace and name are `name`."""
        key = _key(kind, name)
        if obj is None:
            if kind == batch.JOB.kind:
                self._succeeded.forget_job(name)
            if (job := self._jobs.get(key)) is not None:
                job.is_deleted = True
                self._forget_if_unused(key)
                if job.waiting:
                    asyncio.get_running_loop().call_later(GONE_S, self._report_gone, key)
            return
        if kind == batch.JOB.kind:
            await self._succeeded.see_job(name, obj)
        text = _encoder.encode(prune(KINDS[kind], obj))
        job = self._jobs.setdefault(key, _Job())
        if job.is_deleted:
            job.is_deleted = False
            job.posted.discard(EventReason.JOB_GONE)
            job.unposted.discard(EventReason.JOB_GONE)
        if job.text != text:
            job.text = text
            await self._read_jobs([key])

    async def on_maker(self, kind: str, name: str, obj: CustomObject | None) -> None:
        """Take in the change of an object that makes jobs. KAI's keys on it count for these jobs."""
        key = _key(kind, name)
        if obj is None:
            self._makers.pop(key, None)
            return  # the jobs that it made are deleted too
        meta = obj.metadata
        maker = Metadata(meta.name, labels=words(meta.labels), annotations=words(meta.annotations))
        if self._makers.get(key) != maker:
            self._makers[key] = maker
            neighbours = [job for job in self._jobs if job[1] == meta.namespace]
            await self._read_jobs(job for job in neighbours if kind in KINDS[job[0]].made_by)

    async def on_absence(self, kind: str, absent: bool) -> None:
        """Note whether the kind is served to this account. If not, pods of this kind are no gangs."""
        (self._absent.add if absent else self._absent.discard)(kind)
        for key in [key for key in self._jobs if key[0] == kind]:
            await self._read_pods(key, True)

    async def set_levels(self, levels: tuple[FabricLevel, ...], topologies: Topologies | None) -> None:
        """Take in the levels of the cluster and KAI's Topologies, with which jobs are read."""
        if (levels, topologies) != (self._levels, self._topologies):
            self._levels, self._topologies = levels, dict(topologies) if topologies else None
            await self._read_jobs(list(self._jobs))

    # --- pods ----------------------------------------------------------------------------------------

    def member_of(self, obj: PodObject) -> JobPod | None:
        """Return the job of a pod of ours, and the pod's place in it.

        A job may be deleted without its pods (`--cascade=orphan`). Their owner references are removed then.
        They keep their place in the job, so that a running gang is not split.
        """
        if obj.spec.scheduler_name not in self._settings.scheduler_names:
            return None
        place = member(obj.metadata)
        if place is None and not any(controller_of(obj.metadata)):
            return self._places.get(obj.metadata.uid)
        return place

    def is_gang(self, place: JobPod, namespace: str) -> bool:
        """Return whether the pods of a job are a gang.

        If the job was not seen yet, its pods may be a gang, so they wait for the job.
        """
        if place.kind in self._absent:
            return False
        gangs_of_job = self._job_gangs((place.kind, namespace, place.owner))
        return gangs_of_job is None or gangs_of_job.is_gang(self._settings)

    async def see_pod(self, obj: PodObject, pod: Pod, place: JobPod | None) -> None:
        """Take in a pod, as object and as facts, and its place in its job, before the gangs get it."""
        self._ignored.see(obj, pod)
        if place is None or (pod.claim is None and not accelerators.asked_by(pod, self._settings)):
            await self._forget_job_pod(pod.uid)
            return
        await self._succeeded.see_pod(pod)
        key = (place.kind, pod.namespace, place.owner)
        if self._by_uid.get(pod.uid, key) != key:
            await self._forget_job_pod(pod.uid)
        job = self._jobs.setdefault(key, _Job())
        self._by_uid[pod.uid], self._places[pod.uid] = key, place
        gang = place.gang if pod.claim is not None and pod.claim.dialect == place.kind else ""
        if job.pods.group_of(pod.uid) != gang:
            gangs_of_job = self._job_gangs(key)
            if gang and gang not in job.pods.groups and gangs_of_job is not None:
                await self._put(PodGroupSeen(time.monotonic(), gangs_of_job.gang(gang)))
            await self._take_out_of_gang(job, key, pod.uid)
            job.pods.put(pod.uid, gang)
        job.present.put(pod.uid, gang if gang and pod.present else None)
        group = key_of(pod)
        self._named.put(pod.uid, None if pod.node else group)
        await self._see_member(job, key, pod.uid, native.key_of(pod.namespace, obj.spec))
        is_known = job.text is not None or place.kind in self._absent
        if is_known and (pod.node or pod.finished):
            job.waiting.pop(pod.uid, None)
            return
        job.waiting[pod.uid] = waiting = _WaitingPod(obj, pod, place, gang)
        self._post_job_events(key, job, waiting)

    async def forget_pod(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._ignored.forget(uid)
        await self._forget_job_pod(uid)

    async def _forget_job_pod(self, uid: str) -> None:
        await self._succeeded.forget_pod(uid)
        key = self._by_uid.pop(uid, None)
        self._places.pop(uid, None)
        self._named.put(uid, None)
        if key is not None and (job := self._jobs.get(key)) is not None:
            job.waiting.pop(uid, None)
            await self._take_out_of_gang(job, key, uid)
            await self._see_member(job, key, uid, None)
            self._forget_if_unused(key)

    async def _see_member(self, job: _Job, key: Key, uid: str, group: PodGroupKey | None) -> None:
        """Note the PodGroup of Kubernetes' own API that a pod names; without a name, or None, for none."""
        new_group = group if group is not None and group[2] else None
        old_group = job.members.put(uid, new_group)
        if new_group == old_group:
            return
        for changed_group in filter(None, (old_group, new_group)):
            maker = (changed_group, key)
            is_named = changed_group in job.members.groups
            if is_named != (self._makers_of.group_of(maker) is not None):
                self._makers_of.put(maker, changed_group if is_named else None)
                await self._count_pods_of_job(changed_group)

    async def _count_pods_of_job(self, group: PodGroupKey) -> None:
        """Pass on how many pods the job makes whose pods name this PodGroup.

        Several jobs are not added up: one PodGroup may have thousands of jobs that come one after another.
        """
        makers = self._makers_of.keys_of(group)
        gangs_of_job = self._job_gangs(next(iter(makers))[1]) if len(makers) == 1 else None
        await self._see_pods_of_job(group, gangs_of_job.pods if gangs_of_job is not None else 0)

    async def _take_out_of_gang(self, job: _Job, key: Key, uid: str) -> None:
        """Take a pod out of the gang that it was in."""
        gang = job.pods.put(uid, None)
        job.present.put(uid, None)
        if gang and gang not in job.pods.groups:
            await self._put(PodGroupGone(time.monotonic(), (key[1], key[0], gang)))

    def see_group(self, group: PodGroup) -> None:
        """Take in a PodGroup object. Its number may differ from the number of the jobs whose pods name it."""
        claim = GangClaim(group.dialect, group.name, by_object=True)
        self._groups[group.key] = group
        for key in dict.fromkeys(self._by_uid[uid] for uid in self._named.keys_of(group.key)):
            self._warn(key, self._jobs[key], claim)

    def forget_group(self, key: PodGroupKey) -> None:
        """Forget a PodGroup object."""
        self._groups.pop(key, None)

    # --- reading jobs --------------------------------------------------------------------------------

    def _job_gangs(self, key: Key) -> JobGangs | None:
        """Return the gangs of a job; None if the job was not seen."""
        job = self._jobs.get(key)
        if job is None or job.text is None:
            return None
        if job.gangs is None:
            obj = _decoder.decode(job.text)
            owners = ((owner.kind, owner.name) for owner in obj.metadata.owner_references or ())
            makers = (self._makers.get((kind, key[1], name)) for kind, name in owners)
            made_by = next((meta for meta in makers if meta is not None), None)
            kind = KINDS[key[0]]
            job.gangs = job_gangs(kind, obj, self._settings, self._levels, self._topologies, made_by)
            if (group := job.gangs.group).problems:
                text = "job is planned without what nothing grants"
                log.warning(text, job=group.title, problems=group.problems)
        return job.gangs

    async def _read_jobs(self, keys: Iterable[Key]) -> None:
        """Read these jobs again if pods of ours name them, and pass on their PodGroups."""
        for key in list(keys):
            if (job := self._jobs.get(key)) is not None:  # else it went meanwhile
                old_gangs, job.gangs = job.gangs, None
                gangs_of_job = self._job_gangs(key) if job.pods.groups else None
                if gangs_of_job is not None and gangs_of_job != old_gangs:
                    for gang in sorted(filter(None, job.pods.groups)):
                        await self._put(PodGroupSeen(time.monotonic(), gangs_of_job.gang(gang)))
                    for group in list(job.members.groups):
                        await self._count_pods_of_job(group)
                    if old_gangs is None or old_gangs.is_gang(self._settings) != gangs_of_job.is_gang(
                        self._settings
                    ):
                        await self._read_pods(key, old_gangs is None)
            await asyncio.sleep(0)  # there may be thousands, and the shim's calls wait meanwhile

    async def _read_pods(self, key: Key, at_once: bool) -> None:
        if (job := self._jobs.get(key)) is not None:  # else it went meanwhile
            await self._read_again([(key[1], uid) for uid in job.waiting], at_once)

    def waiting_pod(self, uid: str) -> PodObject | None:
        """Return the object of a pod that waits, or whose job was not seen yet; None for other pods."""
        job = self._jobs[self._by_uid[uid]] if uid in self._by_uid else None
        return job.waiting[uid].obj if job and uid in job.waiting else None

    def _forget_if_unused(self, key: Key) -> None:
        job = self._jobs.get(key)
        if job is not None and not job.pods.groups and (job.is_deleted or job.text is None):
            del self._jobs[key]

    def post_held(self) -> None:
        """Post the kept events about jobs, when this replica begins to lead. They are computed again, because
        jobs change."""
        for key, job in self._jobs.items():
            reasons, job.unposted = job.unposted, set()
            if EventReason.JOB_GONE in reasons:
                self._report_gone(key)
            for waiting in job.waiting.values() if reasons else ():
                self._post_job_events(key, job, waiting)

    def _post_job_events(self, key: Key, job: _Job, waiting: _WaitingPod) -> None:
        """Post, once each, the events about the job of a waiting pod."""
        if waiting.place.kind in self._absent:
            self._warn_of_absence(waiting.place, job, waiting.pod)
        elif not waiting.pod.node:
            self._warn(key, job, waiting.pod.claim)
            self._warn_of_extra_pods(key, job, waiting.gang)

    def _warn(self, key: Key, job: _Job, claim: GangClaim | None) -> None:
        """Post once, on the job, that its pods could be a gang, or that their number is not the job's.

        Also post once the job's ineffective keys.
        """
        gangs_of_job = self._job_gangs(key)
        if gangs_of_job is None:
            return
        if claim is None or claim.lone:
            reason, text = (
                EventReason.NO_GANG,
                gangs_of_job.advice if gangs_of_job.is_warned_of(self._settings) else "",
            )
        else:
            pod_group = self._groups.get((key[1], claim.dialect, claim.name)) if claim.by_object else None
            reason, text = EventReason.COUNTS_DIFFER, gangs_of_job.difference(claim, pod_group)
        owner = gangs_of_job.group.owner
        self._post(key[1], job, owner, reason, text)
        self._post(key[1], job, owner, EventReason.KEY_IGNORED, "; ".join(gangs_of_job.group.problems))

    def _warn_of_extra_pods(self, key: Key, job: _Job, gang: str) -> None:
        """Post once, on the job, that a gang has more pods than the job makes."""
        gangs_of_job, count = self._job_gangs(key), len(job.present.keys_of(gang))
        if gangs_of_job is not None and count > gangs_of_job.full_size > 0 and not gangs_of_job.group.causes:
            makes = f"it makes {counted_noun('pod', gangs_of_job.full_size)} of gang {gang}"
            text = f"{makes}, and {count} are there: all are placed if they fit"
            self._post(key[1], job, gangs_of_job.group.owner, EventReason.COUNTS_DIFFER, text)

    def _report_gone(self, key: Key) -> None:
        """Post once, on the first waiting pod, that its job was deleted. No other component reports it."""
        job, gangs_of_job = self._jobs.get(key), self._job_gangs(key)
        if job is None or not job.is_deleted or gangs_of_job is None:
            return
        members = [waiter.obj.metadata for uid, waiter in job.waiting.items() if job.pods.group_of(uid)]
        waiting = [meta for meta in members if meta.deletion_timestamp is None]
        if waiting:
            first = min(waiting, key=lambda meta: meta.name)
            on = Controller("v1", "Pod", first.name, first.uid)
            text = f"{key[0]} {key[1]}/{key[2]} was deleted; its last count, {gangs_of_job.group.size}, holds"
            self._post(key[1], job, on, EventReason.JOB_GONE, text)

    def _post(self, namespace: str, job: _Job, on: Controller | None, reason: EventReason, text: str) -> None:
        """Post an event on an object, once for each job. A replica that does not lead notes the event's
        reason."""
        if not text or on is None or reason in job.posted:
            return
        if not self._standing.leads():
            job.unposted.add(reason)
        else:
            job.posted.add(reason)
            objects = ((on.name, on.uid),)
            self._standing.emit(EmitEvent(namespace, objects, reason, text, on.kind, on.api_version))

    def _warn_of_absence(self, place: JobPod, job: _Job, pod: Pod) -> None:
        """Post once, on the controller of several pods with GPUs that wait, that their job is not read."""
        kind, one_gang = place.kind, place.gang == place.owner
        is_lone_gpu_pod = pod.claim is not None and pod.claim.lone and pod.gpus > 0 and not pod.node
        if not is_lone_gpu_pod or len(job.waiting) < 2 or self._settings.infers(kind) == "off":
            return
        text = (
            f"each of its pods is placed alone, because the service can't read {jobs(kind).plural}: "
            "the API server does not serve them, or the right is missing (scheduler-config/jobs)"
        )
        if one_gang:
            text += f". If the pods are one gang, annotate each pod template: {own.GROUP}, {own.MIN_MEMBER}"
        self._post(pod.namespace, job, pod.controller, EventReason.NO_GANG, text)


def _key(kind: str, key: str) -> Key:
    namespace, _, name = key.partition("/")
    return (kind, namespace, name)
