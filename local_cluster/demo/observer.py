"""What the API server says as it happens: watches kept in threads, and waiting for what they bring."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import Self, TypeVar

import urllib3

from local_cluster.api import Api, Object
from local_cluster.patience import Guard

WATCH_SECONDS = 600
LONGEST_LINE = 300
NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

T = TypeVar("T")


class NotSeen(RuntimeError):
    """Something that the demo waits for did not happen in time."""


class StreamingApi(Api):
    """The API server with watches as well."""

    def stream(self, path: str, since: str) -> urllib3.BaseHTTPResponse:
        """An open watch of a collection: changes after the resource version `since`, one JSON a line."""
        return self._pool.request(
            "GET",
            f"{self.url}{path}?watch=1&resourceVersion={since}&timeoutSeconds={WATCH_SECONDS}",
            headers=self._headers,
            preload_content=False,
            timeout=urllib3.Timeout(connect=10.0, read=WATCH_SECONDS + 30.0),
        )


class Observer:
    """Pods and events of one namespace, and collections named by their path (`more`), always as new as the
    API server's watch.

    `bound_at` and `first_seen_at` hold, by pod name, the monotonic time in seconds at which the watch
    first showed the pod bound, and there.
    """

    def __init__(self, api: StreamingApi, namespace: str = NAMESPACE, more: Collection[str] = ()) -> None:
        self._api = api
        self._changed = threading.Condition()
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self._events_path = f"/api/v1/namespaces/{namespace}/events"
        paths = (self._pods_path, self._events_path, *more)
        self._objects: dict[str, dict[str, Object]] = {path: {} for path in paths}
        self._streams: dict[str, urllib3.BaseHTTPResponse] = {}
        self._closed = False
        self._problem: str | None = None
        self.bound_at: dict[str, float] = {}
        self.first_seen_at: dict[str, float] = {}
        self._threads = [
            threading.Thread(target=self._follow, args=(path,), daemon=True) for path in self._objects
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            streams = list(self._streams.values())
        for stream in streams:
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # it had ended by itself
                stream.shutdown()
        for thread in self._threads:
            thread.join(timeout=5)

    # --- asked by the story -----------------------------------------------------------------------

    def pod(self, name: str) -> Object | None:
        """Return the pod as last seen, or None."""
        with self._changed:
            return self._objects[self._pods_path].get(name)

    def pods(self, prefix: str = "") -> list[Object]:
        """The pods whose names begin so, by name."""
        with self._changed:
            return [
                pod for name, pod in sorted(self._objects[self._pods_path].items()) if name.startswith(prefix)
            ]

    def objects(self, path: str) -> list[Object]:
        """Those of a collection that was named."""
        with self._changed:
            return list(self._objects[path].values())

    def events(self, about: str = "", reason: str = "") -> list[Object]:
        """Events about the object of that name (any, if none is given) and of that reason, oldest first."""
        with self._changed:
            events = [
                event
                for event in self._objects[self._events_path].values()
                if about in ("", event["involvedObject"].get("name")) and reason in ("", event["reason"])
            ]
        return sorted(events, key=lambda event: int(event["metadata"]["resourceVersion"]))

    def wait_for(self, event: str, look: Callable[[], T | None]) -> T:
        """Wait until `look` returns something. It is called again at each change that a watch brings.

        Raises:
            NotSeen: it never came; the text says what was waited for.
        """
        guard = Guard()
        with self._changed:
            while True:
                if result := look():
                    return result
                if self._problem:
                    raise NotSeen(f"{event}: the watch broke: {self._problem}")
                if guard.over:
                    raise NotSeen(f"{event}: not within {guard.whole_s:.0f} s")
                self._changed.wait(guard.left_s)

    def digest(self) -> str:
        """What the API server knows of the pods that do not run, for failure texts."""
        lines = []
        for pod in self.pods():
            name, status = pod["metadata"]["name"], pod.get("status", {})
            if status.get("phase") == "Running":
                continue
            lines.append(f"pod {name}: {status.get('phase')} on {pod['spec'].get('nodeName') or 'no node'}")
            conditions = status.get("conditions") or []
            lines += [f"  {c['type']}: {c.get('message')}" for c in conditions if c.get("message")]
            lines += [f"  event {event['reason']}: {event['message']}" for event in self.events(name)[-4:]]
        return "\n".join(line[:LONGEST_LINE] for line in lines)

    # --- the threads ------------------------------------------------------------------------------

    def _follow(self, path: str) -> None:
        """List, then watch from there; list again when the watch ends."""
        try:
            while not self._closed:
                listed = self._api.get(path)
                self._replace(path, listed["items"])
                stream = self._api.stream(path, listed["metadata"]["resourceVersion"])
                with self._changed:
                    self._streams[path] = stream
                    if self._closed:
                        return
                for change in _lines(stream):
                    if change["type"] == "ERROR":
                        break
                    self._apply(path, change["type"], change["object"])
        except Exception as problem:  # noqa: BLE001  told by wait_for, in the thread that waits
            with self._changed:
                if not self._closed:
                    self._problem = repr(problem)
                self._changed.notify_all()

    def _replace(self, path: str, items: list[Object]) -> None:
        with self._changed:
            self._objects[path].clear()
            for item in items:
                self._apply(path, "ADDED", item)

    def _apply(self, path: str, kind: str, body: Object) -> None:
        name = body["metadata"]["name"]
        with self._changed:
            if kind == "DELETED":
                self._objects[path].pop(name, None)
            else:
                self._objects[path][name] = body
            if path == self._pods_path:
                self.first_seen_at.setdefault(name, time.monotonic())
                if body["spec"].get("nodeName"):
                    self.bound_at.setdefault(name, time.monotonic())
            self._changed.notify_all()


def _lines(stream: urllib3.BaseHTTPResponse) -> Iterator[Object]:
    tail = b""
    for chunk in stream.stream(amt=None):
        *lines, tail = (tail + chunk).split(b"\n")
        for line in lines:
            if line:
                yield json.loads(line)
