"""The cluster under test: one that the suite boots, with Muster's processes on it, or one that is there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import kind
from e2e.audit import OURS
from e2e.client import Client
from e2e.rights import AUDIT_POLICY
from local_cluster.cluster import LocalCluster
from local_cluster.stack import Stack
from local_cluster.stack_config import leader, release

UNARY = re.compile(r"muster_call_seconds_count\{(?P<labels>[^}]*)\} (?P<value>\S+)")
METHOD = re.compile(r'method="(\w+)"')


class ArenaError(RuntimeError):
    """The option --cluster names no cluster that can be used."""


class QuickStack(Stack):
    """Muster whose killed scheduler is followed at once: its lease is given back before the next one starts.

    `test_leaders.py` and `test_upgrades.py` have replicas that wait until a lease has run out.
    """

    _holder = ""

    def wait_ready(self) -> None:
        """Return when the system is ready, and note who leads."""
        super().wait_ready()
        self._holder = leader(self.cluster.api)

    def start_scheduler(self) -> None:
        """Start the scheduler again; return when the system is ready."""
        release(self.cluster.api, self._holder)
        super().start_scheduler()

    def restore(self) -> None:
        """Start what does not run; return when the system is ready."""
        if not self.scheduler.alive:
            release(self.cluster.api, self._holder)
        super().restore()


@dataclass(frozen=True, slots=True)
class Arena:
    """`stack` is None if Muster was installed by somebody else: its processes are out of reach."""

    client: Client
    cluster: LocalCluster | None = None
    stack: Stack | None = None

    @property
    def fenced(self) -> bool:
        """Whether there may be nodes that are no test's."""
        return self.stack is None


def unary_calls(stack: Stack) -> dict[str, int]:
    """Method → calls that the service has answered since it started, whatever their outcome."""
    counts: dict[str, int] = {}
    for sample in UNARY.finditer(stack.service_get("/metrics")):
        method = METHOD.search(sample["labels"])
        name = method[1] if method else ""
        counts[name] = counts.get(name, 0) + int(float(sample["value"]))
    return counts


@contextlib.contextmanager
def open_arena(option: str, directory: Path) -> Iterator[Arena]:
    """`option`: "local", "kind", or "kubeconfig:PATH"."""
    credentials = directory / "credentials"
    credentials.mkdir(mode=0o700)
    if option == "local":
        with (
            LocalCluster(directory / "cluster", audit=True, audit_policy=AUDIT_POLICY) as cluster,
            QuickStack(cluster, directory / "stack", scheduler_names=sorted(OURS)) as stack,
        ):
            yield Arena(Client.of(cluster.kubeconfig, credentials), cluster, stack)
        return
    if option == "kind":
        if reason := kind.why_not():
            pytest.skip(reason)
        with kind.kwok(directory / "kwok"):
            yield Arena(Client.of(kind.KUBECONFIG, credentials))
        return
    form, _, path = option.partition(":")
    if form != "kubeconfig" or not Path(path).is_file():
        raise ArenaError(f"--cluster {option}: write local, kind, or kubeconfig:PATH with the path of a file")
    yield Arena(Client.of(Path(path), credentials))
