"""Add the fields to a new pod that the API server and webhooks of controllers add before it is stored.

These are the admission plugins that kube-apiserver has on by default and that change scheduling: Priority,
RuntimeClass, LimitRanger, DefaultTolerationSeconds. The webhooks are those of JobSet and LeaderWorkerSet.
ExtendedResourceToleration is off by default, so it is not here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from muster.adapters.files.reading import shapes
from muster.adapters.files.reading.other_objects import Objects, Readers
from muster.adapters.files.reading.shapes import PodManifest, Quantities, Spec
from muster.adapters.files.reading.sources import Document, quote_value
from muster.adapters.kube.decode import Resource, resource
from muster.dialects import quantities
from muster.dialects.gangs import native
from muster.dialects.kinds import jobset, leaderworkerset
from muster.dialects.objects import (
    Affinity,
    Container,
    CustomObject,
    LabelSelector,
    NodeSelectorRequirement,
    PodAffinity,
    PodAffinityTerm,
    PodToleration,
    ResourceRequirements,
)
from muster.domain.words import list_names, plural

SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Priority classes that every cluster has."""
_UNREADY = tuple(
    PodToleration(f"node.kubernetes.io/{condition}", "Exists", effect="NoExecute")
    for condition in ("not-ready", "unreachable")
)
"""Taints that every pod tolerates for 300 s."""

FOR_NEW_PODS: tuple[Resource[Any], ...] = (
    resource("PriorityClass", shapes.PriorityClass, api="apis/scheduling.k8s.io/v1"),
    resource("RuntimeClass", shapes.RuntimeClass, api="apis/node.k8s.io/v1"),
    resource("LimitRange", shapes.LimitRange),
)
"""Objects that the API server applies to new pods."""
READERS: Readers = {
    (admission_kind.api_version.rpartition("/")[0], admission_kind.kind): partial(
        shapes.as_stored, shape=admission_kind.shape
    )
    for admission_kind in FOR_NEW_PODS
}


class Admission:
    """The objects that change new pods, and the number of pods that name a missing object."""

    def __init__(self, objects: Objects) -> None:
        classes = objects.of("PriorityClass", shapes.PriorityClass)
        self._priorities = SYSTEM_CLASSES | {item.metadata.name: item.value for item in classes}
        self._default_priority = next((item.value for item in reversed(classes) if item.global_default), 0)
        runtime_classes = objects.of("RuntimeClass", shapes.RuntimeClass)
        self._runtime_classes = {item.metadata.name: item for item in runtime_classes}
        self._limit_ranges = objects.of("LimitRange", shapes.LimitRange)
        self._unknown = Counter[tuple[str, str]]()
        """(kind, name) of an object that is not in the input → number of pods that name it."""
        self.unknown_classes: dict[str, str] = {}
        """UID of a pod → its PriorityClass, which is not in the input. So its priority is not known."""
        self._exclusive = defaultdict[str, dict[str, None]](dict)
        """Phrase about the domain that a group of pods has for itself → the objects that make such pods."""

    def admit(self, document: Document, pod: PodManifest) -> PodManifest:
        """Return the pod as the API server stores it. A pod that has been stored only gets its priority.

        A pod with a node and without a creation time was written by hand, so it gets the default tolerations
        too.

        Raises:
            Malformed: The API server refuses the pod.
        """
        spec, priority = pod.spec, self._priority(pod)
        if spec.priority != priority:
            spec = replace(spec, priority=priority)
        if spec.node_name and not pod.metadata.creation_timestamp:
            spec = _with_default_tolerations(spec)  # as the waiting members of its role
        if spec.node_name or pod.metadata.creation_timestamp:
            return pod if spec is pod.spec else replace(pod, spec=spec)
        if spec.runtime_class_name:
            spec = self._with_runtime_class(document, spec)
        elif spec.overhead:
            expected = "expected spec.runtimeClassName, whose RuntimeClass says it"
            raise document.error(f"spec.overhead: {expected}")
        spec = (
            replace(spec, resources=shapes.whole_pod_requests(spec)) if spec.resources is not None else spec
        )
        spec = self._with_limits(document, pod.metadata.namespace, spec)
        pod = with_affinity(replace(pod, spec=_with_default_tolerations(spec)))
        for phrase in rule_phrases(pod):
            self._exclusive[phrase][document.name] = None
        return pod

    def admit_group(self, group: CustomObject) -> CustomObject:
        """Return a PodGroup of Kubernetes' own API with a priority, as the API server stores it."""
        spec = group.spec
        if group.api_version not in native.APIS or not isinstance(spec, dict) or "priority" in spec:
            return group
        name = spec.get("priorityClassName")
        priority = self._priorities.get(str(name), 0) if name else self._default_priority
        return replace(group, spec={**spec, "priority": priority})

    def notes(self) -> Iterator[str]:
        """Yield notes about fields that could not be added, and about rules that are not checked."""
        effects = {
            "PriorityClass": "with priority 0",
            "RuntimeClass": "without its node selector, tolerations and overhead",
        }
        for (kind, name), count in sorted(self._unknown.items()):
            pods = f"{count} {plural('pod', count)} of it {'is' if count == 1 else 'are'} planned"
            yield f"{kind} {name} is not in the input: {pods} {effects[kind]}"
        for phrase, names in self._exclusive.items():
            webhook = "by the pod affinity that its controller's webhook adds"
            yield f"{list_names(list(names))}: {phrase}, {webhook}"
        for limit_range in sorted(self._limit_ranges, key=lambda item: item.metadata.namespace):
            if any(
                limit.has_bounds and limit.type in ("Pod", "Container")
                for limit in limit_range.spec.limits or ()
            ):
                name = f"{limit_range.metadata.namespace}/{limit_range.metadata.name}"
                yield (
                    f"LimitRange {name}: its min, max and maxLimitRequestRatio are not "
                    "checked here: the API server refuses pods outside them"
                )

    def _priority(self, pod: PodManifest) -> int:
        spec, priority = pod.spec, pod.spec.priority
        if priority is None and spec.priority_class_name:
            priority = self._priorities.get(spec.priority_class_name)
            if priority is None:
                self._unknown["PriorityClass", spec.priority_class_name] += 1
                self.unknown_classes[pod.metadata.uid] = spec.priority_class_name
        elif priority is None:
            priority = self._default_priority
        return priority or 0

    def _with_runtime_class(self, document: Document, spec: Spec) -> Spec:
        """Return the spec with the node selector, tolerations and overhead of its RuntimeClass."""
        name = spec.runtime_class_name
        runtime_class = self._runtime_classes.get(name)
        if runtime_class is None:
            self._unknown["RuntimeClass", name] += 1
            return spec
        scheduling = runtime_class.scheduling or shapes.RuntimeScheduling()
        selector = spec.node_selector or {}
        for key, value in (scheduling.node_selector or {}).items():
            if selector.get(key, value) != value:
                expected = f"expected {quote_value(value)}, as RuntimeClass {name} has it"
                raise document.error(
                    f"spec.nodeSelector[{key}]: {expected}, got {quote_value(selector[key])}"
                )
        fixed = (runtime_class.overhead.pod_fixed if runtime_class.overhead is not None else None) or {}
        if spec.overhead and not _are_equal(spec.overhead, fixed):
            raise document.error(f"spec.overhead: expected what RuntimeClass {name} says, or nothing")
        return replace(
            spec,
            node_selector={**selector, **(scheduling.node_selector or {})},
            tolerations=[*(spec.tolerations or ()), *(scheduling.tolerations or ())],
            overhead=fixed or None,
        )

    def _with_limits(self, document: Document, namespace: str, spec: Spec) -> Spec:
        """Return the spec with the defaults of the namespace's LimitRanges in its containers.

        Raises:
            Malformed: A request is above a limit by default.
        """
        for limit_range in self._limit_ranges:
            limits, requests = limit_range.defaults()
            if limit_range.metadata.namespace == namespace and (limits or requests):
                spec = replace(
                    spec,
                    containers=_with_defaults(spec.containers, limits, requests),
                    init_containers=_with_defaults(spec.init_containers, limits, requests),
                )
                by_default = f". The limit is that of LimitRange {namespace}/{limit_range.metadata.name}"
                shapes.check_amounts(document, replace(spec, resources=None), "spec", by_default)
        return spec


def _are_equal(amounts: Quantities, other_amounts: Quantities) -> bool:
    return amounts.keys() == other_amounts.keys() and all(
        quantities.parse(amount) == quantities.parse(other_amounts[resource])
        for resource, amount in amounts.items()
    )


def _with_defaults(
    containers: list[Container] | None, limits: Quantities, requests: Quantities
) -> list[Container] | None:
    """Return the containers with these limits and requests, for resources without own ones.

    A container's own limit stands for a missing request, before the LimitRange's request does.
    """
    return [
        replace(
            container,
            resources=ResourceRequirements(
                limits={**limits, **(own_resources.limits or {})},
                requests={**requests, **(own_resources.limits or {}), **(own_resources.requests or {})},
            ),
        )
        for container in containers or ()
        for own_resources in [container.resources or ResourceRequirements()]
    ] or containers


def _with_default_tolerations(spec: Spec) -> Spec:
    """Return the spec with DefaultTolerationSeconds: a toleration of each taint that no toleration names."""
    tolerations = spec.tolerations or []
    default_tolerations = [
        toleration
        for toleration in _UNREADY
        if not any(t.key in ("", toleration.key) and t.effect in ("", toleration.effect) for t in tolerations)
    ]
    return replace(spec, tolerations=[*tolerations, *default_tolerations]) if default_tolerations else spec


# --- a domain for one group alone ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rule:
    """The annotation that has the domain's label key, and the label whose value is the group's."""

    annotation: str
    group: str
    namespaces: LabelSelector | None = None
    """The namespaces of other groups. None means the pod's own."""
    priority: str = ""
    """The label with the priority of the pods that are kept apart. "" means any priority."""


_RULES = (
    _Rule(jobset.EXCLUSIVE, jobset.JOB_KEY, LabelSelector(), jobset.PRIORITY),
    _Rule(leaderworkerset.EXCLUSIVE, leaderworkerset.GROUP_KEY),
    _Rule(leaderworkerset.SUBGROUP_EXCLUSIVE, leaderworkerset.SUBGROUP_KEY),
)


def with_affinity(pod: PodManifest) -> PodManifest:
    """Return the pod with the affinity and labels that the webhooks add to it. Its priority is known."""
    labels = pod.metadata.labels or {}
    annotations = pod.metadata.annotations or {}
    if jobset.JOBSET_NAME in annotations and jobset.BY_NODE_SELECTOR not in annotations:
        labels = {**labels, jobset.PRIORITY: str(pod.spec.priority)}
        pod = replace(pod, metadata=replace(pod.metadata, labels=labels))
    for rule, domain, group in _rules_of(pod):
        affinity = _with_terms(pod.spec.affinity or Affinity(), rule, domain, group, labels)
        pod = replace(pod, spec=replace(pod.spec, affinity=affinity))
    return pod


def rule_phrases(pod: PodManifest) -> Iterator[str]:
    """Yield the pod's rules, as "annotation x: one rack for each group"."""
    for rule, domain, _ in _rules_of(pod):
        yield f"annotation {rule.annotation}: one {domain} for each group alone"


def _rules_of(pod: PodManifest) -> Iterator[tuple[_Rule, str, str]]:
    """Yield the rules that hold for a pod, each with the domain's label key and the group."""
    labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    for rule in _RULES:
        domain, group = annotations.get(rule.annotation), labels.get(rule.group)
        if domain and group and jobset.BY_NODE_SELECTOR not in annotations:
            yield rule, domain, group


def _with_terms(affinity: Affinity, rule: _Rule, domain: str, group: str, labels: dict[str, str]) -> Affinity:
    pod_affinity = affinity.pod_affinity or PodAffinity()
    pod_anti_affinity = affinity.pod_anti_affinity or PodAffinity()
    if _has_term_for(pod_affinity, domain) and _has_term_for(pod_anti_affinity, domain):
        return affinity
    own_group = [NodeSelectorRequirement(rule.group, "In", [group])]
    other_groups = [
        NodeSelectorRequirement(rule.group, "Exists"),
        NodeSelectorRequirement(rule.group, "NotIn", [group]),
    ]
    if rule.priority:
        other_groups.append(NodeSelectorRequirement(rule.priority, "In", [labels[rule.priority]]))
    return replace(
        affinity,
        pod_affinity=_with_term(pod_affinity, rule, domain, own_group),
        pod_anti_affinity=_with_term(pod_anti_affinity, rule, domain, other_groups),
    )


def _with_term(
    affinity: PodAffinity, rule: _Rule, domain: str, expressions: list[NodeSelectorRequirement]
) -> PodAffinity:
    selector = LabelSelector(match_expressions=expressions)
    term = PodAffinityTerm(domain, selector, namespace_selector=rule.namespaces)
    return replace(affinity, required=[*(affinity.required or ()), term])


def _has_term_for(affinity: PodAffinity, domain: str) -> bool:
    return any(term.topology_key == domain for term in affinity.required or ())
