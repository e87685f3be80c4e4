"""A Pod object → facts. Never an exception: what is ill-formed becomes a cause on the pod."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from muster.dialects.devices.claims import Claims, DevicesAsked
from muster.dialects.gangs import ack, kai, misspelt, other_systems, own, ranks
from muster.dialects.kinds import table as kinds
from muster.dialects.kinds.description import Member
from muster.dialects.objects import Metadata, PodObject, PodSpec
from muster.dialects.pods import bounds, gpushare, noderules, peers, requests
from muster.dialects.pods.gpushare import Shared
from muster.dialects.pods.requests import MAX_OF_A_POD, Asked
from muster.dialects.reading import Reading, agreed
from muster.dialects.settings import DEFAULTS, Settings
from muster.domain import allocation, nri
from muster.domain.causes.ill_formed import BadValue, DialectsDisagree, ForgedAllocation
from muster.domain.pod import Controller, GangClaim, Pod, Wishes
from muster.domain.reasons import Cause
from muster.domain.topology import mask_of

LONE = "gputopology"
"""The dialect of a pod that names no gang: it is a gang of one."""
TEMPLATE_HASH = "pod-template-hash"
"""The label by which a Deployment tells the pods of its ReplicaSets apart."""
TRACEPARENTS = ("tracing.k8s.io/traceparent", "traceparent")
"""Annotations that name the trace of what made a pod: the key that KEP-5915 proposes, and the plain one."""
TRACEPARENT = r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"
GANG_DIALECTS = (kai.claim, other_systems.claim, ack.claim)
"""Each reads (where, metadata, settings) → Reading. A pod may speak several that agree, and those with a
PodGroup come first: it is asked for by the dialect of the first. `own` comes on top of each."""


def read(
    obj: PodObject, settings: Settings = DEFAULTS, member: Member | None = None, claims: Claims | None = None
) -> Pod:
    """Return the facts of one pod. `member` is its place by its owner, if its owner's pods are a gang: it
    counts for a pod that names no gang itself. `claims` are those of the cluster, where they are known.
    Of those of other schedulers, and of static pods, only the usage counts: no claim, no causes."""
    meta, spec = obj.metadata, obj.spec
    where = f"pod/{meta.namespace}/{meta.name}"
    asked = requests.read(where, spec, settings, obj.status if spec.node_name else None)
    shared = gpushare.of_pod(where, meta.labels or {}, asked, settings)
    peer_rules, wrong = peers.read(where, meta, spec)
    claim: GangClaim | None = None
    causes: tuple[Cause, ...] = ()
    said = own.Said()
    by_claims = claims.asked(obj) if claims is not None and spec.resource_claims else DevicesAsked()
    if spec.scheduler_name in settings.scheduler_names and not _is_of_kubelet(obj):
        right, slips = (meta, ()) if spec.node_name else misspelt.corrected(where, meta, settings)
        said = own.read(where, right)
        claim, causes = _claim(where, obj, asked, shared, right, said, settings, member)
        if claim is not None:
            asked, shared, refused = _with_claims(where, obj, asked, shared, by_claims)
            too_many = bounds.exceeded(where, obj, asked.resource_names)
            causes = (*slips, *causes, *(() if spec.node_name else (*too_many, *refused, *wrong)))
    pod = Pod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        scheduler_name=spec.scheduler_name,
        resources=asked.resources,
        gpus=asked.gpus,
        gpu_counts=tuple(min(count, MAX_OF_A_POD) for count in by_claims.gpu_counts if claim is not None),
        gpu_resource=asked.gpu_resource,
        slice=shared.slice,
        container_gpus=shared.container_units if shared.slice else asked.container_gpus,
        rules=noderules.read(spec),
        claim=claim,
        rank=ranks.read(meta) if said.rank is None else said.rank,
        owner=_owner(meta),
        controller=_controller(meta) if claim is not None else None,
        priority=spec.priority or 0,
        created=_seconds(meta.creation_timestamp),
        started=_seconds(obj.status.start_time),
        node=spec.node_name,
        running=obj.status.phase == "Running",
        finished=obj.status.phase in ("Succeeded", "Failed"),
        succeeded=obj.status.phase == "Succeeded",
        terminating=meta.deletion_timestamp is not None,
        gated=bool(spec.scheduling_gates) or not (by_claims.complete or spec.node_name),
        causes=causes,
        labels=peers.labels_of(meta.labels),
        peers=peer_rules,
        traceparent=_traceparent(meta.annotations or {}) if claim is not None else "",
        preferences=claim is not None and _prefers(spec),
        match_attributes=by_claims.match_attributes if claim is not None else (),
        several_claims=claim is not None and by_claims.several_claims,
        unallocated_claims=by_claims.unallocated if claim is not None else (),
        device_claims=bool(spec.resource_claims) and spec.scheduler_name in settings.scheduler_names,
        compute_domain=by_claims.compute_domain if claim is not None else "",
    )
    return _with_allocation(pod, meta.annotations or {}) if pod.node else pod


def _with_allocation(pod: Pod, annotations: Mapping[str, str]) -> Pod:
    """Return a pod on a node with what its annotations say of its GPUs and of its gang's Bindings."""
    batch = allocation.read_batch(annotations) if pod.claim is not None else None
    if not (pod.gpus or pod.slice):
        return replace(pod, batch=batch)
    found = allocation.read(annotations, pod)
    pod = replace(pod, devices=allocation.planned_devices(annotations))
    if pod.gpu_counts and found is not None:
        pod = replace(pod, gpus=found.bit_count())
    if allocation.reported_gpus(annotations, pod) is None:
        return replace(pod, allocation=found, batch=batch)
    planned = mask_of(allocation.planned_gpus(annotations, pod) or ())
    return replace(pod, allocation=found, batch=batch, planned=None if planned == found else planned)


def _traceparent(annotations: Mapping[str, str]) -> str:
    """Return the trace context of what made the pod, "" if there is none or it is malformed."""
    found = (annotations.get(key, "") for key in TRACEPARENTS)
    return next((value for value in found if re.fullmatch(TRACEPARENT, value)), "")


def _owner(meta: Metadata) -> str:
    """Its controller; for a Deployment's pod the Deployment, whose next ReplicaSet goes on with the
    gang of the last one."""
    if deployment := deployment_of(meta):
        return f"Deployment/{deployment}"
    return next((owner.uid for owner in meta.owner_references or () if owner.controller), "")


def _is_of_kubelet(obj: PodObject) -> bool:
    """Return whether a kubelet made the pod, for a static pod: no scheduler places it. It may be in any
    namespace and name any gang, and the API server demands its owner and its annotation."""
    owners = obj.metadata.owner_references or ()
    of_node = any(each.controller and each.kind == "Node" for each in owners)
    return bool(obj.spec.node_name) and of_node and bounds.MIRROR in (obj.metadata.annotations or {})


def _controller(meta: Metadata) -> Controller | None:
    """Return the controller itself; for a Deployment's pod its ReplicaSet."""
    for owner in meta.owner_references or ():
        if owner.controller:
            return Controller(owner.api_version, owner.kind, owner.name, owner.uid)
    return None


def deployment_of(meta: Metadata) -> str:
    """Return the name of the Deployment that made a pod's ReplicaSet, "" if none did.

    The ReplicaSet's name is that and the hash of the template (kubernetes pkg/controller/deployment/sync.go,
    getNewReplicaSet).
    """
    template = (meta.labels or {}).get(TEMPLATE_HASH)
    for owner in meta.owner_references or ():
        if owner.controller and owner.kind == "ReplicaSet" and template:
            name = owner.name.removesuffix(f"-{template}")
            return name if name != owner.name else ""
    return ""


def _claim(
    where: str,
    obj: PodObject,
    asked: Asked,
    shared: Shared,
    meta: Metadata,
    said: own.Said,
    settings: Settings,
    member: Member | None,
) -> tuple[GangClaim | None, tuple[Cause, ...]]:
    """Return the gang of a pod that is ours, and what is ill-formed in it.

    A pod that the shim does not hold, with neither gang nor GPUs of ours, has no claim: the in-tree plugins
    place it. One that it holds is a gang of one at least, so that a slip in the gang's key is said. A bound
    pod is a fact, so nothing is ill-formed in it any more.
    """
    name = meta.name
    with_gpus = bool(asked.gpus or shared.slice or asked.shared_gpus)
    named = agreed(name, (dialect(where, meta, settings) for dialect in GANG_DIALECTS))
    if named.claim is not None or named.causes or said.group is not None:
        member = None
    elif member is not None:
        job = f"{member.kind} {obj.metadata.namespace}/{member.owner}"
        named = Reading(GangClaim(member.kind, member.gang, by_object=True, job=job))
    else:
        named = other_systems.last(where, meta, obj.spec, with_gpus)
    found = agreed(name, (named, own.claim(where, said, named.claim)))
    claim = found.claim
    wants = with_gpus or member is not None
    if not (wants or asked.causes or _speaks(obj.metadata, settings)):
        return None, ()
    grouped = tuple(other_systems.of_spec(where, obj.spec))
    wishes, wrong = _wishes(where, meta, said)
    if member is not None and not wishes.role:
        wishes = replace(wishes, role=member.role)
    claim = replace(claim or GangClaim(LONE, name, min_member=1, replicas=1, lone=True), wishes=wishes)
    if obj.spec.node_name:
        return claim, ()
    resources = (*asked.causes, *shared.causes)
    return claim, (*found.causes, *wrong, *resources, *grouped, *_forged(obj, settings))


def gang_keys(settings: Settings = DEFAULTS) -> tuple[str, ...]:
    """For any of these labels or annotations the shim holds a pod, though it may ask for no GPU; a key that
    ends in "/" is a prefix. In the wrong place they are slips, which are said."""
    ours = (own.PREFIX, settings.ack_name, settings.ack_replicas)
    return (*ours, *kai.GANG_KEYS, *other_systems.GANG_KEYS, *kinds.GANG_KEYS)


def _speaks(meta: Metadata, settings: Settings) -> bool:
    said = {*(meta.labels or {}), *(meta.annotations or {})}
    return bool(said.intersection(gang_keys(settings))) or any(key.startswith(own.PREFIX) for key in said)


def _wishes(where: str, meta: Metadata, said: own.Said) -> tuple[Wishes, tuple[Cause, ...]]:
    """Return the pod's constraints from all dialects together, and what is ill-formed in them."""
    other = kai.read(where, meta)
    causes: list[Cause] = [*said.causes, *other.causes]
    mine = said.wishes.role
    if mine and other.role and mine != other.role:
        first, second = f"{own.NAME}: role {mine}", f"{kai.NAME}: role {other.role}"
        causes.append(DialectsDisagree(meta.name, first, second))
    role = mine or other.role or other_systems.role(meta)
    return replace(said.wishes, role=role, policies=other.policies), tuple(causes)


def _with_claims(
    where: str, obj: PodObject, asked: Asked, shared: Shared, more: DevicesAsked
) -> tuple[Asked, Shared, tuple[BadValue, ...]]:
    """Return what the pod asks for with the GPUs of its claims, and why these can't be planned."""
    names = ", ".join(claim.name for claim in (obj.spec.resource_claims or ())[:4])
    if not (more.gpus or more.slice):
        return asked, shared, more.causes
    if asked.gpus or shared.slice:
        expected = "GPUs by resources or by claims, not by both"
        return asked, shared, (*more.causes, BadValue(where, "resourceClaims", names, expected))
    if more.slice:
        return asked, Shared(more.slice), more.causes
    gpus = min(more.gpus, MAX_OF_A_POD)
    return replace(asked, gpus=gpus, gpu_resource=more.gpu_resource, container_gpus=()), shared, more.causes


def _forged(obj: PodObject, settings: Settings) -> tuple[ForgedAllocation, ...]:
    annotations = obj.metadata.annotations or {}
    keys = [key for key in allocation.RESERVED_KEYS if key in annotations]
    if settings.nri_nodes:
        keys += sorted(filter(nri.is_key, annotations))[:1]
    return tuple(ForgedAllocation(obj.metadata.name, key) for key in keys)


def _prefers(spec: PodSpec) -> bool:
    affinity = spec.affinity
    if affinity is not None and any(
        part is not None and part.preferred
        for part in (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
    ):
        return True
    return any(
        constraint.when_unsatisfiable == "ScheduleAnyway"
        for constraint in spec.topology_spread_constraints or ()
    )


def _seconds(timestamp: str | None) -> float:
    """Seconds since the epoch; 0 for what is no timestamp."""
    try:
        moment = datetime.fromisoformat(timestamp or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0
