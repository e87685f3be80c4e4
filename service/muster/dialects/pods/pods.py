"""A Pod object → facts. There are no exceptions: an ill-formed value becomes a cause on the pod."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

from muster.dialects.devices.claims import Claims, DeviceDemand
from muster.dialects.gangs import kai, misspelt, native, other_systems, own, ranks
from muster.dialects.keys import ACK_NAME, ACK_REPLICAS
from muster.dialects.kinds import table as kinds
from muster.dialects.kinds.description import JobPod
from muster.dialects.objects import Metadata, PodObject, PodSpec
from muster.dialects.pods import bounds, peers, preemption, requests
from muster.dialects.pods.requests import MAX_OF_A_POD, PodRequests
from muster.dialects.reading import Reading, merge_readings, seconds_since_epoch
from muster.dialects.settings import DEFAULTS, DialectSettings
from muster.domain import allocation
from muster.domain.causes.ill_formed import BadValue, DialectsDisagree, ForgedAllocation
from muster.domain.peers import PeerRules
from muster.domain.pod import Controller, GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup
from muster.domain.preemption import Preemption
from muster.domain.reasons import Cause

LONE = "gputopology"
"""The dialect of a pod that names no gang: it is a gang of one."""
MAX_FINALIZERS = 8
LONG_AGO = 1.0
"""When a terminating pod whose time can't be read should have ended, in seconds since the epoch."""
TEMPLATE_HASH = "pod-template-hash"
"""The label by which a Deployment tells the pods of its ReplicaSets apart."""
TRACEPARENTS = ("tracing.k8s.io/traceparent", "traceparent")
"""Annotations with the trace context of a pod's creator: the key that KEP-5915 proposes, and the plain key.
"""
TRACEPARENT = r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"
GANG_DIALECTS = (kai.claim, other_systems.claim, other_systems.ack_claim)
"""Functions (object name, metadata) → Reading. A pod may use several dialects that agree. Dialects with a
PodGroup come first, because the dialect of the first claim finds the PodGroup. `native` comes before all of
them, and `own` is always read too."""


def read(
    obj: PodObject,
    settings: DialectSettings = DEFAULTS,
    member: JobPod | None = None,
    claims: Claims | None = None,
    group: PodGroup | None = None,
) -> Pod:
    """Return the facts of one pod. Pods of other schedulers, and static pods, are in no gang.

    `member`: its place in a job that is a gang. `claims`: those known. `group`: as in `native.claim`.
    """
    meta, spec, status = obj.metadata, obj.spec, obj.status
    annotations, object_name = meta.annotations or {}, f"pod/{meta.namespace}/{meta.name}"
    demand = claims.demand(obj) if claims is not None and spec.resource_claims else DeviceDemand()
    peer_rules, terms, bad_rules = _read_rules(object_name, obj)
    amounts = requests.of_pod(object_name, obj, settings)
    gang = _gang(object_name, obj, amounts, settings, member, group)
    causes, devices = gang.causes, demand if (ours := gang.claim is not None) else DeviceDemand()
    amounts, bad_claims = requests.with_claims(object_name, spec, amounts, devices)
    if ours and not spec.node_name:
        causes += (*bounds.exceeded_limits(object_name, obj, amounts.resource_names), *bad_claims, *bad_rules)
    pod = Pod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        scheduler_name=spec.scheduler_name,
        resources=amounts.resources,
        gpus=amounts.gpus,
        gpu_counts=tuple(min(count, MAX_OF_A_POD) for count in devices.gpu_counts),
        gpu_resource=amounts.gpu_resource,
        slice=amounts.slice,
        container_gpus=amounts.container_gpus,
        rules=peers.node_rules(spec),
        claim=gang.claim,
        rank=ranks.rank_of(meta) if gang.rank is None else gang.rank,
        owner=_owner(meta),
        controller=_controller(meta) if ours or spec.node_name else None,
        priority=spec.priority or 0,
        created=seconds_since_epoch(meta.creation_timestamp),
        started=seconds_since_epoch(status.start_time),
        node=spec.node_name,
        running=status.phase == "Running",
        finished=status.phase in ("Succeeded", "Failed"),
        succeeded=status.phase == "Succeeded",
        terminating=meta.deletion_timestamp is not None,
        gated=bool(spec.scheduling_gates) or not (demand.complete or spec.node_name),
        labels=peers.labels_of(meta.labels),
        peers=peer_rules,
        preemption=terms,
        traceparent=_traceparent(annotations) if ours else "",
        preferences=ours and _has_preferences(spec),
        match_attributes=devices.match_attributes,
        several_claims=devices.several_claims,
        unallocated_claims=devices.unallocated,
        group_claims=devices.group_claims,
        device_claims=bool(spec.resource_claims) and spec.scheduler_name in settings.scheduler_names,
        compute_domain=devices.compute_domain,
        causes=causes,
    )
    return _on_node(pod, meta) if pod.node else pod


def _read_rules(object_name: str, obj: PodObject) -> tuple[PeerRules, Preemption, tuple[BadValue, ...]]:
    """Return a pod's rules about other pods, its terms of preemption, and a cause for each ill-formed one."""
    peer_rules, bad_rules = peers.rules_of(object_name, obj.metadata, obj.spec)
    terms, bad_terms = preemption.read(object_name, obj)
    return peer_rules, terms, (*bad_rules, *bad_terms)


def _on_node(pod: Pod, meta: Metadata) -> Pod:
    """Return a pod on a node with what counts only there: its GPUs, its last checkpoint and its end."""
    pod, saved = allocation.on_node(pod, meta.annotations or {}), preemption.saved_at(meta)
    if not (pod.terminating or saved):
        return pod
    ends = (seconds_since_epoch(meta.deletion_timestamp) or LONG_AGO) if pod.terminating else 0.0
    finalizers = islice(meta.finalizers or (), MAX_FINALIZERS if pod.terminating else 0)
    shown = tuple(name[: bounds.MAX_CHARACTERS] for name in finalizers)
    return replace(pod, ends=ends, finalizers=shown, saved=saved)


def _traceparent(annotations: Mapping[str, str]) -> str:
    """Return the trace context of the pod's creator; "" if it is missing or malformed."""
    values = (annotations.get(key, "") for key in TRACEPARENTS)
    return next((value for value in values if re.fullmatch(TRACEPARENT, value)), "")


def _owner(meta: Metadata) -> str:
    """Return a pod's Deployment, whose next ReplicaSet continues the gang, else its controller's UID."""
    if deployment := deployment_of(meta):
        return f"Deployment/{deployment}"
    return next((owner.uid for owner in meta.owner_references or () if owner.controller), "")


def _controller(meta: Metadata) -> Controller | None:
    """Return the pod's direct controller. For a Deployment's pod this is the ReplicaSet."""
    for owner in meta.owner_references or ():
        if owner.controller:
            return Controller(owner.api_version, owner.kind, owner.name, owner.uid)
    return None


def deployment_of(meta: Metadata) -> str:
    """Return the name of the Deployment that made a pod's ReplicaSet; "" if no Deployment did.

    The ReplicaSet's name is the Deployment's name and the hash of the template (kubernetes
    pkg/controller/deployment/sync.go, getNewReplicaSet).
    """
    template = (meta.labels or {}).get(TEMPLATE_HASH)
    for owner in meta.owner_references or ():
        if owner.controller and owner.kind == "ReplicaSet" and template:
            name = owner.name.removesuffix(f"-{template}")
            return name if name != owner.name else ""
    return ""


@dataclass(frozen=True, slots=True)
class _Gang:
    """A pod's facts about its gang. `claim` is None if Muster does not place the pod."""

    claim: GangClaim | None = None
    rank: int | None = None
    causes: tuple[Cause, ...] = ()


def _gang(
    object_name: str,
    obj: PodObject,
    amounts: PodRequests,
    settings: DialectSettings,
    member: JobPod | None,
    group: PodGroup | None,
) -> _Gang:
    """Return the gang of a pod of ours, and a cause for each ill-formed key.

    A pod with neither gang keys nor GPUs gets no claim: the shim does not hold it, and the in-tree plugins
    place it. A pod that the shim holds is at least a gang of one, so that a mistake in the gang's key is
    reported. A bound pod has no causes, because it runs whatever its keys are.
    """
    spec = obj.spec
    if spec.scheduler_name not in settings.scheduler_names or obj.is_static:
        return _Gang()
    has_keys = _has_gang_keys(obj.metadata) or spec.scheduling_group is not None
    forged = _forged_annotations(obj, settings)
    meta, slips = (obj.metadata, ()) if spec.node_name else misspelt.correct_keys(object_name, obj.metadata)
    own_keys, name = own.read(object_name, meta), meta.name
    with_gpus = bool(amounts.gpus or amounts.slice or amounts.shared_gpus)
    of_group = native.claim(object_name, meta.namespace, spec, group)
    reading = merge_readings(name, (of_group, *(dialect(object_name, meta) for dialect in GANG_DIALECTS)))
    if reading.claim is not None or reading.causes or own_keys.group is not None:
        member = None
    elif member is not None:
        job = f"{member.kind} {meta.namespace}/{member.owner}"
        reading = Reading(GangClaim(member.kind, member.gang, by_object=True, job=job))
    else:
        reading = other_systems.fallback_claim(object_name, meta, spec, with_gpus)
    reading = merge_readings(name, (reading, own.claim(object_name, own_keys, reading.claim)))
    if not (with_gpus or member is not None or amounts.causes or has_keys):
        return _Gang()
    bad_fields = other_systems.check_workload_ref(object_name, spec)
    topology_request, topology_causes = _topology_request(object_name, meta, own_keys)
    role, bad_role = native.role_in_tree(object_name, spec, topology_request.role, group)
    topology_request = replace(topology_request, role=role)
    if member is not None and not topology_request.role:
        topology_request = replace(topology_request, role=member.role)
    claim = reading.claim or GangClaim(LONE, name, min_member=1, replicas=1, lone=True)
    bad_amounts = (*amounts.causes, *amounts.share_causes)
    causes = (*slips, *reading.causes, *topology_causes, *bad_role, *bad_amounts, *bad_fields, *forged)
    return _Gang(
        replace(claim, topology_request=topology_request), own_keys.rank, () if spec.node_name else causes
    )


def gang_keys() -> tuple[str, ...]:
    """Return the labels and annotations for which the shim holds a pod, even if the pod requests no GPU. A
    key that ends in "/" is a prefix. Keys in the wrong place count too, so that the mistake is reported."""
    ours = (own.PREFIX, ACK_NAME, ACK_REPLICAS)
    return (*ours, *kai.GANG_KEYS, *other_systems.GANG_KEYS, *kinds.GANG_KEYS)


def _has_gang_keys(meta: Metadata) -> bool:
    keys = {*(meta.labels or {}), *(meta.annotations or {})}
    return bool(keys.intersection(gang_keys())) or any(key.startswith(own.PREFIX) for key in keys)


def _topology_request(
    object_name: str, meta: Metadata, own_keys: own.OwnKeys
) -> tuple[TopologyRequest, tuple[Cause, ...]]:
    """Return the pod's constraints from all dialects together, and a cause for each ill-formed key."""
    kai_keys = kai.read(object_name, meta)
    causes: list[Cause] = [*own_keys.causes, *kai_keys.causes]
    own_role = own_keys.topology_request.role
    if own_role and kai_keys.role and own_role != kai_keys.role:
        first, second = f"{own.NAME}: role {own_role}", f"{kai.NAME}: role {kai_keys.role}"
        causes.append(DialectsDisagree(meta.name, first, second))
    role = own_role or kai_keys.role or other_systems.volcano_role(meta)
    return replace(own_keys.topology_request, role=role, policies=kai_keys.policies), tuple(causes)


def _forged_annotations(obj: PodObject, settings: DialectSettings) -> tuple[ForgedAllocation, ...]:
    annotations = obj.metadata.annotations or {}
    keys = [key for key in allocation.RESERVED_KEYS if key in annotations]
    if settings.nri_nodes:
        keys += sorted(filter(allocation.is_nri_key, annotations))[:1]
    return tuple(ForgedAllocation(obj.metadata.name, key) for key in keys)


def _has_preferences(spec: PodSpec) -> bool:
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
