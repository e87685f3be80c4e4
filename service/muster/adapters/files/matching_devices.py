"""Find the GPUs that claims match, in place of the shim, which asks the in-tree allocator on a cluster.

Selectors are followed as far as `dialects.devices.selectors` reads them. Others are left out, and a note says
so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from muster.dialects.devices import selectors
from muster.dialects.devices.objects import (
    ClaimSpec,
    DeviceClassObject,
    DeviceSelector,
    ExactRequest,
    ResourceSlice,
    SubRequest,
)
from muster.dialects.devices.selectors import Term, UnreadableSelectorError, Value
from muster.domain.node import Device, Node
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
