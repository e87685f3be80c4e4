"""Required anti-affinity of pods on nodes: the terms by which a pod that runs repels new ones.

Each request of a gang looks for the terms that match its members. Terms are indexed by a label that a pod
must have to match, so that most are never looked at. Of the terms that one namespace's pods have under one
label, MAX_TERMS are looked at: nobody's pods make every request slow. The in-tree plugins judge the others.

A term of many namespaces and many values would stand under each pair of them: 16 terms of one small pod under
a million. A term stands under MAX_PLACES at most. Beyond that its namespaces do not count in the index, and
beyond that its values do not; such a term is looked at more often.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from muster.domain.peers import PeerTerm

MAX_TERMS = 256
MAX_PLACES = 16

_Where = tuple[str | None, tuple[str, str] | None]
"""A namespace that a term names, None for "by labels"; a label that pods must have, None for "no label"."""
_Nodes = dict[str, int]


class AntiAffinityIndex:
    """Terms → node → pods that have the term."""

    def __init__(self) -> None:
        self._terms: dict[_Where, dict[str, dict[PeerTerm, _Nodes]]] = {}
        """By the namespace of the pods that have them, too."""

    def __bool__(self) -> bool:
        return bool(self._terms)

    def add(self, owner: str, term: PeerTerm, node: str, pods: int) -> None:
        """Count pods of the namespace `owner` on a node, fewer where `pods` is negative."""
        for where in _where(term):
            by_owner = self._terms.setdefault(where, {})
            terms = by_owner.setdefault(owner, {})
            nodes = terms.setdefault(term, {})
            nodes[node] = nodes.get(node, 0) + pods
            if not nodes[node]:
                del nodes[node]
            if not nodes:
                del terms[term]
            if not terms:
                del by_owner[owner]
            if not by_owner:
                del self._terms[where]

    def against(
        self, namespace: str, labels: Mapping[str, str], pairs: Collection[tuple[str, str]]
    ) -> Iterator[tuple[PeerTerm, frozenset[str]]]:
        """Yield the terms that speak of a namespace with these labels, and may match pods of which each label
        is one of `pairs`; with the nodes of the pods that have the term. A term may come twice."""
        for target in (namespace, None):
            for pair in (None, *pairs):
                for terms in self._terms.get((target, pair), {}).values():
                    for term, nodes in islice(terms.items(), MAX_TERMS):
                        if term.covers(namespace, labels):
                            yield term, frozenset(nodes)


def _where(term: PeerTerm) -> Iterator[_Where]:
    ins = [each for each in term.selector or () if each.operator == "In"]
    narrowest = min(ins, key=lambda each: (len(each.values), each.key), default=None)
    pairs: list[tuple[str, str] | None] = [None]
    if narrowest is not None:
        pairs = [(narrowest.key, value) for value in narrowest.values]
    targets: tuple[str | None, ...] = term.namespaces if term.namespace_selector is None else (None,)
    if len(targets) * len(pairs) > MAX_PLACES:
        targets = (None,)
    if len(pairs) > MAX_PLACES:
        pairs = [None]
    for target in targets:
        for pair in pairs:
            yield target, pair
