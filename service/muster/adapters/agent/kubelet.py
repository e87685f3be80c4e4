"""The kubelet's sockets: registration of resources, and the devices that pods hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from muster.adapters.agent.generated import v1, v1beta1

VERSION = "v1beta1"
REGISTER = "/v1beta1.Registration/Register"
LIST = "/v1.PodResourcesLister/List"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
TIMEOUT_S = 4.0
MAX_BYTES = 32 * 1024 * 1024
OPTIONS = v1beta1.DevicePluginOptions(get_preferred_allocation_available=True)


class KubeletError(Exception):
    """The kubelet or a device plugin did not answer, or refused."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Folders of the kubelet on the node. The kubelet looks for the sockets of plugins in `plugins`."""

    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources")

    @property
    def registration(self) -> Path:
        """Return the socket on which plugins register."""
        return self.plugins / "kubelet.sock"


def creation_time(socket: Path) -> int:
    """Return when a socket was made, in ns; 0 if there is none.

    The time identifies the socket, because inode numbers are used again.
    """
    try:
        return socket.stat().st_ctime_ns
    except OSError:
        return 0


async def register(sockets: Sockets, endpoint: str, resource: str) -> None:
    """Offer a resource, whose plugin answers on the socket `endpoint`.

    Raises:
        KubeletError: refused, or no answer in time.
    """
    request = v1beta1.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=OPTIONS
    )
    await call(sockets.registration, REGISTER, request, v1beta1.Empty)


async def devices_of_pods(sockets: Sockets, resource: str) -> dict[str, dict[str, list[str]]]:
    """Return pod → container → devices that it holds. Pods without devices are included.

    Raises:
        KubeletError: no answer in time.
    """
    request, socket = v1.ListPodResourcesRequest(), sockets.pod_resources / "kubelet.sock"
    answer = await call(socket, LIST, request, v1.ListPodResourcesResponse)
    return {
        f"{pod.namespace}/{pod.name}": _devices_by_container(pod, resource) for pod in answer.pod_resources
    }


async def devices_of_node(sockets: Sockets, resource: str) -> list[str]:
    """Return the healthy devices of a resource, as the kubelet knows them.

    Raises:
        KubeletError: no answer in time.
    """
    request, socket = v1.AllocatableResourcesRequest(), sockets.pod_resources / "kubelet.sock"
    answer = await call(socket, ALLOCATABLE, request, v1.AllocatableResourcesResponse)
    return [
        device for group in answer.devices if group.resource_name == resource for device in group.device_ids
    ]


def _devices_by_container(pod: v1.PodResources, resource: str) -> dict[str, list[str]]:
    devices_by_container: dict[str, list[str]] = {}
    for container in pod.containers:
        for group in container.devices:
            if group.resource_name == resource and group.device_ids:
                devices_by_container.setdefault(container.name, []).extend(group.device_ids)
    return devices_by_container


async def call(socket: Path, method: str, request: Any, answer: Any) -> Any:
    """Return the answer of the process that listens on the socket.

    Raises:
        KubeletError: refused, or no answer in time.
    """
    options = [("grpc.max_receive_message_length", MAX_BYTES)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        ask = channel.unary_unary(method, request_serializer=bytes, response_deserializer=answer.parse)
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                return await ask(request, timeout=TIMEOUT_S)
        except (grpc.aio.AioRpcError, TimeoutError) as problem:
            why = problem.details() if isinstance(problem, grpc.aio.AioRpcError) else "no answer in time"
            raise KubeletError(f"{method} at {socket}: {why}") from problem
