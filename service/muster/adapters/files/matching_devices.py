"""Find the GPUs that claims match, in place of the shim, which asks the in-tree allocator on a cluster.

Selectors are followed as far as `dialects.selectors` reads them. Others are left out, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from muster.dialects import dra_attributes, selectors
from muster.dialects.dra_objects import (
    ClaimSpec,
    DeviceClassObject,
    DeviceSelector,
    ExactRequest,
    ResourceSlice,
    SubRequest,
)
from muster.dialects.selectors import Term, UnreadableSelectorError, Value
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
        for each in slices:
            driver, pool = each.spec.driver, each.spec.pool.name
            for device in each.spec.devices or ():
                attributes = dra_attributes.attributes(driver, device)
                self._attributes[Device(driver, pool, device.name)] = attributes
        self._answers: dict[bytes, InTreeAnswer] = {}

    def answer(self, specs: Sequence[ClaimSpec], nodes: Iterable[Node]) -> InTreeAnswer | None:
        """Return which GPUs of the nodes the claims of a pod match; None if they ask for no GPUs."""
        asked = list(self._of_gpus(specs))
        if not asked:
            return None
        key = _encoder.encode(asked)
        if key not in self._answers:
            there = [node for node in nodes if node.devices]
            ranks = range(max(map(len, asked)))
            ways = ([some[: rank + 1][-1] for some in asked] for rank in ranks)
            self._answers[key] = InTreeAnswer(devices=tuple(self._matching(each, there) for each in ways))
        return self._answers[key]

    def asks(self, specs: Iterable[ClaimSpec]) -> bool:
        """Return whether some of these claims ask for GPUs."""
        return any(self._of_gpus(specs))

    def unread(self, specs: Iterable[ClaimSpec]) -> Iterator[str]:
        """Yield what is not followed in requests for GPUs: tolerations, and selectors that can't be read."""
        for some in self._of_gpus(specs):
            for way in some:
                if way.tolerations:
                    yield f"DeviceClass {way.device_class_name}: tolerations in claims for its devices"
                try:
                    read_selectors(way.selectors)
                except UnreadableSelectorError as error:
                    yield str(error)

    def _of_gpus(self, specs: Iterable[ClaimSpec]) -> Iterator[list[_Way]]:
        """Yield the ways of each request for GPUs."""
        for request in (each for spec in specs for each in spec.devices.requests or ()):
            some: list[_Way] = [request.exactly] if request.exactly else [*(request.first_available or ())]
            watches = request.exactly is not None and request.exactly.admin_access
            if some and not watches and any(self._resource_of(way.device_class_name) for way in some):
                yield some

    def _matching(self, ways: Iterable[_Way], nodes: Iterable[Node]) -> dict[str, frozenset[str]]:
        """Return node → the names of its GPUs that all of these match."""
        terms = [*(term for way in ways for term in self._terms(way))]
        return {node.name: frozenset(self._names(node, terms)) for node in nodes}

    def _terms(self, way: _Way) -> tuple[Term, ...]:
        of_class = self._classes.get(way.device_class_name)
        found = tuple[Term, ...]()
        for some in (of_class.spec.selectors if of_class is not None else None, way.selectors):
            try:
                found += read_selectors(some)
            except UnreadableSelectorError:
                continue
        return found

    def _names(self, node: Node, terms: Sequence[Term]) -> Iterator[str]:
        for gpu, device in enumerate(node.devices):
            if device is None or not node.untainted >> gpu & 1:
                continue
            if selectors.satisfied(terms, device.driver, self._attributes[device]):
                yield str(device)


def read_selectors(some: Iterable[DeviceSelector] | None) -> tuple[Term, ...]:
    """Return the terms of these selectors.

    Raises:
        UnreadableSelectorError: One is of another form.
    """
    return selectors.read(each.cel.expression for each in some or () if each.cel is not None)
