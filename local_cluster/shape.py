"""Cluster shapes: a YAML file that says which nodes there are, decoded strictly.

A field that is misspelt would otherwise be a default in silence, and a test would pass on the wrong
cluster. So every complaint names the file, the node group and the field, and says what would do.
"""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import yaml

Resource = Literal["aliyun.com/gpu", "nvidia.com/gpu", "amd.com/gpu", "aliyun.com/gpu-mem"]
Publish = Literal["gpu-topology-annotation", "labels", "none"]
Schedule = Literal["default", "topology", "share", "cgpu", "disabled"]
Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
_CHOICES = {"resources": Resource, "publish": Publish, "schedule": Schedule, "effect": Effect}
_PLACES = ("zone", "rack", "index")

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?([KMGTPE]i|[mkMGTPE])?")


class ShapeError(ValueError):
    """A shape file that can't be used. The text names file, node group and field."""


class Taint(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """As in a node's spec."""

    key: str
    effect: Effect
    value: str = ""


class NodeGroup(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="kebab"):
    """Equal nodes: `zones` × `racks` in each zone × `count` in each rack.

    `name`, `zone`, `rack` and the values of `labels` may hold {zone}, {rack} (numbered on over all
    zones) and {index} (numbered on over the whole group), each from 0, with a width: {index:03}.
    """

    name: str
    count: int = 1
    racks: int = 1
    zones: int = 1
    zone: str = ""
    rack: str = ""
    cpu: str = "96"
    memory: str = "768Gi"
    pods: int = 110
    gpus: int | None = None
    """GPUs of a node; as many as the topology has when it is left out, 0 without a topology."""
    resources: tuple[Resource, ...] = ()
    gpu_memory_gib: int = 0
    """Memory of one GPU, GiB; needed for aliyun.com/gpu-mem, and for that alone."""
    topology: str = ""
    publish: Publish = "none"
    schedule: Schedule | Literal[""] = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class Shape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A whole file."""

    nodes: tuple[NodeGroup, ...]
    description: str = ""


def load_shape(path: Path) -> Shape:
    """Read and check a shape file."""
    try:
        text = path.read_text()
    except OSError as problem:
        raise ShapeError(f"{path}: cannot be read: {problem.strerror}") from problem
    return parse_shape(text, str(path))


def parse_shape(text: str, source: str) -> Shape:
    """Decode a shape; `source` is what errors call it."""
    try:
        document = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as problem:
        raise ShapeError(f"{source}: not valid YAML: {problem}") from problem
    if not isinstance(document, dict):
        raise ShapeError(
            f"{source}: a mapping with the field 'nodes' is needed, this is {type(document).__name__}"
        )
    try:
        shape = msgspec.convert(document, Shape, strict=True)
    except msgspec.ValidationError as problem:
        raise ShapeError(_explain(source, document, str(problem))) from problem
    if not shape.nodes:
        raise ShapeError(f"{source}: nodes: at least one node group is needed")
    for number, group in enumerate(shape.nodes):
        _check_group(f"{source}: nodes[{number}] ({group.name})", group)
    return shape


class _StrictLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys and says nothing; this one refuses."""


def _mapping_without_repeats(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    repeated = {key for key in keys if keys.count(key) > 1}
    if repeated:
        raise yaml.MarkedYAMLError(
            problem=f"given twice: {', '.join(map(str, repeated))}", problem_mark=node.start_mark
        )
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _mapping_without_repeats)


def _explain(source: str, document: dict[str, Any], problem: str) -> str:
    """msgspec's complaint, `… - at `$.nodes[1].cpu``, with the group's name and the known fields."""
    text, _, place = problem.partition(" - at `$")
    place = place.rstrip("`").lstrip(".") or "top level"
    if match := re.match(r"nodes\[(\d+)\]\.?", place):
        groups = document["nodes"]
        group = groups[int(match.group(1))]
        name = group.get("name", "no name") if isinstance(group, dict) else "no mapping"
        place = f"nodes[{match.group(1)}] ({name})" + (
            f": {place[match.end() :]}" if place[match.end() :] else ""
        )
    if "unknown field" in text:
        kind: type[msgspec.Struct] = (
            Shape if place == "top level" else Taint if "taints[" in place else NodeGroup
        )
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        text += f"; known fields: {fields}"
    if "enum value" in text:
        field = re.findall(r"[a-z]+", place)[-1]
        text += f"; one of {', '.join(get_args(_CHOICES[field]))}"
    return f"{source}: {place}: {text[0].lower()}{text[1:]}"


def _check_group(place: str, group: NodeGroup) -> None:
    """What types can't say. Topologies are looked up where the nodes are made."""
    for field, number in (
        ("count", group.count),
        ("racks", group.racks),
        ("zones", group.zones),
        ("pods", group.pods),
    ):
        if number < 1:
            raise ShapeError(f"{place}: {field}: {number} is too few, 1 or more is needed")
    for field, quantity in (("cpu", group.cpu), ("memory", group.memory)):
        if not _QUANTITY.fullmatch(quantity):
            raise ShapeError(f"{place}: {field}: {quantity!r} is no quantity, such as '96' or '768Gi'")
    for field, pattern in (
        ("name", group.name),
        ("zone", group.zone),
        ("rack", group.rack),
        *group.labels.items(),
    ):
        _check_pattern(f"{place}: {field}", pattern)
    for key in (*group.labels, *group.annotations):
        if not _LABEL_KEY.fullmatch(key):
            raise ShapeError(
                f"{place}: {key!r} is no key of a label or an annotation, such as 'example.com/pool'"
            )
    _check_gpus(place, group)


def _check_pattern(place: str, pattern: str) -> None:
    try:
        parts = list(string.Formatter().parse(pattern))
    except ValueError as problem:
        raise ShapeError(f"{place}: {pattern!r}: {problem}") from problem
    for _, field, width, conversion in parts:
        if field is None:
            continue
        if field not in _PLACES or conversion or not re.fullmatch(r"\d{0,2}", width or ""):
            raise ShapeError(
                f"{place}: {pattern!r}: {{{field}}} is not known; "
                "use {zone}, {rack} or {index}, with a width as {index:03}"
            )


def _check_gpus(place: str, group: NodeGroup) -> None:
    sharing = "aliyun.com/gpu-mem" in group.resources
    if sharing != (group.gpu_memory_gib > 0):
        raise ShapeError(
            f"{place}: gpu-memory-gib: {group.gpu_memory_gib} disagrees with {list(group.resources)}: "
            f"aliyun.com/gpu-mem needs the memory of one GPU, nothing else does"
        )
    if group.gpus is not None and group.gpus < 0:
        raise ShapeError(f"{place}: gpus: {group.gpus} is less than none")
    if group.publish != "none" and not group.topology:
        raise ShapeError(
            f"{place}: publish: {group.publish} needs a topology to publish; name one in 'topology'"
        )
    if group.resources and not (group.gpus or (group.gpus is None and group.topology)):
        raise ShapeError(
            f"{place}: resources: {', '.join(group.resources)} on a node without GPUs; "
            "say 'gpus' or 'topology'"
        )
    if not group.resources and (group.gpus or group.topology):
        raise ShapeError(
            f"{place}: resources: the node has GPUs but offers none; name a resource such as aliyun.com/gpu"
        )


def check_name(place: str, name: str) -> None:
    """Raise ShapeError unless the name may be a node's."""
    if not _NAME.fullmatch(name):
        raise ShapeError(f"{place}: name: {name!r} is no node name: lower-case letters, digits, '-' and '.'")


def check_label_value(place: str, key: str, value: str) -> None:
    """Raise ShapeError unless the value may be a label's."""
    if not _LABEL_VALUE.fullmatch(value):
        raise ShapeError(
            f"{place}: {key}: {value!r} is no label value: up to 63 letters, digits, '-', '_' and '.'"
        )
