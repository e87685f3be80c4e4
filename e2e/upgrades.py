"""A stream of gangs while Muster is upgraded and its leader is killed: how long is nothing bound?

The stream is closed: a new gang comes when one has ended, so that there is always something to bind. A pause
in binding is then the time between two pods that are bound one after the other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from e2e import objects
from e2e.scene import COMPLETE, Scene
from local_cluster.stack import Stack
from local_cluster.stack_config import lease_path

MAX_GANGS_AT_ONCE = 4
"""Gangs that are not over. They leave room for a new one at any time."""
MEMBERS = 3
RUNS_FOR = "1s"


class Standby(Stack):
    """A replica that may never lead: ready when its service is in sync and its scheduler is healthy."""

    def wait_ready(self) -> None:
        """Return when the service is in sync."""
        self.service.wait_ready(lambda: self.service_get("/readyz"))

    def crash(self) -> None:
        """Kill both processes at once, as the loss of a node would."""
        self.scheduler.kill()
        self.service.kill()


@dataclass(slots=True)
class Measured:
    """Pauses in binding, in seconds: the longest while nothing was done, and the one after each deed.

    A leader that is killed holds its lease for `lease_s`: no pod is bound before that is over.
    """

    gangs: int = 0
    pods: int = 0
    lease_s: int = 0
    undisturbed_s: float = 0.0
    after_s: dict[str, float] = field(default_factory=dict)
    bound_since: dict[str, int] = field(default_factory=dict)
    """Pods that were bound once the deed was done."""


Deeds = dict[str, Callable[[], None]]
"""What is done to Muster under the stream, by name, in this order."""


def stream(scene: Scene, gangs: int, deeds: Deeds) -> Measured:
    """Send at least `gangs` gangs, and do the deeds meanwhile, in a thread: one after each share of them.

    The stream goes on while a deed takes longer, and for one more share after the last deed.
    """
    share, sent = gangs // (len(deeds) + 1), 0
    done_at: list[tuple[str, float, float]] = []
    with ThreadPoolExecutor(max_workers=1) as thread:
        for name, do in (*deeds.items(), ("", lambda: None)):
            until = _over(scene) + share
            doing: Future[None] | None = None
            while doing is None or not doing.done():
                over = _over(scene)
                if over >= until and doing is None:
                    began = time.monotonic()
                    doing = thread.submit(do)
                while sent < over + MAX_GANGS_AT_ONCE:
                    scene.create(*_gang(f"g{sent}"))
                    sent += 1
                _wait(scene, over + 1)
            doing.result()
            if name:
                done_at.append((name, began, time.monotonic()))
    _wait(scene, sent)
    return _measured(scene, sent, done_at)


def _wait(scene: Scene, gangs: int) -> None:
    scene.until(lambda: _over(scene) >= gangs, f"{gangs} gangs are over")


def _gang(name: str) -> list[dict[str, Any]]:
    pods = [objects.pod(f"{name}-{rank}", gpus=2, gang=objects.ack(name, MEMBERS)) for rank in range(MEMBERS)]
    for pod in pods:
        pod["metadata"]["annotations"][COMPLETE] = RUNS_FOR
    return pods


def _over(scene: Scene) -> int:
    """Return how many gangs have ended: all of their pods have run."""
    ended: dict[str, int] = {}
    for name, pod in scene.pods().items():
        if pod.finished:
            gang = name.rpartition("-")[0]
            ended[gang] = ended.get(gang, 0) + 1
    return sum(count == MEMBERS for count in ended.values())


def _measured(scene: Scene, gangs: int, deeds: list[tuple[str, float, float]]) -> Measured:
    binds = scene.bound_at
    lease_s = int(scene.client.get(lease_path())["spec"]["leaseDurationSeconds"])
    figures = Measured(gangs=gangs, pods=len(binds), lease_s=lease_s)
    figures.bound_since = {name: sum(at > ended for at in binds) for name, _, ended in deeds}
    for before, after in itertools.pairwise(binds):
        names = [name for name, began, ended in deeds if before <= ended and after >= began]
        for name in names:
            figures.after_s[name] = round(max(figures.after_s.get(name, 0.0), after - before), 2)
        if not names:
            figures.undisturbed_s = round(max(figures.undisturbed_s, after - before), 2)
    return figures
