"""Chromium without a screen, and the page of a scene to open in it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from benchmarks.page.scene import Scene
from local_cluster.patience import HANG_S
from muster.adapters.page.access import Access
from muster.adapters.page.board import Board
from muster.adapters.page.server import BrowserLimits, PageServer

NAMES = ("chromium", "google-chrome")
"""Debian has the first one. The machines of GitHub have the second one too."""
CHROMIUM = Path(next(filter(None, map(shutil.which, NAMES)), "/usr/bin/chromium"))
INSTALL = "apt-get install --no-install-recommends chromium fonts-dejavu-core"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start the machine's Chromium, and end it."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(ARGUMENTS), timeout=1000 * HANG_S
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def serving(
    scene: Scene, access: Access | None = None, limits: BrowserLimits | None = None, port: int = 0
) -> AsyncIterator[tuple[PageServer, Board]]:
    """Serve the page of a scene."""
    board = Board(scene, scene.history, "nvidia.com/gpu.product")
    server = PageServer(board, access, limits or BrowserLimits(), scene.alternatives)
    await server.start("127.0.0.1", port)
    looking = asyncio.create_task(board.run())
    try:
        yield server, board
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await server.stop()
