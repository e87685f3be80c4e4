"""Clients that connect and then do nothing, or do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from benchmarks.page.browser import serving
from benchmarks.page.scenes import six
from local_cluster.patience import HANG_S
from muster.adapters.page.board import Board
from muster.adapters.page.server import BrowserLimits, PageServer

Served = tuple[PageServer, Board]
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(six(), limits=BrowserLimits(connections=3)) as board_and_page:
        yield board_and_page


async def connect(page: PageServer, sent: bytes = b"") -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(page.url.rstrip("/").rpartition(":")[2]))
    writer.write(sent)
    return reader, writer


def request(path: str, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()


async def test_half_open_clients_do_not_keep_others_out(served: Served) -> None:
    page, _ = served
    silent = [await connect(page, b"GET / HTTP/1.1\r\nHost: loc") for _ in range(20)]
    async with asyncio.timeout(HANG_S):
        reader, writer = await connect(page, request("/"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        oldest, _ = silent[0]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await oldest.readexactly(1)
    for _, client_writer in [*silent, (reader, writer)]:
        client_writer.close()


async def test_streams_keep_their_connections(served: Served) -> None:
    page, board = served
    await board.state()
    question = request("/api/events", f"Last-Event-ID: {board.log.id}\r\n")
    async with asyncio.timeout(HANG_S):
        streams = [await connect(page, question) for _ in range(3)]
        for reader, _ in streams:
            await reader.readuntil(b": connected\n\n")
        reader, writer = await connect(page, request("/"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        board._publish(b'{"left": []}')
        for stream, _ in streams:
            await stream.readuntil(b'data: {"left": []}')
    for _, client_writer in [*streams, (reader, writer)]:
        client_writer.close()


@pytest.mark.parametrize("ending", ["\x01", "x" * 9000])
async def test_no_token_of_a_malformed_request_is_logged(
    served: Served, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = request("/api/state", f"Authorization: Bearer a-secret{ending}\r\n")
    async with asyncio.timeout(HANG_S):
        reader, writer = await connect(served[0], sent)
        assert b" 400 " in await reader.readline()
    writer.close()
    assert "a-secret" not in caplog.text
