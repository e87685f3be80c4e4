"""A clock that goes as fast as the API server answers: what is late on it is late on any machine.

A probe writes one object again and again. Each answer is worth the same time, however long it took. While the
cluster is starved, or its API server is away, the clock goes slowly or stands still.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from types import TracebackType
from typing import Self

from e2e.client import Client
from local_cluster.api import ApiError, ApiUnreachable

EVERY_S = 0.1
"""The pause between two writes, and what each is worth: on a quiet machine a write itself takes little."""


class Pace:
    """Writes a Lease of the namespace while it is entered. No other program reads that Lease."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.answers: list[float] = []
        """When each answer came, by the monotonic clock."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pace", daemon=True)

    def __enter__(self) -> Self:
        self._client.post(self._path, {"metadata": {"name": "pace"}})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def at(self, moment: float) -> float:
        """Return the seconds of this clock at a moment of the monotonic clock."""
        return EVERY_S * bisect_right(self.answers, moment)

    def _work(self) -> None:
        number = 0
        while not self._over.wait(EVERY_S):
            number += 1
            try:
                self._client.patch(f"{self._path}/pace", {"spec": {"leaseTransitions": number}})
            except (ApiError, ApiUnreachable):
                continue
            self.answers.append(time.monotonic())
