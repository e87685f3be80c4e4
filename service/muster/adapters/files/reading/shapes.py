"""Convert documents to typed objects, or name the field that is wrong.

Nodes and pods have the shapes of `dialects.objects`, which the service decodes too. Here they are also
checked for values that the API server would refuse. The other kinds here create pods.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from muster.adapters.files.reading.sources import CLUSTER_WIDE, WORDS, Document, quote_value
from muster.adapters.kube.lenient import salvage
from muster.dialects import quantities
from muster.dialects.objects import (
    ApiObject,
    Container,
    Metadata,
    NodeObject,
    PodObject,
    PodSpec,
    PodToleration,
    ResourceRequirements,
)
from muster.dialects.pods import requests
from muster.dialects.quantities import Quantity
from muster.dialects.reading import LABEL_KEY, NAME_PATTERN, OBJECT_NAME
from muster.domain.words import did_you_mean

T = TypeVar("T", bound=msgspec.Struct)

Quantities = dict[str, Quantity]


class Spec(PodSpec, frozen=True):
    """A pod's spec as a manifest has it: with the names of its priority class and runtime class."""

    priority_class_name: str = ""
    runtime_class_name: str = ""


class PodManifest(PodObject, frozen=True):
    """A Pod as users write it."""

    spec: Spec = Spec()


class Template(ApiObject, frozen=True):
    """A pod template."""

    spec: Spec = Spec()
    metadata: Metadata = Metadata()


class PriorityClass(ApiObject, frozen=True):
    """A PriorityClass of scheduling.k8s.io."""

    value: int = 0
    metadata: Metadata = Metadata()
    global_default: bool | None = None


class RuntimeScheduling(ApiObject, frozen=True):
    """`scheduling` of a RuntimeClass."""

    node_selector: dict[str, str] | None = None
    tolerations: list[PodToleration] | None = None


class Overhead(ApiObject, frozen=True):
    """`overhead` of a RuntimeClass."""

    pod_fixed: Quantities | None = None


class RuntimeClass(ApiObject, frozen=True):
    """A RuntimeClass of node.k8s.io."""

    metadata: Metadata = Metadata()
    scheduling: RuntimeScheduling | None = None
    overhead: Overhead | None = None


class Limit(ApiObject, frozen=True):
    """An entry of `spec.limits` of a LimitRange."""

    type: str = ""
    default: Quantities | None = None
    default_request: Quantities | None = None
    min: Quantities | None = None
    max: Quantities | None = None
    max_limit_request_ratio: Quantities | None = None

    @property
    def has_bounds(self) -> bool:
        """Return whether the API server refuses pods outside the limit."""
        return bool(self.min or self.max or self.max_limit_request_ratio)


class LimitRangeSpec(ApiObject, frozen=True):
    """`spec` of a LimitRange."""

    limits: list[Limit] | None = None


class LimitRange(ApiObject, frozen=True):
    """A LimitRange of a namespace."""

    metadata: Metadata = Metadata()
    spec: LimitRangeSpec = LimitRangeSpec()

    def defaults(self) -> tuple[Quantities, Quantities]:
        """Return the default limits and requests of containers."""
        limits, requests = Quantities(), Quantities()
        for limit in self.spec.limits or ():
            if limit.type == "Container":
                by_default = {**(limit.max or {}), **(limit.default or {})}
                limits |= by_default
                requests |= {**(limit.min or {}), **by_default, **(limit.default_request or {})}
        return limits, requests


# --- conversion ------------------------------------------------------------------------------------

_GOT = re.compile(r"Expected `(?P<expected>[^`]*)`(?:, got `(?P<got>[^`]*)`)?(?P<of_key> - at `key`.*)?")
_ELEMENT = re.compile(r".*\[\d+\]")


def convert(document: Document, shape: type[T], value: object = None, field_path: str = "") -> T:
    """Return the document, or the part `value` of it at `field_path`, as this shape.

    As in the API, a null counts as a field that is not given.

    Raises:
        Malformed: The value does not have the shape. The message names the field.
    """
    value = document.value if value is None else value
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError:
        salvaged, lost_fields = salvage(shape, value)
    except RecursionError:
        raise document.error("nested too deeply") from None
    for path, problem in lost_fields:
        if not problem.endswith("got `null`") or _ELEMENT.fullmatch(path):
            raise document.error(_sentence(f"{field_path}.{path}".strip("."), problem))
    return salvaged


def _sentence(field: str, problem: str) -> str:
    got = _GOT.fullmatch(problem)
    if got is None:
        return f"{field}: {problem}" if field else problem
    kinds = [WORDS.get(kind, kind) for kind in got["expected"].split(" | ") if kind != "null"]
    expected = f"{'keys that are ' if got['of_key'] else ''}{' or '.join(kinds)}"
    return f"{field}: expected {expected}" + (
        f", got {WORDS.get(got['got'], got['got'])}" if got["got"] else ""
    )


# --- what the API server would refuse --------------------------------------------------------------

_NAMED = "lower-case letters, digits, '-' and '.'"


def check_metadata(document: Document, meta: Metadata, field_path: str = "metadata") -> None:
    """Raise Malformed if the API server would refuse these names or labels."""
    for field, name in (("name", meta.name), ("namespace", meta.namespace)):
        if name and not OBJECT_NAME.fullmatch(name):
            raise document.error(f"{field_path}.{field}: expected {_NAMED}, got {quote_value(name)}")
    check_labels(document, f"{field_path}.labels", meta.labels or {})


def check_name(document: Document, meta: Metadata) -> None:
    """Raise Malformed if the object has no name, or metadata that the API server refuses."""
    if not meta.name:
        raise document.error("metadata.name: expected, but not given")
    check_metadata(document, meta)


def as_stored(document: Document, shape: type[T], value: object = None) -> T:
    """Return the document, or `value` in its place, as the API server stores it: with a namespace and UID.

    Raises:
        Malformed: The document does not have the shape, or the API server refuses its metadata.
    """
    read: Any = convert(document, shape, value)
    meta: Metadata = read.metadata
    check_name(document, meta)
    namespace = meta.namespace or ("" if document.kind in CLUSTER_WIDE else "default")
    uid = meta.uid or uid_of(document.kind, namespace, meta.name)
    stored_object: T = replace(read, metadata=replace(meta, namespace=namespace, uid=uid))
    return stored_object


_UIDS = uuid.uuid5(uuid.NAMESPACE_URL, "https://gpu.topology/files")


def uid_of(kind: str, namespace: str, name: str) -> str:
    """Return a UID for an object that has none, the same in every run."""
    return str(uuid.uuid5(_UIDS, f"{kind}/{namespace}/{name}"))


def check_labels(document: Document, field: str, labels: Mapping[str, str]) -> None:
    """Raise Malformed if the API server would refuse one of these labels."""
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            raise document.error(f"{field}: expected label keys, got {quote_value(key)}")
        if value and not NAME_PATTERN.fullmatch(value):
            raise document.error(f"{field}[{key}]: expected a label's value, got {quote_value(value)}")


def check_spec(document: Document, spec: PodSpec, field_path: str = "spec") -> None:
    """Raise Malformed if there is no container, or if the API server does not accept a name."""
    if not spec.containers:
        raise document.error(f"{field_path}.containers: expected at least one container")
    if spec.node_name and not OBJECT_NAME.fullmatch(spec.node_name):
        raise document.error(f"{field_path}.nodeName: expected {_NAMED}, got {quote_value(spec.node_name)}")
    for number, claim in enumerate(spec.resource_claims or ()):
        if bool(claim.resource_claim_name) == bool(claim.resource_claim_template_name):
            claim_path = f"{field_path}.resourceClaims[{number}]"
            if claim.source is not None:
                raise document.error(
                    f"{claim_path}.source: since Kubernetes 1.31 its fields are those of {claim_path}"
                )
            expected = "expected one of resourceClaimName and resourceClaimTemplateName"
            raise document.error(f"{claim_path}: {expected}")
    for number, container in enumerate(spec.containers):
        if not OBJECT_NAME.fullmatch(container.name):
            name_path = f"{field_path}.containers[{number}].name"
            raise document.error(f"{name_path}: expected {_NAMED}, got {quote_value(container.name)}")
    check_amounts(document, spec, field_path)


def read_node(document: Document) -> NodeObject:
    """Return a Node. As in the API server, its allocatable is its capacity if it is not given."""
    read = convert(document, NodeObject)
    check_name(document, read.metadata)
    if read.status.allocatable is None:
        status = replace(read.status, allocatable=read.status.capacity)
        read = replace(read, status=status)
    return read


def read_pod(document: Document) -> PodManifest:
    """Return a Pod's manifest. Raise Malformed if the API server would refuse the Pod."""
    read = convert(document, PodManifest)
    check_name(document, read.metadata)
    check_spec(document, read.spec)
    return read


# --- resources -----------------------------------------------------------------------------------

_HUGE_PAGES = "hugepages-"
_STANDARD = ("cpu", "memory", "ephemeral-storage")
_OF_PODS = ("cpu", "memory")
"""Resources, apart from huge pages, that a pod may request as a whole."""


def check_amounts(document: Document, spec: PodSpec, field_path: str, ending: str = "") -> None:
    """Raise Malformed if an API server refuses the pod's requests. `ending` ends the message.

    Raises:
        Malformed: The message names the field.
    """
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for number, container in enumerate(containers or ()):
            _check_container(document, container, f"{field_path}.{field}[{number}].resources", ending)
    if spec.resources is not None:
        _check_whole_pod(document, spec, spec.resources, f"{field_path}.resources")


def whole_pod_requests(spec: PodSpec) -> ResourceRequirements | None:
    """Return the requests of a new pod as a whole: those of its containers, or else the limit of the pod."""
    pod_resources = spec.resources
    if pod_resources is None:
        return None
    pod_requests, container_requests = dict(pod_resources.requests or {}), requests.of_containers(spec)
    for resource, limit in (pod_resources.limits or {}).items():
        if resource not in pod_requests and (
            resource.startswith(_HUGE_PAGES) or not container_requests.get(resource)
        ):
            pod_requests[resource] = limit
    return replace(pod_resources, requests=pod_requests, limits=None)


def _check_container(document: Document, container: Container, field_path: str, ending: str) -> None:
    """Raise Malformed if a request is above its limit, or differs from a limit that it must equal.

    GPUs and all other extended resources, and huge pages, can't be overcommitted, and are whole numbers.
    """
    resources = container.resources or ResourceRequirements()
    limits = resources.limits or {}
    for field, amounts in (("limits", limits), ("requests", resources.requests or {})):
        for resource, amount in amounts.items():
            if problem := _problem_of(resource, amount):
                raise document.error(f"{field_path}.{field}[{resource}]: {problem}")
    for resource, request in (resources.requests or {}).items():
        problem, limit = "", limits.get(resource)
        exact = not _is_native(resource) or resource.startswith(_HUGE_PAGES)
        request_value, limit_value = (
            quantities.parse(request),
            quantities.parse(limit) if limit is not None else None,
        )
        if limit is None and exact:
            field = f"{field_path}.limits[{resource}]"
            raise document.error(f"{field}: expected {quote_value(request)} as in requests, but not given")
        if request_value is None or limit_value is None or request_value == limit_value:
            continue
        if exact:
            problem = f"expected {quote_value(limit)} as in limits"
        elif request_value > limit_value:
            problem = f"expected at most its limit, {quote_value(limit)}"
        if problem:
            raise document.error(
                f"{field_path}.requests[{resource}]: {problem}, got {quote_value(request)}{ending}"
            )


def _problem_of(resource: str, amount: Quantity) -> str:
    """Return the problem of one resource of a container; "" if it has none."""
    if "/" not in resource and resource not in _STANDARD and not resource.startswith(_HUGE_PAGES):
        standard = f"{', '.join(_STANDARD)}, huge pages, or a name with a prefix as in nvidia.com/gpu"
        hint = "" if "gpu" in resource else did_you_mean(resource, _STANDARD)
        return f"no resource of containers, which are {standard}{hint}"
    value = quantities.parse(amount)
    if value is not None and value.denominator > 1 and not _is_native(resource):
        return f"expected a whole number, got {quote_value(amount)}"
    page = quantities.parse(resource.removeprefix(_HUGE_PAGES)) if resource.startswith(_HUGE_PAGES) else 1
    if not page or page < 0:
        return "expected the size of a page in the name, as in hugepages-2Mi"
    if value is not None and value % page and resource.startswith(_HUGE_PAGES):
        return f"expected a multiple of the size of a page, got {quote_value(amount)}"
    return ""


def _check_whole_pod(document: Document, spec: PodSpec, resources: ResourceRequirements, path: str) -> None:
    """Raise Malformed if a pod as a whole requests another resource than it may, or less than its
    containers."""
    for field, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        for resource in amounts or ():
            if resource not in _OF_PODS and not resource.startswith(_HUGE_PAGES):
                raise document.error(f"{path}.{field}[{resource}]: expected cpu, memory or huge pages alone")
    container_requests = requests.of_containers(spec)
    for resource, request in (resources.requests or {}).items():
        request_value, least = quantities.billionths(request), container_requests.get(resource)
        limit_value = quantities.billionths((resources.limits or {}).get(resource, request))
        if request_value is not None and least is not None and request_value < least:
            least_expected = "expected at least what the containers ask for"
            raise document.error(f"{path}.requests[{resource}]: {least_expected}, got {quote_value(request)}")
        if request_value is not None and limit_value is not None and request_value > limit_value:
            raise document.error(
                f"{path}.requests[{resource}]: expected at most its limit, got {quote_value(request)}"
            )
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        container_limits = (container.resources or ResourceRequirements()).limits or {}
        for resource, limit in (resources.limits or {}).items():
            limit_value, limit_of_container = (
                quantities.billionths(limit),
                quantities.billionths(container_limits.get(resource, 0)),
            )
            if (
                limit_value is not None
                and limit_of_container is not None
                and limit_of_container > limit_value
            ):
                raise document.error(
                    f"{path}.limits[{resource}]: expected at least the limit of container {container.name}, "
                    f"got {quote_value(limit)}"
                )


def _is_native(resource: str) -> bool:
    """Return whether a resource is Kubernetes' own: cpu, memory, ephemeral-storage, huge pages."""
    return "/" not in resource or "kubernetes.io/" in resource
