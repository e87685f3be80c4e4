"""Every field of every message arrives, also one that the contract gets later."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import betterproto2
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from muster.adapters.grpc import reflection
from muster.adapters.grpc.generated.muster import v1
from muster.adapters.grpc.reflection import to_bytes

Proto = descriptor_pb2.FieldDescriptorProto
MESSAGES = [
    kind for kind in vars(v1).values() if inspect.isclass(kind) and issubclass(kind, betterproto2.Message)
]
ADDED = 1000
"""Number of the field that a test adds."""

FULL: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_STRING: ["x", "ä", "x" * 300],
    FieldDescriptor.TYPE_BYTES: [b"\x00\x01", b"\xff" * 300],
    FieldDescriptor.TYPE_BOOL: [True],
    FieldDescriptor.TYPE_UINT32: [1, 127, 128, 2**32 - 1],
    FieldDescriptor.TYPE_UINT64: [1, 2**64 - 1],
    FieldDescriptor.TYPE_ENUM: [1, 2, 3],
}


def samples(contract: Descriptor) -> Iterator[Any]:
    """Yield messages with one field set, for each field and each of its values."""
    kind = getattr(v1, contract.name)
    for field in contract.fields:
        if field.message_type is None:
            values = FULL[field.type]
            lists: list[Any] = [[], values, values * 1000, [type(values[0])(), *values]]
        elif field.message_type.GetOptions().map_entry:
            values, lists = [], [{"k": "v", "l": ""}]
        else:
            values = list(samples(field.message_type))
            lists = [values]
        yield from (kind(**{field.name: value}) for value in (lists if field.is_repeated else values))


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_field_of_a_message_arrives(kind: type[betterproto2.Message]) -> None:
    for message in samples(reflection.message_class(kind.__name__).DESCRIPTOR):
        assert kind.parse(to_bytes(message)) == message


@pytest.mark.parametrize(
    ("proto_type", "library_type", "repeated", "value"),
    [
        (Proto.TYPE_STRING, betterproto2.TYPE_STRING, False, "x"),
        (Proto.TYPE_STRING, betterproto2.TYPE_STRING, True, ["x", "", "y"]),
        (Proto.TYPE_UINT32, betterproto2.TYPE_UINT32, True, [0, 300]),
    ],
)
@pytest.mark.parametrize("kind", MESSAGES)
def test_a_field_that_is_added_arrives(
    kind: type[betterproto2.Message],
    proto_type: Any,
    library_type: Any,
    repeated: bool,
    value: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = grown(kind, library_type, repeated)(added=value)
    contract = grown_contract(kind.__name__, proto_type, repeated)
    monkeypatch.setattr(reflection, "message_class", contract)
    assert contract(kind.__name__).FromString(to_bytes(message)).added == value


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_field_that_the_contract_lacks_is_refused_and_not_lost(kind: type[betterproto2.Message]) -> None:
    with pytest.raises(ValueError, match="added"):
        to_bytes(grown(kind, betterproto2.TYPE_STRING, repeated=False)(added="x"))


def grown(kind: type, library_type: Any, repeated: bool) -> Any:
    """Return the message's class with one more field, as the generator would write it."""
    field = betterproto2.field(ADDED, library_type, repeated=repeated)
    return dataclasses.make_dataclass(
        kind.__name__, [("added", list if repeated else str, field)], bases=(kind,), eq=False, repr=False
    )


def grown_contract(name: str, proto_type: Any, repeated: bool) -> Callable[[str], Any]:
    """Return `reflection.message_class` of a contract with one more field in the message `name`."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection.message_class(name).DESCRIPTOR.file.CopyToProto(file)
    (message,) = (message_type for message_type in file.message_type if message_type.name == name)
    label = Proto.LABEL_REPEATED if repeated else Proto.LABEL_OPTIONAL
    message.field.add(name="added", number=ADDED, type=proto_type, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"muster.v1.{name}"))
