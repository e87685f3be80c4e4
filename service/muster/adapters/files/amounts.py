"""Refuse what an API server refuses of the resources of pods, and add what it adds for the whole pod.

(kubernetes pkg/apis/core/validation: validateContainerResourceRequirements, validatePodResourceConsistency;
pkg/apis/core/v1/defaults.go: defaultPodRequests.)
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from muster.adapters.files.problems import shown
from muster.adapters.files.sources import Document
from muster.dialects import quantities
from muster.dialects.objects import Container, PodSpec, ResourceRequirements
from muster.dialects.pods import requests
from muster.dialects.quantities import Quantity
from muster.domain.words import did_you_mean

_HUGE_PAGES = "hugepages-"
_STANDARD = ("cpu", "memory", "ephemeral-storage")
_OF_PODS = ("cpu", "memory")
"""Resources that a pod may ask for as a whole, besides huge pages."""

Quantities = Mapping[str, Quantity]


def check(document: Document, spec: PodSpec, under: str, after: str = "") -> None:
    """Raise Malformed if an API server refuses what the pod asks for. `after` ends the message.

    Raises:
        Malformed: The message names the field.
    """
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for number, container in enumerate(containers or ()):
            _check_container(document, container, f"{under}.{field}[{number}].resources", after)
    if spec.resources is not None:
        _check_whole_pod(document, spec, spec.resources, f"{under}.resources")


def with_whole_pod(spec: PodSpec) -> ResourceRequirements | None:
    """Return what a new pod asks for as a whole: its containers' requests, or else the limit of the pod."""
    of_manifest = spec.resources
    if of_manifest is None:
        return None
    of_pod, of_containers = dict(of_manifest.requests or {}), _of_containers(spec)
    for resource, limit in (of_manifest.limits or {}).items():
        if resource not in of_pod and (resource.startswith(_HUGE_PAGES) or not of_containers.get(resource)):
            of_pod[resource] = limit
    return replace(of_manifest, requests=of_pod, limits=None)


def _check_container(document: Document, container: Container, under: str, after: str) -> None:
    """Raise Malformed if a request is above its limit, or not equal to it where it must be.

    GPUs and all other extended resources, and huge pages, can't be overcommitted, and are whole numbers.
    """
    resources = container.resources or ResourceRequirements()
    limits = resources.limits or {}
    for field, amounts in (("limits", limits), ("requests", resources.requests or {})):
        for resource, amount in amounts.items():
            if problem := _wrong(resource, amount):
                raise document.malformed(f"{under}.{field}[{resource}]: {problem}")
    for resource, request in (resources.requests or {}).items():
        problem, limit = "", limits.get(resource)
        exact = not _is_native(resource) or resource.startswith(_HUGE_PAGES)
        request_value, limit_value = (
            quantities.parse(request),
            quantities.parse(limit) if limit is not None else None,
        )
        if limit is None and exact:
            field = f"{under}.limits[{resource}]"
            raise document.malformed(f"{field}: expected {shown(request)} as in requests, but not given")
        if request_value is None or limit_value is None or request_value == limit_value:
            continue
        if exact:
            problem = f"expected {shown(limit)} as in limits"
        elif request_value > limit_value:
            problem = f"expected at most its limit, {shown(limit)}"
        if problem:
            raise document.malformed(f"{under}.requests[{resource}]: {problem}, got {shown(request)}{after}")


def _wrong(resource: str, amount: Quantity) -> str:
    """Return what is wrong with one resource of a container, "" if nothing is."""
    if "/" not in resource and resource not in _STANDARD and not resource.startswith(_HUGE_PAGES):
        standard = f"{', '.join(_STANDARD)}, huge pages, or a name with a prefix as in nvidia.com/gpu"
        hint = "" if "gpu" in resource else did_you_mean(resource, _STANDARD)
        return f"no resource of containers, which are {standard}{hint}"
    value = quantities.parse(amount)
    if value is not None and value.denominator > 1 and not _is_native(resource):
        return f"expected a whole number, got {shown(amount)}"
    page = quantities.parse(resource.removeprefix(_HUGE_PAGES)) if resource.startswith(_HUGE_PAGES) else 1
    if not page or page < 0:
        return "expected the size of a page in the name, as in hugepages-2Mi"
    if value is not None and value % page and resource.startswith(_HUGE_PAGES):
        return f"expected a multiple of the size of a page, got {shown(amount)}"
    return ""


def _check_whole_pod(document: Document, spec: PodSpec, resources: ResourceRequirements, under: str) -> None:
    """Raise Malformed if a pod as a whole asks for what it can't, or for less than its containers."""
    for field, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        for resource in amounts or ():
            if resource not in _OF_PODS and not resource.startswith(_HUGE_PAGES):
                raise document.malformed(
                    f"{under}.{field}[{resource}]: expected cpu, memory or huge pages alone"
                )
    of_containers = _of_containers(spec)
    for resource, request in (resources.requests or {}).items():
        request_value, least = quantities.billionths(request), of_containers.get(resource)
        most = quantities.billionths((resources.limits or {}).get(resource, request))
        if request_value is not None and least is not None and request_value < least:
            of_all = "expected at least what the containers ask for"
            raise document.malformed(f"{under}.requests[{resource}]: {of_all}, got {shown(request)}")
        if request_value is not None and most is not None and request_value > most:
            raise document.malformed(
                f"{under}.requests[{resource}]: expected at most its limit, got {shown(request)}"
            )
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        of_container = (container.resources or ResourceRequirements()).limits or {}
        for resource, limit in (resources.limits or {}).items():
            most, limit_of_container = (
                quantities.billionths(limit),
                quantities.billionths(of_container.get(resource, 0)),
            )
            if most is not None and limit_of_container is not None and limit_of_container > most:
                raise document.malformed(
                    f"{under}.limits[{resource}]: expected at least the limit of container {container.name}, "
                    f"got {shown(limit)}"
                )


def _of_containers(spec: PodSpec) -> dict[str, int]:
    """Return what the containers ask for together, as kube-scheduler sums it."""
    return requests.sum_of(
        [_requests_of(container) for container in spec.containers or ()],
        [
            (_requests_of(container), container.restart_policy == "Always")
            for container in spec.init_containers or ()
        ],
    )


def _requests_of(container: Container) -> dict[str, int]:
    resources = container.resources or ResourceRequirements()
    amounts = {**(resources.limits or {}), **(resources.requests or {})}
    values = ((resource, quantities.billionths(amount)) for resource, amount in amounts.items())
    return {resource: value for resource, value in values if value is not None}


def _is_native(resource: str) -> bool:
    """Return whether a resource is Kubernetes' own: cpu, memory, ephemeral-storage, huge pages."""
    return "/" not in resource or "kubernetes.io/" in resource
