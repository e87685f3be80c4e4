"""A node agent at work: a fake kubelet, a fake API server, and GPUs that a file describes.

`make device-check` uses it too, on machines that have the agent's packages alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from local_cluster.patience import HANG_S
from muster.adapters.agent.api import ApiError, ApiServer
from muster.adapters.agent.gpus import MatrixFile
from muster.adapters.agent.run import Agent, AgentSettings, Times
from tests.adapters.fake_kubelet import Asking, FakeKubelet

MATRIX = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV2\tSYS\nGPU1\tNV2\t X \tSYS\nGPU2\tSYS\tSYS\t X \n"
ALL = ["GPU-0", "GPU-1", "GPU-2"]


@dataclass
class FakeApi:
    """The node and its pods, as the API server has them; and all that was written."""

    labels: dict[str, str] = field(default_factory=lambda: {"ack.node.gpu.schedule": "topology"})
    annotations: dict[str, str] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    kubelet: str = "v1.37.1"
    down: bool = False
    written: asyncio.Queue[tuple[str, Any]] = field(default_factory=asyncio.Queue)

    async def get(self, subject: str, path: str, query: dict[str, str] | None = None) -> bytes:
        if self.down:
            raise ApiError(f"GET {subject}", 0, "no answer in time")
        if path == "/api/v1/pods":
            assert query is not None
            assert "spec.nodeName=n" in query["fieldSelector"]
            return json.dumps({"items": self.pods}).encode()
        meta = {"name": "n", "labels": self.labels, "annotations": self.annotations}
        return json.dumps(
            {"metadata": meta, "status": {"nodeInfo": {"kubeletVersion": self.kubelet}}}
        ).encode()

    def close(self) -> None:
        pass

    async def post(self, _: str, path: str, body: Any) -> None:
        self.written.put_nowait((path, body))

    async def merge_patch(self, _: str, path: str, body: Any) -> None:
        self.written.put_nowait((path, body))
        if path == "/api/v1/nodes/n":
            for part, store in (("labels", self.labels), ("annotations", self.annotations)):
                for key, value in body["metadata"].get(part, {}).items():
                    store.pop(key, None) if value is None else store.update({key: value})

    async def until(self, path: str) -> Any:
        """Return the next write to a path."""
        async with asyncio.timeout(HANG_S):
            while True:
                write_path, body = await self.written.get()
                if write_path.startswith(path):
                    return body


def pod(
    name: str, *gpus: int, uid: str = "u", started: bool = False, resource: str = "aliyun.com/gpu"
) -> dict[str, Any]:
    """Return a pod of the node; one without GPUs has no plan, and asks for one."""
    allocation = {"version": 1, "gpus": list(gpus)}
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": uid,
            "annotations": {"gpu.topology/allocation": json.dumps(allocation)} if gpus else {},
        },
        "spec": {
            "nodeName": "n",
            "schedulerName": "muster",
            "containers": [{"name": "main", "resources": {"limits": {resource: str(len(gpus) or 1)}}}],
        },
        "status": {"phase": "Pending", **({"startTime": "2026-11-01T00:00:00Z"} if started else {})},
    }


@dataclass
class World:
    kubelet: FakeKubelet
    api: FakeApi
    file: Path
    settled_after_s: float = 0.0

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        times = Times(0.02, 0.02, 0.05, self.settled_after_s)
        settings = AgentSettings("n", self.kubelet.sockets, look_every_s=0.02, times=times)
        api = cast(ApiServer, self.api)
        stop = asyncio.Event()
        agent = Agent(settings, MatrixFile(self.file), api, api)
        running = asyncio.create_task(agent.run(stop))
        try:
            yield agent
        finally:
            stop.set()
            async with asyncio.timeout(HANG_S):
                await running

    async def plugin(self) -> Asking:
        """Wait for a registration, and speak to what it names."""
        async with asyncio.timeout(HANG_S):
            request = await self.kubelet.registered.get()
        assert request.options is not None
        assert request.options.get_preferred_allocation_available
        return Asking(self.kubelet.sockets.plugins / request.endpoint)


async def next_devices(stream: Any) -> dict[str, str]:
    async with asyncio.timeout(HANG_S):
        answer = await anext(stream)
    return {device.id: device.health for device in answer.devices}


async def refused(answer: Any) -> str:
    try:
        await answer
    except grpc.aio.AioRpcError as failed:
        assert failed.code() == grpc.StatusCode.FAILED_PRECONDITION  # noqa: PT017 - pytest may be missing
        return str(failed.details())
    raise AssertionError("it was not refused")
