"""Serve the page over HTTP, read-only: its files, the state, changes as server-sent events, and one gang.

A browser may be hostile. So the number of browsers is limited, and a browser that does not read in time is
cut off. If tokens are needed, only the files come without a token, because they say nothing about the
cluster.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from muster.adapters.connections import Server, cut_off
from muster.adapters.page.access import ALLOWED_S, Access, TokenAnswer
from muster.adapters.page.board import Board

SHUTDOWN_S = 1.0
HEARTBEAT_S = 15.0
SEND_S = 10.0
"""Seconds that a browser may take to read an answer."""
KEEP_ALIVE_S = 75.0
MAX_ANSWERS_AT_ONCE = 8
"""Number of requests for the state or a gang that are answered at the same time. Others wait, for at most
WAIT_S."""
WAIT_S = 5.0
OWN_SITES = ("same-origin", "none")
"""Values of Sec-Fetch-Site for requests by the page itself, and by people. Other sites can't read an answer,
but could take all places of readers."""
MAX_KEY = 2048
"""Largest number of characters of a gang's key."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
REFUSALS = {
    TokenAnswer.UNKNOWN: "A bearer token that the API server knows is needed.\n",
    TokenAnswer.FORBIDDEN: "The user of this token may not get /muster/page.\n",
    TokenAnswer.UNAVAILABLE: "The API server cannot be asked about the token now. Try again in a second.\n",
}

log = structlog.get_logger(__name__)


def page_address_file(socket: Path) -> Path:
    """Return the file with the page's address, for the service on this socket."""
    return socket.with_name(socket.name + ".page")


@dataclass(frozen=True, slots=True)
class BrowserLimits:
    """Limits for browsers. At most `clients` browsers may read changes."""

    clients: int = 32
    connections: int = 256
    send_s: float = SEND_S
    heartbeat_s: float = HEARTBEAT_S


class PageServer:
    """Serves the page. `access` is None if no tokens are needed.

    `alternatives` returns where else a gang could have gone, by its key. It limits its own requests. If
    `socket` is given, the address is written to a file next to it.
    """

    def __init__(
        self,
        board: Board,
        access: Access | None,
        limits: BrowserLimits,
        alternatives: Callable[[str], Awaitable[object]],
        socket: Path | None = None,
    ) -> None:
        self._board, self._access, self._limits = board, access, limits
        self._alternatives = alternatives
        self._files = dict(_static_files())
        self._answering = asyncio.Semaphore(MAX_ANSWERS_AT_ONCE)
        self._local_only = False
        routes = {
            "/api/state": self._on_state,
            "/api/events": self._on_events,
            "/api/gang": self._on_gang,
            "/api/alternatives": self._on_alternatives,
            "/{name:.*}": self._on_file,
        }
        self._server = Server(
            routes,
            limits.connections,
            limits.send_s,
            page_address_file(socket) if socket is not None else None,
            shutdown_timeout=SHUTDOWN_S,
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE_S,
            logger=_logger(),
        )
        self._server.on_answer.append(_add_headers)
        self.clients = 0
        self.url = ""

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            OSError: The port is taken.
        """
        self.url, address = await self._server.start(host, port, "/")
        self._local_only = self._access is None and ip_address(address).is_loopback
        log.info("page", url=self.url, tokens=self._access is not None)
        if self._access is None and not self._local_only:
            log.warning("the page is open to all who reach it: set page.tokens", url=self.url)

    async def stop(self) -> None:
        """Stop the server and cut off all browsers."""
        await self._server.stop()

    # --- what is asked ------------------------------------------------------------------------------

    async def _on_file(self, request: web.Request) -> web.Response:
        """Answer with a file of the page. Files are the same for all users, and need no token."""
        self._check_host(request)
        name = request.match_info["name"] or "index.html"
        if name not in self._files:
            raise web.HTTPNotFound(text="There is no such file.\n")
        body, kind, tag = self._files[name]
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, headers=headers)

    async def _on_state(self, request: web.Request) -> web.Response:
        await self._check_access(request)
        try:
            async with self._turn():
                body = await self._board.state()
        except TimeoutError:
            raise _busy_answer("The service could not look at the cluster in time.\n") from None
        headers = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _on_gang(self, request: web.Request) -> web.Response:
        await self._check_access(request)
        async with self._turn():
            body = await self._board.detail(request.query.get("key", "")[:MAX_KEY])
        if body is None:
            raise web.HTTPNotFound(text="There is no such gang now.\n")
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def _on_alternatives(self, request: web.Request) -> web.Response:
        """Answer where else a gang could have gone. Such an answer may take seconds, so it uses no turn of
        other requests."""
        await self._check_access(request)
        body = msgspec.json.encode(await self._alternatives(request.query.get("key", "")[:MAX_KEY]))
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def _on_events(self, request: web.Request) -> web.StreamResponse:
        """Send all changes after the change that the browser saw last. The event "reset" tells the browser to
        read the state again."""
        await self._check_access(request)
        if self.clients >= self._limits.clients:
            raise _busy_answer(f"{self.clients} browsers are connected already, the most that may be.\n")
        self.clients += 1
        try:
            async with self._board.connect_browser():
                return await self._stream(request)
        finally:
            self.clients -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        position = self._board.log.position(request.headers.get("Last-Event-ID", ""))
        checked = time.monotonic()
        try:
            await self._send(response, b": connected\n\n")
            while position is not None and self._board.log.has_all_after(position):
                if (change := self._board.log.change_after(position)) is not None:
                    position += 1
                    change_id = self._board.log.id_of(position).encode()
                    await self._send(response, b"id: " + change_id + b"\ndata: " + change + b"\n\n")
                elif not await self._board.wait_for(position, self._limits.heartbeat_s):
                    await self._send(response, b": alive\n\n")
                if time.monotonic() - checked > ALLOWED_S:
                    await self._check_access(request)
                    checked = time.monotonic()
            await self._send(response, b"event: reset\ndata: {}\n\n")
        except TimeoutError:
            self._server.drop(request)
        except (web.HTTPException, ConnectionError):
            cut_off(request)  # the token is not valid any more, or the browser has gone
        return response

    async def _send(self, response: web.StreamResponse, data: bytes) -> None:
        """Write data. A browser that does not read it in time is cut off.

        Raises:
            TimeoutError: The browser did not read.
        """
        async with asyncio.timeout(self._limits.send_s):
            await response.write(data)

    # --- who may ask --------------------------------------------------------------------------------

    async def _check_access(self, request: web.Request) -> None:
        """Check the host, the site and the token.

        Raises:
            HTTPException: The answer to a request that is refused.
        """
        self._check_host(request)
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in OWN_SITES:
            raise web.HTTPForbidden(text="Another site may not ask in its visitor's browser.\n")
        if self._access is None:
            return
        answer = await self._access.check(request.headers.get("Authorization", ""))
        if answer is TokenAnswer.UNKNOWN:
            raise web.HTTPUnauthorized(text=REFUSALS[answer], headers={"WWW-Authenticate": "Bearer"})
        if answer is TokenAnswer.FORBIDDEN:
            raise web.HTTPForbidden(text=REFUSALS[answer])
        if answer is TokenAnswer.UNAVAILABLE:
            raise _busy_answer(REFUSALS[answer])

    def _check_host(self, request: web.Request) -> None:
        """Refuse foreign host names if the page is for this machine only.

        A hostile site can let its own name resolve to the page's address. Then it would read the page in its
        visitor's browser.
        """
        if self._local_only and not _is_local(request.host):
            raise web.HTTPMisdirectedRequest(text="Open the page as localhost or by a loopback address.\n")

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for one of the MAX_ANSWERS_AT_ONCE turns."""
        try:
            await asyncio.wait_for(self._answering.acquire(), WAIT_S)
        except TimeoutError:
            raise _busy_answer("Too many requests wait.\n") from None
        try:
            yield
        finally:
            self._answering.release()


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _logger() -> logging.Logger:
    """Return a logger without lines about malformed requests, because aiohttp quotes them with the token."""

    def is_ours(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))

    logger = logging.getLogger("aiohttp.server.page")
    logger.filters[:] = [is_ours]
    return logger


def _busy_answer(text: str) -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "1"})


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _static_files() -> Iterator[tuple[str, tuple[bytes, str, str]]]:
    """Yield the name, bytes, type and tag of each file of the page."""
    for file in files("muster.adapters.page").joinpath("static").iterdir():
        if kind := TYPES.get(Path(file.name).suffix):
            body = file.read_bytes()
            yield file.name, (body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
