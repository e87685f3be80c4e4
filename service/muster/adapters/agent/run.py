"""The life of a node agent: it offers the node's GPUs to each kubelet, and publishes what they are.

`_look` reads the GPUs every few seconds. Their health goes to the kubelet and to the node's object. `_offer`
serves the resource that the node's label asks for, and registers with each new kubelet. `_publish` writes
links and labels of the node when they changed. The outbox writes events, and which pods got their GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from dataclasses import dataclass

import msgspec

from muster.adapters.agent.allocation import Allocator, Facts
from muster.adapters.agent.api import ApiError, ApiServer
from muster.adapters.agent.gpus import Source
from muster.adapters.agent.kubelet import KubeletError, Sockets, register
from muster.adapters.agent.outbox import Outbox, Target
from muster.adapters.agent.plugin import Plugin
from muster.adapters.agent.probe import Probe
from muster.adapters.kube.backoff import Backoff
from muster.devices.answers import Isolation
from muster.devices.hardware import UUIDS, Hardware, changes, with_lost
from muster.devices.inventory import MEMORY, WHOLE, InventoryError
from muster.dialects.objects import NodeObject
from muster.dialects.settings import DEFAULTS

RESOURCE_OF_MODE = {"topology": WHOLE, "share": MEMORY, "cgpu": MEMORY}
ENDPOINT = "muster-{}.sock"
BROKEN, LOST = "GpusUnreadable", "GpuVanished"
"""Reasons of events."""

log = logging.getLogger(__name__)
_node = msgspec.json.Decoder(NodeObject)


@dataclass(frozen=True, slots=True)
class Settings:
    """What an agent is told. `library`: path of the isolation library on the node, "" for none. `cdi`:
    containerd knows the GPUs by CDI. `probe_port`: where the kubelet asks whether the agent is ready, 0 for
    nowhere."""

    node: str
    sockets: Sockets
    library: str = ""
    cdi: bool = True
    probe_port: int = 0
    look_every_s: float = 2.0
    publish_every_s: float = 30.0
    kubelet_every_s: float = 0.5
    compare_every_s: float = 30.0


class Agent:
    """One node's agent. `for_answers` and `for_writes` are connections of their own, so that a slow write
    delays no container."""

    def __init__(
        self, settings: Settings, source: Source, for_answers: ApiServer, for_writes: ApiServer
    ) -> None:
        self._settings = settings
        self._source = source
        self._answers = for_answers
        self._writes = for_writes
        self._outbox = Outbox(for_writes, settings.node)
        self._probe = Probe(settings.probe_port)
        self._hardware: Hardware | None = None
        self._mode: str | None = None
        self._uuids: tuple[str, ...] = ()
        self._read = asyncio.Event()
        self._changed = asyncio.Event()
        self._offered: tuple[Plugin, str] | None = None
        self._facts: Facts | None = None

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
        self._probe.ready = False
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._probe.stop()
        for task in done - {stopped}:
            task.result()
        log.info("node agent of %s ends", self._settings.node)

    # --- what the node has ------------------------------------------------------------------------

    async def _look(self) -> None:
        await self._read.wait()  # the node's object tells which GPUs it had
        while True:
            try:
                found = await asyncio.to_thread(self._source.read)
            except InventoryError as problem:
                self._said_broken(str(problem))
            else:
                self._note(hardware=self._complete(found))
            await asyncio.sleep(self._settings.look_every_s)

    def _complete(self, found: Hardware) -> Hardware:
        """Return what was found, with the GPUs that the node had before and has no more."""
        before = self._uuids
        if self._hardware is not None:
            before = tuple(gpu.uuid for gpu in self._hardware.inventory.gpus)
        complete = with_lost(before, found)
        if lost := [gpu for gpu in complete.inventory.gpus if found.inventory.place(gpu.uuid) is None]:
            text = (
                f"GPU {lost[0].index} ({lost[0].uuid}) of node {self._settings.node} has vanished: it counts "
                f"as unhealthy. If it was taken out, remove the node's annotation {UUIDS} and restart the "
                f"agent"
            )
            self._outbox.event(Target(self._settings.node, ""), LOST, text)
        return complete

    def _said_broken(self, problem: str) -> None:
        """Tell of it. What was known before stays: a file that is half written takes no GPU away."""
        kept = "what was known before is used" if self._hardware else "nothing is offered"
        target = Target(self._settings.node, "")
        said = f"the GPUs of node {self._settings.node} can't be read: {problem}; {kept}"
        self._outbox.event(target, BROKEN, said)

    def _note(self, hardware: Hardware | None = None, mode: str | None = None) -> None:
        before = (self._hardware, self._mode)
        self._hardware = hardware or self._hardware
        self._mode = mode if mode is not None else self._mode
        if before == (self._hardware, self._mode):
            return
        self._update()
        self._changed.set()
        self._changed = asyncio.Event()

    def _update(self) -> None:
        """Tell what is running of what the node has now."""
        if self._hardware is None:
            return
        isolation = Isolation(self._mode == "cgpu", self._settings.library)
        if self._facts is None:
            self._facts = Facts(self._hardware.inventory, isolation, self._settings.cdi)
        self._facts.inventory, self._facts.isolation = self._hardware.inventory, isolation
        if self._offered is not None:
            plugin, resource = self._offered
            plugin.offer(self._hardware.inventory.devices(resource))

    # --- the node's object ------------------------------------------------------------------------

    async def _publish(self) -> None:
        backoff = Backoff(limit=self._settings.publish_every_s)
        while True:
            changed = self._changed
            try:
                await self._publish_once()
            except (ApiError, msgspec.DecodeError) as problem:
                log.warning("node %s is not published: %s", self._settings.node, problem)
                await asyncio.sleep(backoff.delay())
            else:
                backoff.reset()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.publish_every_s):
                        await changed.wait()

    async def _publish_once(self) -> None:
        name = self._settings.node
        node = _node.decode(await self._writes.get(f"node {name}", f"/api/v1/nodes/{name}"))
        labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
        if not self._read.is_set():
            self._uuids = tuple(annotations.get(UUIDS, "").split(","))
            self._read.set()
        self._note(mode=labels.get(DEFAULTS.ack_node_mode, ""))
        if self._hardware is None:
            return
        shared = RESOURCE_OF_MODE.get(self._mode or "") == MEMORY
        wanted = changes(self._hardware, labels, annotations, shared=shared)
        if wanted:
            body = {"metadata": wanted}
            await self._writes.merge_patch(f"node {name}", f"/api/v1/nodes/{name}", body)
            log.info("published: %s", ", ".join(sorted(key for part in wanted.values() for key in part)))

    # --- the kubelet ------------------------------------------------------------------------------

    async def _offer(self) -> None:
        """Offer what the node's label asks for, to one kubelet after another."""
        while True:
            changed, resource = self._changed, RESOURCE_OF_MODE.get(self._mode or "")
            if self._hardware is None or self._mode is None or resource is None:
                self._probe.ready = self._hardware is not None and self._mode is not None
                await changed.wait()
                continue
            await self._offer_to_one_kubelet(resource)

    async def _offer_to_one_kubelet(self, resource: str) -> None:
        """Return when the kubelet is another one, or the label asks for something else."""
        settings, facts = self._settings, self._facts
        assert self._hardware is not None
        assert facts is not None
        endpoint = ENDPOINT.format(resource.rpartition("/")[2])
        allocator = Allocator(self._answers, settings.sockets, self._outbox, settings.node, resource, facts)
        plugin = Plugin(settings.sockets.plugins / endpoint, allocator.prefer, allocator.allocate)
        kubelet, backoff, registered = settings.sockets.made(), Backoff(limit=10.0), False
        compare_at = time.monotonic() + settings.compare_every_s
        try:
            if kubelet:
                await plugin.start()
                plugin.offer(self._hardware.inventory.devices(resource))
                self._offered = plugin, resource
            while settings.sockets.made() == kubelet and RESOURCE_OF_MODE.get(self._mode or "") == resource:
                if kubelet and not plugin.socket.exists():
                    return  # a kubelet that starts removes all sockets
                if kubelet and not registered:
                    registered = await self._register(endpoint, resource)
                    self._probe.ready = registered
                    await asyncio.sleep(0 if registered else backoff.delay())
                if registered and time.monotonic() >= compare_at:
                    await self._compare(allocator)
                    compare_at = time.monotonic() + settings.compare_every_s
                await asyncio.sleep(settings.kubelet_every_s)
        except OSError as problem:
            log.warning("%s can't be offered: %s", resource, problem)
            await asyncio.sleep(backoff.delay())
        finally:
            self._probe.ready, self._offered = False, None
            await plugin.stop()

    async def _compare(self, allocator: Allocator) -> None:
        try:
            await allocator.compare()
        except (KubeletError, ApiError, msgspec.DecodeError) as problem:
            log.warning("devices and plans are not compared: %s", problem)

    async def _register(self, endpoint: str, resource: str) -> bool:
        try:
            await register(self._settings.sockets, endpoint, resource)
        except KubeletError as problem:
            log.warning("the kubelet does not take %s yet: %s", resource, problem)
            return False
        log.info("offered as %s", resource)
        return True


def serve(settings: Settings, source: Source, for_answers: ApiServer, for_writes: ApiServer) -> None:
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
