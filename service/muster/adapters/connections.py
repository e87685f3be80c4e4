"""Serve HTTP with a limit on connections, because clients may ask nothing, or not read their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

log = structlog.get_logger(__name__)


class Server:
    """An HTTP server with at most `max_connections` connections.

    At this limit, a new connection replaces the oldest idle connection. So a client that connects and asks
    nothing keeps its place only while no other client needs it. If no connection is idle, a new connection is
    refused. With `makes_way` it replaces the oldest connection instead, which suits answers that take
    milliseconds. A client that does not read its answer within `send_s` is cut off.

    While the server runs, `address_file` has its address. `options` are those of aiohttp's AppRunner.
    """

    def __init__(
        self,
        routes: Mapping[str, Handler],
        max_connections: int,
        send_s: float,
        address_file: Path | None,
        *,
        makes_way: bool = False,
        **options: Any,
    ) -> None:
        app = web.Application(middlewares=[self._answer])
        app.add_routes([web.get(path, handler) for path, handler in routes.items()])
        self._runner = web.AppRunner(app, access_log=None, **options)
        self._max_connections, self._send_s, self._makes_way = max_connections, send_s, makes_way
        self._address_file = address_file
        self._listening: asyncio.Server | None = None
        self._busy: set[asyncio.BaseProtocol] = set()
        self.on_answer = app.on_response_prepare
        self.dropped = 0
        """Number of clients that did not read in time."""

    async def start(self, host: str, port: int, path: str = "") -> tuple[str, str]:
        """Listen; port 0 takes a free one. Return the URL, which ends with `path`, and the address.

        Raises:
            OSError: The port is taken.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._protocol, host, port)
        address, port = self._listening.sockets[0].getsockname()[:2]
        url = f"http://[{address}]:{port}{path}" if ":" in address else f"http://{address}:{port}{path}"
        if self._address_file is not None:
            self._address_file.write_text(url + "\n")
        return url, address

    async def stop(self) -> None:
        """Stop the server, cut off its clients, and remove the file with its address."""
        if self._listening is not None:
            self._listening.close()
            if self._address_file is not None:
                self._address_file.unlink(missing_ok=True)
            self._listening = None
        await self._runner.cleanup()

    def _protocol(self) -> asyncio.BaseProtocol:
        """Accept a connection. At the limit, close an idle one first, or refuse the new one."""
        server = self._runner.server
        assert server is not None
        open_connections = [
            (connection, connection.transport)
            for connection in server.connections
            if connection.transport is not None and not connection.transport.is_closing()
        ]
        if len(open_connections) >= self._max_connections:
            idle = next(
                (transport for connection, transport in open_connections if connection not in self._busy),
                None,
            )
            if idle is None and self._makes_way:
                idle = open_connections[0][1]
            if idle is None:
                return _RefusedConnection()
            idle.abort()
        return server()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request to its last byte. Its connection is not idle until then."""
        self._busy.add(request.protocol)
        try:
            response = await handler(request)
        except web.HTTPException as refusal:
            await self._send(request, refusal)
            raise
        else:
            await self._send(request, response)
            return response
        finally:
            self._busy.discard(request.protocol)

    def drop(self, request: web.Request) -> None:
        """Cut off a client that does not read."""
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


def cut_off(request: web.Request) -> None:
    """End the connection of a request at once."""
    if request.transport is not None:
        request.transport.abort()


class _RefusedConnection(asyncio.Protocol):
    """The protocol of a refused connection, which it ends at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
