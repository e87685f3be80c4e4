"""The dialect of the topology recipe and of KAI: a pod names its PodGroup, its role and its policies.

scheduling.run.ai/pod-group: <PodGroup, in the pod's namespace>    pod-group-name: <the same, KAI's key>
scheduling.run.ai/topology-role: prefill        label kai.scheduler/subgroup-name: <the same, KAI's subgroup>
scheduling.run.ai/topology-policy: nvlink-locality,numa-locality

How many members the gang has and where it wants to be is said by the PodGroup (`podgroups`). Role and
policies count on a GPU pod without a group too. Other keys under scheduling.run.ai/ may be KAI's own and are
not read.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.dialects.objects import Metadata
from muster.dialects.reading import A_NAME, AN_OBJECT_NAME, NAME_PATTERN, OBJECT_NAME, Reading, Values, agreed
from muster.dialects.settings import Settings
from muster.domain.causes.ill_formed import DialectsDisagree
from muster.domain.pod import GangClaim
from muster.domain.reasons import Cause

NAME = "kai"

PREFIX = "scheduling.run.ai/"
GROUP = f"{PREFIX}pod-group"
POLICY = f"{PREFIX}topology-policy"
ROLE = f"{PREFIX}topology-role"
KAI_GROUP = "pod-group-name"
"""KAI's podgrouper writes this one on the pods that it groups (PodGroupAnnotationForPod, pkg/common/constants
of NVIDIA/KAI-Scheduler)."""
SUBGROUP = "kai.scheduler/subgroup-name"

GANG_KEYS = (GROUP, KAI_GROUP)
"""Annotations that make a pod one of a gang."""

MAX_POLICIES = 8


@dataclass(frozen=True, slots=True)
class KaiKeys:
    """What a pod says besides its gang: `policies` sorted, since their weights order them. `causes` say what
    is ill-formed."""

    role: str = ""
    policies: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()


def claim(where: str, meta: Metadata, settings: Settings) -> Reading:
    """Return the PodGroup that the pod `where` (kind/namespace/name) names."""
    values = Values(where, meta.annotations or {})
    expected = f"the name of a PodGroup in the pod's namespace: {AN_OBJECT_NAME}"
    names = [values.matching(key, OBJECT_NAME, expected) for key in GANG_KEYS]
    claims = (Reading(GangClaim(NAME, name, by_object=True)) for name in names if name is not None)
    return agreed(meta.name, (*claims, Reading(causes=tuple(values.causes))))


def read(where: str, meta: Metadata) -> KaiKeys:
    """Return the pod's role and policies."""
    annotations, labels = meta.annotations or {}, meta.labels or {}
    if ROLE not in annotations and POLICY not in annotations and SUBGROUP not in labels:
        return KaiKeys()
    texts = {ROLE: annotations.get(ROLE), SUBGROUP: labels.get(SUBGROUP)}
    values = Values(where, {key: text for key, text in texts.items() if text is not None})
    roles = [(key, role) for key in texts if (role := values.matching(key, NAME_PATTERN, A_NAME)) is not None]
    causes: list[Cause] = [*values.causes]
    if len({role for _, role in roles}) > 1:
        first, second = (f"{key}: role {role}" for key, role in roles)
        causes.append(DialectsDisagree(meta.name, first, second))
    policies = Values(where, annotations)
    expected = f"names of topology policies, each once, at most {MAX_POLICIES}, with commas between"
    names = policies.names(POLICY, NAME_PATTERN, MAX_POLICIES, expected)
    return KaiKeys(roles[0][1] if roles else "", tuple(sorted(names)), (*causes, *policies.causes))
