"""Turn documents into the facts of a cluster, as the service would see them after `kubectl apply`.

This module adds what the API server adds: names, namespaces, UIDs, what admission adds to pods, and the
matchLabelKeys of pod affinity in its selectors. It also checks that names are unique. Pods without a creation
time count as created after all that have one, in the order of the documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from muster.adapters.files import names, notes, shapes, templates
from muster.adapters.files.admission import Admission
from muster.adapters.files.children import with_children
from muster.adapters.files.decide import ClaimFacts
from muster.adapters.files.devices import DeviceObjects, Devices
from muster.adapters.files.fields import Misspelt
from muster.adapters.files.other_objects import OtherObjects
from muster.adapters.files.owners import Owners
from muster.adapters.files.printed import Printed, annotated
from muster.adapters.files.problems import BadInput, Malformed, shown
from muster.adapters.files.shapes import PodManifest
from muster.adapters.files.sources import Document
from muster.adapters.files.unfollowed import Unfollowed
from muster.dialects import nodes, peers, pods
from muster.dialects.kinds.description import MAX_PODS, Member
from muster.dialects.kinds.table import member
from muster.dialects.objects import Metadata, NodeObject
from muster.dialects.policies import not_a_scope_of_labels
from muster.dialects.settings import Settings
from muster.domain.node import Node
from muster.domain.peers import Labels
from muster.domain.pod import Pod
from muster.domain.podgroup import PodGroup
from muster.domain.policies import DEFAULT_POLICIES, Policies
from muster.domain.repeated import repeated_names

_ORDER_S = 1e-3
"""Seconds between the pods of one document and those of the next, if no time is given."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The facts, and what to tell about the input: `notes` are sentences, and `skipped` counts objects by
    kind and API group, as "Job.batch.volcano.sh".
    """

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    pod_groups: tuple[PodGroup, ...] = ()
    policies: Policies = DEFAULT_POLICIES
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    """The labels of each namespace."""
    notes: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    made_up: tuple[str, ...] = ()
    """The objects with generateName, whose names here are made up."""
    claims: ClaimFacts = field(default_factory=ClaimFacts)


class _OnlyMetadata(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


@dataclass(slots=True)
class _Found:
    """The objects of the documents, before they are one cluster. Pods come with the document that they are
    from.
    """

    nodes: list[tuple[Document, NodeObject]] = field(default_factory=list)
    pods: list[tuple[Document, PodManifest]] = field(default_factory=list)
    makers: list[tuple[Document, Metadata, templates.Made]] = field(default_factory=list)
    other: OtherObjects = field(default_factory=OtherObjects)
    devices: DeviceObjects = field(default_factory=DeviceObjects)
    owners: Owners = field(default_factory=Owners)
    members: dict[str, tuple[str, Member]] = field(default_factory=dict)
    """By UID of a pod: its namespace, and its place in the gang of its owner."""
    printed: list[Printed] = field(default_factory=list)
    admission: Admission = field(default_factory=Admission)
    skipped: Counter[str] = field(default_factory=Counter)
    """Objects by kind and API group, as "Job.batch.volcano.sh"."""
    made_up: list[str] = field(default_factory=list)
    unfollowed: Unfollowed = field(default_factory=Unfollowed)
    misspelt: Misspelt = field(default_factory=Misspelt)
    notes: list[str] = field(default_factory=list)
    manifests: dict[str, PodManifest] = field(default_factory=dict)
    """The manifests by UID, as the API server would have stored them."""
    kinds: Counter[str] = field(default_factory=Counter)
    order: dict[tuple[str, str], int] = field(default_factory=dict)
    """(source, place) of a document → its number, from 1."""

    def number(self, document: Document) -> int:
        return self.order[document.source, document.place]


def cluster_of(documents: Iterable[Document | Printed], settings: Settings) -> Cluster:
    """Return the cluster that these documents describe.

    Raises:
        BadInput: A document does not have the shape of its kind. Or a name is given twice, or there is no
            node, or an entry of `settings.unique_names` is no scope that node labels name.
    """
    found = _found(documents)
    facts, policies = found.other.said(settings, found.notes)
    policies = _with_unique(policies, settings.unique_names)
    with_links, replaced = annotated([node for _, node in found.nodes], found.printed, settings.matrix)
    found.notes.extend(replaced)
    devices = found.devices.read(settings)
    seen_nodes = tuple(
        nodes.read(node, settings, facts.get(name := node.metadata.name, ()), devices.offer(name))
        for node in with_links
    )
    found.notes.extend(found.owners.read(settings, policies.levels, found.other.topologies_by_name()))
    seen_pods = _pods(found, settings, devices, any(node.devices for node in seen_nodes))
    seen_nodes = devices.offered(seen_nodes)
    inferred = found.owners.groups(found.members.values())
    groups = found.other.groups(policies.levels)
    found.notes.extend(notes.about_nodes(seen_nodes, seen_pods))
    found.notes.extend(notes.about_pods(seen_pods, found.manifests, settings))
    waiting = [pod.uid for pod in seen_pods if pod.claim is not None and not pod.node]
    found.notes.extend(devices.notes(waiting))
    found.notes.extend(_ordered(found, seen_pods))
    found.notes.extend(notes.about_groups(groups, seen_pods))
    found.notes.extend(notes.about_scopes(groups, seen_pods, seen_nodes, policies.levels))
    manifests = [(found.manifests[pod.uid].metadata, pod) for pod in seen_pods]
    found.notes.extend(found.owners.warnings(manifests, settings))
    found.notes.extend(found.owners.differences(manifests, groups))
    found.notes.extend(found.owners.ignored(manifests))
    ours = [found.manifests[pod.uid] for pod in seen_pods if pod.claim is not None and not pod.node]
    found.notes.extend(found.unfollowed.notes(ours))
    found.notes.extend(found.misspelt.notes())
    found.notes.extend(repeated_names(seen_nodes, policies.levels, policies.naming))
    skipped = dict(sorted(found.skipped.items()))
    namespaces = found.other.labels_of_namespaces({pod.namespace for pod in seen_pods})
    return Cluster(
        seen_nodes,
        seen_pods,
        (*groups, *inferred),
        policies,
        namespaces,
        tuple(found.notes),
        skipped,
        tuple(found.made_up),
        devices.facts(waiting, seen_nodes),
    )


def _found(documents: Iterable[Document | Printed]) -> _Found:
    """Return the objects of the documents.

    Raises:
        BadInput: as `cluster_of`.
    """
    found = _Found()
    problems: list[Malformed] = []
    for document in _completed(documents, found, problems):
        found.order[document.source, document.place] = len(found.order) + 1
        found.kinds[document.kind] += 1
        try:
            _take(document, found)
        except Malformed as problem:
            problems.append(problem)
    if not problems:
        problems = [*_twice(found.nodes), *_expand(found), *_twice(found.pods)]
        problems += [*found.other.twice(), *found.devices.twice()]
    if problems:
        raise BadInput(problems)
    if not found.nodes:
        raise BadInput([Malformed("", "", f"{_read(found)}: {_NO_NODES}")])
    return found


def _completed(
    documents: Iterable[Document | Printed], found: _Found, problems: list[Malformed]
) -> list[Document]:
    """Return the objects, all with names, and the jobs that other jobs make.

    If these can't be made, note a problem and add none.
    """
    objects = list[Document]()
    for document in documents:
        if isinstance(document, Printed):
            found.printed.append(document)
        else:
            objects.append(document)
    objects = list(names.completed(objects, found.made_up))
    try:
        return list(with_children(objects))
    except Malformed as problem:
        problems.append(problem)
        return objects


def _with_unique(policies: Policies, scopes: Sequence[str]) -> Policies:
    for scope in scopes:
        if expected := not_a_scope_of_labels(scope, policies.levels):
            raise BadInput([Malformed("", "--unique-names", f"expected {expected}, got {shown(scope)}")])
    unique = tuple(sorted({*policies.naming.unique, *scopes}))
    return replace(policies, naming=replace(policies.naming, unique=unique))


_NO_NODES = (
    "there is nothing to place on. Add one file more, "
    "from `muster capture -o cluster.json` or `kubectl get nodes -o yaml`"
)


def _read(found: _Found) -> str:
    """Return how many objects the input has of each kind. Only used if it has no node."""
    if not found.kinds:
        return "the input has no object"
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(found.kinds.items()))
    return f"no Node in the input (it has {counts})"


def _take(document: Document, found: _Found) -> None:
    found.unfollowed.look(document)
    found.misspelt.look(document)
    match document.group, document.kind:
        case "", "Node":
            found.nodes.append((document, shapes.node(document)))
        case "", "Pod":
            found.pods.append((document, shapes.pod(document)))
        case _:
            takers = (found.admission, found.other, found.devices, found.owners)
            if any(taker.take(document) for taker in takers):
                return
            made = templates.expand(document)
            if made is None:
                found.skipped[".".join(filter(None, (document.kind, document.group)))] += 1
            else:
                found.makers.append((document, shapes.convert(document, _OnlyMetadata).metadata, made))


# --- names -----------------------------------------------------------------------------------------


def _twice(found: Sequence[tuple[Document, NodeObject | PodManifest]]) -> list[Malformed]:
    """Objects of one name, and pods of one UID."""
    problems, names, uids = [], dict[str, Document](), dict[str, Document]()
    for document, item in found:
        meta = item.metadata
        if isinstance(item, PodManifest):
            key = f"Pod {meta.namespace or 'default'}/{meta.name}"
        else:
            key = f"Node {meta.name}"
        if key in names:
            problems.append(
                document.malformed(f"{_more(document, key)}is given twice, first in {_at(names[key])}")
            )
        elif meta.uid and meta.uid in uids and isinstance(item, PodManifest):
            problems.append(
                document.malformed(f"metadata.uid: another pod has it too, in {_at(uids[meta.uid])}")
            )
        names.setdefault(key, document)
        uids.setdefault(meta.uid, document)
    return problems


def _more(document: Document, key: str) -> str:
    """Return the pod's name if the document is its controller."""
    return "" if document.name == key else f"its {key} "


def _at(document: Document) -> str:
    return f"{document.source}: {document.place}"


def _expand(found: _Found) -> list[Malformed]:
    """Add the pods of controllers that have none yet. A controller that some pod names as
    its owner has some.
    """
    owners = {
        (item.metadata.namespace or "default", owner.kind, owner.name)
        for item in [pod for _, pod in found.pods] + [_OnlyMetadata(meta) for _, meta, _ in found.makers]
        for owner in item.metadata.owner_references or ()
        if owner.controller
    }
    owners |= {
        (pod.metadata.namespace or "default", "Deployment", pods.deployment_of(pod.metadata))
        for _, pod in found.pods
    }
    owners |= {
        (pod.metadata.namespace or "default", of_kind.kind, of_kind.owner)
        for _, pod in found.pods
        if (of_kind := member(pod.metadata)) is not None
    }
    there = Counter((document.kind, meta.namespace, meta.name) for document, meta, _ in found.makers)
    problems, count = [], 0
    for document, meta, made in found.makers:
        if there[document.kind, meta.namespace, meta.name] > 1:
            problems.append(document.malformed("is given twice"))
            continue
        if (meta.namespace or "default", document.kind, meta.name) in owners:
            continue
        if made.why_none:
            found.notes.append(f"{document.name} makes no pods: {made.why_none}")
        count += len(made.pods)
        if count > MAX_PODS:
            problems.append(document.malformed(f"more than {MAX_PODS:,} pods of controllers"))
            break
        found.pods.extend((document, pod) for pod in made.pods)
    return problems


# --- facts -----------------------------------------------------------------------------------------


def _pods(found: _Found, settings: Settings, devices: Devices, only_devices: bool) -> tuple[Pod, ...]:
    """Return the pods as the API server would store them. `only_devices`: as in `DeviceCounts.asking`."""
    read: list[tuple[int, Pod]] = []
    problems = list[Malformed]()
    for document, manifest in sorted(found.pods, key=lambda pod: found.number(pod[0])):
        meta = manifest.metadata
        namespace = meta.namespace or "default"
        uid = meta.uid or templates.uid_of("Pod", namespace, meta.name)
        meta = msgspec.structs.replace(meta, namespace=namespace, uid=uid)
        try:
            filled = _stored(found.admission, document, msgspec.structs.replace(manifest, metadata=meta))
        except Malformed as problem:
            problems.append(problem)
            continue
        place = 0 if meta.creation_timestamp else found.number(document)
        filled = devices.completed(filled)
        found.manifests[filled.metadata.uid] = filled
        in_gang = found.owners.place_of(filled.metadata, settings)
        if in_gang is not None:
            found.members[filled.metadata.uid] = (namespace, in_gang)
        pod = pods.read(filled, settings, in_gang, devices.claims)
        if claims := devices.asked.get(pod.uid):
            pod = devices.counts.asking(pod, claims, only_devices)
        read.append((place, pod))
    if problems:
        raise BadInput(problems)
    found.notes.extend(found.admission.notes())
    last = max((pod.created for _, pod in read), default=0.0)
    return tuple(replace(pod, created=last + 1.0 + place * _ORDER_S) if place else pod for place, pod in read)


def _stored(admission: Admission, document: Document, pod: PodManifest) -> PodManifest:
    """Return a pod as the API server stores it."""
    pod = admission.admitted(document, pod)
    spec = pod.spec
    if spec.affinity is not None or not spec.scheduler_name:
        affinity = peers.as_stored(spec.affinity, pod.metadata.labels or {})
        name = spec.scheduler_name or "default-scheduler"
        spec = msgspec.structs.replace(spec, scheduler_name=name, affinity=affinity)
    return msgspec.structs.replace(pod, spec=spec)


def _ordered(found: _Found, seen: Iterable[Pod]) -> list[str]:
    """Return a note for each controller that creates a gang's pods one by one, so that the gang never
    completes.
    """
    in_gangs = {(p.namespace, p.name) for p in seen if p.claim is not None and not p.claim.lone}
    return [
        f"{document.name}: its pods come one after another, so a gang of them would wait for ever "
        "in a cluster: set spec.podManagementPolicy to Parallel"
        for document, meta, made in found.makers
        if made.ordered and any((meta.namespace or "default", p.metadata.name) in in_gangs for p in made.pods)
    ]
