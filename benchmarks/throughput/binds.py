"""When each pod was seen bound: a watch of the pods that have a node.

The API server is asked for metadata alone: what it spends on this watch is the same small thing on all sides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from e2e.client import Client
from local_cluster.api import ApiError, ApiUnreachable

METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class NotBoundInTime(RuntimeError):
    """Fewer pods were bound than was waited for."""


class Binds:
    """Pod name → when it was first seen with a node (this process's monotonic clock, s), from when it is
    entered."""

    def __init__(self, client: Client, namespace: str) -> None:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        self._client = client
        self._path = f"{pods}?fieldSelector=spec.nodeName%21%3D"
        self._since = str(client.get(f"{pods}?limit=1")["metadata"]["resourceVersion"])
        self._watch = client.watch(self._path, self._since, METADATA)
        self._at: dict[str, float] = {}
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._broken = ""
        self._thread = threading.Thread(target=self._read, name="binds", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._watch.close()
        self._thread.join(timeout=5)

    @property
    def at(self) -> Mapping[str, float]:
        """What was seen so far."""
        with self._changed:
            return dict(self._at)

    def wait(self, count: int, within_s: float) -> None:
        """Return once `count` pods have been seen bound.

        Raises:
            NotBoundInTime: they were not, or the watch broke.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: self._broken or len(self._at) >= count, within_s)
            if not done or self._broken:
                raise NotBoundInTime(
                    f"{len(self._at)} of {count} pods bound within {within_s:g} s{self._broken}"
                )

    def _read(self) -> None:
        try:
            while not self._over.is_set():
                self._follow()
                if not self._over.is_set():
                    # the API server ends a watch that falls behind: go on from what was seen last
                    self._watch = self._client.watch(self._path, self._since, METADATA)
        except (ApiUnreachable, ApiError, ValueError) as problem:
            if self._over.is_set():
                return  # closing a TLS connection while it is read leaves bytes that mean nothing
            with self._changed:
                self._broken = f"; the watch broke: {problem}"
                self._changed.notify_all()

    def _follow(self) -> None:
        for event in self._watch:
            now, body = time.monotonic(), event["object"]
            if event["type"] == "ERROR":
                raise ApiError("WATCH", self._path, int(body.get("code", 500)), str(body.get("message", "")))
            self._since = str(body["metadata"]["resourceVersion"])
            if event["type"] == "ADDED":
                with self._changed:
                    self._at.setdefault(str(body["metadata"]["name"]), now)
                    self._changed.notify_all()
