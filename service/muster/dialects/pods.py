"""A Pod object → facts. Never an exception: what is ill-formed becomes a cause on the pod."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from muster.dialects import ack, gputopology, own, requests
from muster.dialects.objects import NodeSelectorRequirement, PodObject, PodSpec
from muster.dialects.reading import agreed, natural
from muster.dialects.requests import Asked
from muster.dialects.settings import DEFAULTS, Settings
from muster.domain import allocation
from muster.domain.pod import GangClaim, Pod
from muster.domain.reasons import BadValue, Cause, ForgedAllocation
from muster.domain.request import NodeRules, SelectorTerm, Toleration

GANG_DIALECTS = (ack.claim,)
"""Each reads (where, labels, settings) → Reading. A pod may speak several that agree; `own` comes on top
of each."""

_JOB_INDEX = "batch.kubernetes.io/job-completion-index"
_POD_INDEX = "apps.kubernetes.io/pod-index"


def read(obj: PodObject, settings: Settings = DEFAULTS) -> Pod:
    """The facts of one pod. Of those of other schedulers only the usage counts: no claim, no causes."""
    meta, spec = obj.metadata, obj.spec
    where = f"pod/{meta.namespace}/{meta.name}"
    asked = requests.read(where, spec, settings)
    claim: GangClaim | None = None
    causes: tuple[Cause, ...] = ()
    said = own.Said()
    if spec.scheduler_name in settings.scheduler_names:
        said = own.read(where, meta, settings)
        claim, causes = _claim(where, obj, asked, said, settings)
    finished = obj.status.phase in ("Succeeded", "Failed")
    return Pod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        scheduler_name=spec.scheduler_name,
        resources=asked.resources,
        gpus=asked.gpus,
        gpu_resource=asked.gpu_resource,
        container_gpus=asked.container_gpus,
        rules=_rules(spec),
        claim=claim,
        rank=_rank(obj) if said.rank is None else said.rank,
        owner=next((owner.uid for owner in meta.owner_references or () if owner.controller), ""),
        priority=spec.priority or 0,
        created=_seconds(meta.creation_timestamp),
        node=spec.node_name,
        running=obj.status.phase == "Running",
        finished=finished,
        succeeded=obj.status.phase == "Succeeded",
        terminating=meta.deletion_timestamp is not None,
        gated=bool(spec.scheduling_gates),
        allocation=allocation.read(meta.annotations or {}, asked.gpus) if spec.node_name else None,
        causes=causes,
    )


def _claim(
    where: str, obj: PodObject, asked: Asked, said: own.Said, settings: Settings
) -> tuple[GangClaim | None, tuple[Cause, ...]]:
    """The gang of a pod that is ours, and what is ill-formed in it.

    A pod that the shim does not hold, with neither gang nor GPUs of ours, has no claim: the in-tree plugins
    place it. A bound pod is a fact, so nothing is ill-formed in it any more.
    """
    labels = obj.metadata.labels or {}
    name = obj.metadata.name
    named = agreed(name, (dialect(where, labels, settings) for dialect in GANG_DIALECTS))
    found = agreed(name, (named, own.claim(where, said, named.claim)))
    claim = found.claim
    foreign = _foreign(where, obj.spec, asked)
    grouped = _scheduling_group(where, obj.spec) if asked.gpus or claim else ()
    unread = _unread(where, obj, settings)
    unplanned = any(resource in settings.unplanned_resources for resource in asked.foreign)
    in_gang = claim is not None or unplanned or bool(found.causes or grouped or unread)
    if not (in_gang or asked.gpus or asked.causes):
        return None, ()
    claim = replace(claim or gputopology.lone(name), wishes=said.wishes)
    if obj.spec.node_name:
        return claim, ()
    return claim, (*found.causes, *said.causes, *unread, *asked.causes, *foreign, *grouped, *_forged(obj))


def _foreign(where: str, spec: PodSpec, asked: Asked) -> tuple[BadValue, ...]:
    """GPU requests that the planner does not model."""
    expected = "whole GPUs: this is not planned yet"
    causes = [BadValue(where, "resources", resource, expected) for resource in asked.foreign]
    if spec.resource_claims:
        names = ", ".join(claim.name for claim in spec.resource_claims[:4])
        causes.append(BadValue(where, "resourceClaims", names, expected))
    return tuple(causes)


def _unread(where: str, obj: PodObject, settings: Settings) -> tuple[BadValue, ...]:
    """Gangs named in dialects that are not read yet."""
    meta = obj.metadata
    named = [(key, (meta.labels or {}).get(key)) for key in settings.unread_labels]
    named += [(key, (meta.annotations or {}).get(key)) for key in settings.unread_annotations]
    expected = f"none: this dialect is not read yet, name the gang with the label {settings.ack_name}"
    return tuple(BadValue(where, key, name[:80], expected) for key, name in named if name is not None)


def _scheduling_group(where: str, spec: PodSpec) -> tuple[BadValue, ...]:
    """Kubernetes' own gangs (GenericWorkload) would hold the pod beside us."""
    if spec.scheduling_group is None:
        return ()
    name = spec.scheduling_group.pod_group_name or ""
    return (BadValue(where, "schedulingGroup", name, "none: another scheduler's gang can't be this one's"),)


def _forged(obj: PodObject) -> tuple[ForgedAllocation, ...]:
    annotations = obj.metadata.annotations or {}
    return tuple(
        ForgedAllocation(obj.metadata.name, key) for key in allocation.RESERVED_KEYS if key in annotations
    )


def _rules(spec: PodSpec) -> NodeRules:
    required = tuple(
        SelectorTerm(key, "In", (value,)) for key, value in sorted((spec.node_selector or {}).items())
    )
    node_affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    selector = node_affinity.required if node_affinity is not None else None
    any_of = tuple(
        tuple(_term(term) for term in (*(terms.match_expressions or ()), *(terms.match_fields or ())))
        for terms in (selector.node_selector_terms or () if selector is not None else ())
    )
    # In the API a term without requirements matches no node. It can't be dropped where it is the only one.
    matching = tuple(terms for terms in any_of if terms)
    if any_of and not matching:
        matching = ((SelectorTerm("metadata.name", "In", ()),),)
    tolerations = tuple(
        Toleration(t.key, t.operator or "Equal", t.value, t.effect) for t in spec.tolerations or ()
    )
    return NodeRules(required, matching, tolerations)


def _term(requirement: NodeSelectorRequirement) -> SelectorTerm:
    return SelectorTerm(requirement.key, requirement.operator, tuple(requirement.values or ()))


def _rank(obj: PodObject) -> int | None:
    """The Job's completion index, else the StatefulSet's ordinal, else the number at the end of the name,
    unless that is a random one."""
    meta = obj.metadata
    _, dash, end = meta.name.rpartition("-")
    said = (
        (meta.annotations or {}).get(_JOB_INDEX, ""),
        (meta.labels or {}).get(_POD_INDEX, ""),
        end if dash and not meta.generate_name else "",
    )
    return next((rank for text in said if (rank := natural(text)) is not None), None)


def _seconds(timestamp: str | None) -> float:
    """Seconds since the epoch; 0 for what is no timestamp."""
    try:
        moment = datetime.fromisoformat(timestamp or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0
