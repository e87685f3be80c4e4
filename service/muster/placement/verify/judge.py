"""Collect the errors that each theme finds, in a fixed order."""

from __future__ import annotations

from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.verify import admission, constraints, costs, damage, links, members
from muster.placement.verify.parts import Fabric, by_node, spots_of_all, spots_of_nodes, spots_of_running

FEW_NODES = 40
"""The judge looks at all nodes of clusters up to this size. On larger ones that takes longer than a
decision."""


def verify(snapshot: Snapshot, request: Request, plan: Placed) -> tuple[str, ...]:
    """Return the errors in the plan, one sentence each; () if it is valid.

    `snapshot` is the cluster without the plan. What running members break by themselves is no error of the
    plan: roles, segments and parts are checked only if the plan puts a member there.

    The best fit and priced damage depend on all nodes of the cluster. They only rank valid plans. So they are
    counted on small clusters alone.
    """
    groups = by_node(plan.members)
    unknown = sorted(name for name in groups if name not in snapshot.nodes)
    if unknown:
        return tuple(f"node {name} is not in the cluster" for name in unknown)
    unmatched, snapshot = members.check_matching(request, plan), members.mark_unusable_gpus(request, snapshot)
    new_spots, old = spots_of_nodes(snapshot, groups), spots_of_running(snapshot, request)
    everyone = spots_of_all(new_spots, old)
    priced, few = bool(snapshot.typical) and damage.is_priced(request), len(snapshot.nodes) <= FEW_NODES
    fabric = Fabric(snapshot, everyone.values(), in_words=" of " in plan.domain)
    kinds = fabric.kinds(new_spots, everyone)
    return (
        *members.check_members(request, plan),
        *members.check_attributes(snapshot, request, plan),
        *unmatched,
        *admission.check_capacities(request, groups, new_spots),
        *admission.check_admission(snapshot, request, plan),
        *constraints.check_scopes(fabric, request, plan, everyone),
        *constraints.check_by_scope(fabric, snapshot, request, plan, old),
        *constraints.check_between_pods(snapshot, request, plan),
        *costs.check_crossings(fabric, snapshot, request, plan, everyone, few=few),
        *members.check_proof(plan),
        *costs.check_costs(fabric, request, plan, groups, new_spots, old),
        *(() if priced else damage.check_damage(plan, kinds, groups, new_spots)),
        *(damage.check_priced_damage(snapshot, request, plan, groups) if priced and few else ()),
        *damage.check_unusable(request, plan, groups, new_spots, old),
        *(damage.check_best_fit(snapshot, request, plan, groups) if few else ()),
        *damage.check_preferences(request, plan),
        *links.check_links(plan, kinds, everyone),
        *links.check_sockets(plan, kinds),
        *links.check_rails(request, plan, everyone.values()),
    )
