"""Real clusters: what is in one, how its pods live, who may do what in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local_cluster.api import Api, ApiError
from local_cluster.cluster import ClusterError, LocalCluster
from local_cluster.nodes import nodes_of, ready_nodes
from local_cluster.places import SOURCE
from tests.local_cluster.cluster_waiting import eventually

pytestmark = pytest.mark.cluster

DEMO = SOURCE / "shapes" / "demo.yaml"
PODS = "/api/v1/namespaces/default/pods"


def bind(cluster: LocalCluster, name: str, node: str, **annotations: str) -> None:
    """No scheduler runs here: create a pod and bind it as one would."""
    spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
    noted = {f"local-cluster/{key.replace('_', '-')}": value for key, value in annotations.items()}
    cluster.api.post(PODS, {"metadata": {"name": name, "annotations": noted}, "spec": spec})
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    cluster.api.post(f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})


def phase(cluster: LocalCluster, name: str) -> str | None:
    pod = cluster.api.find(f"{PODS}/{name}")
    return pod["status"]["phase"] if pod else None


@pytest.fixture(scope="module")
def demo(cluster: LocalCluster) -> LocalCluster:
    cluster.apply_shape(DEMO)
    return cluster


def test_nodes_are_ready_with_what_the_shape_gave_them(demo: LocalCluster) -> None:
    node_by_name = {node["metadata"]["name"]: node for node in nodes_of(DEMO)}
    assert set(node_by_name) <= ready_nodes(demo.api)
    for name, node in node_by_name.items():
        live = demo.api.get(f"/api/v1/nodes/{name}")
        assert live["status"]["allocatable"] == node["status"]["allocatable"]
        assert live["metadata"]["labels"].items() >= node["metadata"]["labels"].items()
        assert live["metadata"]["annotations"].items() >= node["metadata"]["annotations"].items()


def test_a_bound_pod_runs_until_it_is_deleted(demo: LocalCluster) -> None:
    bind(demo, "stays", "v100-0")
    eventually(lambda: phase(demo, "stays") == "Running", "the pod runs")
    conditions = demo.api.get(f"{PODS}/stays")["status"]["conditions"]
    assert {"Ready", "PodScheduled"} <= {
        condition["type"] for condition in conditions if condition["status"] == "True"
    }
    demo.api.delete(f"{PODS}/stays")
    eventually(lambda: phase(demo, "stays") is None, "the pod is gone")


@pytest.mark.parametrize(("code", "end"), [("0", "Succeeded"), ("3", "Failed")])
def test_a_pod_ends_when_it_is_told_to(demo: LocalCluster, code: str, end: str) -> None:
    bind(demo, f"ends-{code}", "v100-0", complete_after="100ms", exit_code=code)
    eventually(lambda: phase(demo, f"ends-{code}") == end, f"the pod is {end}")
    status = demo.api.get(f"{PODS}/ends-{code}")["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == int(code)


def test_a_running_pod_can_be_told_to_end(demo: LocalCluster) -> None:
    bind(demo, "told-later", "v100-1")
    eventually(lambda: phase(demo, "told-later") == "Running", "the pod runs")
    demo.api.patch(
        f"{PODS}/told-later", {"metadata": {"annotations": {"local-cluster/complete-after": "0s"}}}
    )
    eventually(lambda: phase(demo, "told-later") == "Succeeded", "the pod ends")


def test_a_pod_can_take_its_time_to_terminate(demo: LocalCluster) -> None:
    bind(demo, "lingers", "v100-1", terminate_after="1h")
    eventually(lambda: phase(demo, "lingers") == "Running", "the pod runs")
    demo.api.delete(f"{PODS}/lingers")
    assert "deletionTimestamp" in demo.api.get(f"{PODS}/lingers")["metadata"]
    demo.api.delete(f"{PODS}/lingers", grace_s=0)
    eventually(lambda: phase(demo, "lingers") is None, "the pod is gone")


def test_a_job_completes_and_its_pods_can_be_deleted(demo: LocalCluster) -> None:
    """The job controller runs, and the finalizers of its pods do not get in the way."""
    template = {
        "metadata": {"annotations": {"local-cluster/complete-after": "0s"}},
        "spec": {
            "restartPolicy": "Never",
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "none"}],
        },
    }
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    demo.api.post(jobs, {"metadata": {"name": "trains"}, "spec": {"template": template}})

    def pod() -> dict[str, Any] | None:
        return next(iter(demo.api.get(f"{PODS}?labelSelector=job-name%3Dtrains")["items"]), None)

    name = eventually(pod, "the job has a pod")["metadata"]["name"]
    body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "h100-0"}}
    demo.api.post(f"{PODS}/{name}/binding", body)
    eventually(lambda: demo.api.get(f"{jobs}/trains")["status"].get("succeeded") == 1, "the job is complete")
    demo.api.delete(f"{jobs}/trains?propagationPolicy=Background")
    eventually(lambda: pod() is None, "the garbage collector has removed the pod")


def test_a_shape_applied_again_takes_away_what_it_gave(demo: LocalCluster, tmp_path: Path) -> None:
    shape = tmp_path / "shape.yaml"
    shape.write_text(
        "nodes: [{name: changes, gpus: 4, resources: [nvidia.com/gpu], labels: {pool: a, old: x}}]"
    )
    demo.apply_shape(shape)
    demo.api.patch("/api/v1/nodes/changes", {"metadata": {"labels": {"foreign": "kept"}}})
    shape.write_text("nodes: [{name: changes, labels: {pool: b}, taints: [{key: busy, effect: NoSchedule}]}]")
    demo.apply_shape(shape)
    node = demo.api.get("/api/v1/nodes/changes")
    assert node["metadata"]["labels"]["pool"] == "b"
    assert node["metadata"]["labels"]["foreign"] == "kept"
    assert "old" not in node["metadata"]["labels"]
    assert "nvidia.com/gpu" not in node["status"]["allocatable"]
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["busy"]


def test_rbac_is_on(demo: LocalCluster) -> None:
    ca = str(demo.layout.pki / "ca.crt")
    stranger = Api(demo.url, ca, token=demo.token_for("team-a/stranger"))
    with pytest.raises(ApiError, match=r"403.*system:serviceaccount:team-a:stranger") as refused:
        stranger.get("/api/v1/nodes")
    assert refused.value.status == 403
    assert Api(demo.url, ca).send("GET", "/api/v1/nodes").status in {401, 403}
    assert Api(demo.url, ca, token="made-up").send("GET", "/api/v1/nodes").status == 401


def test_kubeconfigs_for_programs(demo: LocalCluster) -> None:
    account = json.loads(demo.kubeconfig_for("team-b/service").read_text())
    assert account["users"][0]["user"]["token"]
    assert account["clusters"][0]["cluster"]["server"] == demo.url
    user = demo.kubeconfig_for_user("ana", groups=["dev"])
    assert user != demo.kubeconfig_for_user("ana", groups=["ops"])
    assert user.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="write it as namespace/name"):
        demo.kubeconfig_for("service")


def test_the_audit_log_tells_who_bound_a_pod(demo: LocalCluster) -> None:
    bind(demo, "audited", "v100-2")
    lines = [json.loads(line) for line in demo.audit_log.read_text().splitlines()]
    (binding,) = [
        line
        for line in lines
        if line["objectRef"].get("subresource") == "binding" and line["objectRef"]["name"] == "audited"
    ]
    assert binding["user"]["username"] == "local-cluster-admin"
    assert binding["requestObject"]["target"]["name"] == "v100-2"


def test_up_again_changes_nothing(demo: LocalCluster) -> None:
    before = demo.running()
    LocalCluster(demo.directory, audit=True).up()
    assert demo.running() == before
    with pytest.raises(ClusterError, match="runs with audit=True: take it down first"):
        LocalCluster(demo.directory).up()


def test_everything_lies_in_its_directory_for_the_owner_alone(demo: LocalCluster) -> None:
    assert demo.directory.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in demo.directory.iterdir()} == {
        *("cluster.json", "lock", "kubeconfig", "config", "etcd", "kubeconfigs", "logs", "pki", "run")
    }
