"""Read JSON that msgspec refuses: JSON of any depth, and objects that do not have the shape of their kind.

The API server accepts 10,000 levels of JSON, in custom resources and in managedFields. msgspec gives up near
1,000 levels, even if it only skips a value. The fields that are read are at most 20 levels deep. So
`bound_depth` replaces each object and list deeper than MAX_DEPTH by 0. It replaces half an escaped UTF-16
pair, and bytes that are no UTF-8, by U+FFFD.

There is no recursion and no loop over single bytes: numpy counts the brackets. 1.5 MB take some 20 ms.
"""

from __future__ import annotations

import types
from typing import Any, TypeVar, Union, get_args, get_origin

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
"""The fourth byte of \\uD8xx to \\uDBxx, which begin a pair, and of \\uDCxx to \\uDFxx, which end one."""
_FIRST[list(b"89abAB")] = True
_LAST[list(b"cdefCDEF")] = True
S = TypeVar("S", bound=msgspec.Struct)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])


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
    pieces, inside, level = [], np.uint8(0), np.int32(0)
    for begin in range(0, len(plain), SLICE):
        piece, codes_of_structure = codes[begin : begin + SLICE], plain[begin : begin + SLICE]
        in_string = np.bitwise_xor.accumulate((codes_of_structure == _QUOTE).view(np.uint8)) ^ inside
        steps = _STEPS[codes_of_structure]
        steps[in_string.view(bool)] = 0
        depth = np.cumsum(steps, dtype=np.int32) + level
        inside, level = in_string[-1], depth[-1]
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


def salvage(shape: type[S], text: bytes | msgspec.Raw) -> tuple[S, list[str]]:
    """Return an object with each readable field, and the paths of the unreadable fields.

    An unreadable field has its default. Inner objects, members of maps and elements of lists are salvaged in
    the same way, if they are structs. No exception is raised: for a text that is no object, all fields have
    their defaults.
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
    """Return the value of this type; UNSET if `text` has no such value."""
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
    """Return the decoded value; None if the decoder fails."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
