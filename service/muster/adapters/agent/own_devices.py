"""GPUs, or memory of them, that the node agent itself offers: no other plugin gives them out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from muster.adapters.agent.allocation import Allocator, NoPlan, target
from muster.adapters.agent.generated import v1beta1 as api
from muster.adapters.agent.kubelet import OPTIONS
from muster.adapters.agent.outbox import Outbox
from muster.devices.inventory import MEMORY, Device
from muster.domain.allocation import ASSIGNED, MEM_ASSIGNED

NOT_ISOLATED = "GpuMemoryNotIsolated"
"""Reason of an event."""
HEALTH = {True: "Healthy", False: "Unhealthy"}


class OwnDevices:
    """Answers for one resource. A pod without a plan gets nothing."""

    def __init__(self, allocator: Allocator, outbox: Outbox) -> None:
        self._allocator = allocator
        self._outbox = outbox
        self._devices: tuple[Device, ...] = ()
        self._changed = asyncio.Event()

    def offer(self, devices: tuple[Device, ...]) -> None:
        """Tell the kubelet of these devices from now on."""
        if devices != self._devices:
            self._devices = devices
            self._changed.set()
            self._changed = asyncio.Event()

    async def look(self) -> str:
        """Return "": a container gets what is planned."""
        return ""

    async def options(self) -> api.DevicePluginOptions:
        """Return that the kubelet may ask which devices to take."""
        return OPTIONS

    async def devices(self) -> AsyncIterator[api.ListAndWatchResponse]:
        """Return what is offered, and again whenever it changes."""
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
        except NoPlan as without:
            self._allocator.chose(())
            raise self._allocator.refuse(None, str(without)) from without

    async def allocate(self, devices: list[str]) -> api.ContainerAllocateResponse:
        """Return what the container of these devices gets, and mark its pod.

        Raises:
            Refused: they are not what was answered.
        """
        allocation = await self._allocator.allocate(devices)
        grant, pod = allocation.grant, target(allocation.waiter)
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
        """Do nothing: the kubelet was not told to ask."""
