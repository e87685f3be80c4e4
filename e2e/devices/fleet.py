"""A cluster with real nodes and node agents on it, and the count of members that were checked."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.devices.members import Member, gpus_seen, printed
from e2e.facts import ALLOCATION
from local_cluster.api import Api, Object
from local_cluster.cluster import LocalCluster
from local_cluster.places import TOPOLOGIES
from local_cluster.real import agents
from local_cluster.shape import Resource, Schedule
from local_cluster.stack import Stack

PODS = "/api/v1/namespaces/default/pods"
WITHIN_S = 150.0
"""Longer than anything takes here: two cores do all of it, and may do more."""
POLL_EVERY_S = 0.2
GROUPS: tuple[tuple[Schedule, Resource, int, int], ...] = (
    ("topology", "aliyun.com/gpu", 8, 2),
    ("share", "aliyun.com/gpu-mem", 128, 1),
    ("cgpu", "aliyun.com/gpu-mem", 128, 1),
)
"""The nodes' label, what they offer, how much of it, and how many there are. They are called topology-0, …"""
OFFERS = {
    f"{mode}-{index}": (resource, amount)
    for mode, resource, amount, count in GROUPS
    for index in range(count)
}
WHOLE_NODES = ("topology-0", "topology-1")


@dataclass(slots=True)
class Count:
    """Members whose containers were compared with the plan."""

    checked: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        listed = f": {'; '.join(self.wrong[:5])}" if self.wrong else ""
        return f"members checked: {self.checked}, wrong: {len(self.wrong)}{listed}"


COUNT = Count()
"""Of the whole run of pytest."""


class Fleet:
    """Two nodes with whole GPUs, and two that share theirs. `library` is a file that all nodes have."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.matrices = directory / "gpus"
        self.cluster = LocalCluster(directory / "cluster")
        self.stack = Stack(self.cluster, directory / "stack")
        self.library = self.matrices / "libvgpu.so"

    def __enter__(self) -> Self:
        self.matrices.mkdir(parents=True)
        self.library.touch()
        for node in OFFERS:
            self.describe(node)
        self.cluster.up()
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.stop()
        self.cluster.down()

    @property
    def api(self) -> Api:
        """Return the API server's client, with all rights."""
        return self.cluster.api

    def describe(self, node: str, **said: str) -> None:
        """Write what the node's fake NVML tells: the matrix of document 2, and settings (`memory_gib`)."""
        text = (TOPOLOGIES / "v100-8x-gputopology-document.txt").read_text()
        more = "".join(f"# {key.replace('_', '-')}: {value}\n" for key, value in said.items())
        file = self.matrices / f"{node}.txt"
        partial = file.with_suffix(".partial")
        partial.write_text(more + text)
        partial.rename(file)

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, question: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
        """Wait until the answer is true."""
        end = time.monotonic() + within_s
        while not question():
            if time.monotonic() > end:
                raise AssertionError(f"not within {within_s:g} s: {what}\n{self._told()}")
            time.sleep(POLL_EVERY_S)

    def offers(self, node: str, resource: str, amount: int) -> bool:
        """Return whether the kubelet offers this amount of the resource."""
        status = self.api.get(f"/api/v1/nodes/{node}")["status"]
        return int(status.get("allocatable", {}).get(resource, 0)) == amount

    def offer_all(self) -> bool:
        """Return whether all nodes offer all that they have."""
        return all(self.offers(node, resource, amount) for node, (resource, amount) in OFFERS.items())

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

    def check(self, members: Iterable[Member]) -> None:
        """Wait until the containers have printed their GPUs, and compare these with the Bindings."""
        members = list(members)
        names = {member.name for member in members}
        self.until(lambda: self._run(names), f"{', '.join(sorted(names))} run")
        pods = self.pods()
        for member in members:
            COUNT.checked += 1
            try:
                self._check(member, pods[member.name])
            except AssertionError as problem:
                COUNT.wrong.append(f"{member.name}: {problem}")
                raise

    def variables(self, pod: str, container: str) -> dict[str, str]:
        """Return what a container printed."""
        found: list[dict[str, str]] = []

        def has_printed() -> bool:
            answer = self.api.send("GET", f"{PODS}/{pod}/log?container={container}")
            said = printed(answer.body.decode(errors="replace")) if answer.ok else None
            found[:] = [said] if said is not None else []
            return said is not None

        self.until(has_printed, f"container {container} of {pod} prints")
        return found[0]

    def delete(self, names: Iterable[str], *, force: bool = False) -> None:
        """Delete pods and wait until they are gone; `force`: the API server does not wait for the node."""
        names = set(names)
        for name in names:
            self.api.send("DELETE", f"{PODS}/{name}{'?gracePeriodSeconds=0' if force else ''}")
        self.until(lambda: not names & self.pods().keys(), f"{', '.join(sorted(names))} are gone")

    # --- inside -----------------------------------------------------------------------------------

    def _start(self) -> None:
        shown = agents.shown(self.matrices)
        for mode, resource, _, count in GROUPS:
            group = agents.group(f"{mode}-{{index}}", mode, resource, 16)
            self.cluster.start_real_nodes(count, group=group, shown=shown)
        self.stack.start()
        self.deploy()
        self.until(lambda: self.agents_ready(OFFERS), "all agents are ready")
        self.until(self.offer_all, "all nodes offer their GPUs")

    def label(self, node: str, labels: dict[str, str | None]) -> None:
        """Give the node labels, or take them away."""
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})

    def annotation(self, node: str, key: str) -> str:
        """Return an annotation of the node, "" for none."""
        found = self.api.get(f"/api/v1/nodes/{node}")["metadata"].get("annotations") or {}
        return str(found.get(key, ""))

    def keep_agents_off(self, labels: dict[str, str]) -> None:
        """Let agents run only on nodes without these labels; `deploy` takes it back."""
        agents.deploy(self.api, self.cluster.ports["kube-apiserver"], self.matrices, off=labels)

    def deploy(self, *options: str) -> None:
        """Create or update the agents."""
        agents.deploy(self.api, self.cluster.ports["kube-apiserver"], self.matrices, options)

    @contextlib.contextmanager
    def other_agents(self, nodes: Iterable[str]) -> Iterator[None]:
        """Do something that ends the agents; wait until others are ready on these nodes.

        Without the wait the API server would still show GPUs that the kubelet does not have for the moment.
        """
        old = {pod["metadata"]["name"] for pod in agents.pods(self.api).values()}
        yield
        self.until(lambda: self._ready_anew(old, nodes), "other agents are ready")

    def _ready_anew(self, old: set[str], nodes: Iterable[str]) -> bool:
        found = {pod["metadata"]["name"] for pod in agents.pods(self.api).values()}
        return self.agents_ready(nodes) and not old & found

    def agents_ready(self, nodes: Iterable[str]) -> bool:
        """Return whether the agents of these nodes are ready."""
        found = agents.pods(self.api)
        return all(node in found and agents.ready(found[node]) for node in nodes)

    def _run(self, names: set[str]) -> bool:
        pods = self.pods()
        failed = [
            f"{name}: {pods[name]['status'].get('message')}"
            for name in names
            if name in pods and pods[name]["status"]["phase"] == "Failed"
        ]
        assert not failed, f"pods failed: {failed}"
        return all(name in pods and pods[name]["status"]["phase"] == "Running" for name in names)

    def _check(self, member: Member, pod: Object) -> None:
        """Each container has its part of the Binding's annotation; an init container some of the pod's."""
        allocation = json.loads(pod["metadata"]["annotations"][ALLOCATION])
        assert allocation["indices"] == "planned"
        for part in member.parts:
            seen = gpus_seen(self.variables(member.name, part.name))
            if part.ends:
                everything = {f"GPU-{gpu}" for gpu in allocation["gpus"]}
                assert len(seen) == part.count, f"{part.name} sees {seen}"
                assert set(seen) <= everything, f"{part.name} sees {seen}, planned {everything}"
                continue
            planned = tuple(f"GPU-{gpu}" for gpu in allocation["containers"].get(part.name, ()))
            assert seen == planned, f"{part.name} sees {seen}, planned {planned}"

    def _told(self) -> str:
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
        return "\n".join(["pods:", *pods, "warnings:", *warnings[-20:], self.agents_log()])

    def agents_log(self) -> str:
        """Return the ends of the agents' logs."""
        ends = []
        for node, pod in agents.pods(self.api).items():
            answer = self.api.send("GET", f"{agents.PODS}/{pod['metadata']['name']}/log")
            ends.append(f"agent of {node}:\n" + "\n".join(answer.body.decode().splitlines()[-15:]))
        return "\n".join(ends)
