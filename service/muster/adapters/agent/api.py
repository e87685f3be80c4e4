"""Requests to the API server with the account of the pod, by the standard library.

The agent makes a few small requests. The client library of the service would take 30 MB for them.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import msgspec

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 4.0
"""Of each step of a request. The kubelet waits meanwhile, and admits no other pod."""
MOST_BYTES = 192 * 1024 * 1024
"""Of an answer: 110 pods of one node, each of at most 1.5 MiB. Any user can make pods of that size, and the
agent must answer for the others. While it is read, an answer is in memory twice."""
MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """A request failed; the text names it. `status` is the HTTP status, 0 if there was no answer."""

    def __init__(self, request: str, status: int, message: str) -> None:
        super().__init__(f"{request}: {f'{status}, ' if status else ''}{message}")
        self.status = status

    @property
    def passing(self) -> bool:
        """Return whether the same request may succeed later."""
        return self.status in (0, 401, 408, 429) or self.status >= 500


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is, and the files with its CA and with the account's token."""

    host: str
    port: int
    ca: Path
    token: Path

    @classmethod
    def of_pod(cls) -> Access:
        """Return what the kubelet gives to every pod.

        Raises:
            ApiError: this is no pod.
        """
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        if not host or not port.isdigit() or not (ACCOUNT / "token").exists():
            raise ApiError("API server", 0, "this is no pod: KUBERNETES_SERVICE_HOST or the token is missing")
        return cls(host, int(port), ACCOUNT / "ca.crt", ACCOUNT / "token")


class ApiServer:
    """One connection, with one request at a time; what waits for a slow one does not block the event loop."""

    def __init__(self, access: Access) -> None:
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
        text = response.read(MOST_BYTES)
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
