"""Find the hints of refused gangs that a change of other pods concerns.

A change of one pod must not cost a look at each of ten thousand waiting gangs. So each term is stored in one
place: under a label that a pod must have to match, and under the namespace if the term names a single one. A
change concerns few places, and each different term in a place is checked once, however many gangs have this
term.

A user may crowd a place with many terms. One change checks MAX_LOOKED_AT requirements at most, the least
crowded places first. In the remaining places all hints count as touched: an unnecessary question to the
planner is allowed, a missed gang is not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from muster.domain.peers import PeerTerm, matches
from muster.gangs.capacity.queueing_hints import QueueingHint
from muster.gangs.peers.existing_pods import Changes

MAX_LOOKED_AT = 5_000
"""Selector requirements that one change matches against labels (about 5 ms)."""
MAX_INTERESTS = 32
"""Largest number of terms and claims of one gang. A gang with more counts as touched by every change."""
_VALUES = 16
"""Number of values or namespaces of a term that cost as much as one requirement."""

_Key = TypeVar("_Key", bound=Hashable)
_Label = tuple[str, str] | str | None
"""The label that a pod must have to match: with its value, by its key only, or None."""
_Labels = Mapping[str, str]
_Changed = tuple[str, _Labels, _Labels]
"""A pod that changed: its namespace, the namespace's labels, its own labels."""


@dataclass(slots=True, eq=False)
class _Place:
    """Terms of one place in the index, with the hints that have each term."""

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

    def matched(self, pods: Iterable[_Changed]) -> Iterator[set[QueueingHint]]:
        """Yield the hints of each term that matches one of the pods."""
        for term, hint in self.terms.items():
            for namespace, its_labels, labels in pods:
                if term.covers(namespace, its_labels) and matches(term.selector, labels):
                    yield hint
                    break


class Watchers:
    """A set of hints, indexed by what their constraints concern."""

    def __init__(self) -> None:
        self._all: set[QueueingHint] = set()
        self._by_any: set[QueueingHint] = set()
        """Hints with more than MAX_INTERESTS."""
        self._by_repelling: dict[PeerTerm, set[QueueingHint]] = {}
        self._by_claim: dict[tuple[str, str], set[QueueingHint]] = {}
        self._places: dict[str | None, dict[_Label, _Place]] = {}
        """Namespace (None for terms that do not name a single one) → label → place."""
        self._labels: dict[PeerTerm, _Label] = {}
        """Term → the label under which it is stored."""

    def add(self, hint: QueueingHint) -> None:
        """Add a hint that is not in the set yet."""
        interest = hint.interest
        if interest is None:
            return
        self._all.add(hint)
        if interest.size > MAX_INTERESTS:
            self._by_any.add(hint)
            return
        for repelling in interest.repelled_by:
            self._by_repelling.setdefault(repelling, set()).add(hint)
        for claim in interest.claims:
            self._by_claim.setdefault(claim, set()).add(hint)
        for term in interest.terms:
            places = self._places.setdefault(_namespace(term), {})
            if term not in self._labels:
                self._labels[term] = _least_crowded(term, places)
            places.setdefault(self._labels[term], _Place()).add(term, hint)

    def discard(self, hint: QueueingHint) -> None:
        """Remove a hint, if it is in the set."""
        interest = hint.interest
        if interest is None or hint not in self._all:
            return
        self._all.remove(hint)
        if interest.size > MAX_INTERESTS:
            self._by_any.remove(hint)
            return
        for repelling in interest.repelled_by:
            _drop(self._by_repelling, repelling, hint)
        for claim in interest.claims:
            _drop(self._by_claim, claim, hint)
        for term in interest.terms:
            self._leave(term, hint)

    def touched(self, changes: Changes, labels_of: Callable[[str], _Labels]) -> set[QueueingHint]:
        """Return the hints that these changes concern, and perhaps others.

        `labels_of` returns the labels of a namespace.
        """
        if changes.everything:
            return set(self._all)
        touched = set(self._by_any)
        for term in self._by_repelling.keys() & changes.terms:
            touched |= self._by_repelling[term]
        for claim in self._by_claim.keys() & changes.claims:
            touched |= self._by_claim[claim]
        remaining = MAX_LOOKED_AT
        met = ((place.cost * len(pods), place, pods) for place, pods in self._met(changes, labels_of).items())
        for cost, place, pods in sorted(met, key=lambda entry: entry[0]):
            remaining -= cost
            if remaining >= 0:
                touched.update(*place.matched(pods))
            else:
                touched.update(place.hints)
        return touched

    def _met(self, changes: Changes, labels_of: Callable[[str], _Labels]) -> dict[_Place, list[_Changed]]:
        """Return the places of terms that changed pods may match, with these pods."""
        met: dict[_Place, list[_Changed]] = {}
        namespaces = {namespace: labels_of(namespace) for namespace, _ in changes.pods}
        for namespace, labels in changes.pods if self._places else ():
            pod = (namespace, namespaces[namespace], dict(labels))
            has: set[_Label] = {None, *labels, *pod[2]}
            for term_namespace in (namespace, None):
                places = self._places.get(term_namespace, {})
                for label in places.keys() & has:
                    met.setdefault(places[label], []).append(pod)
        return met

    def _leave(self, term: PeerTerm, hint: QueueingHint) -> None:
        namespace, label = _namespace(term), self._labels[term]
        places = self._places[namespace]
        places[label].discard(term, hint)
        if term not in places[label].terms:
            del self._labels[term]
        if not places[label].terms:
            del places[label]
        if not places:
            del self._places[namespace]


def _namespace(term: PeerTerm) -> str | None:
    """Return the only namespace that the term concerns; None if there may be several."""
    return term.namespaces[0] if term.namespace_selector is None and len(term.namespaces) == 1 else None


def _least_crowded(term: PeerTerm, places: Mapping[_Label, _Place]) -> _Label:
    """Return the label under which the term is stored: the required label with the fewest terms."""
    required: list[_Label] = [
        (requirement.key, requirement.values[0])
        if requirement.operator == "In" and len(requirement.values) == 1
        else requirement.key
        for requirement in term.selector or ()
        if requirement.operator in ("In", "Exists")
    ]
    return min(required, key=lambda label: len(places[label].terms) if label in places else 0, default=None)


def _cost(term: PeerTerm) -> int:
    """Return the cost of matching the term, in requirements."""
    requirements = (*(term.selector or ()), *(term.namespace_selector or ()))
    values = len(term.namespaces) + sum(len(requirement.values) for requirement in requirements)
    return 1 + len(requirements) + values // _VALUES


def _drop(index: dict[_Key, set[QueueingHint]], key: _Key, hint: QueueingHint) -> None:
    index[key].discard(hint)
    if not index[key]:
        del index[key]
