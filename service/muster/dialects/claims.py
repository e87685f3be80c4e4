"""ResourceClaims → the GPUs that a pod asks for by them.

A request is one for GPUs if its DeviceClass has one of the GPU resources as its extended resource. It counts
as if the pod asked for that resource, and its GPUs are planned. Which nodes have such devices is an in-tree
answer. All other requests are left to kube-scheduler's own plugin, and so is `adminAccess`, which takes no
device.

Claims are read, and not their templates: a template may change after the claim was made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from muster.dialects.dra_objects import ClaimSpec, ExactRequest
from muster.dialects.objects import PodObject
from muster.domain.reasons import BadValue

MAX_CLAIMS = 32
"""Claims of one pod."""
_NOT_PLANNED = "none in a request for GPUs: this is not planned yet"
_SHARED = "resourceClaimTemplateName: GPUs that pods share are not planned yet"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request of a claim. `classes` are those whose devices it takes, and `unplanned` is the first field
    that can't be planned if these are GPUs, with its value."""

    name: str
    classes: tuple[str, ...]
    count: int = 1
    unplanned: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DevicesAsked:
    """What a pod asks for by its claims. Not `complete`: one of them is not made yet."""

    complete: bool = True
    gpus: int = 0
    gpu_resource: str = ""
    causes: tuple[BadValue, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedClaim:
    """A claim that a pod names. `key` is its namespace and name; "" until it is made, None if none is needed.
    Other pods may name a `shared` one too."""

    name: str
    key: str | None
    shared: bool


class Claims:
    """What the claims of a cluster ask for. `resource_of` returns the GPU resource of a DeviceClass, or ""
    for none."""

    def __init__(self, resource_of: Callable[[str], str]) -> None:
        self._resource_of = resource_of
        self._requests: dict[str, tuple[DeviceRequest, ...]] = {}

    def see(self, key: str, spec: ClaimSpec | None) -> bool:
        """Take in a claim by its namespace and name, None if it is gone. Return whether that is news."""
        before = self._requests.pop(key, None)
        after = tuple(_requests(spec)) if spec is not None else None
        if after is not None:
            self._requests[key] = after
        return before != after

    def asked(self, obj: PodObject) -> DevicesAsked:
        """Return what a pod asks for by its claims."""
        where = f"pod/{obj.metadata.namespace}/{obj.metadata.name}"
        named = [claim for claim in claims_of(obj) if claim.key is not None]
        if len(named) > MAX_CLAIMS:
            said = BadValue(where, "resourceClaims", str(len(named)), f"at most {MAX_CLAIMS} claims")
            return DevicesAsked(causes=(said,))
        if any(claim.key not in self._requests for claim in named):
            return DevicesAsked(complete=False)
        counts: dict[str, int] = {}
        causes = list[BadValue]()
        for claim, request, resource in self._gpu_requests(named):
            field = f"resourceClaims {claim.name}, request {request.name}"
            if claim.shared:
                causes.append(BadValue(where, field, "resourceClaimName", _SHARED))
            elif request.unplanned is not None:
                unplanned, value = request.unplanned
                causes.append(BadValue(where, f"{field}, {unplanned}", value, _NOT_PLANNED))
            counts[resource] = counts.get(resource, 0) + request.count
        if len(counts) > 1:
            names = ", ".join(counts)
            causes.append(BadValue(where, "resourceClaims", names, "GPUs of one resource in a pod"))
        resource = next(iter(counts), "")
        return DevicesAsked(True, counts.get(resource, 0), resource, tuple(causes))

    def _gpu_requests(self, named: list[NamedClaim]) -> Iterator[tuple[NamedClaim, DeviceRequest, str]]:
        for claim in named:
            for request in self._requests[claim.key or ""]:
                if resource := next(filter(None, map(self._resource_of, request.classes)), ""):
                    yield claim, request, resource


def claims_of(obj: PodObject) -> Iterator[NamedClaim]:
    """Return the claims that a pod names."""
    made = {each.name: each.resource_claim_name for each in obj.status.resource_claim_statuses or ()}
    for each in obj.spec.resource_claims or ():
        name = each.resource_claim_name or made.get(each.name, "")
        key = f"{obj.metadata.namespace}/{name}" if name else name
        yield NamedClaim(each.name, key, each.resource_claim_name is not None)


def _requests(spec: ClaimSpec) -> Iterator[DeviceRequest]:
    requests = spec.devices.requests or ()
    for each in requests:
        exact, some = each.exactly, each.first_available or ()
        if exact is None:
            classes = tuple(one.device_class_name for one in some)
            yield DeviceRequest(each.name, classes, 1, ("firstAvailable", f"{len(some)} alternatives"))
        elif exact.admin_access:
            yield DeviceRequest(each.name, ())
        else:
            unplanned = _mode(exact) or _constraint(spec, each.name, exact.count, len(requests))
            yield DeviceRequest(each.name, (exact.device_class_name,), exact.count, unplanned)


def _mode(exact: ExactRequest) -> tuple[str, str] | None:
    if exact.allocation_mode != "ExactCount":
        return "allocationMode", exact.allocation_mode
    return ("capacity", "set") if exact.capacity is not None else None


def _constraint(spec: ClaimSpec, request: str, count: int, requests: int) -> tuple[str, str] | None:
    """Return the constraint that binds the request's devices to each other, or to those of other requests."""
    for each in spec.devices.constraints or ():
        covered = len(each.requests) if each.requests else requests
        if (not each.requests or request in each.requests) and (covered > 1 or count > 1):
            if each.match_attribute is not None:
                return "matchAttribute", each.match_attribute
            return "distinctAttribute", each.distinct_attribute or ""
    return None
