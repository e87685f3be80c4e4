"""The dialect of the topology recipe and of KAI: a pod names its PodGroup, its role and its policies.

scheduling.run.ai/pod-group: <PodGroup, in the pod's namespace>    pod-group-name: <the same, KAI's key>
scheduling.run.ai/topology-role: prefill        label kai.scheduler/subgroup-name: <the same, KAI's subgroup>
scheduling.run.ai/topology-policy: nvlink-locality,numa-locality

The PodGroup states the number of members and the topology constraints (`podgroups`). Role and policies also
count on a GPU pod without a group. Other keys under scheduling.run.ai/ may be KAI's own and are not read.

On jobs and on their templates KAI's keys are read as its podgrouper does:

labels kai.scheduler/queue, priorityClassName, kai.scheduler/preemptibility
annotations kai.scheduler/topology, …/topology-required-placement, …/topology-preferred-placement,
    …/batch-min-member, and on pod templates …/segment-size, …/segment-topology-required-placement

The meaning is that of kai-scheduler/KAI-Scheduler, pkg/podgrouper/podgrouper/plugins (constants,
defaultgrouper, job, jobset, kubeflow/pytorch, leaderworkerset, ray).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from muster.dialects.objects import Metadata
from muster.dialects.reading import (
    A_NAME,
    AN_OBJECT_NAME,
    NAME_PATTERN,
    OBJECT_NAME,
    Fields,
    Reading,
    merge_readings,
    positive,
)
from muster.domain.causes.ill_formed import DialectsDisagree
from muster.domain.pod import GangClaim
from muster.domain.reasons import Cause

NAME = "kai"

PREFIX = "scheduling.run.ai/"
GROUP = f"{PREFIX}pod-group"
POLICY = f"{PREFIX}topology-policy"
ROLE = f"{PREFIX}topology-role"
KAI_GROUP = "pod-group-name"
"""KAI's podgrouper writes this annotation on the pods that it groups (PodGroupAnnotationForPod,
pkg/common/constants of NVIDIA/KAI-Scheduler)."""
SUBGROUP = "kai.scheduler/subgroup-name"

JOB_PREFIX = "kai.scheduler/"
QUEUE = f"{JOB_PREFIX}queue"
PRIORITY = "priorityClassName"
PREEMPTIBILITY = f"{JOB_PREFIX}preemptibility"
TOPOLOGY = f"{JOB_PREFIX}topology"
REQUIRED = f"{JOB_PREFIX}topology-required-placement"
PREFERRED = f"{JOB_PREFIX}topology-preferred-placement"
SEGMENT_SIZE = f"{JOB_PREFIX}segment-size"
SEGMENT_REQUIRED = f"{JOB_PREFIX}segment-topology-required-placement"
SEGMENT_PREFERRED = f"{JOB_PREFIX}segment-topology-preferred-placement"
MIN_MEMBER = f"{JOB_PREFIX}batch-min-member"
COUNTED = ("Job", "JobSet")
"""Kinds whose batch-min-member is read."""
SKIP = f"{JOB_PREFIX}skip-podgrouper"
FRACTIONS = ("gpu-fraction", "gpu-memory")
"""KAI's keys for a part of a GPU, which are not read."""

GANG_KEYS = (GROUP, KAI_GROUP)
"""Annotations that make a pod one of a gang."""

MAX_POLICIES = 8


@dataclass(frozen=True, slots=True)
class KaiKeys:
    """The role and the policies that a pod states.

    `policies` are sorted, because their weights determine their order. `causes`: why keys are ill-formed.
    """

    role: str = ""
    policies: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()


def claim(object_name: str, meta: Metadata) -> Reading:
    """Return the PodGroup that the pod `object_name` (kind/namespace/name) names."""
    values = Fields.of_keys(object_name, meta.annotations or {})
    expected = f"the name of a PodGroup in the pod's namespace: {AN_OBJECT_NAME}"
    names = [values.text_matching(key, OBJECT_NAME, expected) for key in GANG_KEYS]
    claims = (Reading(GangClaim(NAME, name, by_object=True)) for name in names if name is not None)
    return merge_readings(meta.name, (*claims, Reading(causes=tuple(values.causes))))


def read(object_name: str, meta: Metadata) -> KaiKeys:
    """Return the pod's role and policies."""
    annotations, labels = meta.annotations or {}, meta.labels or {}
    if ROLE not in annotations and POLICY not in annotations and SUBGROUP not in labels:
        return KaiKeys()
    texts = {ROLE: annotations.get(ROLE), SUBGROUP: labels.get(SUBGROUP)}
    values = Fields.of_keys(object_name, {key: text for key, text in texts.items() if text is not None})
    roles = [
        (key, role) for key in texts if (role := values.text_matching(key, NAME_PATTERN, A_NAME)) is not None
    ]
    causes: list[Cause] = [*values.causes]
    if len({role for _, role in roles}) > 1:
        first, second = (f"{key}: role {role}" for key, role in roles)
        causes.append(DialectsDisagree(meta.name, first, second))
    policies = Fields.of_keys(object_name, annotations)
    expected = f"names of topology policies, each once, at most {MAX_POLICIES}, with commas between"
    names = policies.names_in(POLICY, NAME_PATTERN, MAX_POLICIES, expected)
    return KaiKeys(roles[0][1] if roles else "", tuple(sorted(names)), (*causes, *policies.causes))


def has_podgrouper_keys(keys: Mapping[str, str]) -> bool:
    """Return whether some of these labels or annotations are for KAI's podgrouper.

    The key for a pod's subgroup does not count, because users write this key with a PodGroup of their own.
    """
    return any(key.startswith(JOB_PREFIX) and key not in (SUBGROUP, SKIP) for key in keys)


def is_read_on_job(key: str) -> bool:
    """Return whether a label or annotation of a job, or of a pod template in it, is read."""
    return key.startswith(JOB_PREFIX) or key == PRIORITY or key in FRACTIONS


def unread_fractions(keys: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each of KAI's keys for a part of a GPU."""
    for key in FRACTIONS:
        if key in keys:
            yield f"annotation {key} is not read: ask for memory of shared GPUs with aliyun.com/gpu-mem"


def is_skipped(meta: Metadata) -> bool:
    """Return whether a key says that the object's pods are no gang."""
    keys = {**(meta.annotations or {}), **(meta.labels or {})}
    return keys.get(SKIP) == "true"


def asks_for_topology(meta: Metadata) -> bool:
    """Return whether the object asks for a topology level, required or preferred."""
    return not {REQUIRED, PREFERRED}.isdisjoint(meta.annotations or {})


def annotations_of(meta: Fields) -> Mapping[str, str]:
    """Return the annotations of a template's metadata that are strings."""
    return _strings(meta.part("annotations"))


def labels_of(meta: Fields) -> Mapping[str, str]:
    """Return the labels of a template's metadata that are strings."""
    return _strings(meta.part("labels"))


def _strings(texts: Fields) -> Mapping[str, str]:
    return {key: value for key in texts.names() if isinstance(value := texts.raw(key), str)}


def check_min_subgroups(spec: Fields, meta: Metadata, jobs: int) -> None:
    """Note a problem if a JobSet's batch-min-member, which counts replicated Jobs, is not their number."""
    text = (meta.annotations or {}).get(MIN_MEMBER)
    if text is not None and positive(text) != jobs:
        expected = (
            f"{jobs}, since all replicated Jobs start together. To start with fewer pods, remove it "
            "here and write it on the template of a replicated Job, where it counts the pods of each Job"
        )
        spec.bad_value(f"annotation {MIN_MEMBER}", text, expected)


def min_member(fields: Fields, annotations: Mapping[str, str] | None, pods: int) -> int | None:
    """Return the batch-min-member in these annotations; None if there is no usable number."""
    text = (annotations or {}).get(MIN_MEMBER)
    number = positive(text)
    if text is None or (number is not None and number <= pods):
        return number
    fields.bad_value(
        f"annotation {MIN_MEMBER}", text, f"a whole number from 1 to {pods}, the pods that there are"
    )
    return None
