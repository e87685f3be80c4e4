"""Check that nodes admit members: resources offered, readiness, cordons, taints, selectors, affinity."""

from __future__ import annotations

from muster.domain.decision import Placed
from muster.domain.node import Node, TaintEffect
from muster.domain.request import Request, Role, SelectorTerm
from muster.domain.snapshot import Snapshot


def admission(snapshot: Snapshot, request: Request, placed: Placed) -> list[str]:
    """Return a sentence for each role and node of the plan where the node does not admit the role."""
    roles = {role.name: role for role in request.roles}
    pairs = sorted({(m.role, m.node) for m in placed.members if m.role in roles})
    return [
        f"node {name} does not admit role {role}: {why}"
        for role, name in pairs
        if (why := _refused(snapshot.nodes[name].node, roles[role]))
    ]


def _refused(node: Node, role: Role) -> str:
    shares = node.memory_resources if node.gpu_memory else frozenset()
    if role.gpus and role.gpu_resource not in node.gpu_resources:
        return f"it does not offer {role.gpu_resource}"
    if role.slice and role.slice.resource not in shares:
        return f"it does not offer {role.slice.resource}"
    if not node.ready:
        return "not ready"
    taint = tolerates(node, role)
    if (
        node.unschedulable
        and not taint
        and not _covered(role, "node.kubernetes.io/unschedulable", "", "NoSchedule")
    ):
        taint = "taint node.kubernetes.io/unschedulable"
    return taint or selected(node, role)


def tolerates(node: Node, role: Role) -> str:
    """Return the first taint of the node that the role does not tolerate, "" if it tolerates all."""
    for taint in node.taints:
        kept_off = taint.effect != TaintEffect.PREFER_NO_SCHEDULE
        if kept_off and not _covered(role, taint.key, taint.value, taint.effect):
            return f"taint {taint.key}"
    return ""


def _covered(role: Role, key: str, value: str, effect: str) -> bool:
    for t in role.rules.tolerations:
        same_key = t.key == key or (t.key == "" and t.operator == "Exists")
        same_value = t.operator == "Exists" or (t.operator in ("", "Equal") and t.value == value)
        if same_key and same_value and t.effect in ("", effect):
            return True
    return False


def selected(node: Node, role: Role) -> str:
    """Return what the node does not meet of the role's node selector and affinity, "" if it meets all."""
    for term in role.rules.required:
        if not _holds(term, node):
            return f"selector on {term.key}"
    if role.rules.any_of and not any(
        terms and all(_holds(term, node) for term in terms) for terms in role.rules.any_of
    ):
        return "affinity"
    return ""


def _holds(term: SelectorTerm, node: Node) -> bool:
    labels = {**node.labels, "metadata.name": node.name}
    has = term.key in labels
    if term.operator in ("Exists", "DoesNotExist"):
        return has == (term.operator == "Exists")
    if term.operator in ("In", "NotIn"):
        return (has and labels[term.key] in term.values) == (term.operator == "In")
    numbers = [labels.get(term.key, ""), *term.values]
    if len(numbers) != 2 or not all(text.lstrip("+-").isdigit() and text.isascii() for text in numbers):
        return False
    try:
        left, right = map(int, numbers)
    except ValueError:
        return False
    return {"Gt": left > right, "Lt": left < right}.get(term.operator, False)
