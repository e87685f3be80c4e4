"""Read the objects that complete nodes and pods: PodGroups, Workloads, KAI's Topologies, ConfigMaps,
namespaces, disruption budgets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from muster.adapters.files.reading import shapes
from muster.adapters.files.reading.sources import Document
from muster.dialects import policies
from muster.dialects.gangs import native, podgroups
from muster.dialects.gangs.podgroups import APIS, TOPOLOGY_APIS
from muster.dialects.gangs.subgroups import KaiTopology
from muster.dialects.nodes import configmaps
from muster.dialects.nodes.configmaps import NodeFact, PolicyText
from muster.dialects.objects import (
    BudgetStatus,
    ConfigMapObject,
    CustomObject,
    NamespaceObject,
    PodDisruptionBudget,
)
from muster.dialects.pods import budgets, peers
from muster.dialects.settings import DialectSettings
from muster.domain.levels import FabricLevel, Naming
from muster.domain.peers import Labels
from muster.domain.pod import COMPOSITE, NATIVE
from muster.domain.podgroup import PodGroup
from muster.domain.policies import DEFAULT_POLICIES, Policies
from muster.domain.preemption import DisruptionBudget

T = TypeVar("T")

NAME_LABEL = "kubernetes.io/metadata.name"
POD_GROUP_APIS = tuple(version for versions in APIS for version in versions)


Readers = Mapping[tuple[str, str], Callable[[Document], Any]]
"""API group and kind → the reader of such a document. The reader returns None for a version that is not read.
"""


def _read_custom_object(document: Document, versions: Collection[str]) -> CustomObject | None:
    if document.value["apiVersion"] not in versions:
        return None
    return shapes.as_stored(document, CustomObject)


READERS: Readers = {
    **{
        (api.partition("/")[0], "PodGroup"): partial(_read_custom_object, versions=POD_GROUP_APIS)
        for api in POD_GROUP_APIS
    },
    ("scheduling.k8s.io", COMPOSITE): partial(_read_custom_object, versions=native.APIS),
    **{
        (api.partition("/")[0], "Topology"): partial(_read_custom_object, versions=TOPOLOGY_APIS)
        for api in TOPOLOGY_APIS
    },
    (native.API_GROUP, "Workload"): partial(_read_custom_object, versions=native.APIS),
    ("", "ConfigMap"): partial(shapes.as_stored, shape=ConfigMapObject),
    ("", "Namespace"): partial(shapes.as_stored, shape=NamespaceObject),
    ("policy", "PodDisruptionBudget"): partial(shapes.as_stored, shape=PodDisruptionBudget),
}


class Objects:
    """The objects of the input that complete nodes and pods, in the order of their documents."""

    def __init__(self) -> None:
        self.documents: list[tuple[Document, Any]] = []

    def take(self, document: Document, readers: Readers) -> bool:
        """Take in a document. Return False if the document has another kind.

        Raises:
            Malformed: The document does not have the shape of its kind.
        """
        read = readers.get((document.group, document.kind))
        item = read(document) if read is not None else None
        if item is not None:
            self.documents.append((document, item))
        return item is not None

    def of(self, kind: str, shape: type[T]) -> list[T]:
        """Return the objects of a kind, which have this shape."""
        return [item for document, item in self.documents if document.kind == kind]


def old_versions(document: Document) -> Iterator[str]:
    """Yield a note about a group or Workload of Kubernetes in a version that is not read."""
    if document.group == native.API_GROUP and document.kind in (*NATIVE, "Workload"):
        version, read = document.value["apiVersion"], native.APIS[1]
        way_out = f"write it in {read}, where its fields have other names"
        yield f"{document.name} is not read in {version}: {way_out}"


def facts_and_policies(
    objects: Objects, settings: DialectSettings, notes: list[str]
) -> tuple[Mapping[str, list[NodeFact]], Policies]:
    """Return the facts of ConfigMaps: node → facts about it, and the policies in force."""
    facts: dict[str, list[NodeFact]] = {}
    policies_in_force = DEFAULT_POLICIES
    for document, item in objects.documents:
        if document.kind != "ConfigMap":
            continue
        match configmaps.read(item, settings):
            case PolicyText(text):
                read, problems = policies.read(text)
                end = "" if read is not None else ": it is refused, and the defaults hold"
                notes.extend(f"{document.name}: {problem}{end}" for problem in problems)
                policies_in_force = read if read is not None else policies_in_force
            case NodeFact() as fact:
                facts.setdefault(fact.node, []).append(fact)
            case None if item.metadata.name == settings.policies_name:
                place = f"{settings.policies_namespace}/{settings.policies_name}"
                notes.append(f"{document.name} is not read: the policies are in the ConfigMap {place}")
    naming = Naming(policies_in_force.naming.unique, podgroups.trees(topologies(objects)))
    return facts, replace(policies_in_force, naming=naming)


def labels_of_namespaces(objects: Objects, names: Iterable[str]) -> dict[str, Labels]:
    """Return the labels of the namespaces in the input, and of the namespaces in `names`.

    As in the API server, each namespace has its name as a label.
    """
    labels_by_name = {
        item.metadata.name: item.metadata.labels or {} for item in objects.of("Namespace", NamespaceObject)
    }
    return {
        name: peers.labels_of({NAME_LABEL: name, **labels_by_name.get(name, {})})
        for name in {*labels_by_name, *names}
    }


def pod_groups(
    objects: Objects, levels: tuple[FabricLevel, ...], admit: Callable[[CustomObject], CustomObject]
) -> tuple[PodGroup, ...]:
    """Return PodGroups and CompositePodGroups as facts. `levels` say which node label is which scope.

    `admit` returns a PodGroup as the API server stores it.
    """
    by_name = topologies(objects) or None
    items = (*objects.of("PodGroup", CustomObject), *objects.of(COMPOSITE, CustomObject))
    return tuple(podgroups.read(admit(item), levels, by_name) for item in items)


def workloads(objects: Objects) -> dict[tuple[str, str], native.WorkloadTerms]:
    """Return what the annotations of Workloads state, by namespace and name."""
    return {
        (item.metadata.namespace, item.metadata.name): native.read_workload(item.metadata)
        for item in objects.of("Workload", CustomObject)
    }


def disruption_budgets(objects: Objects, notes: list[str]) -> tuple[DisruptionBudget, ...]:
    """Return the disruption budgets. A budget without a status lets no pod go, as in a cluster."""
    items = objects.of("PodDisruptionBudget", PodDisruptionBudget)
    for meta in (item.metadata for item in items if item.status == BudgetStatus()):
        name = f"PodDisruptionBudget {meta.namespace}/{meta.name}"
        notes.append(f"{name} has no status.disruptionsAllowed: it counts as 0")
    return tuple(map(budgets.read, items))


def topologies(objects: Objects) -> dict[str, KaiTopology]:
    """Return the levels of KAI's Topologies."""
    return {
        item.metadata.name: podgroups.read_topology(item) for item in objects.of("Topology", CustomObject)
    }
