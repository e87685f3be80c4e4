"""Which nodes admit a role, and what refused the others.

What kube-scheduler's in-tree filters decide and what matters for GPUs is modelled here: readiness, cordons,
taints, node selector and required node affinity, the offered GPU resource. What is not modelled comes back
as a pair (role, node) that a plugin refused, and is excluded by that plugin's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from muster.domain.node import Node, Taint, TaintEffect
from muster.domain.request import Role, SelectorTerm, Toleration
from muster.domain.snapshot import Snapshot
from muster.placement.cluster.arrays import Codes
from muster.placement.cluster.columns import Bools, Columns, Profile, columns
from muster.placement.exclusions import of_role

NODE_NAME = "metadata.name"
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", TaintEffect.NO_SCHEDULE)
"""What a cordon stands for: a pod that tolerates it may go on a cordoned node."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Nodes that admit a role, by name, sorted; and those that do not, by the first thing that refused."""

    admitted: tuple[str, ...]
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def candidates(snapshot: Snapshot, role: Role, excluded: Mapping[tuple[str, str], str]) -> Candidates:
    """Which nodes admit `role`, whatever is free on them."""
    view = columns(snapshot)
    reason, reasons = _refusals(view, role, excluded)
    named: list[list[str]] = [[] for _ in reasons]
    admitted: list[str] = []
    for name, code in zip(view.names, reason.tolist(), strict=True):
        (named[code] if code >= 0 else admitted).append(name)
    refused = {by: tuple(sorted(names)) for by, names in sorted(zip(reasons, named, strict=True)) if names}
    return Candidates(tuple(sorted(admitted)), refused)


def admits(view: Columns, role: Role, excluded: Mapping[tuple[str, str], str]) -> Bools:
    """By row, whether the node admits `role`, whatever is free on it."""
    return _refusals(view, role, excluded)[0] < 0


def refusal(node: Node, role: Role) -> str | None:
    """What on the node refuses the role, or None."""
    by = profile_refusal(node, role)
    if by is not None:
        return by
    for term in role.rules.required:
        if not matches(term, node):
            return selector_text(term)
    any_of = role.rules.any_of
    # As in the API: a term without requirements matches no node.
    if any_of and not any(terms and all(matches(term, node) for term in terms) for terms in any_of):
        return affinity_text(any_of)
    return None


def profile_refusal(node: Node | Profile, role: Role) -> str | None:
    """What refuses the role that many nodes have in common, labels left aside, or None."""
    tolerations = role.rules.tolerations
    if role.gpus and role.gpu_resource not in node.gpu_resources:
        return f"no {role.gpu_resource}"
    if role.slice and not node.gpu_memory:
        return f"no {role.slice.resource}"
    if not node.ready:
        return "not ready"
    if node.unschedulable and not tolerated(UNSCHEDULABLE, tolerations):
        return "cordoned"
    for taint in node.taints:
        if taint.effect != TaintEffect.PREFER_NO_SCHEDULE and not tolerated(taint, tolerations):
            value = f"={taint.value}" if taint.value else ""
            return f"taint {taint.key}{value}:{taint.effect}"
    return None


def _refusals(
    view: Columns, role: Role, excluded: Mapping[tuple[str, str], str]
) -> tuple[Codes, tuple[str, ...]]:
    """`refusal` of all nodes at once, its code by row, -1 where none; exclusions come before it."""
    codes: dict[str | None, int] = {None: -1}

    def code(by: str | None) -> int:
        return codes.setdefault(by, len(codes) - 1)

    by_profile = [code(profile_refusal(profile, role)) for profile in view.profiles]
    reason: Codes = np.array(by_profile, np.int32)[view.profile]
    for term in role.rules.required:
        reason[(reason < 0) & ~holding(view, term)] = code(selector_text(term))
    any_of = role.rules.any_of
    if any_of:
        holds = [np.logical_and.reduce([holding(view, term) for term in terms]) for terms in any_of if terms]
        reason[(reason < 0) & ~np.logical_or.reduce(holds)] = code(affinity_text(any_of))
    for node, by in of_role(excluded, role.name).items():
        if by and node in view.row:
            reason[view.row[node]] = code(by)
    return reason, tuple(by for by in codes if by is not None)


def holding(view: Columns, term: SelectorTerm) -> Bools:
    """By row, whether the node satisfies one requirement: asked once a value, not once a node."""
    values = view.nodes if term.key == NODE_NAME else view.label(term.key)
    truth = np.zeros(len(values.names) + 1, np.bool_)  # the last slot is that of code -1, no such label
    if term.operator in ("In", "NotIn"):
        truth[[values.index[value] for value in term.values if value in values.index]] = True
        if term.operator == "NotIn":
            truth = ~truth
    else:
        truth[:] = [satisfies(term, value) for value in (*values.names, None)]
    return truth[values.codes]


def tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    """Whether one of the tolerations covers the taint. No key with operator Exists covers all."""
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
    """Whether the node satisfies one requirement."""
    return satisfies(term, node.name if term.key == NODE_NAME else node.labels.get(term.key))


def satisfies(term: SelectorTerm, value: str | None) -> bool:  # noqa: PLR0911 — one operator, one return
    """Whether this value of the term's key does; None where the node has no such key: NotIn holds then, as in
    the API. An empty value is a value."""
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
            left, right = _int64(value or ""), _int64(term.values[0]) if len(term.values) == 1 else None
            if left is None or right is None:
                return False
            return left > right if term.operator == "Gt" else left < right
    return False


def term_text(term: SelectorTerm) -> str:
    """A requirement as people write it: "pool=a100", "disk in (ssd, nvme)", "gpu exists"."""
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
    return f"selector {term_text(term)}"


def affinity_text(any_of: tuple[tuple[SelectorTerm, ...], ...]) -> str:
    return "affinity " + " or ".join(" and ".join(map(term_text, terms)) for terms in any_of)


def _int64(text: str) -> int | None:
    """The integer as Go's strconv.ParseInt reads it; None for what is none: the API server lets it by."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
