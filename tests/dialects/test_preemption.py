"""What a pod states about preemption: annotations, KAI's label, and the facts of its end."""

from __future__ import annotations

import math
from typing import Any

import pytest

from muster.dialects.gangs.own import MAX_CHARACTERS, PREFIX
from muster.dialects.pods.pods import LONG_AGO, MAX_FINALIZERS, read
from muster.domain.pod import Controller
from muster.domain.preemption import NO_TERMS, Preemption
from muster.domain.sentences import sentence
from tests.dialects.objects import pod_object

GPU = {"nvidia.com/gpu": 1}
KAI = "kai.scheduler/preemptibility"
NEVER = "is not preemptible by its gpu.topology/preemptible"
NOT_IN_KAI = f"is not preemptible by its {KAI}"
UNREADABLE = "has a value of gpu.topology/{} that can't be followed"
NOON = 1767268800.0
"""2026-01-01T12:00:00Z"""


def ours(**annotations: str) -> dict[str, Any]:
    """`min_runtime="30m"` → gpu.topology/min-runtime: 30m."""
    keys = {PREFIX + key.replace("_", "-"): text for key, text in annotations.items()}
    return {"annotations": keys}


def owner(kind: str) -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": True}
    return {"ownerReferences": [reference]}


GOOD: dict[str, tuple[dict[str, Any], Preemption]] = {
    "nothing": ({}, NO_TERMS),
    "not preemptible": (ours(preemptible="false"), Preemption(protected=NEVER)),
    "preemptible": (ours(preemptible="true"), NO_TERMS),
    "spaces": (ours(preemptible=" false\n"), Preemption(protected=NEVER)),
    "minutes": (ours(min_runtime="30m"), Preemption(min_runtime_s=1800)),
    "hours and seconds": (ours(min_runtime="1h5s"), Preemption(min_runtime_s=3605)),
    "hours, minutes and seconds": (ours(min_runtime="1h30m10s"), Preemption(min_runtime_s=5410)),
    "no time": (ours(min_runtime="0s"), NO_TERMS),
    "a year": (ours(min_runtime="8784h"), Preemption(min_runtime_s=366 * 86_400)),
    "checkpoints": (ours(checkpoint_every="600s"), Preemption(checkpoint_s=600)),
    "preemptible after a time": (
        ours(preemptible="true", min_runtime="1m", checkpoint_every="2m"),
        Preemption(min_runtime_s=60, checkpoint_s=120),
    ),
    "KAI: preemptible": ({"labels": {KAI: "preemptible"}}, NO_TERMS),
    "KAI: non-preemptible": ({"labels": {KAI: "non-preemptible"}}, Preemption(protected=NOT_IN_KAI)),
    "KAI: semi-preemptible": ({"labels": {KAI: "semi-preemptible"}}, Preemption(protected=NOT_IN_KAI)),
    "KAI: a value that KAI ignores": ({"labels": {KAI: "Non-Preemptible"}}, NO_TERMS),
    "KAI: no value": ({"labels": {KAI: ""}}, NO_TERMS),
    "both say no": (
        {**ours(preemptible="false"), "labels": {KAI: "non-preemptible"}},
        Preemption(protected=NEVER),
    ),
    "of a DaemonSet": (owner("DaemonSet"), Preemption(protected="is of a DaemonSet")),
    "of a DaemonSet, and preemptible": (
        {**owner("DaemonSet"), **ours(preemptible="true")},
        Preemption(protected="is of a DaemonSet"),
    ),
    "of a Job": (owner("Job"), NO_TERMS),
    "preemptionPolicy Never": ({"spec": {"preemptionPolicy": "Never"}}, Preemption(preempts=False)),
    "preemptionPolicy": ({"spec": {"preemptionPolicy": "PreemptLowerPriority"}}, NO_TERMS),
}


@pytest.mark.parametrize(("pod_fields", "terms"), GOOD.values(), ids=GOOD.keys())
@pytest.mark.parametrize("node", ["", "a"], ids=["waits", "runs"])
@pytest.mark.parametrize("scheduler", ["muster", "another"])
def test_what_a_pod_states(pod_fields: dict[str, Any], terms: Preemption, node: str, scheduler: str) -> None:
    pod = read(pod_object(limits=GPU, node=node, scheduler=scheduler, **pod_fields))
    assert (pod.preemption, pod.causes) == (terms, ())


LATER = "expected hours, minutes and seconds, as in 1h30m, 30m or 90s, at most 366 days"
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "neither true nor false": (ours(preemptible="no"), "preemptible", 'is "no", expected "true" or "false"'),
    "an empty value": (ours(preemptible=""), "preemptible", 'is "", expected "true" or "false"'),
    "no unit": (ours(min_runtime="30"), "min-runtime", f'is "30", {LATER}'),
    "another unit": (ours(min_runtime="2d"), "min-runtime", f'is "2d", {LATER}'),
    "negative": (ours(min_runtime="-5m"), "min-runtime", f'is "-5m", {LATER}'),
    "a fraction": (ours(min_runtime="1.5h"), "min-runtime", f'is "1.5h", {LATER}'),
    "empty": (ours(min_runtime=""), "min-runtime", f'is "", {LATER}'),
    "more than a year": (ours(min_runtime="8785h"), "min-runtime", f'is "8785h", {LATER}'),
    "digits of another script": (ours(min_runtime="٣m"), "min-runtime", f'is "٣m", {LATER}'),
    "the largest number of digits": (ours(checkpoint_every="999999h"), "checkpoint-every", LATER),
    "too long": (ours(checkpoint_every="1" * (MAX_CHARACTERS + 1)), "checkpoint-every", "1,024 characters"),
    "never, and after a time": (
        ours(preemptible="false", min_runtime="1h"),
        "min-runtime",
        'is "1h", expected none beside gpu.topology/preemptible: "false"',
    ),
    "KAI says no": (
        {**ours(preemptible="true"), "labels": {KAI: "non-preemptible"}},
        "preemptible",
        f'is "true", expected the same as the label {KAI}: non-preemptible',
    ),
    "KAI says yes": (
        {**ours(preemptible="false"), "labels": {KAI: "preemptible"}},
        "preemptible",
        f'is "false", expected the same as the label {KAI}: preemptible',
    ),
}


@pytest.mark.parametrize(("pod_fields", "key", "problem"), BAD.values(), ids=BAD.keys())
def test_a_bad_value_refuses_a_waiting_pod_and_protects_a_running_one(
    pod_fields: dict[str, Any], key: str, problem: str
) -> None:
    waiting, running = (read(pod_object(limits=GPU, node=node, **pod_fields)) for node in ("", "a"))
    assert problem in sentence(waiting.causes)
    assert f"gpu.topology/{key} is" in sentence(waiting.causes)
    assert running.causes == ()
    assert running.preemption.protected == UNREADABLE.format(key)


def test_a_key_on_a_pod_of_another_scheduler_is_no_cause() -> None:
    pod = read(pod_object(limits=GPU, scheduler="another", **ours(preemptible="no")))
    assert (pod.causes, pod.preemption.protected) == ((), UNREADABLE.format("preemptible"))


def test_pods_that_state_the_same_share_one_object() -> None:
    first, second = (read(pod_object(limits=GPU, **ours(min_runtime="30m"))) for _ in range(2))
    assert first.preemption is second.preemption


def test_a_static_pod_is_protected() -> None:
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}, **owner("Node")}
    assert read(pod_object(node="a", **mirror)).preemption.protected == "is a static pod"


CHECKPOINTS: dict[str, tuple[str, float]] = {
    "UTC": ("2026-01-01T12:00:00Z", NOON),
    "an offset": ("2026-01-01T13:00:00+01:00", NOON),
    "a fraction of a second": ("2026-01-01T12:00:00.250Z", NOON + 0.25),
    "no offset is UTC": ("2026-01-01T12:00:00", NOON),
    "no time": ("yesterday", 0.0),
    "seconds": ("1767268800", 0.0),
    "a year that no clock has": ("0001-01-01T00:00:00+23:59", 0.0),
    "empty": ("", 0.0),
}


@pytest.mark.parametrize(("text", "saved"), CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def test_when_a_running_pod_saved_its_work(text: str, saved: float) -> None:
    pod_fields = ours(last_checkpoint=text)
    running, waiting = (read(pod_object(limits=GPU, node=node, **pod_fields)) for node in ("a", ""))
    assert (running.saved, running.causes) == (saved, ())
    assert (waiting.saved, waiting.causes) == (0.0, ())


ENDS: dict[str, tuple[dict[str, Any], float, tuple[str, ...]]] = {
    "it runs": ({"finalizers": ["example.com/a"]}, 0.0, ()),
    "it ends": ({"deletionTimestamp": "2026-01-01T12:00:00Z"}, NOON, ()),
    "it waits for a finalizer": (
        {"deletionTimestamp": "2026-01-01T12:00:00Z", "finalizers": ["example.com/a", "example.com/b"]},
        NOON,
        ("example.com/a", "example.com/b"),
    ),
    "many long finalizers": (
        {"deletionTimestamp": "2026-01-01T12:00:00Z", "finalizers": ["x" * 300] * 100},
        NOON,
        ("x" * 253,) * MAX_FINALIZERS,
    ),
    "no time": ({"deletionTimestamp": "soon"}, LONG_AGO, ()),
}


@pytest.mark.parametrize(("metadata", "ends", "finalizers"), ENDS.values(), ids=ENDS.keys())
def test_when_a_pod_on_a_node_ends(
    metadata: dict[str, Any], ends: float, finalizers: tuple[str, ...]
) -> None:
    pod = read(pod_object(limits=GPU, node="a", **metadata))
    assert (pod.ends, pod.finalizers, pod.terminating) == (ends, finalizers, "deletionTimestamp" in metadata)
    assert read(pod_object(limits=GPU, **metadata)).ends == 0.0


def test_the_controller_of_a_bound_pod_of_another_scheduler_is_known() -> None:
    bound, waiting = (
        read(pod_object(limits=GPU, node=node, scheduler="another", **owner("Job"))) for node in ("a", "")
    )
    assert bound.controller == Controller("apps/v1", "Job", "o", "o")
    assert waiting.controller is None


def test_an_interval_of_checkpoints_that_is_not_stated_has_no_end() -> None:
    assert NO_TERMS.checkpoint_s == math.inf
