"""Write notes about the input: objects that were left out, fields that are not followed, and probable
mistakes.

If a pod or job has a field that is not followed, a cluster may decide otherwise. So a note names the field.
Without such fields the decision is that of a cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from muster.adapters.files.reading.shapes import PodManifest
from muster.adapters.files.reading.sources import Document, field_at
from muster.dialects.devices.accelerators import accelerators
from muster.dialects.gangs import misspelt
from muster.dialects.gangs.other_systems import WAY_OUT
from muster.dialects.jobs import slips
from muster.dialects.objects import PodObject
from muster.dialects.settings import DialectSettings
from muster.domain.causes.out_of_place import told_by_preset
from muster.domain.levels import FabricLevel, part_of, preset_with, scope_meant
from muster.domain.node import GPU_MEM, Node, TaintEffect
from muster.domain.pod import COMPOSITE, KUBERNETES, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup
from muster.domain.request import Scope
from muster.domain.sentences import unhealthy_sentence
from muster.domain.words import did_you_mean, list_names, nearest, plural

_SAME_VENDOR = 0.85
"""Similarity of two prefixes from which on one counts as a misspelt form of the other."""
_NAMED = 3
"""Largest number of names in one note."""


def nothing_pending(settings: DialectSettings) -> str:
    """Return the sentence for an input in which no gang was decided."""
    names = " or ".join(sorted(settings.scheduler_names))
    return (
        f"nothing to place: no pod in the input waits for a node, has schedulerName {names}, "
        "and asks for GPUs or names a gang. Add the job with -f; "
        "for pods of another scheduler name it with --scheduler-name"
    )


def about_nodes(nodes: Iterable[Node], pods: Sequence[Pod]) -> Iterator[str]:
    """Yield notes about unreadable facts of nodes, and about pods on broken GPUs or missing nodes."""
    names, preferred = set(), defaultdict[str, list[str]](list)
    for node in nodes:
        names.add(node.name)
        for taint in node.taints:
            if taint.effect == TaintEffect.PREFER_NO_SCHEDULE:
                preferred[f"{taint.key}{f'={taint.value}' if taint.value else ''}"].append(node.name)
        yield from (f"Node {node.name}: {problem}" for problem in node.problems)
        if node.unhealthy and (pods_on_broken := sorted(_pods_on_unhealthy_gpus(pods, node))):
            yield f"Node {node.name}: {unhealthy_sentence(node.unhealthy, pods_on_broken)}"
        if node.allocatable.pods <= 0:
            yield f"Node {node.name}: status.allocatable has no pods, so none can go there"
    for taint_name, tainted in preferred.items():
        nodes_text = f"{plural('Node', len(tainted))} {list_names(tainted, _NAMED)}"
        yield f"{nodes_text}: taint {taint_name}:PreferNoSchedule is not followed: it keeps no pod away here"
    stranded = [pod for pod in pods if pod.usage is not None and pod.node not in names]
    if stranded:
        missing = list_names(sorted({pod.node for pod in stranded}), _NAMED)
        yield f"{len(stranded)} {plural('pod', len(stranded))} on nodes that are not in the input: {missing}"


def about_pods(
    pods: Iterable[Pod], manifests: Mapping[str, PodObject], settings: DialectSettings
) -> Iterator[str]:
    """Yield how many pending pods are not placed, and why. `manifests` are by UID."""
    pending = [pod for pod in pods if not (pod.node or pod.finished or pod.terminating)]
    ours = [pod for pod in pending if pod.scheduler_name in settings.scheduler_names]
    if foreign_count := len(pending) - len(ours):
        names = ", ".join(sorted(settings.scheduler_names))
        theirs = list_names(
            sorted({pod.scheduler_name for pod in pending} - settings.scheduler_names), _NAMED
        )
        subject = f"{foreign_count} pending {plural('pod', foreign_count)} of other schedulers"
        yield f"{subject} not placed (ours: {names}; theirs: {theirs})"
    if gated := sum(pod.gated for pod in ours):
        yield f"{gated} pending {plural('pod', gated)} with spec.schedulingGates not placed"
    plain = [pod for pod in ours if pod.claim is None and not pod.gated]
    if plain:
        is_single = len(plain) == 1
        asks = "pod asks for no GPU and names" if is_single else "pods ask for no GPU and name"
        manifests_left = [manifests[pod.uid] for pod in plain]
        accelerators_asked = _phrase_on_accelerators(manifests_left, settings)
        yield f"{len(plain)} pending {asks} no gang: not placed here{accelerators_asked}"
        if claiming := sum(bool(manifest.spec.resource_claims) for manifest in manifests_left):
            subject = f"{claiming} of them {'has' if claiming == 1 else 'have'} ResourceClaims"
            yield (
                f"{subject}, which kube-scheduler's own plugin serves. If the pods name a gang "
                "(gpu.topology/group), their claims are planned"
            )
        for key, meant in sorted(
            {pair for pod in manifests_left for pair in misspelt.misspelt_pairs(pod.metadata)}
        ):
            yield f"the key {key} has no effect; did you mean {meant}?"
        yield from sorted(
            {sentence for pod in manifests_left for sentence in slips.fractions_on_pod(pod.metadata)}
        )


def about_groups(groups: Sequence[PodGroup], pods: Iterable[Pod]) -> Iterator[str]:
    """Yield problems of PodGroups, and PodGroups that no pod names."""
    for group in groups:
        yield from (f"{group.title}: {problem}" for problem in group.problems)
    claims = {(pod.namespace, pod.claim) for pod in pods if pod.claim is not None}
    named_by_pods = {
        (namespace, KUBERNETES, claim.topology_request.role)  # its PodGroup in the tree
        if claim.dialect == COMPOSITE
        else (namespace, claim.dialect, claim.name)
        for namespace, claim in claims
    }
    group_names = {group.name for group in groups}
    missing = [claim.name for _, claim in claims if claim.by_object and claim.name not in group_names]
    for group in groups:
        if group.key not in named_by_pods and group.makes_gang and group.dialect != COMPOSITE:
            meant = did_you_mean(group.name, missing)
            yield f"PodGroup {group.namespace}/{group.name}: no pod of ours names it{meant}"


def about_scopes(
    groups: Iterable[PodGroup], pods: Iterable[Pod], nodes: Sequence[Node], levels: tuple[FabricLevel, ...]
) -> Iterator[str]:
    """Yield a note for each scope in which no node lies, with the word that was perhaps meant.

    The decision itself names a required scope. A preferred scope without nodes is ignored, and a limit counts
    each node as a domain.
    """
    effects = {
        (f"{pod.namespace}/{pod.claim.name}", scope): effect
        for pod in pods
        if pod.claim is not None and pod.present and not pod.node
        for scope, effect in _optional_scopes(pod.claim.topology_request).items()
    }
    effects |= {
        (group.title, scope): effect
        for group in groups
        for topology_request in (group.topology_request, *group.role_topology_requests.values())
        for scope, effect in _optional_scopes(topology_request).items()
    }
    unknown = {scope for _, scope in effects} - {Scope.GPU, Scope.NVLINK_DOMAIN, Scope.NODE}
    nowhere = {scope for scope in unknown if not any(part_of(node, scope, levels) for node in nodes)}
    words = (*Scope, *(level.scope for level in levels))
    keys = {key for node in nodes for key, name in node.labels.items() if name} if nowhere else set()
    for (subject, scope), effect in effects.items():
        if scope in nowhere:
            meant = scope_meant(scope, words, keys)
            hint = told_by_preset(*preset_with(scope, keys)) or (f"; did you mean {meant}?" if meant else "")
            yield f"{subject}: no node lies in any {scope}: {effect}{hint}"


def _optional_scopes(topology_request: TopologyRequest) -> Mapping[str, str]:
    """Return each optional scope of the gang → the effect if no node lies in this scope."""
    limits = {per_scope.scope: per_scope.nowhere for per_scope in topology_request.per_scope}
    preferred = (*topology_request.preferred_scopes, *topology_request.role_preferred)
    return limits | dict.fromkeys(preferred, "that preference is passed over")


def _phrase_on_accelerators(pods: Iterable[PodObject], settings: DialectSettings) -> str:
    """Return a phrase about accelerators that are no GPUs here: MIG devices, misspelt names, others."""
    names_read = accelerators(
        {
            name
            for pod in pods
            for container in pod.spec.containers or ()
            if container.resources is not None
            for amounts in (container.resources.limits, container.resources.requests)
            for name in amounts or ()
        }
    )
    if not names_read:
        return ""
    mig = (
        "; pods that ask for MIG devices are planned in a gang"
        if any("mig-" in a for a in names_read)
        else ""
    )
    offered = (*settings.gpu_resources, GPU_MEM)
    read = ", ".join(offered)
    slips = (did_you_mean(name, _resources_of_vendor(name, offered)) for name in names_read)
    meant = "" if mig else next(filter(None, slips), "")
    return f". They ask for {list_names(names_read, _NAMED)}; what counts as a GPU is {read}{mig}{meant}"


def _resources_of_vendor(resource: str, resources: Iterable[str]) -> Iterator[str]:
    """Yield the known resources of the same vendor. A resource of another vendor is never meant."""
    vendor = resource.rpartition("/")[0]
    for name in resources:
        prefix = name.rpartition("/")[0]
        if vendor in prefix or prefix in vendor or nearest(vendor, (prefix,), _SAME_VENDOR):
            yield name


def _pods_on_unhealthy_gpus(pods: Iterable[Pod], node: Node) -> list[str]:
    """Return the pods on unhealthy GPUs of the node, as namespace/name."""
    pods_of_node = (pod for pod in pods if pod.node == node.name and pod.usage is not None)
    return [f"{p.namespace}/{p.name}" for p in pods_of_node if (p.allocation or 0) & node.unhealthy]


# --- fields whose meaning is known and not followed ----------------------------------------------

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
    """A field of an object: its path, its name for users, and its effect on the answer.

    `usual` values have no effect. `kinds` are the kinds of objects; () means any kind.
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


def _find_kueue_topology(pod: PodManifest) -> str:
    annotations = pod.metadata.annotations or {}
    return next(
        (f"annotation {key}" for key in sorted(annotations) if key.startswith(f"{_KUEUE}podset-")), ""
    )


def _find_volume_claims(pod: PodManifest) -> str:
    claims = any(volume.persistent_volume_claim or volume.ephemeral for volume in pod.spec.volumes or ())
    return "spec.volumes with claims" if claims else ""


def _find_sidecar(pod: PodManifest) -> str:
    metadata = {"label": pod.metadata.labels or {}, "annotation": pod.metadata.annotations or {}}
    phrases = (
        f"{place} {key}"
        for place, values in metadata.items()
        for key in _SIDECARS
        if values.get(key, "").lower() in ("true", "enabled")
    )
    return next(phrases, "")


def _find_preferences(pod: PodManifest) -> str:
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
    (_find_kueue_topology, "it is for Kueue: gpu.topology/scope asks for the same here"),
    (_find_volume_claims, _VOLUMES),
    (_find_sidecar, "a webhook adds a container, and what that asks for is not known here"),
    (_find_preferences, "kube-scheduler's plugins score it on a cluster, and may choose other nodes"),
)
"""Function that finds a field of a pod → the field's effect on the answer."""


def unfollowed_fields(document: Document) -> Iterator[str]:
    """Yield a note for each field of a document that is known and not followed.

    In a document that a cluster has stored, these fields have had their effect. When Muster learns to handle
    a field, delete its row here.
    """
    if not document.metadata.get("creationTimestamp"):
        for row in _OF_OBJECTS:
            value = field_at(document.value, *row.path)
            is_set = isinstance(value, str | list | dict) and value and value not in row.usual
            if is_set and (not row.kinds or document.kind in row.kinds):
                yield f"{_name_of(row.path)} is not followed: {row.effect}"


def unfollowed_fields_of_pod(pod: PodManifest) -> Iterator[str]:
    """Yield a note for each field of a pod that is known and not followed."""
    for find, effect in _OF_PODS:
        if subject := find(pod):
            yield f"{subject} is not followed: {effect}"


class NotesByObject:
    """Notes, each with the objects that it is about."""

    def __init__(self) -> None:
        self._names = defaultdict[str, list[str]](list)

    def add(self, name: str, notes: Iterable[str]) -> None:
        """Add the notes about the object of this name."""
        for note in notes:
            self._names[note].append(name)

    def __iter__(self) -> Iterator[str]:
        """Yield each note with the names of its objects."""
        return (f"{list_names(names, _NAMED)}: {note}" for note, names in self._names.items())


def _name_of(path: tuple[str, ...]) -> str:
    """Return the field as users write it: "label x", "annotation x", "spec.x"."""
    if path[0] == "metadata":
        return f"{path[1].removesuffix('s')} {path[2]}"
    return ".".join(path)
