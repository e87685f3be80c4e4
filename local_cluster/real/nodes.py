"""The real nodes of a cluster: started, waited for until their GPUs are offered, and stopped."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from local_cluster import access
from local_cluster.api import Api, Object
from local_cluster.build import binary
from local_cluster.components import Context
from local_cluster.nodes import READY_POLL_S, shape_nodes
from local_cluster.patience import Guard, stretched
from local_cluster.places import Layout
from local_cluster.processes import Identity, Process, command_of, processes_below
from local_cluster.real import cgroups, images, network, packages
from local_cluster.real.configuration import CONFIG
from local_cluster.real.keeper import END_DEADLINE_S, Settings
from local_cluster.recipes import NODE
from local_cluster.shape import NodeGroup, Resource, Shape

RESOURCE: Resource = "nvidia.com/gpu"
GPUS = 8
GROUP = NodeGroup(
    name="real-{index}",
    zone="z1",
    rack="real",
    gpus=GPUS,
    resources=(RESOURCE,),
    topology="hgx-h100-8x-nvswitch",
    publish="labels",
)
"""What kubelets do not report about their nodes: zone, rack and fake NVLinks."""
DRA = msgspec.structs.replace(
    GROUP, name="dra-{index}", topology="v100-8x-hybrid-cube-mesh", publish="gpu-topology-annotation"
)
"""Nodes where a DRA driver serves the GPUs."""
DRA_DRIVER = "gpu.muster.local"
"""The name of this driver."""
SLICES = "/apis/resource.k8s.io/v1/resourceslices"

MAX_REAL_NODES = 16
"""The most real nodes of one cluster. Each takes about 200 MB of memory."""
STOP_GRACE_S = 2 * END_DEADLINE_S
PLUGIN, DRIVER = "fake-gpus", "fake-dra-driver"
LOGS = ("containerd", "kubelet", PLUGIN, DRIVER)


class RealNodesError(RuntimeError):
    """Real nodes did not come up. The text ends with the log of what failed."""


class RealNodes:
    """Starts and stops the real nodes of a cluster. Names of their links and cgroups begin with `prefix`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # in names of links, which have at most 15 characters
        self.prefix = f"mu{hashlib.sha256(str(layout.root).encode()).hexdigest()[:6]}"
        self._keepers: dict[str, Process] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of those that were started and not stopped."""
        return sorted(file.stem.removeprefix("node-") for file in self._layout.run.glob("node-*.json"))

    def running(self) -> dict[str, Identity]:
        """Name of a node → the process that keeps it; what does not run is left out."""
        return {name: identity for name in self.names if (identity := self._keeper(name).identity)}

    def start(
        self,
        context: Context,
        api: Api,
        count: int,
        *,
        detached: bool,
        group: NodeGroup = GROUP,
        shown: Sequence[Path] = (),
    ) -> None:
        """Start nodes and wait until each is Ready and offers its GPUs.

        Those of GROUP have a device plugin, those of DRA a DRA driver, others serve no GPUs by
        themselves. `shown` is what the nodes have of this machine.

        Raises:
            RealNodesError: one did not come up.
        """
        if not 1 <= count <= MAX_REAL_NODES:
            raise RealNodesError(f"{count} real nodes: give a number from 1 to {MAX_REAL_NODES}")
        described = shape_nodes(Shape(nodes=(msgspec.structs.replace(group, count=count),)), "real nodes")
        first = len(self.names)
        programs = {name: binary(name) for name in NODE} | {"runc": packages.program("runc")}
        tar = self._layout.config / "images.tar"
        images.write_images(tar, packages.program("busybox"))
        before = {}
        for index, node in enumerate(described):
            name = node["metadata"]["name"]
            if self._keeper(name).alive:
                continue
            before[name] = _heartbeat(api.find(f"/api/v1/nodes/{name}"))
            user = f"system:node:{name}"
            settings = Settings(
                name=name,
                cgroup=f"{self.prefix}-{name}",
                link=f"{self.prefix}v{first + index}",
                folder=self._layout.config / f"node-{name}",
                pki=self._layout.pki,
                kubeconfig=access.for_user(context, user, ["system:nodes"]),
                api_port=context.ports["kube-apiserver"],
                server=_server(group, name),
                programs=programs,
                cni=packages.unpacked() / packages.CNI,
                images=tar,
                logs={log: self._layout.log(f"{name}.{log}") for log in LOGS},
                shown=list(shown),
                kubelet_flags=context.gate_flags,
            )
            self._launch(settings, detached=detached)
        self._wait(api, described, before, group)

    def restart(self, name: str, program: str = "kubelet") -> None:
        """End a program of a node, which starts it again; containers run on."""
        keeper = self.running()[name]
        (pid,) = [pid for pid in processes_below(keeper.pid) if command_of(pid) == program]
        os.kill(pid, signal.SIGTERM)

    def stop(self) -> None:
        """Stop all nodes, and remove what a keeper that was killed left."""
        with ThreadPoolExecutor() as workers:
            for _ in workers.map(lambda name: self._keeper(name).stop(STOP_GRACE_S), self.names):
                pass
        self._keepers.clear()
        self.sweep()

    def sweep(self) -> None:
        """Remove the links and cgroups of nodes whose keepers are gone."""
        for link in network.links(self.prefix):
            network.remove_link(link)
        for cgroup in cgroups.named(self.prefix):
            cgroups.remove(cgroup, stretched(END_DEADLINE_S))

    # --- inside -----------------------------------------------------------------------------------

    def _keeper(self, name: str) -> Process:
        if name not in self._keepers:
            self._keepers[name] = Process(
                name, [], log=self._layout.log(name), pid_file=self._layout.pid_file(f"node-{name}")
            )
        return self._keepers[name]

    def _launch(self, settings: Settings, *, detached: bool) -> None:
        settings.folder.mkdir(parents=True, exist_ok=True)
        file = settings.folder / "settings.json"
        settings.write(file)
        keeper = Process(
            settings.name,
            [sys.executable, "-m", "local_cluster.real.keeper", str(file)],
            log=self._layout.log(settings.name),
            pid_file=self._layout.pid_file(f"node-{settings.name}"),
            die_with_parent=not detached,
            death_signal=signal.SIGTERM,
        )
        self._keepers[settings.name] = keeper
        keeper.start()

    def _wait(
        self,
        api: Api,
        described: list[Object],
        before: Mapping[str, str],
        group: NodeGroup,
    ) -> None:
        """`before`: the last word of an earlier kubelet of each node, which does not count."""
        guard = Guard()
        for node in described:
            name = node["metadata"]["name"]
            while not self._ready(api, node, before.get(name, ""), group):
                if not self._keeper(name).alive:
                    raise RealNodesError(f"{name} ended before it was Ready; {self._tails(name)}")
                if guard.over:
                    raise RealNodesError(
                        f"{name} is not Ready within {guard.whole_s:.0f} s; {self._tails(name)}"
                    )
                time.sleep(READY_POLL_S)

    def _ready(self, api: Api, described: Object, before: str, group: NodeGroup) -> bool:
        """Whether the node is Ready and offers its GPUs. Describes it as soon as it is there."""
        meta = described["metadata"]
        path = f"/api/v1/nodes/{meta['name']}"
        node = api.find(path)
        if node is None or _heartbeat(node) in ("", before):
            return False
        if not set(meta["labels"].items()) <= set(node["metadata"]["labels"].items()):
            api.patch(path, {"metadata": {"labels": meta["labels"], "annotations": meta["annotations"]}})
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in _conditions(node)
        )
        if group is DRA:
            return ready and published(api, meta["name"]) == GPUS
        offered = int(node["status"].get("allocatable", {}).get(RESOURCE, 0))
        return ready and offered == (GPUS if group is GROUP else 0)

    def _tails(self, name: str) -> str:
        return "\n".join(self._tail(log) for log in self._logs(name))

    def _logs(self, name: str) -> Iterator[Path]:
        yield self._layout.log(name)
        yield from (self._layout.log(f"{name}.{log}") for log in LOGS)

    @staticmethod
    def _tail(log: Path, lines: int = 8) -> str:
        with contextlib.suppress(OSError):
            return "\n".join([f"the end of {log}:", *log.read_text(errors="replace").splitlines()[-lines:]])
        return f"{log} can't be read"


def published(api: Api, node: str) -> int:
    """Return how many devices the node's ResourceSlices have."""
    slices = api.get(f"{SLICES}?fieldSelector=spec.nodeName%3D{node}")["items"]
    return sum(len(resource_slice["spec"].get("devices") or ()) for resource_slice in slices)


def _server(group: NodeGroup, node: str) -> list[str]:
    if group is DRA:
        return [DRIVER, node, str(GPUS), f"{CONFIG}/kubeconfig"]
    return [PLUGIN, RESOURCE, str(GPUS)] if group is GROUP else []


def _conditions(node: Object) -> list[Object]:
    conditions: list[Object] = node["status"].get("conditions", [])
    return conditions


def _heartbeat(node: Object | None) -> str:
    """When a kubelet last spoke of the node; "" if none ever did."""
    conditions = _conditions(node) if node else []
    return next(
        (str(condition["lastHeartbeatTime"]) for condition in conditions if condition["type"] == "Ready"), ""
    )
