"""Measure what tracing costs in decisions per second, in pairs: `make tracing-bench`.

One service without an API server runs in this process: the real loop, coordinator and planner's process. In
one round of each pair it has the real exporter, which sends to a process that throws the spans away. A round
submits many gangs at once, and ends when all are bound. The order alternates. JSON on standard output.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import grpc
import structlog
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from benchmarks.page.scene import Ask
from benchmarks.page.scenes import node
from benchmarks.throughput.paired import alternating, ratios
from muster.adapters.control_loop import ControlLoop
from muster.adapters.garbage import short_collections
from muster.adapters.grpc.generated.muster.v1 import Outcome
from muster.adapters.grpc.server import Session
from muster.adapters.planner import Planner
from muster.adapters.solver.process import Bounds, PlannerWithFallback
from muster.adapters.telemetry.attempts import Attempts
from muster.adapters.telemetry.metrics import Metrics
from muster.adapters.telemetry.tracing import Tracing
from muster.command_line import Option, run_command
from muster.domain import allocation
from muster.domain.pod import Pod
from muster.domain.topology import GpuTopology, Link
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import Filter, Permit, PlanRef, Reserve, Score
from muster.gangs.messages.instructions import (
    EmitEvent,
    EndSolve,
    Evict,
    Moved,
    ShowWaiting,
    Solve,
    WriteStatus,
)
from muster.gangs.messages.settings import GangSettings

MEMBERS = 8
SIDES = ("traced", "untraced")
EPOCH = 1
DEADLINE_S = 120.0
SINK = "sink"
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
DELAY_MS = "100"
"""So often spans are sent: within a round, so that each side pays for its own."""


class Service:
    """The service without an API server, and a shim that binds what is planned at once."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._tracing = {"traced": Tracing(exporter), "untraced": Tracing()}
        self._attempts = {side: Attempts(self._tracing[side]) for side in SIDES}
        metrics, attempts = Metrics(), self._attempts["untraced"]
        self._planner = Planner(PlannerWithFallback(Bounds()), self._put, metrics, attempts, 10.0)
        self.loop = ControlLoop(
            Coordinator(GangSettings(settle_s=0)),
            metrics,
            attempts,
            {
                Solve: self._planner.submit,
                EndSolve: self._planner.end,
                **dict.fromkeys((EmitEvent, Evict, WriteStatus, ShowWaiting), _nothing),
            },
            lambda _: (),
            4096,
            on_move=self._moved,
        )
        self._session = Session(EPOCH)
        self._pods: dict[str, Pod] = {}
        self.bound = 0
        self._all_bound, self._all_gone, self._gone = asyncio.Event(), asyncio.Event(), 0
        self._wanted = 0

    @asynccontextmanager
    async def running(self, nodes: int) -> AsyncIterator[Service]:
        """Run with nodes of eight GPUs, in racks of sixteen."""
        link, across = Link.of_kind("NV18"), Link.of_kind("SYS")
        board = GpuTopology.of_islands(8, 8, link, across)
        works = [self.loop.run(), self._planner.run(), self._shim()]
        tasks = [asyncio.create_task(work) for work in works]
        await self._planner.load_solver()
        for at in range(nodes):
            new_node = node(f"gpu-{at:04}", f"rack-{at // 16:03}", board, "H100", f"zone-{at // 320}")
            await self._put(inputs.NodeSeen(time.monotonic(), new_node))
        await self.loop.sync(inputs.Synced(time.monotonic()))
        await self.loop.open_session(self._session, ())
        try:
            yield self
        finally:
            self.loop.shut_down()
            await self._planner.stop(5.0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for tracing in self._tracing.values():
                await asyncio.to_thread(tracing.close)

    async def round(self, side: str, gangs: int, number: int) -> tuple[float, float]:
        """Return the decisions per second, and the processor time of this process for each, in seconds."""
        self.loop._attempts = self._planner._attempts = self._attempts[side]
        asks = [Ask(f"team-{at % 8}", f"g-{number}-{at}", MEMBERS, 1, "node") for at in range(gangs)]
        pods = [pod for ask in asks for pod in ask.members(time.time())]
        self._pods = {pod.uid: pod for pod in pods}
        self._wanted, self.bound, self._gone = gangs, 0, 0
        self._all_bound.clear()
        self._all_gone.clear()
        began, spent = time.perf_counter(), time.process_time()
        for pod in pods:
            await self._put(inputs.PodSeen(time.monotonic(), pod))
        async with asyncio.timeout(DEADLINE_S):
            await self._all_bound.wait()
        took = time.perf_counter() - began
        await asyncio.to_thread(self._tracing[side].flush)
        spent = time.process_time() - spent
        for uid in self._pods:
            await self._put(inputs.PodGone(time.monotonic(), uid))
        await self._all_gone.wait()  # else the next round would pay for it
        return gangs / took, spent / gangs

    async def _put(self, message: inputs.Input) -> None:
        await self.loop.put(message)

    def _moved(self, move: Moved) -> None:
        self._gone += move.phase == "finished"
        if self._gone == self._wanted:
            self._all_gone.set()

    async def _shim(self) -> None:
        while (response := await self._session.next_response()) is not None:
            verdict = response.verdict
            if verdict is None or verdict.outcome is not Outcome.PLANNED:
                continue
            ref = PlanRef(EPOCH, verdict.gang, verdict.generation)
            homes = [
                candidates[0] for candidates in self.loop.answer(Filter(time.monotonic(), ref)).candidates
            ]
            self.loop.answer(Score(time.monotonic(), ref))
            self.loop.answer(Reserve(time.monotonic(), ref, 0, homes[0]))
            answer = self.loop.answer(Permit(time.monotonic(), ref, time.time_ns()))
            if not answer.allowed:
                raise RuntimeError(f"{verdict.gang}: {answer.reason}")
            for uid, on, said_of in zip(verdict.uids, homes, answer.annotations, strict=True):
                pod = self._pods[uid]
                gpus, batch = allocation.read(said_of, pod), allocation.read_batch(said_of)
                bound = replace(pod, node=on, running=True, allocation=gpus, batch=batch)
                await self._put(inputs.PodSeen(time.monotonic(), bound))
            self.bound += 1
            if self.bound == self._wanted:
                self._all_bound.set()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    nodes: int
    gangs: int
    pairs: int


async def measure(sizes: Sizes, exporter: SpanExporter) -> dict[str, Any]:
    """Return the figures of both sides, and the ratio of the pairs."""
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    spent: dict[str, list[float]] = {side: [] for side in SIDES}
    async with Service(exporter).running(sizes.nodes) as service:
        for number, order in enumerate([SIDES, *alternating(sizes.pairs, SIDES)]):
            for side in order:
                rate, seconds = await service.round(side, sizes.gangs, number)
                if number:  # the first pair warms up
                    rates[side].append(rate)
                    spent[side].append(seconds)
    interval = ratios(rates["traced"], rates["untraced"])
    return {
        "nodes": sizes.nodes,
        "gangs_a_round": sizes.gangs,
        "members": MEMBERS,
        "decisions_per_second": {side: round(_median(values), 1) for side, values in rates.items()},
        "ratio_of_pairs": {
            "median": round(interval.median, 3),
            "interval": [round(interval.low, 3), round(interval.high, 3)],
            "coverage": round(interval.coverage, 3),
            "pairs": interval.n,
        },
        "processor_ms_a_gang": {side: round(1000 * _median(values), 3) for side, values in spent.items()},
    }


def main(
    nodes: Annotated[int, Option(help="Nodes of eight GPUs.")] = 1000,
    gangs: Annotated[int, Option(help="Gangs of eight in a round.")] = 100,
    pairs: Annotated[int, Option(help="Pairs of rounds.")] = 60,
) -> None:
    """Measure what tracing costs, in pairs (docs/traces.md)."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    os.environ["OTEL_BSP_SCHEDULE_DELAY"] = DELAY_MS
    command = [sys.executable, "-m", "benchmarks.tracing", SINK]
    pipe = subprocess.PIPE  # its end ends the other process, whatever this one ends by
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as sink, short_collections():
        assert sink.stdout is not None
        port = int(sink.stdout.readline())
        figures = asyncio.run(measure(Sizes(nodes, gangs, pairs), _exporter(port)))
    print(json.dumps(figures, indent=2))


def _exporter(port: int) -> SpanExporter:
    return OTLPSpanExporter(f"http://127.0.0.1:{port}", insecure=True)


class Nowhere(SpanExporter):
    """Throws spans away, and counts them."""

    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Any) -> SpanExportResult:
        """Take the spans."""
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


def _sink() -> None:
    """Take spans over gRPC and throw them away, until standard input ends. Print the port."""
    handler = grpc.unary_unary_rpc_method_handler(lambda _, __: b"")
    _, service, method = EXPORT.split("/")
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _nothing(_: object) -> None:
    pass


if __name__ == "__main__":
    if sys.argv[1:] == [SINK]:
        _sink()
    else:
        sys.exit(run_command(main, "python -m benchmarks.tracing"))
