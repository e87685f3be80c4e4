"""Real nodes: containers get their GPUs through Muster, and nothing of a node outlives its cluster."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.api import Object
from local_cluster.cluster import LocalCluster
from local_cluster.nodes import ready_nodes
from local_cluster.patience import HANG_S
from local_cluster.places import SOURCE
from local_cluster.processes import Identity, command_of, processes_below
from local_cluster.real import cgroups, network
from local_cluster.real.printing import SHOW_GPUS, printed_gpus
from local_cluster.real.support import why_not
from local_cluster.stack import Stack
from tests.local_cluster.cluster_waiting import eventually
from tests.local_cluster.killed_parent import killed_parent

pytestmark = pytest.mark.cluster

PODS = "/api/v1/namespaces/default/pods"
NODE = "real-0"
PROGRAMS = {"containerd", "kubelet", "fake-gpus"}


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := why_not():
        pytest.skip(f"no real nodes on this machine: {reason}")


def of_node(cluster: LocalCluster) -> list[Identity]:
    keeper = cluster.real_nodes.running()[NODE]
    process_of = {
        identity: command_of(pid) for pid in processes_below(keeper.pid) if (identity := Identity.of(pid))
    }
    assert set(process_of.values()) >= PROGRAMS
    return list(process_of)


def left(cluster: LocalCluster) -> list[str]:
    """Links, cgroups and mounts of the cluster's nodes."""
    prefix = cluster.real_nodes.prefix
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    mounts_left = [line for line in mounts if str(cluster.directory) in line or "/opt/node" in line]
    return [*network.links(prefix), *sorted(cgroups.named(prefix)), *mounts_left]


def show_gpus(number: int) -> Object:
    """A member of the example's gang, as a pod."""
    (job,) = yaml.safe_load_all(SHOW_GPUS.read_text())
    template: Any = job["spec"]["template"]
    return {"metadata": template["metadata"] | {"name": f"show-{number}"}, "spec": template["spec"]}


def test_containers_print_their_gpus_and_nothing_is_left(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.start_real_nodes(1)
        cluster.apply_shape(SOURCE / "shapes" / "small.yaml")
        node = cluster.api.get(f"/api/v1/nodes/{NODE}")
        assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.1", "no kwok on a real node"
        assert len(ready_nodes(cluster.api)) == 4, "three fake nodes beside the real one"
        with Stack(cluster, tmp_path / "stack"):
            for number in range(2):
                cluster.api.post(PODS, show_gpus(number))
            printed = printed_gpus(cluster.api, ["show-0", "show-1"])
        for name in printed:
            pod = cluster.api.get(f"{PODS}/{name}")
            assert pod["spec"]["nodeName"] == NODE
            allocation = json.loads(pod["metadata"]["annotations"]["gpu.topology/allocation"])
            assert len(allocation["gpus"]) == 3
        devices = [device for gpus in printed.values() for device in gpus]
        assert len(devices) == len(set(devices)) == 6
        assert set(devices) <= {f"GPU-{index}" for index in range(8)}
        processes = of_node(cluster)
        assert left(cluster)
    assert [process for process in processes if process.alive] == []
    assert left(cluster) == []


PARENT = """
import sys
from pathlib import Path
from local_cluster.cluster import LocalCluster
cluster = LocalCluster(Path(sys.argv[1]))
cluster.up()
cluster.start_real_nodes(1)
print("up", flush=True)
sys.stdin.read()
"""


def test_kill_9_of_the_parent_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    with killed_parent(PARENT, directory):
        cluster = LocalCluster(directory)
        processes = of_node(cluster)
    assert all(identity.wait_end(HANG_S) for identity in processes)
    assert left(cluster) == []
    cluster.down()
    assert [path.name for path in directory.iterdir()] == ["logs"]


def test_kill_9_of_the_keeper_ends_its_node_and_down_removes_the_rest(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.start_real_nodes(1)
        processes = of_node(cluster)
        cluster.real_nodes.running()[NODE].wait_end(HANG_S, signal.SIGKILL)
        assert all(identity.wait_end(HANG_S) for identity in processes)
        eventually(lambda: network.links(cluster.real_nodes.prefix) == [], "the kernel removes the link")
        assert cluster.real_nodes.running() == {}
        cluster.start_real_nodes(1)
        assert of_node(cluster)
    assert left(cluster) == []
