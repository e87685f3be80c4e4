"""How many connections browsers may have, whether or not they ask for anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


class Connections:
    """Makes the protocol of each new connection. At `most`, the oldest idle one is cut off for it.

    So a client that connects and says nothing costs one of `most` places, for as long as no other needs it.
    """

    def __init__(self, server: web.Server, most: int) -> None:
        self._server, self._most = server, most
        self._busy: set[asyncio.BaseProtocol] = set()

    def __call__(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        there = [
            (each, each.transport)
            for each in self._server.connections
            if each.transport is not None and not each.transport.is_closing()
        ]
        if len(there) >= self._most:
            idle = next((transport for each, transport in there if each not in self._busy), None)
            if idle is None:
                return _Refused()
            idle.abort()
        return self._server()

    @contextmanager
    def busy(self, connection: asyncio.BaseProtocol) -> Iterator[None]:
        """Keep the connection meanwhile: a request is answered on it."""
        self._busy.add(connection)
        try:
            yield
        finally:
            self._busy.discard(connection)


class _Refused(asyncio.Protocol):
    """Ends its connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
