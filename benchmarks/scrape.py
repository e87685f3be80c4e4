"""Measure one scrape of /metrics at 5,000 nodes and about 1,000 gangs, over HTTP: `make scrape-bench`.

JSON on standard output, in milliseconds. Nothing is asserted: other work on the machine shows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from benchmarks.page.scene import Scene
from benchmarks.page.scenes import five_thousand, other
from muster.adapters import scrape, web
from muster.adapters.control_loop import ControlLoop
from muster.adapters.telemetry.attempts import Attempts
from muster.adapters.telemetry.metrics import Metrics
from muster.adapters.telemetry.room import Room
from muster.adapters.telemetry.tracing import Tracing

ROUNDS = 20
GOAL_MS = 200
MODEL = "nvidia.com/gpu.product"


def main() -> int:
    """Measure, print, and return the exit status."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print(json.dumps(asyncio.run(measure(five_thousand(), ROUNDS)), indent=2))
    return 0


async def measure(scene: Scene, rounds: int) -> dict[str, Any]:
    """Scrape over HTTP: the first time, with no change in between, after a pod, and after a node."""
    metrics = Metrics()
    scrape.show(metrics, _loop(scene, metrics), Room(MODEL))
    at_once_before, web.ANSWERS_WITHOUT_PAUSE = (
        web.ANSWERS_WITHOUT_PAUSE,
        10**6,
    )  # each scrape is answered anew
    try:
        with tempfile.TemporaryDirectory() as folder:
            served = web.Web(metrics, _none, _none, _none, _nothing, str, Path(folder) / "socket")
            await served.start("127.0.0.1", 0)
            try:
                return await _measured(scene, served.url, rounds)
            finally:
                await served.stop()
    finally:
        web.ANSWERS_WITHOUT_PAUSE = at_once_before


async def _measured(scene: Scene, url: str, rounds: int) -> dict[str, Any]:
    cases: dict[str, Callable[[int], None]] = {
        "nothing_changed": lambda _: None,
        "a_pod_came": lambda at: scene.see(
            other(f"scraped-{at}", list(scene.snapshot().nodes)[at], unindexed=1)
        ),
        "a_node_changed": lambda at: _relabel(scene, at),
    }
    async with aiohttp.ClientSession() as http:
        first, size = await _scraped(http, url)
        figures: dict[str, Any] = {}
        for name, change in cases.items():
            took = []
            for at in range(rounds):
                change(at)
                took.append((await _scraped(http, url))[0])
            figures[name] = {"median": round(statistics.median(took), 1), "most": round(max(took), 1)}
    most = max(first, *(case["most"] for case in figures.values()))
    return {
        "nodes": len(scene.snapshot().nodes),
        "gangs": len(scene.gangs.keys()),
        "bytes": size,
        "first": round(first, 1),
        **figures,
        "goal_ms": GOAL_MS,
        "within_goal": most <= GOAL_MS,
    }


async def _scraped(http: aiohttp.ClientSession, url: str) -> tuple[float, int]:
    began = time.perf_counter()
    async with http.get(f"{url}/metrics") as answer:
        answer.raise_for_status()
        body = await answer.read()
    return 1000 * (time.perf_counter() - began), len(body)


def _relabel(scene: Scene, at: int) -> None:
    name, state = list(scene.snapshot().nodes.items())[at]
    scene.change(replace(state.node, labels={**state.node.labels, "scraped": name}))


def _loop(scene: Scene, metrics: Metrics) -> ControlLoop:
    """Return the loop that gauges are read from. The scene itself changes the gangs."""
    return ControlLoop(scene.gangs, metrics, Attempts(Tracing()), {}, lambda _: (), 1)


async def _none(*_: object) -> object:
    return {}


async def _nothing() -> object:
    return {}


if __name__ == "__main__":
    sys.exit(main())
