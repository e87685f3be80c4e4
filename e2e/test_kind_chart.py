"""The Helm chart on kind in place of the manifests: its options, the page with tokens, and what it leaves."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kubernetes
from kubernetes import config, stream

from e2e import kind, objects
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.build import binary
from local_cluster.patience import HANG_S
from local_cluster.stack_config import apply_definitions, leader

CHART = Path(__file__).parents[1] / "charts/muster"
PAGE = 8081
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
VALUES: dict[str, object] = {
    "replicas": 2,
    "nodeSelector": {"kind.muster.dev/runs-muster": "true"},
    "shim.resources.requests.cpu": "100m",
    "service.resources.requests.cpu": "100m",
    "podGroups.crd": True,
    "page.tokens": True,
    "metrics.serviceMonitor.enabled": True,
    "metrics.dashboards.enabled": True,
    "policies": {"topologyAwareScheduling": {"levels": [{"name": "row", "label": "example.com/row"}]}},
}
SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
MONITORS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "ServiceMonitor", "plural": "servicemonitors"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": SCHEMA}],
    },
}
"""The Prometheus operator's kind, without the operator."""
DEFINITION = "customresourcedefinition.apiextensions.k8s.io/podgroups.scheduling.run.ai"
"""The CRD of PodGroups, which Helm keeps."""


@pytest.fixture
def helm(request: pytest.FixtureRequest, scene: Scene, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Take the manifests off, and return helm for this cluster; put all back, whatever became of the test."""
    if request.config.getoption("--cluster") != "kind":
        pytest.skip("needs the cluster of `make kind-up`: --cluster kind")
    homes = {f"HELM_{name}_HOME": str(tmp_path / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    cluster = ["--kubeconfig", str(kind.KUBECONFIG), "--namespace", kind.NAMESPACE]

    def run(*arguments: str) -> None:
        argv = [str(binary("helm")), *arguments, *cluster]
        done = subprocess.run(
            argv, env=os.environ | homes, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"

    kind.uninstall()
    try:
        apply_definitions(scene.client, [MONITORS])
        yield run
        run("uninstall", "muster", "--wait", "--ignore-not-found")
    finally:
        kind.kubectl("delete", "--ignore-not-found", "customresourcedefinition", MONITORS["metadata"]["name"])
        kind.install()


@pytest.fixture
def reader(scene: Scene) -> Iterator[str]:
    """Return a token of an account that may see the page."""
    scene.client.post(f"/api/v1/namespaces/{scene.name}/serviceaccounts", {"metadata": {"name": "reader"}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "muster-page-reader"}
    subject = {"kind": "ServiceAccount", "namespace": scene.name, "name": "reader"}
    scene.client.post(BINDINGS, {"metadata": {"name": scene.name}, "roleRef": role, "subjects": [subject]})
    yield token(scene, "reader")
    scene.client.delete(f"{BINDINGS}/{scene.name}")


def token(scene: Scene, account: str) -> str:
    """Return a token of a service account of the scene."""
    path = f"/api/v1/namespaces/{scene.name}/serviceaccounts/{account}/token"
    return str(scene.client.post(path, {"spec": {}})["status"]["token"])


def page(pod: str, bearer: str) -> tuple[int, bytes]:
    """Return what a pod's page answers on a forwarded port."""
    connect: Any = config.new_client_from_config  # untyped, like all of that package
    core: Any = kubernetes.CoreV1Api(connect(config_file=str(kind.KUBECONFIG)))
    call = core.connect_get_namespaced_pod_portforward
    forwarded: Any = stream.portforward(call, pod, kind.NAMESPACE, ports=str(PAGE))
    asking = http.client.HTTPConnection("localhost", timeout=HANG_S)
    asking.sock = forwarded.socket(PAGE)
    try:
        asking.request("GET", "/api/state", headers={"Authorization": f"Bearer {bearer}"} if bearer else {})
        answer = asking.getresponse()
        return answer.status, answer.read()
    finally:
        forwarded.close()


def a_gang_finds_its_row(scene: Scene) -> None:
    """Run a gang whose scope only the policies of the chart name."""
    rows = {"a": "1", "b": "2", "c": "1"}
    for name, row in rows.items():
        scene.node(objects.node(name, labels={"example.com/row": row}))
    gang = objects.Words(labels=objects.ack("g", 2).labels, annotations={"gpu.topology/scope": "row"})
    names = scene.create(*(objects.pod(f"w-{rank}", gpus=8, gang=gang) for rank in range(2)))
    scene.runs(names)
    assert {scene.pods()[name].node for name in names} == {f"{scene.name}-a", f"{scene.name}-c"}


def test_the_chart_runs_with_its_options_and_leaves_what_the_docs_say(
    helm: Callable[..., None], scene: Scene, reader: str
) -> None:
    options = [f"--set-json={key}={json.dumps(value)}" for key, value in VALUES.items()]
    helm("install", "muster", str(CHART), "--create-namespace", *options)
    kind.wait_ready()
    a_gang_finds_its_row(scene)
    deployment = scene.client.get(f"/apis/apps/v1/namespaces/{kind.NAMESPACE}/deployments/muster")
    assert deployment["status"]["readyReplicas"] == 2
    listed = ("servicemonitors,configmaps", f"--namespace={kind.NAMESPACE}", "--output=name")
    installed = kind.kubectl("get", *listed)
    assert {"servicemonitor.monitoring.coreos.com/muster", "configmap/muster-dashboards"} <= {
        *installed.split()
    }

    pod = leader(scene.client).partition("_")[0]
    stranger = token(scene, "default")
    assert [page(pod, bearer)[0] for bearer in ("", "made-up", stranger)] == [401, 401, 403]
    status, state = page(pod, reader)
    assert status == 200
    assert f"{scene.name}-a" in gzip.decompress(state).decode()

    helm("uninstall", "muster", "--wait")
    pods = ("pods", "--selector=app.kubernetes.io/name=muster", f"--namespace={kind.NAMESPACE}")
    kind.kubectl("wait", "--for=delete", *pods, f"--timeout={HANG_S:.0f}s")  # helm does not wait for them
    assert kind.left() == [DEFINITION, "lease.coordination.k8s.io/muster", f"namespace/{kind.NAMESPACE}"]
    kind.kubectl("delete", f"namespace/{kind.NAMESPACE}", DEFINITION)
    assert kind.left() == []
