"""The life of a node agent: it offers the node's GPUs to each kubelet, and publishes facts about them.

`_look` reads the GPUs every few seconds. Their health goes to the kubelet and to the node's object. `_offer`
serves the resource that the node's labels ask for, to one kubelet after another. `_publish` writes
links and labels of the node when they changed. The outbox writes events, and which pods got their GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec

from muster.adapters.agent.allocation import Allocator, AllocatorFacts
from muster.adapters.agent.api import ApiError, ApiServer, Outbox, Target
from muster.adapters.agent.backends import OwnDevices, SecondEndpoint
from muster.adapters.agent.generated.grpc.health import v1 as health
from muster.adapters.agent.gpus import Source
from muster.adapters.agent.kubelet import KubeletError, Sockets, creation_time, register
from muster.adapters.agent.plugin import Backend, Plugin, listen
from muster.dialects.keys import ACK_NODE_MODE, NODE_AGENT, SECOND_ENDPOINT
from muster.dialects.objects import NodeObject
from muster.domain.allocation import SECOND_RESOURCE, SEVERAL_ENDPOINTS_SINCE
from muster.domain.rate import Backoff
from muster.node_agent.booking import Refused
from muster.node_agent.hardware import UUIDS, Hardware, changed_uuid, changes, with_lost, with_unhealthy
from muster.node_agent.inventory import MEMORY, WHOLE, InventoryError
from muster.node_agent.turns import Isolation

RESOURCE_OF_MODE = {"topology": WHOLE, "share": MEMORY, "cgpu": MEMORY, SECOND_ENDPOINT: SECOND_RESOURCE}
"""Value of a node's label → resource that the agent offers."""
HEALTH_SERVICE = "grpc.health.v1.Health"
ENDPOINT = "muster-{}.sock"
UNSUPPORTED = "unsupported"
"""Stands for a mode that the agent can't offer on its node."""
FIRST = "nvidia-gpu.sock"
"""The socket of NVIDIA's device plugin for nvidia.com/gpu."""
BROKEN, LOST, INEXACT = "GpusUnreadable", "GpuVanished", "GpusNotAsPlanned"
RENUMBERED = "GpusRenumbered"
"""Reasons of events."""

_node = msgspec.json.Decoder(NodeObject)

log = logging.getLogger(__name__)


class Probe:
    """Answers the kubelet's gRPC probe on a port of the pod; not at all if the port is 0. `ready` may change
    at any time."""

    def __init__(self, port: int) -> None:
        self.ready = False
        self._port = port
        self._server: Any = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        if not self._port:
            return
        check = grpc.unary_unary_rpc_method_handler(
            self._check, request_deserializer=health.HealthCheckRequest.parse, response_serializer=bytes
        )
        self._server = await listen(f"0.0.0.0:{self._port}", HEALTH_SERVICE, {"Check": check})

    async def stop(self) -> None:
        """Stop the probe."""
        if self._server is not None:
            await self._server.stop(None)

    async def _check(self, request: health.HealthCheckRequest, _: Any) -> health.HealthCheckResponse:
        """Answer SERVING for the process itself, and for the service "ready" once the kubelet has taken the
        GPUs."""
        serving = self.ready or request.service != "ready"
        status = health.HealthCheckResponseServingStatus
        return health.HealthCheckResponse(status=status.SERVING if serving else status.NOT_SERVING)


@dataclass(frozen=True, slots=True)
class Times:
    """Periods in seconds. A plugin registers within `settled_after_s` after it has made its socket."""

    kubelet_every_s: float = 0.5
    look_every_s: float = 4.0
    compare_every_s: float = 30.0
    settled_after_s: float = 10.0


@dataclass(frozen=True, slots=True)
class _Peers:
    """When the kubelet and the first plugin made their sockets; 0 for a missing socket. Until `settled` is
    true, the first plugin may still register, and the kubelet would then ask that plugin."""

    kubelet: int
    first_plugin: int
    settled: bool


@dataclass(slots=True)
class Offering:
    """Offers a resource to one kubelet, until the kubelet or the first plugin is replaced, or the resource is
    not wanted.

    `backend` answers for the resource on the socket with the name `endpoint`. `first_plugin` is the socket of
    the plugin to which this plugin is a second endpoint; None if there is no other plugin. `report_ready` is
    called with whether containers get the planned devices, and `report_inexact` with the reason why they may
    not. `compare` is called from time to time while the kubelet has the offer.
    """

    resource: str
    backend: Backend
    endpoint: str
    first_plugin: Path | None
    sockets: Sockets
    times: Times
    report_ready: Callable[[bool], None]
    report_inexact: Callable[[str], None]
    compare: Callable[[], Awaitable[None]]
    _registered: bool = False

    async def run(self, is_wanted: Callable[[], bool]) -> None:
        """Serve the resource.

        Raises:
            OSError: the socket can't be made.
            KubeletError: the kubelet refused the offer. It may already know the socket's name.
            Refused: the first plugin does not answer.
        """
        peers, plugin = self._peers(), Plugin(self.sockets.plugins / self.endpoint, self.backend)
        has_peers = bool(peers.kubelet and peers.first_plugin)
        look_at, compare_at = 0.0, time.monotonic() + self.times.compare_every_s
        try:
            while self._peers() == peers and is_wanted():
                if has_peers and time.monotonic() >= look_at:
                    look_at = time.monotonic() + self.times.look_every_s
                    await self._look(peers, plugin)
                if self._registered and not plugin.socket.exists():
                    return  # a kubelet that starts removes all sockets
                if self._registered and time.monotonic() >= compare_at:
                    await self.compare()
                    compare_at = time.monotonic() + self.times.compare_every_s
                await asyncio.sleep(self.times.kubelet_every_s)
        finally:
            self.report_ready(False)
            await plugin.stop()

    async def _look(self, peers: _Peers, plugin: Plugin) -> None:
        why = await self.backend.why_inexact()
        if not self._registered:
            await plugin.start()
            await register(self.sockets, self.endpoint, self.resource)
            self._registered = True
            log.info("offered as %s", self.resource)
        self.report_ready(self._registered and peers.settled and not why)
        if why:
            self.report_inexact(why)

    def _peers(self) -> _Peers:
        kubelet, first = creation_time(self.sockets.registration), self.first_plugin
        if first is None:
            return _Peers(kubelet, 1, True)
        since = creation_time(first)
        age_s = time.time() - since / 1e9  # below 0 if the clock was set back
        return _Peers(kubelet, since, not 0 <= age_s < self.times.settled_after_s)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of an agent.

    `library`: path of the isolation library on the node; "" without it. `cdi`: containerd knows the GPUs by
    CDI. `probe_port`: port on which the kubelet asks whether the agent is ready; 0 without a probe.
    """

    node: str
    sockets: Sockets
    library: str = ""
    cdi: bool = True
    probe_port: int = 0
    look_every_s: float = 2.0
    publish_every_s: float = 30.0
    times: Times = field(default_factory=Times)


class Agent:
    """One node's agent. `for_answers` and `for_writes` are connections of their own, so that a slow write
    delays no container."""

    def __init__(
        self, settings: AgentSettings, source: Source, for_answers: ApiServer, for_writes: ApiServer
    ) -> None:
        self._settings = settings
        self._source = source
        self._answers = for_answers
        self._writes = for_writes
        self._outbox = Outbox(for_writes, settings.node)
        self._probe = Probe(settings.probe_port)
        self._raw_hardware: Hardware | None = None
        self._hardware: Hardware | None = None
        """The raw hardware with the health that the kubelet knows."""
        self._mode: str | None = None
        self._uuids: tuple[str, ...] = ()
        self._node_was_read = asyncio.Event()
        self._next_change = asyncio.Event()
        """The next change of the hardware or the mode. Each change has an event of its own."""
        self._own_devices: tuple[OwnDevices, str] | None = None
        """What this agent offers in place of NVIDIA's plugin: the devices and their resource."""
        self._facts: AllocatorFacts | None = None
        self._allocators: dict[str, Allocator] = {}
        """Resource → its allocator, which outlives registrations."""
        self._missing = frozenset[str]()
        """GPUs that the other device plugin does not offer, or calls unhealthy."""
        self._stopping = False

    @property
    def is_ready(self) -> bool:
        """Return whether the kubelet asks this agent, and containers get the planned devices."""
        return self._probe.ready

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            OSError: the probe's port is taken.
        """
        await self._probe.start()
        log.info("node agent of %s begins", self._settings.node)
        parts = (self._look(), self._publish(), self._offer(), self._outbox.run())
        tasks = [asyncio.create_task(part) for part in parts]
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        self._probe.ready, self._stopping = False, True
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._probe.stop()
        for task in done - {stopped}:
            task.result()
        log.info("node agent of %s ends", self._settings.node)

    # --- what the node has ------------------------------------------------------------------------

    async def _look(self) -> None:
        await self._node_was_read.wait()  # the node's object tells which GPUs it had
        while True:
            try:
                hardware = await asyncio.to_thread(self._source.read)
            except InventoryError as problem:
                self._report_broken(str(problem))
            else:
                self._take_in(hardware=self._with_lost_gpus(hardware))
            await asyncio.sleep(self._settings.look_every_s)

    def _with_lost_gpus(self, hardware: Hardware) -> Hardware:
        """Return the GPUs that were found, with the GPUs that the node has lost."""
        known_uuids = self._uuids
        if self._hardware is not None:
            known_uuids = tuple(gpu.uuid for gpu in self._hardware.inventory.gpus)
        complete = with_lost(known_uuids, hardware)
        if vanished := [
            gpu for gpu in complete.inventory.gpus if hardware.inventory.index_of(gpu.uuid) is None
        ]:
            text = (
                f"GPU {vanished[0].index} ({vanished[0].uuid}) of node {self._settings.node} has vanished: "
                f"it counts as unhealthy. If it was taken out, remove the node's annotation {UUIDS} and "
                f"restart the agent"
            )
            self._outbox.event(Target(self._settings.node, ""), LOST, text)
        if how := changed_uuid(known_uuids, complete):
            text = (
                f"the GPUs of node {self._settings.node} have other uuids than before: {how}. They are "
                f"counted anew, in the order of PCI addresses. Pods that were bound before may have other "
                f"GPUs than their annotations name"
            )
            self._outbox.event(Target(self._settings.node, ""), RENUMBERED, text)
        return complete

    def _note_missing(self, gpus: frozenset[str]) -> None:
        """Take in the GPUs that the kubelet may not give out."""
        self._missing = gpus
        self._take_in()

    def _report_broken(self, problem: str) -> None:
        """Report the problem. The last known GPUs stay, so that a half-written file does not remove GPUs."""
        effect = "what was known before is used" if self._hardware else "nothing is offered"
        target = Target(self._settings.node, "")
        text = f"the GPUs of node {self._settings.node} can't be read: {problem}; {effect}"
        self._outbox.event(target, BROKEN, text)

    def _take_in(self, hardware: Hardware | None = None, mode: str | None = None) -> None:
        old_state = (self._hardware, self._mode)
        self._raw_hardware = hardware or self._raw_hardware
        self._hardware = with_unhealthy(self._missing, self._raw_hardware) if self._raw_hardware else None
        self._mode = mode if mode is not None else self._mode
        if old_state == (self._hardware, self._mode):
            return
        self._update()
        self._next_change.set()
        self._next_change = asyncio.Event()

    def _update(self) -> None:
        """Pass the node's present GPUs on to the running parts."""
        if self._hardware is None:
            return
        isolation = Isolation(self._mode == "cgpu", self._settings.library)
        if self._facts is None:
            self._facts = AllocatorFacts(self._hardware.inventory, isolation, self._settings.cdi)
        self._facts.inventory, self._facts.isolation = self._hardware.inventory, isolation
        if self._own_devices is not None:
            own_devices, resource = self._own_devices
            own_devices.offer(self._hardware.inventory.devices(resource))

    # --- the node's object ------------------------------------------------------------------------

    async def _publish(self) -> None:
        backoff = Backoff(limit=self._settings.publish_every_s)
        while True:
            next_change = self._next_change
            try:
                await self._publish_once()
            except (ApiError, msgspec.DecodeError) as problem:
                log.warning("node %s is not published: %s", self._settings.node, problem)
                await asyncio.sleep(backoff.delay())
            else:
                backoff.reset()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.publish_every_s):
                        await next_change.wait()

    async def _publish_once(self) -> None:
        name = self._settings.node
        node = _node.decode(await self._writes.get(f"node {name}", f"/api/v1/nodes/{name}"))
        labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
        if not self._node_was_read.is_set():
            self._uuids = tuple(annotations.get(UUIDS, "").split(","))
            self._node_was_read.set()
        self._take_in(mode=self._mode_of(node))
        if self._hardware is None:
            return
        shared = RESOURCE_OF_MODE.get(self._mode or "") == MEMORY
        metadata = changes(self._hardware, labels, annotations, shared=shared)
        if metadata:
            body = {"metadata": metadata}
            await self._writes.merge_patch(f"node {name}", f"/api/v1/nodes/{name}", body)
            log.info("published: %s", ", ".join(sorted(key for part in metadata.values() for key in part)))

    # --- the kubelet ------------------------------------------------------------------------------

    async def _offer(self) -> None:
        """Offer the resource that the node's labels select, to one kubelet after another.

        A server of gRPC that stops may swallow a cancellation (`asyncio.wait_for` before Python 3.12).
        """
        backoff = Backoff(limit=10.0)
        while not self._stopping:
            next_change, mode = self._next_change, self._mode
            if self._facts is None or mode not in RESOURCE_OF_MODE:
                self._probe.ready = self._hardware is not None and mode not in (None, UNSUPPORTED)
                await next_change.wait()
                continue
            try:
                await self._offering(mode, self._facts, backoff).run(lambda: self._is_wanted(mode))  # noqa: B023
            except (OSError, KubeletError, Refused) as problem:
                log.warning("%s can't be offered: %s", RESOURCE_OF_MODE[mode], problem)
                await asyncio.sleep(0 if self._stopping else backoff.delay())

    def _is_wanted(self, mode: str) -> bool:
        return self._mode == mode and not self._stopping

    def _mode_of(self, node: NodeObject) -> str:
        """Return the mode of the node's GPUs. If NVIDIA's plugin offers the GPUs, the label of the second
        endpoint comes first."""
        labels, version = node.metadata.labels or {}, node.status.node_info.kubelet_version
        if labels.get(NODE_AGENT) != SECOND_ENDPOINT:
            return labels.get(ACK_NODE_MODE, "")
        if _minor_version(version) >= SEVERAL_ENDPOINTS_SINCE:
            return SECOND_ENDPOINT
        why = f"a second endpoint needs a kubelet of 1.{SEVERAL_ENDPOINTS_SINCE} or newer"
        why += f", and this one is {version or 'unknown'}: NVIDIA's device plugin chooses GPUs"
        self._outbox.event(Target(self._settings.node, ""), INEXACT, why)
        return UNSUPPORTED

    def _offering(self, mode: str, facts: AllocatorFacts, backoff: Backoff) -> Offering:
        settings, resource = self._settings, RESOURCE_OF_MODE[mode]
        sockets = settings.sockets
        if resource not in self._allocators:
            new = Allocator(self._answers, sockets, self._outbox, settings.node, resource, facts)
            self._allocators[resource] = new
        allocator = self._allocators[resource]
        resource_name = resource.rpartition("/")[2]
        if mode == SECOND_ENDPOINT:
            first: Path | None = sockets.plugins / FIRST
            self._own_devices = None
            # The kubelet may still know a socket of this name, and would refuse it.
            resource_name += f"-{time.time_ns() // 1_000_000:x}"
            backend: Backend = SecondEndpoint(sockets.plugins / FIRST, sockets, allocator, self._note_missing)
        else:
            self._note_missing(frozenset())
            first, backend = None, (own_devices := OwnDevices(allocator, self._outbox))
            own_devices.offer(facts.inventory.devices(resource))
            self._own_devices = own_devices, resource

        def report_ready(is_ready: bool) -> None:
            self._probe.ready = is_ready
            if is_ready:
                backoff.reset()

        def report_inexact(why: str) -> None:
            self._outbox.event(Target(settings.node, ""), INEXACT, why)

        async def compare() -> None:
            try:
                differ = await allocator.compare()
            except (KubeletError, ApiError, msgspec.DecodeError) as problem:
                log.warning("devices and plans are not compared: %s", problem)
                return
            if differ and mode == SECOND_ENDPOINT:
                raise Refused("the kubelet asked another device plugin, so this one registers again")

        endpoint, times = ENDPOINT.format(resource_name), settings.times
        return Offering(
            resource, backend, endpoint, first, sockets, times, report_ready, report_inexact, compare
        )


def _minor_version(version: str) -> int:
    """Return the 37 of v1.37.1; 0 if the version is unreadable."""
    match = re.match(r"v1\.(\d+)", version)
    return int(match[1]) if match else 0


def serve(settings: AgentSettings, source: Source, for_answers: ApiServer, for_writes: ApiServer) -> None:
    """Run an agent until SIGTERM or SIGINT."""

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            await Agent(settings, source, for_answers, for_writes).run(stop)
        finally:
            source.close()
            for_answers.close()
            for_writes.close()

    asyncio.run(main())
