"""The service's read-only HTTP server: /metrics, /healthz, /readyz, /gangs, /explain, /nodes.

By default it uses a free port of the loopback interface. The address is written next to the socket, so that
`muster status` finds it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import structlog
from aiohttp import web

from muster.adapters.connections import Server
from muster.adapters.telemetry.metrics import Metrics
from muster.domain.rate import Allowance

SHUTDOWN_S = 1.0
MAX_CONNECTIONS = 256
"""Largest number of connections, because every pod may connect. Beyond it the oldest connection is cut off,
idle ones first."""
SEND_S = 30.0
MAX_GANG_ANSWERS_AT_ONCE = 2
"""Number of answers of /gangs and /explain that are made at a time. Each takes milliseconds of the event
loop."""
ANSWERS_WITHOUT_PAUSE = 4
"""Number of answers of /metrics and /nodes that are made without a pause. After them, one a second is made.
"""
OPEN_METRICS = "application/openmetrics-text"

log = structlog.get_logger(__name__)


def address_file(socket: Path) -> Path:
    """Return the file with the HTTP address, for the service on this socket."""
    return socket.with_name(socket.name + ".http")


class CachedAnswer:
    """An answer that many clients may ask for.

    The answer is computed `ANSWERS_WITHOUT_PAUSE` times, and then once a second. In between, all clients get
    the last answer. So a flood of requests costs the loop little, and a client that scrapes now and then
    never gets an old answer.
    """

    def __init__(self, make: Callable[[], Awaitable[tuple[bytes, str]]]) -> None:
        self._make = make
        self._answer: tuple[bytes, str] | None = None
        self._allowance = Allowance(ANSWERS_WITHOUT_PAUSE, 1.0, monotonic)
        self._one_at_a_time = asyncio.Lock()

    async def response(self) -> web.Response:
        """Return the answer."""
        async with self._one_at_a_time:
            if self._answer is None or self._allowance.available >= 1:
                self._allowance.spend()
                self._answer = await self._make()
        body, content_type = self._answer
        return web.Response(body=body, headers={"Content-Type": content_type})


class Web:
    """The HTTP server.

    `gangs` returns the answer of /gangs, by namespace and name, where "" stands for all. `explained` and
    `nodes` return the answers of /explain and /nodes. `unready` returns why the service is not ready, or "".
    `with_alternatives` adds to an answer of /explain where else the gangs could go. It limits its own
    requests.
    """

    def __init__(
        self,
        metrics: Metrics,
        gangs: Callable[[str, str], Awaitable[object]],
        explained: Callable[[str, str], Awaitable[Any]],
        with_alternatives: Callable[[Any], Awaitable[object]],
        nodes: Callable[[], Awaitable[object]],
        unready: Callable[[], str],
        socket: Path,
    ) -> None:
        self._metrics = metrics
        self._gangs = gangs
        self._explained = explained
        self._with_alternatives = with_alternatives
        self._nodes = nodes
        self._cached_nodes = CachedAnswer(self._make_nodes)
        formats = (OPEN_METRICS, f"{OPEN_METRICS}; version=1.0.0"), ("", "")
        self._cached_metrics = {
            accepted_format: CachedAnswer(functools.partial(self._make_metrics, media_type))
            for accepted_format, media_type in formats
        }
        self._unready = unready
        self._gang_answers = asyncio.Semaphore(MAX_GANG_ANSWERS_AT_ONCE)
        routes = {
            "/metrics": self._on_metrics,
            "/healthz": self._on_healthz,
            "/readyz": self._on_readyz,
            "/gangs": self._on_gangs,
            "/explain": self._on_explain,
            "/nodes": self._on_nodes,
        }
        self._server = Server(
            routes,
            MAX_CONNECTIONS,
            SEND_S,
            address_file(socket),
            makes_way=True,
            shutdown_timeout=SHUTDOWN_S,
        )
        self.url = ""

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            OSError: the port is taken.
        """
        self.url, _ = await self._server.start(host, port)
        log.info("http", url=self.url)

    async def stop(self) -> None:
        """Stop the server and remove the file with its address."""
        await self._server.stop()

    async def _on_metrics(self, request: web.Request) -> web.Response:
        accepted = request.headers.get("Accept", "")
        return await self._cached_metrics[OPEN_METRICS if OPEN_METRICS in accepted else ""].response()

    async def _make_metrics(self, accepted: str) -> tuple[bytes, str]:
        await self._metrics.before_scrape()
        return self._metrics.text(accepted)

    async def _on_healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _on_readyz(self, _: web.Request) -> web.Response:
        reason = self._unready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _on_gangs(self, request: web.Request) -> web.Response:
        async with self._gang_answers:
            return _json(await self._gangs(*_names_in(request)))

    async def _on_explain(self, request: web.Request) -> web.Response:
        async with self._gang_answers:
            explanation = await self._explained(*_names_in(request))
        if request.query.get("alternatives"):
            explanation = await self._with_alternatives(explanation)
        return _json(explanation)

    async def _on_nodes(self, _: web.Request) -> web.Response:
        return await self._cached_nodes.response()

    async def _make_nodes(self) -> tuple[bytes, str]:
        return msgspec.json.encode(await self._nodes()), "application/json"


def _names_in(request: web.Request) -> tuple[str, str]:
    """Return the namespace and the name in the request; "" for all names."""
    return request.query.get("namespace", "default"), request.query.get("name", "")


def _json(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
