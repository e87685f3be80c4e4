"""Measure the page of 5,000 nodes and about 1,000 gangs, in Chromium without a screen: `make page-bench`.

JSON on standard output, in milliseconds. Nothing is asserted: other work on the machine shows.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from typing import Any

from playwright.async_api import Browser, ViewportSize

from benchmarks.page.browser import CHROMIUM, INSTALL, chromium, serving
from benchmarks.page.scenes import five_thousand
from muster.adapters.page.board import Board

ROUNDS = 10
CELLS = 80
SIZE: ViewportSize = {"width": 1600, "height": 1000}


def main() -> int:
    """Measure, print, and return the exit status."""
    if not CHROMIUM.exists():
        print(f"{CHROMIUM} is not there: {INSTALL}", file=sys.stderr)
        return 1
    print(json.dumps(asyncio.run(_measure()), indent=2))
    return 0


async def _measure() -> dict[str, Any]:
    scene = five_thousand()
    async with serving(scene) as (page, board), chromium() as browser:
        beating = asyncio.create_task(_beat(holds := [0.0]))
        looks = [1000 * await board._read_cluster() for _ in range(ROUNDS)]
        beating.cancel()
        began = time.perf_counter()
        board._body = None
        state = await board.state()
        state_ms = 1000 * (time.perf_counter() - began)
        gangs = len(scene.gangs.keys())
        cells = len(board._last_state.cells)
        paints = [await _first_paint(browser, page.url) for _ in range(5)]
        updates = await _updates(browser, page.url, board)
    return {
        "nodes": 5000,
        "cells": cells,
        "gangs": gangs,
        "look_ms_of_the_loop": _summary(looks),
        "longest_hold_of_the_loop_ms": round(1000 * max(holds), 1),
        "state_ms": round(state_ms, 1),
        "state_bytes_gzip": len(state),
        "first_useful_paint_ms": _summary(paints),
        **updates,
    }


async def _beat(holds: list[float]) -> None:
    """Note for how long the loop gives this task no turn."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0)
        holds.append(time.perf_counter() - before)


async def _first_paint(browser: Browser, url: str) -> float:
    """Return the milliseconds from the navigation to the first frame with the map."""
    tab = await browser.new_page(viewport=SIZE, bypass_csp=True)  # what waits here is code in texts
    await tab.goto(url)
    painted = await tab.wait_for_function(
        "performance.getEntriesByName('muster:painted')[0]?.startTime", timeout=60_000
    )
    painted_ms = float(await painted.json_value())
    await tab.close()
    return painted_ms


async def _updates(browser: Browser, url: str, board: Board) -> dict[str, Any]:
    """Return what changes of CELLS and of 4,096 cells take in the browser: of script, and until the frame."""
    rng = random.Random(1)
    tab = await browser.new_page(viewport=SIZE, bypass_csp=True)  # what waits here is code in texts
    await tab.goto(url)
    await tab.get_by_role("status").filter(has_text="Live").wait_for()
    await tab.evaluate(
        "globalThis.drawn = []; document.addEventListener('muster:drawn', each => drawn.push(each.detail))"
    )
    figures: dict[str, Any] = {}
    for count in (CELLS, 4096):
        for _ in range(ROUNDS):
            cells_before = board._last_state.cells
            cells = [[at, rng.choice(cells_before)] for at in rng.sample(range(len(cells_before)), count)]
            before = await tab.evaluate("drawn.length")
            board._publish(json.dumps({"cells": cells}).encode())
            await tab.wait_for_function(f"drawn.length > {before}", timeout=60_000)
        drawn = [frame_drawn for frame_drawn in await tab.evaluate("drawn") if frame_drawn["cells"] == count]
        figures[f"update_of_{count}_cells_ms"] = {
            "script": _summary([frame_drawn["script"] for frame_drawn in drawn]),
            "until_the_frame": _summary([frame_drawn["frame"] for frame_drawn in drawn]),
        }
    await tab.close()
    return figures


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 1),
        "most": round(max(values), 1),
    }


if __name__ == "__main__":
    sys.exit(main())
