"""Compute the GPUs that a pod requests by ResourceClaims.

A request is for GPUs if its DeviceClass has one of the GPU resources as its extended resource. Such a request
counts as if the pod requested that resource, and its GPUs are planned. In-tree answers tell which nodes have
such devices. All other requests are left to kube-scheduler's own plugin, and so is `adminAccess`, which takes
no device.

Claims are read, and not their templates, because a template may change after a claim was made of it.

A claim that was made for a whole PodGroup counts for one of its pods (`sharers`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from muster.dialects.devices import compute_domains, shares
from muster.dialects.devices.objects import (
    CapacityRequirements,
    ClaimRequest,
    ExactRequest,
    ResourceClaimSpec,
    SubRequest,
)
from muster.dialects.devices.sharers import NewHolder, Sharers
from muster.dialects.devices.shares import GpuRequest, Rounding
from muster.dialects.objects import PodObject
from muster.domain.causes.ill_formed import BadValue
from muster.domain.request import Slice
from muster.domain.topology import mask_of

MAX_CLAIMS = 32
"""Largest number of claims of one pod."""
MAX_CAUSES = 8
"""Largest number of causes for one pod's claims. 32 claims with 32 requests each could have a thousand."""
_NOT_PLANNED = "none in a request for GPUs: this is not planned yet"
_ALONE = "ExactCount next to other requests for GPUs in the pod: All is planned if it is the only one"
_ALIKE = "subrequests for GPUs of one resource: others are not planned yet"
_MATCH, _MODE, ALL = "matchAttribute", "allocationMode", "All"
_NOT_OF_ALL = "a matchAttribute that binds all GPUs of the pod: others are not planned yet"
_SHARED = (
    "resourceClaimTemplateName, or a claim that has its devices before the gang starts: a pod outside of the "
    "gang that has it first gets them"
)
_OF_GROUP_ALONE = "GPUs of claims of the PodGroup alone, or no GPUs of such claims"
_WHOLE_GPUS = "whole GPUs: memory of shared GPUs in a claim of the PodGroup is not planned yet"


@dataclass(frozen=True, slots=True)
class ClaimConstraint:
    """A constraint that binds several devices."""

    field: str
    """The field of the API that states it."""
    attribute: str
    requests: int
    """Bit mask of the requests that it binds, by their order in the claim."""


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request of a claim."""

    name: str
    classes: tuple[str, ...]
    """DeviceClass of each subrequest."""
    counts: tuple[int, ...] = (1,)
    """Number of devices of each subrequest; 0 for all devices of a node."""
    unplanned: tuple[str, str] | None = None
    """The first field, with its value, that can't be planned if the devices are GPUs."""
    capacity: CapacityRequirements | None = None
    """Capacity that it requests of each device, if it has no subrequests."""


@dataclass(frozen=True, slots=True)
class ClaimRequests:
    """The requests of a claim, and the constraints that bind their devices to each other."""

    requests: tuple[DeviceRequest, ...]
    constraints: tuple[ClaimConstraint, ...]
    compute_domain: str = ""
    """UID of its ComputeDomain, if the claim is for a channel; else ""."""


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """The GPUs that a pod requests by its claims."""

    complete: bool = True
    """False while one of the claims does not exist yet."""
    gpus: int = 0
    """Fewest GPUs."""
    gpu_counts: tuple[int, ...] = ()
    """As `Pod.gpu_counts`."""
    gpu_resource: str = ""
    causes: tuple[BadValue, ...] = ()
    match_attributes: tuple[str, ...] = ()
    """Attributes on which the pod's GPUs must agree."""
    unallocated: tuple[str, ...] = ()
    """Names of claims that other pods may name too, and that are not allocated."""
    group_claims: tuple[str, ...] = ()
    """As `Pod.group_claims`."""
    slice: Slice | None = None
    """Shared GPUs. A pod with a slice requests no whole GPUs."""
    several_claims: bool = False
    """Whether its GPUs are in several claims."""
    compute_domain: str = ""
    """As `ClaimRequests.compute_domain`, of the first claim for a channel."""


@dataclass(frozen=True, slots=True)
class NamedClaim:
    """A claim that a pod names."""

    name: str
    key: str | None
    """Namespace and name of the claim; "" until it is made, None if the pod needs none."""
    shared: bool
    """Whether other pods may name it too."""


_PodRequest = tuple[NamedClaim, DeviceRequest, GpuRequest]
"""A request for GPUs, after its claim, and in the form that `shares` reads."""


class Claims:
    """The requests of the cluster's claims. `resource_of` returns the GPU resource of a DeviceClass; "" if
    the class has none. `roundings` returns (name of the capacity, rounding) of the cluster's devices."""

    def __init__(
        self,
        resource_of: Callable[[str], str],
        roundings: Callable[[], Collection[tuple[str, Rounding]]] = tuple,
    ) -> None:
        self._resource_of = resource_of
        self._roundings = roundings
        self._requests: dict[str, ClaimRequests] = {}
        self._unallocated: dict[str, bool] = {}
        """Namespace and name → whether the claim has no devices yet, for claims that were made neither for a
        pod nor for a PodGroup."""
        self._groups: dict[str, str] = {}
        """Namespace and name → the PodGroup for which the claim was made."""
        self._sharers = Sharers()

    def see(
        self, key: str, spec: ResourceClaimSpec | None, *, unallocated: bool | None = None, group: str = ""
    ) -> bool:
        """Take in a claim by its namespace and name; None if the claim is gone. Return whether it changed.

        `unallocated`: whether the claim has no devices yet; None for a claim that was made for a pod or for a
        PodGroup. `group`: the name of this PodGroup.
        """
        old_facts = self._requests.pop(key, None), self._unallocated.pop(key, None), self._groups.pop(key, "")
        new_requests = _read_claim(spec) if spec is not None else None
        if new_requests is not None:
            self._requests[key] = new_requests
            if group:
                self._groups[key] = group
            if unallocated is not None and new_requests.requests:
                self._unallocated[key] = unallocated
        return old_facts != (new_requests, self._unallocated.get(key), self._groups.get(key, ""))

    def see_pod(self, uid: str, obj: PodObject | None) -> list[NewHolder]:
        """Take in a pod before it is read; None if it is gone. Return the claims of PodGroups that have
        another holder now. A static pod holds no claim: a node can make it with any PodGroup and claims."""
        claims = frozenset[str]()
        if obj is not None and obj.spec.scheduling_group is not None and not obj.is_static:
            claims = frozenset(claim.key for claim in claims_of(obj) if claim.key and not claim.shared)
        return [change for change in self._sharers.see(uid, obj, claims) if change.claim in self._groups]

    def holder_of(self, key: str) -> str:
        """Return the UID of the pod for which the devices of a PodGroup's claim count; "" for none, and for
        any other claim."""
        return self._sharers.holder_of(key) if key in self._groups else ""

    def demand(self, obj: PodObject) -> DeviceDemand:
        """Return the GPUs that a pod requests by its claims."""
        object_name = f"pod/{obj.metadata.namespace}/{obj.metadata.name}"
        pod_claims = [claim for claim in claims_of(obj) if claim.key is not None]
        if len(pod_claims) > MAX_CLAIMS:
            too_many = BadValue(
                object_name, "resourceClaims", str(len(pod_claims)), f"at most {MAX_CLAIMS} claims"
            )
            return DeviceDemand(causes=(too_many,))
        if any(claim.key not in self._requests for claim in pod_claims):
            return DeviceDemand(complete=False)
        domains = (self._requests[claim.key or ""].compute_domain for claim in pod_claims)
        shared_keys = {claim.key or "" for claim in pod_claims if claim.shared}
        # A claim that has its devices requests no more devices. The in-tree plugin tells where they are.
        served = {key for key in shared_keys if self._unallocated.get(key) is False}
        unserved = [claim for claim in pod_claims if not (claim.shared and claim.key in served)]
        of_group = [claim for claim in unserved if self._is_of_group(claim, obj)]
        held_elsewhere = [
            claim for claim in of_group if self.holder_of(claim.key or "") not in ("", obj.metadata.uid)
        ]
        demand = self._unserved_demand(
            object_name, [claim for claim in unserved if claim not in held_elsewhere]
        )
        return replace(
            demand,
            causes=(
                *demand.causes,
                *self._check_group_claims(object_name, unserved, of_group, demand.slice is not None),
            ),
            unallocated=tuple(
                key.partition("/")[2] for key in sorted(shared_keys) if self._unallocated.get(key)
            ),
            group_claims=tuple(sorted((claim.key or "").partition("/")[2] for claim in of_group)),
            compute_domain=next(filter(None, domains), ""),
        )

    def _is_of_group(self, claim: NamedClaim, obj: PodObject) -> bool:
        """Return whether a claim of a pod was made for the pod's PodGroup."""
        group = obj.spec.scheduling_group
        owner = self._groups.get(claim.key or "")
        return not claim.shared and group is not None and owner is not None and owner == group.pod_group_name

    def _check_group_claims(
        self,
        object_name: str,
        pod_claims: list[NamedClaim],
        of_group: list[NamedClaim],
        shares_memory: bool,
    ) -> Iterator[BadValue]:
        """Yield a cause for GPUs that claims of the PodGroup can't request.

        The holder must be first in the order in which members start. Members with more whole GPUs come first.
        So the pod may request no GPUs in other ways, and no memory of shared GPUs.
        """
        with_gpus = {claim.name: claim in of_group for claim, *_ in self._gpu_requests(pod_claims)}
        if len(set(with_gpus.values())) > 1:
            yield BadValue(object_name, "resourceClaims", ", ".join(with_gpus), _OF_GROUP_ALONE)
        elif shares_memory and any(with_gpus.values()):
            yield BadValue(object_name, "resourceClaims", ", ".join(with_gpus), _WHOLE_GPUS)

    def _unserved_demand(self, object_name: str, pod_claims: list[NamedClaim]) -> DeviceDemand:
        """Return the GPUs that these claims request. No claim has its devices yet."""
        requests = tuple(self._gpu_requests(pod_claims))
        counts_by_resource: dict[str, list[tuple[int, ...]]] = {}
        for _, request, gpu_request in requests:
            counts_by_resource.setdefault(gpu_request.resource, []).append(request.counts)
        resource = next(iter(counts_by_resource), "")
        gpu_slice, slice_causes = shares.of_pod(
            object_name, [entry for *_, entry in requests], self._roundings() if requests else ()
        )
        attributes, unplanned = self._agreed_attributes(pod_claims)
        causes = [*self._request_causes(object_name, requests), *slice_causes]
        if len(counts_by_resource) > 1:
            names = ", ".join(counts_by_resource)
            causes.append(BadValue(object_name, "resourceClaims", names, "GPUs of one resource in a pod"))
        causes += [
            BadValue(object_name, f"resourceClaims {claim.name}, {bond.field}", bond.attribute, _NOT_OF_ALL)
            for claim, bond in unplanned.items()
        ]
        counts = _sum_by_subrequest(counts_by_resource.get(resource, [])) if gpu_slice is None else ()
        must_agree = gpu_slice is not None or max(counts, default=0) > 1 or 0 in counts
        return DeviceDemand(
            gpus=min((count or 1 for count in counts), default=0),
            gpu_counts=counts if len(set(counts)) > 1 or 0 in counts else (),
            gpu_resource=resource,
            causes=tuple(causes[:MAX_CAUSES]),
            match_attributes=attributes if must_agree else (),
            slice=gpu_slice,
            several_claims=len({claim.name for claim, *_ in requests}) > 1,
        )

    def _request_causes(self, object_name: str, requests: Collection[_PodRequest]) -> Iterator[BadValue]:
        """Yield why requests for GPUs can't be planned: at most one cause for each request."""
        for claim, request, gpu_request in requests:
            field = gpu_request.field
            resources = {self._resource_of(name) for name in request.classes}
            if claim.shared:
                yield BadValue(object_name, field, "resourceClaimName", _SHARED)
            elif request.unplanned is not None:
                field_of_request, value = request.unplanned
                yield BadValue(object_name, f"{field}, {field_of_request}", value, _NOT_PLANNED)
            elif len(resources) > 1:
                value = ", ".join(sorted(name or "no GPU resource" for name in resources))
                yield BadValue(object_name, f"{field}, firstAvailable", value, _ALIKE)
            elif 0 in request.counts and len(requests) > 1:
                yield BadValue(object_name, f"{field}, {_MODE}", ALL, _ALONE)

    def _gpu_requests(self, pod_claims: list[NamedClaim]) -> Iterator[_PodRequest]:
        for claim in pod_claims:
            for request in self._requests[claim.key or ""].requests:
                if resource := self._gpu_resource(request):
                    field = f"resourceClaims {claim.name}, request {request.name}"
                    yield claim, request, GpuRequest(field, resource, request.counts[0], request.capacity)

    def _gpu_resource(self, request: DeviceRequest) -> str:
        return next(filter(None, map(self._resource_of, request.classes)), "")

    def _agreed_attributes(
        self, pod_claims: list[NamedClaim]
    ) -> tuple[tuple[str, ...], dict[NamedClaim, ClaimConstraint]]:
        """Return the attributes on which all GPUs of the pod must agree.

        Also return the first constraint of each claim that binds GPUs in another way. A constraint on all
        GPUs may bind other devices too: in-tree answers tell which GPUs have such devices.
        """
        attributes, unplanned = set[str](), dict[NamedClaim, ClaimConstraint]()
        with_gpus = [
            (claim, claim_requests.constraints, gpus)
            for claim in pod_claims
            if (gpus := self._mask_of_gpu_requests(claim_requests := self._requests[claim.key or ""]))
        ]
        for claim, constraints, gpus in with_gpus:
            for constraint in constraints:
                if constraint.field == _MATCH and constraint.requests & gpus == gpus and len(with_gpus) == 1:
                    attributes.add(constraint.attribute)
                elif constraint.requests & gpus:
                    unplanned.setdefault(claim, constraint)
        return tuple(sorted(attributes)), unplanned

    def _mask_of_gpu_requests(self, claim_requests: ClaimRequests) -> int:
        """Return the bit mask of the requests for GPUs."""
        return mask_of(
            [index for index, request in enumerate(claim_requests.requests) if self._gpu_resource(request)]
        )


def claims_of(obj: PodObject) -> Iterator[NamedClaim]:
    """Return the claims that a pod names."""
    name_of = {entry.name: entry.resource_claim_name for entry in obj.status.resource_claim_statuses or ()}
    for entry in obj.spec.resource_claims or ():
        name = entry.resource_claim_name or name_of.get(entry.name, "")
        key = f"{obj.metadata.namespace}/{name}" if name else name
        yield NamedClaim(entry.name, key, entry.resource_claim_name is not None)


def _sum_by_subrequest(requests: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the requests' GPUs in all, by subrequest. A request with fewer subrequests repeats the last."""
    ranks = range(max(map(len, requests), default=0))
    return tuple(sum(counts[min(rank, len(counts) - 1)] for counts in requests) for rank in ranks)


def _read_claim(spec: ResourceClaimSpec) -> ClaimRequests:
    return ClaimRequests(
        tuple(_read_requests(spec)), tuple(_read_constraints(spec)), compute_domains.domain_of(spec)
    )


def _read_requests(spec: ResourceClaimSpec) -> Iterator[DeviceRequest]:
    for request in spec.devices.requests or ():
        exact = request.exactly
        if exact is not None and exact.admin_access:
            yield DeviceRequest(request.name, ())
            continue
        variants = [exact] if exact is not None else request.first_available or ()
        counts = tuple(0 if variant.allocation_mode == ALL else variant.count for variant in variants)
        unplanned = next(filter(None, map(_field_not_planned, variants)), None)
        classes = tuple(variant.device_class_name for variant in variants)
        yield DeviceRequest(request.name, classes, counts, unplanned, exact.capacity if exact else None)


def _field_not_planned(exact: SubRequest) -> tuple[str, str] | None:
    if exact.allocation_mode not in ("ExactCount", ALL):
        return _MODE, exact.allocation_mode
    return ("capacity", "set") if not isinstance(exact, ExactRequest) and exact.capacity is not None else None


def _read_constraints(spec: ResourceClaimSpec) -> Iterator[ClaimConstraint]:
    """Yield the constraints that bind several devices. A constraint may name a single subrequest of a
    request."""
    requests = spec.devices.requests or ()
    for constraint in spec.devices.constraints or ():
        subrequest = next((name for name in constraint.requests or () if "/" in name), "")
        names = {name.partition("/")[0] for name in constraint.requests or ()}
        bound = [index for index, request in enumerate(requests) if request.name in names or not names]
        if sum(map(_max_devices, (requests[index] for index in bound))) > 1:
            field, attribute = (
                f"{_MATCH} of {subrequest}" if subrequest else _MATCH,
                constraint.match_attribute,
            )
            if attribute is None:
                field, attribute = "distinctAttribute", constraint.distinct_attribute or ""
            yield ClaimConstraint(field, attribute, mask_of(bound))


def _max_devices(request: ClaimRequest) -> int:
    """Return the largest number of devices of the request, where `All` counts as 2."""
    variants = [request.exactly] if request.exactly is not None else request.first_available or ()
    return max((variant.count if variant.allocation_mode != ALL else 2 for variant in variants), default=1)
