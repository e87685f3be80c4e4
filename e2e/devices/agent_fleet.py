"""Real nodes with node agents. These offer GPUs as aliyun.com/gpu, or their memory as aliyun.com/gpu-mem, or
are second endpoints for nvidia.com/gpu."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from e2e.devices.fleet import Fleet
from local_cluster.places import TOPOLOGIES
from local_cluster.real import agents
from local_cluster.shape import Resource, Schedule
from local_cluster.stack import Programs, Stack

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


class WithAgents(Fleet):
    """Real nodes with node agents, whose GPUs files describe."""

    matrix: ClassVar[str]
    """What the nodes' fake NVML tells: a file of local_cluster/topologies."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        programs = Programs(environment=agents.ENVIRONMENT)
        self.stack = Stack(self.cluster, directory / "stack", programs=programs)
        self.matrices = directory / "gpus"

    def describe(self, node: str, **fields: str) -> None:
        """Write what the node's fake NVML tells: the matrix, and settings (`memory_gib`)."""
        text = (TOPOLOGIES / self.matrix).read_text()
        more = "".join(f"# {key.replace('_', '-')}: {value}\n" for key, value in fields.items())
        file = self.matrices / f"{node}.txt"
        partial = file.with_suffix(".partial")
        partial.write_text(more + text)
        partial.rename(file)

    def offers(self, node: str, resource: str, amount: int) -> bool:
        """Return whether the kubelet offers this amount of the resource."""
        status = self.api.get(f"/api/v1/nodes/{node}")["status"]
        return int(status.get("allocatable", {}).get(resource, 0)) == amount

    def label(self, node: str, labels: dict[str, str | None]) -> None:
        """Give the node labels, or take them away."""
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})

    def annotation(self, node: str, key: str) -> str:
        """Return an annotation of the node, "" for none."""
        annotations = self.api.get(f"/api/v1/nodes/{node}")["metadata"].get("annotations") or {}
        return str(annotations.get(key, ""))

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
        names = {pod["metadata"]["name"] for pod in agents.pods(self.api).values()}
        return self.agents_ready(nodes) and not old & names

    def agents_ready(self, nodes: Iterable[str]) -> bool:
        """Return whether the agents of these nodes are ready."""
        pod_of_node = agents.pods(self.api)
        return all(node in pod_of_node and agents.ready(pod_of_node[node]) for node in nodes)

    def told(self) -> str:
        """Return also the ends of the agents' logs."""
        return f"{super().told()}\n{self.agents_log()}"

    def agents_log(self) -> str:
        """Return the ends of the agents' logs."""
        ends = []
        for node, pod in agents.pods(self.api).items():
            answer = self.api.send("GET", f"{agents.PODS}/{pod['metadata']['name']}/log")
            ends.append(f"agent of {node}:\n" + "\n".join(answer.body.decode().splitlines()[-15:]))
        return "\n".join(ends)


class AgentFleet(WithAgents):
    """Two nodes with whole GPUs, and two that share theirs. `library` is a file that all nodes have."""

    path = "device plugin"
    keeps_order = True
    matrix = "v100-8x-gputopology-document.txt"
    """The matrix of document 2."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.library = self.matrices / "libvgpu.so"

    def start(self) -> None:
        """Start the nodes, Muster, and the agents."""
        self.matrices.mkdir(parents=True)
        self.library.touch()
        for node in OFFERS:
            self.describe(node)
        shown = agents.shown(self.matrices)
        for mode, resource, _, count in GROUPS:
            group = agents.group(f"{mode}-{{index}}", mode, resource, 16)
            self.cluster.start_real_nodes(count, group=group, shown=shown)
        self.stack.start()
        self.deploy()
        self.until(lambda: self.agents_ready(OFFERS), "all agents are ready")
        self.until(self.offer_all, "all nodes offer their GPUs")

    def offer_all(self) -> bool:
        """Return whether all nodes offer all that they have."""
        return all(self.offers(node, resource, amount) for node, (resource, amount) in OFFERS.items())


class SecondFleet(WithAgents):
    """Two nodes where a device plugin offers nvidia.com/gpu, and agents are second endpoints for it."""

    path = "second endpoint"
    keeps_order = False
    matrix = "hgx-h100-8x-nvswitch.txt"
    nodes = ("real-0", "real-1")

    def start(self) -> None:
        """Start the nodes, Muster, and the agents."""
        self.matrices.mkdir(parents=True)
        for node in self.nodes:
            self.describe(node)
        self.cluster.start_real_nodes(len(self.nodes), shown=agents.shown(self.matrices))
        self.stack.start()
        for node in self.nodes:
            self.label(node, {"gpu.topology/node-agent": "second-endpoint"})
        self.deploy()
        self.until(lambda: self.agents_ready(self.nodes), "all agents are ready")
