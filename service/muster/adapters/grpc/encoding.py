"""Serialize answers by protobuf's own runtime, which is faster than betterproto2.

betterproto2 encodes repeated fields item by item in Python, and the event loop stands still meanwhile: 30 ms
for the Filter answer of a gang of 2,048 members with eight nodes each. The runtime needs 0.5 ms.

Fields come from the message's own definition, so a field that is added to the contract needs no change here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from betterproto2 import Message

from muster.adapters.grpc import reflection


def to_bytes(message: Message) -> bytes:
    """Return the message as it goes over the wire.

    Raises:
        ValueError: the message has a field that descriptors.binpb lacks; without an error it would be lost.
    """
    return bytes(reflection.message(type(message).__name__)(**_fields(message)).SerializeToString())


def _fields(message: Message) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(message))  # type: ignore[arg-type]
    return {name: _plain(getattr(message, name)) for name in names}


def _plain(value: Any) -> Any:
    """Return the value in the form that the runtime's constructors take: a message as its fields."""
    if isinstance(value, Message):
        return _fields(value)
    if isinstance(value, list) and value and isinstance(value[0], Message):
        return [_fields(message) for message in value]
    return value
