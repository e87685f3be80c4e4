"""All pods on nodes, of every scheduler, indexed for constraints between pods: labels, terms, ports, claims.

A pod is on a node if it is bound there. It is also on a node if a live plan or a Binding under way holds a
place there (`ledger`). Finished pods are on no node. Terminating pods are on their node. kube-scheduler
counts them for affinity, anti-affinity and host ports (interpodaffinity/filtering.go, nodeports). For
topology spread it does not count them (podtopologyspread/common.go, countPodsMatchSelector).

Pods with the same namespace and labels are counted together, so a query reads each label set once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from muster.domain.peers import ANY_ADDRESS, HostPort, Labels, PeerTerm, Selector, matches
from muster.domain.pod import Pod
from muster.domain.request import SelectorTerm

MAX_CHANGES = 512
"""Largest number of listed changes. More changes count as a change of everything."""


@dataclass(slots=True)
class Changes:
    """Changes that may help a refused gang, since they were last taken.

    Apart from free capacity, a gang that was refused under constraints may fit for three reasons. A pod that
    the gang must avoid ended, a pod that it must be near was bound, or a node or namespace got other labels.
    `PeerInterest` is what a gang waits for. `pending.watchers` finds the gangs that a change concerns.
    """

    pods: set[tuple[str, Labels]] = field(default_factory=set)
    """(namespace, labels) of pods that changed."""
    terms: set[PeerTerm] = field(default_factory=set)
    """Anti-affinity terms of these pods."""
    claims: set[tuple[str, str]] = field(default_factory=set)
    """(namespace, claim) of PersistentVolumeClaims."""
    everything: bool = False
    """Labels of nodes or namespaces changed, or more pods changed than can be listed."""
    gained_nodes: set[str] = field(default_factory=set)
    """Nodes with more free capacity."""
    anywhere: bool = False
    """Any node may have more free capacity."""

    def note_pod(self, pod: Pod) -> None:
        """Note that a pod came to a node, left it or changed there."""
        if self.everything:
            return
        self.pods.add((pod.namespace, pod.labels))
        self.terms.update(pod.peers.anti_affinity)
        self.claims.update((pod.namespace, claim) for claim in pod.peers.volume_claims)
        self._limit_size()

    def add(self, changes: Changes) -> None:
        """Add the changes of another collection."""
        self.gained_nodes |= changes.gained_nodes
        self.anywhere |= changes.anywhere
        self.pods |= changes.pods
        self.terms |= changes.terms
        self.claims |= changes.claims
        self.everything |= changes.everything
        self._limit_size()

    def _limit_size(self) -> None:
        """If there are more changes than can be listed, count them as a change of everything."""
        if self.everything or len(self.pods) + len(self.terms) + len(self.claims) > MAX_CHANGES:
            self.pods, self.terms, self.claims, self.everything = set(), set(), set(), True

    @property
    def concern_peers(self) -> bool:
        """Return whether other pods, or labels, changed."""
        return bool(self.pods or self.claims or self.everything)


@dataclass(frozen=True, slots=True)
class PeerInterest:
    """The pods and claims that a gang's constraints concern. Equal gangs have equal interests.

    Host ports are left out: a port comes free on a node that also gains capacity.
    """

    terms: frozenset[PeerTerm] = frozenset()
    """Terms that match other pods."""
    repelled_by: frozenset[PeerTerm] = frozenset()
    """Terms of other pods that repel this gang."""
    claims: frozenset[tuple[str, str]] = frozenset()
    """(namespace, claim) of PersistentVolumeClaims."""

    @property
    def size(self) -> int:
        """Return how many terms and claims there are."""
        return len(self.terms) + len(self.repelled_by) + len(self.claims)


MAX_TERMS = 256
"""Largest number of terms that a request reads of one namespace under one label."""
MAX_OF_ALL = 2_048
"""Largest number of terms that a request reads in all."""
MAX_INDEX_KEYS = 16
"""Largest number of keys under which one term is indexed."""

_IndexKey = tuple[str | None, tuple[str, str] | None]
"""A namespace that a term names (None: the term selects namespaces by labels), and a label that pods must
have (None: no label)."""
_Nodes = dict[str, int]
"""Node → pods."""


class AntiAffinityIndex:
    """Required anti-affinity of pods on nodes: the terms by which an existing pod repels new ones.

    Each request of a gang looks up the terms that match its members. Terms are indexed by a label that a pod
    must have to match, so that most terms are never read. A request reads a limited number of terms, so that
    no user can make every request slow. Namespaces with few terms come first. The in-tree plugins check the
    other terms.

    A term is indexed under each pair of its namespaces and values. Without a limit, the 16 terms of one small
    pod could have a million keys. If a term would have more than MAX_INDEX_KEYS, the index leaves out its
    namespaces, and then its values. Such a term is read more often.
    """

    def __init__(self) -> None:
        self._terms: dict[_IndexKey, dict[str, dict[PeerTerm, _Nodes]]] = {}
        """Key → namespace of the pods that have the term → term → nodes."""

    def __bool__(self) -> bool:
        return bool(self._terms)

    def add(self, owner: str, term: PeerTerm, node: str, pods: int) -> None:
        """Add to the number of pods of the namespace `owner` on a node; `pods` is negative to remove pods."""
        for key in _index_keys(term):
            _count(self._terms, (key, owner, term, node), pods)

    def terms_against(
        self, namespace: str, labels: Mapping[str, str], pairs: Collection[tuple[str, str]]
    ) -> Iterator[tuple[PeerTerm, frozenset[str]]]:
        """Yield the terms that may match pods of this namespace, each with the nodes of the pods that have
        the term.

        `labels` are the namespace's labels, and `pairs` all labels of the pods. A term may be yielded twice.
        """
        nodes_by_term = [
            terms
            for target in (namespace, None)
            for pair in (None, *pairs)
            for terms in self._terms.get((target, pair), {}).values()
        ]
        remaining = MAX_OF_ALL
        for number, terms in enumerate(sorted(nodes_by_term, key=len)):
            share = min(len(terms), MAX_TERMS, -(-remaining // (len(nodes_by_term) - number)))
            remaining -= share
            for term, nodes in islice(terms.items(), share):
                if term.covers(namespace, labels):
                    yield term, frozenset(nodes)


def _index_keys(term: PeerTerm) -> Iterator[_IndexKey]:
    """Yield the keys under which the term is indexed."""
    ins = [requirement for requirement in term.selector or () if requirement.operator == "In"]
    narrowest = min(ins, key=lambda requirement: (len(requirement.values), requirement.key), default=None)
    pairs: list[tuple[str, str] | None] = [None]
    if narrowest is not None:
        pairs = [(narrowest.key, value) for value in narrowest.values]
    targets: tuple[str | None, ...] = term.namespaces if term.namespace_selector is None else (None,)
    if len(targets) * len(pairs) > MAX_INDEX_KEYS:
        targets = (None,)
    if len(pairs) > MAX_INDEX_KEYS:
        pairs = [None]
    for target in targets:
        for pair in pairs:
            yield target, pair


_ByNode = Mapping[str, int]
"""Node → pods."""

MAX_KEYS = 32
"""Largest number of keys that are indexed at the same time."""


class LabelIndex:
    """Pods of one namespace, counted by labels and node, to be searched by selectors.

    A namespace may have tens of thousands of label sets, because each pod of a StatefulSet has its name as a
    label. So label sets are indexed by the value of a key, once a selector uses the key.
    """

    def __init__(self) -> None:
        self._nodes: dict[Labels, dict[str, int]] = {}
        self._by_value: dict[str, dict[str, set[Labels]]] = {}

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def add(self, labels: Labels, node: str, pods: int) -> None:
        """Add to the number of pods on a node; `pods` is negative to remove pods."""
        nodes = self._nodes.get(labels)
        if nodes is None:
            nodes = self._nodes[labels] = {}
            for key, value in labels if self._by_value else ():
                if key in self._by_value:
                    self._by_value[key].setdefault(value, set()).add(labels)
        nodes[node] = nodes.get(node, 0) + pods
        if not nodes[node]:
            del nodes[node]
        if not nodes:
            del self._nodes[labels]
            self._drop(labels)

    def counts_matching(self, selectors: Sequence[Selector]) -> Iterator[_ByNode]:
        """Yield node → pods of each label set that satisfies all the selectors."""
        keys = {term.key for selector in selectors for term in selector or ()}
        match_by_labels: dict[Labels, bool] = {}
        for labels in self._candidate_labels(selectors):
            used_labels = tuple([pair for pair in labels if pair[0] in keys])
            if used_labels not in match_by_labels:
                value_by_key = dict(used_labels)
                match_by_labels[used_labels] = all(matches(selector, value_by_key) for selector in selectors)
            if match_by_labels[used_labels]:
                yield self._nodes[labels]

    def query_cost(self, selectors: Sequence[Selector]) -> int:
        """Return how many label sets `counts_matching` would read: all, if no index helps yet."""
        narrowest = _narrowest_requirement(selectors)
        if narrowest is None or narrowest.key not in self._by_value:
            return len(self._nodes)
        by_value = self._by_value[narrowest.key]
        return sum(len(by_value.get(value, ())) for value in narrowest.values)

    def _candidate_labels(self, selectors: Sequence[Selector]) -> Iterator[Labels]:
        """Yield the label sets that may satisfy all the selectors."""
        narrowest = _narrowest_requirement(selectors)
        if narrowest is None:
            yield from self._nodes
            return
        by_value = self._labels_by_value(narrowest.key)
        for value in narrowest.values:
            yield from by_value.get(value, ())

    def _labels_by_value(self, key: str) -> Mapping[str, set[Labels]]:
        """Return value of the key → label sets with this value. The index is kept for the next query."""
        if key not in self._by_value:
            if len(self._by_value) == MAX_KEYS:
                self._by_value.clear()
            by_value: dict[str, set[Labels]] = {}
            for labels in self._nodes:
                for label_key, value in labels:
                    if label_key == key:
                        by_value.setdefault(value, set()).add(labels)
            self._by_value[key] = by_value
        return self._by_value[key]

    def _drop(self, labels: Labels) -> None:
        for key, value in labels if self._by_value else ():
            if key in self._by_value:
                self._by_value[key][value].discard(labels)
                if not self._by_value[key][value]:
                    del self._by_value[key][value]


def _narrowest_requirement(selectors: Sequence[Selector]) -> SelectorTerm | None:
    """Return the `In` requirement of the selectors with the fewest values; None without such a
    requirement."""
    ins = [term for selector in selectors for term in selector or () if term.operator == "In"]
    return min(ins, key=lambda term: (len(term.values), term.key), default=None)


class ExistingPods:
    """Pods on nodes. `changes` collects changes until a reader takes them.

    `node_of` returns the node of the pod with this UID; "" if the pod is on no node.
    """

    def __init__(self, node_of: Callable[[str], str]) -> None:
        self._node_of = node_of
        self.namespaces: dict[str, Labels] = {}
        """Namespace → its labels, if known."""
        self.changes = Changes()
        self.checkpoints: dict[str, float] = {}
        """UID → when the pod saved its work last, in seconds since the epoch, of pods that say so."""
        self._pods: dict[str, Pod] = {}
        self._in_namespace: Counter[str] = Counter()
        """Namespace → known pods."""
        self._by_labels: dict[str, LabelIndex] = {}
        self._terminating: dict[str, LabelIndex] = {}
        """The terminating pods of `_by_labels`."""
        self.priorities: Counter[int] = Counter()
        """Priority → number of pods on nodes that are members of gangs, or have GPUs."""
        self.repelling = AntiAffinityIndex()
        self._ports: dict[tuple[int, str], dict[str, dict[str, int]]] = {}
        """Port and protocol → address → node → pods. A pod may name 64 ports, each at any address."""
        self._claims: dict[tuple[str, str], dict[str, int]] = {}
        self._attach_once: set[tuple[str, str]] = set()

    # --- changes ------------------------------------------------------------------------------------

    def see(self, pod: Pod) -> None:
        """Take in a pod's new state."""
        if pod.finished or not (pod.node or pod.claim is not None):
            self.forget(pod.uid)
            return
        old_pod, node = self._pods.get(pod.uid), self._node_of(pod.uid)
        self._pods[pod.uid] = pod
        self._count_priority(old_pod, -1)
        self._count_priority(pod, 1)
        if old_pod is None:
            self._in_namespace[pod.namespace] += 1
        if node and (old_pod is None or _facts(old_pod) != _facts(pod)):
            if old_pod is not None:
                self._count(old_pod, node, -1)
                self.changes.note_pod(old_pod)
            self._count(pod, node, 1)
            self.changes.note_pod(pod)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone or finished."""
        self.checkpoints.pop(uid, None)
        pod, node = self._pods.pop(uid, None), self._node_of(uid)
        if pod is None:
            return
        self._count_priority(pod, -1)
        self._in_namespace[pod.namespace] -= 1
        if not self._in_namespace[pod.namespace]:
            del self._in_namespace[pod.namespace]
        if node:
            self._count(pod, node, -1)
            self.changes.note_pod(pod)

    def move(self, uid: str, old_node: str, new_node: str) -> None:
        """Note that a pod moved from the node `old_node` to `new_node`; "" stands for no node."""
        pod = self._pods.get(uid)
        if pod is not None and old_node != new_node:
            self.changes.note_pod(pod)
            for counted_node, pods in ((old_node, -1), (new_node, 1)):
                if counted_node:
                    self._count(pod, counted_node, pods)

    def see_namespace(self, name: str, labels: Labels | None) -> None:
        """Take in a namespace's labels; None if it is gone."""
        old_labels = self.namespaces.pop(name, None)
        if labels is not None:
            self.namespaces[name] = labels
        # A new namespace without pods concerns no gang.
        self.changes.everything |= old_labels != labels and bool(old_labels or self._in_namespace[name])

    def see_checkpoints(self, saved: Mapping[str, float]) -> None:
        """Take in when pods saved their work, by UID; 0 if a pod no longer says so."""
        for uid, saved_at in saved.items():
            if saved_at and uid in self._pods:
                self.checkpoints[uid] = saved_at
            else:
                self.checkpoints.pop(uid, None)

    def see_claim(self, namespace: str, claim: str, attaches_once: bool) -> None:
        """Note whether the volume of a claim attaches to one node only; False if the claim is gone."""
        if self.attaches_once(namespace, claim) == attaches_once:
            return
        if attaches_once:
            self._attach_once.add((namespace, claim))
        else:
            self._attach_once.discard((namespace, claim))
        self.changes.claims.add((namespace, claim))

    def attaches_once(self, namespace: str, claim: str) -> bool:
        """Return whether the claim's volume is known to attach to one node only."""
        return (namespace, claim) in self._attach_once

    @contextmanager
    def hide(self, uids: Collection[str]) -> Iterator[None]:
        """Answer queries inside the block as if these pods were on no node."""
        pods = [self._pods[uid] for uid in uids if uid in self._pods]
        hidden_pods = [(pod, node) for pod in pods if (node := self._node_of(pod.uid))]
        for pod, node in hidden_pods:
            self._count(pod, node, -1)
        try:
            yield
        finally:
            for pod, node in hidden_pods:
                self._count(pod, node, 1)

    def _count_priority(self, pod: Pod | None, pods: int) -> None:
        if pod is not None and pod.node and (pod.claim is not None or pod.gpus or pod.slice):
            _count(self.priorities, (pod.priority,), pods)

    def _count(self, pod: Pod, node: str, pods: int) -> None:
        for index in (self._by_labels, self._terminating) if pod.terminating else (self._by_labels,):
            index.setdefault(pod.namespace, LabelIndex()).add(pod.labels, node, pods)
            if not index[pod.namespace]:
                del index[pod.namespace]
        for term in pod.peers.anti_affinity:
            self.repelling.add(pod.namespace, term, node, pods)
        for port in pod.peers.host_ports:
            _count(self._ports, ((port.port, port.protocol), port.address, node), pods)
        for claim in pod.peers.volume_claims:
            _count(self._claims, ((pod.namespace, claim), node), pods)

    # --- queries ------------------------------------------------------------------------------------

    def pod(self, uid: str) -> Pod | None:
        """Return a pod that is on a node or claims a gang; None if it is not known."""
        return self._pods.get(uid)

    def nodes_matching(self, terms: Collection[PeerTerm]) -> frozenset[str]:
        """Return the nodes with a pod that matches all the terms."""
        matching_nodes: set[str] = set()
        for index in self._indexes_covered_by(terms):
            for nodes in index.counts_matching([term.selector for term in terms]):
                matching_nodes.update(nodes)
        return frozenset(matching_nodes)

    def query_cost(self, terms: Collection[PeerTerm]) -> int:
        """Return how many label sets `nodes_matching` would read, or `count_matching` for a term of one
        namespace."""
        return sum(
            index.query_cost([term.selector for term in terms]) for index in self._indexes_covered_by(terms)
        )

    def _indexes_covered_by(self, terms: Collection[PeerTerm]) -> Iterator[LabelIndex]:
        """Yield the index of each namespace that all the terms cover."""
        first = next(iter(terms))
        namespaces = self._by_labels.keys() if first.namespace_selector is not None else first.namespaces
        for namespace in self._by_labels.keys() & namespaces:
            labels = self.labels_of(namespace)
            if all(term.covers(namespace, labels) for term in terms):
                yield self._by_labels[namespace]

    def count_matching(self, namespace: str, selector: Selector) -> dict[str, int]:
        """Return node → pods of the namespace that match the selector and do not terminate."""
        pods_by_node: Counter[str] = Counter()
        for index, sign in ((self._by_labels, 1), (self._terminating, -1)):
            for nodes in index.get(namespace, LabelIndex()).counts_matching([selector]):
                for node, pods in nodes.items():
                    pods_by_node[node] += sign * pods
        return +pods_by_node

    def nodes_with_port(self, port: HostPort) -> frozenset[str]:
        """Return the nodes with a pod whose host port conflicts with this one."""
        by_address = self._ports.get((port.port, port.protocol), {})
        addresses = by_address if port.address == ANY_ADDRESS else (port.address, ANY_ADDRESS)
        return frozenset[str]().union(*(by_address.get(address, ()) for address in addresses))

    def nodes_with_claim(self, namespace: str, claim: str) -> frozenset[str]:
        """Return the nodes with a pod that uses the PersistentVolumeClaim."""
        return frozenset(self._claims.get((namespace, claim), ()))

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace; {} if it is not known, as in kube-scheduler."""
        return dict(self.namespaces.get(namespace, ()))


def _facts(pod: Pod) -> tuple[object, ...]:
    return (pod.namespace, pod.labels, pod.peers, pod.terminating)


def _count(index: dict[Any, Any], path: tuple[object, ...], pods: int) -> None:
    """Add `pods` to the number under this path of keys. Remove keys without pods."""
    key, *more_keys = path
    if more_keys:
        _count(index.setdefault(key, {}), tuple(more_keys), pods)
    else:
        index[key] = index.get(key, 0) + pods
    if not index[key]:
        del index[key]
