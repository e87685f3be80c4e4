"""The cluster that is measured on: its nodes, and pods created, awaited and cleared away."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.throughput import prometheus
from benchmarks.throughput.binds import Binds
from e2e.client import Client
from local_cluster.api import CONNECTIONS, Object
from local_cluster.cluster import LocalCluster
from local_cluster.nodes import apply_nodes, shape_nodes
from local_cluster.processes import Identity, Process
from local_cluster.shape import NodeGroup, Shape

NAMESPACE = "throughput"
NODES = "/api/v1/nodes"
RACK_LABEL = "topology.kubernetes.io/rack"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
GPUS = 8
"""Of a node."""
RACK = 20
"""Nodes in a rack."""
NODES_DEADLINE_S = 300.0
SETTLE_S = 20.0
"""New nodes get their addresses, leases and taints for some time after they are ready."""
REST_S = 10.0
CLEAR_DEADLINE_S = 180.0
POLL_EVERY_S = 0.1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def nodes(count: int) -> list[Object]:
    """Nodes of eight GPUs behind an NVSwitch, in racks of 20. Fewer nodes are the first of more."""
    group = NodeGroup(
        name="gpu-{index:04}",
        racks=-(-count // RACK),
        count=RACK,
        rack="r{rack:03}",
        topology="hgx-h100-8x-nvswitch",
        publish="labels",
        resources=("aliyun.com/gpu",),
        schedule="topology",
        cpu="192",
        memory="2Ti",
    )
    return shape_nodes(Shape((group,)), "benchmarks.throughput")[:count]


class Site:
    """One local cluster with one namespace for all pods that are measured."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        credentials = folder / "credentials"
        credentials.mkdir(mode=0o700)
        self._client = Client.of(cluster.kubeconfig, credentials)
        cluster.create_namespace(NAMESPACE)
        self._created: list[str] = []

    def grow(self, count: int) -> None:
        """Have `count` nodes, all of them ready."""
        self.add(nodes(count))

    def add(self, more_nodes: list[Object]) -> None:
        """Add nodes, and wait until all of them are ready."""
        apply_nodes(self.cluster.api, more_nodes, NODES_DEADLINE_S)
        time.sleep(SETTLE_S)

    def resting(self, side: Mapping[str, Process]) -> dict[str, float]:
        """Process → processors that it uses now, measured for some seconds in which nothing is asked for."""
        before, began = self.cpu_s(side), time.monotonic()
        time.sleep(REST_S)
        after, seconds = self.cpu_s(side), time.monotonic() - began
        return {name: (after[name] - had) / seconds for name, had in before.items()}

    def create(self, pods: Sequence[Object]) -> None:
        """Create pods, as fast as a few connections allow, in about this order."""
        self._created += [str(pod["metadata"]["name"]) for pod in pods]
        with ThreadPoolExecutor(max_workers=CONNECTIONS) as workers:
            for _ in workers.map(lambda pod: self._client.post(PODS, pod), pods):
                pass

    def watch(self) -> Binds:
        """Note from now on when pods are bound."""
        return Binds(self._client, NAMESPACE)

    def clear(self) -> None:
        """Delete all pods and wait until they are gone."""

        def delete(name: str) -> None:
            self._client.send("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")  # gone already: fine

        with ThreadPoolExecutor(max_workers=CONNECTIONS) as workers:
            for _ in workers.map(delete, self._created):
                pass
        self._created.clear()
        until = time.monotonic() + CLEAR_DEADLINE_S
        while pods_left := self.left():
            if time.monotonic() > until:
                raise TimeoutError(f"{pods_left} pods left {CLEAR_DEADLINE_S:g} s after they were deleted")
            time.sleep(POLL_EVERY_S)

    def left(self) -> int:
        """How many pods there are."""
        listed = self._client.get(f"{PODS}?limit=1")
        return len(listed["items"]) + int(listed["metadata"].get("remainingItemCount") or 0)

    def domains(self, label: str) -> set[str]:
        """Return the values of a label of the nodes that have pods."""
        node_names = {pod["spec"].get("nodeName") for pod in self._client.get(PODS)["items"]}
        labels = [node["metadata"] for node in self._client.get(NODES)["items"]]
        return {meta["labels"][label] for meta in labels if meta["name"] in node_names}

    def cpu_s(self, side: Mapping[str, Process]) -> dict[str, float]:
        """Process → processor time that it has had so far, s; this benchmark itself is `client`, what else
        the machine did is `rest`. The service's processes are the planners."""
        identities: dict[str, Identity] = {**self.cluster.running()}
        for name, process in side.items():
            if process.identity is not None:
                identities[name] = process.identity
        times = {name: _cpu_s(identity.pid) for name, identity in identities.items()}
        for name in side.keys() & identities.keys():
            times[f"{name}'s processes"] = _children_s(identities[name].pid)
        times["client"] = _cpu_s(os.getpid())
        return times | {"rest": _busy_s() - sum(times.values())}

    def writes(self) -> dict[str, float]:
        """Requests that the API server has answered, for all that writes."""
        return prometheus.writes(self._client.send("GET", "/metrics").body.decode())


def _children_s(pid: int) -> float:
    """Processor time of a process's children that run now, s."""
    cpu_s = 0.0
    with contextlib.suppress(OSError):  # one may end meanwhile
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            cpu_s += sum(_cpu_s(int(child)) for child in path.read_text().split())
    return cpu_s


def _busy_s() -> float:
    """proc(5), /proc/stat: what all processors did since boot, but for idle and iowait (fields 4 and 5)."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS_PER_S


def _cpu_s(pid: int) -> float:
    """proc(5), stat: utime and stime are fields 14 and 15, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
