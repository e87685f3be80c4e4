"""Bound the HTTP connections of clients that ask for nothing, or do not read what they asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

log = structlog.get_logger(__name__)


class Connections:
    """Makes the protocol of each new connection. At `most`, the oldest idle one is cut off for it.

    So a client that connects and says nothing costs one of `most` places, for as long as no other needs it. A
    client that does not read its answer within `send_s` is cut off. Where all are busy, a new connection is
    refused, or with `makes_way` takes the place of the oldest: for answers that take milliseconds.
    """

    def __init__(self, server: web.Server, most: int, send_s: float, *, makes_way: bool = False) -> None:
        self._server, self._most, self._send_s, self._makes_way = server, most, send_s, makes_way
        self.dropped = 0
        """Clients that did not read in time."""
        self._busy: set[asyncio.BaseProtocol] = set()

    def __call__(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        open_connections = [
            (connection, connection.transport)
            for connection in self._server.connections
            if connection.transport is not None and not connection.transport.is_closing()
        ]
        if len(open_connections) >= self._most:
            idle = next(
                (transport for connection, transport in open_connections if connection not in self._busy),
                None,
            )
            if idle is None and self._makes_way:
                idle = open_connections[0][1]
            if idle is None:
                return _Refused()
            idle.abort()
        return self._server()

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request to its last byte, and keep its connection meanwhile."""
        with self._mark_busy(request.protocol):
            try:
                response = await handler(request)
            except web.HTTPException as refusal:
                await self._send(request, refusal)
                raise
            await self._send(request, response)
            return response

    def drop(self, request: web.Request) -> None:
        """Cut a client off that does not read."""
        self.dropped += 1
        log.info("a client was dropped: it did not read in time", waited_s=self._send_s)
        cut_off(request)

    async def _send(self, request: web.Request, response: web.StreamResponse) -> None:
        try:
            async with asyncio.timeout(self._send_s):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            self.drop(request)

    @contextmanager
    def _mark_busy(self, connection: asyncio.BaseProtocol) -> Iterator[None]:
        self._busy.add(connection)
        try:
            yield
        finally:
            self._busy.discard(connection)


def cut_off(request: web.Request) -> None:
    """End the connection of a request at once."""
    if request.transport is not None:
        request.transport.abort()


class _Refused(asyncio.Protocol):
    """Ends its connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
