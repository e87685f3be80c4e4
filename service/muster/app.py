"""The composition root: the only place that knows all parts and joins them.

Start: HTTP and the socket answer at once (not ready), then the watches begin; when each has seen all that
exists, `Synced` goes to the gangs, health turns to SERVING and the shim's session may begin. End: SIGTERM. A
defect in a task ends the process with an error too, because half a service would do harm.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket as sockets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from muster.adapters import scrape
from muster.adapters.alternatives_answerer import AlternativesAnswerer, Asker
from muster.adapters.control_loop import ControlLoop
from muster.adapters.garbage import short_collections
from muster.adapters.grpc.endpoint import Endpoint
from muster.adapters.grpc.server import GangServer
from muster.adapters.kube import decode
from muster.adapters.kube.budgets import BudgetIntake
from muster.adapters.kube.client import KubeClient, Liveness
from muster.adapters.kube.decode import Resource, T
from muster.adapters.kube.intake import Intake
from muster.adapters.kube.leftout import LeftOutObjects
from muster.adapters.kube.volumes import VolumeIntake
from muster.adapters.kube.watch import PacedWatcher, Sink, Watcher
from muster.adapters.kube.writers import ConditionWriter, EventPoster, Evictor, StatusWriter
from muster.adapters.page.access import Access
from muster.adapters.page.board import Board
from muster.adapters.page.detail import History
from muster.adapters.page.rows import with_positions
from muster.adapters.page.server import BrowserLimits, PageServer
from muster.adapters.planner import Planner
from muster.adapters.solver.process import Bounds, PlannerWithFallback
from muster.adapters.status import VERSION as STATUS_VERSION
from muster.adapters.status import Explanation, Nodes, Status, nodes_of
from muster.adapters.telemetry.attempts import Attempts
from muster.adapters.telemetry.metrics import Metrics
from muster.adapters.telemetry.room import Room
from muster.adapters.telemetry.tracing import Tracing
from muster.adapters.victims_answerer import VictimsAnswerer
from muster.adapters.web import Web
from muster.config import Config
from muster.dialects.keys import GPU_PRODUCT
from muster.dialects.kinds.table import KINDS, MAKERS
from muster.dialects.objects import PodObject
from muster.dialects.settings import DialectSettings
from muster.domain import exactness
from muster.domain.pod import COMPOSITE
from muster.domain.words import list_names
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages.inputs import Input, Synced, WatchInterrupted, WatchResumed
from muster.gangs.messages.instructions import (
    EmitEvent,
    EndSolve,
    Evict,
    FindVictims,
    Lane,
    ShowWaiting,
    Solve,
    WriteStatus,
)

EVENTS_DRAIN_S = 2.0
MAX_EXPLAINED = 8
"""Largest number of gangs of one name, its incarnations, that /explain shows."""
MAX_GANGS_WITH_ALTERNATIVES = 2
BACKGROUND_NICENESS = 10
"""Niceness of the background planner: where cores are few, other processes come first."""

log = structlog.get_logger(__name__)


class _Runnable(Protocol):
    async def run(self) -> None: ...


class App:
    """One service. `run` returns after `stop` was set and everything has ended."""

    def __init__(
        self, config: Config, gangs: Coordinator, places: Mapping[Lane, PlannerWithFallback]
    ) -> None:
        self._config = config
        self.metrics, self._tracing = Metrics(), Tracing()
        self._attempts, history = Attempts(self._tracing), History()
        self._client = KubeClient(str(config.kubeconfig) if config.kubeconfig else None, config.context)
        self._events = EventPoster(self._client, self.metrics, sockets.gethostname(), config.events)
        self._evictor = Evictor(self._client, self.metrics, gangs.evicts)
        limits_s = {Lane.FOREGROUND: config.gangs.patience_s, Lane.BACKGROUND: config.planner.time_limit_s}
        self._planners = {
            lane: Planner(place, self._put, self.metrics, self._attempts, limits_s[lane])
            for lane, place in places.items()
        }
        self._victims = VictimsAnswerer(self._put)
        self._alternatives = AlternativesAnswerer(gangs.alternatives)
        self._left_out = LeftOutObjects(self.metrics, self._events.emit, self._leads)
        self._intake = Intake(
            dialect_settings(config), self._put, self._events.emit, self._left_out, self._leads
        )
        self._statuses = StatusWriter(self._client, self.metrics)
        self._conditions = ConditionWriter(self._client, self.metrics, self._leads, config.conditions)
        self.control_loop = ControlLoop(
            gangs,
            self.metrics,
            self._attempts,
            {
                Solve: lambda solve: self._planners[solve.lane].submit(solve),
                EndSolve: self._planners[Lane.BACKGROUND].end,
                FindVictims: self._victims.submit,
                EmitEvent: self._events.emit,
                Evict: self._evictor.evict,
                WriteStatus: self._statuses.write,
                ShowWaiting: self._conditions.show if config.conditions.enabled else lambda _: None,
            },
            self._intake.in_flight,
            config.inbox,
            on_move=history.note_move,
            on_lead=self._intake.post_held,
        )
        self._watchers = dict(self._watches())
        self.endpoint = Endpoint(config.socket)
        self._server = GangServer(self.control_loop, self.endpoint, self.metrics)
        self.web = Web(
            self.metrics,
            gangs=self._show_gangs,
            explained=self._explain,
            with_alternatives=self._with_alternatives,
            nodes=self._nodes,
            unready=self._why_unready,
            socket=config.socket,
        )
        self._board = Board(self.control_loop, history, GPU_PRODUCT)
        access = Access(self._client.post) if config.page.tokens else None
        alternatives_for_page = partial(self._alternatives.of, asker=Asker.PAGE)
        limits = BrowserLimits(clients=config.page.clients)
        self.page = PageServer(self._board, access, limits, alternatives_for_page, config.socket)
        self._room = Room(GPU_PRODUCT)
        scrape.show(self.metrics, self.control_loop, self._room)
        scrape.show_cluster(self.metrics, self._watchers, self._intake, self._left_out)

    def _leads(self) -> bool:
        return self.control_loop.leads

    async def _put(self, message: Input) -> None:
        await self.control_loop.put(message)

    async def _on_pod(self, uid: str, obj: PodObject | None) -> None:
        self._conditions.see(uid, obj)
        await self._intake.on_pod(uid, obj)

    def _watches(self) -> Iterator[tuple[str, Watcher[Any]]]:
        """Yield each watch with the name of its resource. `on_silence` gets whether the watch is interrupted,
        and `on_absence` whether the resource is not served."""
        config, intake, dialects = self._config, self._intake, dialect_settings(self._config)

        def watch(
            resource: Resource[T],
            sink: Sink[T],
            on_silence: Callable[[bool], Awaitable[None]] | None = None,
            on_absence: Callable[[bool], Awaitable[None]] | None = None,
            watcher: type[Watcher[Any]] = Watcher,
        ) -> tuple[str, Watcher[Any]]:
            return resource.plural, watcher(
                self._client,
                resource,
                sink,
                self.metrics,
                config.watch,
                on_silence,
                self._left_out,
                on_absence,
            )

        yield watch(decode.NODES, intake.nodes.on_node, self._silence_reporter("nodes"))
        yield watch(decode.pods(dialects), self._on_pod, self._silence_reporter("pods"), watcher=PacedWatcher)
        yield watch(decode.NAMESPACES, intake.on_namespace)
        volumes = VolumeIntake(self._put)
        yield watch(decode.CSI_DRIVERS, volumes.on_driver)
        yield watch(decode.STORAGE_CLASSES, volumes.on_storage_class)
        yield watch(decode.VOLUMES, volumes.on_volume)
        yield watch(decode.VOLUME_CLAIMS, volumes.on_claim)
        budgets = BudgetIntake(self._put)
        yield watch(
            decode.DISRUPTION_BUDGETS, budgets.on_budget, on_absence=budgets.on_absence, watcher=PacedWatcher
        )
        yield watch(decode.RESOURCE_SLICES, intake.devices.on_slice)
        yield watch(decode.DEVICE_CLASSES, intake.devices.on_class)
        yield watch(decode.DEVICE_TAINT_RULES, intake.devices.on_rule)
        yield watch(decode.RESOURCE_CLAIMS, intake.devices.on_claim)
        if config.config_maps.enabled:
            yield watch(decode.config_maps(config.config_maps.namespace), intake.on_config_map)
        if config.policies.enabled:
            place = (config.policies.namespace, config.policies.name)
            yield watch(decode.config_maps(*place), intake.on_config_map)
        if config.pod_groups.enabled:
            for pod_groups in decode.pod_groups():
                on_absence = intake.native_groups.on_absence if pod_groups.by_right else None
                yield watch(pod_groups, intake.on_pod_group, on_absence=on_absence, watcher=PacedWatcher)
            no_trees = partial(intake.native_groups.on_absence, kind=COMPOSITE)
            composites = decode.COMPOSITE_POD_GROUPS
            yield watch(composites, intake.on_pod_group, on_absence=no_trees, watcher=PacedWatcher)
            yield watch(decode.WORKLOADS, intake.on_workload, watcher=PacedWatcher)
            yield watch(decode.TOPOLOGIES, intake.on_topology)
        for kind in KINDS:
            on_job, on_absent = partial(intake.jobs.on_job, kind), partial(intake.jobs.on_absence, kind)
            yield watch(decode.jobs(kind), on_job, on_absence=on_absent)
        for kind in MAKERS:
            yield watch(decode.makers(kind), partial(intake.jobs.on_maker, kind))

    def _silence_reporter(self, resource: str) -> Callable[[bool], Awaitable[None]]:
        """Return a function that tells the gangs whether the watch is interrupted, and its view outdated."""

        async def report(silent: bool) -> None:
            now = time.monotonic()
            await self._put(WatchInterrupted(now, resource) if silent else WatchResumed(now, resource))

        return report

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            kube.client.ConfigError, grpc.endpoint.SocketError, OSError: it can't start.
            Exception: whatever a task failed with; everything has been ended.
        """
        with short_collections():
            await self._serve(stop)

    async def _serve(self, stop: asyncio.Event) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._server.start()
            if self._config.http.port is not None:
                await self.web.start(self._config.http.host, self._config.http.port)
            if (page := self._config.page).port is not None:
                await self.page.start(page.host, page.port)
            await self._client.connect()
            log.info("serving", api=self._client.host)
            if not self._config.pod_groups.enabled:
                await self._intake.native_groups.on_absence(True)
            works: list[_Runnable] = [*self._watchers.values(), self.control_loop, *self._planners.values()]
            works += [self._board, self._events, self._evictor, self._statuses, self._conditions]
            works += [self._victims, Liveness(self._client)]
            for work in works:
                tasks.append(asyncio.create_task(work.run(), name=type(work).__name__))
            # while the first lists are read
            warm = asyncio.create_task(self._planners[Lane.FOREGROUND].load_solver(), name="load solver")
            tasks.append(warm)
            tasks.append(asyncio.create_task(self._announce_sync(warm), name="sync"))
            stopping = asyncio.create_task(stop.wait())
            await _until_first_failure_or(stopping, tasks)
        finally:
            await self._end(tasks)

    async def _announce_sync(self, warm: asyncio.Task[None]) -> None:
        """Send `Synced`, so that planning begins, once all objects are seen and the planner is loaded."""
        await asyncio.wait([warm])  # its failure ends the service by itself
        for watcher in self._watchers.values():
            await watcher.synced.wait()
        await self._intake.finish_start()
        await self.control_loop.sync(Synced(time.monotonic()))
        gc.collect()  # now, and not during the first decision: it takes 0.2 s at 5,000 nodes
        await self._server.report_serving()
        log.info("synced")

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        """End each part within its share of `shutdown_s`, even if the end of an earlier part fails."""
        share = self._config.shutdown_s / 4
        self.control_loop.shut_down()
        await _end_within(share, "socket", self._server.stop())
        if tasks:
            await _end_within(min(share, EVENTS_DRAIN_S), "events", self._events.until_empty())
        for lane, planner in self._planners.items():
            await _end_within(share / 2, f"{lane} planner", planner.stop(share / 2))
        self._alternatives.close()
        self._victims.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # failures were raised from run already
        await _end_within(share, "http", self.web.stop())
        await _end_within(share, "page", self.page.stop())
        await _end_within(share, "api client", self._client.close())
        await _end_within(share, "traces", asyncio.to_thread(self._tracing.close))
        log.info("ended")

    def _why_unready(self) -> str:
        if self.control_loop.is_synced:
            return ""
        waiting = [name for name, watcher in self._watchers.items() if not watcher.synced.is_set()]
        return f"waiting for the first list of {' and '.join(waiting)}" if waiting else "about to be synced"

    async def _nodes(self) -> Nodes:
        snapshot = self.control_loop.gangs.snapshot()
        with_gpus = [name for name, state in snapshot.nodes.items() if state.node.topology.gpu_count]
        owners = await self.control_loop.owners(with_gpus)
        return nodes_of(snapshot, GPU_PRODUCT, self._room.domains(snapshot), owners)

    async def _show_gangs(self, namespace: str, name: str) -> Status:
        """Return the answer of /gangs; with a `name`, about the gangs that have this name, or a pod of this
        name."""
        differences = self.control_loop.gangs.differences()
        nodes = (state.node for state in self.control_loop.gangs.snapshot().nodes.values())
        notes = [
            *self._notes_on_unread_jobs(),
            *self._notes_on_unread_budgets(),
            *self._intake.repeated_names,
            *exactness.notes(nodes),
            *differences.notes(),
        ]
        gangs = await self.control_loop.summary(namespace, name)
        return {
            "version": STATUS_VERSION,
            "kind": "status",
            "ready": self.control_loop.is_synced,
            "gangs": gangs if name else with_positions(gangs),
            "notes": notes,
        }

    async def _explain(self, namespace: str, name: str) -> Explanation:
        """Return the answer of /explain about the gangs that have this name, or a pod of this name."""
        explanations: list[dict[str, Any]] = []
        gangs = await self.control_loop.summary(namespace, name) if name else []
        for gang in gangs[:MAX_EXPLAINED]:
            if (text := await self._board.detail(gang.key)) is not None:
                traces = self._traces(gang.key)
                last = traces[0] if traces else {"id": "", "link": ""}
                newest = {"id": last["id"], "link": last["link"]}
                explanations.append({**msgspec.json.decode(text), "trace": newest, "traces": traces})
        return {"version": STATUS_VERSION, "kind": "explain", "gangs": explanations}

    def _traces(self, gang: str) -> list[dict[str, Any]]:
        """Return the traces of a gang's attempts, the newest first, with the addresses of exported ones."""
        link = self._config.traces.link
        return [
            {
                **msgspec.to_builtins(trace),
                "link": link.replace("{trace_id}", trace.id) if trace.exported else "",
            }
            for trace in self._attempts.traces(gang)
        ]

    async def _with_alternatives(self, explained: Explanation) -> Explanation:
        """Add where else the first gangs could go."""
        for gang in explained["gangs"][:MAX_GANGS_WITH_ALTERNATIVES]:
            gang["alternatives"] = await self._alternatives.of(gang["gang"]["key"], Asker.EXPLAIN)
        return explained

    def _notes_on_unread_jobs(self) -> list[str]:
        """Return a sentence about the jobs that the account may not read."""
        resources = (*map(decode.jobs, KINDS), *map(decode.makers, MAKERS))
        kinds = [kind.plural for kind in resources if self._watchers[kind.plural].is_forbidden]
        if not kinds:
            return []
        return [
            f"the service may not read {list_names(kinds)}. Their pods are placed one by one, unless they "
            f"name a gang. scheduler-config/jobs grants the right"
        ]

    def _notes_on_unread_budgets(self) -> list[str]:
        """Return a sentence if the account may not read PodDisruptionBudgets."""
        if not self._watchers[decode.DISRUPTION_BUDGETS.plural].is_forbidden:
            return []
        return [
            "the service may not read PodDisruptionBudgets, so it does not know which pods they keep. "
            "scheduler-config/rbac-service.yaml grants the right"
        ]


async def _until_first_failure_or(stopping: asyncio.Task[Any], tasks: list[asyncio.Task[None]]) -> None:
    """Return when `stopping` is done; raise what the first failing task raised."""
    running: set[asyncio.Task[Any]] = {stopping, *tasks}
    try:
        while not stopping.done():
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        stopping.cancel()


async def _end_within(seconds: float, part: str, work: Coroutine[Any, Any, object]) -> None:
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        log.warning("not ended in time", what=part, waited_s=seconds)
    except Exception:  # the other parts are to be ended all the same
        log.exception("could not be ended", what=part)


def dialect_settings(config: Config) -> DialectSettings:
    """Return the settings of the dialects."""
    return DialectSettings(
        scheduler_names=frozenset(config.scheduler_names),
        gpu_resources=config.gpu_resources,
        nri_nodes=config.nri_nodes,
        infer_gangs=tuple(sorted(config.infer_gangs.items())),
        system_namespace=config.config_maps.namespace,
        node_agents=config.node_agents.namespace,
        policies_namespace=config.policies.namespace,
        policies_name=config.policies.name,
        policies_key=config.policies.key,
    )


def serve(config: Config) -> None:
    """Build everything and run until SIGTERM or SIGINT."""
    asyncio.run(_serve(App(config, Coordinator(config.gangs), planners_of(config))))


async def _serve(app: App) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await app.run(stop)


def planners_of(config: Config) -> dict[Lane, PlannerWithFallback]:
    """Return each lane's planner, with this service's limits.

    The background's process starts with its first gang, because most clusters never have such a slow gang.
    """
    settings = config.planner
    bounds = Bounds(settings.deterministic_time, settings.memory_mib, settings.most_roles)
    foreground = replace(bounds, slice_s=settings.slice_s)
    background = replace(bounds, niceness=BACKGROUND_NICENESS)
    return {
        Lane.FOREGROUND: PlannerWithFallback(foreground),
        Lane.BACKGROUND: PlannerWithFallback(background),
    }
