"""Pods that are lost: submitted, not taken away by those who run the chaos, and gone. Pure.

A pod may go because its submitter says so beforehand (itself, or its gang as a whole), because its node was
taken away, which the pod garbage collector follows up, or because the scheduler evicted a gang that was half
bound for too long: that is its policy, counted apart and never silent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from local_cluster.api import Object

EVICTED = "EvictionByEvictionAPI"
FOLLOWS_UP_S = 5.0
"""How long after a node is back pods of its may still go: the collector looked before that."""


@dataclass
class _Absence:
    since: float
    until: float | None = None

    def explains(self, at: float) -> bool:
        return self.since <= at and (self.until is None or at < self.until + FOLLOWS_UP_S)


@dataclass(frozen=True, slots=True)
class _Submitted:
    name: str
    gang: str


@dataclass
class Losses:
    """Times are seconds on one clock. `lost` names pods, `evicted` those that the scheduler gave up."""

    lost: list[str] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    gone: int = 0
    _submitted: dict[str, _Submitted] = field(default_factory=dict)
    _excused: set[str] = field(default_factory=set)
    _absences: dict[str, list[_Absence]] = field(default_factory=dict)

    # --- what those who run the chaos say -------------------------------------------------------

    def submitted(self, uid: str, name: str, gang: str) -> None:
        """The API server took this pod of that gang in."""
        self._submitted[uid] = _Submitted(name, gang)

    def excuse(self, keys: Iterable[str]) -> None:
        """Pods (by UID) or whole gangs (by key) that are about to be deleted, or were."""
        self._excused.update(keys)

    def node_goes(self, node: str, at: float) -> None:
        self._absences.setdefault(node, []).append(_Absence(at))

    def node_is_back(self, node: str, at: float) -> None:
        self._absences[node][-1].until = at

    # --- what the API server shows --------------------------------------------------------------

    def seen(self, pod: Object, gang: str) -> None:
        """A pod of that gang exists; one that a controller made counts as submitted from here on."""
        self._submitted.setdefault(str(pod["metadata"]["uid"]), _Submitted(_name(pod), gang))

    def went(self, at: float, pod: Object, gang: str, half: bool, *, watched: bool = True) -> None:
        """A pod went. `gang`: the key of its gang; `half`: whether that was half bound.

        `watched`: false if it is missing in a list. Then its Binding may not have been seen.
        """
        uid = str(pod["metadata"]["uid"])
        submitted = self._submitted.pop(uid, None)
        of = submitted.gang if submitted else gang  # a single pod's replacement is a gang of another name
        self.gone += 1
        node = str(pod["spec"].get("nodeName", ""))
        unseen = [] if watched or node else list(itertools.chain(*self._absences.values()))
        absences = [*self._absences.get(node, ()), *unseen]
        if {uid, of} & self._excused or any(absence.explains(at) for absence in absences):
            return
        (self.evicted if half and _evicted(pod) else self.lost).append(_name(pod))

    def missing(self, uids: Iterable[str]) -> list[str]:
        """Pods that were submitted and are not among those that exist, though none was seen going."""
        present = {*uids} | self._excused
        return sorted(pod.name for uid, pod in self._submitted.items() if not {uid, pod.gang} & present)


def _name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _evicted(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "DisruptionTarget" and c.get("reason") == EVICTED for c in conditions)
