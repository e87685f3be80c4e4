"""A pod's rules about other pods, as its own fields state them, and the match of labels with a selector.

`PeerRules` are facts of one pod. `gangs.peers.constraints` turns them into constraints that the planner knows
(`domain.constraints`), by the members of a gang and all other pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.domain.request import SelectorTerm

Labels = tuple[tuple[str, str], ...]
"""Labels of a pod or a namespace, sorted by key. Pods of one template share one object."""

Selector = tuple[SelectorTerm, ...] | None
"""A label selector: all of these requirements, with In, NotIn, Exists and DoesNotExist. As in the API, an
empty selector () matches all labels, and a missing selector (None) matches no labels."""

ANY_ADDRESS = "0.0.0.0"
"""The host address that conflicts with every other."""


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether the labels satisfy the selector.

    Source: k8s.io/apimachinery/pkg/labels/selector.go, Requirement.Matches.
    """
    return selector is not None and all(_satisfies(term, labels) for term in selector)


def _satisfies(term: SelectorTerm, labels: Mapping[str, str]) -> bool:
    value = labels.get(term.key)
    match term.operator:
        case "In":
            return value is not None and value in term.values
        case "NotIn":
            return value is None or value not in term.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


def selector_words(selector: Selector) -> str:
    """Return the selector as kubectl writes it: `app=web,tier in (a,b),!old`."""
    if selector is None:
        return "no pod"
    return ",".join(_term_words(term) for term in selector) or "all pods"


def _term_words(term: SelectorTerm) -> str:
    shown = ",".join(term.values[:_VALUES_SHOWN]) + (",…" if len(term.values) > _VALUES_SHOWN else "")
    match term.operator:
        case "In" if len(term.values) == 1:
            return f"{term.key}={shown}"
        case "In":
            return f"{term.key} in ({shown})"
        case "NotIn" if len(term.values) == 1:
            return f"{term.key}!={shown}"
        case "NotIn":
            return f"{term.key} notin ({shown})"
        case "DoesNotExist":
            return f"!{term.key}"
        case _:
            return term.key


_VALUES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class PeerTerm:
    """Other pods, and the node label whose values are the domains: one term of pod affinity or anti-affinity.

    A pod matches if its labels satisfy `selector` and its namespace is one of `namespaces` or has labels that
    satisfy `namespace_selector`. `namespaces` are sorted.
    """

    topology_key: str
    selector: Selector
    namespaces: tuple[str, ...] = ()
    namespace_selector: Selector = None
    _hash: int = field(init=False, repr=False, compare=False)
    """The hash is stored, because terms are keys of many maps and may have hundreds of values."""

    def __post_init__(self) -> None:
        facts = (self.topology_key, self.selector, self.namespaces, self.namespace_selector)
        object.__setattr__(self, "_hash", hash(facts))

    def __hash__(self) -> int:
        return self._hash

    def covers(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether the term is about pods in a namespace that has these labels."""
        return namespace in self.namespaces or matches(self.namespace_selector, labels)

    @property
    def words(self) -> str:
        """Return the term as its user wrote it: `app=web by kubernetes.io/hostname`."""
        return f"{selector_words(self.selector)} by {self.topology_key}"


@dataclass(frozen=True, slots=True)
class SpreadTerm:
    """An entry of topologySpreadConstraints with DoNotSchedule. It counts pods of the pod's own namespace."""

    topology_key: str
    selector: Selector
    max_skew: int = 1
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False

    @property
    def words(self) -> str:
        """Return the term as its user wrote it: `app=web by topology.kubernetes.io/zone, maxSkew 1`."""
        least = f", minDomains {self.min_domains}" if self.min_domains > 1 else ""
        return f"{selector_words(self.selector)} by {self.topology_key}, maxSkew {self.max_skew}{least}"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node that a container takes."""

    port: int
    protocol: str = "TCP"
    address: str = ANY_ADDRESS

    @property
    def words(self) -> str:
        """Return the port as `8080/TCP`, with its address unless this is ANY_ADDRESS."""
        address = "" if self.address == ANY_ADDRESS else f"{self.address}:"
        return f"{address}{self.port}/{self.protocol}"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PeerRules:
    """All rules of one pod about other pods. `volume_claims` are names of PersistentVolumeClaims in the pod's
    namespace, including those of its generic ephemeral volumes."""

    affinity: tuple[PeerTerm, ...] = ()
    anti_affinity: tuple[PeerTerm, ...] = ()
    spread: tuple[SpreadTerm, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    volume_claims: tuple[str, ...] = ()


NO_PEER_RULES = PeerRules()
"""The empty value, which all pods without such rules share."""
