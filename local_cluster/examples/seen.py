"""What the API server says of an example, as data: where its pods are, and what was said about them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from local_cluster.api import Object
from local_cluster.demo.facts import ALLOCATION
from local_cluster.examples.catalogue import Outcome

SCHEDULER = "muster"
WRITTEN = ("ALIYUN_COM_", "scheduler.framework.gpushare.")
"""Beginnings of the annotations that Muster writes for device plugins of others."""


@dataclass(frozen=True, slots=True)
class Held:
    """One bound pod. `units` is what it has of each GPU, GiB; empty where its GPUs are its own as a whole."""

    pod: str
    node: str
    gpus: tuple[int, ...]
    units: Mapping[int, int]
    written: Mapping[str, str]

    @property
    def phrase(self) -> str:
        """Return the GPUs as words, with the memory of slices."""
        if self.units:
            return ", ".join(f"GPU {gpu}: {units} GiB" for gpu, units in sorted(self.units.items()))
        if not self.gpus:
            return "no GPU"
        return f"GPU{'s' if len(self.gpus) > 1 else ''} {' '.join(map(str, self.gpus))}"


@dataclass(frozen=True, slots=True)
class Said:
    """Equal events on several objects."""

    reason: str
    message: str
    about: tuple[str, ...]


def ours(pods: Iterable[Object]) -> list[Object]:
    """Return the pods that Muster schedules."""
    return [pod for pod in pods if pod["spec"].get("schedulerName") == SCHEDULER]


def held(pod: Object) -> Held | None:
    """What a bound pod has; None before it is bound."""
    if not pod["spec"].get("nodeName"):
        return None
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    allocation = json.loads(annotations.get(ALLOCATION, "{}"))
    return Held(
        pod=str(pod["metadata"]["name"]),
        node=str(pod["spec"]["nodeName"]),
        gpus=tuple(allocation.get("gpus", ())),
        units={int(gpu): int(units) for gpu, units in (allocation.get("gpu_mem") or {}).items()},
        written={key: text for key, text in sorted(annotations.items()) if key.startswith(WRITTEN)},
    )


def outcome(pods: Sequence[Object], events: Iterable[Object]) -> Outcome:
    """What has come of these pods so far; the reason is that of the last event on one that does not run."""
    waiting = {pod["metadata"]["name"] for pod in pods if not runs(pod)}
    reasons = [
        event["reason"] for event in topology(events) if event["involvedObject"].get("name") in waiting
    ]
    return Outcome(len(pods) - len(waiting), len(pods), reasons[-1] if reasons else "")


def told(pods: Iterable[Object], events: Iterable[Object]) -> bool:
    """Whether all has been said: an event, and a condition on each pod that nothing can help but a change of
    the cluster or of the pods. Events are the gang's: its first pod has one, the others need not."""
    pods = list(pods)
    names = {pod["metadata"]["name"] for pod in pods}
    reasons = [event["reason"] for event in topology(events) if event["involvedObject"].get("name") in names]
    if pods and not reasons:
        return False
    return all(runs(pod) or reasons[-1] == "TopologyWaiting" or condition(pod) for pod in pods)


def counted(groups: Iterable[Object], expected: Outcome) -> bool:
    """Whether the status of these PodGroups says so; it is written a second later than things happen."""
    statuses = [group.get("status") or {} for group in groups]
    return all(
        (status.get("present"), status.get("running")) == (expected.pods, expected.running)
        for status in statuses
    )


def runs(pod: Object) -> bool:
    """Return whether the pod is running."""
    return bool(pod.get("status", {}).get("phase") == "Running")


def condition(pod: Object) -> str:
    """Why the pod is not scheduled, as `kubectl describe pod` has it; "" where nothing is said."""
    for entry in pod.get("status", {}).get("conditions") or ():
        if entry["type"] == "PodScheduled" and entry["status"] == "False" and entry.get("message"):
            return f"{entry.get('reason')}: {entry['message']}"
    return ""


def topology(events: Iterable[Object]) -> list[Object]:
    """What `kubectl get events | grep -i topology` finds by its reason."""
    return [event for event in events if str(event.get("reason", "")).startswith("Topology")]


def said(events: Iterable[Object]) -> list[Said]:
    """The events, equal ones together, in the order in which they came first; of a gang's, its pods lead:
    the API server has them in any order."""
    about: dict[tuple[str, str], list[str]] = {}
    for event in topology(events):
        on = event["involvedObject"]
        name = f"{str(on['kind']).lower()} {on['name']}"
        about.setdefault((event["reason"], " ".join(str(event["message"]).split())), []).append(name)
    return [
        Said(reason, message, tuple(sorted(dict.fromkeys(names), key=_a_group)))
        for (reason, message), names in about.items()
    ]


def _a_group(subject: str) -> bool:
    return not subject.startswith("pod ")
