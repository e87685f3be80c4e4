"""Find the hints of refused gangs that a change of other pods concerns.

To check each of ten thousand waiting gangs after each change of a pod would take too long. So an index stores
each (anti-)affinity term in one cell: under a label that a pod must have to match. If the term names a single
namespace, it is stored under this namespace too. A change concerns few cells. Each different term of a cell
is checked once, for all gangs that have it.

A user may crowd a cell with many terms. So one change checks at most MAX_LOOKED_AT requirements, the least
crowded cells first. In the other cells all hints count as touched: that may ask the planner in vain, but it
misses no gang.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from muster.domain.peers import PeerTerm, matches
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.peers.existing_pods import Changes

MAX_LOOKED_AT = 5_000
"""Largest number of selector requirements that one change matches against labels (about 5 ms)."""
MAX_INTERESTS = 32
"""Most terms and claims of one gang in the index. A gang with more counts as touched by every change."""
_VALUES = 16
"""Number of values or namespaces of a term that cost as much as one requirement."""

_Key = TypeVar("_Key", bound=Hashable)
_Label = tuple[str, str] | str | None
"""The label that a pod must have to match: with its value, by its key only, or None."""
_Labels = Mapping[str, str]
_Changed = tuple[str, _Labels, _Labels]
"""A pod that changed: its namespace, the namespace's labels, its own labels."""


@dataclass(slots=True, eq=False)
class _IndexCell:
    """Terms under one label and namespace, with the hints that have each term."""

    terms: dict[PeerTerm, set[QueueingHint]] = field(default_factory=dict)
    hints: dict[QueueingHint, int] = field(default_factory=dict)
    """Hint → number of these terms that it has."""
    cost: int = 0
    """Requirements of all the terms."""

    def add(self, term: PeerTerm, hint: QueueingHint) -> None:
        """Add a term of a hint."""
        if term not in self.terms:
            self.terms[term] = set()
            self.cost += _cost(term)
        self.terms[term].add(hint)
        self.hints[hint] = self.hints.get(hint, 0) + 1

    def discard(self, term: PeerTerm, hint: QueueingHint) -> None:
        """Remove a term of a hint."""
        _drop(self.terms, term, hint)
        if term not in self.terms:
            self.cost -= _cost(term)
        self.hints[hint] -= 1
        if not self.hints[hint]:
            del self.hints[hint]

    def hints_matched_by(self, pods: Iterable[_Changed]) -> Iterator[set[QueueingHint]]:
        """Yield the hints of each term that matches one of the pods."""
        for term, hints in self.terms.items():
            for namespace, namespace_labels, labels in pods:
                if term.covers(namespace, namespace_labels) and matches(term.selector, labels):
                    yield hints
                    break


class Watchers:
    """A set of hints, indexed by what their constraints concern."""

    def __init__(self) -> None:
        self._all: set[QueueingHint] = set()
        self._always_touched: set[QueueingHint] = set()
        """Hints with more than MAX_INTERESTS terms and claims."""
        self._by_repelling: dict[PeerTerm, set[QueueingHint]] = {}
        self._by_claim: dict[tuple[str, str], set[QueueingHint]] = {}
        self._cells: dict[str | None, dict[_Label, _IndexCell]] = {}
        """Namespace (None for terms that do not name a single one) → label → cell."""
        self._labels: dict[PeerTerm, _Label] = {}
        """Term → the label under which it is stored."""

    def add(self, hint: QueueingHint) -> None:
        """Add a hint that is not in the set yet."""
        interest = hint.interest
        if interest is None:
            return
        self._all.add(hint)
        if interest.size > MAX_INTERESTS:
            self._always_touched.add(hint)
            return
        for repelling in interest.repelled_by:
            self._by_repelling.setdefault(repelling, set()).add(hint)
        for claim in interest.claims:
            self._by_claim.setdefault(claim, set()).add(hint)
        for term in interest.terms:
            cells = self._cells.setdefault(_only_namespace(term), {})
            if term not in self._labels:
                self._labels[term] = _least_crowded_label(term, cells)
            cells.setdefault(self._labels[term], _IndexCell()).add(term, hint)

    def discard(self, hint: QueueingHint) -> None:
        """Remove a hint, if it is in the set."""
        interest = hint.interest
        if interest is None or hint not in self._all:
            return
        self._all.remove(hint)
        if interest.size > MAX_INTERESTS:
            self._always_touched.remove(hint)
            return
        for repelling in interest.repelled_by:
            _drop(self._by_repelling, repelling, hint)
        for claim in interest.claims:
            _drop(self._by_claim, claim, hint)
        for term in interest.terms:
            self._remove_term(term, hint)

    def hints_touched_by(self, changes: Changes, labels_of: Callable[[str], _Labels]) -> set[QueueingHint]:
        """Return the hints that these changes concern, and perhaps others.

        `labels_of` returns the labels of a namespace.
        """
        if changes.everything:
            return set(self._all)
        touched_hints = set(self._always_touched)
        for term in self._by_repelling.keys() & changes.terms:
            touched_hints |= self._by_repelling[term]
        for claim in self._by_claim.keys() & changes.claims:
            touched_hints |= self._by_claim[claim]
        remaining = MAX_LOOKED_AT
        pods_by_cell = self._cells_matched_by(changes, labels_of)
        entries = ((cell.cost * len(pods), cell, pods) for cell, pods in pods_by_cell.items())
        for cost, cell, pods in sorted(entries, key=lambda entry: entry[0]):
            remaining -= cost
            if remaining >= 0:
                touched_hints.update(*cell.hints_matched_by(pods))
            else:
                touched_hints.update(cell.hints)
        return touched_hints

    def _cells_matched_by(
        self, changes: Changes, labels_of: Callable[[str], _Labels]
    ) -> dict[_IndexCell, list[_Changed]]:
        """Return the cells with terms that changed pods may match, each with these pods."""
        pods_by_cell: dict[_IndexCell, list[_Changed]] = {}
        namespaces = {namespace: labels_of(namespace) for namespace, _ in changes.pods}
        for namespace, labels in changes.pods if self._cells else ():
            pod = (namespace, namespaces[namespace], dict(labels))
            pod_labels: set[_Label] = {None, *labels, *pod[2]}
            for term_namespace in (namespace, None):
                cells = self._cells.get(term_namespace, {})
                for label in cells.keys() & pod_labels:
                    pods_by_cell.setdefault(cells[label], []).append(pod)
        return pods_by_cell

    def _remove_term(self, term: PeerTerm, hint: QueueingHint) -> None:
        namespace, label = _only_namespace(term), self._labels[term]
        cells = self._cells[namespace]
        cells[label].discard(term, hint)
        if term not in cells[label].terms:
            del self._labels[term]
        if not cells[label].terms:
            del cells[label]
        if not cells:
            del self._cells[namespace]


def _only_namespace(term: PeerTerm) -> str | None:
    """Return the only namespace that the term concerns; None if the term may concern several."""
    return term.namespaces[0] if term.namespace_selector is None and len(term.namespaces) == 1 else None


def _least_crowded_label(term: PeerTerm, cells: Mapping[_Label, _IndexCell]) -> _Label:
    """Return the label under which the term is stored: the required label with the fewest terms."""
    required: list[_Label] = [
        (requirement.key, requirement.values[0])
        if requirement.operator == "In" and len(requirement.values) == 1
        else requirement.key
        for requirement in term.selector or ()
        if requirement.operator in ("In", "Exists")
    ]
    return min(required, key=lambda label: len(cells[label].terms) if label in cells else 0, default=None)


def _cost(term: PeerTerm) -> int:
    """Return the cost of matching the term, in requirements."""
    requirements = (*(term.selector or ()), *(term.namespace_selector or ()))
    values = len(term.namespaces) + sum(len(requirement.values) for requirement in requirements)
    return 1 + len(requirements) + values // _VALUES


def _drop(index: dict[_Key, set[QueueingHint]], key: _Key, hint: QueueingHint) -> None:
    index[key].discard(hint)
    if not index[key]:
        del index[key]
