"""What else than free capacity may help a refused gang: pods that its constraints speak of.

A gang that was refused under constraints may fit after a pod that it must keep away from ends, after one
that it must be near to is bound, or after a node or a namespace changes its labels. `Marks` gathers such
changes, `Watched` says which of them bear on a gang.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from muster.domain.peers import Labels, PeerTerm, matches
from muster.domain.pod import Pod

MAX_MARKS = 512
"""More changes than this count as a change of everything."""


@dataclass(slots=True)
class Marks:
    """Changes since they were taken last: pods by namespace and labels, with the terms and claims that they
    bore. `everything`: labels of nodes or namespaces, or more than can be listed."""

    pods: set[tuple[str, Labels]] = field(default_factory=set)
    terms: set[PeerTerm] = field(default_factory=set)
    claims: set[tuple[str, str]] = field(default_factory=set)
    everything: bool = False

    def pod(self, pod: Pod) -> None:
        """Note that a pod came to a node, left it or changed there."""
        if self.everything:
            return
        self.pods.add((pod.namespace, pod.labels))
        self.terms.update(pod.peers.anti_affinity)
        self.claims.update((pod.namespace, claim) for claim in pod.peers.volume_claims)
        if len(self.pods) + len(self.terms) + len(self.claims) > MAX_MARKS:
            self.clear()
            self.everything = True

    def add(self, other: Marks) -> None:
        """Take in the changes of another."""
        self.pods |= other.pods
        self.terms |= other.terms
        self.claims |= other.claims
        self.everything |= other.everything

    def clear(self) -> None:
        """Forget all changes."""
        self.pods, self.terms, self.claims = set(), set(), set()
        self.everything = False

    def __bool__(self) -> bool:
        return bool(self.pods or self.claims or self.everything)


@dataclass(frozen=True, slots=True)
class Watched:
    """What a gang's constraints speak of: other pods by `terms`, terms of others that repel it, and claims.

    Host ports are not among them: a port that comes free is on a node that gained. Equal gangs have equal
    ones.
    """

    terms: frozenset[PeerTerm] = frozenset()
    repelled_by: frozenset[PeerTerm] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()

    def touched(self, marks: Marks, labels_of: Callable[[str], Mapping[str, str]]) -> bool:
        """Return whether these changes bear on the gang. `labels_of` gives the labels of a namespace."""
        if marks.everything or not self.repelled_by.isdisjoint(marks.terms):
            return True
        if not self.claims.isdisjoint(marks.claims):
            return True
        for namespace, labels in marks.pods if self.terms else ():
            for term in self.terms:
                if term.covers(namespace, labels_of(namespace)) and matches(term.selector, dict(labels)):
                    return True
        return False
