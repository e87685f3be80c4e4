"""A small API server over real HTTP: lists with pages, watches that a test feeds, cuts and lets hang."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from local_cluster.patience import HANG_S
from muster.adapters.kube.decode import api_version_of

EMPTY = (
    "/configmaps",
    "/namespaces",
    "/persistentvolumeclaims",
    "/persistentvolumes",
    "/storageclasses",
    "/csidrivers",
)
"""Ends of the paths of lists that are there, and have nothing in them unless a test says so."""


def pod(name: str, version: int = 1, **status: str) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
        },
        "spec": {"schedulerName": "muster", "containers": [{"name": "main"}]},
        "status": status or {"phase": "Pending"},
    }


def gpu_pod(name: str, gpus: int, version: int = 1) -> dict[str, Any]:
    """A gang of one."""
    new_pod = pod(name, version)
    new_pod["spec"]["containers"] = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]
    return new_pod


def gpu_node(name: str, gpus: int) -> dict[str, Any]:
    allocatable = {"cpu": "32", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "status": {"allocatable": allocatable, "conditions": ready},
    }


def custom(api_version: str, kind: str, name: str, spec: Any, **metadata: str) -> dict[str, Any]:
    """An object of a CRD, in `default` unless said otherwise."""
    identity = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"apiVersion": api_version, "kind": kind, "metadata": {**identity, **metadata}, "spec": spec}


def config_map(
    namespace: str, name: str, data: dict[str, str], labels: dict[str, str] | None = None
) -> dict[str, Any]:
    identity = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"kind": "ConfigMap", "metadata": {**identity, "labels": labels or {}}, "data": data}


@dataclass
class Stream:
    """One watch that a client holds. What is put is written as it is; None cuts the connection."""

    query: dict[str, str]
    out: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    clean_end: bool = False

    def event(self, kind: str, item: dict[str, Any]) -> None:
        self.out.put_nowait(json.dumps({"type": kind, "object": item}).encode() + b"\n")

    def bookmark(self, version: int) -> None:
        self.event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})

    def error(self, code: int) -> None:
        self.event("ERROR", {"kind": "Status", "code": code, "message": "as the test wants it"})

    def raw(self, data: bytes) -> None:
        self.out.put_nowait(data)

    def cut(self) -> None:
        self.out.put_nowait(None)

    def end(self) -> None:
        self.clean_end = True
        self.out.put_nowait(None)


class FakeApi:
    """`pods` is what lists say; `streams` are the watches, in the order in which they came."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.nodes: list[dict[str, Any]] = []
        self.nodes_may_be_listed = asyncio.Event()
        self.nodes_may_be_listed.set()
        self.version = 1
        self.lists: list[dict[str, str]] = []
        self.posted: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.credentials: list[str] = []
        """What the requests for pods came with."""
        self.failing: list[int] = []
        """Statuses that the next requests are refused with."""
        self.refusing: dict[str, int] = {}
        """Namespace → the status with which each POST in it is refused."""
        self.refused = 0
        """How many of these there were."""
        self.retry_after = "0"
        """Where the pods are refused: how long to wait, as text."""
        self.never_answered: set[str] = set()
        """Objects about which events are taken, and never answered."""
        self.answerless = 0
        """Read this number of posts and never answer them."""
        self.expire_token = False
        """Whether the next page token is refused as too old."""
        self.texts: dict[str, str] = {}
        """String in a listed object → JSON text that is sent instead: what json.dumps can't write."""
        self._streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.served: dict[str, list[dict[str, Any]]] = {}
        """Other lists, by path. What is not here is 404, but for `EMPTY`."""
        self.frozen = False
        """Whether it says nothing more, though its connections stand. What it is told lands all the same."""
        self.asked_for_health = asyncio.Queue[None]()
        self.held: set[str] = set()
        """Of these, those that are refused for now."""
        self.forbidden: set[str] = set()
        self.asked: list[tuple[str, dict[str, str]]] = []
        """Lists and watches of these: path and query."""
        self.patched: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.patch_types: list[str] = []
        """Content types of these."""
        self._streams_of: dict[str, asyncio.Queue[Stream]] = {}

    def has(self, *names: str) -> None:
        """The pods that exist now."""
        self.pods = {name: self.pods.get(name) or pod(name, self.version) for name in names}

    async def stream(self) -> Stream:
        """The next watch that a client opens."""
        return await asyncio.wait_for(self._streams.get(), HANG_S)

    async def stream_of(self, path: str) -> Stream:
        """The next watch of this other list that a client opens."""
        return await asyncio.wait_for(self._streams_of.setdefault(path, asyncio.Queue()).get(), HANG_S)

    async def patch(self) -> tuple[str, dict[str, Any]]:
        """The next patch: its path and body."""
        return await asyncio.wait_for(self.patched.get(), HANG_S)

    async def event(self) -> dict[str, Any]:
        """The next object that a client posts."""
        return await asyncio.wait_for(self.posted.get(), HANG_S)

    async def _on_pods(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.credentials.append(request.headers.get("Authorization", ""))
        if self.failing:
            return _status(self.failing.pop(0), {"Retry-After": self.retry_after})
        if query.get("watch") == "true":
            return await self._watch(request, Stream(query), self._streams)
        if self.expire_token and "continue" in query:
            self.expire_token = False
            return _status(410)
        self.lists.append(query)
        names = sorted(self.pods)
        begin = int(query.get("continue", "0"))
        end = begin + int(query["limit"])
        more = str(end) if end < len(names) else ""
        return self._listed(
            [self.pods[name] for name in names[begin:end]], str(self.version), more, "PodList"
        )

    async def _on_nodes(self, request: web.Request) -> web.StreamResponse:
        """The nodes never change."""
        if request.query.get("watch") == "true":
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(HANG_S)
            return response
        await self.nodes_may_be_listed.wait()
        return self._listed(self.nodes)

    async def _on_livez(self, _: web.Request) -> web.Response:
        self.asked_for_health.put_nowait(None)
        if self.frozen:
            await asyncio.sleep(HANG_S)
        return web.Response(text="ok")

    async def _on_other(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, dict(request.query)
        self.asked.append((path, query))
        if path in self.held:
            return _status(503)
        if path in self.forbidden:
            return _status(403)
        if path not in self.served and not path.endswith(EMPTY):
            return _status(404)
        if query.get("watch") == "true":
            streams = self._streams_of.setdefault(path, asyncio.Queue())
            return await self._watch(request, Stream(query), streams)
        return self._listed(self.served.get(path, []), api_version=api_version_of(path))

    def _listed(
        self,
        items: list[dict[str, Any]],
        version: str = "1",
        more: str = "",
        kind: str = "List",
        api_version: str = "v1",
    ) -> web.Response:
        metadata = {"resourceVersion": version, "continue": more}
        body = {"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items}
        return web.Response(text=with_texts(body, self.texts), content_type="application/json")

    async def _on_patch(self, request: web.Request) -> web.Response:
        if self.failing:
            return _status(self.failing.pop(0))
        assert request.content_type in (
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
        )
        body = await request.json()
        self.patch_types.append(request.content_type)
        self.patched.put_nowait((request.path, body))
        if self.frozen:
            await asyncio.sleep(HANG_S)
        return web.json_response(body)

    async def _watch(
        self, request: web.Request, stream: Stream, streams: asyncio.Queue[Stream]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        streams.put_nowait(stream)
        while (data := await stream.out.get()) is not None:
            await response.write(data)
        if not stream.clean_end:
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _on_post(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.failing:
            return _status(self.failing.pop(0))
        if refused := self.refusing.get(body["metadata"].get("namespace", "")):
            self.refused += 1
            return _status(refused)
        self.posted.put_nowait(body)
        if body.get("involvedObject", {}).get("name") in self.never_answered:
            await asyncio.sleep(HANG_S)
        if self.frozen:
            await asyncio.sleep(HANG_S)
        if self.answerless:
            self.answerless -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(body, status=201)

    @asynccontextmanager
    async def running(self, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        """Serve; the port."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/api/v1/pods", self._on_pods),
                web.get("/api/v1/nodes", self._on_nodes),
                web.post("/api/v1/namespaces/{namespace}/events", self._on_post),
                web.get("/livez", self._on_livez),
                web.get("/{path:.*}", self._on_other),
                web.patch("/{path:.*}", self._on_patch),
                web.post("/api/v1/namespaces/{namespace}/pods/{name}/eviction", self._on_post),
            ]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True, ssl_context=tls).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


def _status(code: int, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "code": code, "message": "refused by the test"}
    return web.json_response(body, status=code, headers=headers)


def with_texts(value: object, texts: dict[str, str]) -> str:
    """JSON of `value`, with these JSON texts in the place of strings."""
    encoded = json.dumps(value)
    for marker, text in texts.items():
        encoded = encoded.replace(json.dumps(marker), text)
    return encoded


def kubeconfig(folder: Path, port: int) -> str:
    """A kubeconfig for a server on this port."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "fake", "user": {"token": "none"}}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
                "current-context": "fake",
            }
        )
    )
    return str(path)
