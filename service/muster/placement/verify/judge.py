"""Collect what each theme finds wrong, in a fixed order."""

from __future__ import annotations

from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.verify import (
    admission,
    between_pods,
    by_scope,
    capacity,
    links,
    matching,
    members,
    scopes,
    sockets,
    spots,
)
from muster.placement.verify.best_fit import best_fit
from muster.placement.verify.costs import costs
from muster.placement.verify.damage import damage, is_priced
from muster.placement.verify.fabric import Fabric
from muster.placement.verify.prices import priced_damage
from muster.placement.verify.unusable import unusable

FEW_NODES = 40
"""The judge looks at all nodes of clusters up to this size. On larger ones that takes longer than a
decision."""


def verify(snapshot: Snapshot, request: Request, placed: Placed) -> tuple[str, ...]:
    """Return what is wrong with the plan, one sentence each; () if it is valid.

    `snapshot` is the cluster without the plan. The plan is not blamed for what existing members break without
    it: roles, segments and parts are checked only if the plan puts a member there.

    The best fit and priced damage depend on all nodes of the cluster. They rank plans and make none invalid.
    So they are counted on small clusters alone.
    """
    groups = spots.by_node(placed.members)
    unknown = sorted(groups.keys() - snapshot.nodes.keys())
    if unknown:
        return tuple(f"node {name} is not in the cluster" for name in unknown)
    unmatched, snapshot = matching.matching(request, placed), matching.seen_by(request, snapshot)
    touched, old = spots.touched(snapshot, groups), spots.running(snapshot, request)
    everyone = spots.together([*touched.values(), *old.values()])
    priced, few = bool(snapshot.typical) and is_priced(request), len(snapshot.nodes) <= FEW_NODES
    fabric = Fabric(snapshot, everyone.values(), in_words=" of " in placed.domain)
    return (
        *members.members(request, placed),
        *members.attributes(snapshot, request, placed),
        *unmatched,
        *capacity.capacities(request, groups, touched),
        *admission.admission(snapshot, request, placed),
        *scopes.scopes(fabric, request, placed, everyone),
        *by_scope.by_scope(fabric, snapshot, request, placed, old),
        *between_pods.between_pods(snapshot, request, placed),
        *scopes.crossings(fabric, snapshot, request, placed, everyone, few=few),
        *members.proof(placed),
        *costs(fabric, request, placed, groups, touched, old),
        *(() if priced else damage(placed, groups, touched)),
        *(priced_damage(snapshot, request, placed, groups) if priced and few else ()),
        *unusable(request, placed, groups, touched, old),
        *(best_fit(snapshot, request, placed, groups) if few else ()),
        *between_pods.preferences(request, placed),
        *links.links(placed, [everyone[name] for name in touched]),
        *sockets.sockets(placed, [everyone[name] for name in touched]),
    )
