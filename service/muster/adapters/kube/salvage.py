"""What can be read of an object that does not have the shape of its kind, field by field."""

from __future__ import annotations

import types
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

S = TypeVar("S", bound=msgspec.Struct)

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])


def salvage(shape: type[S], text: bytes | msgspec.Raw) -> tuple[S, list[str]]:
    """Return an object with each field that can be read, and the paths of those that can't.

    A field that can't be read has its default. Objects inside, members of maps and elements of lists are
    salvaged alike, as far as they are structs. Nothing is raised: of no object at all only defaults are read.
    """
    lost_paths: list[str] = []
    return _struct(shape, text, "", lost_paths), lost_paths


def _struct(shape: type[S], text: bytes | msgspec.Raw, path: str, lost_paths: list[str]) -> S:
    members = _decode(_members, text)
    if members is None:
        lost_paths.append(path)
        return shape()
    values = {}
    for field in msgspec.structs.fields(shape):
        raw = members.get(field.encode_name)
        if raw is not None:
            value = _value(field.type, raw, f"{path}.{field.encode_name}".strip("."), lost_paths)
            if value is not msgspec.UNSET:
                values[field.name] = value
    return shape(**values)


def _value(kind: Any, text: msgspec.Raw, path: str, lost_paths: list[str]) -> Any:
    """Return the value of this type; UNSET if there is nothing of it in `text`."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    for part in _options(kind):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return _struct(part, text, path, lost_paths)
        if get_origin(part) is list and (elements := _decode(_elements, text)) is not None:
            of = get_args(part)[0]
            items = [_value(of, raw, f"{path}[{number}]", lost_paths) for number, raw in enumerate(elements)]
            return [item for item in items if item is not msgspec.UNSET]
        if get_origin(part) is dict and (members := _decode(_members, text)) is not None:
            of = get_args(part)[1]
            pairs = {key: _value(of, raw, f"{path}.{key}", lost_paths) for key, raw in members.items()}
            return {key: item for key, item in pairs.items() if item is not msgspec.UNSET}
    lost_paths.append(path)
    return msgspec.UNSET


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _decode(decoder: msgspec.json.Decoder[Any], text: bytes | msgspec.Raw) -> Any:
    """Return what the decoder reads; None if it can't."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
