"""Stands in for the planner in its process: does what the gang's name says."""

from __future__ import annotations

import os
import signal
import time

from muster.domain.causes.not_planned import NotDecided, TookTooLong
from muster.domain.causes.out_of_place import DomainTooSmall
from muster.domain.decision import Decision, Objective, Placed, Unplaceable
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.limits import Limits

MIB = 1 << 20


def place(snapshot: Snapshot, request: Request, limits: Limits) -> Decision:
    """Decide nothing: run for ever, fill the memory, die, or answer."""
    name = request.gang.name
    match name:
        case "spins":
            while True:
                pass
        case "sleeps in C":
            time.sleep(1000)
        case "minds its time":
            assert limits.seconds_left is not None
            while limits.seconds_left() > 0:
                pass
            return Unplaceable(request.gang, (NotDecided(truncated=True),))
        case "fills the memory":
            hoard = [bytearray(MIB) for _ in range(4096)]
            raise AssertionError(f"{len(hoard)} MiB were given")
        case "fills the memory in C":
            hoard = [bytearray(b"\1") * MIB for _ in range(48)]
            time.sleep(1)  # the service looks at it from time to time
            os.kill(os.getpid(), signal.SIGABRT)  # as libstdc++ does when bad_alloc is not caught
        case "says its time":
            assert limits.seconds_left is not None
            return Unplaceable(request.gang, (TookTooLong(limits.seconds_left()),))
        case "takes 32 MiB":
            hoard = [bytearray(b"\1") * MIB for _ in range(32)]
        case "dies":
            os._exit(3)
        case "has a defect":
            raise ZeroDivisionError("oops")
        case "says its process":
            return Unplaceable(request.gang, (DomainTooSmall("node", str(os.getpid()), 0, 0),))
    nodes = ",".join(f"{state.node.name}={state.free_gpus:b}" for state in snapshot.nodes.values())
    return Placed(
        request.gang,
        (),
        Objective(None, (), (), None, (), None, 0.0, 0, len(snapshot.nodes)),
        None,
        nodes,
        True,
    )


def cant_load(*_: object) -> Decision:
    """Never called: `missing` is what is asked for."""
    raise AssertionError
