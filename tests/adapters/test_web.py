"""The HTTP server of probes and metrics, which every pod of a cluster can reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from local_cluster.patience import HANG_S
from muster.adapters import web
from muster.adapters.telemetry.metrics import Metrics, ReadAtScrape

PLACES = 3
READY = b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
GANGS = b"GET /gangs HTTP/1.1\r\nHost: a\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def never(*_: str) -> object:
    await asyncio.Event().wait()
    return {}


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[web.Web]:
    monkeypatch.setattr(web, "MAX_CONNECTIONS", PLACES)
    served = web.Web(Metrics(), never, never, never, never, str, tmp_path / "socket")
    await served.start("127.0.0.1", 0)
    yield served
    await served.stop()


async def connect(server: web.Web, sent: bytes) -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return not await reader.read(1)
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"GET /readyz HT", GANGS], ids=["half a request", "an answer that hangs"])
async def test_others_keep_no_probe_out(server: web.Web, sent: bytes) -> None:
    async with asyncio.timeout(HANG_S):
        clients = [await connect(server, sent) for _ in range(4 * PLACES)]
        reader, writer = await connect(server, READY)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        ends = asyncio.as_completed([asyncio.create_task(ended(reader)) for reader, _ in clients])
        for _ in range(3 * PLACES):
            assert await next(ends)
    for _, client_writer in [*clients, (reader, writer)]:
        client_writer.close()


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0", "nodes"])
async def test_a_flood_of_scrapes_costs_one_answer_a_second(
    accept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pod of a cluster may ask. The loop that answers the shim makes these answers too."""
    clock, answer_count, metrics = [100.0], [0], Metrics()
    monkeypatch.setattr(web, "monotonic", lambda: clock[0])

    def count() -> int:
        answer_count[0] += 1
        return answer_count[0]

    async def nodes() -> object:
        await asyncio.sleep(0)
        return {"nodes": count()}

    metrics.read_at_scrape(count, ReadAtScrape("answers", "Made.", (), lambda answers: [((), answers)]))
    served = web.Web(metrics, never, never, never, nodes, str, tmp_path / "socket")
    await served.start("127.0.0.1", 0)
    path = "/nodes" if accept == "nodes" else "/metrics"

    async def ask() -> str:
        async with session.get(served.url + path, headers={"Accept": accept}) as answer:
            assert answer.content_type in ("application/json", accept.partition(";")[0])
            return await answer.text()

    async with asyncio.timeout(HANG_S), aiohttp.ClientSession() as session:
        one_by_one = [await ask() for _ in range(web.ANSWERS_WITHOUT_PAUSE)]
        assert len(set(one_by_one)) == web.ANSWERS_WITHOUT_PAUSE  # each is new
        for flood in range(3):
            assert len(set(await asyncio.gather(*(ask() for _ in range(20))))) == 1
            assert answer_count[0] == web.ANSWERS_WITHOUT_PAUSE + flood
            clock[0] += 1
    await served.stop()


@pytest.mark.parametrize("path", ["/gangs", "/explain"])
async def test_few_answers_about_gangs_are_made_at_a_time(path: str, tmp_path: Path) -> None:
    """Every pod of a cluster may ask. The loop that answers the shim makes these answers too."""
    begun = []
    go_on = asyncio.Event()

    async def answered(*question: str) -> object:
        begun.append(question)
        await go_on.wait()
        return {}

    served = web.Web(Metrics(), answered, answered, never, never, str, tmp_path / "socket")
    await served.start("127.0.0.1", 0)
    asking = f"GET {path}?namespace=n&name=g HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
    async with asyncio.timeout(HANG_S):
        clients = [await connect(served, asking) for _ in range(3 * web.MAX_GANG_ANSWERS_AT_ONCE)]
        reader, writer = await connect(served, READY)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert begun == [("n", "g")] * web.MAX_GANG_ANSWERS_AT_ONCE
        go_on.set()
        for answer, _ in clients:
            assert (await answer.readline()).startswith(b"HTTP/1.1 200")
    for _, client_writer in clients:
        client_writer.close()
    await served.stop()
