"""Describe the kinds of Kubernetes itself: Job and StatefulSet."""

from __future__ import annotations

from muster.dialects.gangs import kai
from muster.dialects.gangs.ranks import COMPLETION_INDEX, POD_INDEX
from muster.dialects.kinds.description import (
    Described,
    JobObject,
    JobPod,
    JobRole,
    Kind,
    NewPod,
    check_pod_count,
    controller_of,
    letters,
    why_idle,
)
from muster.dialects.objects import CustomObject, Metadata
from muster.dialects.reading import Fields

JOB_NAMES = ("job-name", "batch.kubernetes.io/job-name")


def at_once(spec: Fields) -> tuple[int, bool]:
    """Return how many pods of a Job run at the same time, and whether these are all its pods."""
    parallelism, completions = spec.natural("parallelism"), spec.natural("completions")
    parallel = check_pod_count(spec, "parallelism", 1 if parallelism is None else parallelism)
    if completions is None:
        return parallel, parallel == 1
    return min(parallel, completions), parallel >= completions


def job(owner: JobObject) -> Described:
    """Describe a Job.

    All its pods must start together if they all run at once, and are numbered or have a topology constraint.
    Any other Job starts with the pods that fit, as with KAI. KAI's batch-min-member sets another number.
    """
    spec = owner.spec
    count, all_there = at_once(spec)
    indexed = spec.text("completionMode") == "Indexed"
    starts_together = all_there and (indexed or kai.asks_for_topology(owner.meta))
    least = kai.min_member(spec, owner.meta.annotations, count) or (
        count if starts_together else min(1, count)
    )
    if all_there:
        count = max(0, count - (owner.status.natural("succeeded") or 0))
    template = spec.raw("template")
    labels = dict.fromkeys(JOB_NAMES, owner.name)

    def pod(_: int, number: int) -> NewPod:
        if not indexed:
            return NewPod(f"{owner.name}-{letters(number)}", labels)
        index = {COMPLETION_INDEX: str(number)}
        return NewPod(f"{owner.name}-{number}-{letters(number)}", {**labels, **index}, index)

    role = JobRole("", count, min(least, count), template, "spec.template", pod)
    change = "set spec.completionMode to Indexed" if all_there and not starts_together else ""
    return Described((role,), idle=why_idle(owner, spec.raw("suspend")), change=change)


def count_succeeded(obj: CustomObject) -> int:
    """Return how many pods of a Job have succeeded, if all its pods run at once; else 0.

    Such a Job makes no succeeded pod again, even if the pod is deleted: its controller counts succeeded pods
    in the status. Other Jobs send their pods in waves, and the status does not say which wave a pod belonged
    to.
    """
    owner = JobObject.of("Job", obj)
    _, all_there = at_once(owner.spec)
    return (owner.status.natural("succeeded") or 0) if all_there else 0


def stateful_set(owner: JobObject) -> Described:
    """Describe a StatefulSet. With the policy OrderedReady, its controller makes each pod when the previous
    pod runs."""
    spec = owner.spec
    replicas = spec.natural("replicas")
    count = check_pod_count(spec, "replicas", 1 if replicas is None else replicas)
    start = spec.part("ordinals").natural("start") or 0
    parallel = spec.text("podManagementPolicy") == "Parallel"

    def pod(_: int, number: int) -> NewPod:
        ordinal = str(start + number)
        name = f"{owner.name}-{ordinal}"
        return NewPod(name, {POD_INDEX: ordinal, "statefulset.kubernetes.io/pod-name": name})

    least = count if parallel else min(1, count)
    role = JobRole("", count, least, spec.raw("template"), "spec.template", pod)
    change = "" if parallel else "set spec.podManagementPolicy to Parallel"
    return Described((role,), ordered=count > 1 and not parallel, change=change)


def _controlled_by(kind: str, group: str, meta: Metadata) -> JobPod | None:
    controller_group, controller_kind, name = controller_of(meta)
    return JobPod(kind, name, name) if (controller_group, controller_kind) == (group, kind) else None


JOB = Kind(
    "batch",
    ("v1",),
    "Job",
    "jobs",
    job,
    lambda meta: _controlled_by("Job", "batch", meta),
    fields=("completionMode", "completions", "parallelism"),
)
STATEFUL_SET = Kind(
    "apps",
    ("v1",),
    "StatefulSet",
    "statefulsets",
    stateful_set,
    lambda meta: _controlled_by("StatefulSet", "apps", meta),
    fields=("ordinals", "podManagementPolicy", "start"),
)
