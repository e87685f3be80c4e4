"""Answers for the containers of one node: from what the kubelet and the API server know, or a refusal."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

import msgspec

from muster.adapters.agent.api import ApiError, ApiServer
from muster.adapters.agent.kubelet import KubeletError, Sockets, devices_of_pods
from muster.adapters.agent.outbox import Outbox, Target
from muster.adapters.agent.plugin import Refused
from muster.adapters.agent.pods import waiters
from muster.devices.answers import VISIBLE, Grant, Isolation
from muster.devices.booking import Refusal, Waiter
from muster.devices.inventory import MEMORY, Inventory, uuid_of
from muster.devices.turns import Turns
from muster.domain.allocation import ASSIGNED, DEVICES, MEM_ASSIGNED, write_devices

REFUSED, NOT_ISOLATED, DIFFER = "GpusRefused", "GpuMemoryNotIsolated", "GpusDiffer"
"""Reasons of events."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Facts:
    """What the node has now: it may change while the agent runs. `cdi`: containerd knows the GPUs by CDI."""

    inventory: Inventory
    isolation: Isolation
    cdi: bool = True


class Allocator:
    """Answers the kubelet for one resource, one question after another."""

    def __init__(
        self, api: ApiServer, sockets: Sockets, outbox: Outbox, node: str, resource: str, facts: Facts
    ) -> None:
        self._api = api
        self._sockets = sockets
        self._outbox = outbox
        self._node = node
        self._resource = resource
        self._facts = facts
        self._turns = Turns()
        self._lock = asyncio.Lock()
        self._compared: dict[str, frozenset[str]] = {}

    async def prefer(self, available: list[str], must: list[str], size: int) -> tuple[str, ...]:
        """Return the devices that the container in admission should get.

        Raises:
            Refused: there is no plan, or it can't be kept.
        """
        async with self._lock:
            try:
                held = await devices_of_pods(self._sockets, self._resource)
                pods = await waiters(self._api, self._node, self._resource)
            except (KubeletError, ApiError, msgspec.DecodeError) as problem:
                raise self._refused(None, f"the plan of its GPUs can't be read: {problem}") from problem
            asked = (available, must, size)
            waiter, chosen = self._turns.prefer(pods, held, self._facts.inventory, asked)
            if isinstance(chosen, Refusal):
                raise self._refused(waiter, chosen.text)
            return chosen

    async def allocate(self, devices: list[str]) -> Grant:
        """Return what the container of these devices gets.

        Raises:
            Refused: they are not what was answered.
        """
        async with self._lock:
            given = self._turns.allocate(self._facts.inventory, devices, self._facts.isolation)
            if isinstance(given, Refusal):
                raise self._refused(None, given.text)
            waiter, grant = given.waiter, given.grant
            log.info("%s: container %s gets %s", waiter.name, given.booking.container, grant.env[VISIBLE])
            for note in grant.notes:
                self._outbox.event(_target(waiter), NOT_ISOLATED, note)
            if not given.booking.lends:
                assigned = MEM_ASSIGNED if self._resource == MEMORY else ASSIGNED
                self._outbox.annotate(_target(waiter), {assigned: "true"})
            return grant if self._facts.cdi else replace(grant, cdi=())

    async def compare(self) -> None:
        """Compare the devices that containers hold with the plans, where they are not those of last time.

        Raises:
            KubeletError: the kubelet does not answer.
            ApiError: the API server does not.
        """
        async with self._lock:
            if self._turns.pending:
                return  # a List now could free the devices of the container in admission
            held = {
                pod: frozenset(uuid_of(device) for devices in containers.values() for device in devices)
                for pod, containers in (await devices_of_pods(self._sockets, self._resource)).items()
                if containers
            }
            new = {pod for pod, gpus in held.items() if self._compared.get(pod) != gpus}
            pods = await waiters(self._api, self._node, self._resource) if new else []
            for waiter in pods:
                if waiter.name in new and waiter.admitted:
                    self._report(waiter, held[waiter.name])
            # in admission, the later containers of a pod have no devices yet
            coming = {waiter.name for waiter in pods if not waiter.admitted}
            self._compared = {pod: gpus for pod, gpus in held.items() if pod not in coming}

    def _report(self, waiter: Waiter, gpus: frozenset[str]) -> None:
        """Tell of other GPUs than the planned ones: from then on these count as taken."""
        inventory = self._facts.inventory
        planned = {gpu for booking in waiter.bookings if not booking.lends for gpu in booking.gpus}
        found = {inventory.place(uuid) for uuid in gpus}
        indices = {index for index in found if index is not None}
        if len(indices) < len(gpus):
            text = f"its containers hold {len(gpus)} GPUs, of which the node has {len(indices)} now"
            self._outbox.event(_target(waiter), DIFFER, text)
        elif indices != planned:
            self._outbox.annotate(_target(waiter), {DEVICES: write_devices(indices)})
            log.warning("%s has GPUs %s, planned %s", waiter.name, sorted(indices), sorted(planned))

    def _refused(self, waiter: Waiter | None, text: str) -> Refused:
        target = _target(waiter) if waiter else Target(self._node, "")
        self._outbox.event(target, REFUSED, text)
        return Refused(text)


def _target(waiter: Waiter) -> Target:
    namespace, _, name = waiter.name.partition("/")
    return Target(name, waiter.uid, namespace)
