"""Show a gang whose members name attributes the GPUs that agree on them, in the place of NVLink domains.

The GPUs of such a member must agree on the attributes (`matchAttribute`): they lie in one group of the node.
That is the rule for members that may not span NVLink domains. So one mechanism serves both, and a gang has
one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from muster.domain.node import Node
from muster.domain.request import Request
from muster.domain.snapshot import NodeState
from muster.placement.cluster.columns import NOTHING, Columns, following


def attributes_of(request: Request) -> list[tuple[str, ...]]:
    """Return the different lists of attributes that roles with members name, without the empty one."""
    named = (role.match_attributes for role in request.roles if role.members and role.match_attributes)
    return list(dict.fromkeys(named))


@dataclass(frozen=True, slots=True)
class _Grouped:
    """A view with groups, and by node the state that its state was made of, with that."""

    attributes: tuple[str, ...] = ()
    states: Mapping[str, tuple[NodeState, NodeState]] = field(default_factory=dict)
    view: Columns = NOTHING


def by_attributes(view: Columns, request: Request) -> Columns:
    """Return the view with groups on nodes where GPUs agree on the gang's attributes, if it names any.

    It is cheap if the last gang with attributes named the same, and few nodes have changed since. Several
    threads may call this: the memo has one entry, which is replaced as a whole.
    """
    named = attributes_of(request)
    if not named:
        return view
    attributes, last = named[0], _latest[0]
    known = last.states if last.attributes == attributes else {}
    states = {}
    for name, state in view.snapshot.nodes.items():
        before = known.get(name)
        if before is None or before[0] is not state:
            before = (state, _grouped(state, attributes))
        states[name] = before
    snapshot = replace(view.snapshot, nodes={name: grouped for name, (_, grouped) in states.items()})
    grouped_view = following(last.view, snapshot)
    _latest[0] = _Grouped(attributes, states, grouped_view)
    return grouped_view


def _grouped(state: NodeState, attributes: tuple[str, ...]) -> NodeState:
    groups = groups_of(state.node, attributes)
    if not groups:
        return state
    topology = replace(state.node.topology, groups=groups)
    return replace(state, node=replace(state.node, topology=topology))


def groups_of(node: Node, attributes: tuple[str, ...]) -> tuple[int, ...]:
    """Return masks of the GPUs that agree on all the attributes; () if no two do.

    A GPU that agrees with no other one is a group of its own.
    """
    everything = (1 << node.topology.gpu_count) - 1
    groups = [everything]
    for attribute in attributes:
        masks = node.attribute_groups.get(attribute, ())
        # Only these can lie in the result. All products would be as many as masks to the power of attributes.
        parts = (group & mask for group in groups for mask in masks)
        groups = [part for part in parts if part.bit_count() > 1]
    alone = everything & ~sum(groups)
    groups += [1 << gpu for gpu in range(node.topology.gpu_count) if alone >> gpu & 1] if groups else []
    return tuple(sorted(groups, key=lambda mask: mask & -mask))


_latest = [_Grouped()]
