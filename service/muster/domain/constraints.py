"""Constraints between pods, resolved to roles and nodes: what the pods' own fields say about each other.

The gangs' code resolves label selectors and namespaces against the members and against all other pods of
the cluster. So the planner sees names of roles, names of nodes, and numbers alone. `name` is the constraint
as its user wrote it: causes and relaxations show it. `topology_key` is the node label whose values are the
domains. `NODE` stands for "each node is a domain", whatever its labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NODE = "node"
"""As `topology_key`: each node is a domain of its own (host ports, volumes that attach to one node)."""


@dataclass(frozen=True, slots=True)
class AntiAffinity:
    """Keep members of `roles` out of every domain that holds a member of `others` or a pod on `existing`.

    It is symmetric between members, as in kube-scheduler (interpodaffinity/filtering.go): whichever comes
    second is refused. Where a role is in both sets, a domain holds one member of it. Nodes without the label
    `topology_key` are in no domain: the constraint does not concern them.
    `existing` are nodes that hold running or planned pods which repel `roles`, or are repelled by them.
    """

    name: str
    topology_key: str
    roles: frozenset[str]
    others: frozenset[str] = frozenset()
    existing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Affinity:
    """Place members of `roles` only in domains that hold a matching pod.

    A matching pod is a running one, on the nodes `existing`, or a member of `others`. Nodes without the label
    are refused. If `existing` is empty and a role is in both sets, its first member may open one domain, and
    only one. So does kube-scheduler (interpodaffinity/filtering.go,
    satisfyPodAffinity). Members of `others` that are not in `roles` open any domain that they are placed in.
    """

    name: str
    topology_key: str
    roles: frozenset[str]
    others: frozenset[str] = frozenset()
    existing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Spread:
    """Keep the skew of every domain that receives a member of `roles` at most `max_skew`.

    The skew of a domain is its number of matching pods less the smallest number in any eligible domain.
    Matching pods are members of `counted`, and running ones: `existing` counts them by node. A domain is
    eligible if it has an eligible node. A node is eligible if it carries all `required_keys`. With
    `honor_affinity` it must also satisfy the role's node selector and affinity. With `honor_taints` it must
    have no taint that the role does not tolerate. With fewer eligible domains than `min_domains` the smallest
    number is 0. Nodes without the label `topology_key` are refused. Source: podtopologyspread/filtering.go.

    All members of the gang count, in whatever order they are placed. So the rule holds for the finished gang.
    """

    name: str
    topology_key: str
    max_skew: int
    roles: frozenset[str]
    counted: frozenset[str]
    existing: Mapping[str, int] = field(default_factory=dict, hash=False)
    min_domains: int = 1
    required_keys: frozenset[str] = frozenset()
    honor_affinity: bool = True
    honor_taints: bool = False


Constraint = AntiAffinity | Affinity | Spread
