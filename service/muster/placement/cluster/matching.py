"""Show a gang the GPUs that its members may have, and the GPUs that agree on attributes its members name.

Selectors in claims may match some GPUs of a node. Tolerations in claims may also allow GPUs whose devices
have taints. All other GPUs count as unhealthy for the gang. Methods, bounds and
explanations handle unhealthy GPUs already, so they need no code for claims. All members may use the same set
of GPUs on a node. If roles match different GPUs of a node, the gang may use none of its GPUs. Only roles that
the node can serve count, because shares and whole GPUs may be on different nodes.

The GPUs of a member that names attributes must agree on them (`matchAttribute`): they lie in one group of the
node. That is the same rule as for members that may not span NVLink domains. So groups take the place of
NVLink domains, one mechanism serves both, and a gang has either groups or NVLink domains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeVar

from muster.domain.decision import MemberPlacement
from muster.domain.node import Node
from muster.domain.request import Request, Role, Subrequest
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import mask_of
from muster.placement.cluster.candidates import offer_refusal
from muster.placement.cluster.columns import NO_COLUMNS, Columns, columns_after, columns_of

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class _MemoizedColumns(Generic[K]):
    """The last columns of a cluster with changed GPUs.

    `states` maps a node to its state, its key, and the changed state that is made from both.
    """

    snapshot: Snapshot | None = None
    keys: Mapping[str, K] = field(default_factory=dict)
    states: Mapping[str, tuple[NodeState, K, NodeState]] = field(default_factory=dict)
    columns: Columns = NO_COLUMNS


def _memoized_columns(
    memo: list[_MemoizedColumns[K]],
    snapshot: Snapshot,
    keys: Mapping[str, K],
    make: Callable[[NodeState, K], NodeState],
) -> Columns:
    """Return the columns of the snapshot in which the nodes of `keys` have the states that `make` returns.

    The call is cheap if the last keys were the same, and few nodes have changed since. Several threads may
    call this: the memo has one entry, which is replaced as a whole.
    """
    last = memo[0]
    if last.snapshot is snapshot and last.keys == keys:
        return last.columns
    states: dict[str, tuple[NodeState, K, NodeState]] = {}
    for name, key in keys.items():
        state, entry = snapshot.nodes[name], last.states.get(name)
        if entry is None or entry[0] is not state or entry[1] != key:
            entry = (state, key, make(state, key))
        states[name] = entry
    nodes = {**snapshot.nodes, **{name: shown for name, (*_, shown) in states.items()}}
    columns = columns_after(last.columns, replace(snapshot, nodes=nodes))
    memo[0] = _MemoizedColumns(snapshot, keys, states, columns)
    return columns


@dataclass(frozen=True, eq=False)
class GangCluster:
    """The cluster as a gang sees it. Each part is read once, when the part is first needed."""

    snapshot: Snapshot
    request: Request

    @cached_property
    def columns(self) -> Columns:
        """The nodes with the GPUs that the gang may have: all GPUs, for most gangs."""
        if not self.masks:
            return columns_of(self.snapshot)
        return _memoized_columns(_latest_matched, self.snapshot, self.masks, _with_gpus_only)

    @cached_property
    def masks(self) -> Mapping[str, int]:
        """Node → bit mask of the GPUs that the gang may have. Other nodes: all GPUs without taints.

        Until a subrequest is chosen (`variants_by_subrequest`), the gang may have any GPU.
        """
        if any(role.subrequests for role in self._roles_with_gpus):
            return {}
        masks = {}
        for name in dict.fromkeys(name for role in self._roles_with_gpus for name in role.matching):
            state = self.snapshot.nodes.get(name)
            if state is None:
                continue
            all_gpus_mask, untainted = (1 << state.node.topology.gpu_count) - 1, state.node.untainted_gpus
            masks_of_roles = {mask & all_gpus_mask for mask in self._masks_on(state.node, untainted)}
            if not masks_of_roles:
                continue
            mask = masks_of_roles.pop() if len(masks_of_roles) == 1 else 0
            if mask != untainted:
                masks[name] = mask
        return masks

    def count_differing_nodes(self, nodes: Iterable[str]) -> int:
        """Return on how many of these nodes roles match different GPUs."""
        states = (self.snapshot.nodes[name] for name in nodes)
        return sum(len(self._masks_on(state.node, -1)) > 1 for state in states)

    def _masks_on(self, node: Node, default: int) -> set[int]:
        """Return the masks of roles that the node can serve; `default` if a role names no GPUs there."""
        offered = (role for role in self._roles_with_gpus if offer_refusal(node, role) is None)
        return {role.matching.get(node.name, default) for role in offered}

    @cached_property
    def _roles_with_gpus(self) -> list[Role]:
        """The roles with members that take GPUs, or shares of GPUs."""
        return [role for role in self.request.roles if (role.gpus or role.slice) and role.members]

    @cached_property
    def attributes(self) -> tuple[tuple[str, ...], ...]:
        """The lists of attributes that the gang's roles name, as `attributes_of` returns them."""
        return attributes_of(self.request.roles)

    @cached_property
    def columns_with_groups(self) -> Columns:
        """The nodes of `columns`, each with groups of GPUs that agree on the attributes of the gang's claims.

        Without such attributes, these are `columns`.
        """
        if not self.attributes:
            return self.columns
        snapshot = self.columns.snapshot
        keys = dict.fromkeys(snapshot.nodes, self.attributes[0])
        return _memoized_columns(_latest_grouped, snapshot, keys, _with_groups)


def attributes_of(roles: Iterable[Role]) -> tuple[tuple[str, ...], ...]:
    """Return the different lists of attributes that roles with members name, without the empty list."""
    attributes = (role.match_attributes for role in roles if role.members and role.match_attributes)
    return tuple(dict.fromkeys(attributes))


def variants_by_subrequest(snapshot: Snapshot, request: Request) -> Iterator[Request]:
    """Yield variants of the request, the best first. In each, all members of a role take one subrequest.

    A role with fewer subrequests than others takes its last one again. If all subrequests ask for the same
    number of GPUs, the last variant lets each node use another subrequest (`_any_subrequest_per_node`).
    """
    max_subrequests = max(len(role.subrequests) for role in request.roles)
    if not max_subrequests:
        yield request
        return
    tried = list[Request]()
    for rank in range(max_subrequests):
        variant = _with_roles(
            request, [_with_subrequest(role, _subrequest_at(role, rank)) for role in request.roles]
        )
        if variant not in tried:
            tried.append(variant)
            yield variant
    if any(sub.gpus != role.gpus or sub.takes_all for role in request.roles for sub in role.subrequests):
        return
    mixed = _with_roles(request, [_any_subrequest_per_node(snapshot, role) for role in request.roles])
    if mixed.roles not in [
        tuple(replace(role, chosen_subrequest=None) for role in earlier.roles) for earlier in tried
    ]:
        yield mixed


def request_of_plan(snapshot: Snapshot, request: Request, members: Iterable[MemberPlacement]) -> Request:
    """Return the request with the subrequest that a plan took, for each role whose members all took one."""
    if not any(role.subrequests for role in request.roles):
        return request
    by_role: dict[str, set[tuple[str, int, int]]] = {}
    for member in members:
        untainted = ~snapshot.nodes[member.node].node.tainted
        by_role.setdefault(member.role, set()).add((member.node, mask_of(member.gpus), untainted))
    roles = []
    for role in request.roles:
        places = by_role.get(role.name, ())
        serving = (sub for sub in role.subrequests if all(serves(sub, *place) for place in places))
        roles.append(_with_subrequest(role, next(serving, None)) if places else role)
    return _with_roles(request, roles)


def serves(subrequest: Subrequest, node: str, gpus: int, untainted: int) -> bool:
    """Return whether the subrequest lets a member have these GPUs of a node, a bit mask.

    On a node that the subrequest does not name, the member may have the GPUs without taints.
    """
    return gpus.bit_count() == subrequest.gpus and not gpus & ~subrequest.matching.get(node, untainted)


def _subrequest_at(role: Role, rank: int) -> Subrequest | None:
    """Return the role's subrequest with this index, or its last one; None if the role has none."""
    return role.subrequests[min(rank, len(role.subrequests) - 1)] if role.subrequests else None


def _with_subrequest(role: Role, subrequest: Subrequest | None) -> Role:
    """Return the role with this subrequest; the same role for None."""
    if subrequest is None:
        return role
    return replace(
        role,
        gpus=subrequest.gpus,
        match_attributes=role.match_attributes if subrequest.gpus > 1 else (),
        matching=subrequest.matching,
        subrequests=(),
        chosen_subrequest=subrequest,
    )


def _with_roles(request: Request, roles: Sequence[Role]) -> Request:
    return replace(request, roles=tuple(roles))


def _any_subrequest_per_node(snapshot: Snapshot, role: Role) -> Role:
    """Return the role with one subrequest for each node: the first for which a member's GPUs are free there.

    A node without such a subrequest gets the first subrequest.
    """
    if not role.subrequests:
        return role
    matching = {}
    for name in dict.fromkeys(name for sub in role.subrequests for name in sub.matching):
        state = snapshot.nodes.get(name)
        if state is not None:
            masks = [sub.matching.get(name, state.node.untainted_gpus) for sub in role.subrequests]
            free = state.free_gpus | state.tainted
            matching[name] = next(
                (mask for mask in masks if (mask & free).bit_count() >= role.gpus), masks[0]
            )
    return replace(role, matching=matching, subrequests=())


def _with_gpus_only(state: NodeState, mask: int) -> NodeState:
    """Return the state with these GPUs alone. GPUs with taints count as healthy, but serve no slices."""
    hidden = ((1 << state.node.topology.gpu_count) - 1) & ~mask
    unhealthy = state.node.unhealthy & ~(state.node.tainted & mask) | hidden
    node = replace(state.node, unhealthy=unhealthy, tainted=0)
    free = (state.free_gpus | state.tainted) & mask
    memory = tuple(units if mask >> gpu & 1 else 0 for gpu, units in enumerate(state.memory))
    return replace(state, node=node, free_gpus=free, tainted=0, memory=memory)


_latest_matched: list[_MemoizedColumns[int]] = [_MemoizedColumns()]


def _with_groups(state: NodeState, attributes: tuple[str, ...]) -> NodeState:
    groups = groups_of(state.node, attributes)
    if not groups:
        return state
    topology = replace(state.node.topology, groups=groups)
    return replace(state, node=replace(state.node, topology=topology))


def groups_of(node: Node, attributes: tuple[str, ...]) -> tuple[int, ...]:
    """Return masks of the GPUs that agree on all the attributes; () if no two do.

    A GPU that agrees with no other GPU is a group of its own.
    """
    everything = (1 << node.topology.gpu_count) - 1
    groups = [everything]
    for attribute in attributes:
        masks = node.attribute_groups.get(attribute, ())
        # Only these can lie in the result. All products would be as many as masks to the power of attributes.
        parts = (group & mask for group in groups for mask in masks)
        groups = [part for part in parts if part.bit_count() > 1]
    ungrouped_gpus = everything & ~sum(groups)
    groups += (
        [1 << gpu for gpu in range(node.topology.gpu_count) if ungrouped_gpus >> gpu & 1] if groups else []
    )
    return tuple(sorted(groups, key=lambda mask: mask & -mask))


_latest_grouped: list[_MemoizedColumns[tuple[str, ...]]] = [_MemoizedColumns()]
