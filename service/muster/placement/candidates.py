"""Which nodes admit a role, and what refused the others.

What kube-scheduler's in-tree filters decide and what matters for GPUs is modelled here: readiness, cordons,
taints, node selector and required node affinity, the offered GPU resource. What is not modelled comes back
as a pair (role, node) that a plugin refused, and is excluded by that plugin's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.domain.node import Node, Taint, TaintEffect
from muster.domain.request import Role, SelectorTerm, Toleration
from muster.domain.snapshot import Snapshot

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
    admitted: list[str] = []
    refused: dict[str, list[str]] = {}
    for name in sorted(snapshot.nodes):
        by = excluded.get((role.name, name)) or refusal(snapshot.nodes[name].node, role)
        if by is None:
            admitted.append(name)
        else:
            refused.setdefault(by, []).append(name)
    return Candidates(tuple(admitted), {by: tuple(names) for by, names in sorted(refused.items())})


def refusal(node: Node, role: Role) -> str | None:  # noqa: PLR0911 — one filter, one return
    """What on the node refuses the role, or None."""
    tolerations = role.rules.tolerations
    if role.gpus and role.gpu_resource not in node.gpu_resources:
        return f"no {role.gpu_resource}"
    if not node.ready:
        return "not ready"
    if node.unschedulable and not tolerated(UNSCHEDULABLE, tolerations):
        return "cordoned"
    for taint in node.taints:
        if taint.effect != TaintEffect.PREFER_NO_SCHEDULE and not tolerated(taint, tolerations):
            value = f"={taint.value}" if taint.value else ""
            return f"taint {taint.key}{value}:{taint.effect}"
    for term in role.rules.required:
        if not matches(term, node):
            return f"selector {term_text(term)}"
    any_of = role.rules.any_of
    # As in the API: a term without requirements matches no node.
    if any_of and not any(terms and all(matches(term, node) for term in terms) for terms in any_of):
        return "affinity " + " or ".join(" and ".join(map(term_text, terms)) for terms in any_of)
    return None


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


def matches(term: SelectorTerm, node: Node) -> bool:  # noqa: PLR0911 — one operator, one return
    """Whether the node satisfies one requirement. NotIn holds where the key is missing, as in the API."""
    value = node.name if term.key == NODE_NAME else node.labels.get(term.key)
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


def _int64(text: str) -> int | None:
    """The integer as Go's strconv.ParseInt reads it; None for what is none: the API server lets it by."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
