"""Create the pods that controllers would create: Jobs, StatefulSets, Deployments, PyTorchJobs and similar
ones.

Names are those of the controllers if they are fixed (StatefulSet, indexed Job, kubeflow). If a controller
ends a name at random, the end here is made of letters that count up. So the same file gives the same names,
and no end is read as a rank.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from muster.adapters.files import shapes
from muster.adapters.files.shapes import PodManifest, Template, Workload
from muster.adapters.files.sources import Document
from muster.dialects.kinds.description import MAX_PODS, NewPod, Owner, Role, letters
from muster.dialects.kinds.table import KINDS
from muster.dialects.objects import CustomObject, Metadata, OwnerReference
from muster.dialects.pods.pods import TEMPLATE_HASH

_API_VERSIONS = {"Job": "batch/v1", "StatefulSet": "apps/v1"}
"""Of the objects that a controller makes first, and whose pods they are."""


@dataclass(frozen=True, slots=True)
class Made:
    """A controller's pods, or `why_none`. `ordered` is whether each is created only when the one before it
    runs.
    """

    pods: tuple[PodManifest, ...] = ()
    why_none: str = ""
    ordered: bool = False


def expand(document: Document) -> Made | None:
    """Return the pods that an object stands for; None if its kind creates no pods that are read.

    Raises:
        Malformed: A field is wrong. The message names it.
    """
    maker = MAKERS.get((document.group, document.kind))
    return maker(document) if maker is not None else None


def uid_of(kind: str, namespace: str, name: str) -> str:
    """Return a UID for an object that has none, the same in every run."""
    return str(uuid.uuid5(_NAMESPACE, f"{kind}/{namespace}/{name}"))


_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://gpu.topology/files")


# --- the controllers -------------------------------------------------------------------------------


def _of_kind(document: Document) -> Made:
    """Return the pods of a kind of job, as the table of kinds describes them."""
    obj = custom_object(document)
    owner = Owner.of(document.kind, obj)
    described = KINDS[document.kind].describe(owner)
    for cause in owner.spec.causes:
        if cause.field.startswith(("spec", "status")):
            got = f", got {cause.value}" if cause.value else ", but not given"
            raise document.malformed(f"{cause.field}: expected {cause.expected}{got}")
    templates = [_template(document, role) for role in described.roles]
    if described.idle:
        return Made(why_none=described.idle)
    of_owner = _Owner(document.kind, owner.name, obj.metadata.namespace, obj.metadata.uid, owner.api_version)
    pods = (
        _make_pod(role.pod(copy, number), template, of_owner)
        for copy in range(described.copies)
        for role, template in zip(described.roles, templates, strict=True)
        for number in range(role.count)
    )
    return Made(tuple(pods), ordered=described.ordered)


def _template(document: Document, role: Role) -> Template:
    if role.template is None:
        raise document.malformed(f"{role.path}: expected, but not given")
    template = shapes.convert(document, Template, role.template, role.path)
    check_template(document, template, role.path)
    return template


def _make_pod(new: NewPod, template: Template, owner: _Owner) -> PodManifest:
    if new.controller is not None:
        kind, name = new.controller
        uid = uid_of(kind, owner.namespace, name)
        owner = _Owner(kind, name, owner.namespace, uid, _API_VERSIONS[kind])
    return _pod(new.name, _with_additions(template, new), owner, new.labels, new.annotations)


def _with_additions(template: Template, new: NewPod) -> Template:
    """Return the template with what the controller adds to the spec of this pod."""
    spec = template.spec
    if new.node_selector or new.tolerations:
        spec = msgspec.structs.replace(
            spec,
            node_selector={**(spec.node_selector or {}), **new.node_selector},
            tolerations=[*(spec.tolerations or ()), *new.tolerations],
        )
    if new.containers or new.init_containers:
        spec = msgspec.structs.replace(
            spec,
            containers=[*(spec.containers or ()), *new.containers],
            init_containers=[*(spec.init_containers or ()), *new.init_containers],
        )
    return template if spec is template.spec else msgspec.structs.replace(template, spec=spec)


def custom_object(document: Document) -> CustomObject:
    """Return the document as an object with a name, a namespace and a UID.

    Raises:
        Malformed: it has no name, or one that the API server refuses.
    """
    obj = shapes.convert(document, CustomObject)
    shapes.check_named(document, obj.metadata)
    namespace = obj.metadata.namespace or "default"
    uid = obj.metadata.uid or uid_of(document.kind, namespace, obj.metadata.name)
    meta = msgspec.structs.replace(obj.metadata, namespace=namespace, uid=uid)
    return msgspec.structs.replace(obj, metadata=meta)


def _replicas(document: Document) -> Made:
    """Return the pods of a Deployment, ReplicaSet or ReplicationController: equal pods with random names."""
    workload, count = _workload(document)
    stem = workload.metadata.name
    owner = _owner(document, workload.metadata)
    labels: dict[str, str] = {}
    if document.kind == "Deployment":
        # Its pods' owner is a ReplicaSet, named by a hash of the template.
        digest = hashlib.sha256(repr(workload.spec.template).encode()).digest()
        labels[TEMPLATE_HASH] = letters(int.from_bytes(digest[:8]), 9)
        stem = f"{stem}-{labels[TEMPLATE_HASH]}"
        owner = _Owner("ReplicaSet", stem, owner.namespace, uid_of("ReplicaSet", owner.namespace, stem))
    return Made(
        tuple(_pod(f"{stem}-{letters(i)}", workload.spec.template, owner, labels) for i in range(count))
    )


Maker = Callable[[Document], Made]

MAKERS: Mapping[tuple[str, str], Maker] = MappingProxyType(
    {
        ("apps", "Deployment"): _replicas,
        ("apps", "ReplicaSet"): _replicas,
        ("", "ReplicationController"): _replicas,
        **{(kind.group, kind.kind): _of_kind for kind in KINDS.values()},
    }
)
"""(API group, kind) → what its controller would create. Other kinds are skipped: Volcano's Job, for example,
is not the Job of batch."""


# --- what they share -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Owner:
    kind: str
    name: str
    namespace: str
    uid: str
    api_version: str = "apps/v1"


def _owner(document: Document, meta: Metadata) -> _Owner:
    namespace = meta.namespace or "default"
    return _Owner(
        document.kind,
        meta.name,
        namespace,
        meta.uid or uid_of(document.kind, namespace, meta.name),
        str(document.value["apiVersion"]),
    )


def _workload(document: Document) -> tuple[Workload, int]:
    workload = shapes.convert(document, Workload)
    shapes.check_named(document, workload.metadata)
    check_template(document, workload.spec.template, "spec.template")
    replicas = 1 if workload.spec.replicas is None else workload.spec.replicas
    return workload, _check_count(document, "spec.replicas", replicas)


def _check_count(document: Document, field: str, count: int) -> int:
    if count > MAX_PODS:
        raise document.malformed(f"{field}: expected at most {MAX_PODS:,}, got {count}")
    return count


def check_template(document: Document, template: Template, under: str) -> None:
    """Raise Malformed if the API server would refuse pods of this template; `under` is its field."""
    shapes.check_metadata(document, template.metadata, f"{under}.metadata")
    shapes.check_spec(document, template.spec, f"{under}.spec")


def _pod(
    name: str,
    template: Template,
    owner: _Owner,
    labels: Mapping[str, str] = MappingProxyType({}),
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> PodManifest:
    return PodManifest(
        metadata=Metadata(
            name=name,
            namespace=owner.namespace,
            labels={**(template.metadata.labels or {}), **labels},
            annotations={**(template.metadata.annotations or {}), **annotations},
            owner_references=[
                OwnerReference(owner.api_version, owner.uid, owner.kind, owner.name, controller=True)
            ],
        ),
        spec=template.spec,
    )
