"""Decide which nodes admit a role, and say why the other nodes refuse it.

This module models the checks of kube-scheduler's in-tree filters that matter most: readiness, cordons,
taints, node selectors, required node affinity, and the GPU resource that a node offers. The shim reports
other refusals, by role and node. The planner excludes these pairs, each with the name of the plugin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from muster.domain.causes.out_of_place import IN_SEVERAL_CLAIMS
from muster.domain.node import Node, Taint, TaintEffect
from muster.domain.request import Role, SelectorTerm, Toleration
from muster.placement.cluster.columns import Bools, Columns, Profile

Excluded = Mapping[str, Mapping[str, str]]
"""Role → node → the plugin of kube-scheduler that refuses the pair."""

NODE_NAME = "metadata.name"
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", TaintEffect.NO_SCHEDULE)
"""The taint that a cordon stands for: a pod that tolerates this taint may use a cordoned node."""


def admits(columns: Columns, role: Role, excluded: Excluded) -> Bools:
    """Return [row] bool: whether the node admits `role`. Free resources are not checked."""
    by_profile = [profile_refusal(profile, role) is None for profile in columns.profiles]
    admitted = np.array(by_profile, np.bool_)[columns.profile] & meets_selectors(columns, role)
    for node, plugin in excluded.get(role.name, {}).items():
        if plugin and node in columns.row:
            admitted[columns.row[node]] = False
    return admitted


def meets_selectors(columns: Columns, role: Role) -> Bools:
    """Return [row] bool: whether the node meets the node selector and the required affinity of the role."""
    selected = np.ones(len(columns.names), np.bool_)
    for term in role.rules.required:
        selected &= nodes_satisfying(columns, term)
    return selected & meets_affinity(columns, role) if role.rules.any_of else selected


def meets_affinity(columns: Columns, role: Role) -> Bools:
    """Return [row] bool: whether the node meets an alternative of the role's required affinity.

    As in the Kubernetes API, a term without requirements matches no node.
    """
    holds = np.zeros(len(columns.names), np.bool_)
    for terms in filter(None, role.rules.any_of):
        holds |= np.logical_and.reduce([nodes_satisfying(columns, term) for term in terms])
    return holds


def refusal(node: Node, role: Role) -> str | None:
    """Return why the node refuses the role, or None if it admits the role."""
    profile_reason = profile_refusal(node, role)
    if profile_reason is not None:
        return profile_reason
    for term in role.rules.required:
        if not matches(term, node):
            return selector_text(term)
    any_of = role.rules.any_of
    if any_of and not any(terms and all(matches(term, node) for term in terms) for terms in any_of):
        return affinity_text(any_of)
    return None


def offer_refusal(node: Node | Profile, role: Role) -> str | None:
    """Return why the node does not offer GPUs for the role, or None. A node may lack the GPU resource, or
    partitions with the member's number of GPUs.
    """
    if role.gpus and role.gpu_resource not in node.gpu_resources:
        return f"no {role.gpu_resource}"
    if role.slice and not (node.gpu_memory and role.slice.resource in node.memory_resources):
        return f"no {role.slice.resource}"
    if role.gpus > 1 and node.partitions:
        attribute = dict(node.partitions).get(role.gpus)
        if attribute is None:
            return f"partition of {role.gpus} GPUs: there is none"
        if attribute and attribute not in role.match_attributes:
            return f"partition of {role.gpus} GPUs: no claim has matchAttribute {attribute}"
        if role.several_claims:
            return f"partition of {role.gpus} GPUs: {IN_SEVERAL_CLAIMS}"
    return None


def profile_refusal(node: Node | Profile, role: Role) -> str | None:
    """Return why a node with this profile refuses the role, or None. Labels are not checked here."""
    tolerations = role.rules.tolerations
    if (reason := offer_refusal(node, role)) is not None:
        return reason
    if not node.ready:
        return "not ready"
    if node.unschedulable and not is_tolerated(UNSCHEDULABLE, tolerations):
        return "cordoned"
    for taint in node.taints:
        if taint.effect != TaintEffect.PREFER_NO_SCHEDULE and not is_tolerated(taint, tolerations):
            value = f"={taint.value}" if taint.value else ""
            return f"taint {taint.key}{value}:{taint.effect}"
    return None


def nodes_satisfying(columns: Columns, term: SelectorTerm) -> Bools:
    """Return [row] bool: whether the node satisfies one requirement.

    The requirement is evaluated once for each value of the label, because many nodes have equal values.
    """
    values = columns.nodes if term.key == NODE_NAME else columns.label(term.key)
    truth = np.zeros(len(values.names) + 1, np.bool_)  # the last entry is for code -1: no such label
    if term.operator in ("In", "NotIn"):
        truth[[values.index[value] for value in term.values if value in values.index]] = True
        if term.operator == "NotIn":
            truth = ~truth
    else:
        truth[:] = [satisfies(term, value) for value in (*values.names, None)]
    return truth[values.codes]


def is_tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    """Return whether a toleration covers the taint. An empty key with operator Exists covers all taints."""
    return any(
        (not toleration.effect or toleration.effect == taint.effect)
        and (toleration.key == taint.key or (not toleration.key and toleration.operator == "Exists"))
        and (
            toleration.operator == "Exists"
            or (toleration.operator in ("", "Equal") and toleration.value == taint.value)
        )
        for toleration in tolerations
    )


def matches(term: SelectorTerm, node: Node) -> bool:
    """Return whether the node satisfies one requirement."""
    return satisfies(term, node.name if term.key == NODE_NAME else node.labels.get(term.key))


def satisfies(term: SelectorTerm, value: str | None) -> bool:  # noqa: PLR0911 — one operator, one return
    """Return whether this value of the term's key satisfies the requirement.

    `value` is None if the node has no such key. As in the Kubernetes API, NotIn then holds. An empty value is
    a value.
    """
    match term.operator:
        case "In":
            return value in term.values
        case "NotIn":
            return value not in term.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            node_value = _parse_int64(value or "")
            limit = _parse_int64(term.values[0]) if len(term.values) == 1 else None
            if node_value is None or limit is None:
                return False
            return node_value > limit if term.operator == "Gt" else node_value < limit
    return False


def term_text(term: SelectorTerm) -> str:
    """Return a requirement as people write it: "pool=a100", "disk in (ssd, nvme)", "gpu exists"."""
    values = ", ".join(term.values)
    match term.operator:
        case "In" if len(term.values) == 1:
            return f"{term.key}={values}"
        case "In":
            return f"{term.key} in ({values})"
        case "NotIn":
            return f"{term.key} not in ({values})"
        case "Exists":
            return f"{term.key} exists"
        case "DoesNotExist":
            return f"{term.key} does not exist"
    return f"{term.key} {'>' if term.operator == 'Gt' else '<'} {values}"


def selector_text(term: SelectorTerm) -> str:
    """Return the sentence of a node selector's requirement that a node does not satisfy."""
    return f"selector {term_text(term)}"


def affinity_text(any_of: tuple[tuple[SelectorTerm, ...], ...]) -> str:
    """Return the sentence for required node affinity that a node does not satisfy in any alternative."""
    return "affinity " + " or ".join(" and ".join(map(term_text, terms)) for terms in any_of)


def _parse_int64(text: str) -> int | None:
    """Return the integer as Go's strconv.ParseInt reads it, or None.

    The API server accepts Gt and Lt with values that are no integers.
    """
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True, eq=False)
class _RefusedByAll(Mapping[str, str]):
    """The nodes that all of these maps refuse: node → its reason in the first map."""

    first_map: Mapping[str, str]
    other_maps: tuple[Mapping[str, str], ...]

    def __getitem__(self, node: str) -> str:
        if all(node in refusing for refusing in self.other_maps):
            return self.first_map[node]
        raise KeyError(node)

    def __iter__(self) -> Iterator[str]:
        return (node for node in self.first_map if all(node in refusing for refusing in self.other_maps))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def refused_by_all(refused: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
    """Return the nodes that all of these maps (at least one) refuse: node → its reason in the first map.

    The maps are not copied.
    """
    first, *other_maps = refused
    return _RefusedByAll(first, tuple(other_maps)) if other_maps else first
