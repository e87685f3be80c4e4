"""A device plugin on its unix socket: it answers the kubelet for one resource of the node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from muster.adapters.agent.generated import v1beta1 as api
from muster.node_agent.booking import Refused

SERVICE = "v1beta1.DevicePlugin"
MAX_BYTES = 32 * 1024 * 1024
STOP_GRACE_S = 2.0
LEFT_WITHIN_S = 1.0
"""Seconds in which a kubelet may still call, after its list of devices has ended."""

T = TypeVar("T")

log = logging.getLogger(__name__)


async def listen(address: str, service: str, handlers: dict[str, Any]) -> Any:
    """Return a server that has begun to answer at this address.

    Raises:
        OSError: the address can't be used.
    """
    options = [("grpc.max_receive_message_length", MAX_BYTES), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    try:
        server.add_insecure_port(address)
    except RuntimeError as problem:
        raise OSError(f"can't listen on {address}: {problem}") from problem
    await server.start()
    return server


class Backend(Protocol):
    """The offers and answers of a plugin. All methods but `devices` may raise Refused. `prefer`, `allocate`
    and `before_start` are for one container."""

    async def why_inexact(self) -> str:
        """Return why planned GPUs are not guaranteed; "" if they are."""

    async def options(self) -> api.DevicePluginOptions:
        """Return the options: the calls that the kubelet may make."""

    def devices(self) -> AsyncIterator[api.ListAndWatchResponse]:
        """Return all devices, and again whenever one changes. The kubelet disconnects at the end."""

    async def prefer(self, available: list[str], must: list[str], size: int) -> Sequence[str]:
        """Return the devices that the kubelet should take: `size` of `available`, and all of `must`."""

    async def allocate(self, devices: list[str]) -> api.ContainerAllocateResponse:
        """Return the answer for the container with these devices."""

    async def before_start(self, devices: list[str]) -> None:
        """Prepare the devices before their container starts."""


class Plugin:
    """Serves one resource."""

    def __init__(self, socket: Path, backend: Backend) -> None:
        self.socket = socket
        self._backend = backend
        self._server: Any = None
        self._ending = asyncio.Event()
        self._lists = 0

    async def start(self) -> None:
        """Listen on the socket.

        Raises:
            OSError: the socket can't be made.
        """
        self.socket.unlink(missing_ok=True)
        self._server = await listen(f"unix:{self.socket}", SERVICE, self._handlers())

    async def stop(self) -> None:
        """End the lists of devices, after which the kubelet asks no more, then all calls. Remove the
        socket."""
        if self._server is not None:
            self._ending.set()
            try:
                await asyncio.sleep(LEFT_WITHIN_S if self._lists else 0)
            finally:
                await self._server.stop(STOP_GRACE_S)
                self._server = None
                self.socket.unlink(missing_ok=True)

    def _handlers(self) -> dict[str, Any]:
        def unary(call: Any, request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                call, request_deserializer=request.parse, response_serializer=bytes
            )

        watch = grpc.unary_stream_rpc_method_handler(
            self._watch, request_deserializer=api.Empty.parse, response_serializer=bytes
        )
        return {
            "GetDevicePluginOptions": unary(self._options, api.Empty),
            "ListAndWatch": watch,
            "GetPreferredAllocation": unary(self._prefer, api.PreferredAllocationRequest),
            "Allocate": unary(self._allocate, api.AllocateRequest),
            "PreStartContainer": unary(self._before_start, api.PreStartContainerRequest),
        }

    async def _options(self, _: api.Empty, context: Any) -> api.DevicePluginOptions:
        return await self._await_or_abort(self._backend.options(), context)

    async def _before_start(
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        await self._await_or_abort(self._backend.before_start(request.devices_ids), context)
        return api.PreStartContainerResponse()

    async def _watch(self, _: api.Empty, __: Any) -> AsyncIterator[api.ListAndWatchResponse]:
        self._lists += 1
        devices, ending = self._backend.devices(), asyncio.ensure_future(self._ending.wait())
        following: asyncio.Future[api.ListAndWatchResponse] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(devices))
                await asyncio.wait({following, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    return
                yield following.result()
        finally:
            self._lists -= 1
            for task in (ending, following):
                if task is not None:
                    task.cancel()

    async def _prefer(
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        answers = []
        for container in request.container_requests:
            choice = (
                container.available_deviceIDs,
                container.must_include_deviceIDs,
                container.allocation_size,
            )
            devices = await self._await_or_abort(self._backend.prefer(*choice), context)
            answers.append(api.ContainerPreferredAllocationResponse(device_i_ds=list(devices)))
        return api.PreferredAllocationResponse(container_responses=answers)

    async def _allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        answers = [
            await self._await_or_abort(self._backend.allocate(container.devices_ids), context)
            for container in request.container_requests
        ]
        return api.AllocateResponse(container_responses=answers)

    async def _await_or_abort(self, answer: Awaitable[T], context: Any) -> T:
        try:
            return await answer
        except Refused as refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
        except Exception as problem:
            log.exception("a defect: the container gets no devices")
            await context.abort(grpc.StatusCode.INTERNAL, f"muster node-agent has a defect: {problem!r}")
        raise AssertionError("abort always raises")
