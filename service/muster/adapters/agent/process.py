"""The node agent as a process: `muster node-agent`."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
from pathlib import Path

# betterproto2 would load it if it is installed: 7 MB, for types that the agent does not have
sys.modules["pydantic"] = None  # type: ignore[assignment]

from muster.adapters.agent.api import ApiAccess, ApiError, ApiServer
from muster.adapters.agent.gpus import source_of
from muster.adapters.agent.kubelet import Sockets
from muster.adapters.agent.run import AgentSettings, serve
from muster.node_agent.inventory import InventoryError


def main(
    node: str, gpus: str, library: str, cdi: bool, kubelet: Path, probe_port: int, log_level: str
) -> int:
    """Run the agent until SIGTERM, and return the exit status."""
    logging.basicConfig(stream=sys.stderr, level=log_level, format="%(asctime)s %(levelname)s %(message)s")
    sockets = Sockets(kubelet / "device-plugins", kubelet / "pod-resources")
    settings = AgentSettings(node, sockets, library, cdi, probe_port)
    try:
        source = source_of(gpus)
        give_back()
        access = ApiAccess.of_pod()
        serve(settings, source, ApiServer(access), ApiServer(access))
    except (InventoryError, ApiError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


def give_back() -> None:
    """Give free memory back to the kernel, because the C library would keep it.

    If Python had to compile NVIDIA's binding of NVML first, this is 11 MB. C libraries other than glibc have
    no such function, and nothing happens with them.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
