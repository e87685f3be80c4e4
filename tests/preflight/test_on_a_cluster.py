"""`muster preflight` as a command, against a real API server: before Muster is installed and after."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from tests.manifests.applying import apply, connect
from tests.manifests.rendering import SCHEDULER_CONFIG, render
from tests.published import assert_as_published

pytestmark = pytest.mark.cluster
MUSTER = Path(sys.executable).with_name("muster")
POLICY = "ValidatingAdmissionPolicyBinding"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("preflight") / "cluster") as cluster:
        yield cluster


def run(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MUSTER), "preflight", "--kubeconfig", str(kubeconfig), *arguments],
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


def levels(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    preflight = json.loads(done.stdout)
    assert_as_published(preflight, "preflight-v1.json")
    assert preflight["ready"] is (done.returncode == 0)
    return {finding["check"]: finding["level"] for finding in preflight["findings"]}


def gpu_node(name: str) -> dict[str, Any]:
    offered = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"capacity": offered, "allocatable": offered},
    }


def test_from_an_empty_cluster_to_an_installed_one(cluster: LocalCluster) -> None:
    empty = run(cluster.kubeconfig, "-o", "json")
    assert empty.returncode == 3
    level_of = levels(empty)
    assert level_of["gpus"] == "error"
    assert {level_of[check] for check in ("version", "api", "rights", "schedulers", "read")} == {"ok"}

    client: Any = connect(cluster.kubeconfig)
    manifests = render(SCHEDULER_CONFIG)
    for manifest in manifests:
        if manifest["kind"] != POLICY:
            apply(client, manifest)
    client.resources.get(api_version="v1", kind="Node").create(gpu_node("a"))
    unbound = levels(run(cluster.kubeconfig, "-o", "json"))
    assert (unbound["admission"], unbound["rights"]) == ("error", "ok")
    assert (unbound["gpus"], unbound["topology"]) == ("ok", "warning")

    for manifest in manifests:
        if manifest["kind"] == POLICY:
            apply(client, manifest)
    bindings = client.resources.get(api_version="rbac.authorization.k8s.io/v1", kind="ClusterRoleBinding")
    assert levels(run(cluster.kubeconfig, "-o", "json"))["admission"] == "ok"
    table = run(cluster.kubeconfig)
    assert table.returncode == 0, table.stdout
    assert "1 node offers 8 nvidia.com/gpu" in " ".join(table.stdout.split())

    bindings.delete(name="muster-service")
    revoked = run(cluster.kubeconfig)
    assert revoked.returncode == 3
    assert "Muster's account may not" in " ".join(revoked.stdout.split())


def test_gpus_of_a_dra_driver_want_their_guard(cluster: LocalCluster) -> None:
    client: Any = connect(cluster.kubeconfig)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "dra"}}
    client.resources.get(api_version="v1", kind="Node").create(node)
    driver = "gpu.nvidia.com"
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    offered = {
        "DeviceClass": {"extendedResourceName": "nvidia.com/gpu", "selectors": [selector]},
        "ResourceSlice": {
            "driver": driver,
            "nodeName": "dra",
            "pool": {"name": "dra", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }
    for kind, spec in offered.items():
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "dra"}, "spec": spec}
        apply(client, body)
    assert levels(run(cluster.kubeconfig, "-o", "json"))["dra-guard"] in {"note", "warning"}
    for manifest in yaml.safe_load_all((SCHEDULER_CONFIG / "dra-guard" / "admission.yaml").read_text()):
        apply(client, manifest)
    done = run(cluster.kubeconfig)
    assert f"only Muster allocates devices of {driver}" in " ".join(done.stdout.split())


def test_a_user_without_rights_hears_what_was_not_read(cluster: LocalCluster) -> None:
    done = run(cluster.kubeconfig_for_user("nobody-special", ["developers"]), "-o", "json")
    level_of = levels(done)
    assert level_of["read"] == "warning"
    assert level_of["rights"] in {"warning", "error"}


def test_no_cluster(tmp_path: Path) -> None:
    done = run(tmp_path / "none")
    assert done.returncode == 1
    assert "there is no such file" in done.stderr
