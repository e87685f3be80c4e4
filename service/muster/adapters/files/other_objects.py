"""Read the objects that complete nodes and pods: PodGroups, KAI's Topologies, ConfigMaps, namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from muster.adapters.files import shapes, templates
from muster.adapters.files.sources import Document, Malformed
from muster.dialects import policies
from muster.dialects.gangs import podgroups
from muster.dialects.gangs.podgroups import APIS, TOPOLOGY_APIS
from muster.dialects.gangs.subgroups import Topologies, Topology
from muster.dialects.nodes import configmaps
from muster.dialects.nodes.configmaps import NodeFact, NodeTopology, PolicyText, UnhealthyGpus
from muster.dialects.objects import ConfigMapObject, CustomObject, Metadata, NamespaceObject
from muster.dialects.pods import peers
from muster.dialects.settings import Settings
from muster.domain.levels import Level, Naming
from muster.domain.peers import Labels
from muster.domain.podgroup import PodGroup
from muster.domain.policies import DEFAULT_POLICIES, Policies

NAME_LABEL = "kubernetes.io/metadata.name"
POD_GROUP_APIS = tuple(version for versions in APIS for version in versions)


@dataclass(slots=True)
class OtherObjects:
    """The documents of these kinds, each with what was read from it."""

    pod_groups: list[tuple[Document, CustomObject]] = field(default_factory=list)
    topologies: list[tuple[Document, CustomObject]] = field(default_factory=list)
    config_maps: list[tuple[Document, ConfigMapObject]] = field(default_factory=list)
    namespaces: list[tuple[Document, NamespaceObject]] = field(default_factory=list)

    def take(self, document: Document) -> bool:
        """Take a document in. Return False if it is of another kind.

        Raises:
            Malformed: The document does not have the shape of its kind.
        """
        version = str(document.value["apiVersion"])
        match document.kind:
            case "PodGroup" if version in POD_GROUP_APIS:
                self.pod_groups.append((document, _named(document)))
            case "Topology" if version in TOPOLOGY_APIS:
                self.topologies.append((document, _named(document, namespaced=False)))
            case "ConfigMap" if version == "v1":
                read = shapes.convert(document, ConfigMapObject)
                shapes.check_named(document, read.metadata)
                meta = _in_namespace(read.metadata)
                self.config_maps.append((document, msgspec.structs.replace(read, metadata=meta)))
            case "Namespace" if version == "v1":
                namespace = shapes.convert(document, NamespaceObject)
                shapes.check_named(document, namespace.metadata)
                self.namespaces.append((document, namespace))
            case _:
                return False
        return True

    def twice(self) -> Iterator[Malformed]:
        """Yield the objects of one kind and name that are given twice. KAI's PodGroups
        and ours are one kind.
        """
        seen: set[tuple[str, str, str, str]] = set()
        objects: Sequence[tuple[Document, CustomObject | ConfigMapObject | NamespaceObject]] = [
            *self.pod_groups,
            *self.topologies,
            *self.config_maps,
            *self.namespaces,
        ]
        for document, item in objects:
            key = (document.group, document.kind, item.metadata.namespace, item.metadata.name)
            if key in seen:
                yield document.malformed("is given twice")
            seen.add(key)

    def facts_and_policies(
        self, settings: Settings, notes: list[str]
    ) -> tuple[Mapping[str, list[NodeFact]], Policies]:
        """Return what ConfigMaps say: facts about nodes, by the node's name, and the policies in force."""
        facts: dict[str, list[NodeFact]] = {}
        policies_in_force = DEFAULT_POLICIES
        for document, item in self.config_maps:
            match configmaps.read(item, settings):
                case PolicyText(text):
                    read, problems = policies.read(text)
                    end = "" if read is not None else ": it is refused, and the defaults hold"
                    notes.extend(f"{document.name}: {problem}{end}" for problem in problems)
                    policies_in_force = read if read is not None else policies_in_force
                case NodeTopology() | UnhealthyGpus() as fact:
                    facts.setdefault(fact.node, []).append(fact)
                case None if item.metadata.name == settings.policies_name:
                    place = f"{settings.policies_namespace}/{settings.policies_name}"
                    notes.append(f"{document.name} is not read: the policies are in the ConfigMap {place}")
        naming = Naming(policies_in_force.naming.unique, podgroups.trees(self._topologies()))
        return facts, replace(policies_in_force, naming=naming)

    def labels_of_namespaces(self, names: Iterable[str]) -> dict[str, Labels]:
        """Return the labels of the namespaces in the input, and of the namespaces in `names`.

        As in the API server, each namespace has its name as a label.
        """
        labels_by_name = {item.metadata.name: item.metadata.labels or {} for _, item in self.namespaces}
        return {
            name: peers.labels_of({NAME_LABEL: name, **labels_by_name.get(name, {})})
            for name in {*labels_by_name, *names}
        }

    def groups(self, levels: tuple[Level, ...]) -> tuple[PodGroup, ...]:
        """Return the PodGroups as facts. `levels` say which node label is which scope."""
        topologies = self.topologies_by_name()
        return tuple(podgroups.read(item, levels, topologies) for _, item in self.pod_groups)

    def topologies_by_name(self) -> Topologies | None:
        """Return the levels of KAI's Topologies; None if there is none."""
        return self._topologies() or None

    def _topologies(self) -> dict[str, Topology]:
        return {item.metadata.name: podgroups.read_topology(item) for _, item in self.topologies}


def _named(document: Document, namespaced: bool = True) -> CustomObject:
    read = shapes.convert(document, CustomObject)
    shapes.check_named(document, read.metadata)
    meta = _in_namespace(read.metadata) if namespaced else read.metadata
    uid = meta.uid or templates.uid_of(document.kind, meta.namespace, meta.name)
    return msgspec.structs.replace(read, metadata=msgspec.structs.replace(meta, uid=uid))


def _in_namespace(meta: Metadata) -> Metadata:
    return msgspec.structs.replace(meta, namespace=meta.namespace or "default")
