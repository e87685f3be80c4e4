"""The memory and the share of a core of an agent at rest: a process of its own, with this machine's GPUs.

python -m checks.devices.footprint FOLDER GPUS      that process: its kubelet's folder, and `--gpus`
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from checks.devices.table import FIGURE, Row
from muster.adapters.agent.kubelet import Sockets
from tests.adapters.agent_world import FakeApi
from tests.adapters.fake_kubelet import FakeKubelet

RESTS_S = 30.0
SETTLES_S = 3.0
REGISTERS_S = 60.0
MIB = 1024


def measured(gpus: str, rests_s: float = RESTS_S) -> Iterator[Row]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        memory, anonymous, share = asyncio.run(_life(Path(folder), gpus, rests_s))
    yield Row("agent's memory", FIGURE, f"{memory / MIB:.0f} MiB, {anonymous / MIB:.0f} of it its own")
    yield Row("agent's share of a core", FIGURE, f"{100 * share:.2f} % over {rests_s:g} s at rest")


async def _life(folder: Path, gpus: str, rests_s: float) -> tuple[int, int, float]:
    """Start an agent, let it register, and watch it rest: KiB in memory, KiB of its own, share of a core."""
    kubelet = FakeKubelet(folder)
    kubelet.sockets = Sockets(folder / "device-plugins", folder / "pod-resources")
    async with kubelet:
        with _started(folder, gpus) as process:
            async with asyncio.timeout(REGISTERS_S):
                await kubelet.registered.get()
            await asyncio.sleep(min(SETTLES_S, rests_s))
            before, began = _processor_s(process.pid), time.monotonic()
            await asyncio.sleep(rests_s)
            share = (_processor_s(process.pid) - before) / (time.monotonic() - began)
            return *_memory(process.pid), share


@contextlib.contextmanager
def _started(folder: Path, gpus: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "checks.devices.footprint", str(folder), gpus]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def _memory(pid: int) -> tuple[int, int]:
    """Return the resident KiB of a process, and the KiB of these that no file backs."""
    status = Path(f"/proc/{pid}/status").read_text()
    memory, anonymous = (int(re.findall(rf"{key}:\s+(\d+)", status)[0]) for key in ("VmRSS", "RssAnon"))
    return memory, anonymous


def _processor_s(pid: int) -> float:
    """Return the seconds that a process has computed, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(folder: str, gpus: str) -> int:
    """Be an agent in a cluster of one node, without an API server."""
    from muster.adapters.agent import process as agent  # noqa: PLC0415 - it shuts out a package

    vars(agent).update(ApiAccess=SimpleNamespace(of_pod=lambda: None), ApiServer=lambda _: FakeApi())
    return agent.main("n", gpus, "", True, Path(folder), 0, "WARNING")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
