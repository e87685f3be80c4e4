"""Pods with ResourceClaims, by the claims that they name: such a pod is read again when a claim changes."""

from __future__ import annotations

from muster.dialects.devices.claims import claims_of
from muster.dialects.objects import PodObject


class ClaimingPods:
    """The objects of pods that name claims."""

    def __init__(self) -> None:
        self._pods: dict[str, PodObject] = {}
        self._by_claim: dict[str, set[str]] = {}
        """Namespace and name of a claim → UIDs of pods."""

    def see(self, uid: str, obj: PodObject | None) -> None:
        """Take in a pod; None if it is gone."""
        before = self._pods.pop(uid, None)
        for key in _keys(before):
            self._by_claim[key].discard(uid)
            if not self._by_claim[key]:
                del self._by_claim[key]
        for key in _keys(obj):
            self._by_claim.setdefault(key, set()).add(uid)
        if obj is not None and obj.spec.resource_claims:
            self._pods[uid] = obj

    def naming(self, claim: str | None) -> list[tuple[str, str]]:
        """Return namespace and UID of the pods that name this claim, or of all for None.

        `claim`: its namespace and name.
        """
        uids = sorted(self._by_claim.get(claim, ()) if claim is not None else self._pods)
        return [(self._pods[uid].metadata.namespace, uid) for uid in uids]

    def get(self, uid: str) -> PodObject | None:
        """Return the pod's object as it is now; None if the pod is gone."""
        return self._pods.get(uid)


def _keys(obj: PodObject | None) -> set[str]:
    return {claim.key for claim in claims_of(obj) if claim.key} if obj is not None else set()
