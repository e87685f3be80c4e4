"""Which planned devices a container of this node gets: from what the kubelet and the API server know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from muster.adapters.agent.api import ApiError, ApiServer
from muster.adapters.agent.kubelet import KubeletError, Sockets, devices_of_pods
from muster.adapters.agent.outbox import Outbox, Target
from muster.adapters.agent.plugin import Refused
from muster.adapters.agent.pods import waiters
from muster.devices.answers import VISIBLE, Isolation
from muster.devices.booking import Planless, Refusal, Waiter
from muster.devices.inventory import Inventory, uuid_of
from muster.devices.turns import Given, Turns
from muster.domain.allocation import DEVICES, write_devices

REFUSED, DIFFER = "GpusRefused", "GpusDiffer"
"""Reasons of events."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Facts:
    """What the node has now: it may change while the agent runs. `cdi`: containerd knows the GPUs by CDI."""

    inventory: Inventory
    isolation: Isolation
    cdi: bool = True


class NoPlan(Refused):
    """The container's pod has no plan. `planned` are the GPUs that plans of other pods on the node name."""

    def __init__(self, text: str, planned: frozenset[str]) -> None:
        super().__init__(text)
        self.planned = planned


class Allocator:
    """Answers the kubelet for one resource, one question after another."""

    def __init__(
        self, api: ApiServer, sockets: Sockets, outbox: Outbox, node: str, resource: str, facts: Facts
    ) -> None:
        self.facts = facts
        self.resource = resource
        self._api = api
        self._sockets = sockets
        self._outbox = outbox
        self._node = node
        self._turns = Turns()
        self._lock = asyncio.Lock()
        self._compared: dict[str, frozenset[str]] = {}

    async def prefer(self, available: list[str], must: list[str], size: int) -> tuple[str, ...]:
        """Return the devices that the container in admission should get.

        Raises:
            NoPlan: its pod has no plan. That is not told to the user yet.
            Refused: its plan can't be kept.
        """
        async with self._lock:
            try:
                devices_by_pod = await devices_of_pods(self._sockets, self.resource)
                pods = await self._waiters()
            except (KubeletError, ApiError, msgspec.DecodeError) as problem:
                raise self.refuse(None, f"the plan of its GPUs can't be read: {problem}") from problem
            inventory = self.facts.inventory
            waiter, devices = self._turns.prefer(pods, devices_by_pod, inventory, (available, must, size))
            if not isinstance(devices, Refusal):
                return devices
            if isinstance(devices, Planless):
                raise NoPlan(devices.text, _planned_uuids(pods, inventory))
            raise self.refuse(waiter, devices.text)

    async def allocate(self, devices: list[str]) -> Given:
        """Return the container that gets these devices, with what it gets.

        Raises:
            Refused: they are not what was answered.
        """
        async with self._lock:
            allocation = self._turns.allocate(self.facts.inventory, devices, self.facts.isolation)
            if isinstance(allocation, Refusal):
                raise self.refuse(None, allocation.text)
            gpus = allocation.grant.env[VISIBLE]
            log.info("%s: container %s gets %s", allocation.waiter.name, allocation.booking.container, gpus)
            return allocation

    def chose(self, devices: Collection[str]) -> None:
        """Remember what another plugin chose for a pod without a plan; nothing if it did not answer."""
        self._turns.chose(devices)

    async def may_pass_on(self, devices: list[str]) -> bool:
        """Return whether another plugin may give these devices to the container in admission.

        It may if it chose these devices for a pod without a plan, or if no pod with a plan waits.

        Raises:
            Refused: the API server does not answer.
        """
        async with self._lock:
            if (passed_on := self._turns.take_passed_on(devices)) is not None:
                self._tell(*passed_on)
                return True
            try:
                pods = await self._waiters()
            except (ApiError, msgspec.DecodeError) as problem:
                raise self.refuse(None, f"whether its GPUs are planned can't be read: {problem}") from problem
            return not any(waiter.has_plan and not waiter.admitted for waiter in pods)

    def refuse(self, waiter: Waiter | None, text: str) -> Refused:
        """Return the refusal, and tell of it on the pod, or on the node if the pod is not known."""
        self._outbox.event(target(waiter) if waiter else Target(self._node, ""), REFUSED, text)
        return Refused(text)

    def _tell(self, waiter: Waiter | None, devices: frozenset[str]) -> None:
        """Report the GPUs of a pod without a plan at once: others must be planned around them."""
        indices = {self.facts.inventory.place(uuid_of(device)) for device in devices}
        if waiter is not None:
            gpus = {index for index in indices if index is not None}
            self._outbox.annotate(target(waiter), {DEVICES: write_devices(gpus)})

    async def _waiters(self) -> list[Waiter]:
        return await waiters(self._api, self._node, self.resource)

    async def compare(self) -> bool:
        """Compare the devices that containers hold with the plans, for pods whose devices changed since the
        last call.

        Return whether a pod with a plan has other GPUs.

        Raises:
            KubeletError: the kubelet does not answer.
            ApiError: the API server does not.
        """
        async with self._lock:
            if self._turns.pending:
                return False  # a List now could free the devices of the container in admission
            gpus_by_pod = {
                pod: frozenset(uuid_of(device) for devices in containers.values() for device in devices)
                for pod, containers in (await devices_of_pods(self._sockets, self.resource)).items()
                if containers
            }
            new = {pod for pod, gpus in gpus_by_pod.items() if self._compared.get(pod) != gpus}
            pods = await self._waiters() if new else []
            compared = [waiter for waiter in pods if waiter.name in new and waiter.admitted]
            differ = [
                self._report(waiter, gpus_by_pod[waiter.name]) and waiter.has_plan for waiter in compared
            ]
            # in admission, the later containers of a pod have no devices yet
            coming = {waiter.name for waiter in pods if not waiter.admitted}
            self._compared = {pod: gpus for pod, gpus in gpus_by_pod.items() if pod not in coming}
            return any(differ)

    def _report(self, waiter: Waiter, gpus: frozenset[str]) -> bool:
        """Report other GPUs than the planned ones: they count from then on. Return whether there are any."""
        inventory = self.facts.inventory
        planned = {gpu for booking in waiter.bookings if not booking.lends for gpu in booking.gpus}
        places = {inventory.place(uuid) for uuid in gpus}
        indices = {index for index in places if index is not None}
        if len(indices) < len(gpus):
            text = f"its containers hold {len(gpus)} GPUs, of which the node has {len(indices)} now"
            self._outbox.event(target(waiter), DIFFER, text)
        elif indices != planned:
            self._outbox.annotate(target(waiter), {DEVICES: write_devices(indices)})
            log.warning("%s has GPUs %s, planned %s", waiter.name, sorted(indices), sorted(planned))
        return indices != planned


def target(waiter: Waiter) -> Target:
    """Return the pod, as events name it."""
    namespace, _, name = waiter.name.partition("/")
    return Target(name, waiter.uid, namespace)


def _planned_uuids(pods: list[Waiter], inventory: Inventory) -> frozenset[str]:
    indices = {gpu for waiter in pods for booking in waiter.bookings for gpu in booking.gpus}
    return frozenset(gpu.uuid for gpu in inventory.gpus if gpu.index in indices)
