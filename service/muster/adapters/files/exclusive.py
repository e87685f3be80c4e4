"""Add the pod affinity of a topology domain for one group alone, as JobSet and LeaderWorkerSet do.

The first pod of a group looks for a domain without other groups. The controller makes the others when it has
a node, with the domain as their node selector. Here all are planned at once, so all get the affinity.
(kubernetes-sigs/jobset and kubernetes-sigs/lws, pkg/webhooks/pod_webhook.go.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from muster.adapters.files.shapes import PodManifest
from muster.dialects.kinds import jobset, leaderworkerset
from muster.dialects.objects import (
    Affinity,
    LabelSelector,
    NodeSelectorRequirement,
    PodAffinity,
    PodAffinityTerm,
)


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


def phrases(pod: PodManifest) -> Iterator[str]:
    """Yield what the pod asks for, as "annotation x: one rack for each group"."""
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
    near = affinity.pod_affinity or PodAffinity()
    away = affinity.pod_anti_affinity or PodAffinity()
    if _has(near, domain) and _has(away, domain):
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
        pod_affinity=_with_term(near, rule, domain, own_group),
        pod_anti_affinity=_with_term(away, rule, domain, other_groups),
    )


def _with_term(
    affinity: PodAffinity, rule: _Rule, domain: str, expressions: list[NodeSelectorRequirement]
) -> PodAffinity:
    selector = LabelSelector(match_expressions=expressions)
    term = PodAffinityTerm(domain, selector, namespace_selector=rule.namespaces)
    return replace(affinity, required=[*(affinity.required or ()), term])


def _has(affinity: PodAffinity, domain: str) -> bool:
    return any(term.topology_key == domain for term in affinity.required or ())
