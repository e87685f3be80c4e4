"""The dialect of the topology recipe and of KAI: a pod names its PodGroup, its role and its policies.

scheduling.run.ai/pod-group: <PodGroup, in the pod's namespace>    pod-group-name: <the same, KAI's key>
scheduling.run.ai/topology-role: prefill        label kai.scheduler/subgroup-name: <the same, KAI's subgroup>
scheduling.run.ai/topology-policy: nvlink-locality,numa-locality

How many members the gang has and where it wants to be is said by the PodGroup (`podgroups`). Role and
policies count on a GPU pod without a group too. Other keys under scheduling.run.ai/ may be KAI's own and are
not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.dialects.objects import Metadata
from muster.dialects.reading import A_NAME, AN_OBJECT_NAME, NAME_PATTERN, OBJECT_NAME, Reading, agreed
from muster.dialects.settings import Settings
from muster.domain.causes.ill_formed import BadValue, DialectsDisagree
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
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Said:
    """What a pod says besides its gang: `policies` sorted, since their weights order them. `causes` say what
    is ill-formed."""

    role: str = ""
    policies: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()


def claim(where: str, meta: Metadata, settings: Settings) -> Reading:
    """Return the PodGroup that the pod `where` (kind/namespace/name) names."""
    annotations = meta.annotations or {}
    return agreed(
        meta.name, (_named(where, key, annotations[key]) for key in GANG_KEYS if key in annotations)
    )


def read(where: str, meta: Metadata) -> Said:
    """Return the pod's role and policies."""
    annotations, labels = meta.annotations or {}, meta.labels or {}
    causes: list[Cause] = []
    roles = [
        (key, role)
        for key, said in ((ROLE, annotations), (SUBGROUP, labels))
        if (role := _role(where, key, said, causes)) is not None
    ]
    if len({role for _, role in roles}) > 1:
        first, second = (f"{key}: role {role}" for key, role in roles)
        causes.append(DialectsDisagree(meta.name, first, second))
    policies = _policies(where, annotations, causes)
    return Said(roles[0][1] if roles else "", policies, tuple(causes))


def _named(where: str, key: str, name: str) -> Reading:
    if not OBJECT_NAME.fullmatch(name):
        expected = f"the name of a PodGroup in the pod's namespace: {AN_OBJECT_NAME}"
        return Reading(causes=(BadValue(where, key, name[:_SHOWN], expected),))
    return Reading(GangClaim(NAME, name, by_object=True))


def _role(where: str, key: str, said: Mapping[str, str], causes: list[Cause]) -> str | None:
    text = said.get(key)
    if text is None or NAME_PATTERN.fullmatch(text):
        return text
    causes.append(BadValue(where, key, text[:_SHOWN], A_NAME))
    return None


def _policies(where: str, said: Mapping[str, str], causes: list[Cause]) -> tuple[str, ...]:
    text = said.get(POLICY)
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",", MAX_POLICIES)]
    if not all(map(NAME_PATTERN.fullmatch, names)) or not len(set(names)) == len(names) <= MAX_POLICIES:
        expected = f"names of topology policies, each once, at most {MAX_POLICIES}, with commas between"
        causes.append(BadValue(where, POLICY, text[:_SHOWN], expected))
        return ()
    return tuple(sorted(names))
