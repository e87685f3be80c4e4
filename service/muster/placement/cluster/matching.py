"""Show a gang the GPUs that its members may have: selectors in claims may match some GPUs of a node.

Tolerations in claims may also allow GPUs whose devices have taints. All other GPUs count as unhealthy in the
gang's view of the cluster. That is a rule which all methods, bounds and explanations have already, so they
need no code for it. What members may have is one set of GPUs on each node. If roles match different GPUs of
a node, none of its GPUs is the gang's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.cluster.columns import NOTHING, Columns, columns, following

_States = Mapping[str, tuple[NodeState, int, NodeState]]


@dataclass(frozen=True, slots=True)
class _Matched:
    """The view of the last such gang. `states` has by node the state, its mask, and what they make."""

    snapshot: Snapshot | None = None
    masks: Mapping[str, int] = field(default_factory=dict)
    states: _States = field(default_factory=dict)
    view: Columns = NOTHING


def masks_of(snapshot: Snapshot, request: Request) -> dict[str, int]:
    """Return node → bit mask of the GPUs that the gang may have.

    Nodes where these are all that have no taint are left out. Until a subrequest is chosen (`by_subrequest`)
    the gang may have any GPU.

    Roles that take no GPUs, or have no members, do not count.
    """
    asking = [role for role in request.roles if role.gpus and role.members]
    if any(role.subrequests for role in asking):
        return {}
    roles = [role.matching for role in asking]
    masks = {}
    for name in dict.fromkeys(name for matching in roles for name in matching):
        state = snapshot.nodes.get(name)
        if state is None:
            continue
        every = (1 << state.node.topology.gpu_count) - 1
        untainted = every & ~state.node.tainted
        found = {matching.get(name, untainted) & every for matching in roles}
        mask = found.pop() if len(found) == 1 else 0
        if mask != untainted:
            masks[name] = mask
    return masks


def by_subrequest(snapshot: Snapshot, request: Request) -> Iterator[Request]:
    """Yield the request for each subrequest of its roles, which is taken by all members. The first is best.

    A role with fewer subrequests than others has its last one. At last each node is for the first
    subrequest with enough free GPUs there for a member.
    """
    most = max(len(role.subrequests) for role in request.roles)
    if not most:
        yield request
        return
    seen = list[Request]()
    for rank in range(most + 1):
        each = _with(request, [_in_turn(role)[: rank + 1][-1] for role in request.roles])
        if each not in seen:
            seen.append(each)
            yield each
    mixed = _with(request, [_mixed(snapshot, role) for role in request.roles])
    if mixed not in seen:
        yield mixed


def _in_turn(role: Role) -> tuple[Mapping[str, int], ...]:
    return role.matching, *role.subrequests


def _with(request: Request, matching: Sequence[Mapping[str, int]]) -> Request:
    pairs = zip(request.roles, matching, strict=True)
    return replace(request, roles=tuple(replace(role, matching=each, subrequests=()) for role, each in pairs))


def _mixed(snapshot: Snapshot, role: Role) -> dict[str, int]:
    found = {}
    for name in dict.fromkeys(name for matching in _in_turn(role) for name in matching):
        state = snapshot.nodes.get(name)
        if state is not None:
            untainted = (1 << state.node.topology.gpu_count) - 1 & ~state.node.tainted
            masks = [matching.get(name, untainted) for matching in _in_turn(role)]
            free = state.free_gpus | state.tainted
            found[name] = next((mask for mask in masks if (mask & free).bit_count() >= role.gpus), masks[0])
    return found


def differing(request: Request) -> set[str]:
    """Return the nodes where roles match different GPUs."""
    roles = [role.matching for role in request.roles if role.gpus and role.members]
    nodes = {name for matching in roles for name in matching}
    return {name for name in nodes if len({matching.get(name) for matching in roles}) > 1}


def view_of(snapshot: Snapshot, request: Request) -> Columns:
    """Return the cluster as columns, with the GPUs that the gang may have.

    Gangs without such a rule have the view of `columns`. Several threads may call this: the memo has one
    entry, which is replaced as a whole.
    """
    masks = masks_of(snapshot, request)
    if not masks:
        return columns(snapshot)
    last = _latest[0]
    if last.snapshot is snapshot and last.masks == masks:
        return last.view
    states: dict[str, tuple[NodeState, int, NodeState]] = {}
    for name, mask in masks.items():
        state, before = snapshot.nodes[name], last.states.get(name)
        same = before is not None and before[0] is state and before[1] == mask
        states[name] = before if same and before is not None else (state, mask, _only(state, mask))
    nodes = {**snapshot.nodes, **{name: shown for name, (*_, shown) in states.items()}}
    view = following(last.view, replace(snapshot, nodes=nodes))
    _latest[0] = _Matched(snapshot, masks, states, view)
    return view


def _only(state: NodeState, mask: int) -> NodeState:
    """Return the state with these GPUs alone. Those with taints are sound."""
    hidden = ((1 << state.node.topology.gpu_count) - 1) & ~mask
    unhealthy = state.node.unhealthy & ~(state.node.tainted & mask) | hidden
    node = replace(state.node, unhealthy=unhealthy, tainted=0)
    return replace(state, node=node, free_gpus=(state.free_gpus | state.tainted) & mask, tainted=0)


_latest = [_Matched()]
