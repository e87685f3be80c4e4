"""The answers of the service over HTTP: docs/schemas/status-v1.json is generated from these types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

from muster.domain.levels import Hierarchy, domains_of
from muster.domain.printable import printable
from muster.domain.request import Scope
from muster.domain.snapshot import Snapshot
from muster.gangs.record.gang import GangView

VERSION: Literal[1] = 1
"""It is raised when a field is removed or changes its meaning. Fields may be added without that."""


class Status(TypedDict):
    """The gangs of a running service. `ready`: whether it has seen the whole cluster."""

    version: Literal[1]
    kind: Literal["status"]
    ready: bool
    gangs: list[GangView]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with GPUs. `free` counts those that no pod has and no plan holds.

    `domains`: scope → the node's domain in it.
    """

    name: str
    model: str
    gpus: int
    free: int
    takes_pods: bool
    domains: Mapping[str, str]


class Nodes(TypedDict):
    """The nodes with GPUs of a running service."""

    version: Literal[1]
    kind: Literal["nodes"]
    nodes: list[NodeView]


def nodes_of(snapshot: Snapshot, model_label: str) -> Nodes:
    """Return the nodes with GPUs, by name."""
    states = [state for state in snapshot.nodes.values() if state.node.topology.gpu_count]
    nodes = [state.node for state in states]
    scopes = dict.fromkeys((*(level.scope for level in snapshot.levels), Scope.NVLINK_DOMAIN.value))
    hierarchies = {scope: Hierarchy.of(scope, snapshot.levels, snapshot.naming) for scope in scopes}
    domains = {scope: domains_of(nodes, hierarchy) for scope, hierarchy in hierarchies.items()}
    return Nodes(
        version=VERSION,
        kind="nodes",
        nodes=[
            NodeView(
                state.node.name,
                printable(state.node.labels.get(model_label) or state.node.machine),
                state.node.topology.gpu_count,
                state.free_gpu_count,
                state.node.ready and not state.node.unschedulable,
                dict(_present((scope, named[state.node.name]) for scope, named in domains.items())),
            )
            for state in states
        ],
    )


def _present(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((scope, printable(domain)) for scope, domain in pairs if domain)
