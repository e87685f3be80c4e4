"""From the API's bytes to `muster.dialects.objects`: lists, and events of a watch.

Events and lists are read in two steps. The envelope comes first, because the object of a BOOKMARK or an ERROR
does not have the watched kind. Of a list, only unreadable objects are left out. JSON that is nested too
deeply for the decoder, or has broken escapes, is read again after `bound_depth`. A bound pod with fields of
another shape is read without these fields (`salvage`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from muster.adapters.kube.lenient import bound_depth, salvage
from muster.dialects.devices.objects import (
    DeviceClassObject,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from muster.dialects.gangs import native
from muster.dialects.gangs.podgroups import APIS, TOPOLOGY_APIS
from muster.dialects.kinds.table import KINDS, MAKERS
from muster.dialects.objects import (
    ConfigMapObject,
    CsiDriver,
    CustomObject,
    Identity,
    Metadata,
    NamespaceObject,
    NodeObject,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodObject,
    StorageClass,
    WorkloadObject,
)
from muster.dialects.pods import bounds, requests
from muster.dialects.settings import DEFAULTS, DialectSettings
from muster.domain.pod import COMPOSITE

log = structlog.get_logger(__name__)


class NamedObject(Protocol):
    """An object of any kind."""

    @property
    def metadata(self) -> Metadata:
        """Return the object's metadata, which every kind has."""


T = TypeVar("T", bound=NamedObject)
S = TypeVar("S")

LARGE_BYTES = 16 * 1024
"""Number of bytes of JSON up to which no part of a pod is cut off, because a small pod is read quickly."""
MAX_FREE_BYTES = 256 * 1024
"""Largest number of bytes of JSON in `spec` and `status` of a custom object. They are kept, and are ten times
as large in memory."""
MAX_JOB_BYTES = 2 * 1024 * 1024
"""Largest number of bytes of a job, which is kept as JSON: more than the API server stores. Pods of a job
wait until the job is read."""

Unreadable = (msgspec.DecodeError, RecursionError, MemoryError, ValueError, OverflowError)
"""Exceptions of reading JSON. UnicodeDecodeError is a ValueError."""


class Undecodable(Exception):
    """An object that does not have the shape of its kind. `key` identifies it; "" if the key can't be read.
    `metadata` has the readable metadata."""

    def __init__(self, kind: str, problem: str, metadata: Identity = Identity(), key: str = "") -> None:  # noqa: B008
        super().__init__(f"{kind} {full_name(metadata) or '(no name)'}: {problem}")
        self.key = key
        self.metadata = metadata


class ApiStatus(msgspec.Struct, frozen=True):
    """The object of an ERROR event, or the body of a refusal."""

    code: int = 0
    message: str = ""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _RawList(msgspec.Struct, rename="camel"):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None
    api_version: str = ""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _OnlyMetadata(msgspec.Struct):
    metadata: Identity = Identity()


_event = msgspec.json.Decoder(_Event)
_raw_list = msgspec.json.Decoder(_RawList)
_only_metadata = msgspec.json.Decoder(_OnlyMetadata)
_status = msgspec.json.Decoder(ApiStatus)
_encoder = msgspec.json.Encoder()


def _read(decoder: msgspec.json.Decoder[S], text: bytes | msgspec.Raw) -> S:
    """Decode `text`. If that fails, decode the result of `bound_depth`.

    Raises:
        Unreadable: it has another shape.
    """
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except Unreadable:
        return decoder.decode(bound_depth(bytes(text)))


@dataclass(frozen=True, slots=True)
class ListPage(Generic[S]):
    """One page of a list. `token` is "" on the last page. `unreadable` are the objects that were left out."""

    items: list[S]
    version: str
    token: str
    unreadable: tuple[Undecodable, ...] = ()
    api_version: str = ""


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """An object in its present state; None if it is gone. A bookmark has the version of the watch, and no
    name."""

    metadata: Identity
    object: T | None = None


_name: Callable[[Identity], str] = attrgetter("name")
_uid: Callable[[Identity], str] = attrgetter("uid")


@dataclass(eq=False)
class Resource(Generic[T]):
    """A kind of objects that is listed and watched."""

    kind: str
    plural: str
    """Its name in logs and metrics."""
    paths: tuple[str, ...]
    """Paths of its versions in the API. The first that exists is used."""
    shape: type[T]
    key: Callable[[Identity], str]
    """Returns the identity of an object for the rest of Muster.

    For a pod it is the UID, because a pod of the same name is another pod. For a node it is the name, because
    a new node of the same name is the same place.
    """
    select: Mapping[str, str] = field(default_factory=dict)
    """Selectors of the list and the watch."""
    optional: bool = False
    """Whether all paths may be missing until the CRD is installed."""
    by_right: bool = False
    """Whether the account may lack the right to read it."""

    def __post_init__(self) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(self.shape)

    @property
    def api_version(self) -> str:
        """Return the API version of the first path."""
        return api_version_of(self.paths[0])

    def page(self, body: bytes) -> ListPage[T]:
        """Read one page of a list. Objects that can't be read completely are left out.

        Raises:
            Undecodable: it is no list at all.
        """
        raw = self.raw_page(body)
        items, unreadable = [], []
        for item in raw.items:
            try:
                items.append(self.with_version(self.item(item, in_part=False), raw.api_version))
            except Undecodable as problem:
                unreadable.append(problem)
        return ListPage(items, raw.version, raw.token, tuple(unreadable))

    def raw_page(self, body: bytes) -> ListPage[msgspec.Raw]:
        """Take one page of a list apart, with its objects still encoded.

        Raises:
            Undecodable: it is no list at all.
        """
        try:
            raw = _read(_raw_list, body)
        except Unreadable as problem:
            raise Undecodable(f"{self.kind}List", str(problem)) from problem
        meta = raw.metadata
        return ListPage(raw.items or [], meta.resource_version, meta.continue_, api_version=raw.api_version)

    def with_version(self, item: T, api_version: str) -> T:
        """Return an item of a list, with the version of the list if the item states none."""
        return item

    def item(self, text: bytes | msgspec.Raw, *, in_part: bool = True) -> T:
        """Read one object. `in_part`: read a bound pod even if some of its fields can't be read.

        Raises:
            Undecodable: it has another shape, or is too large.
        """
        try:
            return self._item(text, in_part)
        except Unreadable as problem:
            raise self._undecodable(text, str(problem)) from problem

    def event(self, line: bytes) -> ObjectChange[T] | ApiStatus:
        """Read one line of a watch; the API server ends the watch with a status.

        Raises:
            Undecodable: the line or its object has another shape.
        """
        try:
            event = _read(_event, line)
            match event.type:
                case "ADDED" | "MODIFIED":
                    item = self.item(event.object)
                    return ObjectChange(item.metadata, item)
                case "DELETED" | "BOOKMARK":  # whatever shape the rest of it has
                    return ObjectChange(_read(_only_metadata, event.object).metadata)
                case "ERROR":
                    return _read(_status, event.object)
        except Unreadable as problem:
            raise Undecodable(self.kind, str(problem)) from problem
        raise Undecodable(self.kind, f"unknown event type {event.type!r}")

    def _item(self, text: bytes | msgspec.Raw, in_part: bool) -> T:
        return _read(self._decoder, text)

    def _undecodable(self, text: bytes | msgspec.Raw, problem: str) -> Undecodable:
        try:
            metadata = _read(_only_metadata, text).metadata
        except Unreadable:
            metadata = salvage(_OnlyMetadata, bound_depth(bytes(text)))[0].metadata
        return Undecodable(self.kind, problem, metadata, self.key(metadata))


def full_name(metadata: Identity) -> str:
    """Return "namespace/name", or the name of an object without a namespace."""
    return f"{metadata.namespace}/{metadata.name}".strip("/")


@dataclass(eq=False)
class _Pods(Resource[PodObject]):
    """The pods. Only the parts that are read are kept of a large pod (`dialects.pods.bounds`)."""

    settings: DialectSettings = DEFAULTS

    def _item(self, text: bytes | msgspec.Raw, in_part: bool) -> PodObject:
        try:
            pod = super()._item(text, in_part)
        except Unreadable as problem:  # a bound pod takes its GPUs anyway
            pod, lost_fields = salvage(PodObject, bound_depth(bytes(text)))
            if not (in_part and pod.metadata.uid and pod.spec.node_name):
                raise
            paths = [field.path for field in lost_fields[:4]]
            log.warning("bound pod read in part", pod=full_name(pod.metadata), lost=paths, error=str(problem))
        if len(text) > LARGE_BYTES:
            pod = bounds.cut_to_limits(pod, self.settings)
            if pod.spec.node_name:  # summed up already here, on the thread that decodes it, and remembered
                requests.read("", pod.spec, self.settings, pod.status)
        return pod


@dataclass(eq=False)
class _CustomResources(Resource[CustomObject]):
    """Objects with any fields, which must be neither deep nor large."""

    most_bytes: int = MAX_FREE_BYTES

    def _item(self, text: bytes | msgspec.Raw, in_part: bool) -> CustomObject:
        item = self._decoder.decode(bound_depth(bytes(text)))
        most = self.most_bytes
        if len(text) > most and len(_encoder.encode((item.spec, item.status))) > most:
            # the exact number is left out, so that a change of it is no new problem
            raise ValueError(f"spec and status have more than {most:,} bytes")
        return item

    def with_version(self, item: CustomObject, api_version: str) -> CustomObject:
        # In a list of a built-in kind, the items have no apiVersion and no kind.
        if item.api_version:
            return item
        return msgspec.structs.replace(item, api_version=api_version, kind=self.kind)


# --- what is listed and watched: a row for each kind ---------------------------------------------------


def api_version_of(path: str) -> str:
    """Return the API version in a path of the API: "v1" of /api/v1/…, "apps/v1" of /apis/apps/v1/…"""
    _, root, *parts = path.split("/")
    return parts[0] if root == "api" else "/".join(parts[:2])


def resource(
    kind: str,
    shape: type[T],
    key: Callable[[Identity], str] = _name,
    api: str = "api/v1",
    *,
    optional: bool = False,
    by_right: bool = False,
) -> Resource[T]:
    """Return a kind of one version, whose plural follows from its name."""
    plural = kind.lower() + ("es" if kind.endswith("s") else "s")
    return Resource(kind, plural, (f"/{api}/{plural}",), shape, key, optional=optional, by_right=by_right)


_STORAGE, _DRA = "apis/storage.k8s.io/v1", "apis/resource.k8s.io/v1"

NODES = resource("Node", NodeObject)
NAMESPACES = resource("Namespace", NamespaceObject)
VOLUME_CLAIMS = resource("PersistentVolumeClaim", PersistentVolumeClaim, full_name)
VOLUMES = resource("PersistentVolume", PersistentVolume)
STORAGE_CLASSES = resource("StorageClass", StorageClass, api=_STORAGE)
CSI_DRIVERS = resource("CSIDriver", CsiDriver, api=_STORAGE)
DISRUPTION_BUDGETS = resource(
    "PodDisruptionBudget", PodDisruptionBudget, full_name, "apis/policy/v1", optional=True, by_right=True
)
RESOURCE_SLICES = resource("ResourceSlice", ResourceSlice, api=_DRA, optional=True)
DEVICE_CLASSES = resource("DeviceClass", DeviceClassObject, api=_DRA, optional=True)
DEVICE_TAINT_RULES = resource("DeviceTaintRule", DeviceTaintRule, api=_DRA, optional=True)
RESOURCE_CLAIMS = resource("ResourceClaim", ResourceClaim, _uid, _DRA, optional=True)
RESOURCE_CLAIM_TEMPLATES = resource("ResourceClaimTemplate", ResourceClaimTemplate, _uid, _DRA, optional=True)
"""Only captures list these."""


def pods(settings: DialectSettings = DEFAULTS) -> Resource[PodObject]:
    """Return pods of all namespaces and phases, because finished pods must be seen as finished."""
    return _Pods("Pod", "pods", ("/api/v1/pods",), PodObject, _uid, settings=settings)


def config_maps(namespace: str, name: str = "") -> Resource[ConfigMapObject]:
    """Return the ConfigMaps of a namespace, or only the ConfigMap of this name, even if it does not exist."""
    select = {"fieldSelector": f"metadata.name={name}"} if name else {}
    plural = f"configmaps {namespace}/{name}".rstrip("/")
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return Resource("ConfigMap", plural, (path,), ConfigMapObject, full_name, select=select)


def pod_groups() -> tuple[Resource[CustomObject], ...]:
    """Return the PodGroups of each API. Those of scheduling.run.ai are watched in KAI's version if the CRD is
    KAI's own. Kubernetes' own are not read if the account lacks the right, as with older manifests."""
    return tuple(
        _custom_resource("PodGroup", "podgroups", versions, _uid, by_right=versions is native.APIS)
        for versions in APIS
    )


def jobs(kind: str) -> Resource[CustomObject]:
    """Return the objects of one kind of job, if it is served and the account may read it."""
    job_kind = KINDS[kind]
    versions = tuple(f"{job_kind.group}/{version}" for version in job_kind.versions)
    kind, plural = job_kind.kind, job_kind.plural
    return _custom_resource(kind, plural, versions, full_name, by_right=True, most_bytes=MAX_JOB_BYTES)


def makers(kind: str) -> Resource[CustomObject]:
    """Return the objects that make jobs: RayJobs and TrainJobs."""
    group, versions = MAKERS[kind]
    paths = tuple(f"{group}/{version}" for version in versions)
    plural = f"{kind.lower()}s"
    return _custom_resource(kind, plural, paths, full_name, by_right=True, most_bytes=MAX_JOB_BYTES)


def _custom_resource(
    kind: str,
    plural: str,
    versions: tuple[str, ...],
    key: Callable[[Identity], str],
    *,
    by_right: bool = False,
    most_bytes: int = MAX_FREE_BYTES,
) -> Resource[CustomObject]:
    name = f"{plural}.{versions[0].partition('/')[0]}"
    paths = tuple(f"/apis/{version}/{plural}" for version in versions)
    return _CustomResources(
        kind, name, paths, CustomObject, key, optional=True, by_right=by_right, most_bytes=most_bytes
    )


WORKLOADS = Resource(
    "Workload",
    "workloads.scheduling.k8s.io",
    tuple(f"/apis/{version}/workloads" for version in native.APIS),
    WorkloadObject,
    full_name,
    optional=True,
    by_right=True,
)
TOPOLOGIES = _custom_resource("Topology", "topologies", TOPOLOGY_APIS, _name)
"""KAI's Topology objects, which have no namespace."""
COMPOSITE_POD_GROUPS = _custom_resource(COMPOSITE, "compositepodgroups", native.APIS, _uid, by_right=True)
