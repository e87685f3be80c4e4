"""The answers of the service over HTTP: docs/schemas/status-v1.json is generated from these types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypedDict

from muster.domain import exactness
from muster.domain.levels import NVLINK
from muster.domain.printable import printable
from muster.domain.snapshot import NodeState, Snapshot
from muster.gangs.record.gang import GangView
from muster.gangs.reporting.places import Owner

VERSION: Literal[1] = 1
"""The version is raised when a field is removed or changes its meaning. Fields may be added without a new
version."""


class Status(TypedDict):
    """The gangs of a running service. `ready`: whether the service has seen the whole cluster."""

    version: Literal[1]
    kind: Literal["status"]
    ready: bool
    gangs: list[GangView]
    notes: list[str]


class Explanation(TypedDict):
    """Details of the gangs of one name: the decision, timeline and traces of each.

    With `alternatives` in the query, the first gangs also have `alternatives`: see docs/operations.md.
    """

    version: Literal[1]
    kind: Literal["explain"]
    gangs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NvlinkDomainView:
    """An NVLink domain inside a node."""

    name: str
    gpus: int
    free: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with GPUs.

    `free` counts GPUs that no pod has and no plan holds. `domains`: scope → the node's domain. `exact`:
    containers get the planned GPUs of the node. `why` is the word of `HandsOut` for the component that gives
    other GPUs; "" if the node is exact.

    `islands`: the NVLink domains inside the node, if no label names its NVLink domain; none if pods hold GPUs
    with unknown indices. `owners`: the gangs and pods that have the other GPUs, or will get them.
    """

    name: str
    model: str
    gpus: int
    free: int
    takes_pods: bool
    domains: Mapping[str, str]
    exact: bool
    why: str
    islands: tuple[NvlinkDomainView, ...] = ()
    owners: tuple[Owner, ...] = ()


class Nodes(TypedDict):
    """The nodes with GPUs of a running service, and the scopes that have names."""

    version: Literal[1]
    kind: Literal["nodes"]
    scopes: list[str]
    nodes: list[NodeView]


def nodes_of(
    snapshot: Snapshot,
    model_label: str,
    domains: Mapping[str, Mapping[str, str]],
    owners: Mapping[str, tuple[Owner, ...]] = MappingProxyType({}),
) -> Nodes:
    """Return the nodes with GPUs, by name. `domains`: scope → node → its domain. `owners`: by node."""
    states = [state for state in snapshot.nodes.values() if state.node.topology.gpu_count]
    return Nodes(
        version=VERSION,
        kind="nodes",
        scopes=list(domains),
        nodes=[
            NodeView(
                state.node.name,
                printable(state.node.labels.get(model_label) or state.node.machine),
                state.node.topology.gpu_count,
                state.free_gpu_count,
                state.node.ready and not state.node.unschedulable,
                {
                    scope: printable(domain_name)
                    for scope, domain_of in domains.items()
                    if (domain_name := domain_of[state.node.name])
                },
                exactness.why_not(state.node) is None,
                exactness.why_not(state.node) or "",
                () if domains[NVLINK.scope][state.node.name] else _islands(state),
                owners.get(state.node.name, ()),
            )
            for state in states
        ],
    )


def _islands(state: NodeState) -> tuple[NvlinkDomainView, ...]:
    name, sizes = state.node.name, map(int.bit_count, state.node.topology.islands)
    islands = enumerate(zip(sizes, state.free_by_island, strict=False))
    return tuple(NvlinkDomainView(f"{name}/{index}", size, free) for index, (size, free) in islands)
