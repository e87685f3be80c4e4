"""The pods that share a ResourceClaim of their PodGroup, and the pod for which its devices count.

The resource claim controller makes one claim for all pods of a PodGroup that name the same template as the
PodGroup. The claim's devices count once: for the holder, as if the claim were for this pod alone. The other
pods request none of them, and lie on the holder's node.

The holder is a bound pod whose Binding names the devices; else any bound pod, because it uses the devices;
else the oldest pod that waits. A holder stays the holder while no such pod comes before it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from muster.dialects.devices.objects import ResourceClaim
from muster.dialects.objects import PodObject
from muster.domain.allocation import ALLOCATION

_API_GROUP = "scheduling.k8s.io/"


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """The place of a pod in the order of holders."""

    turn: int
    """0 for a bound pod whose Binding names devices, 1 for another bound pod, 2 for a pod that waits."""
    created: str
    name: str


@dataclass(frozen=True, slots=True)
class NewHolder:
    """A claim whose devices count for another pod than before. Both are UIDs, "" for no pod."""

    claim: str
    before: str
    now: str


class Sharers:
    """The pods that name claims of their PodGroup. A claim is given by its namespace and name."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[_Place, frozenset[str]]] = {}
        """UID → the pod's place, and the claims that it shares."""
        self._queues: dict[str, list[tuple[_Place, str]]] = {}
        """Claim → places and UIDs of the pods that share it, sorted."""
        self._holders: dict[str, str] = {}

    def see(self, uid: str, obj: PodObject | None, claims: frozenset[str]) -> list[NewHolder]:
        """Take in a pod with the claims that it may share; None if the pod is gone. Return the claims that
        have another holder now."""
        shares = obj is not None and bool(claims) and obj.status.phase not in ("Succeeded", "Failed")
        facts_now = (_place_of(obj), claims) if obj is not None and shares else None
        facts_before = self._pods.pop(uid, None)
        if facts_now is not None:
            self._pods[uid] = facts_now
        if facts_now == facts_before:
            return []
        changed = set[str]()
        if facts_before is not None:
            place, claims_before = facts_before
            for claim in claims_before:
                queue = self._queues[claim]
                del queue[bisect_left(queue, (place, uid))]
            changed |= claims_before
        if facts_now is not None:
            for claim in claims:
                insort(self._queues.setdefault(claim, []), (facts_now[0], uid))
            changed |= claims
        return list(filter(None, map(self._choose, sorted(changed))))

    def holder_of(self, claim: str) -> str:
        """Return the UID of the pod for which the claim's devices count; "" without such a pod."""
        return self._holders.get(claim, "")

    def _choose(self, claim: str) -> NewHolder | None:
        """Choose the holder of a claim again. Return the change, if there is any."""
        before = self._holders.pop(claim, "")
        queue = self._queues[claim]
        if not queue:
            del self._queues[claim]
            return NewHolder(claim, before, "") if before else None
        first_place, now = queue[0]
        place_before, claims_before = self._pods.get(before, (None, frozenset[str]()))
        if place_before is not None and claim in claims_before and place_before.turn == first_place.turn:
            now = before
        self._holders[claim] = now
        return NewHolder(claim, before, now) if now != before else None


def _place_of(obj: PodObject) -> _Place:
    meta = obj.metadata
    turn = 2 if not obj.spec.node_name else 0 if ALLOCATION in (meta.annotations or {}) else 1
    return _Place(turn, meta.creation_timestamp or "", meta.name)


def group_of(claim: ResourceClaim) -> str:
    """Return the name of the PodGroup for which the claim was made; "" for any other claim."""
    for owner in claim.metadata.owner_references or ():
        if owner.controller and owner.kind == "PodGroup" and owner.api_version.startswith(_API_GROUP):
            return owner.name
    return ""
