"""The API server: requests and queued writes with the pod's account, by the standard library.

The agent makes a few small requests. The client library of the service would take 30 MB for them.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode
from uuid import uuid4

import msgspec

from muster.domain.printable import printable
from muster.domain.rate import Backoff

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 4.0
"""Timeout of each step of a request. During it the kubelet waits, and admits no other pod."""
MAX_BYTES = 192 * 1024 * 1024
"""Largest number of bytes of an answer: 110 pods of one node, each of at most 1.5 MiB. Any user can make pods
of that size, and the agent must still answer for other pods. While an answer is read, it is in memory twice.
"""
MERGE_PATCH = "application/merge-patch+json"
ROOM = 500
"""Largest number of writes that may wait."""
TRIES = 8
"""Number of tries of a write. With the longest delays of the back-off, all tries take half a minute."""
LONGEST_DELAY_S = 8.0
REPEAT_AFTER_S = 300.0
"""Seconds after which the same sentence on the same object is posted again."""
REMEMBERED = 256
MESSAGE_LIMIT = 1000

log = logging.getLogger(__name__)


class ApiError(Exception):
    """A failed request, which the text names. `status` is the HTTP status, 0 if there was no answer."""

    def __init__(self, request: str, status: int, message: str) -> None:
        super().__init__(f"{request}: {f'{status}, ' if status else ''}{message}")
        self.status = status

    @property
    def may_succeed_later(self) -> bool:
        """Return whether the same request may succeed later."""
        return self.status in (0, 401, 408, 429) or self.status >= 500


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """The address of the API server, and the files with its CA and with the account's token."""

    host: str
    port: int
    ca: Path
    token: Path

    @classmethod
    def of_pod(cls) -> ApiAccess:
        """Return the access that the kubelet gives to every pod.

        Raises:
            ApiError: the process does not run in a pod.
        """
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        if not host or not port.isdigit() or not (ACCOUNT / "token").exists():
            raise ApiError("API server", 0, "this is no pod: KUBERNETES_SERVICE_HOST or the token is missing")
        return cls(host, int(port), ACCOUNT / "ca.crt", ACCOUNT / "token")


class ApiServer:
    """One connection, with one request at a time. A slow request does not block the event loop."""

    def __init__(self, access: ApiAccess) -> None:
        self._access = access
        self._connection: http.client.HTTPSConnection | None = None
        self._thread = ThreadPoolExecutor(1, "api")

    async def get(self, subject: str, path: str, query: dict[str, str] | None = None) -> bytes:
        """Return the body of a GET. `subject` names the object for errors.

        Raises:
            ApiError: refused, or no answer in time.
        """
        return await self._send(subject, "GET", f"{path}?{urlencode(query)}" if query else path, None)

    async def post(self, subject: str, path: str, body: object) -> None:
        """Create an object; raises like `get`."""
        await self._send(subject, "POST", path, body)

    async def merge_patch(self, subject: str, path: str, body: object) -> None:
        """Change an object; null takes a field away. Raises like `get`."""
        await self._send(subject, "PATCH", path, body)

    def close(self) -> None:
        """End the connection; a request in flight is not awaited."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _send(self, subject: str, verb: str, path: str, body: object) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._request, f"{verb} {subject}", verb, path, body
        )

    def _request(self, request: str, verb: str, path: str, body: object) -> bytes:
        is_reused = self._connection is not None
        try:
            try:
                return self._answer(request, verb, path, body)
            except (http.client.HTTPException, ConnectionError, ssl.SSLError):
                if not is_reused:
                    raise
                # the server has closed a connection that was not used for a while
                self._disconnect()
                return self._answer(request, verb, path, body)
        except (http.client.HTTPException, OSError, ValueError) as problem:
            self._disconnect()
            why = "no answer in time" if isinstance(problem, TimeoutError) else str(problem)
            raise ApiError(request, 0, why or type(problem).__name__) from problem

    def _answer(self, request: str, verb: str, path: str, body: object) -> bytes:
        if self._connection is None:
            context = ssl.create_default_context(cafile=str(self._access.ca))
            self._connection = http.client.HTTPSConnection(
                self._access.host, self._access.port, timeout=TIMEOUT_S, context=context
            )
        headers = {
            "Accept": "application/json",
            "Authorization": f"Bearer {self._access.token.read_text().strip()}",
            "Content-Type": MERGE_PATCH if verb == "PATCH" else "application/json",
            "User-Agent": "muster-node-agent",
        }
        self._connection.request(verb, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        text = response.read(MAX_BYTES)
        if response.status >= 400:
            raise ApiError(request, response.status, _message(text) or response.reason)
        return text

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Status(msgspec.Struct):
    message: str = ""


def _message(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=_Status).message[:500]
    except msgspec.DecodeError:
        return text[:500].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Target:
    """A pod, or a node (without a namespace), as events name it."""

    name: str
    uid: str
    namespace: str = ""

    @property
    def path(self) -> str:
        """Return its path in the API."""
        if self.namespace:
            return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        return f"/api/v1/nodes/{self.name}"

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}" if self.namespace else f"node {self.name}"


@dataclass(frozen=True, slots=True)
class _Write:
    subject: str
    send: Callable[[str, str, object], Awaitable[None]]
    path: str
    body: dict[str, object]


class Outbox:
    """The agent's writes: events, and annotations of pods. The agent never waits for a write.

    Their number is limited, and they are sent one after another. A write that fails after a few tries is
    dropped, with a line in the log. `instance` names this agent in events.
    """

    def __init__(self, api: ApiServer, instance: str) -> None:
        self._api = api
        self._instance = instance
        self._queue: asyncio.Queue[_Write] = asyncio.Queue(ROOM)
        self._warned_at: dict[tuple[str, str], float] = {}

    def event(self, target: Target, reason: str, message: str) -> None:
        """Queue a Warning on the object, unless the same Warning was posted a short while ago."""
        now = time.monotonic()
        if now - self._warned_at.get((target.uid, message), float("-inf")) < REPEAT_AFTER_S:
            return
        self._warned_at[target.uid, message] = now
        if len(self._warned_at) > REMEMBERED:
            del self._warned_at[next(iter(self._warned_at))]
        log.warning("%s: %s: %s", target, reason, printable(message, MESSAGE_LIMIT))
        timestamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        namespace = target.namespace or "default"
        body: dict[str, object] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{target.name[:200]}.{uuid4().hex[:16]}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod" if target.namespace else "Node",
                "name": target.name,
                "uid": target.uid if target.namespace else target.name,
                **({"namespace": namespace} if target.namespace else {}),
            },
            "reason": reason,
            "message": printable(message, MESSAGE_LIMIT),
            "type": "Warning",
            "firstTimestamp": timestamp,
            "lastTimestamp": timestamp,
            "count": 1,
            "source": {"component": "muster-node-agent"},
            "reportingComponent": "muster-node-agent",
            "reportingInstance": self._instance,
        }
        self._put(
            _Write(f"event on {target}", self._api.post, f"/api/v1/namespaces/{namespace}/events", body)
        )

    def annotate(self, target: Target, annotations: dict[str, str]) -> None:
        """Queue annotations of a pod. They are written only if the pod still has its UID."""
        metadata = {"uid": target.uid, "annotations": annotations}
        self._put(_Write(str(target), self._api.merge_patch, target.path, {"metadata": metadata}))

    async def run(self) -> None:
        """Send queued writes. Ends only by cancellation."""
        while True:
            await self._send(await self._queue.get())

    def _put(self, write: _Write) -> None:
        try:
            self._queue.put_nowait(write)
        except asyncio.QueueFull:
            log.warning("%s is lost: %d writes wait already", write.subject, ROOM)

    async def _send(self, write: _Write) -> None:
        backoff = Backoff(limit=LONGEST_DELAY_S)
        for tries_left in reversed(range(TRIES)):
            try:
                await write.send(write.subject, write.path, write.body)
            except ApiError as problem:
                if not tries_left or not problem.may_succeed_later:
                    log.warning("lost: %s", printable(str(problem)))
                    return
                await asyncio.sleep(backoff.delay())
            else:
                return
