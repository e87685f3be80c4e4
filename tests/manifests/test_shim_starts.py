"""The real shim reads scheduler.yaml strictly, and runs under the Deployment's own rights.

There is no service here: the shim leads, fills its caches and waits for the socket. That is where a
missing right shows itself, since every informer of every in-tree plugin starts.
"""

from __future__ import annotations

import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.build import binary
from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from local_cluster.ports import free_port
from local_cluster.processes import Process
from tests.manifests.rendering import REPOSITORY, Manifest, one

pytestmark = pytest.mark.cluster


def configuration(rendered: list[Manifest], kubeconfig: Path) -> Manifest:
    """scheduler.yaml as in the ConfigMap; in a pod the credentials are found without being named."""
    data = one(rendered, "ConfigMap", "muster-scheduler")["data"]["scheduler.yaml"]
    document: Manifest = yaml.safe_load(data)
    document["clientConnection"]["kubeconfig"] = str(kubeconfig)
    return document


def flags(rendered: list[Manifest]) -> list[str]:
    """The Deployment's own, without the file's place."""
    containers = one(rendered, "Deployment", "muster")["spec"]["template"]["spec"]["containers"]
    shim = next(container for container in containers if container["name"] == "shim")
    return [flag for flag in shim["args"] if not flag.startswith("--config=")]


def write_config(
    document: Manifest, tmp_path: Path, more: list[str]
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """`shim --write-config-to`: decode, default, validate, make the plugins, write, and exit."""
    source, written = tmp_path / "given.yaml", tmp_path / "written.yaml"
    source.write_text(yaml.safe_dump(document))
    answer = subprocess.run(
        [binary("shim"), f"--config={source}", f"--write-config-to={written}", *more],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return answer, written


def test_the_plugin_is_added_and_nothing_is_lost(
    rendered: list[Manifest], shim_kubeconfig: Path, tmp_path: Path
) -> None:
    """What is named at a point itself comes before what multiPoint brings there (framework.go)."""
    answer, written = write_config(configuration(rendered, shim_kubeconfig), tmp_path, flags(rendered))
    assert answer.returncode == 0, answer.stderr
    plugins = yaml.safe_load(written.read_text())["profiles"][0]["plugins"]
    plugins_at = {point: [p["name"] for p in of.get("enabled", [])] for point, of in plugins.items()}
    for point in ("queueSort", "preFilter", "filter", "bind"):
        assert plugins_at[point] == ["Muster"]
    assert plugins_at["postFilter"] == ["Muster", "PlannedResources"]
    expected = {"DefaultBinder", "DefaultPreemption", "NodeResourcesFit", "PlannedResources", "Muster"}
    assert expected <= set(plugins_at["multiPoint"])
    assert "DynamicResources" not in plugins_at["multiPoint"]
    off = {point: [p["name"] for p in of["disabled"]] for point, of in plugins.items() if of.get("disabled")}
    assert off.pop("multiPoint", ["DynamicResources"]) == ["DynamicResources"]
    assert off == {"queueSort": ["PrioritySort"]}  # there can be one
    weights = {p["name"]: p["weight"] for p in plugins["multiPoint"]["enabled"]}
    assert weights.pop("Muster") > 100 * sum(weights.values())


@pytest.mark.parametrize(
    ("place", "key"),
    [((), "delayCacheUntilActiv"), (("leaderElection",), "leaseDuratoin"), (("args",), "bindTimeuot")],
    ids=["top level", "leader election", "the plugin's args"],
)
def test_a_misspelt_key_is_an_error(
    rendered: list[Manifest], shim_kubeconfig: Path, tmp_path: Path, place: tuple[str, ...], key: str
) -> None:
    document = configuration(rendered, shim_kubeconfig)
    places = {
        (): document,
        ("leaderElection",): document["leaderElection"],
        ("args",): document["profiles"][0]["pluginConfig"][0]["args"],
    }
    places[place][key] = "1s"
    answer, _ = write_config(document, tmp_path, flags(rendered))
    assert answer.returncode != 0
    assert key in answer.stderr


@pytest.fixture
def shim(
    rendered: list[Manifest], shim_kubeconfig: Path, tmp_path: Path, cluster: LocalCluster
) -> Iterator[tuple[Process, int]]:
    document = configuration(rendered, shim_kubeconfig)
    arguments = document["profiles"][0]["pluginConfig"][0]["args"]
    arguments["serviceAddress"] = f"unix://{tmp_path}/nobody-listens.sock"
    path, port = tmp_path / "scheduler.yaml", free_port()
    path.write_text(yaml.safe_dump(document))
    argv: list[str | Path] = [
        binary("shim"),
        f"--config={path}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--authentication-kubeconfig={shim_kubeconfig}",  # in a pod these two are the pod's own
        f"--authorization-kubeconfig={shim_kubeconfig}",
        *flags(rendered),
    ]
    with Process("shim", argv, log=tmp_path / "shim.log") as process:
        yield process, port


def test_the_shim_leads_and_fills_its_caches(
    shim: tuple[Process, int], client: Any, cluster: LocalCluster
) -> None:
    process, port = shim

    def ready() -> bool:
        """The caches are full; a cache that may not be filled is told at once, by what the log says."""
        refused = [line for line in process.log.read_text().splitlines() if "forbidden" in line.lower()]
        assert not refused, "\n".join(refused)
        return status(port, "/readyz") == 200

    process.wait_ready(ready)
    assert status(port, "/healthz") == 200  # what the probes ask
    leases = client.resources.get(api_version="coordination.k8s.io/v1", kind="Lease")
    assert leases.get(name="muster", namespace="muster-system").spec.holderIdentity
    # /metrics asks the API server who we are and whether we may: the account itself may not
    token = cluster.token_for("muster-system/muster")
    assert status(port, "/metrics", token) == 403
    assert ready()  # and nothing was refused since


def status(port: int, path: str, token: str = "") -> int:
    """The HTTP status; the certificate is self-signed, made at start."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=headers)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, context=trusting, timeout=HANG_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        return problem.code


def test_the_profile_is_the_one_that_the_shim_is_tested_with(rendered: list[Manifest]) -> None:
    ours = yaml.safe_load(one(rendered, "ConfigMap", "muster-scheduler")["data"]["scheduler.yaml"])
    theirs = yaml.safe_load((REPOSITORY / "shim" / "testdata" / "scheduler-config.yaml").read_text())
    assert ours["profiles"][0]["plugins"] == theirs["profiles"][0]["plugins"]
    assert ours["delayCacheUntilActive"] == theirs["delayCacheUntilActive"]


def test_the_lease_keeps_its_name(rendered: list[Manifest]) -> None:
    """Role and configuration name the same lease. Otherwise no replica could lead."""
    data = yaml.safe_load(one(rendered, "ConfigMap", "muster-scheduler")["data"]["scheduler.yaml"])
    role = one(rendered, "Role", "muster-election")
    resource_names = [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule]
    assert resource_names == [[data["leaderElection"]["resourceName"]]]
    assert role["metadata"]["namespace"] == data["leaderElection"]["resourceNamespace"]
