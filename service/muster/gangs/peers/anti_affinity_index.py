"""Required anti-affinity of pods on nodes: the terms by which an existing pod repels new ones.

Each request of a gang looks for the terms that match its members. Terms are indexed by a label that a pod
must have to match, so that most are never looked at. Of one namespace's terms under one label, only MAX_TERMS
are looked at, and of all MAX_OF_ALL, so that tenants cannot make every request slow. Namespaces with few
terms are looked at first. The in-tree plugins judge the others.

A term with many namespaces and many values would be indexed under each pair of them: 16 terms of one small
pod under a million. A term is indexed under MAX_PLACES at most. Beyond that the index ignores its namespaces,
and then its values; such a term is looked at more often.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from muster.domain.peers import PeerTerm

MAX_TERMS = 256
MAX_OF_ALL = 2_048
MAX_PLACES = 16

_Where = tuple[str | None, tuple[str, str] | None]
"""A namespace that a term names (None: it selects by labels), and a label that pods must have (None: no
label)."""
_Nodes = dict[str, int]


class AntiAffinityIndex:
    """Terms → node → pods that have the term."""

    def __init__(self) -> None:
        self._terms: dict[_Where, dict[str, dict[PeerTerm, _Nodes]]] = {}
        """Place in the index → namespace of the pods that have the term → term → nodes."""

    def __bool__(self) -> bool:
        return bool(self._terms)

    def add(self, owner: str, term: PeerTerm, node: str, pods: int) -> None:
        """Count pods of the namespace `owner` on a node; `pods` is negative to remove some."""
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
        """Yield terms that concern a namespace with these labels, with the nodes of the pods that have them.

        A term may match pods whose labels are all in `pairs`. A term may be yielded twice.
        """
        places = [
            terms
            for target in (namespace, None)
            for pair in (None, *pairs)
            for terms in self._terms.get((target, pair), {}).values()
        ]
        left = MAX_OF_ALL
        for number, terms in enumerate(sorted(places, key=len)):
            share = min(len(terms), MAX_TERMS, -(-left // (len(places) - number)))
            left -= share
            for term, nodes in islice(terms.items(), share):
                if term.covers(namespace, labels):
                    yield term, frozenset(nodes)


def _where(term: PeerTerm) -> Iterator[_Where]:
    """Yield the places of the index that hold the term."""
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
