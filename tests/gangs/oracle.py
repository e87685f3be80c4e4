"""Which nodes the constraints of a gang of one leave open, judged node by node, without the planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from muster.dialects.nodes import nodes
from muster.dialects.objects import NodeObject, PodObject
from muster.dialects.pods import peers, pods
from muster.domain.constraints import NODE, Affinity, AntiAffinity, PeerConstraint, TopologySpread
from muster.domain.node import Node, Taint
from muster.domain.pod import Pod
from muster.domain.request import Toleration
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.requests import request
from muster.gangs.membership.roster import Roster

PLUGINS = {
    "podAffinity": "InterPodAffinity",
    "podAntiAffinity": "InterPodAffinity",
    "topologySpreadConstraints": "PodTopologySpread",
    "hostPort": "NodePorts",
}
"""The first word of a constraint's name → the plugin that it stands for."""


def allowed(case: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return plugin → the names of the nodes that the constraints on the pending pod leave open.

    `case` has `Nodes`, `Pods`, `Namespaces` and the pending `Pod`, as the API has them.
    """
    ledger, roster = Ledger(), Roster()
    for item in case["Nodes"]:
        ledger.set_node(nodes.read(msgspec.convert(item, NodeObject)))
    for item in case["Namespaces"]:
        meta = item["metadata"]
        ledger.existing_pods.see_namespace(meta["name"], peers.labels_of(meta.get("labels")))
    for item in (*case["Pods"], case["Pod"]):
        pod = pods.read(msgspec.convert(item, PodObject))
        ledger.see(pod)
        roster.see(pod)
    pending = roster.pods[case["Pod"]["metadata"]["uid"]]
    (group,) = (group for name in roster.names for group in roster.groups(name) if group.unbound)
    constraints = request(group, ledger).constraints
    states = ledger.nodes.values()
    return {
        plugin: [
            node.name
            for node in states
            if all(
                _open(constraint, node, states, pending)
                for constraint in constraints
                if PLUGINS[constraint.name.split()[0]] == plugin
            )
        ]
        for plugin in set(PLUGINS.values())
    }


def _open(constraint: PeerConstraint, node: Node, nodes: Iterable[Node], pending: Pod) -> bool:
    """Return whether the pending pod, of role "", can go to the node."""
    key = constraint.topology_key
    domain = _domain(node, key)
    if isinstance(constraint, TopologySpread):
        return domain is not None and _skew(constraint, domain, nodes, pending) <= constraint.max_skew
    taken_domains = {_domain(item, key) for item in nodes if item.name in constraint.existing} - {None}
    if isinstance(constraint, AntiAffinity):
        return domain not in taken_domains
    assert isinstance(constraint, Affinity)
    if domain is None:
        return False
    return domain in taken_domains if constraint.existing else "" in constraint.other_roles


def _domain(node: Node, key: str) -> str | None:
    return node.name if key == NODE else node.labels.get(key)


def _skew(constraint: TopologySpread, domain: str, nodes: Iterable[Node], pending: Pod) -> int:
    counts: Counter[str] = Counter()
    for node in nodes:
        if _eligible(constraint, node, pending):
            counts[node.labels[constraint.topology_key]] += constraint.existing.get(node.name, 0)
    least = min(counts.values(), default=0) if len(counts) >= constraint.min_domains else 0
    return counts[domain] + ("" in constraint.counted_roles) - least


def _eligible(constraint: TopologySpread, node: Node, pending: Pod) -> bool:
    if not constraint.required_keys <= node.labels.keys():
        return False
    selected = all(node.labels.get(term.key) in term.values for term in pending.rules.required)
    tolerated = all(
        any(_tolerates(toleration, taint) for toleration in pending.rules.tolerations)
        for taint in node.taints
        if taint.effect in ("NoSchedule", "NoExecute")
    )
    return (selected or not constraint.honor_affinity) and (tolerated or not constraint.honor_taints)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """As the cases need it: tolerations of one key, whatever its value and effect."""
    return toleration.operator == "Exists" and toleration.key == taint.key
