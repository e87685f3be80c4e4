"""The verdict: what each theme finds wrong, in a fixed order."""

from __future__ import annotations

from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.verify import admission, binding, capacity, constraints, links, members, scopes, spots
from muster.placement.verify.damage import damage, is_priced
from muster.placement.verify.fabric import Fabric


def verify(snapshot: Snapshot, request: Request, placed: Placed) -> tuple[str, ...]:
    """What is wrong with the plan, one sentence each; () when it is good.

    `snapshot` is the cluster without the plan. What running members break without it is not the plan's fault:
    roles, segments and parts are judged where it puts a member.
    """
    groups = spots.by_node(placed.members)
    unknown = sorted(groups.keys() - snapshot.nodes.keys())
    if unknown:
        return tuple(f"node {name} is not in the cluster" for name in unknown)
    touched, old = spots.touched(snapshot, groups), spots.running(snapshot, request)
    everyone = spots.together([*touched.values(), *old.values()])
    fabric = Fabric(snapshot, everyone.values())
    return (
        *members.members(request, placed),
        *capacity.capacities(request, groups, touched),
        *admission.admission(snapshot, request, placed),
        *scopes.scopes(fabric, request, placed, everyone),
        *binding.binding(fabric, snapshot, request, placed, old),
        *constraints.constraints(snapshot, request, placed),
        *scopes.crossings(fabric, snapshot, request, placed, everyone),
        *members.proof(placed),
        *(() if snapshot.typical and is_priced(request) else damage(placed, groups, touched)),
        *constraints.preferences(request, placed),
        *links.links(placed, [everyone[name] for name in touched]),
    )
