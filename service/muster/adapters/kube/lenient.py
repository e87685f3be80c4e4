"""Read JSON that msgspec refuses: JSON of any depth, and objects that do not have the shape of their kind.

The API server accepts 10,000 levels of JSON, in custom resources and in managedFields. msgspec gives up near
1,000 levels, even if it only skips a value. The fields that are read are at most 20 levels deep. So
`bound_depth` replaces each object and list deeper than MAX_DEPTH by 0. It replaces half an escaped UTF-16
pair, and bytes that are no UTF-8, by U+FFFD.

There is no recursion and no loop over single bytes: numpy counts the brackets. 1.5 MB take some 20 ms.
"""

from __future__ import annotations

import re
import types
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

MAX_DEPTH = 64

SLICE = 256 * 1024
"""Bytes at a time: numpy holds the interpreter's lock in some of its steps."""

Codes = NDArray[np.uint8]

_QUOTE, _BACKSLASH, _U, _ZERO = b'"\\u0'
_REPLACEMENT = np.frombuffer(b"fffd", np.uint8)
_STEPS = np.zeros(256, np.int8)
"""Change of the depth by a byte outside of strings."""
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1
_FIRST, _LAST = np.zeros(256, bool), np.zeros(256, bool)
"""The fourth byte of \\uD8xx to \\uDBxx, which begin a pair, and of \\uDCxx to \\uDFxx, which end a pair."""
_FIRST[list(b"89abAB")] = True
_LAST[list(b"cdefCDEF")] = True
S = TypeVar("S", bound=msgspec.Struct)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])
_JSON = (bytes, msgspec.Raw)
_WORD = re.compile(r"\w+")


def bound_depth(text: bytes) -> bytes:
    """Return `text` with 0 in place of each object and list deeper than `MAX_DEPTH`.

    `text` is one JSON value. Broken escapes and bytes that are no UTF-8 are replaced. The result has no other
    difference. Text that is no JSON stays so, and raises no exception.
    """
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    codes: Codes = np.frombuffer(text, np.uint8).copy()
    _replace_half_pairs(codes, text)
    # the same length, and each quote begins or ends a string
    plain = np.frombuffer(text.replace(rb"\\", b"__").replace(rb"\"", b"__"), np.uint8)
    pieces, begins_in_string, level = [], np.uint8(0), np.int32(0)
    for begin in range(0, len(plain), SLICE):
        piece, codes_of_structure = codes[begin : begin + SLICE], plain[begin : begin + SLICE]
        in_string = (
            np.bitwise_xor.accumulate((codes_of_structure == _QUOTE).view(np.uint8)) ^ begins_in_string
        )
        steps = _STEPS[codes_of_structure]
        steps[in_string.view(bool)] = 0
        depth = np.cumsum(steps, dtype=np.int32) + level
        begins_in_string, level = in_string[-1], depth[-1]
        pieces.append(_shallow(piece, steps, depth))
    return b"".join(pieces)


def _shallow(codes: Codes, steps: NDArray[np.int8], depth: NDArray[np.int32]) -> bytes:
    """Return the bytes that stay. `steps` is each byte's change of the depth, and `depth` their sum."""
    ends = (steps < 0) & (depth == MAX_DEPTH)
    is_dropped = (depth > MAX_DEPTH) | ends
    if not is_dropped.any():
        return codes.tobytes()
    begins = (steps > 0) & (depth == MAX_DEPTH + 1)
    codes[begins] = _ZERO
    shallow: Codes = codes[begins | ~is_dropped]
    return shallow.tobytes()


def _replace_half_pairs(codes: Codes, text: bytes) -> None:
    """Write U+FFFD, in place, for each escaped half of a UTF-16 pair that lacks the other half."""
    if rb"\ud" not in text and rb"\uD" not in text:
        return
    plain = np.frombuffer(text.replace(rb"\\", b"__") + bytes(6), np.uint8)
    escapes = np.flatnonzero((plain[:-1] == _BACKSLASH) & (plain[1:] == _U))
    escapes = escapes[(escapes + 6 <= len(text)) & (plain[escapes + 2] | 0x20 == ord("d"))]
    first = escapes[_FIRST[plain[escapes + 3]]]
    last = escapes[_LAST[plain[escapes + 3]]]
    halves = np.concatenate((np.setdiff1d(first, last - 6, True), np.setdiff1d(last, first + 6, True)))
    for place in range(len(_REPLACEMENT)):
        codes[halves + 2 + place] = _REPLACEMENT[place]


class LostField(NamedTuple):
    """An unreadable field: its path, and what msgspec says of its value."""

    path: str
    problem: str


def salvage(shape: type[S], value: object) -> tuple[S, list[LostField]]:
    """Return an object with each readable field, and the unreadable fields. `value` is JSON, or what was read
    of JSON or YAML.

    An unreadable field has its default. Inner objects, members of maps and elements of lists are salvaged in
    the same way, if they are structs. No exception is raised: for a value that is no object, all fields have
    their defaults.
    """
    lost_fields: list[LostField] = []
    salvaged = _value(shape, value, "", lost_fields)
    return (salvaged if isinstance(salvaged, shape) else shape()), lost_fields


def _value(kind: Any, value: object, path: str, lost_fields: list[LostField]) -> Any:
    """Return the value of this type; UNSET if there is no such value."""
    try:
        if isinstance(value, _JSON):
            return msgspec.json.decode(value, type=kind)
        return msgspec.convert(value, kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        problem, lost_before = str(error), len(lost_fields)
    salvaged = next(filter(None, (_parts(part, value, path, lost_fields) for part in _options(kind))), None)
    if salvaged is None or len(lost_fields) == lost_before:
        lost_fields.append(LostField(path, problem))
        return msgspec.UNSET
    return salvaged[0]


def _parts(kind: Any, value: object, path: str, lost_fields: list[LostField]) -> tuple[Any] | None:
    """Return the value with its readable parts; None if it is no object, map or list as the type asks."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if (members := _inside(dict, value)) is None:
            return None
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        pairs = (
            (fields[key].name, _value(fields[key].type, item, _path_of(path, key), lost_fields))
            for key, item in members.items()
            if key in fields
        )
        return (kind(**{name: item for name, item in pairs if item is not msgspec.UNSET}),)
    if get_origin(kind) is list and (elements := _inside(list, value)) is not None:
        (inner_type,) = get_args(kind)
        items = [
            _value(inner_type, item, f"{path}[{number}]", lost_fields) for number, item in enumerate(elements)
        ]
        return ([item for item in items if item is not msgspec.UNSET],)
    if get_origin(kind) is dict and (members := _inside(dict, value)) is not None:
        if not all(isinstance(key, str) for key in members):  # in YAML, a key may be a number or null
            return None
        inner_type = get_args(kind)[1]
        pairs = (
            (key, _value(inner_type, item, _path_of(path, key), lost_fields)) for key, item in members.items()
        )
        return ({key: item for key, item in pairs if item is not msgspec.UNSET},)
    return None


def _path_of(path: str, key: object) -> str:
    return f"{path}.{key}".strip(".") if _WORD.fullmatch(str(key)) else f"{path}[{key}]"


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _inside(kind: type, value: object) -> Any:
    """Return the members of an object, or the elements of a list; None for another value."""
    if not isinstance(value, _JSON):
        return value if isinstance(value, kind) else None
    try:
        return (_members if kind is dict else _elements).decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
