"""Limits on the reading of one pod. Only this module cuts parts off a pod, and reports that.

The API server takes pods of 3 MiB as JSON, and any user may make such a pod and change it all the time. So a
large pod is cut before anything is computed from it. Each field keeps one entry more than is read, and so its
reader sees that there are too many. A bound pod keeps all containers, because their GPUs are taken.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from muster.dialects.devices.claims import MAX_CLAIMS
from muster.dialects.gangs import misspelt
from muster.dialects.keys import MIRROR, SHARED_GPUS
from muster.dialects.objects import (
    Container,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    OwnerReference,
    PodObject,
    PodSpec,
)
from muster.dialects.pods import peers
from muster.dialects.pods.requests import MAX_CONTAINERS, MAX_RESOURCES, RESIZE_PENDING
from muster.dialects.settings import DEFAULTS, DialectSettings
from muster.domain.causes.ill_formed import BadValue
from muster.domain.node import GPU_MEM

MAX_KEYS = 512
"""Largest number of labels, and of annotations, of one pod. Of more, the known keys and the first others are
read."""
MAX_VOLUMES = 1024
"""Volumes of one pod that name a claim."""
MAX_CHARACTERS = 253
"""Largest number of characters of each text in an owner reference. The API server does not check them; a
reference with a longer text counts as none."""
_MAX_OTHER_ENTRIES = 64
"""Largest number of entries of a field that has no limit of its own."""

_MAX_ENTRIES: Mapping[str, int] = {
    **dict.fromkeys(("labels", "annotations"), MAX_KEYS),
    **dict.fromkeys(("containers", "init_containers"), MAX_CONTAINERS),
    **dict.fromkeys(("container_statuses", "init_container_statuses"), MAX_CONTAINERS),
    **dict.fromkeys(("limits", "requests", "overhead", "allocated_resources"), MAX_RESOURCES),
    **dict.fromkeys(("node_selector", "tolerations"), peers.MAX_NODE_NAMES),
    **dict.fromkeys(("required", "topology_spread_constraints"), peers.MAX_TERMS),
    **dict.fromkeys(("match_labels", "match_expressions"), peers.MAX_REQUIREMENTS),
    **dict.fromkeys(("match_label_keys", "mismatch_label_keys"), peers.MAX_REQUIREMENTS),
    **dict.fromkeys(("namespaces", "values"), peers.MAX_VALUES),
    **dict.fromkeys(("resource_claims", "resource_claim_statuses"), MAX_CLAIMS),
    "ports": peers.MAX_HOST_PORTS,
    "volumes": MAX_VOLUMES,
}
"""Field of a pod, at any depth → number of entries that are read. Of other fields `_MAX_OTHER_ENTRIES` are
read."""
_FIRST: Mapping[str, Callable[[Any], bool]] = {
    "owner_references": lambda owner: bool(owner.controller),
    "ports": lambda port: port.host_port > 0,
    "topology_spread_constraints": lambda constraint: constraint.when_unsatisfiable == "DoNotSchedule",
    "volumes": peers.has_claim,
    "conditions": lambda condition: condition.type in (RESIZE_PENDING, "Ready"),
}
"""Field → whether an entry comes before the others."""

_TOO_MANY = NodeSelector(
    [NodeSelectorTerm([NodeSelectorRequirement("", "In", [""] * (peers.MAX_NODE_NAMES + 1))])]
)
"""Stands for a node affinity with more names than are read."""

S = TypeVar("S", bound=msgspec.Struct)


def cut_to_limits(obj: PodObject, settings: DialectSettings = DEFAULTS) -> PodObject:
    """Return the pod with one more entry in each field than is read. A second call changes nothing.

    Of labels, annotations and resources, the known keys and the first others are kept.
    """
    spec = _without_many_rules(obj.spec)
    counted_resources = ("cpu", "memory", "ephemeral-storage", *settings.gpu_resources)
    known_keys = {*misspelt.known_keys(), MIRROR, *counted_resources, GPU_MEM, SHARED_GPUS}
    cutter = _Cutter(frozenset(known_keys), bound=bool(spec.node_name))
    return cutter.cut(obj if spec is obj.spec else replace(obj, spec=spec))


def exceeded_limits(object_name: str, obj: PodObject, resource_names: int) -> Iterator[BadValue]:
    """Yield a cause for each field of a pod that has more than is read.

    `object_name` is the pod, as kind/namespace/name. `resource_names` is the number of its resources, without
    CPU, memory and GPUs.
    """
    meta, spec = obj.metadata, obj.spec
    counts = (
        ("labels", len(meta.labels or ()), MAX_KEYS),
        ("annotations", len(meta.annotations or ()), MAX_KEYS),
        ("containers", len(spec.containers or ()), MAX_CONTAINERS),
        ("initContainers", len(spec.init_containers or ()), MAX_CONTAINERS),
        ("resources", resource_names, MAX_RESOURCES),
        (peers.NODE_FIELD, peers.node_rules_size(spec), peers.MAX_NODE_NAMES),
    )
    for field, count, limit in counts:
        if count > limit:
            yield BadValue(object_name, f"number of {field}", f"more than {limit:,}", f"at most {limit:,}")


def first_entries(entries: Mapping[str, Any], limit: int, known_keys: Set[str]) -> dict[str, Any]:
    """Return the entries with known keys, then the first others, `limit` + 1 at most."""
    other_keys = (key for key in entries if key not in known_keys)
    return {key: entries[key] for key in (*(entries.keys() & known_keys), *islice(other_keys, limit + 1))}


def _without_many_rules(spec: PodSpec) -> PodSpec:
    affinity = spec.affinity
    if (
        affinity is None
        or affinity.node_affinity is None
        or peers.node_rules_size(spec) <= peers.MAX_NODE_NAMES
    ):
        return spec
    node_affinity = NodeAffinity(_TOO_MANY, affinity.node_affinity.preferred)
    return replace(spec, affinity=replace(affinity, node_affinity=node_affinity))


class _Cutter:
    """Cuts the fields of one pod. Every map keeps its `known_keys`."""

    def __init__(self, known_keys: frozenset[str], bound: bool) -> None:
        self._known_keys = known_keys
        self._uncut = ("containers", "init_containers") if bound else ()

    def cut(self, struct: S) -> S:
        """Return the object with fewer entries in its fields; the same object if nothing is cut."""
        if isinstance(struct, NodeAffinity):
            return replace(struct, preferred=(struct.preferred or [])[:1])
        changes = {}
        for name in struct.__struct_fields__:
            value = getattr(struct, name)
            cut_value = self._cut_field(name, value)
            if cut_value is not value:
                changes[name] = cut_value
        return replace(struct, **changes) if changes else struct

    def _cut_field(self, name: str, value: Any) -> Any:
        match value:
            case list():
                return self._cut_list(name, value)
            case dict():
                limit = _MAX_ENTRIES.get(name, _MAX_OTHER_ENTRIES)
                return value if len(value) <= limit else first_entries(value, limit, self._known_keys)
            case msgspec.Struct():
                return self.cut(value)
            case _:
                return value

    def _cut_list(self, name: str, entries: list[Any]) -> list[Any]:
        limit, first = _MAX_ENTRIES.get(name, _MAX_OTHER_ENTRIES), _FIRST.get(name)
        short_list = entries
        if len(entries) > limit and name not in self._uncut:
            ordered = sorted(entries, key=lambda entry: not first(entry)) if first is not None else entries
            short_list = ordered[: limit + 1]
        if name == "owner_references":
            short_list = [entry for entry in short_list if _is_short(entry)]
        cut_entries = [self._cut_entry(entry) for entry in short_list]
        same = len(cut_entries) == len(entries) and all(map(operator.is_, cut_entries, entries))
        return entries if same else cut_entries

    def _cut_entry(self, entry: Any) -> Any:
        if isinstance(entry, Container) and _is_small(entry):
            return entry
        return self.cut(entry) if isinstance(entry, msgspec.Struct) else entry


def _is_small(container: Container) -> bool:
    """Return whether nothing of the container is cut. Such containers are many, and need no copy."""
    amounts = container.resources
    has_few_amounts = (
        amounts is None or max(len(amounts.limits or ()), len(amounts.requests or ())) <= MAX_RESOURCES
    )
    return has_few_amounts and len(container.ports or ()) <= peers.MAX_HOST_PORTS


def _is_short(owner: OwnerReference) -> bool:
    return max(map(len, (owner.api_version, owner.kind, owner.name, owner.uid))) <= MAX_CHARACTERS
