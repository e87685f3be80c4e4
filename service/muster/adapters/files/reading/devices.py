"""Read the devices that DRA drivers publish, and the claims of pods, with the readers of the service.

This module adds the objects that a cluster makes: claims of templates, the template that NVIDIA's controller
makes for a ComputeDomain, and the DeviceClasses of NVIDIA's chart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TypeVar

import msgspec

from muster.adapters.files.decide import ClaimFacts
from muster.adapters.files.reading import shapes
from muster.adapters.files.reading.other_objects import Objects, Readers
from muster.adapters.files.reading.shapes import PodManifest
from muster.adapters.files.reading.sources import Document, Object, field_at
from muster.adapters.kube.devices import EXTENDED, OF_CLASS, devices_held_by, is_unallocated
from muster.dialects.devices import compute_domains, selectors
from muster.dialects.devices.claims import Claims
from muster.dialects.devices.compute_domains import CHANNEL_CLASS
from muster.dialects.devices.objects import (
    CelSelector,
    ClaimRequest,
    ClaimTemplateSpec,
    DeviceClassObject,
    DeviceClassSpec,
    DeviceSelector,
    DeviceTaintRule,
    ExactRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
    SliceSpec,
    SubRequest,
)
from muster.dialects.devices.offers import NodeOffer
from muster.dialects.devices.resource_slices import ResourceSlices
from muster.dialects.devices.selectors import AttributeTerm, UnreadableSelectorError
from muster.dialects.devices.sharers import group_of
from muster.dialects.gangs import native
from muster.dialects.objects import CustomObject, Metadata, PodResourceClaim, PodResourceClaimStatus
from muster.dialects.settings import DialectSettings
from muster.domain.node import Device, DeviceClaim, Node, Resources
from muster.domain.pod import Pod
from muster.domain.words import plural
from muster.gangs.messages.calls import InTreeAnswer

T = TypeVar("T", bound=msgspec.Struct)
Key = tuple[str, str]
"""Namespace and name."""
RequestAlternative = ExactRequest | SubRequest
"""An alternative of a request: a subrequest, or the request itself."""

GROUP = "resource.k8s.io"
GPU_CLASS = "gpu.nvidia.com"


def _nvidia_class(name: str, driver: str, terms: str, resource: str | None = None) -> DeviceClassObject:
    expression = f"device.driver == '{driver}' && " + terms
    spec = DeviceClassSpec([DeviceSelector(CelSelector(expression))], resource)
    return DeviceClassObject(Metadata(name=name), spec)


_CHANNELS = f"device.attributes['{compute_domains.DRIVER}']"
OF_NVIDIA: Mapping[str, DeviceClassObject] = {
    GPU_CLASS: _nvidia_class(
        GPU_CLASS, GPU_CLASS, f"device.attributes['{GPU_CLASS}'].type == 'gpu'", "nvidia.com/gpu"
    ),
    CHANNEL_CLASS: _nvidia_class(
        CHANNEL_CLASS, compute_domains.DRIVER, f"{_CHANNELS}.type == 'channel' && {_CHANNELS}.id == 0"
    ),
}
"""The DeviceClasses that NVIDIA's chart makes. They are added if the input lacks them."""

_FLAT = (f"{GROUP}/v1beta1", f"{GROUP}/v1alpha3")
_VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta2", *_FLAT)
"""Versions that are read. The versions of `_FLAT` have other fields, and older versions have other kinds."""


def _read_known_version(document: Document, shape: type[T]) -> T | None:
    """Return the object as the API server stores it; None if its version is not read."""
    if document.value["apiVersion"] not in _VERSIONS:
        return None
    return shapes.as_stored(document, shape, as_v1(document.value))


def _claim_object(document: Document) -> ResourceClaim | None:
    claim = _read_known_version(document, ResourceClaim)
    if claim is not None:
        _check_requests(document, claim.spec, "spec")
    return claim


def _template(document: Document) -> ResourceClaimTemplate | None:
    template = _read_known_version(document, ResourceClaimTemplate)
    if template is not None:
        if "devices" in (document.value.get("spec") or ()):
            raise document.error("spec.devices: expected in spec.spec, which a claim has as its spec")
        _check_requests(document, template.spec.spec, "spec.spec")
    return template


def _channel_template(document: Document) -> ResourceClaimTemplate:
    """Return the template that NVIDIA's controller makes for a ComputeDomain."""
    obj = shapes.as_stored(document, CustomObject)
    name = field_at(obj.spec, "channel", "resourceClaimTemplate", "name")
    if not isinstance(name, str) or not name:
        raise document.error("spec.channel.resourceClaimTemplate.name: expected, but not given")
    spec = compute_domains.channel(obj.metadata.uid)
    return ResourceClaimTemplate(
        Metadata(name, namespace=obj.metadata.namespace), ClaimTemplateSpec(spec=spec)
    )


READERS: Readers = {
    (GROUP, "ResourceSlice"): partial(_read_known_version, shape=ResourceSlice),
    (GROUP, "DeviceClass"): partial(_read_known_version, shape=DeviceClassObject),
    (GROUP, "DeviceTaintRule"): partial(_read_known_version, shape=DeviceTaintRule),
    (GROUP, "ResourceClaim"): _claim_object,
    (GROUP, "ResourceClaimTemplate"): _template,
    (compute_domains.API_GROUP, "ComputeDomain"): _channel_template,
}


class Devices:
    """The devices of a cluster, and the claims of its pods, by all documents together."""

    def __init__(self, objects: Objects, settings: DialectSettings) -> None:
        self._slices = ResourceSlices(settings)
        self._given_classes = {
            item.metadata.name: item for item in objects.of("DeviceClass", DeviceClassObject)
        }
        classes = {**OF_NVIDIA, **self._given_classes}
        for name, item in classes.items():
            self._slices.see_class(name, item)
        published = objects.of("ResourceSlice", ResourceSlice)
        for resource_slice in published:
            self._slices.see_slice(resource_slice.metadata.name, resource_slice)
        for rule in objects.of("DeviceTaintRule", DeviceTaintRule):
            self._slices.see_rule(rule.metadata.name, rule)
        self.claims = Claims(self._slices.resource_of, lambda: self._slices.roundings)
        self._claim_objects = objects.of("ResourceClaim", ResourceClaim)
        self._allocated = set[Key]()
        self._specs = dict[Key, ResourceClaimSpec]()
        """Specs of claims, including the claims that are made here of templates."""
        for claim in self._claim_objects:
            self._see_claim(claim)
        self._claims_of_groups = dict(_claims_of_groups(objects.of("PodGroup", CustomObject)))
        self._templates = {
            _key(item.metadata): item.spec.spec
            for kind in ("ComputeDomain", "ResourceClaimTemplate")
            for item in objects.of(kind, ResourceClaimTemplate)
        }
        self._published = PublishedDevices(
            classes,
            published,
            self._slices.resource_of,
            {device for claim in self._claim_objects for device in devices_held_by(claim, "").devices},
        )
        self._missing = Counter[str]()
        """Claim or template that is not in the input → number of waiting pods that name it."""
        self._claims_of_pod = dict[str, tuple[Key, ...]]()
        """Pod UID → its claims that are not allocated."""

    def _see_claim(self, claim: ResourceClaim) -> None:
        meta, key = claim.metadata, _key(claim.metadata)
        if claim.status.allocation is not None:
            self._allocated.add(key)
        if (meta.annotations or {}).get(EXTENDED) != "true":
            self._specs[key] = claim.spec
            self.claims.see(
                "/".join(key), claim.spec, unallocated=is_unallocated(claim), group=group_of(claim)
            )

    @cached_property
    def _holdings(self) -> list[DeviceClaim]:
        """Return what each claim holds that has devices. Ask for it after `with_claims` of all pods."""
        claims = (
            devices_held_by(claim, self.claims.holder_of("/".join(_key(claim.metadata))))
            for claim in self._claim_objects
        )
        return [claim for claim in claims if claim.devices]

    def _specs_of(self, uid: str) -> tuple[ResourceClaimSpec, ...]:
        """Return a pod's claims that are not allocated. A claim of a PodGroup counts for its holder alone."""
        return tuple(
            self._specs[key]
            for key in self._claims_of_pod.get(uid, ())
            if self.claims.holder_of("/".join(key)) in ("", uid)
        )

    def offer(self, node: str) -> NodeOffer:
        """Return the GPUs that the node's slices offer."""
        return self._slices.offer(node)

    def with_claims(self, pod: PodManifest) -> PodManifest:
        """Return the pod with the claims that Kubernetes makes for it, and without unknown claims.

        Call it for all pods before any of them is read, because a claim may be shared.
        """
        if not pod.spec.resource_claims:
            return pod
        entries, statuses, keys = list[PodResourceClaim](), list[PodResourceClaimStatus](), list[Key]()
        status_by_name = {
            made_status.name: made_status for made_status in pod.status.resource_claim_statuses or ()
        }
        for entry in pod.spec.resource_claims:
            status = status_by_name.get(entry.name)
            name = entry.resource_claim_name or (status.resource_claim_name or "" if status else "")
            if status is not None and not name:
                entries.append(entry)  # the pod needs no claim
                statuses.append(status)
            elif name := self._claim_name(pod, entry, name):
                entries.append(entry)
                statuses.append(PodResourceClaimStatus(entry.name, name))
                key = (pod.metadata.namespace, name)
                freed = not (pod.spec.node_name or entry.resource_claim_name)  # before its gang is planned
                keys += [key] if freed or key not in self._allocated else []
        self._claims_of_pod[pod.metadata.uid] = tuple(keys)
        filled = msgspec.structs.replace(
            pod,
            spec=msgspec.structs.replace(pod.spec, resource_claims=entries),
            status=msgspec.structs.replace(pod.status, resource_claim_statuses=statuses),
        )
        self.claims.see_pod(pod.metadata.uid, filled)
        return filled

    def _claim_name(self, pod: PodManifest, entry: PodResourceClaim, name: str) -> str:
        """Return the name of the claim for an entry of the pod; "" if it is unknown. A missing claim is made
        of its template."""
        namespace, template = pod.metadata.namespace, entry.resource_claim_template_name
        if (namespace, name) in self._specs:
            return name
        spec = self._templates.get((namespace, template)) if template else None
        if spec is None:
            kind = f"ResourceClaimTemplate {namespace}/{template}" if template else ""
            self._missing[kind or f"ResourceClaim {namespace}/{name}"] += not pod.spec.node_name
            return ""
        group = pod.spec.scheduling_group.pod_group_name or "" if pod.spec.scheduling_group else ""
        is_shared = (entry.name, template) in self._claims_of_groups.get((namespace, group), ())
        name = name or f"{group if is_shared else pod.metadata.name}-{entry.name}"
        self._specs[namespace, name] = spec
        self.claims.see(f"{namespace}/{name}", spec, group=group if is_shared else "")
        return name

    def with_claimed_devices(self, pod: Pod, only_devices: bool) -> Pod:
        """Return the pod with the devices of its claims as resources, as
        `PublishedDevices.with_claimed_devices` does."""
        specs = self._specs_of(pod.uid)
        return self._published.with_claimed_devices(pod, specs, only_devices) if specs else pod

    def with_offers(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return the nodes with the free devices that pods may ask for by claims."""
        class_names = _class_names(chain.from_iterable(map(self._specs_of, self._claims_of_pod)))
        return tuple(self._published.with_offers(node, class_names) for node in nodes)

    def facts(self, waiting: Sequence[str], nodes: Sequence[Node]) -> ClaimFacts:
        """Return the devices that claims hold, and pod UID → the GPUs that the claims of these pods match.

        Devices of waiting pods are left out, because they are freed before the gang is planned.
        """
        holdings = tuple(claim for claim in self._holdings if not claim.is_for(waiting))
        answers = ((uid, self._published.answer(self._specs_of(uid), nodes)) for uid in waiting)
        return ClaimFacts(holdings, {uid: answer for uid, answer in answers if answer is not None})

    def notes(self, waiting: Iterable[str]) -> Iterator[str]:
        """Yield notes about unknown claims of these pods (UIDs), and about fields of claims that are not
        followed."""
        for name, count in sorted(self._missing.items()):
            if count:
                pods = f"{count} {plural('pod', count)} {'is' if count == 1 else 'are'}"
                yield f"{name} is not in the input: {pods} planned without it. In a cluster pods wait for it"
        specs = [spec for uid in waiting for spec in self._specs_of(uid)]
        class_names = _class_names(specs)
        if GPU_CLASS in class_names - self._given_classes.keys():
            yield f"DeviceClass {GPU_CLASS} is not in the input: it counts as NVIDIA's chart makes it"
        if CHANNEL_CLASS in class_names and self._published.assumes_channels:
            yield (
                f"no ResourceSlice of {compute_domains.DRIVER} is in the input: each node with GPUs counts "
                "as having one channel of a ComputeDomain"
            )
        yield from sorted({*map(self._published.note_on_other_devices, _requests(specs))} - {""})
        with_gpus = any(map(self._slices.serves_gpus, self._slices.drivers))
        if not with_gpus and any(self._published.gpu_requests(specs)):
            yield (
                "no ResourceSlice with GPUs is in the input: claims for GPUs are planned on the GPUs that "
                "status.allocatable of nodes counts, and with allocationMode All on none"
            )
        yield from sorted(f"{note} (not followed)" for note in {*self._published.notes_on_gpus(specs)})


def _claims_of_groups(groups: Iterable[CustomObject]) -> Iterator[tuple[Key, frozenset[tuple[str, str]]]]:
    """Yield each PodGroup of Kubernetes, with the names and templates of the claims that its pods share."""
    for group in groups:
        claims = group.spec.get("resourceClaims") if isinstance(group.spec, dict) else None
        if group.api_version in native.APIS and isinstance(claims, list):
            pairs = (
                (claim.get("name"), claim.get("resourceClaimTemplateName"))
                for claim in claims
                if isinstance(claim, dict)
            )
            named = frozenset((str(name), template) for name, template in pairs if isinstance(template, str))
            yield (group.metadata.namespace or "default", group.metadata.name), named


def _check_requests(document: Document, spec: ResourceClaimSpec, field_path: str) -> None:
    """Raise Malformed if a request is empty, because its fields are from another version of the API."""
    for number, request in enumerate(spec.devices.requests or ()):
        if (request.exactly is None) == (not request.first_available):
            fields = "deviceClassName" if document.value["apiVersion"] in _FLAT else "exactly"
            path = f"{field_path}.devices.requests[{number}]"
            raise document.error(
                f"{path}: expected one of {fields} and firstAvailable in {document.value['apiVersion']}"
            )


def as_v1(value: Object) -> Object:
    """Return an object of resource.k8s.io/v1beta1 or v1alpha3 with the fields of v1.

    In these versions, the fields of `exactly` are in the request itself, and a device has its fields in
    `basic`.
    """
    if value.get("apiVersion") not in _FLAT or not isinstance(spec := value.get("spec"), dict):
        return value
    inner = spec.get("spec")
    if isinstance(inner, dict):
        return {**value, "spec": {**spec, "spec": _spec_as_v1(inner)}}
    return {**value, "spec": _spec_as_v1(spec)}


def _spec_as_v1(spec: Object) -> Object:
    devices = spec.get("devices")
    if isinstance(devices, list):
        return {**spec, "devices": [_lift_fields(device, "basic") for device in devices]}
    if not isinstance(devices, dict) or not isinstance(requests := devices.get("requests"), list):
        return spec
    return {**spec, "devices": {**devices, "requests": [_with_exactly(request) for request in requests]}}


def _lift_fields(value: object, field: str) -> object:
    inner = value.get(field) if isinstance(value, dict) else None
    return {**value, **inner} if isinstance(value, dict) and isinstance(inner, dict) else value


def _with_exactly(request: object) -> object:
    if not isinstance(request, dict):
        return request
    same = {key: request[key] for key in ("name", "firstAvailable") if key in request}
    if not request.get("deviceClassName"):
        return same
    return {**same, "exactly": {key: value for key, value in request.items() if key not in same}}


def _key(meta: Metadata) -> Key:
    return meta.namespace, meta.name


def _requests(specs: Iterable[ResourceClaimSpec]) -> Iterator[ClaimRequest]:
    return (request for spec in specs for request in spec.devices.requests or ())


def _alternatives(request: ClaimRequest) -> list[RequestAlternative]:
    """Return the alternatives of a request: its subrequests, or the request itself."""
    return [request.exactly] if request.exactly is not None else [*(request.first_available or ())]


def _class_names(specs: Iterable[ResourceClaimSpec]) -> set[str]:
    return {
        alternative.device_class_name
        for request in _requests(specs)
        for alternative in _alternatives(request)
    }


# --- devices by DeviceClass ----------------------------------------------------------------------


class PublishedDevices:
    """The devices of slices by DeviceClass: the GPUs that claims match, and the numbers of other devices.

    `resource_of` returns the GPU resource of a class, "" for none. Claims hold `allocated_devices`.
    """

    def __init__(
        self,
        classes: Mapping[str, DeviceClassObject],
        slices: Iterable[ResourceSlice],
        resource_of: Callable[[str], str],
        allocated_devices: Collection[Device],
    ) -> None:
        self._resource_of = resource_of
        self._names = {
            name: device_class.spec.extended_resource_name or OF_CLASS + name
            for name, device_class in classes.items()
        }
        self._terms = {name: _terms(device_class.spec.selectors) for name, device_class in classes.items()}
        """DeviceClass → the terms of its selectors; None if a selector can't be read."""
        specs = sorted((item.spec for item in slices), key=lambda spec: spec.pool.generation)
        self._attributes = {
            Device(spec.driver, spec.pool.name, device.name): selectors.attributes(spec.driver, device)
            for spec in specs
            for device in spec.devices or ()
        }
        self._free: dict[str, Counter[str]] = {}
        """DeviceClass → node → number of its free devices. GPUs, and unreadable classes, are left out."""
        node_devices = list(_allocatable_devices(specs))
        for name, terms in self._terms.items():
            if terms is not None and not resource_of(name):
                self._free[name] = Counter()
                for node, device in node_devices:
                    if selectors.are_satisfied(terms, device.driver, self._attributes[device]):
                        self._free[name][node] += device not in allocated_devices
        self._answers: dict[bytes, InTreeAnswer] = {}
        self.assumes_channels = all(spec.driver != compute_domains.DRIVER for spec in specs)
        """Whether each node with GPUs counts as having a channel, because the input has no slice with
        channels."""

    def answer(self, specs: Sequence[ResourceClaimSpec], nodes: Iterable[Node]) -> InTreeAnswer | None:
        """Return the GPUs of the nodes that the claims of a pod match; None if they request no GPUs."""
        requests = list(self.gpu_requests(specs))
        if not requests:
            return None
        key = msgspec.json.encode(requests)
        if key not in self._answers:
            nodes_with_devices = [node for node in nodes if node.devices]
            ranks = range(max(map(len, requests)))
            alternatives_by_rank = (
                [alternatives[: rank + 1][-1] for alternatives in requests] for rank in ranks
            )
            self._answers[key] = InTreeAnswer(
                devices=tuple(self._matching_gpus(way, nodes_with_devices) for way in alternatives_by_rank)
            )
        return self._answers[key]

    def gpu_requests(self, specs: Iterable[ResourceClaimSpec]) -> Iterator[list[RequestAlternative]]:
        """Yield the alternatives of each request for GPUs."""
        for request in _requests(specs):
            watches = request.exactly is not None and request.exactly.admin_access
            alternatives = _alternatives(request)
            if not watches and any(self._resource_of(item.device_class_name) for item in alternatives):
                yield alternatives

    def _matching_gpus(
        self, way: Sequence[RequestAlternative], nodes: Iterable[Node]
    ) -> dict[str, frozenset[str]]:
        """Return node → the names of its GPUs that all of these alternatives match."""
        terms = [
            term
            for alternative in way
            for part in (self._terms.get(alternative.device_class_name), _terms(alternative.selectors))
            for term in part or ()
        ]
        return {
            node.name: frozenset(
                str(device)
                for gpu, device in enumerate(node.devices)
                if device is not None and node.untainted_gpus >> gpu & 1
                if selectors.are_satisfied(terms, device.driver, self._attributes[device])
            )
            for node in nodes
        }

    def with_offers(self, node: Node, classes: Collection[str]) -> Node:
        """Return the node with its free devices as resources: devices of classes that claims name, and of
        classes with an extended resource.

        If a device plugin offers a resource of the same name, the plugin's count stays.
        """
        counts = {
            self._names[name]: free[node.name]
            for name, free in self._free.items()
            if free[node.name] and (name in classes or not self._names[name].startswith(OF_CLASS))
        }
        if self.assumes_channels and node.topology.gpu_count and CHANNEL_CLASS in classes:
            counts[self._names[CHANNEL_CLASS]] = 1
        if node.devices:
            gpu_classes = (name for name in classes if self._resource_of(name) in node.gpu_resources)
            counts |= dict.fromkeys((OF_CLASS + name for name in gpu_classes), len(node.devices))
        if not counts:
            return node
        return replace(
            node, allocatable=_with_amounts(node.allocatable, counts | dict(node.allocatable.others))
        )

    def with_claimed_devices(self, pod: Pod, specs: Iterable[ResourceClaimSpec], only_devices: bool) -> Pod:
        """Return the pod with the devices of its claims as resources. With `only_devices` its GPUs must be
        devices too: a node whose GPUs a device plugin serves is not for its claims."""
        amounts = Counter(dict(pod.resources.others))
        for request in _requests(specs):
            exact = request.exactly
            if exact is not None and self._is_counted(request):
                amounts[self._names[exact.device_class_name]] += exact.count
            elif exact is not None and only_devices and self._resource_of(exact.device_class_name):
                amounts[OF_CLASS + exact.device_class_name] += exact.count
        return replace(pod, resources=_with_amounts(pod.resources, amounts))

    def _is_counted(self, request: ClaimRequest) -> bool:
        exact = request.exactly
        if exact is None or exact.admin_access or exact.allocation_mode != "ExactCount":
            return False
        name = exact.device_class_name
        return bool(self._free.get(name)) or (self.assumes_channels and name == CHANNEL_CLASS)

    def notes_on_gpus(self, specs: Iterable[ResourceClaimSpec]) -> Iterator[str]:
        """Yield a note for each part of requests for GPUs that is not followed: tolerations, and unreadable
        selectors."""
        for alternative in chain.from_iterable(self.gpu_requests(specs)):
            if alternative.tolerations:
                yield f"DeviceClass {alternative.device_class_name}: tolerations in claims for its devices"
            try:
                _read_selectors(alternative.selectors)
            except UnreadableSelectorError as error:
                yield str(error)

    def note_on_other_devices(self, request: ClaimRequest) -> str:
        """Return why a request for devices other than GPUs is not followed, or only in part; "" if it is
        followed."""
        exact = request.exactly
        names = sorted({alternative.device_class_name for alternative in _alternatives(request)})
        if not names or any(map(self._resource_of, names)) or (exact is not None and exact.admin_access):
            return ""
        why = f"DeviceClass {names[0]}: claims for its devices are not followed, since "
        if names[0] not in self._names:
            why += "it is not in the input"
        elif names[0] not in self._free:
            why += "its selectors can't be read here"
        elif exact is None or exact.allocation_mode != "ExactCount":
            why += "firstAvailable and allocationMode All are followed for GPUs alone"
        elif not self._is_counted(request):
            why += "no ResourceSlice in the input has any on a node"
        elif exact.selectors:
            why = f"DeviceClass {names[0]}: selectors in claims for its devices are not followed"
        else:
            why = ""
        return why


def _read_selectors(device_selectors: Iterable[DeviceSelector] | None) -> tuple[AttributeTerm, ...]:
    """Return the terms of these selectors.

    Raises:
        UnreadableSelectorError: A selector has another form.
    """
    return selectors.read(
        selector.cel.expression for selector in device_selectors or () if selector.cel is not None
    )


def _terms(device_selectors: Iterable[DeviceSelector] | None) -> tuple[AttributeTerm, ...] | None:
    """Return the terms of these selectors; None if a selector can't be read."""
    try:
        return _read_selectors(device_selectors)
    except UnreadableSelectorError:
        return None


def _with_amounts(resources: Resources, amounts: Mapping[str, int]) -> Resources:
    return replace(resources, others=tuple(sorted(amounts.items())))


def _allocatable_devices(specs: Sequence[SliceSpec]) -> Iterator[tuple[str, Device]]:
    """Yield (node, device) for each device of a node that a claim may allocate, from specs with the newest
    generation last. Devices with shared counters are skipped, because they can't be counted."""
    newest = {(spec.driver, spec.pool.name): spec.pool.generation for spec in specs}
    for spec in specs:
        if spec.node_name and spec.pool.generation == newest[spec.driver, spec.pool.name]:
            for device in spec.devices or ():
                if not (any(map(selectors.keeps_away, device.taints or ())) or device.consumes_counters):
                    yield spec.node_name, Device(spec.driver, spec.pool.name, device.name)
