"""The messages between the service and the planner's process: pickles in frames, on one stream socket.

Both ends are the same program, so pickle is safe here. Dataclasses with slots pickle slowly by default: some
microseconds each, in Python. So each class of the domain is reduced to its constructor and its fields.
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

from muster.adapters.solver.replica import Difference
from muster.domain.alternatives import Alternatives, Question
from muster.domain.decision import Decision
from muster.domain.request import Request
from muster.placement.limits import Stretch

_DOMAIN = "muster.domain."
_LENGTH = struct.Struct(">Q")
Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has loaded the planner."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Decide about one gang, or find its alternatives.

    `until`: when its wall clock is spent, on the monotonic clock, which is the same in all processes.
    `memory_bytes`: how much more memory the process may use meanwhile. `slice_s`: when its processor time is
    spent, from the beginning of the decision.
    """

    difference: Difference
    request: Request | Question
    excluded: Mapping[str, Mapping[str, str]]
    deterministic_time: float
    until: float
    memory_bytes: int
    most_roles: int
    slice_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decided. `processor_s`: seconds of processor time that it took. `stretches`: what the time was
    spent on, on the monotonic clock. `ends`: the process ends now, because it has grown too much over many
    decisions."""

    decision: Decision | Alternatives
    processor_s: float
    stretches: dict[str, Stretch] = field(default_factory=dict)
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The planner has a defect. `error` is its type and its text."""

    error: str
    trace: str


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The decision reached the memory limit; the process ends."""


class _Reducers(dict[type, Callable[[Any], Any]]):
    """How values of a type are taken apart. Dataclasses of the domain are entered as they come."""

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
    """Return the message that `encode` was given."""
    return pickle.loads(body)


def send(channel: socket.socket, body: bytes, until: float | None = None) -> None:
    """Send one frame. `until` is a time of the monotonic clock, None waits for ever.

    Raises:
        TimeoutError: the other end did not take it by then.
        OSError: the other end is gone.
    """
    for part in (_LENGTH.pack(len(body)), body):
        channel.settimeout(_timeout(until))
        channel.sendall(part)


def receive(channel: socket.socket, until: float | None = None) -> bytearray:
    """Wait for one frame. `until` is a time of the monotonic clock, None waits for ever.

    Raises:
        TimeoutError: it did not come by then.
        EOFError, OSError: the other end is gone.
    """
    return _exactly(channel, _LENGTH.unpack(_exactly(channel, _LENGTH.size, until))[0], until)


def _exactly(channel: socket.socket, size: int, until: float | None) -> bytearray:
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
    """Seconds until then; a timeout of 0 would mean something else to a socket."""
    return None if until is None else max(0.001, until - time.monotonic())


def _reducer(kind: Any) -> Callable[[Any], Reduced]:
    """Return how values of a dataclass are taken apart."""
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
