"""Changes of other pods that may help a refused gang, apart from free capacity.

A gang that was refused under constraints may fit later for three reasons. A pod that it must avoid ended, a
pod that it must be near was bound, or a node or namespace changed its labels. `PeerChanges` collects such
changes, and `PeerInterest` is what a gang waits for. `pending.watchers` finds the gangs that a change
concerns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.domain.peers import Labels, PeerTerm
from muster.domain.pod import Pod

MAX_CHANGES = 512
"""More changes than this count as a change of everything."""


@dataclass(slots=True)
class PeerChanges:
    """Changes since they were last taken."""

    pods: set[tuple[str, Labels]] = field(default_factory=set)
    """(namespace, labels) of pods that changed."""
    terms: set[PeerTerm] = field(default_factory=set)
    """Anti-affinity terms of these pods."""
    claims: set[tuple[str, str]] = field(default_factory=set)
    """(namespace, claim) of PersistentVolumeClaims."""
    everything: bool = False
    """Labels of nodes or namespaces changed, or more than can be listed."""

    def pod(self, pod: Pod) -> None:
        """Note that a pod came to a node, left it or changed there."""
        if self.everything:
            return
        self.pods.add((pod.namespace, pod.labels))
        self.terms.update(pod.peers.anti_affinity)
        self.claims.update((pod.namespace, claim) for claim in pod.peers.volume_claims)
        self._bound()

    def add(self, changes: PeerChanges) -> None:
        """Add the changes of another collection."""
        self.pods |= changes.pods
        self.terms |= changes.terms
        self.claims |= changes.claims
        self.everything |= changes.everything
        self._bound()

    def _bound(self) -> None:
        """Count more changes than can be listed as a change of everything."""
        if self.everything or len(self.pods) + len(self.terms) + len(self.claims) > MAX_CHANGES:
            self.pods, self.terms, self.claims, self.everything = set(), set(), set(), True

    def __bool__(self) -> bool:
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
