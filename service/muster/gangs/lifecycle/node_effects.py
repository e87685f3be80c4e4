"""Which changes of a node void a plan on it, and which nodes a gang leaves out because of that.

A kubelet may write the labels and the status of its own node all the time. A gang whose plans stand on that
node must not wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from muster.domain.levels import FABRIC, NVLINK
from muster.domain.node import Node
from muster.domain.pod import Pod
from muster.domain.policies import Policies
from muster.domain.request import Request
from muster.gangs.capacity import requests
from muster.gangs.lifecycle import plans
from muster.gangs.lifecycle.state import State
from muster.gangs.record.gang import NODE_CHANGED, Exclusion, Gang
from muster.gangs.record.plan import Plan
from muster.placement.verify.admission import tolerates

PATIENCE = 2
"""How many plans of a gang a node may void before the gang leaves it out."""


def holds(state: State, plan: Plan, before: Node | None, after: Node | None) -> bool:
    """Return whether a plan on this node holds after the change."""
    if before is None or not is_same(plan.request, state.ledger.policies, before, after):
        return False
    return after is not None and (
        before.allocatable == after.allocatable or plans.plan_still_fits(state, plan)
    )


def is_same(request: Request, policies: Policies, before: Node, after: Node | None) -> bool:
    """Return whether nothing changed that a plan of the request stands on, but for what the node offers."""
    if after is None:
        return False
    others = replace(
        before,
        labels=after.labels,
        taints=after.taints,
        allocatable=after.allocatable,
        machine=after.machine,
        hands_out=after.hands_out,
        problems=after.problems,
    )
    if others != after or not (before.taints == after.taints or _tolerated(after, request)):
        return False
    read = labels_read(request, policies) if before.labels != after.labels else ()
    return all(before.labels.get(key) == after.labels.get(key) for key in read)


def _tolerated(node: Node, request: Request) -> bool:
    return not any(tolerates(node, role) for role in request.roles)


def labels_read(request: Request, policies: Policies) -> frozenset[str]:
    """Return the keys of node labels on which a plan of this request may stand."""
    keys = labels_of_domains(policies)
    keys.update(request.preferred_scopes)
    keys.update(each.scope for each in request.per_scope)
    keys.update(each.scope for each in request.subgroups)
    keys.update(scope for each in request.role_preferences for scope in each.scopes)
    keys.update(each.topology_key for each in request.constraints)
    for role in request.roles:
        keys.update(each.scope for each in role.segments)
        keys.update(term.key for terms in (role.rules.required, *role.rules.any_of) for term in terms)
    return frozenset(keys | {scope for scope in _required(request) if scope is not None})


def labels_of_domains(policies: Policies) -> set[str]:
    """Return the keys of node labels that name domains of levels."""
    keys = {FABRIC, *(key for level in (*policies.levels, NVLINK) for key in level.labels)}
    return keys.union(*policies.naming.trees)


def _required(request: Request) -> tuple[str | None, ...]:
    return (request.required_scope, *(role.required_scope for role in request.roles))


def leave_out(gang: Gang, node: str, pods: Iterable[Pod], now: float) -> bool:
    """Count that a change of the node voids a plan for these pods. From the second time on, leave the node
    out until all others were tried, and then for a time that grows. Return whether that is new."""
    gang.voided[node] += 1
    if gang.voided[node] < PATIENCE:
        return False
    said = f"it changed {gang.voided[node]} times under a plan"
    is_new = False
    for pair in {(requests.asks(pod), node) for pod in pods}:
        is_new |= pair not in gang.exclusions
        gang.refusals[pair] = gang.voided[node] - PATIENCE + 1
        gang.exclusions[pair] = Exclusion(now, NODE_CHANGED, said)
    return is_new


def forget_refusals(gang: Gang, node: str) -> None:
    """Try a node again that has changed. What it may not do is end its own exclusion by that."""
    if not gang.refusals and not gang.exclusions:
        return
    gang.exclusions = {
        pair: out for pair, out in gang.exclusions.items() if pair[1] != node or out.plugin == NODE_CHANGED
    }
    gang.refusals = {
        pair: times for pair, times in gang.refusals.items() if pair[1] != node or pair in gang.exclusions
    }
