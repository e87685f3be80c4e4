"""A cluster with real nodes, and the count of members whose containers were compared with the plan."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from e2e.devices.members import Member, gpus_seen, printed
from e2e.facts import ALLOCATION
from local_cluster.api import Api, Object
from local_cluster.cluster import LocalCluster
from local_cluster.patience import Guard
from local_cluster.stack import Stack

PODS = "/api/v1/namespaces/default/pods"
POLL_EVERY_S = 0.2


@dataclass(slots=True)
class Count:
    """Members whose containers were compared with the plan, by what gave them their GPUs."""

    checked: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def of(self, path: str) -> int:
        """Return how many members of one path were checked."""
        return self.checked.get(path, 0)

    def as_sent(self) -> dict[str, Any]:
        """Return what a process of pytest-xdist sends at its end."""
        return {"checked": dict(self.checked), "wrong": list(self.wrong)}

    def add(self, sent: Mapping[str, Any]) -> None:
        """Add what another process has counted."""
        for path, number in sent.get("checked", {}).items():
            self.checked[path] = self.of(path) + number
        self.wrong += sent.get("wrong", ())

    def __str__(self) -> str:
        listed = f": {'; '.join(self.wrong[:5])}" if self.wrong else ""
        paths = ", ".join(f"{path} {number}" for path, number in self.checked.items())
        return f"members checked: {sum(self.checked.values())} ({paths}), wrong: {len(self.wrong)}{listed}"


COUNT = Count()
"""Of the whole run of pytest."""


class Fleet(ABC):
    """Real nodes on which something gives containers their GPUs."""

    path: ClassVar[str]
    """What gives them, as a word of the last line."""
    keeps_order: ClassVar[bool]
    """Whether a container can see the order of its GPUs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = LocalCluster(directory / "cluster")
        self.stack = Stack(self.cluster, directory / "stack")

    def __enter__(self) -> Self:
        self.cluster.up()
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.stop()
        self.cluster.down()

    @abstractmethod
    def start(self) -> None:
        """Start the nodes, Muster, and what serves the GPUs."""

    @property
    def checked(self) -> int:
        """Return how many members were checked."""
        return COUNT.of(self.path)

    @property
    def api(self) -> Api:
        """Return the API server's client, with all rights."""
        return self.cluster.api

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, question: Callable[[], object], event: str) -> None:
        """Wait until the answer is true."""
        guard = Guard()
        while not question():
            if guard.over:
                raise AssertionError(f"not within {guard.whole_s:.0f} s: {event}\n{self.told()}")
            time.sleep(POLL_EVERY_S)

    def pods(self) -> dict[str, Object]:
        """Return the pods of the tests by name."""
        return {pod["metadata"]["name"]: pod for pod in self.api.get(f"{PODS}?labelSelector=e2e")["items"]}

    def events(self, reason: str) -> list[Object]:
        """Return the events of this reason, of all namespaces."""
        items: list[Object] = self.api.get("/api/v1/events")["items"]
        return [event for event in items if event["reason"] == reason]

    # --- members ----------------------------------------------------------------------------------

    def create(self, *members: Member) -> None:
        """Create pods, in this order."""
        for member in members:
            self.api.post(PODS, member.body())

    def check(self, members: Iterable[Member], *, away: bool = False) -> None:
        """Wait until the containers have printed their GPUs, and compare these with the Bindings.

        `away`: their node agents may not have been ready at Permit, so the Bindings need not call the GPUs
        exact. They are all the same.
        """
        members = list(members)
        names = {member.name for member in members}
        self.until(lambda: self._run(names), f"{', '.join(sorted(names))} run")
        pods = self.pods()
        for member in members:
            COUNT.checked[self.path] = self.checked + 1
            try:
                self.check_one(member, pods[member.name], away=away)
            except AssertionError as problem:
                COUNT.wrong.append(f"{member.name}: {problem}")
                raise

    def variables(self, pod: str, container: str) -> dict[str, str]:
        """Return what a container printed."""
        variables_read: list[dict[str, str]] = []

        def has_printed() -> bool:
            answer = self.api.send("GET", f"{PODS}/{pod}/log?container={container}")
            printed_variables = printed(answer.body.decode(errors="replace")) if answer.ok else None
            variables_read[:] = [printed_variables] if printed_variables is not None else []
            return printed_variables is not None

        self.until(has_printed, f"container {container} of {pod} prints")
        return variables_read[0]

    def delete(self, names: Iterable[str], *, force: bool = False) -> None:
        """Delete pods and wait until they are gone; `force`: the API server does not wait for the node."""
        names = set(names)
        for name in names:
            self.api.send("DELETE", f"{PODS}/{name}{'?gracePeriodSeconds=0' if force else ''}")
        self.until(lambda: not names & self.pods().keys(), f"{', '.join(sorted(names))} are gone")

    # --- inside -----------------------------------------------------------------------------------

    def _run(self, names: set[str]) -> bool:
        pods = self.pods()
        failed = [
            f"{name}: {pods[name]['status'].get('message')}"
            for name in names
            if name in pods and pods[name]["status"]["phase"] == "Failed"
        ]
        assert not failed, f"pods failed: {failed}"
        return all(name in pods and pods[name]["status"]["phase"] == "Running" for name in names)

    def check_one(self, member: Member, pod: Object, *, away: bool = False) -> None:
        """Each container has its part of the Binding's annotation; an init container some of the pod's."""
        allocation = json.loads(pod["metadata"]["annotations"][ALLOCATION])
        assert allocation["indices"] == "planned" or away
        for part in member.parts:
            visible = gpus_seen(self.variables(member.name, part.name))
            if part.ends:
                everything = set(self._named(allocation["gpus"]))
                assert len(visible) == part.count, f"{part.name} sees {visible}"
                assert set(visible) <= everything, f"{part.name} sees {visible}, planned {everything}"
                continue
            planned = self._named(allocation["containers"].get(part.name, ()))
            assert visible == planned, f"{part.name} sees {visible}, planned {planned}"

    def _named(self, gpus: Iterable[int]) -> tuple[str, ...]:
        """Return the GPUs of these numbers, as a container sees them."""
        return tuple(f"GPU-{gpu}" for gpu in (gpus if self.keeps_order else sorted(gpus)))

    def told(self) -> str:
        """Return what helps when something did not come in time."""
        pods = [
            f"  {name}: {pod['status'].get('phase')} {pod['status'].get('message', '')} "
            f"{[c.get('message') for c in pod['status'].get('conditions', ()) if c['status'] == 'False']}"
            for name, pod in self.pods().items()
        ]
        warnings = [
            f"  {event['reason']} {event['involvedObject']['name']}: {event['message'][:300]}"
            for event in self.api.get("/api/v1/events")["items"]
            if event["type"] == "Warning"
        ]
        return "\n".join(["pods:", *pods, "warnings:", *warnings[-20:]])
