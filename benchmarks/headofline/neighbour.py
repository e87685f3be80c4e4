"""A namespace next to that of the ordinary gangs, and what is created in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from e2e.client import Client
from local_cluster.api import CONNECTIONS, Object

CLEAR_DEADLINE_S = 300.0
POLL_EVERY_S = 0.2
PAGE = 500
"""Objects deleted one by one between two lists: to delete thousands in one call takes longer than a client
waits."""
BEAT_S = 0.1


class Neighbour:
    """Pods and claims of one namespace, created by a few connections."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.path = f"/api/v1/namespaces/{namespace}"

    def create(self, pods: Iterable[Object]) -> None:
        """Create pods, as fast as a few connections allow."""
        with ThreadPoolExecutor(max_workers=CONNECTIONS) as workers:
            for _ in workers.map(lambda pod: self.client.post(f"{self.path}/pods", pod), pods):
                pass

    def delete(self, names: Sequence[str], kind: str = "pods") -> None:
        """Delete objects by name; those that are gone already are left out."""
        with ThreadPoolExecutor(max_workers=CONNECTIONS) as workers:
            for _ in workers.map(self._delete, (f"{self.path}/{kind}/{name}" for name in names)):
                pass

    def clear(self) -> None:
        """Delete all pods and claims, and wait until they are gone.

        Raises:
            TimeoutError: some are left after CLEAR_DEADLINE_S.
        """
        until = time.monotonic() + CLEAR_DEADLINE_S
        for kind in ("pods", "persistentvolumeclaims"):
            while items := self.client.get(f"{self.path}/{kind}?limit={PAGE}")["items"]:
                if time.monotonic() > until:
                    raise TimeoutError(f"{kind} are left {CLEAR_DEADLINE_S:g} s after they were deleted")
                self.delete([item["metadata"]["name"] for item in items], kind)
                time.sleep(POLL_EVERY_S)

    def _delete(self, path: str) -> None:
        self.client.send("DELETE", f"{path}?gracePeriodSeconds=0")


class Loop:
    """Calls `step` with 0, 1, 2, … at a fixed rate on a thread of its own, from when it is entered to when it
    is left. Steps that are late follow at once. An error of a step is raised when the loop is left."""

    def __init__(self, step: Callable[[int], None], per_s: float) -> None:
        self._step, self._per_s = step, per_s
        self._over = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self.steps = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is None and self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while not self._over.wait(max(0.0, began + self.steps / self._per_s - time.monotonic())):
                self._step(self.steps)
                self.steps += 1
        except Exception as problem:  # noqa: BLE001 — raised where the loop is left
            self._problem = problem
