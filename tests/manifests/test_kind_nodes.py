"""kind-cluster/: what it does to nodes, done to the nodes of a real API server.

kind itself reads cluster.yaml in kind-cluster/check (a Go test); no container runs in either.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from local_cluster.recipes import KUBERNETES
from tests.manifests.rendering import REPOSITORY, SCHEDULER_CONFIG, render

KIND = REPOSITORY / "kind-cluster"
KUBELETS_OWN = {"cpu": "8", "memory": "32Gi", "pods": "110"}


def workers() -> list[str]:
    """Names as kind gives them: <cluster>-worker, -worker2, -worker3, …"""
    cluster = yaml.safe_load((KIND / "cluster.yaml").read_text())
    count = sum(node["role"] == "worker" for node in cluster["nodes"])
    return [f"{cluster['name']}-worker{number if number > 1 else ''}" for number in range(1, count + 1)]


def test_the_shape_dresses_every_worker() -> None:
    shape = yaml.safe_load((KIND / "nodes.yaml").read_text())
    assert [group["name"] for group in shape["nodes"]] == workers()


@pytest.mark.cluster
def test_nodes_look_like_gpu_nodes(cluster: LocalCluster, client: Any) -> None:
    for name in workers():
        bare_node(client, name)
    for _ in range(2):  # a second run changes nothing and fails on nothing
        answer = dress(cluster.kubeconfig, KIND / "nodes.yaml")
        assert answer.returncode == 0, answer.stderr
    nodes = client.resources.get(api_version="v1", kind="Node")
    first, third = nodes.get(name="muster-worker").to_dict(), nodes.get(name="muster-worker3").to_dict()
    assert first["status"]["capacity"] == first["status"]["allocatable"]
    assert first["status"]["capacity"] == KUBELETS_OWN | {"aliyun.com/gpu": "8"}
    assert third["status"]["capacity"] == KUBELETS_OWN | {"nvidia.com/gpu": "8"}
    for name, mode in (("muster-worker5", "cgpu"), ("muster-worker6", "share")):
        shared = nodes.get(name=name).to_dict()
        memory = {"aliyun.com/gpu-mem": "64", "aliyun.com/gpu-count": "4"}
        assert shared["status"]["allocatable"] == KUBELETS_OWN | memory
        assert shared["metadata"]["labels"]["ack.node.gpu.schedule"] == mode
    assert first["metadata"]["labels"]["topology.kubernetes.io/rack"] == "r1"
    assert first["metadata"]["labels"]["topology.kubernetes.io/zone"] == "z1"  # kind's, left alone
    assert first["metadata"]["labels"]["kubernetes.io/arch"] == "arm64"  # the kubelet's, left alone
    assert first["metadata"]["annotations"]["NODE_TYPE"] == "v100-8x"
    links = json.loads(first["metadata"]["annotations"]["GPU_TOPOLOGY"])
    assert links["GPU_NV2_0_3"] == "Two NVLinks"
    assert len(links) == 8 * 7 // 2


@pytest.mark.cluster
def test_a_node_that_is_not_there_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    shape = tmp_path / "nodes.yaml"
    shape.write_text("nodes: [{name: nowhere, gpus: 8, resources: [nvidia.com/gpu]}]")
    answer = dress(cluster.kubeconfig, shape)
    assert answer.returncode == 1
    assert 'nodes "nowhere" not found' in answer.stderr.replace("\\", "")
    assert "Traceback" not in answer.stderr


def bare_node(client: Any, name: str) -> None:
    """A node as a kubelet registers it, on another architecture than shapes assume."""
    nodes = client.resources.get(api_version="v1", kind="Node")
    labels = {"kubernetes.io/arch": "arm64", "topology.kubernetes.io/zone": "z1"}
    nodes.create(
        body={
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {"capacity": KUBELETS_OWN, "allocatable": KUBELETS_OWN},
        }
    )


def dress(kubeconfig: Path, shape: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(KIND / "gpu_nodes.py"), "--kubeconfig", str(kubeconfig), "--nodes", str(shape)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_images_are_built_as_they_are_deployed() -> None:
    """Nothing builds the images here; what can drift apart without anybody noticing is compared."""
    shim = (REPOSITORY / "shim" / "Dockerfile").read_text()
    service = (REPOSITORY / "service" / "Dockerfile").read_text()
    images = {"shim": shim, "service": service}
    deployment = yaml.safe_load((SCHEDULER_CONFIG / "deployment.yaml").read_text())
    user = deployment["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"component-base/version.gitVersion={KUBERNETES}" in shim
    agent = yaml.safe_load((SCHEDULER_CONFIG / "node-agent" / "daemonset.yaml").read_text())
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    root = container["securityContext"]["runAsUser"]
    users = {name: re.findall(r"(?m)^USER (\d+):\d+$", text) for name, text in images.items()}
    assert users == {"shim": [str(user)], "service": [str(user), str(root)]}
    uv = re.search(r"(?m)^UV_VERSION := (\S+)$", (REPOSITORY / "Makefile").read_text())
    assert uv is not None
    assert f"ARG UV_VERSION={uv.group(1)}\n" in service


@pytest.mark.go
def test_muster_runs_where_its_images_are() -> None:
    """The nodes that `up.py` loads the images onto are those that the overlay selects."""
    specification = importlib.util.spec_from_file_location("kind_up", KIND / "up.py")
    assert specification is not None
    assert specification.loader is not None
    up = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(up)
    names = up.nodes_for_muster(up.cluster_configuration())
    assert len(names) == 2  # one for each replica
    assert {*names} < {"muster-control-plane", *workers()}
    (deployment,) = [body for body in render(KIND) if body["kind"] == "Deployment"]
    assert [*deployment["spec"]["template"]["spec"]["nodeSelector"]] == [up.RUNS_MUSTER]
