"""Pods of one namespace, counted by labels and node, to be searched by selectors.

A namespace may have tens of thousands of different label sets, because the pods of a StatefulSet have
different names. So label sets are indexed by the value of a key, from the first selector that uses the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from muster.domain.peers import Labels, Selector, matches
from muster.domain.request import SelectorTerm

ByNode = Mapping[str, int]
"""Node → pods."""

MAX_KEYS = 32
"""Keys that are indexed at the same time."""


class LabelIndex:
    """Label sets → node → pods."""

    def __init__(self) -> None:
        self._nodes: dict[Labels, dict[str, int]] = {}
        self._by_value: dict[str, dict[str, set[Labels]]] = {}

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def add(self, labels: Labels, node: str, pods: int) -> None:
        """Count pods; `pods` is negative to remove some."""
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

    def chosen(self, selectors: Sequence[Selector]) -> Iterator[ByNode]:
        """Yield node → pods of each label set that satisfies all the selectors."""
        keys = {term.key for selector in selectors for term in selector or ()}
        known: dict[Labels, bool] = {}
        for labels in self._candidates(selectors):
            seen = tuple([pair for pair in labels if pair[0] in keys])
            if seen not in known:
                as_map = dict(seen)
                known[seen] = all(matches(selector, as_map) for selector in selectors)
            if known[seen]:
                yield self._nodes[labels]

    def looked_at(self, selectors: Sequence[Selector]) -> int:
        """Return how many label sets `chosen` would look at: all of them if no index helps yet."""
        rarest = _rarest(selectors)
        if rarest is None or rarest.key not in self._by_value:
            return len(self._nodes)
        by_value = self._by_value[rarest.key]
        return sum(len(by_value.get(value, ())) for value in rarest.values)

    def _candidates(self, selectors: Sequence[Selector]) -> Iterator[Labels]:
        rarest = _rarest(selectors)
        if rarest is None:
            yield from self._nodes
            return
        by_value = self._indexed(rarest.key)
        for value in rarest.values:
            yield from by_value.get(value, ())

    def _indexed(self, key: str) -> Mapping[str, set[Labels]]:
        if key not in self._by_value:
            if len(self._by_value) == MAX_KEYS:
                self._by_value.clear()
            by_value: dict[str, set[Labels]] = {}
            for labels in self._nodes:
                for each, value in labels:
                    if each == key:
                        by_value.setdefault(value, set()).add(labels)
            self._by_value[key] = by_value
        return self._by_value[key]

    def _drop(self, labels: Labels) -> None:
        for key, value in labels if self._by_value else ():
            if key in self._by_value:
                self._by_value[key][value].discard(labels)
                if not self._by_value[key][value]:
                    del self._by_value[key][value]


def _rarest(selectors: Sequence[Selector]) -> SelectorTerm | None:
    ins = [term for selector in selectors for term in selector or () if term.operator == "In"]
    return min(ins, key=lambda term: (len(term.values), term.key), default=None)
