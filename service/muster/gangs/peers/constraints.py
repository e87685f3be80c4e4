"""Turn the rules of a gang's pods about other pods into constraints between roles and nodes.

The rules of the pods are `domain.peers.PeerRules`; the planner knows `domain.constraints`. All members of a
role must have the same rules and be matched by the same selectors, so `Peers.kind` is part of a role's key.

If no pod of the gang has such rules, and no existing pod repels its members, each member is read only once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from muster.domain.constraints import NODE, Affinity, AntiAffinity, PeerConstraint, TopologySpread
from muster.domain.node import Node
from muster.domain.peers import (
    NO_PEER_RULES,
    HostPort,
    Labels,
    PeerRules,
    PeerTerm,
    Selector,
    SpreadTerm,
    matches,
)
from muster.domain.pod import Pod
from muster.gangs.peers.existing_pods import ExistingPods, PeerInterest

MemberKind = tuple[int, ...]
"""Equal for members that constraints do not tell apart; () if no constraint concerns any member."""

MAX_RULES = 64
"""Largest number of different rules of a gang's pods. With more rules, the gang's own rules are left to the
in-tree plugins."""
MAX_LOOKED_AT = 15_000
"""Largest number of label sets of other pods that one request reads (50 ms if all differ). Further rules are
left to the in-tree plugins."""
MAX_MATCHED = 200_000
"""Largest number of selector requirements that one request matches against labels of members or roles (about
80 ms).

With more requirements, rules are left to the in-tree plugins: first the rules of other pods, then all rules.
"""

_Roles = Mapping[str, Pod]
"""Role → one of its members: all members of a role have the same rules."""


class Peers:
    """Resolve the constraints of one gang.

    `pods` are all its members, including bound ones. `existing_pods` are the pods on `nodes`, without the
    members that are to be placed.
    """

    def __init__(self, pods: Collection[Pod], existing_pods: ExistingPods, nodes: Mapping[str, Node]) -> None:
        self._existing = existing_pods
        self._nodes = nodes
        self._namespace = next((pod.namespace for pod in pods), "")
        self._namespace_labels = existing_pods.labels_of(self._namespace)
        # Rules are compared by identity: pods of one template share them, and a gang may have thousands of
        # pods.
        rules = list({id(pod.peers): pod.peers for pod in pods if pod.peers is not NO_PEER_RULES}.values())
        self._claims = (
            self._one_node_claims(pods)
            if any(pod_rules.volume_claims for pod_rules in rules)
            else frozenset()
        )
        distinct_rules = {self._compared_rules(NO_PEER_RULES)}
        for pod_rules in rules:
            distinct_rules.add(self._compared_rules(pod_rules))
            if len(distinct_rules) > MAX_RULES:
                rules = []
                break
        numbers = {pod_rules: number for number, pod_rules in enumerate(sorted(distinct_rules, key=repr))}
        self._number = {id(pod_rules): numbers[self._compared_rules(pod_rules)] for pod_rules in rules}
        self._terms = dict.fromkeys(
            term for pod_rules in rules for term in (*pod_rules.affinity, *pod_rules.anti_affinity)
        )
        self._spread = dict.fromkeys(term for pod_rules in rules for term in pod_rules.spread)
        self._repelling = dict(self._terms_against(pods)) if existing_pods.repelling else {}
        is_affordable = self._take_selectors(pods)
        # With too many selectors, the terms of other pods are given up first, so that other users cannot make
        # Muster ignore the gang's own rules. The in-tree plugins still check these terms.
        if not is_affordable and self._repelling:
            self._repelling = {}
            is_affordable = self._take_selectors(pods)
        self._has_constraints = bool(rules or self._repelling) and is_affordable
        self._lookups_left = MAX_LOOKED_AT
        self._matched: dict[Labels, tuple[bool, ...]] = {}

    # --- roles --------------------------------------------------------------------------------------

    def kind(self, pod: Pod) -> MemberKind:
        """Return the number of the pod's rules, and which selectors match the pod.

        Labels that no selector uses make no difference.
        """
        if not self._has_constraints:
            return ()
        used_labels = self._used_labels(pod)
        if used_labels not in self._matched:
            labels = dict(used_labels)
            self._matched[used_labels] = tuple(matches(selector, labels) for selector in self._selectors)
        return (self._number.get(id(pod.peers), -1), *self._matched[used_labels])

    def _take_selectors(self, pods: Iterable[Pod]) -> bool:
        """Note the selectors that may tell members apart. Return whether MAX_MATCHED suffices for them."""
        self._selectors = tuple(dict.fromkeys(self._selectors_of_members()))
        self._keys = frozenset(term.key for selector in self._selectors for term in selector or ())
        self._requirements = sum(len(selector or ()) + 1 for selector in self._selectors)
        return self._is_affordable(self._count_label_sets(pods))

    def _used_labels(self, pod: Pod) -> Labels:
        """Return those labels of the pod whose keys selectors use."""
        return tuple([pair for pair in pod.labels if pair[0] in self._keys])

    def _count_label_sets(self, pods: Iterable[Pod]) -> int:
        """Return the number of label sets that the selectors tell apart."""
        return len(set(map(self._used_labels, pods))) if self._keys else 1

    def _is_affordable(self, label_sets: int) -> bool:
        """Return whether MAX_MATCHED suffices to match all selectors against this number of label sets."""
        return label_sets * self._requirements <= MAX_MATCHED

    def _compared_rules(self, rules: PeerRules) -> tuple[object, ...]:
        """Return the rules in a form to compare, with only the claims that bind members to one node."""
        claims = tuple(claim for claim in rules.volume_claims if claim in self._claims)
        return (rules.affinity, rules.anti_affinity, rules.spread, rules.host_ports, claims)

    def _selectors_of_members(self) -> Iterator[Selector]:
        """Yield the selectors that may match some members and not others."""
        for term in (*self._terms, *self._repelling):
            if self._covers(term):
                yield term.selector
        for spread in self._spread:
            yield spread.selector

    def _terms_against(self, pods: Iterable[Pod]) -> Iterator[tuple[PeerTerm, frozenset[str]]]:
        """Yield the terms of existing pods that may repel a member, with their nodes."""
        pairs = set[tuple[str, str]]().union(*(pod.labels for pod in pods))
        nodes_by_term: dict[PeerTerm, frozenset[str]] = {}
        terms = self._existing.repelling.terms_against(self._namespace, self._namespace_labels, pairs)
        for term, nodes in terms:
            nodes_by_term[term] = nodes_by_term.get(term, frozenset()) | nodes
        yield from nodes_by_term.items()

    def _one_node_claims(self, pods: Iterable[Pod]) -> frozenset[str]:
        """Return the claims that bind members to one node.

        The volume of such a claim attaches to one node only, and another pod uses it too.
        """
        users = Counter(claim for pod in pods for claim in pod.peers.volume_claims)
        return frozenset(
            claim
            for claim, count in users.items()
            if self._existing.attaches_once(self._namespace, claim)
            and (count > 1 or self._existing.nodes_with_claim(self._namespace, claim))
        )

    # --- constraints --------------------------------------------------------------------------------

    def constraints(self, roles: _Roles) -> tuple[PeerConstraint, ...]:
        """Return the constraints on these roles, which have members that are to be placed."""
        if not self._has_constraints or not roles or not self._is_affordable(len(roles)):
            return ()
        return (
            *self._anti_affinity(roles),
            *self._affinity(roles),
            *self._spreads(roles),
            *self._ports(roles),
            *self._volumes(roles),
        )

    @property
    def interest(self) -> PeerInterest | None:
        """Return the changes, apart from free capacity, that may help the gang; None if there are none."""
        interest = PeerInterest(
            frozenset((*self._terms, *map(self._as_peer_term, self._spread))),
            frozenset(self._repelling),
            frozenset((self._namespace, claim) for claim in self._claims),
        )
        return interest if interest != PeerInterest() else None

    def _anti_affinity(self, roles: _Roles) -> Iterator[AntiAffinity]:
        """Yield the constraints that keep members apart from each other and from other pods.

        A new pod is refused because of any of its own terms, and because of any term of an existing pod
        (interpodaffinity/filtering.go, satisfyPodAntiAffinity and satisfyExistingPodsAntiAffinity).
        """
        own_terms = dict.fromkeys(term for pod in roles.values() for term in pod.peers.anti_affinity)
        repelling = dict(self._repelling)
        for term in own_terms:
            if not self._affords((term,)):
                continue
            bearers = frozenset(role for role, pod in roles.items() if term in pod.peers.anti_affinity)
            matched_roles = self._roles_matching(roles, (term,))
            existing = self._existing_nodes(self._existing.nodes_matching((term,)))
            if matched_roles == bearers:
                existing |= self._existing_nodes(repelling.pop(term, frozenset()))
            if matched_roles or existing:
                yield AntiAffinity(
                    f"podAntiAffinity {term.words}", term.topology_key, bearers, matched_roles, existing
                )
        yield from self._anti_affinity_of_others(roles, repelling)

    def _anti_affinity_of_others(
        self, roles: _Roles, repelling: Mapping[PeerTerm, frozenset[str]]
    ) -> Iterator[AntiAffinity]:
        """Yield the constraints that keep members away from existing pods that repel them.

        The terms of one topology key that repel the same roles make one constraint.
        """
        terms_by_key: dict[tuple[str, frozenset[str]], list[PeerTerm]] = {}
        for term, nodes in repelling.items():
            key = term.topology_key
            repelled = self._roles_matching(roles, (term,))
            if repelled and any(key in self._nodes[node].labels for node in self._existing_nodes(nodes)):
                terms_by_key.setdefault((key, repelled), []).append(term)
        for (key, repelled), terms in terms_by_key.items():
            words = terms[0].words if len(terms) == 1 else f"{len(terms)} terms by {key}"
            existing = self._existing_nodes(frozenset().union(*(repelling[term] for term in terms)))
            yield AntiAffinity(f"podAntiAffinity of other pods, {words}", key, repelled, existing=existing)

    def _affinity(self, roles: _Roles) -> Iterator[Affinity]:
        """Yield the constraints that place members near other pods.

        An existing pod counts if it matches all terms of the new pod, and its node has a topology label of
        the terms (podMatchesAllAffinityTerms, satisfyPodAffinity).
        """
        bearers: dict[tuple[PeerTerm, ...], list[str]] = {}
        for role, pod in roles.items():
            if pod.peers.affinity:
                bearers.setdefault(pod.peers.affinity, []).append(role)
        for terms, role_names in bearers.items():
            if not self._affords(terms):
                continue
            matched_roles = self._roles_matching(roles, terms)
            existing = self._existing_nodes(self._existing.nodes_matching(terms))
            keys = {term.topology_key for term in terms}
            if not any(keys & self._nodes[node].labels.keys() for node in existing):
                existing = frozenset()
            for term in terms:
                name = f"podAffinity {term.words}"
                yield Affinity(name, term.topology_key, frozenset(role_names), matched_roles, existing)

    def _spreads(self, roles: _Roles) -> Iterator[TopologySpread]:
        """Yield the topologySpreadConstraints.

        Roles with different node rules get different constraints, because their eligible nodes differ.
        """
        bearers: dict[tuple[object, ...], list[str]] = {}
        for role, pod in roles.items():
            if pod.peers.spread:
                bearers.setdefault((pod.peers.spread, pod.rules), []).append(role)
        for role_names in bearers.values():
            terms = roles[role_names[0]].peers.spread
            keys = frozenset(term.topology_key for term in terms)
            for term in dict.fromkeys(terms):
                if not self._affords((self._as_peer_term(term),)):
                    continue
                # kube-scheduler counts no pod for an empty selector (podtopologyspread/common.go).
                counted = (
                    role
                    for role, pod in roles.items()
                    if term.selector and matches(term.selector, dict(pod.labels))
                )
                existing = (
                    self._existing.count_matching(self._namespace, term.selector) if term.selector else {}
                )
                yield TopologySpread(
                    f"topologySpreadConstraints {term.words}",
                    term.topology_key,
                    term.max_skew,
                    frozenset(role_names),
                    frozenset(counted),
                    {node: pods for node, pods in existing.items() if node in self._nodes},
                    term.min_domains,
                    keys,
                    term.honor_affinity,
                    term.honor_taints,
                )

    def _ports(self, roles: _Roles) -> Iterator[AntiAffinity]:
        """Yield the constraints that keep pods with the same host port on different nodes."""
        roles_by_port: dict[HostPort, set[str]] = {}
        by_number: dict[tuple[int, str], set[HostPort]] = {}
        for role, pod in roles.items():
            for port in pod.peers.host_ports:
                roles_by_port.setdefault(port, set()).add(role)
                by_number.setdefault((port.port, port.protocol), set()).add(port)
        for port, bearers in roles_by_port.items():
            same_number = by_number[port.port, port.protocol]
            any_address = HostPort(port.port, port.protocol)
            conflicting = same_number if port == any_address else same_number & {port, any_address}
            conflicting_roles = frozenset[str]().union(*(roles_by_port[other] for other in conflicting))
            existing = self._existing_nodes(self._existing.nodes_with_port(port))
            yield AntiAffinity(
                f"hostPort {port.words}", NODE, frozenset(bearers), conflicting_roles, existing
            )

    def _volumes(self, roles: _Roles) -> Iterator[Affinity]:
        """Yield the constraints that keep the pods of a volume together if it attaches to one node only."""
        for claim in sorted(self._claims):
            users = frozenset(role for role, pod in roles.items() if claim in pod.peers.volume_claims)
            if users:
                name = f"persistentVolumeClaim {claim}, which attaches to one node"
                existing = self._existing_nodes(self._existing.nodes_with_claim(self._namespace, claim))
                yield Affinity(name, NODE, users, users, existing)

    def _roles_matching(self, roles: _Roles, terms: Collection[PeerTerm]) -> frozenset[str]:
        """Return the roles whose members match all the terms."""
        if not all(map(self._covers, terms)):
            return frozenset()
        return frozenset(
            role
            for role, pod in roles.items()
            if all(matches(term.selector, dict(pod.labels)) for term in terms)
        )

    def _affords(self, terms: Collection[PeerTerm]) -> bool:
        """Charge the cost of these terms to MAX_LOOKED_AT. Return False if too little of it remains."""
        cost = self._existing.query_cost(terms)
        if cost > self._lookups_left:
            return False
        self._lookups_left -= cost
        return True

    def _as_peer_term(self, term: SpreadTerm) -> PeerTerm:
        """Return a term about the pods that a spread constraint counts."""
        return PeerTerm(term.topology_key, term.selector, (self._namespace,))

    def _existing_nodes(self, nodes: frozenset[str]) -> frozenset[str]:
        """Return those of the nodes that exist."""
        return frozenset(node for node in nodes if node in self._nodes)

    def _covers(self, term: PeerTerm) -> bool:
        """Return whether the term is about pods of the gang's namespace."""
        return term.covers(self._namespace, self._namespace_labels)
