"""Answer the kubelet for a resource: by the agent itself, or by another vendor's device plugin with the agent
in front of it.

`OwnDevices` offers GPUs, or memory of them, that no other plugin gives out. `SecondEndpoint` is a second
endpoint for the resource of another device plugin, which is not changed.

The kubelet keeps several endpoints of one resource, and asks the endpoint that registered last. The second
endpoint passes everything on to the other plugin, except for the choice of devices: a container whose pod has
a plan gets the planned devices or none. For pods without a plan the other plugin chooses, if possible from
devices that no plan names.

Only the other plugin lists the devices. NVIDIA's plugin keeps a ListAndWatch stream open after its client has
gone, and sends each change of health to only one stream. So a second stream could swallow changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from muster.adapters.agent.allocation import Allocator, target_of
from muster.adapters.agent.api import Outbox
from muster.adapters.agent.generated import v1beta1 as api
from muster.adapters.agent.kubelet import OPTIONS, KubeletError, Sockets, call, devices_of_node
from muster.adapters.agent.plugin import SERVICE
from muster.domain.allocation import ASSIGNED, MEM_ASSIGNED
from muster.node_agent.booking import Planless, Refused
from muster.node_agent.inventory import MEMORY, KubeletDevice

NOT_ISOLATED = "GpuMemoryNotIsolated"
"""Reason of an event."""
HEALTH = {True: "Healthy", False: "Unhealthy"}
T = TypeVar("T")


class OwnDevices:
    """Answers for one resource. A pod without a plan gets no device."""

    def __init__(self, allocator: Allocator, outbox: Outbox) -> None:
        self._allocator = allocator
        self._outbox = outbox
        self._devices: tuple[KubeletDevice, ...] = ()
        self._changed = asyncio.Event()

    def offer(self, devices: tuple[KubeletDevice, ...]) -> None:
        """Offer these devices to the kubelet from now on."""
        if devices != self._devices:
            self._devices = devices
            self._changed.set()
            self._changed = asyncio.Event()

    async def why_inexact(self) -> str:
        """Return "": containers always get the planned devices."""
        return ""

    async def options(self) -> api.DevicePluginOptions:
        """Return that the kubelet may ask which devices to take."""
        return OPTIONS

    async def devices(self) -> AsyncIterator[api.ListAndWatchResponse]:
        """Yield the offered devices, and again whenever they change."""
        while True:
            changed = self._changed
            devices = [api.Device(id=device.id, health=HEALTH[device.healthy]) for device in self._devices]
            yield api.ListAndWatchResponse(devices=devices)
            await changed.wait()

    async def prefer(self, available: list[str], must: list[str], size: int) -> tuple[str, ...]:
        """Return the planned devices of the container in admission.

        Raises:
            Refused: there is no plan, or it can't be kept.
        """
        try:
            return await self._allocator.prefer(available, must, size)
        except Planless as without:
            self._allocator.note_choice(())
            raise self._allocator.refuse(None, str(without)) from without

    async def allocate(self, devices: list[str]) -> api.ContainerAllocateResponse:
        """Return the answer for the container with these devices, and mark its pod.

        Raises:
            Refused: the devices are not the devices that `prefer` returned.
        """
        allocation = await self._allocator.allocate(devices)
        grant, pod = allocation.grant, target_of(allocation.waiter)
        for note in grant.notes:
            self._outbox.event(pod, NOT_ISOLATED, note)
        if not allocation.booking.lends:
            assigned = MEM_ASSIGNED if self._allocator.resource == MEMORY else ASSIGNED
            self._outbox.annotate(pod, {assigned: "true"})
        return api.ContainerAllocateResponse(
            envs=dict(grant.env),
            mounts=[api.Mount(container_path=path, host_path=path, read_only=True) for path in grant.mounts],
            cdi_devices=[api.CdiDevice(name=name) for name in grant.cdi if self._allocator.facts.cdi],
        )

    async def before_start(self, devices: list[str]) -> None:
        """Do nothing, because the options do not ask the kubelet to call this."""


class SecondEndpoint:
    """Answers for the resource of the plugin on the socket `first_plugin_socket`. `on_missing` gets the GPUs
    of the node that this plugin does not offer, or calls unhealthy, so that no pod is planned on them."""

    def __init__(
        self,
        first_plugin_socket: Path,
        sockets: Sockets,
        allocator: Allocator,
        on_missing: Callable[[frozenset[str]], None],
    ) -> None:
        self._first_plugin = first_plugin_socket
        self._sockets = sockets
        self._allocator = allocator
        self._on_missing = on_missing

    async def why_inexact(self) -> str:
        """Return why containers may get other GPUs than planned.

        Raises:
            Refused: the first plugin does not answer.
        """
        await self.options()
        try:
            devices = await devices_of_node(self._sockets, self._allocator.resource)
        except KubeletError as problem:
            return str(problem)
        if foreign := self._foreign_device(devices):
            offers = f"the device plugin of {self._allocator.resource} offers {foreign}"
            return f"{offers}, which is no whole GPU of the node: with time slicing or MIG it chooses itself"
        if devices:  # a kubelet that starts has no devices yet
            gpus = self._allocator.facts.inventory.gpus
            self._on_missing(frozenset(gpu.uuid for gpu in gpus) - set(devices))
        return ""

    async def options(self) -> api.DevicePluginOptions:
        """Return the options of the first plugin. The kubelet may always ask which devices to take."""
        options = await self._options_of_first()
        options.get_preferred_allocation_available = True
        return options

    async def devices(self) -> AsyncIterator[api.ListAndWatchResponse]:
        """Yield no devices, and never end."""
        await asyncio.Event().wait()
        yield api.ListAndWatchResponse()

    async def prefer(self, available: list[str], must: list[str], size: int) -> list[str]:
        """Return the planned devices, or the first plugin's choice for a pod without a plan.

        Raises:
            Refused: the plan can't be kept, or the first plugin does not answer.
        """
        planned = frozenset[str]()
        if not self._foreign_device(available):
            try:
                return list(await self._allocator.prefer(available, must, size))
            except Planless as no_plan:
                planned = no_plan.planned
        unplanned = [device for device in available if device not in planned or device in must]
        devices = list[str]()
        try:
            devices = await self._choose(unplanned if len(unplanned) >= size else available, must, size)
        finally:
            self._allocator.note_choice(devices)
        return devices

    async def allocate(self, devices: list[str]) -> api.ContainerAllocateResponse:
        """Return the first plugin's answer for the container with these devices.

        Raises:
            Refused: the devices are not the planned ones, or the first plugin does not answer.
        """
        if not self._foreign_device(devices) and not await self._allocator.may_pass_on(devices):
            await self._allocator.allocate(devices)
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=devices)])
        answer: api.AllocateResponse = await self._ask("Allocate", request, api.AllocateResponse)
        return _only_answer(answer.container_responses)

    async def before_start(self, devices: list[str]) -> None:
        """Pass the call on to the first plugin.

        Raises:
            Refused: the first plugin does not answer.
        """
        request = api.PreStartContainerRequest(devices_ids=devices)
        await self._ask("PreStartContainer", request, api.PreStartContainerResponse)

    async def _choose(self, available: list[str], must: list[str], size: int) -> list[str]:
        """Return the choice of the first plugin. If the plugin does not choose, any devices will do."""
        options = await self._options_of_first()
        if not options.get_preferred_allocation_available:
            return [*must, *(device for device in available if device not in must)][:size]
        container = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = api.PreferredAllocationRequest(container_requests=[container])
        answer = await self._ask("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        return list(_only_answer(answer.container_responses).device_i_ds)

    async def _options_of_first(self) -> api.DevicePluginOptions:
        options: api.DevicePluginOptions
        options = await self._ask("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        return options

    async def _ask(self, method: str, request: Any, answer: Any) -> Any:
        try:
            return await call(self._first_plugin, f"/{SERVICE}/{method}", request, answer)
        except KubeletError as problem:
            resource = self._allocator.resource
            raise Refused(f"the device plugin of {resource} does not answer: {problem}") from problem

    def _foreign_device(self, devices: Iterable[str]) -> str:
        """Return a device that is no whole GPU of this node; "" if there is none."""
        inventory = self._allocator.facts.inventory
        return next((device for device in devices if inventory.index_of(device) is None), "")


def _only_answer(answers: list[T]) -> T:
    """Return the only answer. There is one, because the kubelet asks about one container at a time."""
    if len(answers) != 1:
        raise Refused(f"the first device plugin has {len(answers)} answers for one container")
    return answers[0]
