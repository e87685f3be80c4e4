"""Documents → the facts of a cluster, as the service would see them after `kubectl apply`.

What the API server adds is added here: namespaces, UIDs, priorities by class, matchLabelKeys of pod affinity
in its selectors, and that names are unique.
Pods without a creation time count as created after all that have one, in the order of the documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import msgspec

from muster.adapters.files import shapes, templates
from muster.adapters.files.beside import Beside
from muster.adapters.files.problems import BadInput, Malformed
from muster.adapters.files.shapes import PodManifest
from muster.adapters.files.sources import Document
from muster.dialects import nodes, peers, pods
from muster.dialects.objects import Metadata, NodeObject
from muster.dialects.settings import Settings
from muster.domain.levels import Level, part_of
from muster.domain.node import Node
from muster.domain.peers import Labels
from muster.domain.pod import Pod, Wishes
from muster.domain.podgroup import PodGroup
from muster.domain.policies import DEFAULT_POLICIES, Policies
from muster.domain.request import Scope
from muster.domain.sentences import unhealthy_sentence

SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Priority classes that every cluster has."""

_ORDER_S = 1e-3
"""Between pods of one document and the next, where no time is given."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Facts, with what should be said about the input: `notes` are sentences, `skipped` counts by kind."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    pod_groups: tuple[PodGroup, ...] = ()
    policies: Policies = DEFAULT_POLICIES
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    """Their labels."""
    notes: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)


class _OnlyMetadata(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


@dataclass(slots=True)
class _Found:
    """What the documents are, before it is one cluster. Pods come with the document that they are from."""

    nodes: list[tuple[Document, NodeObject]] = field(default_factory=list)
    pods: list[tuple[Document, PodManifest]] = field(default_factory=list)
    makers: list[tuple[Document, Metadata, templates.Made]] = field(default_factory=list)
    beside: Beside = field(default_factory=Beside)
    classes: dict[str, int] = field(default_factory=dict)
    default_priority: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    order: dict[tuple[str, str], int] = field(default_factory=dict)
    """(source, place) of a document → its number, from 1."""

    def number(self, document: Document) -> int:
        return self.order[document.source, document.place]


def cluster_of(documents: Iterable[Document], settings: Settings) -> Cluster:
    """The cluster that these documents describe.

    Raises:
        BadInput: a document has not the shape of its kind, a name is there twice, or there is no node.
    """
    found = _Found()
    problems: list[Malformed] = []
    for document in documents:
        found.order[document.source, document.place] = len(found.order) + 1
        try:
            _take(document, found)
        except Malformed as problem:
            problems.append(problem)
    if not problems:
        problems = [*_twice(found.nodes), *_expand(found), *_twice(found.pods), *found.beside.twice()]
    if problems:
        raise BadInput(problems)
    if not found.nodes:
        raise BadInput([Malformed("", "", _NO_NODES)])
    facts, policies = found.beside.said(settings, found.notes)
    seen_nodes = tuple(
        nodes.read(node, settings, facts.get(node.metadata.name, ())) for _, node in found.nodes
    )
    seen_pods = _pods(found, settings)
    groups = found.beside.groups(policies.levels)
    _note(found, seen_nodes, seen_pods, settings)
    found.notes.extend(
        f"PodGroup {group.namespace}/{group.name}: {problem}"
        for group in groups
        for problem in group.problems
    )
    found.notes.extend(_unnamed(groups, seen_pods))
    found.notes.extend(_nowhere(groups, seen_pods, seen_nodes, policies.levels))
    skipped = dict(sorted(found.skipped.items()))
    namespaces = found.beside.labels_of_namespaces({pod.namespace for pod in seen_pods})
    return Cluster(seen_nodes, seen_pods, groups, policies, namespaces, tuple(found.notes), skipped)


_NO_NODES = (
    "no Node in the input, so there is nothing to place on: add one file more, "
    "from `muster capture -o cluster.json` or `kubectl get nodes -o yaml`"
)


def _take(document: Document, found: _Found) -> None:
    match document.group, document.kind:
        case "", "Node":
            found.nodes.append((document, shapes.node(document)))
        case "", "Pod":
            found.pods.append((document, shapes.pod(document)))
        case "scheduling.k8s.io", "PriorityClass":
            read = shapes.convert(document, shapes.PriorityClass)
            shapes.check_named(document, read.metadata)
            found.classes[read.metadata.name] = read.value
            if read.global_default:
                found.default_priority = read.value
        case _:
            if found.beside.take(document):
                return
            made = templates.expand(document)
            if made is None:
                found.skipped[document.kind] += 1
            else:
                found.makers.append((document, shapes.convert(document, _OnlyMetadata).metadata, made))


# --- names -----------------------------------------------------------------------------------------


def _twice(found: Sequence[tuple[Document, NodeObject | PodManifest]]) -> list[Malformed]:
    """Objects of one name, and pods of one UID."""
    problems, names, uids = [], dict[str, Document](), dict[str, Document]()
    for document, item in found:
        meta = item.metadata
        if isinstance(item, PodManifest):
            key = f"Pod {meta.namespace or 'default'}/{_name(item, 0)}" if meta.name else ""
        else:
            key = f"Node {meta.name}"
        if key and key in names:
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
    """The pod's name where the document is its controller."""
    return "" if document.name == key else f"its {key} "


def _at(document: Document) -> str:
    return f"{document.source}: {document.place}"


def _name(pod: PodManifest, number: int) -> str:
    return pod.metadata.name or pod.metadata.generate_name + templates.letters(number)


def _expand(found: _Found) -> list[Malformed]:
    """Add the pods of controllers that have none yet. Who is named as an owner has been at work already."""
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
        if count > templates.MAX_PODS:
            problems.append(document.malformed(f"more than {templates.MAX_PODS:,} pods of controllers"))
            break
        found.pods.extend((document, pod) for pod in made.pods)
    return problems


# --- facts -----------------------------------------------------------------------------------------


def _pods(found: _Found, settings: Settings) -> tuple[Pod, ...]:
    read: list[tuple[int, Pod]] = []
    unknown: Counter[str] = Counter()
    for number, (document, manifest) in enumerate(sorted(found.pods, key=lambda pod: found.number(pod[0]))):
        meta = manifest.metadata
        name, namespace = _name(manifest, number), meta.namespace or "default"
        spec = manifest.spec
        priority = spec.priority
        if priority is None and spec.priority_class_name:
            priority = (found.classes | SYSTEM_CLASSES).get(spec.priority_class_name)
            unknown[spec.priority_class_name] += priority is None
        elif priority is None:
            priority = found.default_priority
        filled = msgspec.structs.replace(
            manifest,
            metadata=msgspec.structs.replace(
                meta,
                name=name,
                namespace=namespace,
                uid=meta.uid or templates.uid_of("Pod", namespace, name),
            ),
            spec=msgspec.structs.replace(
                spec,
                priority=priority or 0,
                scheduler_name=spec.scheduler_name or "default-scheduler",
                affinity=peers.as_stored(spec.affinity, meta.labels or {}),
            ),
        )
        place = 0 if meta.creation_timestamp else found.number(document)
        read.append((place, pods.read(filled, settings)))
    found.notes.extend(
        f"PriorityClass {name} is not in the input: {count} {_pods_count(count)} of it count as priority 0"
        for name, count in sorted(unknown.items())
        if count
    )
    last = max((pod.created for _, pod in read), default=0.0)
    return tuple(replace(pod, created=last + 1.0 + place * _ORDER_S) if place else pod for place, pod in read)


def _unnamed(groups: Iterable[PodGroup], seen: Iterable[Pod]) -> list[str]:
    named = {(pod.namespace, pod.claim.dialect, pod.claim.name) for pod in seen if pod.claim is not None}
    return [
        f"PodGroup {group.namespace}/{group.name}: no pod of ours names it"
        for group in groups
        if group.key not in named
    ]


def _nowhere(
    groups: Iterable[PodGroup], seen: Iterable[Pod], there: Sequence[Node], levels: tuple[Level, ...]
) -> list[str]:
    """Wishes for a scope in which no node lies, perhaps a misspelt one. Where it is required the decision
    says so; a preference is passed over, and a limit counts each node as a part."""
    wishes = {
        f"{pod.namespace}/{pod.claim.name}": pod.claim.wishes
        for pod in seen
        if pod.claim is not None and pod.present and not pod.node
    }
    wishes |= {f"PodGroup {group.namespace}/{group.name}": group.wishes for group in groups}
    known = {Scope.GPU, Scope.NVLINK_DOMAIN, Scope.NODE}
    asked = {scope for each in wishes.values() for scope in _soft(each)} - known
    nowhere = {scope for scope in asked if not any(part_of(node, scope, levels) for node in there)}
    words = (*Scope, *(level.scope for level in levels))
    return [
        f"{who}: no node lies in any {scope}: {what}{_perhaps(scope, words)}"
        for who, each in wishes.items()
        for scope, what in _soft(each).items()
        if scope in nowhere
    ]


def _soft(wishes: Wishes) -> dict[str, str]:
    """Scopes that are not required → what becomes of the wish where there is no such part."""
    limited = dict.fromkeys((most.scope for most in wishes.max_per), "max-per counts each node as one")
    return limited | dict.fromkeys(wishes.preferred_scopes, "that preference is passed over")


def _perhaps(scope: str, words: Iterable[str]) -> str:
    near = get_close_matches(scope, [word for word in words if word != scope], n=1)
    return f"; perhaps {near[0]} is meant" if near else ""


def _on_broken(seen: Iterable[Pod], node: Node) -> list[str]:
    """The pods on unhealthy GPUs of the node, as namespace/name."""
    here = (pod for pod in seen if pod.node == node.name and pod.usage is not None)
    return [f"{p.namespace}/{p.name}" for p in here if (p.allocation or 0) & node.unhealthy]


def _pods_count(count: int) -> str:
    return "pod" if count == 1 else "pods"


def _note(found: _Found, seen_nodes: Sequence[Node], seen: Sequence[Pod], settings: Settings) -> None:
    for node in seen_nodes:
        found.notes.extend(f"Node {node.name}: {problem}" for problem in node.problems)
        if node.unhealthy and (there := sorted(_on_broken(seen, node))):
            found.notes.append(f"Node {node.name}: {unhealthy_sentence(node.unhealthy, there)}")
        if node.allocatable.pods <= 0:
            found.notes.append(f"Node {node.name}: status.allocatable has no pods, so none can go there")
    pending = [pod for pod in seen if pod.present and not pod.node]
    ours = [pod for pod in pending if pod.scheduler_name in settings.scheduler_names]
    if others := len(pending) - len(ours):
        names = ", ".join(sorted(settings.scheduler_names))
        found.notes.append(
            f"{others} pending {_pods_count(others)} of other schedulers not placed (ours: {names})"
        )
    if plain := sum(pod.claim is None for pod in ours):
        said = "asks for no GPU and names" if plain == 1 else "ask for no GPU and name"
        found.notes.append(f"{plain} pending {_pods_count(plain)} {said} no gang: not placed here")
    in_gangs = {(p.namespace, p.name) for p in seen if p.claim is not None and not p.claim.lone}
    for document, meta, made in found.makers:
        if made.ordered and any(
            (meta.namespace or "default", p.metadata.name) in in_gangs for p in made.pods
        ):
            found.notes.append(
                f"{document.name}: its pods come one after another, so a gang of them would wait for ever "
                "in a cluster: set spec.podManagementPolicy to Parallel"
            )
