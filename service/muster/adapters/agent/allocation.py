"""Find the planned devices for a container of this node, from the facts of the kubelet and the API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec

from muster.adapters.agent.api import ApiError, ApiServer, Outbox, Target
from muster.adapters.agent.kubelet import KubeletError, Sockets, devices_of_pods
from muster.dialects import quantities
from muster.dialects.objects import Container, PodObject
from muster.dialects.pods import pods
from muster.domain.allocation import ALLOCATION, DEVICES, write_devices
from muster.domain.pod import Pod
from muster.node_agent.booking import Ask, Booking, Planless, Refused, Waiter, bookings_in_order
from muster.node_agent.inventory import MEMORY, Inventory, uuid_of
from muster.node_agent.turns import VISIBLE, ContainerGrant, Isolation, Turns

_pod = msgspec.json.Decoder(PodObject)
REFUSED, DIFFER = "GpusRefused", "GpusDiffer"
"""Reasons of events."""

log = logging.getLogger(__name__)


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_list = msgspec.json.Decoder(_List)


async def waiting_pods(api: ApiServer, node: str, resource: str) -> list[Waiter]:
    """Return the pods of the node that request the resource and have not ended.

    Raises:
        ApiError: the API server did not answer.
    """
    query = {"fieldSelector": f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"}
    body = await api.get(f"pods of node {node}", "/api/v1/pods", query)
    gpu_pods = (_waiting_pod(text, resource) for text in _list.decode(body).items or ())
    return [waiter for waiter in gpu_pods if waiter is not None]


def _waiting_pod(text: msgspec.Raw, resource: str) -> Waiter | None:
    try:
        obj = _pod.decode(text)
        asks = tuple(_asks_of_pod(obj, resource))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None  # its devices are refused, because its plan can't be read
    if not asks:
        return None
    name = f"{obj.metadata.namespace}/{obj.metadata.name}"
    admitted = obj.status.start_time is not None
    has_plan = ALLOCATION in (obj.metadata.annotations or {})
    return Waiter(name, obj.metadata.uid, asks, _bookings(obj, name, asks, resource), admitted, has_plan)


def _bookings(obj: PodObject, name: str, asks: tuple[Ask, ...], resource: str) -> tuple[Booking, ...]:
    """Return the pod's bookings; () if its facts can't be read, so that other pods get their devices."""
    try:
        pod = pods.read(obj)
        return (
            bookings_in_order(pod, obj.metadata.annotations or {}, asks) if _asks_for(pod, resource) else ()
        )
    except Exception:
        log.exception("pod %s is read without its plan", name)
        return ()


def _asks_for(pod: Pod, resource: str) -> bool:
    return pod.slice is not None if resource == MEMORY else pod.gpu_resource == resource


def _asks_of_pod(obj: PodObject, resource: str) -> Iterator[Ask]:
    for container in obj.spec.init_containers or ():
        yield from _ask(container, resource, lends=container.restart_policy != "Always")
    for container in obj.spec.containers or ():
        yield from _ask(container, resource, lends=False)


def _ask(container: Container, resource: str, *, lends: bool) -> Iterator[Ask]:
    limits = (container.resources.limits if container.resources else None) or {}
    count = quantities.parse(limits.get(resource, 0))
    if count:
        yield Ask(container.name, int(count), lends)


@dataclass(slots=True)
class AllocatorFacts:
    """The present facts of the node, which may change while the agent runs. `cdi`: containerd knows the GPUs
    by CDI."""

    inventory: Inventory
    isolation: Isolation
    cdi: bool = True


class Allocator:
    """Answers the kubelet's questions about one resource, one after another."""

    def __init__(
        self,
        api: ApiServer,
        sockets: Sockets,
        outbox: Outbox,
        node: str,
        resource: str,
        facts: AllocatorFacts,
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
            Planless: its pod has no plan. The caller decides whether the user is told.
            Refused: its plan can't be kept.
        """
        async with self._lock:
            try:
                devices_by_pod = await devices_of_pods(self._sockets, self.resource)
                pods = await self._waiting_pods()
            except (KubeletError, ApiError, msgspec.DecodeError) as problem:
                raise self.refuse(None, f"the plan of its GPUs can't be read: {problem}") from problem
            inventory = self.facts.inventory
            try:
                return self._turns.prefer(pods, devices_by_pod, inventory, (available, must, size))
            except Planless as planless:
                planless.planned = _planned_uuids(pods, inventory)
                raise
            except Refused as refusal:
                raise self.refuse(refusal.waiter, str(refusal)) from refusal

    async def allocate(self, devices: list[str]) -> ContainerGrant:
        """Return the container that gets these devices, with its answer.

        Raises:
            Refused: the devices are not the devices that `prefer` returned.
        """
        async with self._lock:
            try:
                allocation = self._turns.allocate(self.facts.inventory, devices, self.facts.isolation)
            except Refused as refusal:
                raise self.refuse(None, str(refusal)) from refusal
            gpus = allocation.grant.env[VISIBLE]
            log.info("%s: container %s gets %s", allocation.waiter.name, allocation.booking.container, gpus)
            return allocation

    def note_choice(self, devices: Collection[str]) -> None:
        """Remember the devices that another plugin chose for a pod without a plan; none if it did not
        answer."""
        self._turns.note_choice(devices)

    async def may_pass_on(self, devices: list[str]) -> bool:
        """Return whether another plugin may give these devices to the container in admission.

        This holds if that plugin chose these devices for a pod without a plan, or if no pod with a plan
        waits.

        Raises:
            Refused: the API server does not answer.
        """
        async with self._lock:
            if (passed_on := self._turns.take_passed_on(devices)) is not None:
                self._report_unplanned(*passed_on)
                return True
            try:
                pods = await self._waiting_pods()
            except (ApiError, msgspec.DecodeError) as problem:
                raise self.refuse(None, f"whether its GPUs are planned can't be read: {problem}") from problem
            return not any(waiter.has_plan and not waiter.admitted for waiter in pods)

    def refuse(self, waiter: Waiter | None, text: str) -> Refused:
        """Return the refusal, and post it as an event on the pod, or on the node if the pod is not known."""
        self._outbox.event(target_of(waiter) if waiter else Target(self._node, ""), REFUSED, text)
        return Refused(text)

    def _report_unplanned(self, waiter: Waiter | None, devices: frozenset[str]) -> None:
        """Report the GPUs of a pod without a plan at once, because other pods must not be planned on them."""
        indices = {self.facts.inventory.index_of(uuid_of(device)) for device in devices}
        if waiter is not None:
            gpus = {index for index in indices if index is not None}
            self._outbox.annotate(target_of(waiter), {DEVICES: write_devices(gpus)})

    async def _waiting_pods(self) -> list[Waiter]:
        return await waiting_pods(self._api, self._node, self.resource)

    async def compare(self) -> bool:
        """Compare the devices that containers hold with the plans, for pods whose devices changed since the
        last call.

        Return whether a pod with a plan has other GPUs.

        Raises:
            KubeletError: the kubelet does not answer.
            ApiError: the API server does not.
        """
        async with self._lock:
            if self._turns.has_untaken_devices:
                return (
                    False  # a List now could make the kubelet free the devices of the container in admission
                )
            gpus_by_pod = {
                pod: frozenset(uuid_of(device) for devices in containers.values() for device in devices)
                for pod, containers in (await devices_of_pods(self._sockets, self.resource)).items()
                if containers
            }
            new = {pod for pod, gpus in gpus_by_pod.items() if self._compared.get(pod) != gpus}
            pods = await self._waiting_pods() if new else []
            compared = [waiter for waiter in pods if waiter.name in new and waiter.admitted]
            differ = [
                self._report_difference(waiter, gpus_by_pod[waiter.name]) and waiter.has_plan
                for waiter in compared
            ]
            # during admission, the later containers of a pod have no devices yet
            coming = {waiter.name for waiter in pods if not waiter.admitted}
            self._compared = {pod: gpus for pod, gpus in gpus_by_pod.items() if pod not in coming}
            return any(differ)

    def _report_difference(self, waiter: Waiter, gpus: frozenset[str]) -> bool:
        """Report other GPUs than the planned ones, which count from then on. Return whether there are any."""
        inventory = self.facts.inventory
        planned = {gpu for booking in waiter.bookings if not booking.lends for gpu in booking.gpus}
        places = {inventory.index_of(uuid) for uuid in gpus}
        indices = {index for index in places if index is not None}
        if len(indices) < len(gpus):
            text = f"its containers hold {len(gpus)} GPUs, of which the node has {len(indices)} now"
            self._outbox.event(target_of(waiter), DIFFER, text)
        elif indices != planned:
            self._outbox.annotate(target_of(waiter), {DEVICES: write_devices(indices)})
            log.warning("%s has GPUs %s, planned %s", waiter.name, sorted(indices), sorted(planned))
        return indices != planned


def target_of(waiter: Waiter) -> Target:
    """Return the pod, as events name it."""
    namespace, _, name = waiter.name.partition("/")
    return Target(name, waiter.uid, namespace)


def _planned_uuids(pods: list[Waiter], inventory: Inventory) -> frozenset[str]:
    indices = {gpu for waiter in pods for booking in waiter.bookings for gpu in booking.gpus}
    return frozenset(gpu.uuid for gpu in inventory.gpus if gpu.index in indices)
