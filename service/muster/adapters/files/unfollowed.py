"""List the fields whose meaning is known and not followed, and note those that the input has.

A pod or a job without them is decided as on a cluster. With them a cluster may decide otherwise, so a note
names the field. To follow a field later, remove its row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from muster.adapters.files.shapes import PodManifest
from muster.adapters.files.sources import Document, Object
from muster.dialects.gangs.other_systems import WAY_OUT
from muster.domain.words import listed

_NAMED = 3
"""The most names in one note."""
_KUEUE = "kueue.x-k8s.io/"
_SIDECARS = (
    "gke-gcsfuse/volumes",
    "sidecar.istio.io/inject",
    "linkerd.io/inject",
    "vault.hashicorp.com/agent-inject",
    "dapr.io/enabled",
)
"""Labels or annotations of pods by which a webhook adds a container."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of an object: its path, what to write for it, and what it means for the answer.

    With `usual`, these values mean nothing. `kinds` are the kinds of objects; () means any kind.
    """

    path: tuple[str, ...]
    effect: str
    kinds: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()


_VOLUMES = "which nodes can reach the volumes is not known here"
_OFF = "it counts only where the API server has the admission plugin {}, which is off by default"
_BUILT_IN = (
    "kubernetes.io/job-controller",
    "jobset.sigs.k8s.io/jobset-controller",
    "ray.io/kuberay-operator",
    "trainer.kubeflow.org/trainjob-controller",
    "kubeflow.org/training-operator",
    "kubeflow.org/mpi-operator",
)
_ELSEWHERE = "another controller decides when its pods are made, and in which cluster"

_OF_OBJECTS = (
    _Field(
        ("metadata", "labels", f"{_KUEUE}queue-name"),
        "Kueue decides when the job starts, and adds node labels and tolerations of a ResourceFlavor",
    ),
    _Field(
        ("metadata", "annotations", "scheduling.volcano.sh/group-min-member"),
        f"Volcano makes a PodGroup of it. Here a gang needs {WAY_OUT} on the pod template",
        ("Deployment", "ReplicaSet", "StatefulSet", "Job"),
    ),
    _Field(("spec", "managedBy"), _ELSEWHERE, usual=_BUILT_IN),
    _Field(("spec", "runPolicy", "managedBy"), _ELSEWHERE, usual=_BUILT_IN),
    _Field(
        ("spec", "runPolicy", "schedulingPolicy", "priorityClass"),
        "the pods have the priority of their spec.priorityClassName",
    ),
    _Field(("spec", "volumeClaimTemplates"), _VOLUMES),
    _Field(("spec", "leaderWorkerTemplate", "volumeClaimTemplates"), _VOLUMES),
    _Field(("spec", "volumeClaimPolicies"), _VOLUMES, ("JobSet",)),
    _Field(
        ("spec", "submitterPodTemplate"),
        "the submitter's pod comes when the cluster runs, and is not planned here",
        ("RayJob",),
    ),
    _Field(
        ("spec", "clusterSelector"),
        "the job runs on a RayCluster that is there, and no pods of it are planned here",
        ("RayJob",),
    ),
    _Field(
        ("spec", "historyServerOptions", "collectorOptions"),
        "with the feature gate RayClusterHistoryServer, KubeRay adds a container to each pod",
        ("RayCluster",),
    ),
    _Field(
        ("metadata", "annotations", "scheduler.alpha.kubernetes.io/node-selector"),
        _OFF.format("PodNodeSelector"),
        ("Namespace",),
    ),
    _Field(
        ("metadata", "annotations", "scheduler.alpha.kubernetes.io/defaultTolerations"),
        _OFF.format("PodTolerationRestriction"),
        ("Namespace",),
    ),
)


def _topology_of_kueue(pod: PodManifest) -> str:
    annotations = pod.metadata.annotations or {}
    return next(
        (f"annotation {key}" for key in sorted(annotations) if key.startswith(f"{_KUEUE}podset-")), ""
    )


def _claims(pod: PodManifest) -> str:
    claims = any(volume.persistent_volume_claim or volume.ephemeral for volume in pod.spec.volumes or ())
    return "spec.volumes with claims" if claims else ""


def _sidecar(pod: PodManifest) -> str:
    metadata = {"label": pod.metadata.labels or {}, "annotation": pod.metadata.annotations or {}}
    phrases = (
        f"{place} {key}"
        for place, values in metadata.items()
        for key in _SIDECARS
        if values.get(key, "").lower() in ("true", "enabled")
    )
    return next(phrases, "")


def _preferences(pod: PodManifest) -> str:
    affinity = pod.spec.affinity
    parts = (
        (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
        if affinity is not None
        else ()
    )
    if any(part is not None and part.preferred for part in parts):
        return "preferred affinity"
    spread = pod.spec.topology_spread_constraints or ()
    return (
        "ScheduleAnyway"
        if any(constraint.when_unsatisfiable == "ScheduleAnyway" for constraint in spread)
        else ""
    )


_OF_PODS: tuple[tuple[Callable[[PodManifest], str], str], ...] = (
    (_topology_of_kueue, "it is for Kueue: gpu.topology/scope asks for the same here"),
    (_claims, _VOLUMES),
    (_sidecar, "a webhook adds a container, and what that asks for is not known here"),
    (_preferences, "kube-scheduler's plugins score it on a cluster, and may choose other nodes"),
)
"""What finds a field of a pod → what it means for the answer."""


@dataclass(slots=True)
class Unfollowed:
    """The fields that were found, each with the names of its objects."""

    names: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def look(self, document: Document) -> None:
        """Look at a document. In one that a cluster has stored, they have had their effect."""
        meta = document.value.get("metadata")
        if isinstance(meta, dict) and not meta.get("creationTimestamp"):
            for ignored in _OF_OBJECTS:
                value = _value(document.value, ignored.path)
                if (
                    value
                    and value not in ignored.usual
                    and (not ignored.kinds or document.kind in ignored.kinds)
                ):
                    self.names[_name_of(ignored.path), ignored.effect].append(document.name)

    def notes(self, pods: Iterable[PodManifest]) -> Iterator[str]:
        """Yield a note for each field. `pods` are those that are placed here."""
        for pod in pods:
            for find, effect in _OF_PODS:
                if subject := find(pod):
                    self.names[subject, effect].append(f"Pod {pod.metadata.namespace}/{pod.metadata.name}")
        for (subject, effect), names in self.names.items():
            yield f"{listed(names, _NAMED)}: {subject} is not followed: {effect}"


def _value(value: Object, path: Iterable[str]) -> Any:
    inner: Any = value
    for step in path:
        inner = inner.get(step) if isinstance(inner, dict) else None
    return inner if isinstance(inner, str | list | dict) else None


def _name_of(path: tuple[str, ...]) -> str:
    """Return the field as users write it: "label x", "annotation x", "spec.x"."""
    if path[0] == "metadata":
        return f"{path[1].removesuffix('s')} {path[2]}"
    return ".".join(path)
