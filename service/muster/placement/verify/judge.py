"""Collect the errors that each theme finds, in a fixed order."""

from __future__ import annotations

from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.verify.admission import admission, capacities
from muster.placement.verify.constraints import between_pods, by_scope, scopes
from muster.placement.verify.costs import costs, crossings
from muster.placement.verify.damage import best_fit, damage, is_priced, preferences, priced_damage, unusable
from muster.placement.verify.links import links, rails, sockets
from muster.placement.verify.members import attributes, matching, members, proof, seen_by
from muster.placement.verify.parts import Fabric, by_node, spots_of_all, spots_of_nodes, spots_of_running

FEW_NODES = 40
"""The judge looks at all nodes of clusters up to this size. On larger ones that takes longer than a
decision."""


def verify(snapshot: Snapshot, request: Request, plan: Placed) -> tuple[str, ...]:
    """Return the errors in the plan, one sentence each; () if it is valid.

    `snapshot` is the cluster without the plan. The plan is not blamed for what existing members break without
    it: roles, segments and parts are checked only if the plan puts a member there.

    The best fit and priced damage depend on all nodes of the cluster. They rank plans and make none invalid.
    So they are counted on small clusters alone.
    """
    groups = by_node(plan.members)
    unknown = sorted(name for name in groups if name not in snapshot.nodes)
    if unknown:
        return tuple(f"node {name} is not in the cluster" for name in unknown)
    unmatched, snapshot = matching(request, plan), seen_by(request, snapshot)
    touched, old = spots_of_nodes(snapshot, groups), spots_of_running(snapshot, request)
    everyone = spots_of_all(touched, old)
    priced, few = bool(snapshot.typical) and is_priced(request), len(snapshot.nodes) <= FEW_NODES
    fabric = Fabric(snapshot, everyone.values(), in_words=" of " in plan.domain)
    kinds = fabric.kinds(touched, everyone)
    return (
        *members(request, plan),
        *attributes(snapshot, request, plan),
        *unmatched,
        *capacities(request, groups, touched),
        *admission(snapshot, request, plan),
        *scopes(fabric, request, plan, everyone),
        *by_scope(fabric, snapshot, request, plan, old),
        *between_pods(snapshot, request, plan),
        *crossings(fabric, snapshot, request, plan, everyone, few=few),
        *proof(plan),
        *costs(fabric, request, plan, groups, touched, old),
        *(() if priced else damage(plan, kinds, groups, touched)),
        *(priced_damage(snapshot, request, plan, groups) if priced and few else ()),
        *unusable(request, plan, groups, touched, old),
        *(best_fit(snapshot, request, plan, groups) if few else ()),
        *preferences(request, plan),
        *links(plan, kinds, everyone),
        *sockets(plan, kinds),
        *rails(request, plan, everyone.values()),
    )
