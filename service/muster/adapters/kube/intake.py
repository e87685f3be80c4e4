"""Turn the objects of the watches into inputs for the gangs. Changes without effect are left out.

A kubelet writes its node's and its pods' status all the time, but few of these writes change a fact that
matters here. The facts of each pod and node are kept, for comparison and for the shim's in-flight Bindings.
Reading a pod's facts is slow (some 100 µs), so an unchanged object is not read again.

Some facts come from several objects: a node's also from its ConfigMaps and ResourceSlices, a PodGroup's also
from KAI's Topologies and the policies' levels. When one of these objects changes, the node or PodGroup is
read again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from itertools import islice

import msgspec
import structlog

from muster.adapters.kube import checkpoints
from muster.adapters.kube.checkpoints import Checkpoints
from muster.adapters.kube.decode import full_name
from muster.adapters.kube.devices import DeviceIntake, ServedResources
from muster.adapters.kube.jobs import Jobs
from muster.adapters.kube.key_groups import KeyGroups
from muster.adapters.kube.leftout import LeftOutObjects, PendingEvents, leads_always
from muster.adapters.kube.native import NativeGroups
from muster.adapters.kube.nodes import NodeIntake
from muster.adapters.telemetry.metrics import Metrics
from muster.dialects import policies as policy_dialect
from muster.dialects.devices.claims import claims_of
from muster.dialects.gangs import native, other_systems, own, podgroups
from muster.dialects.gangs.subgroups import KaiTopology
from muster.dialects.kinds.description import JobPod
from muster.dialects.objects import (
    ConfigMapObject,
    CustomObject,
    Metadata,
    NamespaceObject,
    PodObject,
    WorkloadObject,
)
from muster.dialects.pods import peers, pods, requests
from muster.dialects.settings import DialectSettings
from muster.domain import allocation
from muster.domain.levels import repeated_names
from muster.domain.node import Usage
from muster.domain.peers import Labels
from muster.domain.pod import COMPOSITE, NATIVE, GangClaim, Pod
from muster.domain.podgroup import PodGroup
from muster.domain.policies import DEFAULT_POLICIES, Policies
from muster.gangs.messages.inputs import (
    Input,
    NamespaceSeen,
    PodGone,
    PodGroupGone,
    PodGroupSeen,
    PodSeen,
    PoliciesSeen,
)
from muster.gangs.messages.instructions import EmitEvent, EventReason

READ_AT_ONCE = 16
"""Number of pods that are read at once when an object with facts about them has changed."""
REST_SHARE = 4
"""The pause after these and after each further pod, as a multiple of the time that reading took."""
MAX_ANNOTATIONS, MAX_ANNOTATION = 64, own.MAX_CHARACTERS + 1
"""Largest number of our annotations of a PodGroup or Workload that are kept, and of characters of each value.
A value of that length is refused."""
_encoder = msgspec.json.Encoder()

log = structlog.get_logger(__name__)


class ClaimingPods:
    """The objects of pods that name ResourceClaims: such a pod is read again when a claim changes."""

    def __init__(self) -> None:
        self._pods: dict[str, PodObject] = {}
        self._by_claim = KeyGroups[tuple[str, str], str]()
        """(pod, claim) pairs, by the namespace and name of the claim."""

    def see(self, uid: str, obj: PodObject | None) -> None:
        """Take in a pod; None if it is gone."""
        old_obj = self._pods.pop(uid, None)
        for key in _claim_keys(old_obj):
            self._by_claim.put((uid, key), None)
        for key in _claim_keys(obj):
            self._by_claim.put((uid, key), key)
        if obj is not None and obj.spec.resource_claims:
            self._pods[uid] = obj

    def pods_naming(self, claim: str | None) -> list[tuple[str, str]]:
        """Return namespace and UID of the pods that name this claim, or of all for None.

        `claim`: its namespace and name.
        """
        claim_uids = (uid for uid, _ in self._by_claim.keys_of(claim)) if claim is not None else self._pods
        uids = sorted(claim_uids)
        return [(self._pods[uid].metadata.namespace, uid) for uid in uids]

    def get(self, uid: str) -> PodObject | None:
        """Return the pod's object as it is now; None if the pod is gone."""
        return self._pods.get(uid)


def _claim_keys(obj: PodObject | None) -> set[str]:
    return {claim.key for claim in claims_of(obj) if claim.key} if obj is not None else set()


class PodRereads:
    """Reads pods again because an object with facts about them has changed.

    A claim, a DeviceClass or a job may have facts about thousands of pods, and its user may change it all the
    time. So a few pods are read at once and the others later, with pauses, and the namespaces take turns.
    `read` reads the pod with this UID in its present state, if it still exists. While the service starts
    (`starts`), all pods are read at once, because no gang is planned before they are known.
    """

    def __init__(self, read: Callable[[str], Awaitable[None]]) -> None:
        self._read = read
        self.starts = True
        self._later: dict[str, dict[str, None]] = {}
        """Namespace → UIDs of pods to be read. The namespace whose turn is next comes first."""
        self.reader: asyncio.Task[None] | None = None
        """Reads pods again. In the pause after a reading, pods wait for the next reading."""

    async def read(self, pods: Iterable[tuple[str, str]], at_once: bool = False) -> None:
        """Read these pods again, each given by its namespace and UID: the first ones now, the others later.

        `at_once`: read all pods now, because they have waited for the changed object.
        """
        affected, began = list(pods), time.monotonic()
        at_once = at_once or self.starts
        max_reads = len(affected) if at_once else READ_AT_ONCE if self._is_idle else 0
        for number, (_, uid) in enumerate(affected[:max_reads], 1):
            await self._read(uid)
            if number % READ_AT_ONCE == 0:
                await asyncio.sleep(0)  # there may be thousands, and the shim's calls wait meanwhile
        for namespace, uid in affected[max_reads:]:
            self._later.setdefault(namespace, {})[uid] = None
        if affected and not at_once and self._is_idle:
            rest_s = REST_SHARE * (time.monotonic() - began)
            self.reader = asyncio.create_task(self._read_the_rest(rest_s), name="pods to be read again")

    @property
    def _is_idle(self) -> bool:
        return self.reader is None or self.reader.done()

    async def _read_the_rest(self, rest_s: float) -> None:
        await asyncio.sleep(rest_s)
        while self._later:
            namespace = next(iter(self._later))
            uids = self._later.pop(namespace)
            uid = next(iter(uids))
            del uids[uid]
            if uids:
                self._later[namespace] = uids
            began = time.monotonic()
            await self._read(uid)
            await asyncio.sleep(REST_SHARE * (time.monotonic() - began))


class Intake:
    """Takes in objects: `on_…` are the watches' sinks. `put` takes the inputs, in order. `emit` posts events
    on objects, if this replica `leads`."""

    def __init__(
        self,
        settings: DialectSettings,
        put: Callable[[Input], Awaitable[None]],
        emit: Callable[[EmitEvent], None],
        left_out: LeftOutObjects | None = None,
        leads: Callable[[], bool] = leads_always,
    ) -> None:
        served = ServedResources(settings, put)
        put = served.put
        self._settings = settings
        self._put = put
        self._standing = PendingEvents(emit, leads)
        self._left_out = left_out or LeftOutObjects(Metrics())
        self._reading_pod = asyncio.Lock()
        """Held so that no old state of a pod is read again while the pod changes or goes."""
        self._pod_rereads = PodRereads(self._read_pod_again)
        self.native_groups = NativeGroups(settings, put, self._join_gang, self._pod_rereads.read)
        see_count = self.native_groups.see_pods_of_job
        self.jobs = Jobs(settings, put, self._standing, self._pod_rereads.read, see_count)
        self.devices = DeviceIntake(settings, put, self._read_node, self._read_claiming_pods, served)
        slices = self.devices.slices
        self.nodes = NodeIntake(settings, put, self._left_out, slices.on_node, self._labels_changed)
        self._pods: dict[str, Pod] = {}
        self._pod_digests: dict[str, bytes] = {}
        """Pod UID → digest of the object that it was read from."""
        self.checkpoints = Checkpoints(put)
        self._claiming = ClaimingPods()
        self._namespaces: dict[str, Labels] = {}
        self._group_objects: dict[str, CustomObject] = {}
        self._groups: dict[str, PodGroup] = {}
        self._topologies: dict[str, KaiTopology] = {}
        self._policies: Policies = DEFAULT_POLICIES
        """The policies of the ConfigMap."""
        self._policies_with_trees: Policies = DEFAULT_POLICIES
        """The same policies, with the trees of the Topologies."""
        self._repeated: tuple[str, ...] | None = None
        """Sentences about repeated names; None if they must be computed again."""
        self._reported: tuple[str, ...] = ()
        self.policies_refused = False
        """Whether older policies are valid, because the ConfigMap can't be read."""

    def post_held(self) -> None:
        """Post the kept events about objects, when this replica begins to lead."""
        self._standing.post_held()
        self.jobs.post_held()
        self._left_out.post_held()

    async def finish_start(self) -> None:
        """Return when all nodes that are due have been read. From then on pods are read again with pauses."""
        await self.nodes.until_read()
        self._pod_rereads.starts = False

    # --- pods and nodes ------------------------------------------------------------------------------

    async def on_pod(self, uid: str, obj: PodObject | None) -> None:
        """Take in a pod's change, and pass it on if it changes the pod's facts."""
        obj, checkpoint = checkpoints.take_off(obj) if obj is not None else (None, "")
        await self.native_groups.see_pod(uid, obj)
        new_holders = self.devices.claims.see_pod(uid, obj)
        async with self._reading_pod:
            await self.nodes.agents.see(uid, obj)
            await (self._on_pod(uid, obj) if obj is not None else self._forget_pod(uid))
            self.checkpoints.see(uid, checkpoint)
        for change in new_holders:
            await self.devices.see_new_holder(change)
            namespace = change.claim.partition("/")[0]
            sharers = [(namespace, pod) for pod in (change.before, change.now) if pod not in ("", uid)]
            await self._pod_rereads.read(sharers, at_once=True)

    async def _forget_pod(self, uid: str) -> None:
        self._pod_digests.pop(uid, None)
        self.checkpoints.forget(uid)
        self._claiming.see(uid, None)
        await self.jobs.forget_pod(uid)
        if self._pods.pop(uid, None) is not None:
            await self._put(PodGone(time.monotonic(), uid))

    async def _on_pod(self, uid: str, obj: PodObject) -> None:
        pod_digest = digest(obj)
        if self._pod_digests.get(uid) == pod_digest:
            return
        ours = obj.spec.scheduler_name in self._settings.scheduler_names
        self._claiming.see(uid, obj if ours else None)
        await self._take_pod(obj)
        self._pod_digests[uid] = pod_digest

    async def _read_claiming_pods(self, claim: str | None) -> None:
        """Read the pods again that name this claim (namespace and name), or all pods with claims if it is
        None."""
        await self._pod_rereads.read(self._claiming.pods_naming(claim))

    async def _join_gang(self, uids: Collection[str], claim: GangClaim) -> None:
        """Let pods that were planned alone, or that run in another gang of Kubernetes' own API, join the gang
        of this claim.

        Waiting pods are read again with pauses. Until then none of them can start alone.
        """
        async with self._reading_pod:
            for number, uid in enumerate(uids, 1):
                pod = self._pods.get(uid)
                if pod is not None and (new_claim := _moved_claim(pod, claim)) != pod.claim:
                    self._pods[uid] = pod = replace(pod, claim=new_claim)
                    await self._put(PodSeen(time.monotonic(), pod))
                if number % READ_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _read_pod_again(self, uid: str) -> None:
        async with self._reading_pod:
            waiting_pod = self.native_groups.waiting_pod(uid) or self.jobs.waiting_pod(uid)
            if (obj := self._claiming.get(uid) or waiting_pod) is not None:
                with self._left_out.guard("pods", uid, full_name(obj.metadata)):
                    await self._take_pod(obj)

    async def _take_pod(self, obj: PodObject) -> None:
        place_in_job = self.jobs.member_of(obj)
        pod = self._read_pod(obj, place_in_job)
        await self.jobs.see_pod(obj, pod, place_in_job)
        if self._pods.get(pod.uid) != pod:
            self._pods[pod.uid] = pod
            await self._put(PodSeen(time.monotonic(), pod))

    def _read_pod(self, obj: PodObject, place_in_job: JobPod | None) -> Pod:
        """Return the pod's facts.

        If no dialect can read a bound pod, return only its usage, because its GPUs are taken anyway.
        """
        try:
            in_gang = place_in_job is not None and self.jobs.is_gang(place_in_job, obj.metadata.namespace)
            member, group = place_in_job if in_gang else None, self.native_groups.group_of(obj)
            return pods.read(obj, self._settings, member, self.devices.claims, group)
        except Exception:
            if not obj.spec.node_name:
                raise
            log.exception("bound pod read for its usage alone", pod=full_name(obj.metadata))
            return pods.read(without_scheduling(obj), self._settings)

    async def on_namespace(self, name: str, obj: NamespaceObject | None) -> None:
        """Take in a namespace's change, and pass it on if its labels changed."""
        labels = peers.labels_of(obj.metadata.labels) if obj is not None else None
        old_labels = self._namespaces.pop(name, None)
        if labels is not None:
            self._namespaces[name] = labels
        if old_labels != labels:
            await self._put(NamespaceSeen(time.monotonic(), name, labels))

    async def _read_node(self, name: str) -> None:
        await self.nodes.read_again(name)

    def _labels_changed(self) -> None:
        self._repeated = None

    @property
    def nodes_with_problems(self) -> int:
        """Return how many nodes have annotations or labels that can't be read in full."""
        return sum(1 for node in self.nodes.nodes.values() if node.problems)

    @property
    def repeated_names(self) -> tuple[str, ...]:
        """Return a sentence for each scope in which several domains have one name. New sentences are
        logged."""
        if self._repeated is None:
            sentences = repeated_names(
                self.nodes.nodes.values(), self._policies_with_trees.levels, self._policies_with_trees.naming
            )
            self._repeated = tuple(sentences)
            for sentence in self._repeated:
                if sentence not in self._reported:
                    log.warning("several domains have one name", domains=sentence)
            self._reported = self._repeated
        return self._repeated

    def in_flight(self, bindings: Iterable[tuple[str, str, dict[str, str]]]) -> tuple[Usage, ...]:
        """Return the usages of Bindings of unknown fate, given as (pod UID, node, annotations).

        Pods that are gone, bound or finished are left out: a pod that is gone can't be bound, and the usage
        of the others is known.
        """
        usages = []
        for uid, node, carried in bindings:
            pod = self._pods.get(uid)
            if pod is None or pod.node or pod.finished:
                continue
            bound = replace(pod, node=node, allocation=allocation.read(carried, pod))
            if bound.usage is not None:
                usages.append(bound.usage)
        return tuple(usages)

    # --- ConfigMaps ----------------------------------------------------------------------------------

    async def on_config_map(self, key: str, obj: ConfigMapObject | None) -> None:
        """Take in a ConfigMap's change: policies, or facts about a node."""
        settings = self._settings
        if key != f"{settings.policies_namespace}/{settings.policies_name}":
            await self.nodes.on_config_map(key, obj)
        elif obj is None:
            self.policies_refused = False
            self._standing.drop(EventReason.INVALID)
            await self._set_policies(DEFAULT_POLICIES)
        else:
            await self._read_policies(obj.metadata, (obj.data or {}).get(settings.policies_key, ""))

    async def _read_policies(self, meta: Metadata, text: str) -> None:
        """Read the policies. If they can't be read, they are refused, and the last good policies stay."""
        policies, problems = policy_dialect.read(text)
        self._standing.drop(EventReason.INVALID)
        self.policies_refused = policies is None
        if problems:
            name = f"{meta.namespace}/{meta.name}"
            log.warning(
                "policies can't be read", config_map=name, used=policies is not None, problems=problems
            )
            if policies is not None:
                effect = "used without what can't be read"
            elif self._policies is DEFAULT_POLICIES:
                effect = "refused, and the defaults hold: no good ones have been read since the service began"
            else:
                effect = "refused, the last good ones stay"
            message = f"topology policies are {effect}: {'; '.join(problems)}"
            config_maps = ((meta.name, meta.uid),)
            event = EmitEvent(meta.namespace, config_maps, EventReason.INVALID, message, "ConfigMap")
            self._standing.post(EventReason.INVALID, event)
        if policies is not None:
            await self._set_policies(policies)

    async def _set_policies(self, policies: Policies) -> None:
        if policies != self._policies:
            self._policies = policies
            levels = [level.scope for level in policies.levels]
            names = [policy.name for policy in policies.policies]
            log.info("policies changed", policies=names, levels=levels)
            await self._pass_on_policies()
            await self._read_groups()

    async def _pass_on_policies(self) -> None:
        naming = replace(self._policies.naming, trees=podgroups.trees(self._topologies))
        policies = replace(self._policies, naming=naming)
        if policies != self._policies_with_trees:
            self._policies_with_trees, self._repeated = policies, None
            await self._put(PoliciesSeen(time.monotonic(), policies))

    # --- PodGroups -----------------------------------------------------------------------------------

    async def on_pod_group(self, uid: str, obj: CustomObject | None) -> None:
        """Take in the change of a PodGroup or a CompositePodGroup."""
        if obj is None:
            self._group_objects.pop(uid, None)
            if (group := self._groups.pop(uid, None)) is not None:
                self.jobs.forget_group(group.key)
                if group.dialect in NATIVE:
                    await self.native_groups.forget_group(group)
                else:
                    await self._put(PodGroupGone(time.monotonic(), group.key))
            return
        self._group_objects[uid] = without_labels(obj)
        await self._read_group(uid)

    async def on_workload(self, name: str, obj: WorkloadObject | None) -> None:
        """Take in a Workload's change. `name`: its namespace and name."""
        terms = None
        if obj is not None and (annotations := read_annotations(obj.metadata)):
            meta = Metadata(obj.metadata.name, namespace=obj.metadata.namespace, annotations=annotations)
            terms = native.read_workload(meta)
        await self.native_groups.see_workload(name, terms)

    async def on_topology(self, name: str, obj: CustomObject | None) -> None:
        """Take in a KAI Topology's change, and read all PodGroups again, because they may name it."""
        if obj is None:
            self._topologies.pop(name, None)
        else:
            self._topologies[name] = podgroups.read_topology(obj)
        await self._pass_on_policies()
        await self._read_groups()

    async def _read_groups(self) -> None:
        await self.jobs.set_levels(self._policies.levels, self._topologies or None)
        for uid in list(self._group_objects):
            if (obj := self._group_objects.get(uid)) is not None:  # else it went meanwhile
                with self._left_out.guard("podgroups", uid, full_name(obj.metadata)):
                    await self._read_group(uid)
            await asyncio.sleep(0)  # there may be thousands, and the shim's calls wait meanwhile

    async def _read_group(self, uid: str) -> None:
        # Without any Topology, names of Topologies in PodGroups are no problem.
        topologies = self._topologies or None
        group = podgroups.read(self._group_objects[uid], self._policies.levels, topologies)
        old_group = self._groups.get(uid)
        if group.problems and (old_group is None or old_group.problems != group.problems):
            log.warning(
                "pod group is planned without what nothing grants", group=group.name, problems=group.problems
            )
        if old_group != group or old_group.status != group.status:
            self._groups[uid] = group
            if group.dialect in NATIVE:
                await self.native_groups.see_group(group)
            else:
                await self._put(PodGroupSeen(time.monotonic(), group))
            if group.dialect != COMPOSITE:  # its number is one of groups
                self.jobs.see_group(group)


def _moved_claim(pod: Pod, claim: GangClaim) -> GangClaim | None:
    """Return the claim of a pod that joins the gang of `claim`. A pod keeps a gang that it states itself, and
    while it waits also a gang of Kubernetes' own API."""
    old_claim = pod.claim
    if old_claim is None or not (old_claim.lone or (pod.node and old_claim.dialect in NATIVE)):
        return old_claim
    old_role = old_claim.topology_request.role if old_claim.lone else ""  # else it may be that of a tree
    request = replace(old_claim.topology_request, role=claim.topology_request.role or old_role)
    counts_claim = claim if old_claim.lone else replace(old_claim, dialect=claim.dialect, name=claim.name)
    return replace(counts_claim, topology_request=request)


def digest(pod: PodObject) -> bytes:
    """Return 16 bytes for all decoded parts of the pod, because annotations alone may have 256 KiB. The
    version, and conditions that are not read, are left out."""
    metadata = msgspec.structs.replace(pod.metadata, resource_version="")
    status = msgspec.structs.replace(pod.status, conditions=requests.resize_conditions(pod.status))
    decoded = _encoder.encode((metadata, pod.spec, status))
    return hashlib.blake2b(decoded, digest_size=16, usedforsecurity=False).digest()


def without_scheduling(obj: PodObject) -> PodObject:
    """Return the pod without a scheduler, and with only the annotations that name its GPUs."""
    annotations = obj.metadata.annotations or {}
    device_annotations = {key: annotations[key] for key in allocation.RESERVED_KEYS if key in annotations}
    metadata = Metadata(
        obj.metadata.name, "", obj.metadata.namespace, obj.metadata.uid, annotations=device_annotations
    )
    spec = msgspec.structs.replace(
        obj.spec, scheduler_name="", affinity=None, tolerations=None, topology_spread_constraints=None
    )
    return msgspec.structs.replace(obj, metadata=metadata, spec=spec)


def without_labels(obj: CustomObject) -> CustomObject:
    """Return a PodGroup or Topology with the fields that are read, without its labels (up to 1.5 MB)."""
    meta, annotations = obj.metadata, obj.metadata.annotations or {}
    group_annotations = {key: "…" for key in other_systems.MORE_OF_GROUPS if annotations.get(key)}
    if obj.api_version in native.APIS:
        group_annotations |= read_annotations(meta)
    named_alone = Metadata(
        meta.name,
        "",
        meta.namespace,
        meta.uid,
        meta.resource_version,
        annotations=group_annotations or None,
        generation=meta.generation,
    )
    return msgspec.structs.replace(obj, metadata=named_alone)


def read_annotations(meta: Metadata) -> dict[str, str]:
    """Return the annotations of a PodGroup or Workload that are read, with bounded values."""
    own_annotations = own.annotations_of(meta).items()
    return {key: text[:MAX_ANNOTATION] for key, text in islice(own_annotations, MAX_ANNOTATIONS)}
