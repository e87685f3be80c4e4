"""Changes of other pods that may help a refused gang, apart from free capacity.

A gang that was refused under constraints may fit later for three reasons: a pod that it must avoid ended, a
pod that it must be near was bound, or a node or namespace changed its labels. `PeerChanges` collects such
changes, and `PeerInterest` is what a gang waits for. `pending.watchers` finds the gangs that a change concerns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.domain.peers import Labels, PeerTerm
from muster.domain.pod import Pod

MAX_CHANGES = 512
"""More changes than this count as a change of everything."""


@dataclass(slots=True)
class PeerChanges:
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
        self._bound()

    def add(self, other: PeerChanges) -> None:
        """Take in the changes of another."""
        self.pods |= other.pods
        self.terms |= other.terms
        self.claims |= other.claims
        self.everything |= other.everything
        self._bound()

    def _bound(self) -> None:
        """Count more changes than can be listed as a change of everything."""
        if self.everything or len(self.pods) + len(self.terms) + len(self.claims) > MAX_CHANGES:
            self.clear()
            self.everything = True

    def clear(self) -> None:
        """Forget all changes."""
        self.pods, self.terms, self.claims = set(), set(), set()
        self.everything = False

    def __bool__(self) -> bool:
        return bool(self.pods or self.claims or self.everything)


@dataclass(frozen=True, slots=True)
class PeerInterest:
    """What a gang's constraints speak of: other pods by `terms`, terms of others that repel it, and claims.

    Host ports are not among them: a port that comes free is on a node that gained. Equal gangs have equal
    ones.
    """

    terms: frozenset[PeerTerm] = frozenset()
    repelled_by: frozenset[PeerTerm] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()

    @property
    def size(self) -> int:
        """How many terms and claims there are."""
        return len(self.terms) + len(self.repelled_by) + len(self.claims)
