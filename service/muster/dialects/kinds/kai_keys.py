"""Read KAI's keys on jobs and on their templates, as its podgrouper does.

labels kai.scheduler/queue, priorityClassName, kai.scheduler/preemptibility
annotations kai.scheduler/topology, …/topology-required-placement, …/topology-preferred-placement,
    …/batch-min-member, and on pod templates …/segment-size, …/segment-topology-required-placement

The meaning is that of kai-scheduler/KAI-Scheduler, pkg/podgrouper/podgrouper/plugins (constants,
defaultgrouper, job, jobset, kubeflow/pytorch, leaderworkerset, ray).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from muster.dialects.fields import Fields
from muster.dialects.gangs.kai import SUBGROUP
from muster.dialects.kinds.description import Owner
from muster.dialects.objects import Metadata
from muster.dialects.reading import positive

PREFIX = "kai.scheduler/"
QUEUE = f"{PREFIX}queue"
PRIORITY = "priorityClassName"
PREEMPTIBILITY = f"{PREFIX}preemptibility"
TOPOLOGY = f"{PREFIX}topology"
REQUIRED = f"{PREFIX}topology-required-placement"
PREFERRED = f"{PREFIX}topology-preferred-placement"
SEGMENT_SIZE = f"{PREFIX}segment-size"
SEGMENT_REQUIRED = f"{PREFIX}segment-topology-required-placement"
SEGMENT_PREFERRED = f"{PREFIX}segment-topology-preferred-placement"
MIN_MEMBER = f"{PREFIX}batch-min-member"
COUNTED = ("Job", "JobSet")
"""Kinds whose batch-min-member is read."""
SKIP = f"{PREFIX}skip-podgrouper"
FRACTIONS = ("gpu-fraction", "gpu-memory")
"""KAI's way to ask for a part of a GPU. It is not read."""


def spoken(keys: Mapping[str, str]) -> bool:
    """Return whether some of these labels or annotations are for KAI's podgrouper.

    The key for a pod's subgroup is not: it is used with a PodGroup that a user wrote.
    """
    return any(key.startswith(PREFIX) and key not in (SUBGROUP, SKIP) for key in keys)


def read(key: str) -> bool:
    """Return whether a label or annotation of a job, or of a pod template in it, is read."""
    return key.startswith(PREFIX) or key == PRIORITY or key in FRACTIONS


def unread_fractions(keys: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each of KAI's keys for a part of a GPU."""
    for key in FRACTIONS:
        if key in keys:
            yield f"annotation {key} is not read: ask for memory of shared GPUs with aliyun.com/gpu-mem"


def skipped(meta: Metadata) -> bool:
    """Return whether a key asks that no gang is read from the object."""
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


def min_member(owner: Owner, pods: int) -> int | None:
    """Return the object's batch-min-member. Return None without a number that can be used."""
    return _number(owner.spec, (owner.meta.annotations or {}).get(MIN_MEMBER), pods)


def number(meta: Fields, pods: int) -> int | None:
    """Return the batch-min-member in a template's metadata. Return None without a number that can be used."""
    return _number(meta, annotations_of(meta).get(MIN_MEMBER), pods)


def min_subgroups(owner: Owner, there: int) -> None:
    """Note a problem if a JobSet's batch-min-member, which counts replicated Jobs, is not their number."""
    text = (owner.meta.annotations or {}).get(MIN_MEMBER)
    if text is not None and positive(text) != there:
        expected = (
            f"{there}, since all replicated Jobs start together. To start with fewer pods, remove it "
            "here and write it on the template of a replicated Job, where it counts the pods of each Job"
        )
        owner.spec.said(f"annotation {MIN_MEMBER}", text, expected)


def _number(fields: Fields, text: str | None, pods: int) -> int | None:
    number = positive(text)
    if text is None or (number is not None and number <= pods):
        return number
    fields.said(f"annotation {MIN_MEMBER}", text, f"a whole number from 1 to {pods}, the pods that there are")
    return None
