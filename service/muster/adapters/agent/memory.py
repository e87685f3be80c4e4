"""Memory of the agent's process: it runs on each node, for as long as the node does."""

from __future__ import annotations

import contextlib
import ctypes


def give_back() -> None:
    """Give memory that is free back to the kernel, since the C library would keep it.

    Where Python has to compile NVIDIA's binding of NVML first, that is 11 MB. Other C libraries than
    glibc have no such function: there nothing happens.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
