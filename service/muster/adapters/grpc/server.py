"""Serve GangService on grpc.aio: translate calls, hold the only session, and report health.

A generic handler serves betterproto2's messages, because betterproto2's server code is for another library.
`GangCalls` gives all answers at once, and no call waits for a plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from muster.adapters.grpc import messages
from muster.adapters.grpc import reflection as descriptors
from muster.adapters.grpc.endpoint import Endpoint
from muster.adapters.grpc.generated.muster import v1
from muster.adapters.grpc.generated.muster.v1 import WatchResponse
from muster.adapters.grpc.reflection import to_bytes
from muster.adapters.telemetry.metrics import Metrics
from muster.adapters.telemetry.tracing import ids_of_call
from muster.gangs.messages import calls

SERVICE = "muster.v1.GangService"
MESSAGE_LIMIT = 16 * 1024 * 1024
"""Largest number of bytes of one answer. The candidates of a gang of thousands take some megabytes."""
REQUEST_LIMIT = 256 * 1024 * 1024
"""Largest number of bytes of one request. Watch contains all Bindings in flight, and each session begins with
Watch."""
STALLED_S = 60.0
"""Seconds after which a session ends if the shim has taken no response."""
CONCURRENT_CALLS = 256
DRAIN_S = 2.0

log = structlog.get_logger(__name__)


class SessionEnd(StrEnum):
    """Why a session ended."""

    REPLACED = "replaced"
    SLOW = "slow"
    """The shim has not read its responses for a long time."""
    SHUTDOWN = "shutdown"
    SHIM_LEFT = "left"


class Session:
    """One Watch stream: the queue of responses for the shim, and the cause of its end.

    Planning never waits for the shim. The queue has no limit, and the stream is written as fast as the shim
    reads. A later verdict of a gang replaces its earlier verdict, so the queue is no longer than the number
    of gangs. A session is not ended for a long queue, because the next session would get as many verdicts.
    `push` and `end` never wait. Only the task that writes the stream calls `next_response`.
    """

    def __init__(self, epoch: int, answers_in_tree: bool = False) -> None:
        self.epoch = epoch
        self.answers_in_tree = answers_in_tree
        self.cause: SessionEnd | None = None
        self.ended = asyncio.Event()
        self._queue: OrderedDict[str, WatchResponse] = OrderedDict()
        self._arrived = asyncio.Event()

    def push(self, response: WatchResponse) -> bool:
        """Queue one response. Return False if the session has ended."""
        gang = response.verdict.gang if response.verdict is not None else ""
        if response.in_tree_question is not None:
            gang = f"?{response.in_tree_question.gang}"  # no gang's key begins with ?
        if self.cause is not None:
            return False
        self._queue.pop(gang, None)
        self._queue[gang] = response
        self._arrived.set()
        return True

    def end(self, cause: SessionEnd) -> None:
        """End the session. The first cause stays. Queued messages are dropped, because the next session gets
        everything."""
        if self.cause is None:
            self.cause = cause
            self._queue.clear()
            self.ended.set()
            self._arrived.set()

    async def next_response(self) -> WatchResponse | None:
        """Return the next response; None once the session has ended."""
        while not self._queue and self.cause is None:
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popitem(last=False)[1] if self._queue else None


class GangCalls(Protocol):
    """The interface through which the server calls the gangs."""

    def answer(self, call: calls.Call[calls.CallAnswer]) -> calls.CallAnswer:
        """Answer a call at once.

        Raises:
            calls.StaleError: the call names a plan that is not current.
            ValueError, IndexError: its arguments are malformed.
        """

    async def wait_for_sync(self) -> None:
        """Return once the cluster has been seen in full."""

    async def open_session(self, session: Session, in_flight: Sequence[Any]) -> None:
        """Begin a session. Return once this session is current, and the earlier session has ended.

        `in_flight`: InFlightBindings of `reflection.message_class`.
        """

    async def close_session(self, session: Session) -> None:
        """End the session, unless another session has begun."""


class GangServer:
    """The server. Call `start`, then `report_serving` once the cluster has been seen, then `stop`."""

    def __init__(
        self, gangs: GangCalls, endpoint: Endpoint, metrics: Metrics, *, stalled_s: float = STALLED_S
    ) -> None:
        self._gangs = gangs
        self._endpoint = endpoint
        self._metrics = metrics
        self._stalled_s = stalled_s
        self._health = HealthServicer()
        self._server: Any = None

    async def start(self) -> None:
        """Bind the socket. Health is NOT_SERVING.

        Raises:
            endpoint.SocketError: this process can't own the socket.
        """
        self._endpoint.claim()
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", REQUEST_LIMIT),
                ("grpc.max_send_message_length", MESSAGE_LIMIT),
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=CONCURRENT_CALLS,
        )
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server, pool=descriptors.pool())
        self._server.add_generic_rpc_handlers((self._handler(),))
        self._server.add_insecure_port(self._endpoint.address)
        await self._server.start()
        self._endpoint.protect()
        log.info("listening", socket=str(self._endpoint.path))

    async def report_serving(self) -> None:
        """Report SERVING from now on."""
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Refuse new calls, give running calls two seconds, and remove the socket."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(DRAIN_S)
        self._endpoint.release()

    async def _set_health(self, state: Any) -> None:
        await self._health.set("", state)
        await self._health.set(SERVICE, state)

    def _handler(self) -> Any:
        watch = descriptors.message_class("WatchRequest").FromString
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                partial(self._answer, name, method), method.parse, to_bytes
            )
            for name, method in messages.METHODS.items()
        }
        handlers["Watch"] = grpc.unary_stream_rpc_method_handler(self._watch, watch, to_bytes)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    # --- the session ---------------------------------------------------------------------------------

    async def _watch(self, request: Any, context: Any) -> None:
        """Serve one stream. Messages are written here and not yielded, so that a write which the shim does
        not take ends with the session."""
        await self._gangs.wait_for_sync()
        session = Session(self._endpoint.next_epoch(), request.answers_in_tree)
        log.info("session opened", session=request.session, epoch=session.epoch)
        session.push(v1.WatchResponse(session_opened=v1.SessionOpened(epoch=session.epoch)))
        try:
            await self._gangs.open_session(session, request.in_flight)
            await self._write_all(session, context)
        finally:
            session.end(SessionEnd.SHIM_LEFT)  # a session that has ended keeps its cause
            cause = session.cause or SessionEnd.SHIM_LEFT
            log.info("session ended", session=request.session, epoch=session.epoch, cause=cause.value)
            self._metrics.session_ended(cause.value)
            await self._gangs.close_session(session)
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if cause is SessionEnd.SLOW else grpc.StatusCode.ABORTED
        await context.abort(code, f"session {session.epoch} ended: {cause.value}")

    async def _write_all(self, session: Session, context: Any) -> None:
        ended = asyncio.create_task(session.ended.wait())
        try:
            while (response := await session.next_response()) is not None:
                for part in messages.parts(response):
                    write = asyncio.ensure_future(context.write(part))
                    first = asyncio.FIRST_COMPLETED
                    await asyncio.wait({write, ended}, timeout=self._stalled_s, return_when=first)
                    if not write.done():
                        session.end(SessionEnd.SLOW)  # a session that has ended keeps its cause
                        write.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await write
                        return
                    write.result()
        finally:
            ended.cancel()

    # --- the calls -----------------------------------------------------------------------------------

    async def _answer(self, name: str, method: messages.Method, request: Any, context: Any) -> Any:
        began, code, text = time.perf_counter(), grpc.StatusCode.OK, ""
        try:
            return method.response(self._gangs.answer(method.call(request)))
        except calls.StaleError as stale:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(stale) or "the plan is not the current one"
        except (ValueError, IndexError) as wrong:
            code, text = grpc.StatusCode.INVALID_ARGUMENT, str(wrong)
        except Exception as defect:  # the shim must get an answer, and the log the traceback
            trace = ids_of_call(context.invocation_metadata())
            gang = getattr(getattr(request, "plan", request), "gang", "")
            log.exception("call failed", method=name, gang=gang, **trace)
            code, text = grpc.StatusCode.INTERNAL, f"{name}: {type(defect).__name__}: {defect}"
        finally:
            self._metrics.call_seconds.labels(name, code.name).observe(time.perf_counter() - began)
        await _abort(context, code, text)


async def _abort(context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort raises")
