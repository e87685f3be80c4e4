"""The node agent as a process. `muster node-agent` becomes it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

# betterproto2 would load it where it is there: 7 MB, for types that the agent has not
sys.modules["pydantic"] = None  # type: ignore[assignment]

from muster.adapters.agent.api import Access, ApiError, ApiServer
from muster.adapters.agent.gpus import source_of
from muster.adapters.agent.kubelet import Sockets
from muster.adapters.agent.memory import give_back
from muster.adapters.agent.run import Settings, serve
from muster.adapters.agent.settings import Arguments
from muster.devices.inventory import InventoryError


def main(text: str) -> int:
    """Run the agent until SIGTERM, and return the exit status."""
    arguments = Arguments.read(text)
    logging.basicConfig(
        stream=sys.stderr, level=arguments.log_level, format="%(asctime)s %(levelname)s %(message)s"
    )
    kubelet = Path(arguments.kubelet)
    settings = Settings(
        arguments.node,
        Sockets(kubelet / "device-plugins", kubelet / "pod-resources"),
        arguments.library,
        arguments.cdi,
        arguments.probe_port,
    )
    try:
        source = source_of(arguments.gpus)
        give_back()
        access = Access.of_pod()
        serve(settings, source, ApiServer(access), ApiServer(access))
    except (InventoryError, ApiError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
