"""The long messages, serialized by hand where betterproto2 is too slow.

It encodes repeated fields item by item in Python, and meanwhile the event loop stands still: for a gang of
2,048 with eight nodes a member 30 ms for Filter's answer, and more for the strings of Permit's, for which a
whole gang waits. Here 2 and 12 ms. The bytes say the same, in another order of fields at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from muster.adapters.grpc.generated.muster.v1 import (
    FilterResponse,
    PermitResponse,
    ScoreResponse,
    WatchResponse,
)

_DELIMITED = 2
"""Wire type of strings, messages and packed fields."""


def watch_bytes(response: WatchResponse) -> bytes:
    verdict, question = response.verdict, response.in_tree_question
    if question is not None:
        rest = bytes(replace(question, names=[], uids=[]))
        return _field(3, rest + _strings(4, question.names) + _strings(5, question.uids))
    if verdict is None:
        return bytes(response)
    rest = bytes(replace(verdict, names=[], uids=[]))
    return _field(2, rest + _strings(5, verdict.names) + _strings(6, verdict.uids))


def filter_bytes(response: FilterResponse) -> bytes:
    rest = bytes(FilterResponse(reason=response.reason))
    nodes = _strings(1, response.nodes)
    return nodes + _packed(2, response.offsets) + _packed(3, response.candidates) + rest


def score_bytes(response: ScoreResponse) -> bytes:
    return _packed(1, response.scores)


def permit_bytes(response: PermitResponse) -> bytes:
    return bytes(replace(response, annotation_values=[])) + _strings(4, response.annotation_values)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _DELIMITED) + _varint(len(content)) + content


def _strings(number: int, values: Iterable[str]) -> bytes:
    return b"".join(_field(number, value.encode()) for value in values)


def _packed(number: int, values: Sequence[int]) -> bytes:
    return _field(number, b"".join(map(_varint, values))) if values else b""


@lru_cache(maxsize=65536)
def _varint(value: int) -> bytes:
    """Base 128, lowest first. Cached: lengths, indices and scores are few and repeat."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
