"""A device plugin on its unix socket: one resource of the node, offered and given out as planned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from muster.adapters.agent.generated import v1beta1 as api
from muster.adapters.agent.kubelet import OPTIONS
from muster.devices.answers import Grant
from muster.devices.inventory import Device

HEALTH = {True: "Healthy", False: "Unhealthy"}
SERVICE = "v1beta1.DevicePlugin"
MOST_BYTES = 32 * 1024 * 1024
STOP_GRACE_S = 2.0

Prefer = Callable[[list[str], list[str], int], Awaitable[tuple[str, ...]]]
Allocate = Callable[[list[str]], Awaitable[Grant]]

log = logging.getLogger(__name__)


class Refused(Exception):
    """No devices are given; the kubelet puts the text into the pod's status."""


class Plugin:
    """Serves one resource. `prefer` and `allocate` answer for each container, and raise Refused."""

    def __init__(self, socket: Path, prefer: Prefer, allocate: Allocate) -> None:
        self.socket = socket
        self._prefer = prefer
        self._allocate = allocate
        self._devices: tuple[Device, ...] = ()
        self._changed = asyncio.Event()
        self._server: Any = None

    def offer(self, devices: tuple[Device, ...]) -> None:
        """Tell the kubelet of these devices from now on."""
        if devices != self._devices:
            self._devices = devices
            self._changed.set()
            self._changed = asyncio.Event()

    async def start(self) -> None:
        """Listen on the socket.

        Raises:
            OSError: it can't be made.
        """
        self.socket.unlink(missing_ok=True)
        options = [("grpc.max_receive_message_length", MOST_BYTES), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self._handler(),))
        try:
            self._server.add_insecure_port(f"unix:{self.socket}")
        except RuntimeError as problem:
            raise OSError(f"can't listen on {self.socket}: {problem}") from problem
        await self._server.start()

    async def stop(self) -> None:
        """End all calls and remove the socket."""
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
            self._server = None
            self.socket.unlink(missing_ok=True)

    def _handler(self) -> Any:
        def unary(call: Any, request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                call, request_deserializer=request.parse, response_serializer=bytes
            )

        watch = grpc.unary_stream_rpc_method_handler(
            self._watch, request_deserializer=api.Empty.parse, response_serializer=bytes
        )
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetDevicePluginOptions": unary(self._options, api.Empty),
                "ListAndWatch": watch,
                "GetPreferredAllocation": unary(self._preferred, api.PreferredAllocationRequest),
                "Allocate": unary(self._allocated, api.AllocateRequest),
                "PreStartContainer": unary(self._before_start, api.PreStartContainerRequest),
            },
        )

    async def _options(self, _: api.Empty, __: Any) -> api.DevicePluginOptions:
        return OPTIONS

    async def _before_start(self, _: api.PreStartContainerRequest, __: Any) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()

    async def _watch(self, _: api.Empty, __: Any) -> AsyncIterator[api.ListAndWatchResponse]:
        while True:
            changed = self._changed
            yield api.ListAndWatchResponse(
                devices=[api.Device(id=each.id, health=HEALTH[each.healthy]) for each in self._devices]
            )
            await changed.wait()

    async def _preferred(
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        answers = []
        for each in request.container_requests:
            asked = (each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size)
            chosen = await self._or_abort(self._prefer(*asked), context)
            answers.append(api.ContainerPreferredAllocationResponse(device_i_ds=list(chosen)))
        return api.PreferredAllocationResponse(container_responses=answers)

    async def _allocated(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        answers = []
        for each in request.container_requests:
            grant = await self._or_abort(self._allocate(each.devices_ids), context)
            answers.append(_answer(grant))
        return api.AllocateResponse(container_responses=answers)

    async def _or_abort(self, answer: Awaitable[Any], context: Any) -> Any:
        try:
            return await answer
        except Refused as refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
        except Exception as problem:
            log.exception("a defect: the container gets no devices")
            await context.abort(grpc.StatusCode.INTERNAL, f"muster node-agent has a defect: {problem!r}")


def _answer(grant: Grant) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(grant.env),
        mounts=[api.Mount(container_path=path, host_path=path, read_only=True) for path in grant.mounts],
        cdi_devices=[api.CdiDevice(name=name) for name in grant.cdi],
    )
