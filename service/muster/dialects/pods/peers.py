"""Read a pod's rules about nodes and about other pods.

About nodes: node selector, required node affinity and tolerations. About other pods: affinity, anti-affinity,
spread, host ports and volume claims.

Only required rules are read, because preferences never refuse a node. A value that the API server would
refuse becomes a cause. A rule that is valid and too large to be planned is left out, and the in-tree plugins
still check it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from msgspec.structs import replace

from muster.dialects.objects import (
    Affinity,
    Container,
    LabelSelector,
    Metadata,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    TopologySpreadConstraint,
    Volume,
)
from muster.domain.causes.ill_formed import BadValue
from muster.domain.peers import (
    ANY_ADDRESS,
    NO_PEER_RULES,
    HostPort,
    Labels,
    PeerRules,
    PeerTerm,
    Selector,
    SpreadTerm,
)
from muster.domain.request import NodeRules, SelectorTerm, Toleration

MAX_TERMS = 16
"""Largest number of terms of one kind in one pod. If a pod has more, no term of that kind is kept: the
in-tree plugins check them."""
MAX_REQUIREMENTS = 32
"""Largest number of requirements of one selector."""
MAX_VALUES = 256
"""Largest number of values in all requirements of one selector, and of namespaces of one term."""
MAX_LABELS = 256
"""Largest number of labels of one pod. The last keys are left out."""
MAX_HOST_PORTS = 64
MAX_CLAIMS = 256
"""Largest number of claims of one pod, including its own volumes. A pod with more is refused: pods that share
a volume of one node could be planned on different nodes."""
MAX_SIZE = 1024
"""Largest number of names and values in all rules of one pod. If a pod has more, no rule about other pods is
kept: the in-tree plugins check them."""
MAX_REMEMBERED = 64
"""Number of labels of a pod up to which its labels are cached well. Of pods with more labels only a few are
cached."""

NODE_FIELD = "names and values in nodeSelector, nodeAffinity and tolerations"
MAX_NODE_NAMES = 1024
"""Largest number of names and values in a pod's rules for nodes. A waiting pod with more is refused."""

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
V = TypeVar("V")
_Raw = TypeVar("_Raw")
_Read = TypeVar("_Read")


class Interner(Generic[V]):
    """Keeps one object for equal values, because the thousands of pods of a template have the same rules.

    A value is forgotten with its last holder.
    """

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[V, ref[V]] = WeakKeyDictionary()

    def of(self, value: V) -> V:
        """Return the object that stands for all values equal to `value`."""
        reference = self._values.get(value)
        first = reference() if reference is not None else None
        if first is None:
            first = value
            self._values[value] = ref(value)
        return first

    def __len__(self) -> int:
        return len(self._values)


_live_node_rules = Interner[NodeRules]()
"""The rules of existing pods."""


def node_rules(spec: PodSpec) -> NodeRules:
    """Return the pod's rules for nodes. Equal rules of existing pods are one object."""
    if node_rules_size(spec) > MAX_NODE_NAMES:
        return NodeRules()
    return _live_node_rules.of(_read_node_rules(spec))


def node_rules_size(spec: PodSpec) -> int:
    """Return the number of names and values in the pod's rules for nodes. Counting stops above the limit."""
    count = len(spec.node_selector or ()) + len(spec.tolerations or ())
    for term in _node_terms(spec):
        count += 1
        for requirement in _requirements(term):
            count += 1 + len(requirement.values or ())
            if count > MAX_NODE_NAMES:
                return count
        if count > MAX_NODE_NAMES:
            return count
    return count


def _node_terms(spec: PodSpec) -> list[NodeSelectorTerm]:
    """Return the terms of the required node affinity; [] without required affinity."""
    node_affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    selector = node_affinity.required if node_affinity is not None else None
    return (selector.node_selector_terms or []) if selector is not None else []


def _read_node_rules(spec: PodSpec) -> NodeRules:
    selector = sorted((spec.node_selector or {}).items())
    any_of = [
        tuple(SelectorTerm(rule.key, rule.operator, tuple(rule.values or ())) for rule in _requirements(term))
        for term in _node_terms(spec)
    ]
    # In the API a term without requirements matches no node. It can't be dropped if it is the only term.
    usable_terms = tuple(requirements for requirements in any_of if requirements)
    if any_of and not usable_terms:
        usable_terms = ((SelectorTerm("metadata.name", "In", ()),),)
    required = tuple(SelectorTerm(key, "In", (value,)) for key, value in selector)
    tolerations = tuple(
        Toleration(t.key, t.operator or "Equal", t.value, t.effect) for t in spec.tolerations or ()
    )
    return NodeRules(required, usable_terms, tolerations)


def _requirements(term: NodeSelectorTerm) -> Iterator[NodeSelectorRequirement]:
    return chain(term.match_expressions or (), term.match_fields or ())


def labels_of(labels: Mapping[str, str] | None) -> Labels:
    """Return labels sorted by key. Equal labels that come soon after each other share one object."""
    if not labels:
        return ()
    pairs = tuple((key, labels[key]) for key in sorted(labels)[:MAX_LABELS])
    return _intern_labels(pairs) if len(pairs) <= MAX_REMEMBERED else _intern_many_labels(pairs)


@lru_cache(maxsize=4096)
def _intern_labels(labels: Labels) -> Labels:
    return tuple(map(_intern_pair, labels))


@lru_cache(maxsize=64)
def _intern_many_labels(labels: Labels) -> Labels:
    return labels


@lru_cache(maxsize=16384)
def _intern_pair(pair: tuple[str, str]) -> tuple[str, str]:
    return pair


def rules_of(object_name: str, meta: Metadata, spec: PodSpec) -> tuple[PeerRules, tuple[BadValue, ...]]:
    """Return a pod's rules about other pods, and a cause for each ill-formed rule.

    `object_name` is the pod, as kind/namespace/name.
    """
    affinity = spec.affinity
    pod_affinity = affinity.pod_affinity if affinity is not None else None
    pod_anti_affinity = affinity.pod_anti_affinity if affinity is not None else None
    ports = tuple(islice(_host_ports(spec), MAX_HOST_PORTS + 1))
    claims = [*dict.fromkeys(_volume_claims(meta, spec))]
    if not (pod_affinity or pod_anti_affinity or spec.topology_spread_constraints or ports or claims):
        return NO_PEER_RULES, ()
    reader = _PeerReader(object_name, meta)
    rules = PeerRules(
        affinity=reader.peers("podAffinity", pod_affinity),
        anti_affinity=reader.peers("podAntiAffinity", pod_anti_affinity),
        spread=reader.spread(spec.topology_spread_constraints or ()),
        host_ports=tuple(dict.fromkeys(ports)) if len(ports) <= MAX_HOST_PORTS else (),
        volume_claims=tuple(sorted(claims[:MAX_CLAIMS])),
    )
    if len(claims) > MAX_CLAIMS:
        field, value = "number of PersistentVolumeClaims in volumes", f"more than {MAX_CLAIMS}"
        reader.causes.append(BadValue(object_name, field, value, f"at most {MAX_CLAIMS}"))
    if _peer_rules_size(rules) > MAX_SIZE:
        rules = PeerRules(host_ports=rules.host_ports, volume_claims=rules.volume_claims)
    if rules == NO_PEER_RULES:
        return NO_PEER_RULES, tuple(reader.causes)
    return _live_peer_rules.of(rules), tuple(reader.causes)


_live_peer_rules = Interner[PeerRules]()
"""The rules of existing pods."""


def _peer_rules_size(rules: PeerRules) -> int:
    """Return the number of names and values in the rules. A name or value has some hundred bytes at most."""
    terms = (*rules.affinity, *rules.anti_affinity)
    selectors = (
        *(term.namespace_selector for term in terms),
        *(term.selector for term in terms),
        *(spread.selector for spread in rules.spread),
    )
    return (
        sum(len(term.namespaces) for term in terms)
        + sum(1 + len(requirement.values) for selector in selectors for requirement in selector or ())
        + len(rules.host_ports)
        + len(rules.volume_claims)
    )


class _TooLarge(Exception):
    """A selector is valid, but too large to be planned."""


class _BadField(Exception):
    """The API server would refuse a value. Arguments: the field, the value and what is expected."""


class _PeerReader:
    """Reads the terms of one pod. Ill-formed terms are reported in `causes`."""

    def __init__(self, object_name: str, meta: Metadata) -> None:
        self.causes: list[BadValue] = []
        self._where = object_name
        self._namespace = meta.namespace
        self._labels = meta.labels or {}

    def peers(self, kind: str, affinity: PodAffinity | None) -> tuple[PeerTerm, ...]:
        """Return the required terms of pod affinity or anti-affinity.

        A pod must meet all terms. So if a term is too large and left out, the other terms stay right.
        """
        required = (affinity.required or ()) if affinity is not None else ()
        return self._read_terms(kind, required, self._read_peer_term)

    def spread(self, constraints: Iterable[TopologySpreadConstraint]) -> tuple[SpreadTerm, ...]:
        """Return the constraints that refuse nodes."""
        hard = [constraint for constraint in constraints if constraint.when_unsatisfiable == "DoNotSchedule"]
        return self._read_terms("topologySpreadConstraints", hard, self._read_spread_term)

    def _read_terms(
        self, kind: str, raw_terms: Iterable[_Raw], read_one: Callable[[_Raw], _Read]
    ) -> tuple[_Read, ...]:
        raw_terms = list(raw_terms)
        if len(raw_terms) > MAX_TERMS:
            return ()
        terms = []
        for raw_term in raw_terms:
            try:
                terms.append(read_one(raw_term))
            except _TooLarge:
                continue
            except _BadField as slip:
                field, value, expected = slip.args
                self.causes.append(BadValue(self._where, f"{kind}: {field}", value, expected))
        return tuple(terms)

    def _read_peer_term(self, term: PodAffinityTerm) -> PeerTerm:
        if len(term.namespaces or ()) > MAX_VALUES:
            raise _TooLarge
        namespaces = tuple(sorted(set(term.namespaces or ())))
        if not namespaces and term.namespace_selector is None:
            namespaces = (self._namespace,)
        return PeerTerm(
            _topology_key(term.topology_key),
            _selector("labelSelector", term.label_selector),
            namespaces,
            _selector("namespaceSelector", term.namespace_selector),
        )

    def _read_spread_term(self, constraint: TopologySpreadConstraint) -> SpreadTerm:
        if constraint.max_skew < 1:
            raise _BadField("maxSkew", str(constraint.max_skew), "a positive whole number")
        if constraint.min_domains is not None and constraint.min_domains < 1:
            raise _BadField("minDomains", str(constraint.min_domains), "a positive whole number")
        selector = _selector("labelSelector", constraint.label_selector)
        return SpreadTerm(
            _topology_key(constraint.topology_key),
            self._with_own_values(selector, constraint.match_label_keys or ()),
            constraint.max_skew,
            constraint.min_domains or 1,
            honor_affinity=constraint.node_affinity_policy in (None, "Honor"),
            honor_taints=constraint.node_taints_policy == "Honor",
        )

    def _with_own_values(self, selector: Selector, keys: Collection[str]) -> Selector:
        """Return the selector with the pod's own values of `matchLabelKeys`.

        The API server has merged them already (pkg/registry/core/pod/strategy.go, applyMatchLabelKeys), and
        kube-scheduler merges them again by the labels that the pod has now (podtopologyspread/common.go).
        """
        if selector is None:
            return None
        if len(keys) > MAX_REQUIREMENTS:
            raise _TooLarge
        own_labels = (SelectorTerm(key, "In", (self._labels[key],)) for key in keys if key in self._labels)
        return tuple(dict.fromkeys((*selector, *own_labels)))


def as_stored(affinity: Affinity | None, labels: Mapping[str, str]) -> Affinity | None:
    """Return a pod's affinity as the API server stores it; `labels` are the pod's."""
    if affinity is None:
        return None
    pod_affinity, pod_anti_affinity = (
        replace(rule, required=[with_label_keys(term, labels) for term in rule.required])
        if rule is not None and rule.required
        else rule
        for rule in (affinity.pod_affinity, affinity.pod_anti_affinity)
    )
    return replace(affinity, pod_affinity=pod_affinity, pod_anti_affinity=pod_anti_affinity)


def selector_keys(spec: PodSpec) -> tuple[set[str], set[str]]:
    """Return the keys of labels of pods, and of namespaces, that a pod's rules about other pods use."""
    pod_keys, namespace_keys = set[str](), set[str]()
    affinity = spec.affinity
    affinities = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ()
    for term in (term for part in affinities if part is not None for term in part.required or ()):
        pod_keys |= keys_of_selector(term.label_selector)
        namespace_keys |= keys_of_selector(term.namespace_selector)
    for constraint in spec.topology_spread_constraints or ():
        pod_keys |= {*keys_of_selector(constraint.label_selector), *(constraint.match_label_keys or ())}
    return pod_keys, namespace_keys


def keys_of_selector(selector: LabelSelector | None) -> set[str]:
    """Return the keys of labels that a selector uses."""
    if selector is None:
        return set()
    return {
        *(selector.match_labels or ()),
        *(entry.key for entry in selector.match_expressions or ()),
    }


def with_label_keys(term: PodAffinityTerm, labels: Mapping[str, str]) -> PodAffinityTerm:
    """Return a term as the API server stores it: matchLabelKeys and mismatchLabelKeys are in its selector.

    Only manifests need this. kube-scheduler does not read the two fields of affinity terms. Source:
    pkg/registry/core/pod/strategy.go, applyMatchLabelKeysAndMismatchLabelKeys.
    """
    selector = term.label_selector
    if selector is None or not (term.match_label_keys or term.mismatch_label_keys):
        return term
    expressions = list(selector.match_expressions or ())
    for keys, operator in ((term.match_label_keys, "In"), (term.mismatch_label_keys, "NotIn")):
        for key in keys or ():
            is_there = any(entry.key == key and entry.operator == operator for entry in expressions)
            if key in labels and not is_there:
                expressions.append(NodeSelectorRequirement(key, operator, [labels[key]]))
    return replace(term, label_selector=replace(selector, match_expressions=expressions))


def _topology_key(key: str) -> str:
    if not key:
        raise _BadField("topologyKey", key, "a label key of nodes")
    return key


def selector_of(selector: LabelSelector | None, if_too_large: Selector) -> Selector:
    """Return the requirements of a label selector; None, which selects nothing, if one is ill-formed."""
    try:
        return _selector("selector", selector)
    except _TooLarge:
        return if_too_large
    except _BadField:
        return None


def _selector(field: str, selector: LabelSelector | None) -> Selector:
    """Return the requirements of a label selector, in a fixed order.

    Raises:
        _TooLarge: there are too many requirements.
        _Broken: a requirement is ill-formed.
    """
    if selector is None:
        return None
    labels, expressions = selector.match_labels or {}, selector.match_expressions or ()
    if len(labels) + len(expressions) > MAX_REQUIREMENTS:
        raise _TooLarge
    if sum(len(entry.values or ()) for entry in expressions) > MAX_VALUES:
        raise _TooLarge
    terms = [SelectorTerm(key, "In", (value,)) for key, value in sorted(labels.items())]
    for entry in expressions:
        values = tuple(sorted(set(entry.values or ())))
        if entry.operator not in _OPERATORS:
            expected = f"one of {', '.join(_OPERATORS)}"
            raise _BadField(f"{field}.matchExpressions: operator", entry.operator, expected)
        if entry.operator in ("In", "NotIn") and not values:
            raise _BadField(
                f"{field}.matchExpressions: values", "", f"values for {entry.operator} {entry.key}"
            )
        terms.append(SelectorTerm(entry.key, entry.operator, values))
    return tuple(dict.fromkeys(terms))


def _host_ports(spec: PodSpec) -> Iterator[HostPort]:
    """Yield the ports of containers and sidecars, as k8s.io/kubernetes pkg/scheduler/util GetHostPorts.

    With hostNetwork the API server sets hostPort to containerPort; in manifests it is not set yet.
    """
    sidecars = (container for container in spec.init_containers or () if container.restart_policy == "Always")
    for container in (*sidecars, *(spec.containers or ())):
        yield from _ports(container, spec.host_network)


def _ports(container: Container, host_network: bool) -> Iterator[HostPort]:
    for port in container.ports or ():
        host_port = port.host_port or (port.container_port if host_network else 0)
        if host_port > 0:
            yield HostPort(host_port, port.protocol or "TCP", port.host_ip or ANY_ADDRESS)


def has_claim(volume: Volume) -> bool:
    """Return whether a volume names a PersistentVolumeClaim, or has a claim of its own."""
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None


def _volume_claims(meta: Metadata, spec: PodSpec) -> Iterator[str]:
    for volume in spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{meta.name}-{volume.name}"
