"""Convert documents to typed objects, or name the field that is wrong.

Nodes and pods have the shapes of `dialects.objects`, which the service decodes too. Here they are also
checked for what the API server would refuse. The other kinds are those that create pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import msgspec

from muster.adapters.files import amounts
from muster.adapters.files.problems import shown, type_name
from muster.adapters.files.sources import Document
from muster.dialects.objects import Metadata, NodeObject, PodObject, PodSpec, PodToleration
from muster.dialects.quantities import Quantity

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Quantities = dict[str, Quantity]


class _Shape(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A struct of an API object. As in `dialects.objects`, fields that it does not name are skipped."""


class Spec(PodSpec, frozen=True):
    """A pod's spec as a manifest has it: with the names of its priority class and runtime class."""

    priority_class_name: str = ""
    runtime_class_name: str = ""


class PodManifest(PodObject, frozen=True):
    """A Pod as users write it."""

    spec: Spec = Spec()


class Template(_Shape, frozen=True):
    """A pod template."""

    spec: Spec
    metadata: Metadata = Metadata()


class WorkloadSpec(_Shape, frozen=True):
    """The spec of a controller with replicas."""

    template: Template
    replicas: Count | None = None


class Workload(_Shape, frozen=True):
    """A Deployment, ReplicaSet or ReplicationController."""

    spec: WorkloadSpec
    metadata: Metadata = Metadata()


class PriorityClass(_Shape, frozen=True):
    """A PriorityClass of scheduling.k8s.io."""

    value: int
    metadata: Metadata = Metadata()
    global_default: bool | None = None


class RuntimeScheduling(_Shape, frozen=True):
    """`scheduling` of a RuntimeClass."""

    node_selector: dict[str, str] | None = None
    tolerations: list[PodToleration] | None = None


class Overhead(_Shape, frozen=True):
    """`overhead` of a RuntimeClass."""

    pod_fixed: Quantities | None = None


class RuntimeClass(_Shape, frozen=True):
    """A RuntimeClass of node.k8s.io."""

    metadata: Metadata = Metadata()
    scheduling: RuntimeScheduling | None = None
    overhead: Overhead | None = None


class Limit(_Shape, frozen=True):
    """An entry of `spec.limits` of a LimitRange."""

    type: str = ""
    default: Quantities | None = None
    default_request: Quantities | None = None
    min: Quantities | None = None
    max: Quantities | None = None
    max_limit_request_ratio: Quantities | None = None

    @property
    def bounds(self) -> bool:
        """Return whether the API server refuses pods outside it."""
        return bool(self.min or self.max or self.max_limit_request_ratio)


class LimitRangeSpec(_Shape, frozen=True):
    """`spec` of a LimitRange."""

    limits: list[Limit] | None = None


class LimitRange(_Shape, frozen=True):
    """A LimitRange of a namespace."""

    metadata: Metadata = Metadata()
    spec: LimitRangeSpec = LimitRangeSpec()

    def defaults(self) -> tuple[Quantities, Quantities]:
        """Return the limits and the requests of containers that give none."""
        limits, requests = Quantities(), Quantities()
        for limit in self.spec.limits or ():
            if limit.type == "Container":
                by_default = {**(limit.max or {}), **(limit.default or {})}
                limits |= by_default
                requests |= {**(limit.min or {}), **by_default, **(limit.default_request or {})}
        return limits, requests


# --- conversion ------------------------------------------------------------------------------------

_SAID = re.compile(r"(?P<said>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_GOT = re.compile(r"Expected `(?P<expected>[^`]*)`(?:, got `(?P<got>[^`]*)`)?(?P<range>.*)", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")
_WORDS = {"str": "string", "int": "integer", "float": "number", "array": "list", "bool": "boolean"}
_MAX_NULLS = 1000

Path = tuple[str | int, ...]


def convert(document: Document, shape: type[T], value: object = None, under: str = "") -> T:
    """Return the document, or the part `value` of it at `under`, as this shape.

    As in the API, a null counts as a field that is not given.

    Raises:
        Malformed: The value does not have the shape. The message names the field.
    """
    value = document.value if value is None else value
    for _ in range(_MAX_NULLS):
        try:
            return msgspec.convert(value, shape)
        except msgspec.ValidationError as problem:
            error = _SAID.fullmatch(str(problem))
            assert error is not None
            path = _path(value, error["path"] or "", error["said"])
            if not ("got `null`" in error["said"] and not error["key"] and _without(value, path)):
                field = ".".join(part for part in (under, _text_of(path)) if part)
                raise document.malformed(_sentence(field, error["said"], bool(error["key"]))) from None
        except RecursionError:
            raise document.malformed("nested too deeply") from None
    raise document.malformed("more nulls than can be left out")


def _path(value: object, text: str, message: str) -> Path:
    """Return the path that msgspec names. It writes the keys of maps as `[...]`, so these are searched."""
    missing, got = _MISSING.match(message), _GOT.match(message)

    def is_it(inner: object) -> bool:
        if missing:
            return isinstance(inner, dict) and missing[1] not in inner
        return got is None or got["got"] is None or type_name(inner) == _WORDS.get(got["got"], got["got"])

    steps = [step["field"] or step["index"] or None for step in _STEP.finditer(text)]
    return _follow(value, steps, is_it) or tuple(step or "…" for step in steps)


def _follow(value: object, steps: list[str | None], is_it: Callable[[object], bool]) -> Path | None:
    """Return the first path along these steps (None: any key) to a value for which `is_it` holds."""
    if not steps:
        return () if is_it(value) else None
    step, *later_steps = steps
    if isinstance(value, list):
        keys: list[str | int] = [int(step)] if step and step.isdecimal() else []
    else:
        keys = list(value) if step is None and isinstance(value, dict) else [step or ""]
    for key in keys:
        try:
            inner = value[key]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            continue
        path = _follow(inner, later_steps, is_it)
        if path is not None:
            return (key, *path)
    return None


def _without(value: object, path: Path) -> bool:
    """Remove the field, and return whether it was a field of an object."""
    for step in path[:-1]:
        value = value[step]  # type: ignore[index]
    if path and isinstance(value, dict) and path[-1] in value:
        del value[path[-1]]
        return True
    return False


def _text_of(path: Path) -> str:
    text = ""
    for step in path:
        plain = isinstance(step, str) and re.fullmatch(r"\w+", step)
        text += f"[{step}]" if not plain else f".{step}" if text else str(step)
    return text


def _sentence(field: str, message: str, key: bool) -> str:
    missing = _MISSING.match(message)
    if missing:
        return f"{field + '.' if field else ''}{missing[1]}: expected, but not given"
    got = _GOT.fullmatch(message)
    if got is None:
        return f"{field}: {message}" if field else message
    kinds = [_WORDS.get(kind, kind) for kind in got["expected"].split(" | ") if kind != "null"]
    expected = " or ".join(kinds) + got["range"]
    if key:
        expected = f"keys that are {expected}"
    return f"{field}: expected {expected}" + (
        f", got {_WORDS.get(got['got'], got['got'])}" if got["got"] else ""
    )


# --- what the API server would refuse --------------------------------------------------------------

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAMED = "lower-case letters, digits, '-' and '.'"


def check_metadata(document: Document, meta: Metadata, under: str = "metadata") -> None:
    """Raise Malformed if the API server would refuse these names or labels."""
    for field, name in (("name", meta.name), ("namespace", meta.namespace)):
        if name and not _NAME.fullmatch(name):
            raise document.malformed(f"{under}.{field}: expected {_NAMED}, got {shown(name)}")
    check_labels(document, f"{under}.labels", meta.labels or {})


def check_named(document: Document, meta: Metadata) -> None:
    """Raise Malformed if the object has no name, or metadata that the API server refuses."""
    if not meta.name:
        raise document.malformed("metadata.name: expected, but not given")
    check_metadata(document, meta)


def check_labels(document: Document, field: str, labels: Mapping[str, str]) -> None:
    """Raise Malformed if the API server would refuse one of these labels."""
    for key, value in labels.items():
        if not _KEY.fullmatch(key):
            raise document.malformed(f"{field}: expected label keys, got {shown(key)}")
        if not _LABEL.fullmatch(value):
            raise document.malformed(f"{field}[{key}]: expected a label's value, got {shown(value)}")


def check_spec(document: Document, spec: PodSpec, under: str = "spec") -> None:
    """Raise Malformed if there is no container, or if a name is not one that the API server accepts."""
    if not spec.containers:
        raise document.malformed(f"{under}.containers: expected at least one container")
    if spec.node_name and not _NAME.fullmatch(spec.node_name):
        raise document.malformed(f"{under}.nodeName: expected {_NAMED}, got {shown(spec.node_name)}")
    for number, claim in enumerate(spec.resource_claims or ()):
        if bool(claim.resource_claim_name) == bool(claim.resource_claim_template_name):
            at = f"{under}.resourceClaims[{number}]"
            if claim.source is not None:
                raise document.malformed(f"{at}.source: since Kubernetes 1.31 its fields are those of {at}")
            expected = "expected one of resourceClaimName and resourceClaimTemplateName"
            raise document.malformed(f"{at}: {expected}")
    for number, container in enumerate(spec.containers):
        if not _NAME.fullmatch(container.name):
            raise document.malformed(
                f"{under}.containers[{number}].name: expected {_NAMED}, got {shown(container.name)}"
            )
    amounts.check(document, spec, under)


def node(document: Document) -> NodeObject:
    """Return a Node. As in the API server, its allocatable is its capacity if it is not given."""
    read = convert(document, NodeObject)
    check_named(document, read.metadata)
    if read.status.allocatable is None:
        status = msgspec.structs.replace(read.status, allocatable=read.status.capacity)
        read = msgspec.structs.replace(read, status=status)
    return read


def pod(document: Document) -> PodManifest:
    """Return a Pod's manifest. Raise Malformed if the API server would refuse it."""
    read = convert(document, PodManifest)
    check_named(document, read.metadata)
    check_spec(document, read.spec)
    return read
