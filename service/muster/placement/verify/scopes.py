"""Check where the gang as a whole lies: its required scope, the scope that is claimed, the parts crossed."""

from __future__ import annotations

from collections.abc import Iterable

from muster.domain.decision import Placed
from muster.domain.levels import Level
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.verify.fabric import Fabric
from muster.placement.verify.labels import describes
from muster.placement.verify.spots import Spots


def scopes(fabric: Fabric, request: Request, placed: Placed, everyone: Spots) -> list[str]:
    """Return what is wrong with the required scope, and with the claimed preferred and narrowest scopes."""
    wrong, spots = [], everyone.values()
    if request.required_scope is not None and not fabric.common(spots, request.required_scope):
        wrong.append(f"no one {request.required_scope} holds all members, although it is required")
    claimed = placed.objective.preferred_reached
    preferred = next((scope for scope in request.preferred_scopes if fabric.common(spots, scope)), None)
    if claimed != preferred:
        wrong.append(f"the preferred scope that holds all members is {preferred}, not {claimed}")
    reached = placed.scope_reached
    if reached is not None and not any(
        describes(placed.domain, f"{reached} {part}") for part in fabric.common(spots, reached)
    ):
        wrong.append(f"the members do not lie in {reached}, {placed.domain}")
    if reached is None and placed.domain:
        wrong.append(f"no scope is reached, but the plan lies in {placed.domain}")
    narrow = ["nvlink-domain", "node", *(level.scope for level in reversed(fabric.levels))]
    if any(spot.gpus for spot in spots):
        narrow.insert(0, "gpu")
    if reached is not None:  # a label key that is no level may be wider or narrower than any level
        narrow = narrow[: narrow.index(reached if reached in narrow else "node")]
    wrong += [
        f"one {scope} holds all members, not only {reached}"
        for scope in narrow
        if fabric.common(spots, scope)
    ]
    return wrong


def crossings(
    fabric: Fabric, snapshot: Snapshot, request: Request, placed: Placed, everyone: Spots, *, few: bool
) -> list[str]:
    """Return a sentence if the number of touched parts is not what the plan claims.

    A level whose label no touched node has counts if any node of the cluster has it. Each touched node is a
    part of it then, so it ranks no plans: whether it is claimed is checked on clusters of `few` nodes alone.
    Members without GPUs touch nothing if others have GPUs.
    """
    claimed = placed.objective.crossings
    near = [spot.state for spot in everyone.values()]
    every = [*near, *snapshot.nodes.values()] if few else near
    said = () if few else [scope for scope, _ in claimed]
    scopes = [level.scope for level in snapshot.levels if level.scope in said or _carried(every, level)]
    scopes.append("node")
    if any(role.gpus or role.slice for role in request.roles if role.members):
        scopes.append("nvlink-domain")
    touching = [spot for spot in everyone.values() if spot.gpus or not spot.known] or everyone.values()
    counted = tuple((scope, len(fabric.touched_by_all(touching, scope))) for scope in scopes)
    if counted == claimed:
        return []
    numbers = [", ".join(f"{scope} {n}" for scope, n in crossings) for crossings in (counted, claimed)]
    return [f"the parts touched are {numbers[0]}, not {numbers[1]}"]


def _carried(states: Iterable[NodeState], level: Level) -> bool:
    """Return whether any of these nodes has a label of the level."""
    for state in states:
        labels = state.node.labels
        for key in level.labels:
            if labels.get(key):
                return True
    return False
