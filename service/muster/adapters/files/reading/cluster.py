"""Turn documents into the facts of a cluster, as the service would see them after `kubectl apply`.

This module makes the additions of the API server: names, namespaces, UIDs, those of admission to pods, and
the matchLabelKeys of pod affinity in its selectors. It also checks that names are unique. Pods without a
creation time count as created after all other pods, in the order of the documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec

from muster.adapters.files.decide import Cluster
from muster.adapters.files.reading import admission, notes, other_objects, shapes, templates
from muster.adapters.files.reading import devices as devices_
from muster.adapters.files.reading.admission import Admission
from muster.adapters.files.reading.devices import Devices
from muster.adapters.files.reading.fields import misspelt_fields
from muster.adapters.files.reading.notes import NotesByObject
from muster.adapters.files.reading.other_objects import Objects
from muster.adapters.files.reading.owners import OwnerObjects
from muster.adapters.files.reading.shapes import PodManifest
from muster.adapters.files.reading.sources import (
    BadInput,
    Document,
    Malformed,
    PrintedMatrix,
    annotate,
    quote_value,
)
from muster.adapters.files.reading.templates import with_children
from muster.adapters.files.reading.workloads import with_pod_groups
from muster.dialects.gangs import native
from muster.dialects.gangs.forest import Forest
from muster.dialects.keys import MATRIX
from muster.dialects.kinds.description import MAX_PODS, JobPod, letters
from muster.dialects.kinds.table import member
from muster.dialects.nodes import nodes
from muster.dialects.objects import Metadata, NodeObject
from muster.dialects.pods import peers, pods
from muster.dialects.policies import not_a_scope_of_labels
from muster.dialects.settings import DialectSettings
from muster.domain.levels import repeated_names
from muster.domain.pod import COMPOSITE, NATIVE, Pod
from muster.domain.podgroup import PodGroup, PodGroupKey
from muster.domain.policies import Policies

_ORDER_S = 1e-3
"""Seconds between the pods of one document and the pods of the next, if no time is given."""


class _OnlyMetadata(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


@dataclass(slots=True)
class _Inputs:
    """The objects of the documents, before they become one cluster. Each pod comes with its document."""

    pods: list[tuple[Document, PodManifest]] = field(default_factory=list)
    makers: list[tuple[Document, Metadata, templates.ControllerPods]] = field(default_factory=list)
    objects: Objects = field(default_factory=Objects)
    owners: OwnerObjects = field(default_factory=OwnerObjects)
    members: dict[str, tuple[str, JobPod]] = field(default_factory=dict)
    """Pod UID → the pod's namespace, and its place in the gang of its owner."""
    printed_matrices: list[PrintedMatrix] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Kind and API group, as "Job.batch.volcano.sh" → number of objects."""
    made_up_names: list[str] = field(default_factory=list)
    unfollowed_notes: NotesByObject = field(default_factory=NotesByObject)
    misspelt_notes: NotesByObject = field(default_factory=NotesByObject)
    group_notes: NotesByObject = field(default_factory=NotesByObject)
    """About the PodGroups that are made of Jobs and Workloads."""
    notes: list[str] = field(default_factory=list)
    manifests: dict[str, PodManifest] = field(default_factory=dict)
    """The manifests by UID, as the API server would have stored them."""
    kinds: Counter[str] = field(default_factory=Counter)
    order: dict[tuple[str, str], int] = field(default_factory=dict)
    """(source, place) of a document → its number, from 1."""

    def number(self, document: Document) -> int:
        return self.order[document.source, document.place]


def cluster_of(documents: Iterable[Document | PrintedMatrix], settings: DialectSettings) -> Cluster:
    """Return the cluster that these documents describe.

    Raises:
        BadInput: A document does not have the shape of its kind, or a name is given twice. Or there is no
            node, or an entry of `settings.unique_names` is no scope of node labels.
    """
    inputs = _read_inputs(documents)
    objects, owners = inputs.objects, inputs.owners
    facts, policies = other_objects.facts_and_policies(objects, settings, inputs.notes)
    policies = _with_unique_names(policies, settings.unique_names)
    levels, topologies = policies.levels, other_objects.topologies(objects)
    with_links, replaced = annotate(objects.of("Node", NodeObject), inputs.printed_matrices, MATRIX)
    devices = Devices(objects, settings)
    all_nodes = tuple(
        nodes.read(node, settings, facts.get(name := node.metadata.name, ()), devices.offer(name))
        for node in with_links
    )
    inputs.notes += [*replaced, *owners.read(settings, levels, topologies or None)]
    admitted = Admission(objects)
    groups = other_objects.pod_groups(objects, levels, admitted.admit_group)
    forest = Forest(group for group in groups if group.dialect in NATIVE)
    all_pods = _pods(inputs, settings, devices, admitted, forest, any(node.devices for node in all_nodes))
    all_nodes = devices.with_offers(all_nodes)
    waiting = [pod.uid for pod in all_pods if pod.claim is not None and not pod.node]
    _note_unfollowed_fields(inputs, waiting)
    budgets = other_objects.disruption_budgets(objects, inputs.notes)
    manifests = [(inputs.manifests[pod.uid].metadata, pod) for pod in all_pods]
    inputs.notes += [
        *notes.about_nodes(all_nodes, all_pods),
        *notes.about_pods(all_pods, inputs.manifests, settings),
        *devices.notes(waiting),
        *_notes_of_order(inputs, all_pods),
        *inputs.group_notes,
        *notes.about_groups(groups, all_pods),
        *notes.about_scopes(groups, all_pods, all_nodes, levels),
        *owners.warnings(manifests, settings),
        *owners.differences(manifests, (group for group in groups if group.dialect != COMPOSITE)),
        *owners.ineffective_keys(manifests),
        *inputs.unfollowed_notes,
        *inputs.misspelt_notes,
        *repeated_names(all_nodes, levels, policies.naming),
    ]
    return Cluster(
        all_nodes,
        all_pods,
        (
            *_gangs(groups, forest, inputs, settings),
            *owners.groups(inputs.members.values()),
        ),
        policies,
        other_objects.labels_of_namespaces(objects, {pod.namespace for pod in all_pods}),
        tuple(inputs.notes),
        dict(sorted(inputs.skipped.items())),
        tuple(inputs.made_up_names),
        devices.facts(waiting, all_nodes),
        budgets,
    )


def _note_unfollowed_fields(inputs: _Inputs, uids: Iterable[str]) -> None:
    for manifest in (inputs.manifests[uid] for uid in uids):
        name = f"Pod {manifest.metadata.namespace}/{manifest.metadata.name}"
        inputs.unfollowed_notes.add(name, notes.unfollowed_fields_of_pod(manifest))


def _read_inputs(documents: Iterable[Document | PrintedMatrix]) -> _Inputs:
    """Return the objects of the documents.

    Raises:
        BadInput: as `cluster_of`.
    """
    inputs = _Inputs()
    problems: list[Malformed] = []
    for document in _with_names_and_children(documents, inputs, problems):
        inputs.order[document.source, document.place] = len(inputs.order) + 1
        inputs.kinds[document.kind] += 1
        try:
            _take_document(document, inputs)
        except Malformed as problem:
            problems.append(problem)
    if not problems:
        problems = [
            *_repeated_names(inputs.objects.documents),
            *_add_pods_of_controllers(inputs),
            *_repeated_names(inputs.pods),
        ]
    if problems:
        raise BadInput(problems)
    if not inputs.objects.of("Node", NodeObject):
        raise BadInput([Malformed("", "", f"{_count_kinds(inputs)}: {_NO_NODES}")])
    return inputs


def _with_names_and_children(
    documents: Iterable[Document | PrintedMatrix], inputs: _Inputs, problems: list[Malformed]
) -> list[Document]:
    """Return the objects, all with names, and the jobs and PodGroups that controllers make of them.

    If a job or Workload is ill-formed, note the problem and add nothing.
    """
    objects = list[Document]()
    for document in documents:
        if isinstance(document, PrintedMatrix):
            inputs.printed_matrices.append(document)
        else:
            objects.append(document)
    objects = list(with_names(objects, inputs.made_up_names))
    try:
        return list(with_pod_groups(list(with_children(objects)), inputs.group_notes))
    except Malformed as problem:
        problems.append(problem)
        return objects


def _with_unique_names(policies: Policies, scopes: Sequence[str]) -> Policies:
    for scope in scopes:
        if expected := not_a_scope_of_labels(scope, policies.levels):
            raise BadInput(
                [Malformed("", "--unique-names", f"expected {expected}, got {quote_value(scope)}")]
            )
    unique = tuple(sorted({*policies.naming.unique, *scopes}))
    return replace(policies, naming=replace(policies.naming, unique=unique))


_NO_NODES = (
    "there is nothing to place on. Add one file more, "
    "from `muster capture -o cluster.json` or `kubectl get nodes -o yaml`"
)


def _count_kinds(inputs: _Inputs) -> str:
    """Return how many objects the input has of each kind, for the message about an input without nodes."""
    if not inputs.kinds:
        return "the input has no object"
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(inputs.kinds.items()))
    return f"no Node in the input (it has {counts})"


def _take_document(document: Document, inputs: _Inputs) -> None:
    inputs.unfollowed_notes.add(document.name, notes.unfollowed_fields(document))
    inputs.misspelt_notes.add(document.name, misspelt_fields(document))
    if (document.group, document.kind) == ("", "Pod"):
        inputs.pods.append((document, shapes.read_pod(document)))
    elif not (inputs.objects.take(document, _READERS) or inputs.owners.take(document)):
        new_pods = _new_pods(document, inputs)
        if new_pods is None:
            inputs.notes += other_objects.old_versions(document)
            inputs.skipped[".".join(filter(None, (document.kind, document.group)))] += 1
        else:
            inputs.makers.append((document, shapes.convert(document, _OnlyMetadata).metadata, new_pods))


def _new_pods(document: Document, inputs: _Inputs) -> templates.ControllerPods | None:
    """Return the pods that an object stands for; None if its kind creates no pods that are read.

    An object that a cluster has stored must not keep other gangs from an answer. If it can't be read, it
    makes no pods, and a note says so.

    Raises:
        Malformed: No cluster has stored the object, and an API server would refuse it.
    """
    try:
        return templates.pods_of_controller(document)
    except Malformed as unreadable:
        if not document.metadata.get("uid"):
            raise
        effect = "Only its pods that are in the input count"
        inputs.notes.append(f"{document.name}: {unreadable.problem}. {effect}")
        return templates.ControllerPods()


_READERS = {("", "Node"): shapes.read_node, **other_objects.READERS, **devices_.READERS, **admission.READERS}


# --- names -----------------------------------------------------------------------------------------


def _repeated_names(items: Iterable[tuple[Document, Any]]) -> Iterator[Malformed]:
    """Yield a problem for each name that several objects have, and for each UID that several pods have."""
    firsts = dict[tuple[str, str], Document]()
    for document, item in items:
        meta, key = item.metadata, (document.group, document.name)
        if isinstance(item, PodManifest):
            key = ("", f"Pod {meta.namespace or 'default'}/{meta.name}")
        whose = "" if key[1] == document.name else f"its {key[1]} "  # the document is the pod's controller
        if document.kind not in _REPEATABLE and (first := firsts.get(key)) is not None:
            yield document.error(f"{whose}is given twice, first in {first.source}: {first.place}")
        elif isinstance(item, PodManifest) and meta.uid and (first := firsts.get(("uid", meta.uid))):
            place = f"{first.source}: {first.place}"
            yield document.error(f"metadata.uid: another pod has it too, in {place}")
        firsts.setdefault(key, document)
        firsts.setdefault(("uid", meta.uid), document)


_REPEATABLE = frozenset({"ComputeDomain", "LimitRange", "PriorityClass", "RuntimeClass"})
"""Kinds that a capture and a manifest may both have."""


def _add_pods_of_controllers(inputs: _Inputs) -> list[Malformed]:
    """Add the pods of controllers without pods. A controller has pods if any pod names it as its owner."""
    owners = {
        (item.metadata.namespace or "default", owner.kind, owner.name)
        for item in [pod for _, pod in inputs.pods] + [_OnlyMetadata(meta) for _, meta, _ in inputs.makers]
        for owner in item.metadata.owner_references or ()
        if owner.controller
    }
    owners |= {
        (pod.metadata.namespace or "default", "Deployment", pods.deployment_of(pod.metadata))
        for _, pod in inputs.pods
    }
    owners |= {
        (pod.metadata.namespace or "default", job_pod.kind, job_pod.owner)
        for _, pod in inputs.pods
        if (job_pod := member(pod.metadata)) is not None
    }
    times = Counter((document.kind, meta.namespace, meta.name) for document, meta, _ in inputs.makers)
    problems, count = [], 0
    for document, meta, new_pods in inputs.makers:
        if times[document.kind, meta.namespace, meta.name] > 1:
            problems.append(document.error("is given twice"))
            continue
        if (meta.namespace or "default", document.kind, meta.name) in owners:
            continue
        if new_pods.why_none:
            inputs.notes.append(f"{document.name} makes no pods: {new_pods.why_none}")
        count += len(new_pods.pods)
        if count > MAX_PODS:
            problems.append(document.error(f"more than {MAX_PODS:,} pods of controllers"))
            break
        inputs.pods.extend((document, pod) for pod in new_pods.pods)
    return problems


# --- facts -----------------------------------------------------------------------------------------


def _pods(
    inputs: _Inputs,
    settings: DialectSettings,
    devices: Devices,
    admitted: Admission,
    forest: Forest,
    only_devices: bool,
) -> tuple[Pod, ...]:
    """Return the pods as the API server would store them. `only_devices`: as in
    `PublishedDevices.with_claimed_devices`."""
    filled_pods, pods_in_order = list[tuple[Document, PodManifest]](), list[tuple[int, Pod]]()
    problems = list[Malformed]()
    for document, manifest in sorted(inputs.pods, key=lambda pod: inputs.number(pod[0])):
        meta = manifest.metadata
        namespace = meta.namespace or "default"
        uid = meta.uid or shapes.uid_of("Pod", namespace, meta.name)
        meta = msgspec.structs.replace(meta, namespace=namespace, uid=uid)
        try:
            filled = _store(admitted, document, msgspec.structs.replace(manifest, metadata=meta))
        except Malformed as problem:
            problems.append(problem)
            continue
        filled_pods.append((document, devices.with_claims(filled)))
    for document, filled in filled_pods:
        meta, namespace = filled.metadata, filled.metadata.namespace
        place = 0 if meta.creation_timestamp else inputs.number(document)
        inputs.manifests[filled.metadata.uid] = filled
        in_gang = inputs.owners.place_of(filled.metadata, settings)
        if in_gang is not None:
            inputs.members[filled.metadata.uid] = (namespace, in_gang)
        names_group = filled.spec.scheduling_group is not None
        group = forest.root_of(native.key_of(namespace, filled.spec)) if names_group else None
        pod = pods.read(filled, settings, in_gang, devices.claims, group)
        pod = devices.with_claimed_devices(pod, only_devices)
        if class_name := admitted.unknown_classes.get(pod.uid):
            reason = f"has PriorityClass {class_name}, which is not in the input"
            pod = replace(pod, preemption=replace(pod.preemption, protected=reason))
        pods_in_order.append((place, pod))
    if problems:
        raise BadInput(problems)
    inputs.notes.extend(admitted.notes())
    last = max((pod.created for _, pod in pods_in_order), default=0.0)
    return tuple(
        replace(pod, created=last + 1.0 + place * _ORDER_S) if place else pod for place, pod in pods_in_order
    )


def _gangs(
    groups: Iterable[PodGroup], forest: Forest, inputs: _Inputs, settings: DialectSettings
) -> Iterator[PodGroup]:
    """Yield the gangs of the groups: each PodGroup, and each tree of Kubernetes' groups as one gang. A gang
    of Kubernetes gets what its Workload adds, and a cause if it has pods of another scheduler too."""
    workloads = other_objects.workloads(inputs.objects)
    foreign: dict[PodGroupKey, tuple[str, str]] = {}
    for manifest in inputs.manifests.values():
        meta, spec = manifest.metadata, manifest.spec
        if native.counts_as_foreign(manifest, settings):
            foreign.setdefault(native.key_of(meta.namespace, spec), (meta.name, spec.scheduler_name))
    for group in groups:
        gang = forest.gang(group.key) if group.dialect in NATIVE else None
        if gang is not None:
            foreign_pods = (foreign[key] for key in forest.pod_groups_below(gang.key) if key in foreign)
            checked = native.check_scheduler(gang, next(foreign_pods, None), settings)
            yield native.add_workload(checked, workloads.get((gang.namespace, gang.workload)))
        elif group.dialect not in NATIVE:
            yield group


def _store(admitted: Admission, document: Document, pod: PodManifest) -> PodManifest:
    """Return a pod as the API server stores it."""
    pod = admitted.admit(document, pod)
    spec = pod.spec
    if spec.affinity is not None or not spec.scheduler_name:
        affinity = peers.as_stored(spec.affinity, pod.metadata.labels or {})
        name = spec.scheduler_name or "default-scheduler"
        spec = msgspec.structs.replace(spec, scheduler_name=name, affinity=affinity)
    return msgspec.structs.replace(pod, spec=spec)


def _notes_of_order(inputs: _Inputs, read_pods: Iterable[Pod]) -> list[str]:
    """Return a note for each controller that creates a gang's pods one by one, so that the gang never
    completes."""
    in_gangs = {(p.namespace, p.name) for p in read_pods if p.claim is not None and not p.claim.lone}
    return [
        f"{document.name}: its pods come one after another, so a gang of them would wait for ever "
        "in a cluster: set spec.podManagementPolicy to Parallel"
        for document, meta, new_pods in inputs.makers
        if new_pods.ordered
        and any((meta.namespace or "default", p.metadata.name) in in_gangs for p in new_pods.pods)
    ]


# --- names that are made up ----------------------------------------------------------------------

_MAX_PREFIX = 58
"""Number of characters of generateName that the API server uses."""


def with_names(documents: Iterable[Document], made_up_names: list[str]) -> Iterator[Document]:
    """Yield the documents, each with a name. Append the names that are made up to `made_up_names`.

    The names end with letters that count up, so that the same file gives the same names.
    """
    objects = list(documents)
    keys = {(document.group, *document.key) for document in objects}
    for document in objects:
        prefix = document.metadata.get("generateName")
        if document.metadata.get("name") or not isinstance(prefix, str) or not prefix:
            yield document
            continue
        place = (document.group, document.kind, document.key.namespace)
        names = (prefix[:_MAX_PREFIX] + letters(number) for number in count())
        name = next(name for name in names if (*place, name) not in keys)
        keys.add((*place, name))
        metadata = {**document.metadata, "name": name}
        with_name = replace(document, value={**document.value, "metadata": metadata})
        made_up_names.append(with_name.name)
        yield with_name
