"""Find the GPUs that claims match, in place of the shim, which asks the in-tree allocator on a cluster.

Selectors are followed as far as `dialects.devices.selectors` reads them. Others are left out, and a note says
so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from muster.adapters.kube.served import OF_CLASS
from muster.dialects.devices import selectors
from muster.dialects.devices.compute_domains import CHANNEL_CLASS, DRIVER
from muster.dialects.devices.objects import (
    ClaimSpec,
    DeviceClassObject,
    DeviceSelector,
    ExactRequest,
    Request,
    ResourceSlice,
    SliceDevice,
    SubRequest,
)
from muster.dialects.devices.selectors import Term, UnreadableSelectorError, Value
from muster.domain.node import Device, Node, Resources
from muster.domain.pod import Pod
from muster.gangs.messages.calls import InTreeAnswer

Attributes = Mapping[tuple[str, str], Value]
_Way = ExactRequest | SubRequest
"""One way to serve a request."""

_encoder = msgspec.json.Encoder()


class MatchingDevices:
    """The GPUs of a cluster with their attributes. `resource_of` returns the GPU resource of a class."""

    def __init__(
        self,
        classes: Mapping[str, DeviceClassObject],
        slices: Iterable[ResourceSlice],
        resource_of: Callable[[str], str],
    ) -> None:
        self._classes = classes
        self._resource_of = resource_of
        self._attributes: dict[Device, Attributes] = {}
        for resource_slice in slices:
            driver, pool = resource_slice.spec.driver, resource_slice.spec.pool.name
            for device in resource_slice.spec.devices or ():
                attributes = selectors.attributes(driver, device)
                self._attributes[Device(driver, pool, device.name)] = attributes
        self._answers: dict[bytes, InTreeAnswer] = {}

    def answer(self, specs: Sequence[ClaimSpec], nodes: Iterable[Node]) -> InTreeAnswer | None:
        """Return which GPUs of the nodes the claims of a pod match; None if they ask for no GPUs."""
        requests = list(self._of_gpus(specs))
        if not requests:
            return None
        key = _encoder.encode(requests)
        if key not in self._answers:
            nodes_with_devices = [node for node in nodes if node.devices]
            ranks = range(max(map(len, requests)))
            ways = ([ways_of_request[: rank + 1][-1] for ways_of_request in requests] for rank in ranks)
            self._answers[key] = InTreeAnswer(
                devices=tuple(self._matching(exact_ways, nodes_with_devices) for exact_ways in ways)
            )
        return self._answers[key]

    def asks(self, specs: Iterable[ClaimSpec]) -> bool:
        """Return whether some of these claims ask for GPUs."""
        return any(self._of_gpus(specs))

    def unread(self, specs: Iterable[ClaimSpec]) -> Iterator[str]:
        """Yield what is not followed in requests for GPUs: tolerations, and selectors that can't be read."""
        for ways in self._of_gpus(specs):
            for way in ways:
                if way.tolerations:
                    yield f"DeviceClass {way.device_class_name}: tolerations in claims for its devices"
                try:
                    read_selectors(way.selectors)
                except UnreadableSelectorError as error:
                    yield str(error)

    def _of_gpus(self, specs: Iterable[ClaimSpec]) -> Iterator[list[_Way]]:
        """Yield the ways of each request for GPUs."""
        for device_request in (
            device_request for spec in specs for device_request in spec.devices.requests or ()
        ):
            ways: list[_Way] = (
                [device_request.exactly]
                if device_request.exactly
                else [*(device_request.first_available or ())]
            )
            watches = device_request.exactly is not None and device_request.exactly.admin_access
            if ways and not watches and any(self._resource_of(way.device_class_name) for way in ways):
                yield ways

    def _matching(self, ways: Iterable[_Way], nodes: Iterable[Node]) -> dict[str, frozenset[str]]:
        """Return node → the names of its GPUs that all of these match."""
        terms = [*(term for way in ways for term in self._terms(way))]
        return {node.name: frozenset(self._names(node, terms)) for node in nodes}

    def _terms(self, way: _Way) -> tuple[Term, ...]:
        of_class = self._classes.get(way.device_class_name)
        terms = tuple[Term, ...]()
        for device_selectors in (of_class.spec.selectors if of_class is not None else None, way.selectors):
            try:
                terms += read_selectors(device_selectors)
            except UnreadableSelectorError:
                continue
        return terms

    def _names(self, node: Node, terms: Sequence[Term]) -> Iterator[str]:
        for gpu, device in enumerate(node.devices):
            if device is None or not node.untainted >> gpu & 1:
                continue
            if selectors.satisfied(terms, device.driver, self._attributes[device]):
                yield str(device)


def read_selectors(device_selectors: Iterable[DeviceSelector] | None) -> tuple[Term, ...]:
    """Return the terms of these selectors.

    Raises:
        UnreadableSelectorError: One is of another form.
    """
    return selectors.read(
        selector.cel.expression for selector in device_selectors or () if selector.cel is not None
    )


# --- devices that are no GPUs --------------------------------------------------------------------


class DeviceCounts:
    """The devices of each DeviceClass on each node.

    `resource_of` returns the GPU resource of a class, "" for none. `taken` are the devices that claims hold.
    """

    def __init__(
        self,
        classes: Mapping[str, DeviceClassObject],
        slices: Sequence[ResourceSlice],
        resource_of: Callable[[str], str],
        allocated_devices: frozenset[Device],
    ) -> None:
        self._resource_of = resource_of
        self._names = {
            name: device_class.spec.extended_resource_name or OF_CLASS + name
            for name, device_class in classes.items()
        }
        self._devices: dict[str, list[tuple[str, Device]]] = {}
        """DeviceClass → its devices that can be counted, each with its node. Unreadable ones are left out."""
        node_devices = list(_on_nodes(slices))
        for name, device_class in classes.items():
            if not resource_of(name) and (terms := _terms(device_class)) is not None:
                self._devices[name] = [
                    (node, device)
                    for node, device, slice_device in node_devices
                    if _is_of(terms, device.driver, slice_device)
                ]
        self._free = {
            name: Counter(node for node, device in devices if device not in allocated_devices)
            for name, devices in self._devices.items()
        }
        self.assumes_channels = not any(device_class.spec.driver == DRIVER for device_class in slices)
        """Whether each node with GPUs counts as having a channel, since the input has no slice of them."""

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
            of_gpus = (name for name in classes if self._resource_of(name) in node.gpu_resources)
            counts |= dict.fromkeys((OF_CLASS + name for name in of_gpus), len(node.devices))
        if not counts:
            return node
        return replace(node, allocatable=_with(node.allocatable, counts | dict(node.allocatable.others)))

    def asking(self, pod: Pod, specs: Iterable[ClaimSpec], only_devices: bool) -> Pod:
        """Return the pod with the devices of its claims as resources. With `only_devices` its GPUs must be
        devices too: a node whose GPUs a device plugin serves is not for its claims.
        """
        amounts = Counter(dict(pod.resources.others))
        for request in _requests(specs):
            exact = request.exactly
            if exact is not None and self._is_counted(request):
                amounts[self._names[exact.device_class_name]] += exact.count
            elif exact is not None and only_devices and self._resource_of(exact.device_class_name):
                amounts[OF_CLASS + exact.device_class_name] += exact.count
        return replace(pod, resources=_with(pod.resources, amounts))

    def notes(self, specs: Iterable[ClaimSpec]) -> Iterator[str]:
        """Yield what is not followed in these claims."""
        yield from sorted({note for request in _requests(specs) if (note := self._note(request))})

    def _is_counted(self, request: Request) -> bool:
        exact = request.exactly
        if exact is None or exact.admin_access or exact.allocation_mode != "ExactCount":
            return False
        name = exact.device_class_name
        return bool(self._devices.get(name)) or (self.assumes_channels and name == CHANNEL_CLASS)

    def _note(self, request: Request) -> str:
        """Return why a request for devices that are no GPUs is not followed, or not wholly; "" if it is."""
        exact = request.exactly
        choices = [exact] if exact is not None else request.first_available or ()
        names = sorted({exact_request.device_class_name for exact_request in choices})
        if not names or any(map(self._resource_of, names)) or (exact is not None and exact.admin_access):
            return ""
        why = f"DeviceClass {names[0]}: claims for its devices are not followed, since "
        if names[0] not in self._names:
            why += "it is not in the input"
        elif names[0] not in self._devices:
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


def _requests(specs: Iterable[ClaimSpec]) -> Iterator[Request]:
    return (request for spec in specs for request in spec.devices.requests or ())


def _with(resources: Resources, amounts: Mapping[str, int]) -> Resources:
    return replace(resources, others=tuple(sorted(amounts.items())))


def _terms(device_class: DeviceClassObject) -> tuple[Term, ...] | None:
    try:
        return read_selectors(device_class.spec.selectors)
    except UnreadableSelectorError:
        return None


def _is_of(terms: Iterable[Term], driver: str, device: SliceDevice) -> bool:
    return selectors.satisfied(terms, driver, selectors.attributes(driver, device))


def _on_nodes(slices: Sequence[ResourceSlice]) -> Iterator[tuple[str, Device, SliceDevice]]:
    """Yield the devices of nodes that claims can have, each with its node. Devices that share counters can't
    be counted."""
    newest: dict[tuple[str, str], int] = {}
    for resource_slice in slices:
        pool = (resource_slice.spec.driver, resource_slice.spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), resource_slice.spec.pool.generation)
    for resource_slice in slices:
        driver, pool_name, node = (
            resource_slice.spec.driver,
            resource_slice.spec.pool.name,
            resource_slice.spec.node_name,
        )
        if not node or resource_slice.spec.pool.generation < newest[driver, pool_name]:
            continue
        for device in resource_slice.spec.devices or ():
            if not (any(map(selectors.keeps_away, device.taints or ())) or device.consumes_counters):
                yield node, Device(driver, pool_name, device.name), device
