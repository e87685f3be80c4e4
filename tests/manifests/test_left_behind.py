"""What end-to-end tests look for after Muster was uninstalled: every kind that its manifests can make."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import left_behind
from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from tests.manifests.everything import EVERY_OPTION, everything
from tests.manifests.helm import CHART
from tests.manifests.rendering import Manifest

pytestmark = pytest.mark.go  # helm and kustomize are built or run with it


def resource(item: Manifest) -> str:
    """Return the name of an object's kind as kubectl prints it."""
    group = item["apiVersion"].rpartition("/")[0]
    return f"{item['kind'].lower()}{'.' * bool(group)}{group}"


def plural(kind: str) -> str:
    lower = kind.lower()
    return f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}{'es' * lower.endswith('s') or 's'}"


class Cluster:
    """A stand-in for kubectl and a cluster that serves the kinds of these objects, and no others."""

    def __init__(self, objects: list[Manifest]) -> None:
        self.objects = objects

    def __call__(self, verb: str, *arguments: str) -> str:
        if verb == "api-resources":
            served = {(plural(item["kind"]), item["apiVersion"], item["kind"]) for item in self.objects}
            return "".join(f"{name}   short {version}   true   {kind}\n" for name, version, kind in served)
        resources = arguments[0].split(",")
        labelled = f"--selector={left_behind.LABEL}" in arguments
        return "".join(
            f"{resource(item)}/{item['metadata']['name']}\n"
            for item in self.objects
            if plural(item["kind"]) in {name.partition(".")[0] for name in resources}
            and (not labelled or "app.kubernetes.io/part-of" in item["metadata"].get("labels", {}))
        )


def test_every_object_that_the_manifests_can_make_is_found(tmp_path: Path) -> None:
    objects = everything(tmp_path)
    names = {f"{resource(item)}/{item['metadata']['name']}" for item in objects}
    assert {name.partition("/")[0].partition(".")[0] for name in names} >= {
        "poddisruptionbudget",
        "daemonset",
        "servicemonitor",
        "prometheusrule",
        "flowschema",
        "priorityclass",
        "validatingadmissionpolicybinding",
    }
    assert left_behind.left(Cluster(objects)) == sorted(names)


def test_what_comes_at_run_time_is_found() -> None:
    objects = [
        {"apiVersion": f"{group}/v1".lstrip("/"), "kind": kind, "metadata": {"name": name}}
        for group, kind in left_behind.AT_RUN_TIME
        for name in ("muster", "other")
    ]
    assert left_behind.left(Cluster(objects)) == [
        "devicetaintrule.resource.k8s.io/muster",
        "lease.coordination.k8s.io/muster",
        "pod/muster",
    ]


def switches(values: dict[str, Any], path: str = "") -> set[str]:
    """Return the paths of values that are off by default."""
    names = set()
    for key, value in values.items():
        inside = f"{path}{key}"
        if isinstance(value, dict):
            names |= switches(value, f"{inside}.")
        elif value is False:
            names.add(inside)
    return names


def test_every_switch_of_the_chart_is_on_there() -> None:
    assert switches(yaml.safe_load((CHART / "values.yaml").read_text())) <= {*EVERY_OPTION}


@pytest.mark.cluster
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl on PATH")
def test_a_real_kubectl_finds_what_was_installed(cluster: LocalCluster, installed: list[Manifest]) -> None:
    def kubectl(*arguments: str) -> str:
        argv = ["kubectl", f"--kubeconfig={cluster.kubeconfig}", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=HANG_S).stdout

    names = {f"{resource(item)}/{item['metadata']['name']}" for item in installed}
    assert names <= {*left_behind.left(kubectl)}
