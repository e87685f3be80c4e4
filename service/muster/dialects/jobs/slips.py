"""Find ineffective keys on jobs and pods.

On jobs, misspelt keys of KAI and our annotations are ineffective. On pods, KAI's annotations are ineffective
if the gang is not read from a job. So are other systems' keys for gangs that we do not know, and HAMi's keys
for the choice and the shares of a GPU. A misspelt key of KAI is a cause, because a constraint would be lost
silently. Our annotations count only on the pod template. Misspelt keys on a pod template are found on its
pods (`misspelt`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from muster.dialects.gangs import kai, misspelt, other_systems, own
from muster.dialects.kinds.table import member
from muster.dialects.objects import Metadata
from muster.dialects.reading import LABEL, SHOWN, Fields
from muster.domain.pod import Pod

_INSTEAD = {
    kai.REQUIRED: own.SCOPE,
    kai.PREFERRED: own.PREFERRED_SCOPES,
    kai.SEGMENT_SIZE: own.SEGMENT_SIZE,
    kai.SEGMENT_REQUIRED: own.SEGMENT_SCOPE,
    kai.MIN_MEMBER: own.MIN_MEMBER,
}
"""KAI's annotations that count only in a job → our annotation of the same meaning."""


_HAMI = "nvidia.com/"
_BY_PRODUCT = "select nodes by the label nvidia.com/gpu.product"
_BY_NODE = "GPUs are not chosen by their UUIDs, only nodes by their labels"
_OF_HAMI = {
    f"{_HAMI}use-gputype": _BY_PRODUCT,
    f"{_HAMI}nouse-gputype": _BY_PRODUCT,
    f"{_HAMI}use-gpuuuid": _BY_NODE,
    f"{_HAMI}nouse-gpuuuid": _BY_NODE,
}
"""HAMi's annotations that choose GPUs (pkg/device/nvidia of Project-HAMi/HAMi) → what to do instead."""
_SHARES_OF_HAMI = (f"{_HAMI}gpumem", f"{_HAMI}gpumem-percentage", f"{_HAMI}gpucores")
"""Resources that no node offers, because HAMi's scheduler counts them."""


def meant_keys(keys: Iterable[str], max_keys: int = misspelt.MAX_COMPARED) -> Mapping[str, str]:
    """Return ineffective key on a job → the key that was probably meant; "" if that is unknown.

    At most `max_keys` keys are compared, keys with our own prefix first.
    """
    known_keys = misspelt.known_keys()
    unknown = (key for key in keys if key.startswith(own.PREFIX) or key not in known_keys)
    ordered = sorted(unknown, key=lambda key: (not key.startswith((own.PREFIX, kai.JOB_PREFIX)), key))
    return {key: right for key in islice(ordered, max_keys) if (right := _meant_key(key)) is not None}


def _meant_key(key: str) -> str | None:
    """Return the key that was meant, "" if that is unknown; None for a key of another system."""
    if key in own.KEYS:
        return key
    right = misspelt.meant_key(key)
    if right in own.KEYS or right.startswith(kai.JOB_PREFIX):
        return right
    return "" if key.startswith(own.PREFIX) else None


def note_misspelt(fields: Fields, place: str, texts: Mapping[str, str]) -> None:
    """Note a problem for each misspelt key of KAI, and for each of KAI's annotations among the labels."""
    for key in texts.keys() & _INSTEAD.keys() if place == LABEL else ():
        fields.bad_value(f"{place} {key}", texts[key], "none: it is an annotation")
    for key, right in meant_keys(texts).items():
        if right.startswith(kai.JOB_PREFIX):
            fields.bad_value(f"{place} {key[:SHOWN]}", texts[key], f"none: did you mean {right}?")


def has_misspelt_kai_key(keys: Iterable[str]) -> bool:
    """Return whether a misspelt key of KAI is among these."""
    return any(right.startswith(kai.JOB_PREFIX) for right in meant_keys(keys).values())


def own_keys_on_job(keys: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each of our annotations on a job."""
    for key, right in meant_keys(keys).items():
        if key == right:
            yield f"{key} has no effect on the job: it belongs on the pod template"
        elif right in own.KEYS:
            yield f"{key[:SHOWN]} has no effect on the job: {right} belongs on the pod template"
        elif key.startswith(own.PREFIX):
            yield f"{key[:SHOWN]} has no effect on the job"


def ineffective_on_pod(meta: Metadata, pod: Pod) -> Iterator[str]:
    """Yield a sentence for each ineffective key on a waiting pod of ours.

    KAI's annotations are ineffective if the gang is read neither from a job nor from a PodGroup. If the pod
    is in no gang, keys that resemble an unknown system's keys for gangs are ineffective too.
    """
    if pod.claim is None or pod.claim.by_object or pod.node or pod.finished:
        return
    if pod.claim.lone:
        yield from other_systems.unknown_gang_keys(meta, misspelt.known_keys())
    for key, ours in _INSTEAD.items():
        if key in (meta.annotations or {}):
            yield f"annotation {key} has no effect, since the gang is not read from a job: write {ours}"
    for key, instead in _OF_HAMI.items():
        if key in (meta.annotations or {}):
            yield f"annotation {key} has no effect, since it is for HAMi's scheduler: {instead}"
    if shares := [resource for resource, _ in pod.resources.others if resource in _SHARES_OF_HAMI]:
        yield f"{' and '.join(shares)} are for HAMi's scheduler: ask for aliyun.com/gpu-mem in place of GPUs"
    yield from fractions_on_pod(meta)


def fractions_on_pod(meta: Metadata) -> Iterator[str]:
    """Yield a sentence for each key of KAI for a part of a GPU. For the pods of a known job, see the job."""
    if member(meta) is None:
        yield from kai.unread_fractions(meta.annotations or {})
