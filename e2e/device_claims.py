"""Which devices of DRA drivers claims hold, and what must hold of them, judged from API objects alone.

    device-twice        a device is allocated to two claims
    device-not-planned  the claims of a bound pod hold other devices than its annotation names
    device-left         devices are allocated to a claim without a bound pod, for longer than the grace

Pods and claims come by two watches, in no common order. So the last two are judged when they have lasted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from local_cluster.api import Object

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
ALLOCATION = "gpu.topology/allocation"
FINISHED = ("Succeeded", "Failed")

LEFT_S = 60.0
"""How long devices may be allocated without a bound pod."""
LATE_S = 10.0
"""How much later one of the two watches may be."""

Violation = tuple[str, str]
"""Rule and text."""


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """One claim at one moment: its devices as driver/pool/name, and the UIDs of pods that it is for."""

    uid: str
    name: str
    devices: frozenset[str]
    pods: frozenset[str]

    @classmethod
    def of(cls, body: Object) -> ClaimFacts:
        meta, status = body["metadata"], body.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        reserved = {str(consumer["uid"]) for consumer in status.get("reservedFor") or ()}
        owners = {str(owner["uid"]) for owner in meta.get("ownerReferences") or ()}
        devices = (f"{result['driver']}/{result['pool']}/{result['device']}" for result in results)
        return cls(
            str(meta["uid"]),
            f"{meta['namespace']}/{meta['name']}",
            frozenset(devices),
            frozenset(reserved or owners),
        )


@dataclass(frozen=True, slots=True)
class DevicePod:
    """A pod as claims see it: `planned` are the devices that its annotation names, if it is bound."""

    uid: str
    name: str
    holds: bool
    planned: frozenset[str]

    @classmethod
    def of(cls, body: Object) -> DevicePod:
        meta = body["metadata"]
        bound = bool(body["spec"].get("nodeName"))
        holds = bound and (body.get("status") or {}).get("phase") not in FINISHED
        return cls(str(meta["uid"]), f"{meta['namespace']}/{meta['name']}", holds, _planned(meta))


def _planned(meta: Object) -> frozenset[str]:
    """The devices of the plan; none if the annotation can't be read, which another rule says."""
    try:
        plan = json.loads((meta.get("annotations") or {}).get(ALLOCATION, "{}"))
        return frozenset(map(str, plan.get("devices") or ()))
    except (ValueError, AttributeError, TypeError):
        return frozenset()


def twice(claims: Iterable[ClaimFacts]) -> Iterator[Violation]:
    """Devices that two claims have at one moment."""
    owner: dict[str, str] = {}
    for claim in sorted(claims, key=lambda claim_facts: claim_facts.name):
        for device in sorted(claim.devices):
            if device in owner:
                yield "device-twice", f"{device} belongs to {owner[device]} and to {claim.name}"
            owner[device] = claim.name


def unplanned(pods: Iterable[DevicePod], claims: Iterable[ClaimFacts]) -> Iterator[Violation]:
    """Bound pods whose claims hold other devices than planned."""
    devices_by_pod: dict[str, set[str]] = {}
    for claim in claims:
        for uid in claim.pods:
            devices_by_pod.setdefault(uid, set()).update(claim.devices)
    for pod in pods:
        devices = devices_by_pod.get(pod.uid, set())
        if pod.holds and devices != pod.planned:
            text = f"{pod.name}: its plan names {sorted(pod.planned)}, its claims hold {sorted(devices)}"
            yield "device-not-planned", text


def left(pods: Mapping[str, DevicePod], claims: Iterable[ClaimFacts]) -> Iterator[Violation]:
    """Claims with devices and without a bound pod."""
    for claim in claims:
        has_user = any(uid in pods and pods[uid].holds for uid in claim.pods)
        if claim.devices and not has_user:
            yield "device-left", f"{claim.name} holds {sorted(claim.devices)} without a bound pod"


class DeviceHistory:
    """Follows claims and pods. `found` grows, each entry once."""

    def __init__(self, left_s: float = LEFT_S, late_s: float = LATE_S) -> None:
        self._grace = {"device-not-planned": late_s, "device-left": left_s}
        self._claims: dict[str, ClaimFacts] = {}
        self._pods: dict[str, DevicePod] = {}
        self._since: dict[Violation, float] = {}
        self.found: dict[Violation, None] = {}
        self.allocations = 0
        """How often a claim got devices."""
        self.longest_left_s = 0.0

    def claim(self, at: float, claim: ClaimFacts, *, in_order: bool = True) -> None:
        """A claim was created or changed. `in_order`: no list shows it, where objects have no order."""
        before = self._claims.get(claim.uid)
        self._claims[claim.uid] = claim
        self.allocations += bool(claim.devices and not (before and before.devices))
        if in_order:
            self.found |= dict.fromkeys(twice(self._claims.values()))
        self.passed(at)

    def claim_gone(self, at: float, uid: str) -> None:
        self._claims.pop(uid, None)
        self.passed(at)

    def pod(self, at: float, pod: DevicePod) -> None:
        """A pod was created or changed."""
        self._pods[pod.uid] = pod
        self.passed(at)

    def pod_gone(self, at: float, uid: str) -> None:
        self._pods.pop(uid, None)
        self.passed(at)

    def passed(self, now: float) -> None:
        """Time passed: what has lasted too long is found."""
        claims = self._claims.values()
        open_ = {*unplanned(self._pods.values(), claims), *left(self._pods, claims)}
        self._since = {wrong: self._since.get(wrong, now) for wrong in open_}
        for wrong, since in self._since.items():
            if wrong[0] == "device-left":
                self.longest_left_s = max(self.longest_left_s, now - since)
            if now - since > self._grace[wrong[0]]:
                self.found[wrong] = None
