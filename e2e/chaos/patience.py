"""Requests to an API server that is killed now and then: made again until it answers, up to a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from e2e.client import Client
from e2e.record import BUSY
from local_cluster.api import ApiError, ApiUnreachable, Object
from local_cluster.patience import Guard

AGAIN_AFTER_S = 0.2
NOT_FOUND, CONFLICT = 404, 409

Answer = TypeVar("Answer")


class Patient:
    """What the chaos does to the cluster. Each request has its effect once, however often it is made."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._over = threading.Event()

    def give_up(self) -> None:
        """From now on each request is made once."""
        self._over.set()

    def get(self, path: str) -> Object:
        return self._insist(lambda: self._client.get(path))

    def create(self, path: str, body: Object) -> Object:
        """Create an object; the one that is there, when an answer was lost on the way."""

        def deed() -> Object:
            try:
                return self._client.post(path, body)
            except ApiError as problem:
                if problem.status != CONFLICT:
                    raise
                return self._client.get(f"{path}/{body['metadata']['name']}")

        return self._insist(deed)

    def patch(self, path: str, body: Object) -> Object | None:
        """A JSON merge patch; None when the object is gone."""
        return self._unless_gone(lambda: self._client.patch(path, body))

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Nothing when the object is gone already."""
        self._unless_gone(lambda: self._client.delete(path, grace_s=grace_s))

    def _unless_gone(self, deed: Callable[[], Object]) -> Object | None:
        try:
            return self._insist(deed)
        except ApiError as problem:
            if problem.status != NOT_FOUND:
                raise
            return None

    def _insist(self, deed: Callable[[], Answer]) -> Answer:
        guard = Guard()
        while True:
            try:
                return deed()
            except (ApiUnreachable, ApiError) as problem:
                busy = isinstance(problem, ApiUnreachable) or problem.status in BUSY
                if not busy or guard.over or self._over.wait(AGAIN_AFTER_S):
                    raise
