"""What the board looks at, and how often, whatever browsers do."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from benchmarks.page.scene import Ask, Scene
from benchmarks.page.scenes import six
from local_cluster.patience import HANG_S
from muster.adapters.page import board as boards
from muster.adapters.page.board import Board
from muster.gangs.reporting.places import PodGpus
from tests.gangs.world import node


@pytest.fixture
def scene() -> Scene:
    return six()


@pytest.fixture
async def board(scene: Scene) -> AsyncIterator[Board]:
    board = Board(scene, scene.history, "nvidia.com/gpu.product")
    looking = asyncio.create_task(board.run())
    yield board
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


async def state_of(board: Board) -> Any:
    async with asyncio.timeout(HANG_S):
        return json.loads(gzip.decompress(await board.state()))


async def cut_off_in_a_look(board: Board, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for the state, and go away while nodes are looked at."""
    began, real_taken = asyncio.Event(), scene.gangs.gpus_of_pods

    def noted(nodes: Sequence[str]) -> list[tuple[PodGpus, ...]]:
        began.set()
        return real_taken(nodes)

    monkeypatch.setattr(scene.gangs, "gpus_of_pods", noted)
    asking = asyncio.create_task(board.state())
    async with asyncio.timeout(HANG_S):
        await began.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_browser_that_goes_away_in_a_look_leaves_the_map_whole(
    board: Board, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cut_off_in_a_look(board, scene, monkeypatch)
    assert len((await state_of(board))["cells"]) == 48


async def test_many_requests_are_answered_from_one_look(
    board: Board, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "EVERY_S", 1000.0)
    looks, summary = 0, scene.summary

    async def counted() -> list[Any]:
        nonlocal looks
        looks += 1
        return await summary()

    monkeypatch.setattr(scene, "summary", counted)
    await cut_off_in_a_look(board, scene, monkeypatch)
    bodies = await asyncio.gather(*(board.state() for _ in range(20)))
    assert (looks, len(set(map(id, bodies)))) == (1, 1)


async def test_a_defect_in_a_look_leaves_the_map_whole(
    board: Board, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERY_S", "PAUSE_SHARE", "AFTER_DEFECT_S"):
        monkeypatch.setattr(boards, name, 0)
    await state_of(board)
    real_taken, failed = scene.gangs.gpus_of_pods, asyncio.Event()

    def fails(_: Sequence[str]) -> list[tuple[PodGpus, ...]]:
        failed.set()
        raise RuntimeError("a defect")

    monkeypatch.setattr(scene.gangs, "gpus_of_pods", fails)
    scene.change(node("another", 4))
    with capture_logs():
        async with board.connect_browser(), asyncio.timeout(HANG_S):
            await failed.wait()
        monkeypatch.setattr(scene.gangs, "gpus_of_pods", real_taken)
    while len((await state_of(board))["cells"]) != 52:
        pass


async def test_a_change_of_very_many_cells_has_browsers_begin_anew(
    board: Board, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERY_S", "PAUSE_SHARE", "MAX_CHANGED_CELLS"):
        monkeypatch.setattr(boards, name, 0)
    before = (await state_of(board))["id"]
    scene.submit(Ask("new", "first", 1, 1))
    while (after := (await state_of(board)))["id"] == before or "first" not in str(after["owners"]):
        pass
    assert board.log.position(before) is None


async def test_the_state_says_nothing_that_grows_old(board: Board) -> None:
    """It is packed once for each generation, and may be read an hour later."""
    assert "now" not in await state_of(board)
