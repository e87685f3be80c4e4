"""The planner's process. It answers one request after another until the service ends it or is gone.

The service starts `python -m muster.adapters.solver.child FD PARENT PLACE`: the socket to the service, the
service's process id, and the function that decides, as "module:function". It is a new program and not a fork,
because the service's threads (such as gRPC's) do not survive a fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pkgutil
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from muster.adapters.solver import wire
from muster.adapters.solver.replica import Replica
from muster.adapters.solver.wire import Answer, DefectReply, OutOfMemory, Ready, SolveReply, SolveRequest
from muster.domain.clearing import ClearQuestion
from muster.domain.snapshot import Snapshot
from muster.placement.limits import Limits, Timings

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""

_LATE_S = 2.0
"""Seconds past the limit after which the process ends itself, if the service has not ended it."""

_LOADED_LATE = ("numpy.ma",)
"""Modules that libraries import late. They are loaded at the start, because the first refused gang would wait
for them."""

_MANY = 1000
"""Number of changed nodes after which long-lived objects are frozen again for the garbage collector."""

_MAX_GROWTH_MIB = 512
"""Growth over many decisions after which the process ends, and a new process takes its place."""

_TRIM_MIB = 64
"""Growth in one decision after which free memory is returned to the system."""


Place = Callable[[Snapshot, Any, Limits], Answer]
"""`placement.place.place`, `placement.alternatives.alternatives`, or `placement.clearing.clear`."""


def main(fd: int, parent: int, place: str) -> None:
    """Serve requests on the socket `fd` until it is closed."""
    _detach_from_terminal(parent)
    channel = socket.socket(fileno=fd)
    for loaded_late in _LOADED_LATE:
        importlib.import_module(loaded_late)
    serve(channel, pkgutil.resolve_name(place))


def serve(channel: socket.socket, place: Place) -> None:
    """Answer each `SolveRequest` on the socket. Return once the service has closed the socket."""
    replica, settled = Replica(), 0
    wire.send(channel, wire.encode(Ready()))
    while True:
        try:
            body = wire.receive(channel)
        except (EOFError, ConnectionError):
            return
        baseline = data_bytes()
        settled = settled or baseline
        try:
            ask = wire.decode(body)
            assert isinstance(ask, SolveRequest)
            _set_limits(baseline, ask)
            answer = _answer(replica, ask, place)
            renewed = len(ask.difference.changed)
            del ask, body
            if data_bytes() - baseline > _TRIM_MIB << 20:
                _return_free_memory()
            ends = data_bytes() - settled > _MAX_GROWTH_MIB << 20 and renewed <= _MANY
            reply = wire.encode(replace(answer, ends=ends) if isinstance(answer, SolveReply) else answer)
        except MemoryError:
            reply, ends, renewed = _OUT_OF_MEMORY, True, 0
        _remove_limits()
        try:
            wire.send(channel, reply)
        except (BrokenPipeError, ConnectionError):
            return
        if ends:
            return  # the service starts a new process
        if renewed > _MANY:  # long-lived objects, which no collection needs to read
            gc.collect()
            gc.freeze()
            settled = data_bytes()


_OUT_OF_MEMORY = wire.encode(OutOfMemory())
"""Encoded in advance, because there may be no memory to encode it later."""


def _answer(replica: Replica, ask: SolveRequest, place: Place) -> SolveReply | DefectReply:
    snapshot, request = replica.apply(ask.difference), ask.request
    if isinstance(request, ClearQuestion) and ask.occupants is not None:
        occupancy = replica.occupancy(request.occupancy, ask.occupants)
        request = replace(request, occupancy=occupancy)
    began = time.process_time()
    timings = Timings(time.monotonic)

    def seconds_left() -> float:
        return min(ask.until - time.monotonic(), began + ask.slice_s - time.process_time())

    limits = Limits(ask.deterministic_time, seconds_left, ask.excluded, timings, ask.most_roles)
    try:
        decision = place(snapshot, request, limits)
        return SolveReply(decision, time.process_time() - began, timings.stretches)
    except MemoryError:
        raise
    except Exception as defect:  # noqa: BLE001 - whatever it is, the service is told
        return DefectReply(f"{type(defect).__name__}: {defect}", traceback.format_exc())


def data_bytes() -> int:
    """Return the private writable memory of this process, as RLIMIT_DATA counts it; 0 if it is unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def _set_limits(baseline: int, ask: SolveRequest) -> None:
    """Bound the memory and the time of the decision. The timer ends this process if the service can't."""
    if baseline:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = baseline + ask.memory_bytes
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    signal.setitimer(signal.ITIMER_REAL, max(0.1, ask.until - time.monotonic()) + _LATE_S)


def _remove_limits() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _return_free_memory() -> None:
    """Return free memory to the system, because it would count in the baseline of the next decision."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _detach_from_terminal(parent: int) -> None:
    """Ignore signals from a terminal, and end together with the service."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
