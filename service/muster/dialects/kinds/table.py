"""List the known kinds, and find the kind that a pod belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import get_args

from muster.dialects.kinds import batch, jobset, kubeflow, leaderworkerset, ray
from muster.dialects.kinds.description import JobPod, Kind
from muster.dialects.objects import Metadata
from muster.dialects.settings import Mode

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        kind.kind: kind
        for kind in (
            *kubeflow.KINDS,
            jobset.JOB_SET,
            leaderworkerset.LEADER_WORKER_SET,
            ray.RAY_CLUSTER,
            batch.JOB,
            batch.STATEFUL_SET,
        )
    }
)
"""The kinds by name. A pod belongs to the first kind that knows it, because a pod of a JobSet is also a pod
of a Job."""


MAKERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {"RayJob": ("ray.io", ("v1", "v1alpha1")), "TrainJob": ("trainer.kubeflow.org", ("v1alpha1",))}
)
"""Kinds whose objects make objects of `KINDS`, with their API group and versions."""

GANG_KEYS = tuple(dict.fromkeys(kind.label for kind in KINDS.values() if kind.label))
"""Labels for which the shim holds a pod: a launcher without GPUs does not start before its workers."""

MEMBER_KEYS = (*GANG_KEYS, jobset.REPLICATED_JOB, kubeflow.JOB_ROLE, kubeflow.OPERATOR, ray.RAY_GROUP)
"""Labels by which a pod's place in its job is read. The labels of its rank are in `ranks.KEYS`."""


def member(meta: Metadata) -> JobPod | None:
    """Return the place of a pod by its controller's labels; None if no kind knows the pod."""
    if not meta.owner_references:
        return None
    return next((place for kind in KINDS.values() if (place := kind.member(meta)) is not None), None)


def modes_of(texts: Iterable[str]) -> tuple[tuple[str, Mode], ...]:
    """Return `DialectSettings.infer_gangs` from texts like "on" and "Job=on".

    Raises:
        ValueError: A text has another form. The message says what is expected.
    """
    modes: dict[str, Mode] = {}
    for text in texts:
        kind, _, word = text.rpartition("=")
        mode = next((mode for mode in get_args(Mode) if mode == word), None)
        if mode is None:
            raise ValueError(f"expected {', '.join(get_args(Mode))}, got {word!r}")
        if kind and kind != "default" and kind not in KINDS:
            raise ValueError(f"expected a kind of {', '.join(KINDS)}, got {kind!r}")
        modes[kind or "default"] = mode
    return tuple(sorted(modes.items()))
