"""The auditor's own eyes: a watch of the API server that lists again after that was away."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from e2e.chaos.auditor import ChaosAuditor
from e2e.client import Client
from e2e.device_claims import CLAIMS
from e2e.record import NODES, PODS, Record, TooLateError, within
from local_cluster.api import Object
from local_cluster.patience import Guard

LOOKS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline, and what is looked after meanwhile, every second."""

    quiet_s: float
    meanwhile: Callable[[], None]

    def until(self, record: Record, question: Callable[[], bool], event: str) -> bool:
        """Whether the answer became true in time; it is asked again after every change."""
        guard = Guard(self.quiet_s)
        while not guard.over:
            with contextlib.suppress(TooLateError):
                return record.until(question, event, min(guard.left_s, LOOKS_EVERY_S))
            self.meanwhile()
        return False


class Watching:
    """Feeds an auditor from when it is entered to when it is left. For one thread.

    `podgroups`: the collections of PodGroups that the cluster serves.
    """

    def __init__(
        self, client: Client, auditor: ChaosAuditor, namespace: str, *, podgroups: Iterable[str]
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._auditor = auditor
        kinds = (NODES, *podgroups, PODS, CLAIMS)
        self._record = Record(client, kinds, relists=True, namespace=namespace)
        self._seen = 0

    def __enter__(self) -> Self:
        self._record.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._record.__exit__(kind, error, trace)

    def catch_up(self) -> None:
        """Judge what has happened since the last time."""
        for change in self._record.changes(self._seen):
            self._seen += 1
            self._auditor.see(change)
        self._auditor.passed(time.monotonic())

    def settle(self, when: str, deadline: Deadline) -> bool:
        """Wait until no gang waits though there is room; one that does at the deadline is a violation."""
        if deadline.until(self._record, self._nobody_waits_in_vain, when):
            return True
        pods, nodes = self._list(PODS, NODES)
        fits = self._auditor.fits(pods, nodes)
        self._auditor.waits_though_fits(when, fits)
        return not fits

    def _nobody_waits_in_vain(self) -> bool:
        self.catch_up()
        return not self._auditor.fits(self._record.live(PODS), self._record.live(NODES))

    def verdict(self) -> Mapping[str, Sequence[str]]:
        """The auditor's, with fresh lists."""
        self.catch_up()
        return self._auditor.verdict(*self._list(PODS, NODES, CLAIMS))

    def _list(self, *kinds: str) -> list[list[Object]]:
        return [self._client.get(within(kind, self._namespace))["items"] for kind in kinds]
