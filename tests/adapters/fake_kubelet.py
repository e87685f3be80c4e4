"""A kubelet as far as a device plugin sees it: it takes registrations, and lists pods with their devices."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from local_cluster.patience import HANG_S
from muster.adapters.agent.generated import v1, v1beta1
from muster.adapters.agent.kubelet import Sockets


class FakeKubelet:
    """Its sockets lie in `folder`. `pods`: name → container → devices, as PodResources has them.

    `devices`: all that it may give out.
    """

    def __init__(self, folder: Path, resource: str = "aliyun.com/gpu") -> None:
        self.resource = resource
        self.devices: list[str] = []
        self.sockets = Sockets(folder / "plugins", folder / "pods")
        self.pods: dict[str, dict[str, list[str]]] = {}
        self.registered: asyncio.Queue[v1beta1.RegisterRequest] = asyncio.Queue()
        self.refuse = ""
        self._servers: list[Any] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Make both sockets anew; one that starts removes those of all plugins."""
        for folder in (self.sockets.plugins, self.sockets.pod_resources):
            folder.mkdir(parents=True, exist_ok=True)
            for socket in folder.iterdir():
                socket.unlink()
        await self._serve(
            self.sockets.pod_resources / "kubelet.sock",
            "v1.PodResourcesLister",
            {
                "List": (self._list, v1.ListPodResourcesRequest),
                "GetAllocatableResources": (self._allocatable, v1.AllocatableResourcesRequest),
            },
        )
        await self._serve(
            self.sockets.registration,
            "v1beta1.Registration",
            {"Register": (self._register, v1beta1.RegisterRequest)},
        )

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()

    async def _serve(self, socket: Path, service: str, calls: dict[str, tuple[Any, Any]]) -> None:
        server = grpc.aio.server()
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                call, request_deserializer=request.parse, response_serializer=bytes
            )
            for name, (call, request) in calls.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        self._servers.append(server)

    async def _register(self, request: v1beta1.RegisterRequest, context: Any) -> v1beta1.Empty:
        if self.refuse:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.refuse)
        self.registered.put_nowait(request)
        return v1beta1.Empty()

    async def _allocatable(
        self, _request: v1.AllocatableResourcesRequest, _: Any
    ) -> v1.AllocatableResourcesResponse:
        devices = [v1.ContainerDevices(resource_name=self.resource, device_ids=self.devices)]
        return v1.AllocatableResourcesResponse(devices=devices)

    async def _list(self, _request: v1.ListPodResourcesRequest, _: Any) -> v1.ListPodResourcesResponse:
        resources_of_pods = []
        for pod, containers in self.pods.items():
            namespace, name = pod.split("/")
            devices_of_containers = [
                v1.ContainerResources(
                    name=container,
                    devices=[v1.ContainerDevices(resource_name=self.resource, device_ids=devices)],
                )
                for container, devices in containers.items()
            ]
            resources_of_pods.append(
                v1.PodResources(name=name, namespace=namespace, containers=devices_of_containers)
            )
        return v1.ListPodResourcesResponse(pod_resources=resources_of_pods)


class Asking:
    """The kubelet's side of one device plugin."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}")

    async def prefer(self, available: list[str], size: int) -> list[str]:
        """Ask which devices to take."""
        container_request = v1beta1.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, allocation_size=size
        )
        request = v1beta1.PreferredAllocationRequest(container_requests=[container_request])
        answer = await self._call("GetPreferredAllocation", request, v1beta1.PreferredAllocationResponse)
        return list(answer.container_responses[0].device_i_ds)

    async def allocate(self, devices: list[str]) -> v1beta1.ContainerAllocateResponse:
        """Take devices."""
        container_request = v1beta1.ContainerAllocateRequest(devices_ids=devices)
        request = v1beta1.AllocateRequest(container_requests=[container_request])
        answer = await self._call("Allocate", request, v1beta1.AllocateResponse)
        allocation: v1beta1.ContainerAllocateResponse = answer.container_responses[0]
        return allocation

    async def options(self) -> v1beta1.DevicePluginOptions:
        """Return what may be asked."""
        plugin_options: v1beta1.DevicePluginOptions
        plugin_options = await self._call(
            "GetDevicePluginOptions", v1beta1.Empty(), v1beta1.DevicePluginOptions
        )
        return plugin_options

    async def before_start(self, devices: list[str]) -> None:
        """Tell that a container of these devices starts."""
        request = v1beta1.PreStartContainerRequest(devices_ids=devices)
        await self._call("PreStartContainer", request, v1beta1.PreStartContainerResponse)

    def devices(self) -> Any:
        """Watch the devices."""
        watch = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=bytes,
            response_deserializer=v1beta1.ListAndWatchResponse.parse,
        )
        return watch(v1beta1.Empty()).__aiter__()

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", request_serializer=bytes, response_deserializer=answer.parse
        )
        return await call(request, timeout=HANG_S)
