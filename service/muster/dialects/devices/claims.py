"""ResourceClaims → the GPUs that a pod asks for by them.

A request is one for GPUs if its DeviceClass has one of the GPU resources as its extended resource. It counts
as if the pod asked for that resource, and its GPUs are planned. Which nodes have such devices is an in-tree
answer. All other requests are left to kube-scheduler's own plugin, and so is `adminAccess`, which takes no
device.

Claims are read, and not their templates: a template may change after the claim was made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from muster.dialects.devices import compute_domains, shares
from muster.dialects.devices.objects import CapacityAsked, ClaimSpec, ExactRequest, Request, SubRequest
from muster.dialects.devices.shares import Rounding
from muster.dialects.objects import PodObject
from muster.domain.causes.ill_formed import BadValue
from muster.domain.request import Slice
from muster.domain.topology import mask_of

MAX_CLAIMS = 32
"""Claims of one pod."""
MAX_CAUSES = 8
"""Causes that are kept of one pod's claims. 32 claims with 32 requests each could have a thousand."""
_NOT_PLANNED = "none in a request for GPUs: this is not planned yet"
_ALONE = "ExactCount next to other requests for GPUs in the pod: All is planned if it is the only one"
_ALIKE = "subrequests for GPUs of one resource: others are not planned yet"
_MATCH, _MODE, ALL = "matchAttribute", "allocationMode", "All"
_NOT_OF_ALL = "a matchAttribute that binds all GPUs of the pod: others are not planned yet"
_SHARED = (
    "resourceClaimTemplateName, or a claim that has its devices before the gang starts: a pod outside of the "
    "gang that has it first gets them"
)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint that binds several devices. `field` is that of the API. `requests` is the bit mask of the
    claim's requests that it binds, by their order."""

    field: str
    attribute: str
    requests: int


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request of a claim. `classes` are those whose devices it takes, one for each subrequest, and `counts`
    how many: 0 for all of a node. `unplanned` is the first field that can't be planned if these are GPUs,
    with its value."""

    name: str
    classes: tuple[str, ...]
    counts: tuple[int, ...] = (1,)
    unplanned: tuple[str, str] | None = None
    capacity: CapacityAsked | None = None
    """What it asks of each device, if it has no subrequests."""


@dataclass(frozen=True, slots=True)
class ClaimAsked:
    """What a claim asks for, and what binds its devices to each other."""

    requests: tuple[DeviceRequest, ...]
    constraints: tuple[Constraint, ...]
    compute_domain: str = ""
    """UID of its ComputeDomain, if it is a channel of one."""


@dataclass(frozen=True, slots=True)
class DevicesAsked:
    """What a pod asks for by its claims. Not `complete`: one of them is not made yet. Its GPUs must agree on
    `match_attributes`. `gpu_counts` are as those of `Pod`, and `gpus` are the fewest of them. If it asks for
    a `slice` of shared GPUs, it asks for no whole ones."""

    complete: bool = True
    gpus: int = 0
    gpu_counts: tuple[int, ...] = ()
    gpu_resource: str = ""
    causes: tuple[BadValue, ...] = ()
    match_attributes: tuple[str, ...] = ()
    unallocated: tuple[str, ...] = ()
    """Names of claims that other pods may name too, and that are not allocated."""
    slice: Slice | None = None
    several_claims: bool = False
    """Whether its GPUs are in several claims."""
    compute_domain: str = ""
    """As `ClaimAsked.compute_domain`: of the first claim that is a channel."""


@dataclass(frozen=True, slots=True)
class NamedClaim:
    """A claim that a pod names. `key` is its namespace and name; "" until it is made, None if none is needed.
    Other pods may name a `shared` one too."""

    name: str
    key: str | None
    shared: bool


class Claims:
    """What the claims of a cluster ask for. `resource_of` returns the GPU resource of a DeviceClass, or ""
    for none. `roundings` returns how the cluster's devices round up capacity, by its name."""

    def __init__(
        self,
        resource_of: Callable[[str], str],
        roundings: Callable[[], Collection[tuple[str, Rounding]]] = tuple,
    ) -> None:
        self._resource_of = resource_of
        self._roundings = roundings
        self._claims: dict[str, ClaimAsked] = {}
        self._unallocated: dict[str, bool] = {}
        """Of claims that belong to no single pod, by namespace and name."""

    def see(self, key: str, spec: ClaimSpec | None, *, unallocated: bool | None = None) -> bool:
        """Take in a claim by its namespace and name, None if it is gone. Return whether that is news.

        `unallocated`: whether it has no devices yet; None if it belongs to a single pod.
        """
        before = self._claims.pop(key, None), self._unallocated.pop(key, None)
        after = _claim_asked(spec) if spec is not None else None
        if after is not None:
            self._claims[key] = after
            if unallocated is not None and after.requests:
                self._unallocated[key] = unallocated
        return before != (after, self._unallocated.get(key))

    def devices_asked(self, obj: PodObject) -> DevicesAsked:
        """Return what a pod asks for by its claims."""
        object_name = f"pod/{obj.metadata.namespace}/{obj.metadata.name}"
        pod_claims = [claim for claim in claims_of(obj) if claim.key is not None]
        if len(pod_claims) > MAX_CLAIMS:
            too_many = BadValue(
                object_name, "resourceClaims", str(len(pod_claims)), f"at most {MAX_CLAIMS} claims"
            )
            return DevicesAsked(causes=(too_many,))
        if any(claim.key not in self._claims for claim in pod_claims):
            return DevicesAsked(complete=False)
        shared = {claim.key or "": claim for claim in pod_claims if claim.shared}
        free = [key for key in sorted(shared) if self._unallocated.get(key)]
        unallocated = tuple(key.partition("/")[2] for key in free)
        # A claim that has its devices already asks for no more. The in-tree plugin says where they are.
        served = {key for key in shared if self._unallocated.get(key) is False}
        domain = next(
            filter(None, (self._claims[claim.key or ""].compute_domain for claim in pod_claims)), ""
        )
        pod_claims = [claim for claim in pod_claims if not claim.shared or claim.key not in served]
        requests: dict[str, list[tuple[int, ...]]] = {}
        gpu_requests = list[shares.GpusAsked]()
        causes = list[BadValue]()
        triples = tuple(self._gpu_requests(pod_claims))
        for claim, request, resource in triples:
            field = f"resourceClaims {claim.name}, request {request.name}"
            if claim.shared:
                causes.append(BadValue(object_name, field, "resourceClaimName", _SHARED))
            elif request.unplanned is not None:
                field_of_request, value = request.unplanned
                causes.append(BadValue(object_name, f"{field}, {field_of_request}", value, _NOT_PLANNED))
            elif len(resources := {self._resource_of(name) for name in request.classes}) > 1:
                value = ", ".join(sorted(name or "no GPU resource" for name in resources))
                causes.append(BadValue(object_name, f"{field}, firstAvailable", value, _ALIKE))
            elif 0 in request.counts and len(triples) > 1:
                causes.append(BadValue(object_name, f"{field}, {_MODE}", ALL, _ALONE))
            requests.setdefault(resource, []).append(request.counts)
            gpu_requests.append(shares.GpusAsked(field, resource, request.counts[0], request.capacity))
        part, wrong = shares.of_pod(object_name, gpu_requests, self._roundings() if gpu_requests else ())
        causes += wrong
        if len(requests) > 1:
            names = ", ".join(requests)
            causes.append(BadValue(object_name, "resourceClaims", names, "GPUs of one resource in a pod"))
        resource = next(iter(requests), "")
        agreed, unplanned = self._agreed(pod_claims)
        causes += [
            BadValue(object_name, f"resourceClaims {claim.name}, {bond.field}", bond.attribute, _NOT_OF_ALL)
            for claim, bond in unplanned.items()
        ]
        counts = _summed(requests.get(resource, [])) if part is None else ()
        fewest = min((count or 1 for count in counts), default=0)
        differ = counts if len(set(counts)) > 1 or 0 in counts else ()
        agreed = agreed if part is not None or max(counts, default=0) > 1 or 0 in counts else ()
        first = tuple(causes[:MAX_CAUSES])
        several = len({claim.name for claim, *_ in triples}) > 1
        return DevicesAsked(True, fewest, differ, resource, first, agreed, unallocated, part, several, domain)

    def _gpu_requests(self, pod_claims: list[NamedClaim]) -> Iterator[tuple[NamedClaim, DeviceRequest, str]]:
        for claim in pod_claims:
            for request in self._claims[claim.key or ""].requests:
                if resource := self._resource(request):
                    yield claim, request, resource

    def _resource(self, request: DeviceRequest) -> str:
        return next(filter(None, map(self._resource_of, request.classes)), "")

    def _agreed(self, pod_claims: list[NamedClaim]) -> tuple[tuple[str, ...], dict[NamedClaim, Constraint]]:
        """Return the attributes on which all GPUs of the pod must agree.

        Also return the first constraint of each claim that binds GPUs in another way. One that binds all GPUs
        may bind other devices too: in-tree answers say which GPUs have such devices.
        """
        agreed, unplanned = set[str](), dict[NamedClaim, Constraint]()
        all_asked = [(claim, self._claims[claim.key or ""]) for claim in pod_claims]
        with_gpus = [
            (claim, claim_asked.constraints, gpus)
            for claim, claim_asked in all_asked
            if (gpus := self._gpus(claim_asked))
        ]
        for claim, constraints, gpus in with_gpus:
            for constraint in (claim_asked for claim_asked in constraints if claim_asked.requests & gpus):
                of_all = constraint.requests & gpus == gpus and len(with_gpus) == 1
                if constraint.field == _MATCH and of_all:
                    agreed.add(constraint.attribute)
                else:
                    unplanned.setdefault(claim, constraint)
        return tuple(sorted(agreed)), unplanned

    def _gpus(self, claim_requests: ClaimAsked) -> int:
        """Return the bit mask of the requests for GPUs."""
        return mask_of([at for at, request in enumerate(claim_requests.requests) if self._resource(request)])


def claims_of(obj: PodObject) -> Iterator[NamedClaim]:
    """Return the claims that a pod names."""
    name_of = {entry.name: entry.resource_claim_name for entry in obj.status.resource_claim_statuses or ()}
    for entry in obj.spec.resource_claims or ():
        name = entry.resource_claim_name or name_of.get(entry.name, "")
        key = f"{obj.metadata.namespace}/{name}" if name else name
        yield NamedClaim(entry.name, key, entry.resource_claim_name is not None)


def _summed(requests: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return how many GPUs the requests ask for together, by subrequest. One with fewer has its last one."""
    ranks = range(max(map(len, requests), default=0))
    return tuple(sum(counts[min(rank, len(counts) - 1)] for counts in requests) for rank in ranks)


def _claim_asked(spec: ClaimSpec) -> ClaimAsked:
    return ClaimAsked(tuple(_requests(spec)), tuple(_constraints(spec)), compute_domains.domain_of(spec))


def _requests(spec: ClaimSpec) -> Iterator[DeviceRequest]:
    for request in spec.devices.requests or ():
        exact = request.exactly
        if exact is not None and exact.admin_access:
            yield DeviceRequest(request.name, ())
            continue
        variants = [exact] if exact is not None else request.first_available or ()
        counts = tuple(0 if variant.allocation_mode == ALL else variant.count for variant in variants)
        unplanned = next(filter(None, map(_unplanned, variants)), None)
        classes = tuple(variant.device_class_name for variant in variants)
        yield DeviceRequest(request.name, classes, counts, unplanned, exact.capacity if exact else None)


def _unplanned(exact: SubRequest) -> tuple[str, str] | None:
    if exact.allocation_mode not in ("ExactCount", ALL):
        return _MODE, exact.allocation_mode
    return ("capacity", "set") if not isinstance(exact, ExactRequest) and exact.capacity is not None else None


def _constraints(spec: ClaimSpec) -> Iterator[Constraint]:
    """Return the constraints that bind several devices. One may name a subrequest of a request alone."""
    requests = spec.devices.requests or ()
    for constraint in spec.devices.constraints or ():
        alone = next((name for name in constraint.requests or () if "/" in name), "")
        names = {name.partition("/")[0] for name in constraint.requests or ()}
        bound = [at for at, request in enumerate(requests) if request.name in names or not names]
        if sum(map(_count, (requests[at] for at in bound))) > 1:
            field, attribute = f"{_MATCH} of {alone}" if alone else _MATCH, constraint.match_attribute
            if attribute is None:
                field, attribute = "distinctAttribute", constraint.distinct_attribute or ""
            yield Constraint(field, attribute, mask_of(bound))


def _count(request: Request) -> int:
    """Return how many devices the request may take; 2 stands for `All`. The caller asks only whether the
    number is above one."""
    variants = [request.exactly] if request.exactly is not None else request.first_available or ()
    return max((variant.count if variant.allocation_mode != ALL else 2 for variant in variants), default=1)
