"""Free ports on the loopback, below the range from which the kernel takes ports by itself.

A port that was free a moment ago may be taken when the program binds it: who starts a program tries
again with another one. Staying outside of the kernel's own range makes that rare.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable

LOWEST, HIGHEST = 15000, 32000
"""Linux's ephemeral ports begin at 32768."""

ATTEMPTS = 200
STARTS = 5
IN_USE = "address already in use"
"""What a program says when its port is taken, in any case."""


class NoFreePort(RuntimeError):
    """Nearly everything on the loopback is taken."""


def free_port(besides: frozenset[int] = frozenset()) -> int:
    """Return a free port that is not in `besides`."""
    for _ in range(ATTEMPTS):
        port = random.randint(LOWEST, HIGHEST)
        if port not in besides and is_free(port):
            return port
    raise NoFreePort(f"no free port found on 127.0.0.1 between {LOWEST} and {HIGHEST} in {ATTEMPTS} attempts")


def is_free(port: int) -> bool:
    """Return whether the port can be bound on the loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ours, just stopped, is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def start_on_free_ports(start: Callable[[], None], stop: Callable[[], None]) -> None:
    """Call `start`, which chooses ports and starts a program; again if another process took a port first.

    Raises:
        RuntimeError: what `start` raised, for another reason or for the fifth time. `stop` was called.
    """
    for attempt in range(1, STARTS + 1):
        try:
            start()
        except RuntimeError as problem:
            stop()
            if IN_USE not in str(problem).lower() or attempt == STARTS:
                raise
        else:
            return
