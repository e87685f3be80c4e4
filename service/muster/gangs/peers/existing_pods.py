"""All pods on nodes, of every scheduler, indexed for constraints between pods: labels, terms, ports, claims.

A pod is on a node if it is bound there. It also is if a live plan or a Binding under way holds a place for it
there (`ledger`). Finished pods are on no node. Terminating ones are: kube-scheduler counts them for affinity,
anti-affinity and host ports (interpodaffinity/filtering.go, nodeports), but not for topology spread
(podtopologyspread/common.go, countPodsMatchSelector).

Pods with the same namespace and labels are counted together, so a query looks at each set of labels once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from muster.domain.peers import ANY_ADDRESS, HostPort, Labels, PeerTerm, Selector
from muster.domain.pod import Pod
from muster.gangs.peers.anti_affinity_index import AntiAffinityIndex
from muster.gangs.peers.label_index import LabelIndex
from muster.gangs.peers.peer_changes import PeerChanges

_Key = TypeVar("_Key", bound=Hashable)
_Index = dict[_Key, dict[str, int]]


class ExistingPods:
    """Pods on nodes. `changes` gathers what changed until it is taken."""

    def __init__(self) -> None:
        self.namespaces: dict[str, Labels] = {}
        """Namespace → its labels, if known."""
        self.changes = PeerChanges()
        self._known: dict[str, Pod] = {}
        self._in_namespace: Counter[str] = Counter()
        """Namespace → known pods."""
        self._node: dict[str, str] = {}
        self._by_labels: dict[str, LabelIndex] = {}
        self._terminating: dict[str, LabelIndex] = {}
        """The part of `_by_labels` that terminates."""
        self.repelling = AntiAffinityIndex()
        self._ports: dict[tuple[int, str], _Index[str]] = {}
        """Port and protocol → address → node → pods. A pod may name 64 ports, each at any address."""
        self._claims: _Index[tuple[str, str]] = {}
        self._attach_once: set[tuple[str, str]] = set()

    # --- changes ------------------------------------------------------------------------------------

    def see(self, pod: Pod) -> None:
        """Take in a pod's new state. `place` sets the node that it is on."""
        if pod.finished or not (pod.node or pod.claim is not None):
            self.forget(pod.uid)
            return
        before, node = self._known.get(pod.uid), self._node.get(pod.uid, "")
        self._known[pod.uid] = pod
        if before is None:
            self._in_namespace[pod.namespace] += 1
        if node and (before is None or _facts(before) != _facts(pod)):
            if before is not None:
                self._count(before, node, -1)
                self.changes.pod(before)
            self._count(pod, node, 1)
            self.changes.pod(pod)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone or finished."""
        pod, node = self._known.pop(uid, None), self._node.get(uid, "")
        if pod is None:
            return
        self._in_namespace[pod.namespace] -= 1
        if not self._in_namespace[pod.namespace]:
            del self._in_namespace[pod.namespace]
        if node:
            self._count(pod, node, -1)
            self.changes.pod(pod)

    def place(self, uid: str, node: str) -> None:
        """Note the node that a pod is on; "" for none."""
        before = self._node.get(uid, "")
        if before == node:
            return
        if node:
            self._node[uid] = node
        else:
            del self._node[uid]
        pod = self._known.get(uid)
        if pod is not None:
            self.changes.pod(pod)
            for where, pods in ((before, -1), (node, 1)):
                if where:
                    self._count(pod, where, pods)

    def see_namespace(self, name: str, labels: Labels | None) -> None:
        """Take in a namespace's labels; None if it is gone."""
        before = self.namespaces.pop(name, None)
        if labels is not None:
            self.namespaces[name] = labels
        # A new namespace without pods concerns no gang.
        self.changes.everything |= before != labels and bool(before or self._in_namespace[name])

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
    def without(self, uids: Collection[str]) -> Iterator[None]:
        """Answer queries inside the block as if these pods were on no node."""
        apart = [
            (self._known[uid], self._node[uid]) for uid in uids if uid in self._known and uid in self._node
        ]
        for pod, node in apart:
            self._count(pod, node, -1)
        try:
            yield
        finally:
            for pod, node in apart:
                self._count(pod, node, 1)

    def _count(self, pod: Pod, node: str, pods: int) -> None:
        for index in (self._by_labels, self._terminating) if pod.terminating else (self._by_labels,):
            index.setdefault(pod.namespace, LabelIndex()).add(pod.labels, node, pods)
            if not index[pod.namespace]:
                del index[pod.namespace]
        for term in pod.peers.anti_affinity:
            self.repelling.add(pod.namespace, term, node, pods)
        for port in pod.peers.host_ports:
            number = (port.port, port.protocol)
            _add(self._ports.setdefault(number, {}), port.address, node, pods)
            if not self._ports[number]:
                del self._ports[number]
        for claim in pod.peers.volume_claims:
            _add(self._claims, (pod.namespace, claim), node, pods)

    def take_changes(self) -> PeerChanges:
        """Return `changes`, and start a new collection."""
        changes, self.changes = self.changes, PeerChanges()
        return changes

    @property
    def placed(self) -> Mapping[str, str]:
        """Return UID → node of all pods that are on one."""
        return self._node

    # --- queries ------------------------------------------------------------------------------------

    def matching(self, terms: Collection[PeerTerm]) -> frozenset[str]:
        """Return the nodes with a pod that matches all the terms."""
        found: set[str] = set()
        for index in self._covered(terms):
            for nodes in index.chosen([term.selector for term in terms]):
                found.update(nodes)
        return frozenset(found)

    def looked_at(self, terms: Collection[PeerTerm]) -> int:
        """Return how many label sets `matching` would look at; `counted` too for a term of one namespace."""
        return sum(index.looked_at([term.selector for term in terms]) for index in self._covered(terms))

    def _covered(self, terms: Collection[PeerTerm]) -> Iterator[LabelIndex]:
        """Yield the pods of the namespaces that all the terms cover."""
        first = next(iter(terms))
        named = self._by_labels.keys() if first.namespace_selector is not None else first.namespaces
        for namespace in self._by_labels.keys() & named:
            labels = self.labels_of(namespace)
            if all(term.covers(namespace, labels) for term in terms):
                yield self._by_labels[namespace]

    def counted(self, namespace: str, selector: Selector) -> dict[str, int]:
        """Return node → pods of the namespace that match the selector and do not terminate."""
        found: Counter[str] = Counter()
        for index, sign in ((self._by_labels, 1), (self._terminating, -1)):
            for nodes in index.get(namespace, LabelIndex()).chosen([selector]):
                for node, pods in nodes.items():
                    found[node] += sign * pods
        return +found

    def with_port(self, port: HostPort) -> frozenset[str]:
        """Return the nodes with a pod whose host port conflicts with this one."""
        by_address = self._ports.get((port.port, port.protocol), {})
        addresses = by_address if port.address == ANY_ADDRESS else (port.address, ANY_ADDRESS)
        return frozenset[str]().union(*(by_address.get(address, ()) for address in addresses))

    def with_claim(self, namespace: str, claim: str) -> frozenset[str]:
        """Return the nodes with a pod that uses the PersistentVolumeClaim."""
        return frozenset(self._claims.get((namespace, claim), ()))

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace; {} if it is not known, as in kube-scheduler."""
        return dict(self.namespaces.get(namespace, ()))


def _facts(pod: Pod) -> tuple[object, ...]:
    return (pod.namespace, pod.labels, pod.peers, pod.terminating)


def _add(index: _Index[_Key], key: _Key, node: str, pods: int) -> None:
    nodes = index.setdefault(key, {})
    nodes[node] = nodes.get(node, 0) + pods
    if not nodes[node]:
        del nodes[node]
        if not nodes:
            del index[key]
