"""The agent's device plugin with the GPUs of this machine, between a fake kubelet and a fake API server."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

from checks.devices.smi import LIMIT_S
from checks.devices.table import DIFFERS, SAME, UNKNOWN, Row, same
from muster.adapters.agent.api import ApiServer
from muster.adapters.agent.gpus import Source
from muster.adapters.agent.run import Agent, AgentSettings
from muster.node_agent.hardware import MATRIX, UUIDS
from tests.adapters.agent_world import FakeApi, next_devices, pod, refused
from tests.adapters.fake_kubelet import Asking, FakeKubelet

NODE = "n"
"""As the fake API server calls it."""
MAX_LIFE_S = 60.0


def spoken(source: Source) -> Iterator[Row]:
    """Yield the rows of one life of the agent."""

    async def speak() -> list[Row]:
        async with asyncio.timeout(MAX_LIFE_S):
            return [row async for row in _rows(source)]

    yield from asyncio.run(speak())


async def _rows(source: Source) -> AsyncIterator[Row]:
    uuids = [gpu.uuid for gpu in source.read().inventory.gpus]
    api, stop = FakeApi(), asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        async with FakeKubelet(Path(folder)) as kubelet:
            for_both = cast(ApiServer, api)
            agent = Agent(AgentSettings(NODE, kubelet.sockets), source, for_both, for_both)
            running = asyncio.create_task(agent.run(stop))
            try:
                request = await kubelet.registered.get()
                yield same("plugin registers", request.resource_name, kubelet.resource)
                plugin = Asking(kubelet.sockets.plugins / request.endpoint)
                async for row in _checked(plugin, kubelet, api, uuids):
                    yield row
                await plugin.close()
                await api.until(f"/api/v1/nodes/{NODE}")
            finally:
                stop.set()
                await running
    annotations = api.annotations
    yield same("node names its GPUs", annotations.get(UUIDS), ",".join(uuids), f"annotation {UUIDS}")
    yield Row(
        "node names its links",
        SAME if annotations.get(MATRIX) else DIFFERS,
        annotations.get(MATRIX, f"no {MATRIX}"),
    )


async def _checked(
    plugin: Asking, kubelet: FakeKubelet, api: FakeApi, uuids: list[str]
) -> AsyncIterator[Row]:
    """Ask as a kubelet does: for a pod without a plan, and for one whose plan has all GPUs, backwards."""
    listed = await next_devices(plugin.devices())
    yield same("plugin lists", listed, dict.fromkeys(uuids, "Healthy"), f"{len(uuids)} healthy devices")
    kubelet.pods, api.pods = {"team/a": {}}, [pod("a")]
    yield Row("no plan, no GPU", SAME, await refused(plugin.prefer(uuids, 1)))
    api.pods = [pod("a", *reversed(range(len(uuids))))]
    planned = uuids[::-1]
    yield same("kubelet is told to take", await plugin.prefer(uuids, len(uuids)), planned, "the plan's GPUs")
    allocation = await plugin.allocate(sorted(uuids))
    yield same("container sees", allocation.envs.get("NVIDIA_VISIBLE_DEVICES"), ",".join(planned))
    names = [device.name for device in allocation.cdi_devices]
    yield same("container gets by CDI", names, [f"nvidia.com/gpu={uuid}" for uuid in planned])
    yield _cdi(names)


def _cdi(names: list[str]) -> Row:
    """Return whether NVIDIA's toolkit knows the names on this machine."""
    title, cdi_devices = "names known by CDI", ""
    if shutil.which("nvidia-ctk") is None:
        return Row(title, UNKNOWN, "there is no nvidia-ctk")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-ctk", "cdi", "list"]
        cdi_devices = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=True
        ).stdout
    lacking = [name for name in names if name not in cdi_devices]
    if not cdi_devices.strip() or len(lacking) == len(names):
        return Row(title, UNKNOWN, "nvidia-ctk cdi list has none of them")
    return Row(title, DIFFERS if lacking else SAME, ", ".join(lacking))
