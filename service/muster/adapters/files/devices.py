"""Read what DRA drivers publish, and the claims of pods, with the readers of the service.

This module adds what Kubernetes adds: the claims that it makes of templates, the template that NVIDIA's
controller makes for a ComputeDomain, and the DeviceClasses of NVIDIA's chart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from muster.adapters.files import shapes, templates
from muster.adapters.files.decide import ClaimFacts
from muster.adapters.files.matching_devices import DeviceCounts, MatchingDevices
from muster.adapters.files.shapes import PodManifest
from muster.adapters.files.sources import Document, Malformed, Object
from muster.adapters.kube.devices import EXTENDED, held_by
from muster.dialects.devices import compute_domains
from muster.dialects.devices.claims import Claims
from muster.dialects.devices.compute_domains import CHANNEL_CLASS
from muster.dialects.devices.objects import (
    CelSelector,
    ClaimSpec,
    DeviceClassObject,
    DeviceClassSpec,
    DeviceSelector,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from muster.dialects.devices.offers import Offer
from muster.dialects.devices.slices import Slices
from muster.dialects.objects import Metadata, PodResourceClaim, PodResourceClaimStatus
from muster.dialects.settings import Settings
from muster.domain.node import Node
from muster.domain.words import plural
from muster.gangs.capacity.device_claims import DeviceClaim

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name."""

GROUP = "resource.k8s.io"
GPU_CLASS = "gpu.nvidia.com"


def _of_nvidia(name: str, driver: str, terms: str, resource: str | None = None) -> DeviceClassObject:
    expression = f"device.driver == '{driver}' && " + terms
    spec = DeviceClassSpec([DeviceSelector(CelSelector(expression))], resource)
    return DeviceClassObject(Metadata(name=name), spec)


_CHANNELS = f"device.attributes['{compute_domains.DRIVER}']"
OF_NVIDIA: Mapping[str, DeviceClassObject] = {
    GPU_CLASS: _of_nvidia(
        GPU_CLASS, GPU_CLASS, f"device.attributes['{GPU_CLASS}'].type == 'gpu'", "nvidia.com/gpu"
    ),
    CHANNEL_CLASS: _of_nvidia(
        CHANNEL_CLASS, compute_domains.DRIVER, f"{_CHANNELS}.type == 'channel' && {_CHANNELS}.id == 0"
    ),
}
"""The DeviceClasses that NVIDIA's chart makes, where the input lacks them."""

_FLAT = (f"{GROUP}/v1beta1", f"{GROUP}/v1alpha3")
_VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta2", *_FLAT)
"""Versions that are read. The versions of `_FLAT` have other fields, and older versions have other kinds."""


@dataclass(slots=True)
class DeviceObjects:
    """The documents of these kinds, and what they say once all are taken in (`read`)."""

    slices: list[tuple[Document, ResourceSlice]] = field(default_factory=list)
    classes: list[tuple[Document, DeviceClassObject]] = field(default_factory=list)
    rules: list[tuple[Document, DeviceTaintRule]] = field(default_factory=list)
    claims: list[tuple[Document, ResourceClaim]] = field(default_factory=list)
    templates: list[tuple[Document, ResourceClaimTemplate]] = field(default_factory=list)
    channels: list[tuple[Document, ResourceClaimTemplate]] = field(default_factory=list)
    """Of ComputeDomains."""

    def take(self, document: Document) -> bool:
        """Take a document in. Return False if it is of another kind.

        Raises:
            Malformed: The document does not have the shape of its kind.
        """
        if document.group == GROUP and document.value["apiVersion"] not in _VERSIONS:
            return False
        match document.group, document.kind:
            case str(group), "ResourceSlice" if group == GROUP:
                self.slices.append((document, _with_name(document, ResourceSlice)))
            case str(group), "DeviceClass" if group == GROUP:
                self.classes.append((document, _with_name(document, DeviceClassObject)))
            case str(group), "DeviceTaintRule" if group == GROUP:
                self.rules.append((document, _with_name(document, DeviceTaintRule)))
            case str(group), "ResourceClaim" if group == GROUP:
                claim = _with_name(document, ResourceClaim)
                _check(document, claim.spec, "spec")
                self.claims.append((document, claim))
            case str(group), "ResourceClaimTemplate" if group == GROUP:
                template = _with_name(document, ResourceClaimTemplate)
                if "devices" in (document.value.get("spec") or ()):
                    raise document.malformed(
                        "spec.devices: expected in spec.spec, which a claim has as its spec"
                    )
                _check(document, template.spec.spec, "spec.spec")
                self.templates.append((document, template))
            case str(group), "ComputeDomain" if group == compute_domains.API_GROUP:
                self.channels.append((document, _channel(document)))
            case _:
                return False
        return True

    def twice(self) -> Iterator[Malformed]:
        """Yield the objects of one kind and name that are given twice."""
        seen = set[tuple[str, Key]]()
        every: Iterable[tuple[Document, _Object]] = [
            *self.slices,
            *self.classes,
            *self.rules,
            *self.claims,
            *self.templates,
        ]
        for document, item in every:
            key = (document.kind, _key(item.metadata))
            if key in seen:
                yield document.malformed("is given twice")
            seen.add(key)

    def read(self, settings: Settings) -> Devices:
        """Return what all documents say together."""
        slices = Slices(settings)
        classes_by_name = {item.metadata.name: item for _, item in self.classes}
        classes = {**OF_NVIDIA, **classes_by_name}
        for name, item in classes.items():
            slices.see_class(name, item)
        for _, resource_slice in self.slices:
            slices.see_slice(resource_slice.metadata.name, resource_slice)
        for _, rule in self.rules:
            slices.see_rule(rule.metadata.name, rule)
        claims = Claims(slices.resource_of, lambda: slices.roundings)
        holdings, specs = list[DeviceClaim](), dict[Key, ClaimSpec]()
        allocated = set[Key]()
        for _, claim in self.claims:
            meta, key = claim.metadata, _key(claim.metadata)
            devices = held_by(claim)
            uid = meta.uid or templates.uid_of("ResourceClaim", *key)
            holdings += [DeviceClaim(uid, *devices)] if devices[0] else []
            allocated |= {key} if claim.status.allocation is not None else set()
            if (meta.annotations or {}).get(EXTENDED) != "true":
                of_a_pod = any(owner.controller for owner in meta.owner_references or ())
                unallocated = None if of_a_pod else claim.status.allocation is None
                specs[key] = claim.spec
                claims.see("/".join(key), claim.spec, unallocated=unallocated)
        of_templates = {_key(item.metadata): item.spec.spec for _, item in [*self.channels, *self.templates]}
        allocated_devices = frozenset(device for claim in holdings for device in claim.devices)
        published = [resource_slice for _, resource_slice in self.slices]
        counts = DeviceCounts(classes, published, slices.resource_of, allocated_devices)
        matching = MatchingDevices(classes, published, slices.resource_of)
        return Devices(
            slices,
            claims,
            counts,
            matching,
            tuple(holdings),
            specs,
            of_templates,
            frozenset(classes_by_name),
            allocated,
        )


_Object = ResourceSlice | DeviceClassObject | DeviceTaintRule | ResourceClaim | ResourceClaimTemplate


@dataclass(slots=True)
class Devices:
    """The devices of a cluster, and the claims of its pods."""

    slices: Slices
    claims: Claims
    counts: DeviceCounts
    matching: MatchingDevices
    held: tuple[DeviceClaim, ...]
    specs: dict[Key, ClaimSpec]
    """What claims ask for, including the claims that are made here from templates."""
    templates: Mapping[Key, ClaimSpec]
    given_classes: frozenset[str]
    allocated: set[Key]
    missing: Counter[str] = field(default_factory=Counter)
    """Claims and templates that are not in the input, with the pods that wait and name them."""
    specs_of_pod: dict[str, tuple[ClaimSpec, ...]] = field(default_factory=dict)
    """By UID of a pod: the claims that are not allocated."""

    def offer(self, node: str) -> Offer:
        """Return what the node's slices offer as GPUs."""
        return self.slices.offer(node)

    def with_claims(self, pod: PodManifest) -> PodManifest:
        """Return the pod with the claims that Kubernetes makes for it, and without unknown claims."""
        if not pod.spec.resource_claims:
            return pod
        entries, statuses, specs = list[PodResourceClaim](), list[PodResourceClaimStatus](), list[ClaimSpec]()
        status_by_name = {
            made_status.name: made_status for made_status in pod.status.resource_claim_statuses or ()
        }
        for entry in pod.spec.resource_claims:
            status = status_by_name.get(entry.name)
            name = entry.resource_claim_name or (status.resource_claim_name or "" if status else "")
            if status is not None and not name:
                entries.append(entry)  # it needs none
                statuses.append(status)
            elif name := self._claim(pod, entry, name):
                entries.append(entry)
                statuses.append(PodResourceClaimStatus(entry.name, name))
                key = (pod.metadata.namespace, name)
                freed = not (pod.spec.node_name or entry.resource_claim_name)  # before its gang is planned
                specs += [self.specs[key]] if freed or key not in self.allocated else []
        self.specs_of_pod[pod.metadata.uid] = tuple(specs)
        return msgspec.structs.replace(
            pod,
            spec=msgspec.structs.replace(pod.spec, resource_claims=entries),
            status=msgspec.structs.replace(pod.status, resource_claim_statuses=statuses),
        )

    def _claim(self, pod: PodManifest, entry: PodResourceClaim, name: str) -> str:
        """Return the name of the claim for an entry of the pod; "" if it is unknown. Make it of its template,
        if it is not there."""
        namespace, template = pod.metadata.namespace, entry.resource_claim_template_name
        if (namespace, name) in self.specs:
            return name
        spec = self.templates.get((namespace, template)) if template else None
        if spec is None:
            kind = f"ResourceClaimTemplate {namespace}/{template}" if template else ""
            self.missing[kind or f"ResourceClaim {namespace}/{name}"] += not pod.spec.node_name
            return ""
        name = name or f"{pod.metadata.name}-{entry.name}"
        self.specs[namespace, name] = spec
        self.claims.see(f"{namespace}/{name}", spec)
        return name

    def with_offers(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return the nodes with the free devices that pods may ask for by claims."""
        class_names = {
            name for specs in self.specs_of_pod.values() for spec in specs for name in _classes(spec)
        }
        return tuple(self.counts.with_offers(node, class_names) for node in nodes)

    def facts(self, waiting: Sequence[str], nodes: Sequence[Node]) -> ClaimFacts:
        """Return what claims hold, and which GPUs the claims of these pods match, by the UID of the pod.

        Devices that are allocated to waiting pods are left out: they are freed before the gang is planned.
        """
        holdings = tuple(claim for claim in self.held if not claim.is_for(waiting))
        answers = ((uid, self.matching.answer(self.specs_of_pod.get(uid, ()), nodes)) for uid in waiting)
        return ClaimFacts(holdings, {uid: answer for uid, answer in answers if answer is not None})

    def notes(self, waiting: Iterable[str]) -> Iterator[str]:
        """Yield what is not known of the claims of these pods, by UID, and what is not followed in them."""
        for name, count in sorted(self.missing.items()):
            if count:
                pods = f"{count} {plural('pod', count)} {'is' if count == 1 else 'are'}"
                yield f"{name} is not in the input: {pods} planned without it. In a cluster pods wait for it"
        specs = [spec for uid in waiting for spec in self.specs_of_pod.get(uid, ())]
        class_names = {name for spec in specs for name in _classes(spec)}
        if GPU_CLASS in class_names - self.given_classes:
            yield f"DeviceClass {GPU_CLASS} is not in the input: it counts as NVIDIA's chart makes it"
        if CHANNEL_CLASS in class_names and self.counts.assumes_channels:
            yield (
                f"no ResourceSlice of {compute_domains.DRIVER} is in the input: each node with GPUs counts "
                "as having one channel of a ComputeDomain"
            )
        yield from self.counts.notes(specs)
        with_gpus = any(map(self.slices.serves_gpus, self.slices.drivers))
        if not with_gpus and self.matching.asks(specs):
            yield (
                "no ResourceSlice with GPUs is in the input: claims for GPUs are planned on the GPUs that "
                "status.allocatable of nodes counts, and with allocationMode All on none"
            )
        yield from sorted({f"{sentence} (not followed)" for sentence in self.matching.unread(specs)})


def _channel(document: Document) -> ResourceClaimTemplate:
    """Return the template that NVIDIA's controller makes for a ComputeDomain."""
    obj = templates.custom_object(document)
    value: object = obj.spec
    for step in ("channel", "resourceClaimTemplate", "name"):
        value = value.get(step) if isinstance(value, dict) else None
    if not isinstance(value, str) or not value:
        raise document.malformed("spec.channel.resourceClaimTemplate.name: expected, but not given")
    template = ResourceClaimTemplate(Metadata(name=value, namespace=obj.metadata.namespace))
    spec = msgspec.structs.replace(template.spec, spec=compute_domains.channel(obj.metadata.uid))
    return msgspec.structs.replace(template, spec=spec)


def _with_name(document: Document, shape: type[T]) -> T:
    read = shapes.convert(document, shape, as_v1(document.value))
    shapes.check_named(document, read.metadata)  # type: ignore[attr-defined]
    return read


def _check(document: Document, spec: ClaimSpec, under: str) -> None:
    """Raise Malformed if a request asks for nothing, because its fields are from another version of the
    API."""
    for number, request in enumerate(spec.devices.requests or ()):
        if (request.exactly is None) == (not request.first_available):
            fields = "deviceClassName" if document.value["apiVersion"] in _FLAT else "exactly"
            at = f"{under}.devices.requests[{number}]"
            raise document.malformed(
                f"{at}: expected one of {fields} and firstAvailable in {document.value['apiVersion']}"
            )


def as_v1(value: Object) -> Object:
    """Return an object of resource.k8s.io/v1beta1 or v1alpha3 with the fields of v1.

    There a request has its fields in itself, in place of `exactly`, and a device has them in `basic`.
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
        return {**spec, "devices": [_flat(device, "basic") for device in devices]}
    if not isinstance(devices, dict) or not isinstance(requests := devices.get("requests"), list):
        return spec
    return {**spec, "devices": {**devices, "requests": [_exactly(request) for request in requests]}}


def _flat(value: object, field: str) -> object:
    inner = value.get(field) if isinstance(value, dict) else None
    return {**value, **inner} if isinstance(value, dict) and isinstance(inner, dict) else value


def _exactly(request: object) -> object:
    if not isinstance(request, dict):
        return request
    same = {key: request[key] for key in ("name", "firstAvailable") if key in request}
    if not request.get("deviceClassName"):
        return same
    return {**same, "exactly": {key: value for key, value in request.items() if key not in same}}


def _key(meta: Metadata) -> Key:
    return meta.namespace or "default", meta.name


def _classes(spec: ClaimSpec) -> Iterator[str]:
    for request in spec.devices.requests or ():
        choices = [request.exactly] if request.exactly is not None else request.first_available or ()
        yield from (choice.device_class_name for choice in choices)
