"""The messages between the service and the planner's process: pickles in frames, on one stream socket.

Both ends are the same program, so pickle is safe here. By default Python pickles dataclasses with slots
slowly, in some microseconds each. So each class of the domain is reduced to its constructor and its fields.
"""

from __future__ import annotations

import copyreg
import dataclasses
import io
import pickle
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from muster.adapters.solver.replica import Difference, OccupancyDifference
from muster.domain.alternatives import Alternatives, Question
from muster.domain.clearing import Clearing, ClearQuestion, NoClearing
from muster.domain.decision import Decision
from muster.domain.request import Request
from muster.placement.limits import Stretch

_DOMAIN = "muster.domain."
_LENGTH = struct.Struct(">Q")
Answer = Decision | Alternatives | Clearing | NoClearing
Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has loaded the planner."""


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """Decide about one gang, or find its alternatives or its victims.

    `until`: when its wall clock ends, by the monotonic clock, which all processes share. `memory_bytes`:
    additional memory that the process may use. `slice_s`: processor time of the decision, in seconds.
    `occupants`: the update of nodes and units for a `ClearQuestion`, whose occupancy has neither.
    """

    difference: Difference
    request: Request | Question | ClearQuestion
    excluded: Mapping[str, Mapping[str, str]]
    deterministic_time: float
    until: float
    memory_bytes: int
    most_roles: int
    slice_s: float
    occupants: OccupancyDifference | None = None


@dataclass(frozen=True, slots=True)
class SolveReply:
    """The decision. `processor_s`: its processor time in seconds. `stretches`: phase of the planner → its
    time, by the monotonic clock. `ends`: the process ends now, because its memory has grown too much over
    many decisions."""

    decision: Answer
    processor_s: float
    stretches: dict[str, Stretch] = field(default_factory=dict)
    ends: bool = False


@dataclass(frozen=True, slots=True)
class DefectReply:
    """The planner failed because of a defect. `error` is the type and text of the exception."""

    error: str
    trace: str


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The decision reached the memory limit; the process ends."""


class _Reducers(dict[type, Callable[[Any], Any]]):
    """Type → function that reduces a value for pickle. Dataclasses of the domain are added at first use."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if not (dataclasses.is_dataclass(kind) and kind.__module__.startswith(_DOMAIN)):
            return copyreg.dispatch_table[kind]
        self[kind] = reduce = _reducer(kind)
        return reduce


_REDUCERS = _Reducers()


def encode(message: object) -> bytes:
    """Return the message as bytes."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(message)
    return buffer.getvalue()


def decode(body: bytes | bytearray) -> Any:
    """Return the message from its bytes."""
    return pickle.loads(body)


def send(channel: socket.socket, body: bytes, until: float | None = None) -> None:
    """Send one frame. `until` is a time of the monotonic clock; None waits for ever.

    Raises:
        TimeoutError: the other end did not take the frame by then.
        OSError: the other end is gone.
    """
    for part in (_LENGTH.pack(len(body)), body):
        channel.settimeout(_timeout(until))
        channel.sendall(part)


def receive(channel: socket.socket, until: float | None = None) -> bytearray:
    """Wait for one frame. `until` is a time of the monotonic clock; None waits for ever.

    Raises:
        TimeoutError: no complete frame came by then.
        EOFError, OSError: the other end is gone.
    """
    return _receive_bytes(channel, _LENGTH.unpack(_receive_bytes(channel, _LENGTH.size, until))[0], until)


def _receive_bytes(channel: socket.socket, size: int, until: float | None) -> bytearray:
    body = bytearray(size)
    view, position = memoryview(body), 0
    while position < size:
        channel.settimeout(_timeout(until))
        count = channel.recv_into(view[position:])
        if not count:
            raise EOFError("the other end closed the socket")
        position += count
    return body


def _timeout(until: float | None) -> float | None:
    """Return the seconds until this time, and never 0, because 0 means a non-blocking socket."""
    return None if until is None else max(0.001, until - time.monotonic())


def _reducer(kind: Any) -> Callable[[Any], Reduced]:
    """Return the function that reduces values of a dataclass."""
    arguments = [field for field in dataclasses.fields(kind) if field.init]
    names = [field.name for field in arguments]
    if any(field.kw_only for field in arguments):
        raise TypeError(f"{kind.__name__} has fields that its constructor does not take by position")
    if len(names) == 1:
        only_field = attrgetter(names[0])
        return lambda value: (kind, (only_field(value),))
    if not names:
        return lambda _: (kind, ())
    fields = attrgetter(*names)
    return lambda value: (kind, fields(value))
