"""From the API's bytes to `muster.dialects.objects`: lists, and events of a watch.

Events are read in two steps, the envelope first, because the object of a BOOKMARK or an ERROR is not of the
kind that is watched. A list is read in one; if one object in it can't be read, it alone is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from muster.dialects.objects import (
    ConfigMapObject,
    CustomObject,
    Metadata,
    NamespaceObject,
    NodeObject,
    PodObject,
)
from muster.dialects.podgroups import COSCHEDULING_API, KAI_API, TOPOLOGY_APIS
from muster.domain.podgroup import OURS


class Named(Protocol):
    """What all objects have."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=Named)


class Undecodable(Exception):
    """An object that does not have the shape of its kind. `key` identifies it, "" where it can't be read."""

    def __init__(self, kind: str, problem: str, name: str = "", key: str = "") -> None:
        super().__init__(f"{kind} {name or '(no name)'}: {problem}")
        self.key = key


class Status(msgspec.Struct, frozen=True):
    """The object of an ERROR event, or the body of a refusal."""

    code: int = 0
    message: str = ""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _RawList(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _OnlyMetadata(msgspec.Struct):
    metadata: Metadata = Metadata()


_event = msgspec.json.Decoder(_Event)
_raw_list = msgspec.json.Decoder(_RawList)
_only_metadata = msgspec.json.Decoder(_OnlyMetadata)
_status = msgspec.json.Decoder(Status)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. `token` is "" on the last; `unreadable` names what was left out."""

    items: list[T]
    version: str
    token: str
    unreadable: tuple[Undecodable, ...] = ()


@dataclass(frozen=True, slots=True)
class Added(Generic[T]):
    """Added or modified: for us the same, the state as it is now."""

    object: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    version: str


@dataclass(frozen=True, slots=True)
class Failed:
    status: Status


class Resource(Generic[T]):
    """A kind that is listed and watched, at the first of `paths` that is there; `optional`: none may be, as
    long as nobody installs its CRD. `select` are selectors of the list and the watch. `plural` names it in
    logs and metrics. `key` is what identifies an object to the rest of Muster: a pod's UID (a name used again
    is another pod), a node's name (a node made again is the same place)."""

    def __init__(
        self,
        kind: str,
        plural: str,
        paths: tuple[str, ...],
        shape: type[T],
        key: Callable[[Metadata], str],
        *,
        select: Mapping[str, str] = MappingProxyType({}),
        optional: bool = False,
    ) -> None:
        self.kind = kind
        self.plural = plural
        self.paths = paths
        self.key = key
        self.select = select
        self.optional = optional
        self._shape = msgspec.json.Decoder(shape)
        list_shape = msgspec.defstruct(
            f"{kind}List",
            [("metadata", _ListMeta), ("items", list[shape] | None, None)],  # type: ignore[valid-type]
        )
        self._list: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list_shape)

    def page(self, body: bytes) -> Page[T]:
        """Read one page of a list.

        Raises:
            Undecodable: it is no list at all.
        """
        try:
            read = self._list.decode(body)
            return Page(read.items or [], read.metadata.resource_version, read.metadata.continue_)
        except msgspec.DecodeError:
            return self._page_item_by_item(body)

    def event(self, line: bytes) -> Added[T] | Deleted[T] | Bookmark | Failed:
        """Read one line of a watch.

        Raises:
            Undecodable: the line or its object has another shape.
        """
        try:
            event = _event.decode(line)
            match event.type:
                case "ADDED" | "MODIFIED":
                    return Added(self._shape.decode(event.object))
                case "DELETED":
                    return Deleted(self._shape.decode(event.object))
                case "BOOKMARK":
                    return Bookmark(_only_metadata.decode(event.object).metadata.resource_version)
                case "ERROR":
                    return Failed(_status.decode(event.object))
        except msgspec.DecodeError as problem:
            raise self._undecodable_event(line, str(problem)) from problem
        raise Undecodable(self.kind, f"unknown event type {event.type!r}")

    def _page_item_by_item(self, body: bytes) -> Page[T]:
        try:
            raw = _raw_list.decode(body)
        except msgspec.DecodeError as problem:
            raise Undecodable(f"{self.kind}List", str(problem)) from problem
        items, unreadable = [], []
        for item in raw.items or []:
            try:
                items.append(self._shape.decode(item))
            except msgspec.DecodeError as problem:
                unreadable.append(self._undecodable(item, str(problem)))
        return Page(items, raw.metadata.resource_version, raw.metadata.continue_, tuple(unreadable))

    def _undecodable_event(self, line: bytes, problem: str) -> Undecodable:
        try:
            return self._undecodable(_event.decode(line).object, problem)
        except msgspec.DecodeError:
            return Undecodable(self.kind, problem)

    def _undecodable(self, item: msgspec.Raw, problem: str) -> Undecodable:
        try:
            metadata = _only_metadata.decode(item).metadata
        except msgspec.DecodeError:
            return Undecodable(self.kind, problem)
        name = f"{metadata.namespace}/{metadata.name}".strip("/")
        return Undecodable(self.kind, problem, name, self.key(metadata))


def pods() -> Resource[PodObject]:
    """Pods of all namespaces and phases: finished ones must be seen as finished."""
    return Resource("Pod", "pods", ("/api/v1/pods",), PodObject, _uid)


def nodes() -> Resource[NodeObject]:
    return Resource("Node", "nodes", ("/api/v1/nodes",), NodeObject, lambda metadata: metadata.name)


def namespaces() -> Resource[NamespaceObject]:
    """Namespaces, of which the labels count: terms of pod affinity select by them."""
    path = "/api/v1/namespaces"
    return Resource("Namespace", "namespaces", (path,), NamespaceObject, lambda metadata: metadata.name)


def config_maps(namespace: str, name: str = "") -> Resource[ConfigMapObject]:
    """The ConfigMaps of a namespace, or the one of this name, whether or not it is there."""
    select = {"fieldSelector": f"metadata.name={name}"} if name else {}
    plural = f"configmaps {namespace}/{name}".rstrip("/")
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return Resource("ConfigMap", plural, (path,), ConfigMapObject, config_map_key, select=select)


def config_map_key(metadata: Metadata) -> str:
    return f"{metadata.namespace}/{metadata.name}"


def kai_pod_groups() -> Resource[CustomObject]:
    """PodGroups of scheduling.run.ai: in our version, or in KAI's where the CRD is KAI's own."""
    return _custom("PodGroup", "podgroups", (OURS, KAI_API), _uid)


def coscheduling_pod_groups() -> Resource[CustomObject]:
    return _custom("PodGroup", "podgroups", (COSCHEDULING_API,), _uid)


def topologies() -> Resource[CustomObject]:
    """KAI's Topology objects, of no namespace."""
    return _custom("Topology", "topologies", TOPOLOGY_APIS, lambda metadata: metadata.name)


def _custom(
    kind: str, plural: str, versions: tuple[str, ...], key: Callable[[Metadata], str]
) -> Resource[CustomObject]:
    group = versions[0].partition("/")[0]
    paths = tuple(f"/apis/{version}/{plural}" for version in versions)
    return Resource(kind, f"{plural}.{group}", paths, CustomObject, key, optional=True)


def _uid(metadata: Metadata) -> str:
    return metadata.uid
