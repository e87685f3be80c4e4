"""A thin client of the API server: GET, POST, PATCH and watch streams of raw JSON.

`kubernetes.aio` reads kubeconfig and in-cluster credentials and sets up TLS. Its API classes and models are
not used, because importing CoreV1Api takes 1 to 3 s. Errors of the library, of aiohttp and of the socket
become `ApiError` and `Unreachable` here, which name the verb and the object.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
import structlog
import yaml

from muster.adapters.kube.decode import ApiStatus

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 10.0
"""Timeout of a POST or PATCH: the default of an admission webhook (`timeoutSeconds`)."""
OPEN_TIMEOUT_S = 30.0
"""Timeout until a watch is established: a server may let it queue for a while."""
DEAD_PEER_S = 9
"""A peer that acknowledges nothing for this time is gone (TCP_USER_TIMEOUT and keep-alive probes). It is
shorter than the time after which gangs give up a place without a Binding (`GangSettings.session_s`)."""
CREDENTIALS_RELOAD_AFTER_S = 10.0
ERROR_BODY_LIMIT = 4096
_MISSHAPEN = (TypeError, AttributeError)
"""Exceptions of the library for a kubeconfig of another shape, such as [] in place of a mapping."""
LINE_LIMIT = 64 * 1024 * 1024
"""Largest number of bytes of one watch event. etcd takes 1.5 MiB per object, and JSON can be some 20 times as
long."""
LIVENESS_TRIES = 2
"""The second try is for a service that stood still itself, so that the answer to the first try was read too
late."""

log = structlog.get_logger(__name__)


class KubeError(Exception):
    """A request to the API server failed. The text names verb and object."""


class ConfigError(KubeError):
    """The kubeconfig or the in-cluster credentials can't be used."""


class Unreachable(KubeError):
    """There was no answer, or it broke off. A later try may succeed."""


class Silent(Unreachable):
    """An established watch received nothing until its deadline. This also happens if there is nothing to
    report."""


class TooLarge(KubeError):
    """The answer has more bytes than the caller accepts."""


class ApiError(KubeError):
    """The API server refused. `status` is the HTTP status, `retry_after` the seconds that it asks for."""

    def __init__(self, request: str, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{request}: {status}, {message}")
        self.status = status
        self.retry_after = retry_after


class KubeClient:
    """Requests to one API server. Use it as an async context manager, or call `connect` and `close`.

    `kubeconfig` is a path; None means $KUBECONFIG or ~/.kube/config where one exists, else the pod's service
    account.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._rest_client: Any = None
        self._configuration: Any = None
        self._loaded = 0.0
        self._reloading = asyncio.Lock()
        self._answers: set[aiohttp.ClientResponse] = set()
        """Answers that are being read. The streams of `_watches` are among them."""
        self._watches: set[aiohttp.ClientResponse] = set()
        self._heard_at = time.monotonic()

    async def __aenter__(self) -> KubeClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Load credentials. No request is made.

        Raises:
            ConfigError: credentials are missing or broken.
        """
        # 1.3 s of imports: in a thread, so that health answers meanwhile
        await asyncio.to_thread(_import_kubernetes)
        await self._load()

    async def close(self) -> None:
        """Close the connections."""
        if self._rest_client is not None:
            await self._rest_client.close()
            self._rest_client = None

    @property
    def host(self) -> str:
        """Return the API server's address, or "" before the credentials are loaded."""
        return str(self._configuration.host) if self._configuration is not None else ""

    @property
    def silent_s(self) -> float:
        """Return the seconds since the server last sent anything."""
        return time.monotonic() - self._heard_at

    def end_watches(self) -> bool:
        """Close all open watches. Their readers get `Unreachable` after the current batch. Return whether
        there were any."""
        ending = list(self._watches)
        for response in ending:
            response.close()
        return bool(ending)

    async def get(
        self, subject: str, path: str, query: dict[str, str] | None = None, limit: int | None = None
    ) -> bytes:
        """Return the body of a GET. `subject` names the object for errors ("pods", "node a").

        Raises:
            ApiError: refused.
            Unreachable: no complete answer in time.
            TooLarge: the body has more than `limit` bytes.
        """
        async with self._request("GET", subject, path, query=query) as response:
            if limit is None:
                return await response.read()
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > limit:
                    raise TooLarge(f"GET {subject}: more than {limit:,} bytes")
            return bytes(body)

    async def post(self, subject: str, path: str, body: object) -> bytes:
        """Return the body of the answer to a POST of `body`. Raises like `get`."""
        async with self._request("POST", subject, path, body=body) as response:
            return await response.read()

    async def patch(self, subject: str, path: str, body: object, kind: str = "merge") -> bytes:
        """Return the body of the answer to a PATCH by `body`; null in it takes a field away.

        `kind`: "strategic-merge" leaves entries of other keys in lists alone. Raises like `get`.
        """
        async with self._request("PATCH", subject, path, body=body, patch=kind) as response:
            return await response.read()

    @contextlib.asynccontextmanager
    async def watch(
        self, subject: str, path: str, query: dict[str, str], read_deadline_s: float
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Yield batches of lines, until the server ends the stream.

        Raises:
            ApiError: refused (410 among them).
            Silent: it was established, and received nothing for `read_deadline_s`.
            Unreachable: it was not established in time, or broke off.
        """
        async with self._request(
            "GET", subject, path, query=query, read_deadline_s=read_deadline_s
        ) as response:
            self._watches.add(response)
            try:
                yield self._lines(subject, response)
            finally:
                self._watches.discard(response)

    @contextlib.asynccontextmanager
    async def _request(
        self,
        verb: str,
        subject: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: object = None,
        patch: str = "merge",
        read_deadline_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        if self._rest_client is None:
            raise Unreachable(f"{verb} {subject}: the client is closed")
        total_s = REQUEST_TIMEOUT_S if verb == "GET" else WRITE_TIMEOUT_S
        timeout = aiohttp.ClientTimeout(
            total=total_s if read_deadline_s is None else None,
            sock_connect=CONNECT_TIMEOUT_S,
            sock_read=read_deadline_s,
        )
        url = self._configuration.host + path + (f"?{urlencode(query)}" if query else "")
        name = f"{'WATCH' if read_deadline_s is not None else verb} {subject}"
        is_established = False
        try:
            headers = await self._headers()
            if verb == "PATCH":
                headers["Content-Type"] = f"application/{patch}-patch+json"
            async with asyncio.timeout(OPEN_TIMEOUT_S if read_deadline_s is not None else None):
                answer = await self._rest_client.request(
                    verb, url, headers=headers, body=body, _request_timeout=timeout
                )
            self._heard_at = time.monotonic()
            response: aiohttp.ClientResponse = answer.response
            async with response:
                if response.status >= 400:
                    raise await self._refusal(name, response)
                self._answers.add(response)
                is_established = read_deadline_s is not None
                try:
                    yield response
                finally:
                    self._answers.discard(response)
        except ConfigError as problem:  # valid credentials may come: they are read again
            raise Unreachable(f"{name}: {problem}") from problem
        except (aiohttp.ClientError, OSError) as problem:
            if isinstance(problem, aiohttp.ClientSSLError):  # the server has a certificate of a new authority
                with contextlib.suppress(ConfigError):  # the files are half written: next time
                    await self._reload()
            late = isinstance(problem, TimeoutError)
            why = "no answer in time" if late else str(problem) or type(problem).__name__
            # The response keeps `problem`. With its traceback, which refers to the response, both would be a
            # cycle, and what a collection has frozen (`garbage`) would never be freed.
            error = (
                Silent if is_established and isinstance(problem, aiohttp.SocketTimeoutError) else Unreachable
            )
            raise error(f"{name} at {self.host}: {why}") from problem.with_traceback(None)

    async def _lines(self, subject: str, response: aiohttp.ClientResponse) -> AsyncIterator[list[bytes]]:
        """Yield complete lines, as many as have come. A last piece without a newline is dropped, because the
        next watch starts before it."""
        tail = b""
        while chunk := await response.content.readany():
            self._heard_at = time.monotonic()
            *lines, tail = (tail + chunk).split(b"\n")
            if len(tail) > LINE_LIMIT:
                raise Unreachable(f"WATCH {subject}: an event of more than {LINE_LIMIT} bytes")
            if lines:
                yield lines

    async def _headers(self) -> dict[str, str]:
        with self._credentials():  # a token is read, or asked of a plugin, again from time to time
            token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        headers = {"Accept": "application/json", "User-Agent": "muster"}
        return headers | {"Authorization": token} if token else headers

    async def _refusal(self, name: str, response: aiohttp.ClientResponse) -> ApiError:
        body = await response.content.read(ERROR_BODY_LIMIT)
        try:
            message = msgspec.json.decode(body, type=ApiStatus).message
        except msgspec.DecodeError:
            message = body.decode(errors="replace")
        if response.status == 401:
            await self._reload()
        retry_header = response.headers.get("Retry-After", "")
        retry_after = float(retry_header) if retry_header.isdecimal() else None
        return ApiError(name, response.status, message or str(response.reason), retry_after)

    async def _reload(self) -> None:
        """Read tokens and certificates again for the caller's next try, because they expire or are
        replaced."""
        async with self._reloading:
            if time.monotonic() - self._loaded < CREDENTIALS_RELOAD_AFTER_S or self._rest_client is None:
                return
            await self._load()

    async def _load(self) -> None:
        from kubernetes.aio import config
        from kubernetes.aio.client.configuration import Configuration
        from kubernetes.aio.client.rest import RESTClientObject

        configuration = Configuration()
        with self._credentials():
            if path := self._kubeconfig_path():
                # to_thread is no help: an exec plugin is awaited; the file is small
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    path, context=self._context, client_configuration=configuration, persist_config=False
                )
            else:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        configuration.proxy = configuration.proxy or environments_proxy(configuration.host)
        configuration.client_session_kwargs = {"trust_env": False}
        with self._credentials():
            connection = _connection(RESTClientObject, configuration)
        old, self._rest_client, self._configuration = self._rest_client, connection, configuration
        self._loaded = time.monotonic()
        if old is not None:
            for answer in list(self._answers):
                answer.close()  # its reader gets Unreachable; a closed session would leave it waiting
            await old.close()

    @contextlib.contextmanager
    def _credentials(self) -> Iterator[None]:
        """Turn every error of the library about unusable credentials into ConfigError."""
        from kubernetes.aio.config import ConfigException

        try:
            yield
        except (ConfigException, yaml.YAMLError, OSError, ValueError, LookupError, *_MISSHAPEN) as problem:
            path = self._kubeconfig_path()
            if path is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
                raise ConfigError(
                    "no cluster: there is no kubeconfig, and this is no pod. Set KUBECONFIG or --kubeconfig"
                ) from problem
            source = path or "the pod's service account (no kubeconfig was found)"
            raise ConfigError(f"can't use the credentials of {source}: {problem}") from problem

    def _kubeconfig_path(self) -> str | None:
        """Return the kubeconfig; None for the pod's account.

        Raises:
            ConfigError: the given file does not exist. The library would complain about its content.
        """
        if self._kubeconfig is not None:
            if not any(os.path.exists(part) for part in self._kubeconfig.split(os.pathsep)):
                raise ConfigError(f"can't use the credentials of {self._kubeconfig}: there is no such file")
            return self._kubeconfig
        default = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
        return default if any(os.path.exists(part) for part in default.split(os.pathsep)) else None


def _connection(base: Any, configuration: Any) -> Any:
    """Return a class of the client library's connection whose sockets notice a dead peer."""
    import aiohttp

    class Connection(base):  # type: ignore[misc]
        def _create_connector(self) -> aiohttp.TCPConnector:
            return aiohttp.TCPConnector(
                limit=self.maxsize, ssl=self.ssl_context, socket_factory=_lively_socket
            )

    return Connection(configuration)


def _lively_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    new_socket = socket.socket(family, kind, protocol)
    new_socket.setblocking(False)
    new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        new_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
        new_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_S // 2)
        new_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, DEAD_PEER_S // 6)
    return new_socket


def _import_kubernetes() -> None:
    import kubernetes.aio.client.rest
    import kubernetes.aio.config  # noqa: F401


def environments_proxy(url: str) -> str | None:
    """Return the proxy for this URL by HTTPS_PROXY and similar variables.

    aiohttp would read the environment and ~/.netrc for each request: a third of the time of a small request.
    """
    target = urlsplit(url)
    return None if proxy_bypass(target.netloc) else getproxies().get(target.scheme)


class Liveness:
    """Asks the API server for /livez after a silence of `quiet_s`, for an answer within `deadline_s`.

    A frozen server with a live connection looks like an idle server: its kernel acknowledges everything, and
    bookmarks come once a minute at best. Every client may ask for /livez (system:public-info-viewer), and no
    queue of a busy server delays the answer (the flow schema "probes" is exempt). Without an answer all
    watches are closed.

    A frozen server is noticed after 8 s. Until `GangSettings.session_s` has passed, gangs keep places of pods
    whose Binding was not seen. The limit of 8 s is shorter, because the Binding may be in the server's socket
    and succeed when the server wakes.
    """

    def __init__(self, client: KubeClient, quiet_s: float = 2.0, deadline_s: float = 3.0) -> None:
        self._client = client
        self._quiet_s = quiet_s
        self._deadline_s = deadline_s

    async def run(self) -> None:
        """Ask the API server for a sign of life whenever it is silent, until cancelled."""
        while True:
            if (seconds_left := self._quiet_s - self._client.silent_s) > 0:
                await asyncio.sleep(seconds_left)
            elif not await self._is_alive():
                if self._client.end_watches():
                    log.warning("the API server does not answer", silent_s=round(self._client.silent_s, 1))
                await asyncio.sleep(self._quiet_s)

    async def _is_alive(self) -> bool:
        for _ in range(LIVENESS_TRIES):
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._client.get("health of the API server", "/livez")
            except ApiError:
                return True  # it has problems, but it answers
            except (Unreachable, TimeoutError):
                continue
            return True
        return self._client.silent_s < self._quiet_s  # a watch may have received something meanwhile
