"""The CRD of PodGroups: what it refuses, that neither of its versions prunes the other, and how it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.api import ApiError
from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.writers import StatusWriter
from muster.adapters.telemetry.metrics import Metrics
from muster.dialects.reading import A_SCOPE
from muster.domain.podgroup import PodGroupStatus
from muster.gangs.messages.instructions import WriteStatus
from muster.gangs.record.phases import Phase
from muster.gangs.reporting.podgroup_status import phase_in_api
from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.rendering import SCHEDULER_CONFIG, Manifest, render

CRD = SCHEDULER_CONFIG / "podgroups" / "crd-podgroup.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
V2, KAIS = (
    f"/apis/scheduling.run.ai/{version}/namespaces/default/podgroups" for version in ("v2", "v2alpha2")
)


@pytest.mark.go
def test_an_overlay_adds_it_as_a_component(tmp_path: Path) -> None:
    """And scheduler-config alone leaves out what may be KAI's."""
    up = "/".join([".."] * (len(tmp_path.parts) - 1))
    base = f"{up}{SCHEDULER_CONFIG}"
    overlay = {"resources": [base], "components": [f"{base}/podgroups"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    crds = [
        item["metadata"]["name"] for item in render(tmp_path) if item["kind"] == "CustomResourceDefinition"
    ]
    assert crds == ["podgroups.scheduling.run.ai"]
    assert not [item for item in render(SCHEDULER_CONFIG) if item["kind"] == "CustomResourceDefinition"]


def test_it_names_every_phase() -> None:
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    description = schema["properties"]["status"]["properties"]["phase"]["description"]
    phases = description.removesuffix(".").replace(" or ", ", ").split(", ")
    assert set(phases) == set(map(phase_in_api, Phase))


@pytest.fixture(scope="module")
def served(cluster: LocalCluster) -> Iterator[LocalCluster]:
    cluster.api.post(CRDS, yaml.safe_load(CRD.read_text()))
    eventually(lambda: cluster.api.send("GET", V2).ok, "the CRD is served")
    yield cluster
    cluster.api.delete(f"{CRDS}/podgroups.scheduling.run.ai")


def group(name: str, spec: Any, version: str = "v2") -> Manifest:
    return {
        "apiVersion": f"scheduling.run.ai/{version}",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": spec,
    }


def terms(**term: Any) -> Manifest:
    return {"minMember": 2, "topologyPolicy": {"affinity": {"required": [{"key": "a/b", **term}]}}}


GOOD: dict[str, Any] = {
    "training": {"minMember": 4, "queue": "training", "topologyPolicy": {"scope": "nvlink-domain"}},
    "multi-node": {
        "minMember": 2,
        "queue": "training",
        "topologyPolicy": {
            "scope": "rack",
            "affinity": {
                "required": [{"key": "nvidia.com/nvswitch.present", "operator": "In", "values": ["true"]}]
            },
        },
    },
    "serving": {"minMember": 3, "queue": "inference", "topologyPolicy": {"scope": "node"}},
    "a-label": {"minMember": 1, "topologyPolicy": {"scope": "example.com/row"}},
    "exists": terms(operator="Exists"),
    "greater": terms(operator="Gt", values=["-3"]),
    "kais": {"subGroups": [{"name": "a", "minMember": 1}]},
}
"""The first three are the recipe's, as it gives them."""


@pytest.mark.cluster
@pytest.mark.parametrize("name", GOOD)
def test_what_is_taken(served: LocalCluster, name: str) -> None:
    created = served.api.post(f"{V2}?fieldValidation=Strict", group(name, GOOD[name]))
    assert created["spec"] == GOOD[name]


BAD: dict[str, tuple[Any, str]] = {
    "no count": ({"queue": "q"}, "minMember says how many"),
    "no member": ({"minMember": 0}, "greater than or equal to 1"),
    "a count in words": ({"minMember": "four"}, "must be of type integer"),
    "a scope that is no label": (
        {"minMember": 1, "topologyPolicy": {"scope": "my rack"}},
        A_SCOPE,
    ),
    "a slip of the pen": ({"minMember": 1, "topologyPolicy": {"scop": "rack"}}, "unknown field"),
    "an operator that is none": (terms(operator="is", values=["x"]), "Unsupported value"),
    "In without values": (terms(operator="In"), "In and NotIn want one value or more"),
    "Exists with values": (terms(operator="Exists", values=["x"]), "Exists and DoesNotExist want no values"),
    "Lt of a word": (terms(operator="Lt", values=["x"]), "Gt and Lt want one whole number"),
    "a boolean for text": (terms(operator="In", values=[True]), "must be of type string"),
}


@pytest.mark.cluster
@pytest.mark.parametrize(("spec", "says"), BAD.values(), ids=BAD.keys())
def test_what_is_refused(served: LocalCluster, spec: Any, says: str) -> None:
    with pytest.raises(ApiError, match=says):
        served.api.post(f"{V2}?fieldValidation=Strict&dryRun=All", group("bad", spec))


@pytest.mark.cluster
def test_neither_version_prunes_the_other(served: LocalCluster) -> None:
    kais = {
        "minMember": 2,
        "priorityClassName": "train",
        "subGroups": [{"name": "leaf", "topologyConstraint": {"topology": "dc"}}],
        "topologyConstraint": {"requiredTopologyLevel": "example.com/row"},
    }
    served.api.post(KAIS, group("of-kai", kais, "v2alpha2"))
    assert served.api.get(f"{V2}/of-kai")["spec"] == kais
    ours = {
        "minMember": 2,
        "topologyPolicy": {"scope": "rack"},
        "subGroups": [{"name": "leaf", "minMember": 2}],
    }
    served.api.post(V2, group("of-ours", ours))
    assert served.api.get(f"{KAIS}/of-ours")["spec"] == ours
    changed = served.api.patch(f"{KAIS}/of-ours", {"spec": {"queue": "q"}})
    assert changed["spec"] == {**ours, "queue": "q"}


@pytest.mark.cluster
async def test_the_status_is_written_and_printed(served: LocalCluster) -> None:
    created = served.api.post(V2, group("shown", {"minMember": 2}))
    status = PodGroupStatus("Permitted", needed=2, present=2, placed=2, running=1, domain="rack r1")
    metrics = Metrics()
    async with KubeClient(str(served.kubeconfig)) as client:
        writer = StatusWriter(client, metrics)
        task = asyncio.create_task(writer.run())
        try:
            writer.write(WriteStatus("default", "gone", "none", status))
            writer.write(WriteStatus("default", "shown", created["metadata"]["uid"], status))
            async with asyncio.timeout(HANG_S):
                for result in ("failed", "written"):
                    while not metrics.value("muster_podgroup_statuses_total", result=result):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    table = served.api.table(f"{V2}/shown")
    columns = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert columns == ["Name", "Phase", "Min", "Present", "Placed", "Running", "Domain", "Age"]
    (row,) = table["rows"]
    assert row["cells"][:7] == ["shown", "Permitted", 2, 2, 2, 1, "rack r1"]
    conditions = served.api.get(f"{V2}/shown")["status"]["conditions"]
    assert {condition["type"]: condition["status"] for condition in conditions} == {
        "Complete": "True",
        "Placed": "True",
    }
