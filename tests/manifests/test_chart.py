"""Tests of charts/muster: its defaults equal scheduler-config/, and its values do what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster import stack_config
from local_cluster.cluster import LocalCluster
from muster.config import Config
from muster.config_sources import load
from tests.manifests.applying import connect
from tests.manifests.comparing import CHECKSUM, comparable, made
from tests.manifests.everything import EVERY_OPTION
from tests.manifests.helm import CHART, NAMESPACE, HelmError, given, helm, template
from tests.manifests.rendering import SCHEDULER_CONFIG, Manifest, one

pytestmark = pytest.mark.go  # helm and kustomize are built or run with it

CRD = "podgroups.scheduling.run.ai"
LEVEL = "pod-security.kubernetes.io/enforce"


def test_the_defaults_give_the_objects_of_scheduler_config(rendered: list[Manifest]) -> None:
    base = comparable(rendered)
    assert base.pop("Namespace /muster-system")
    chart = comparable(template())
    assert sorted(chart) == sorted(base)
    assert len(base) > 10
    for name, item in base.items():
        assert chart[name] == item, name


def test_strict_lint_accepts_the_chart() -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_another_namespace_is_named_everywhere() -> None:
    objects = template(EVERY_OPTION, namespace="gpu-scheduling")
    assert "muster-system" not in json.dumps(objects)
    policy = one(objects, "ValidatingAdmissionPolicy", "muster-allocations")
    assert "system:serviceaccount:gpu-scheduling:muster" in json.dumps(policy)


def service_settings(objects: list[Manifest]) -> dict[str, Any]:
    """Return the configuration file of the service, and show that its container reads it."""
    pod = one(objects, "Deployment", "muster")["spec"]["template"]["spec"]
    container = pod["containers"][1]
    assert "--config=/etc/muster/muster.yaml" in container["args"]
    assert {"name": "service-config", "mountPath": "/etc/muster", "readOnly": True} in container[
        "volumeMounts"
    ]
    assert {"name": "service-config", "configMap": {"name": "muster-service"}} in pod["volumes"]
    settings: dict[str, Any] = yaml.safe_load(
        one(objects, "ConfigMap", "muster-service")["data"]["muster.yaml"]
    )
    return settings


def test_another_scheduler_name_reaches_both_containers(tmp_path: Path) -> None:
    objects = template({"schedulerName": "gangs", "service.settings": {"planner": {"time_limit_s": 20}}})
    shim = yaml.safe_load(one(objects, "ConfigMap", "muster-scheduler")["data"]["scheduler.yaml"])
    assert [profile["schedulerName"] for profile in shim["profiles"]] == ["gangs"]
    file = tmp_path / "muster.yaml"
    file.write_text(yaml.safe_dump(service_settings(objects)))
    config = load(file, environment={})
    assert (config.scheduler_names, config.planner.time_limit_s) == (("gangs",), 20)


def test_policies_are_in_the_namespace_of_the_release_and_are_read_there() -> None:
    levels = {"topologyAwareScheduling": {"levels": [{"name": "rack", "label": "example.com/rack"}]}}
    objects = template({"policies": levels}, namespace="gpu-scheduling")
    policies = one(objects, "ConfigMap", "kai-scheduler-config")
    assert policies["metadata"]["namespace"] == "gpu-scheduling"
    assert yaml.safe_load(policies["data"]["config.yaml"]) == levels
    assert service_settings(objects) == {"policies": {"namespace": "gpu-scheduling"}}


def container_images(objects: list[Manifest]) -> list[str]:
    pod = one(objects, "Deployment", "muster")["spec"]["template"]["spec"]
    return [container["image"] for container in pod["containers"]]


def test_images_have_the_version_of_the_chart_or_a_tag() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    values = {"images.service": {"repository": "registry.example.com/muster-service", "tag": "abc"}}
    assert container_images(template(values)) == [
        f"muster-shim:{version}",
        "registry.example.com/muster-service:abc",
    ]


def test_a_changed_configuration_restarts_the_pods() -> None:
    def checksum(values: dict[str, Any]) -> str:
        deployment = one(template(values), "Deployment", "muster")
        return str(deployment["spec"]["template"]["metadata"]["annotations"][CHECKSUM])

    changes: list[dict[str, Any]] = [
        {},
        {"shim.bindTimeout": "3s"},
        {"service.settings": {"log": {"level": "debug"}}},
        {"shim.qps": 400},
    ]
    assert len({checksum(values) for values in changes}) == len(changes)


def test_the_node_agent_is_the_component_of_scheduler_config(tmp_path: Path) -> None:
    of_kustomize = made(tmp_path, "node-agent")
    expected, chart = comparable(of_kustomize), comparable(template({"nodeAgent.enabled": True}))
    assert expected.pop("Namespace /muster-system")
    assert sorted(chart) == sorted(expected)
    names = {name for name in expected if "muster-node" in name}
    assert len(names) == 7
    for name in names | {name for name in expected if name.startswith("ValidatingAdmissionPolicy")}:
        assert chart[name] == expected[name], name
    (trusted,) = (
        item["value"]
        for container in chart["Deployment muster-system/muster"]["spec"]["template"]["spec"]["containers"]
        for item in container.get("env", ())
        if item["name"].startswith("MUSTER__NODE_AGENTS")
    )
    assert trusted == "muster-nodes"


def test_tokens_of_the_page_are_the_component_of_scheduler_config(tmp_path: Path) -> None:
    of_kustomize = made(tmp_path, "page-tokens")
    expected, chart = comparable(of_kustomize), comparable(template({"page.tokens": True}))
    names = {name for name in expected if "page" in name}
    assert len(names) == 3
    for name in names:
        assert chart[name] == expected[name], name
    pods = [
        one(objects, "Deployment", "muster")["spec"]["template"]["spec"]
        for objects in (of_kustomize, template({"page.tokens": True}))
    ]
    services = [
        next(container for container in pod["containers"] if container["name"] == "service") for pod in pods
    ]
    env = [{item["name"]: item["value"] for item in service["env"]} for service in services]
    assert env[0] == env[1]
    assert (env[0]["MUSTER__PAGE__HOST"], env[0]["MUSTER__PAGE__TOKENS"]) == ("0.0.0.0", "true")
    assert {8080, 8081} == {port["containerPort"] for service in services for port in service["ports"]}


def test_the_node_agent_takes_its_values() -> None:
    values = {"enabled": True, "runtimeClassName": "nvidia", "isolationLibrary": "/opt/vgpu.so", "cdi": False}
    objects = template({"nodeAgent": values, "images.nodeAgent": {"repository": "r/agent", "tag": "1"}})
    pod = one(objects, "DaemonSet", "muster-node-agent")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["runtimeClassName"], container["image"]) == ("nvidia", "r/agent:1")
    assert container["args"][-2:] == ["--isolation-library=/opt/vgpu.so", "--no-cdi"]


def test_secrets_of_the_registry_reach_all_pods() -> None:
    objects = template({"nodeAgent.enabled": True, "images.pullSecrets": ["one", "two"]})
    for kind, name in (("Deployment", "muster"), ("DaemonSet", "muster-node-agent")):
        pod = one(objects, kind, name)["spec"]["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}], name


def test_the_right_to_read_jobs_can_be_left_out() -> None:
    def roles(values: dict[str, Any]) -> set[str]:
        return {item["metadata"]["name"] for item in template(values) if item["kind"] == "ClusterRole"}

    assert roles({}) - roles({"jobs.read": False}) == {"muster-service-jobs"}


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1), (3, 1)])
def test_a_single_replica_has_no_budget_that_would_block_every_drain(replicas: int, budgets: int) -> None:
    kinds = [item["kind"] for item in template({"replicas": replicas})]
    assert kinds.count("PodDisruptionBudget") == budgets


def test_feature_gates_reach_the_scheduler() -> None:
    pod = one(template({"shim.featureGates": {"B": True, "A": False}}), "Deployment", "muster")
    (arguments,) = (c["args"] for c in pod["spec"]["template"]["spec"]["containers"] if c["name"] == "shim")
    assert "--feature-gates=NominatedNodeNameForExpectation=false,A=false,B=true" in arguments


def test_an_older_control_plane_needs_a_gate_off() -> None:
    old = ["template", "muster", str(CHART), "--kube-version=1.36.2"]
    with pytest.raises(HelmError, match=r"set shim\.featureGates\.DRADeviceTaintRules=false"):
        helm(*old)
    assert "DRADeviceTaintRules=false" in helm(*old, "--set=shim.featureGates.DRADeviceTaintRules=false")


def test_options_that_are_off_add_objects_when_they_are_on() -> None:
    extra = template({"podGroups.crd": True, "metrics.serviceMonitor.enabled": True})
    assert {item["kind"] for item in extra} - {item["kind"] for item in template()} == {
        "CustomResourceDefinition",
        "ServiceMonitor",
    }
    crd = one(extra, "CustomResourceDefinition", CRD)
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_monitor_and_dashboards_are_the_components_of_scheduler_config(tmp_path: Path) -> None:
    of_kustomize = made(tmp_path, "monitor", "dashboards")
    values = {"metrics.serviceMonitor.enabled": True, "metrics.dashboards.enabled": True}
    expected, chart = of_kustomize, template(values)
    monitors = [one(rendering, "ServiceMonitor", "muster") for rendering in (expected, chart)]
    assert monitors[0]["spec"] == monitors[1]["spec"]
    ports = {port["name"] for port in one(expected, "Service", "muster-metrics")["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitors[0]["spec"]["endpoints"]} == ports
    maps = [one(rendering, "ConfigMap", "muster-dashboards") for rendering in (expected, chart)]
    for config_map in maps:
        metadata = config_map["metadata"]
        assert metadata["labels"]["grafana_dashboard"] == "1"
        assert metadata["annotations"] == {"grafana_folder": "Muster"}
    contents = [{name: json.loads(text) for name, text in config_map["data"].items()} for config_map in maps]
    assert contents[0] == contents[1]
    assert len(contents[0]) == len(list((SCHEDULER_CONFIG / "dashboards").glob("*.json")))


def test_alerts_are_the_component_of_scheduler_config(tmp_path: Path) -> None:
    of_kustomize = made(tmp_path, "alerts")
    alerts = {"enabled": True, "labels": {"release": "prometheus"}}
    chart = one(template({"metrics.alerts": alerts}, namespace="gangs"), "PrometheusRule", "muster")
    assert chart["spec"] == one(of_kustomize, "PrometheusRule", "muster")["spec"]
    assert chart["metadata"]["namespace"] == "gangs"
    assert chart["metadata"]["labels"]["release"] == "prometheus"
    assert chart["metadata"]["labels"]["app.kubernetes.io/part-of"] == "muster"


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("replicas", 0),
        ("replica", 2),
        ("schedulerName", "default-scheduler"),
        ("schedulerName", "Muster"),
        ("shim.bindTimeout", "5s"),
        ("shim.featureGates", {"NominatedNodeNameForExpectation": True}),
        ("images.shim", {"registry": "example.com"}),
        ("service.settings", []),
        ("podGroups.crd", "yes"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(value: str, wrong: object) -> None:
    with pytest.raises(HelmError) as refused:
        template({value: wrong})
    assert value.rpartition(".")[2] in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"plannner": {}}, "plannner"),
        ({"planner": {"time_limit": 20}}, "time_limit"),
        ({"planner": {"time_limit_s": 0}}, "time_limit_s"),
        ({"log": {"level": "loud"}}, "level"),
        ({"gangs": {"partial": "stay"}}, "partial"),
        ({"infer_gangs": {"PyTorchJobs": "on"}}, "PyTorchJobs"),
    ],
)
def test_a_wrong_setting_of_the_service_is_refused_by_its_name(
    settings: dict[str, Any], setting: str, tmp_path: Path
) -> None:
    with pytest.raises(HelmError, match=rf"- at '/[^\n]*{setting}"):
        template({"service.settings": settings})
    (tmp_path / "muster.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(Exception, match=setting):
        load(tmp_path / "muster.yaml", environment={})


def test_every_setting_of_the_service_may_be_set() -> None:
    settings = Config(kubeconfig=Path("/a"), context="b").model_dump(mode="json")
    settings["infer_gangs"] = {"default": "off", "PyTorchJob": True}
    assert service_settings(template({"service.settings": settings})) == settings


@pytest.fixture(scope="module")
def empty_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("chart") / "cluster") as cluster:
        yield cluster


@pytest.mark.cluster
def test_the_chart_is_installed_changed_and_removed(empty_cluster: LocalCluster, tmp_path: Path) -> None:
    client = connect(empty_cluster.kubeconfig)

    def deploy(verb: str, values: dict[str, Any]) -> str:
        cluster = ["--kubeconfig", str(empty_cluster.kubeconfig), "--namespace", NAMESPACE]
        return helm(verb, "muster", str(CHART), *cluster, *given(values), home=tmp_path)

    def there() -> set[str]:
        kinds = {(item["apiVersion"], item["kind"]) for item in template({"podGroups.crd": True})}
        return {
            f"{kind} {item.metadata.name}"
            for version, kind in kinds
            for item in client.resources.get(api_version=version, kind=kind)
            .get(label_selector="app.kubernetes.io/part-of=muster")
            .items
        }

    (namespace,) = stack_config.manifests_of(SCHEDULER_CONFIG / "namespace.yaml")
    namespaces = client.resources.get(api_version="v1", kind="Namespace")
    namespaces.create(body=namespace)
    assert LEVEL not in deploy("install", {"podGroups.crd": True})
    assert there() == {f"{x['kind']} {x['metadata']['name']}" for x in template({"podGroups.crd": True})}
    loose = {"metadata": {"labels": {LEVEL: None}}}  # as `helm install --create-namespace` makes it
    namespaces.patch(name=NAMESPACE, body=loose, content_type="application/merge-patch+json")
    changed = {"podGroups.crd": True, "replicas": 3, "service.settings": {"log": {"level": "debug"}}}
    assert f"kubectl label namespace {NAMESPACE} {LEVEL}=restricted" in deploy("upgrade", changed)
    deployments = client.resources.get(api_version="apps/v1", kind="Deployment")
    assert deployments.get(name="muster", namespace=NAMESPACE).spec.replicas == 3
    assert "ConfigMap muster-service" in there()
    options = ["--kubeconfig", str(empty_cluster.kubeconfig), "--namespace", NAMESPACE, "--wait"]
    helm("uninstall", "muster", *options, home=tmp_path)
    assert there() == {f"CustomResourceDefinition {CRD}"}
