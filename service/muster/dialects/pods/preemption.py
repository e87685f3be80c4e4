"""What a pod states about preemption: whether it preempts other pods, and when it may be a victim itself.

    spec.preemptionPolicy: Never             no pod ends for it
    gpu.topology/preemptible: "false"        it is never a victim; "true" is the default
    gpu.topology/min-runtime: 30m            it is no victim before it has run this long
    gpu.topology/checkpoint-every: 10m       it saves its work at least this often
    gpu.topology/last-checkpoint: 2026-11-29T14:00:00Z     when it saved its work last
    label kai.scheduler/preemptibility       preemptible, non-preemptible or semi-preemptible

The pods of a DaemonSet and static pods are never victims, because they come back on the same node. Other
values of KAI's label are ignored, as KAI does (ParsePreemptibility of pkg/apis/scheduling/v2alpha2). A
semi-preemptible pod counts as non-preemptible, because KAI protects as many pods as the gang needs.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from muster.dialects.gangs import kai, own
from muster.dialects.objects import Metadata, PodObject
from muster.dialects.reading import seconds_since_epoch
from muster.domain.causes.ill_formed import BadValue
from muster.domain.clearing import OLDEST_S
from muster.domain.preemption import Preemption

_DURATION = re.compile(r"(?=.)(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9})s)?")
_A_DURATION = "hours, minutes and seconds, as in 1h30m, 30m or 90s, at most 366 days"
_YES_OR_NO = re.compile("true|false")
_OF_KAI = {"preemptible": "true", "non-preemptible": "false", "semi-preemptible": "false"}


def read(object_name: str, obj: PodObject) -> tuple[Preemption, tuple[BadValue, ...]]:
    """Return what the pod `object_name` (kind/namespace/name) states, and a cause for each ill-formed value.

    A pod with an ill-formed value is never a victim, because its user may have meant to protect the pod.
    """
    annotations, labels = obj.metadata.annotations or {}, obj.metadata.labels or {}
    preempts, protected = obj.spec.preemption_policy != "Never", _why_pinned(obj)
    if kai.PREEMPTIBILITY not in labels and not any(key in annotations for key in own.OF_VICTIMS):
        return _terms(preempts, protected), ()
    keys = own.Keys.of_keys(object_name, annotations)
    by_us = keys.text_matching(own.PREEMPTIBLE, _YES_OR_NO, '"true" or "false"')
    by_kai = _OF_KAI.get(labels.get(kai.PREEMPTIBILITY, ""))
    min_runtime_s, checkpoint_s = (_seconds(keys, key) for key in (own.MIN_RUNTIME, own.CHECKPOINT_EVERY))
    if None not in (by_us, by_kai) and by_us != by_kai:
        label = f"label {kai.PREEMPTIBILITY}: {labels[kai.PREEMPTIBILITY]}"
        keys.bad(own.PREEMPTIBLE, by_us, f"the same as the {label}")
    if by_us == "false" and min_runtime_s is not None:
        keys.bad(own.MIN_RUNTIME, annotations[own.MIN_RUNTIME], f'none beside {own.PREEMPTIBLE}: "false"')
    if keys.causes:
        protected = protected or f"has a value of {keys.causes[0].field} that can't be followed"
    elif "false" in (by_us, by_kai):
        key = own.PREEMPTIBLE if by_us == "false" else kai.PREEMPTIBILITY
        protected = protected or f"is not preemptible by its {key}"
    checkpoint_s = math.inf if checkpoint_s is None else checkpoint_s
    return _terms(preempts, protected, min_runtime_s or 0.0, checkpoint_s), tuple(keys.causes)


def saved_at(meta: Metadata) -> float:
    """Return when the pod saved its work last, in seconds since the epoch; 0 if it does not say so."""
    return seconds_since_epoch((meta.annotations or {}).get(own.LAST_CHECKPOINT))


def _why_pinned(obj: PodObject) -> str:
    """Return why the pod comes back on its node, as the end of a sentence; "" if it need not."""
    if obj.is_static:
        return "is a static pod"
    owners = obj.metadata.owner_references or ()
    if any(owner.controller and owner.kind == "DaemonSet" for owner in owners):
        return "is of a DaemonSet"
    return ""


def _seconds(keys: own.Keys, key: str) -> float | None:
    """Return the duration in an annotation; None if there is none, or no readable one."""
    text = keys.text_matching(key, _DURATION, _A_DURATION)
    if text is None or (parts := _DURATION.fullmatch(text)) is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    duration_s = 3600.0 * hours + 60 * minutes + seconds
    if duration_s > OLDEST_S:
        keys.bad(key, text, _A_DURATION)
        return None
    return duration_s


@lru_cache(maxsize=1024)
def _terms(
    preempts: bool, protected: str, min_runtime_s: float = 0.0, checkpoint_s: float = math.inf
) -> Preemption:
    return Preemption(preempts, protected, min_runtime_s, checkpoint_s)
