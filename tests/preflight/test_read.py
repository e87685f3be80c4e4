"""What `muster preflight` reads of GPUs that DRA drivers serve: as the service does."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest
import yaml

from muster.adapters.kube.client import ApiError, KubeClient
from muster.adapters.preflight.checks import Level, judge
from muster.adapters.preflight.facts import NamespaceFacts
from muster.adapters.preflight.read import ADMISSION, DRA_GUARD, Reader
from muster.domain.node import HandsOut
from tests.dialects.test_dra import device_class, gpu, piece
from tests.files.manifests import REPOSITORY

DRA = "/apis/resource.k8s.io/v1"


class Server:
    """An API server with one node, whose GPUs a DRA driver publishes. Everything else is not there."""

    def __init__(self, *classes: Any, more: dict[str, Any] | None = None) -> None:
        slices = [msgspec.to_builtins(piece([gpu(0), gpu(1)]))]
        resources = [{"name": name} for name in ("deviceclasses", "resourceclaims", "resourceslices")]
        self.objects: dict[str, Any] = {
            "/version": {"gitVersion": "v1.37.1"},
            "/apis": {"groups": [{"versions": [{"groupVersion": "resource.k8s.io/v1"}]}]},
            "/api/v1": {"resources": []},
            DRA: {"resources": resources},
            "/api/v1/nodes": {"items": [{"metadata": {"name": "n"}, "spec": {}, "status": {}}]},
            f"{DRA}/resourceslices": {"items": slices},
            f"{DRA}/deviceclasses": {
                "items": [msgspec.to_builtins(device_class) for device_class in classes]
            },
        } | (more or {})

    async def get(self, subject: str, path: str, query: dict[str, str] | None = None) -> bytes:
        if path not in self.objects:
            raise ApiError(subject, 404, "not there")
        return json.dumps({"metadata": {"resourceVersion": "1"}} | self.objects[path]).encode()

    async def post(self, subject: str, path: str, body: Any) -> bytes:
        raise ApiError(subject, 403, "not allowed")


@pytest.mark.parametrize(("classes", "level"), [((device_class(),), Level.OK), ((), Level.ERROR)])
async def test_gpus_by_dra_count_if_a_class_has_them_as_an_extended_resource(
    classes: tuple[Any, ...], level: Level
) -> None:
    facts = await Reader(cast("KubeClient", Server(*classes))).facts()
    assert [dict(node.gpus) for node in facts.nodes] == [{"nvidia.com/gpu": 2} if classes else {}]
    (finding,) = (finding for finding in judge(facts) if finding.check == "gpus")
    assert finding.level is level
    assert ("2 nvidia.com/gpu" if classes else "gpu.nvidia.com") in finding.message


POLICY = f"{ADMISSION}/validatingadmissionpolicies/{DRA_GUARD}"
BOUND: dict[str, Any] = {f"{ADMISSION}/validatingadmissionpolicybindings/{DRA_GUARD}": {}}


def manifest(expression: str = "") -> dict[str, Any]:
    """The policy of scheduler-config/dra-guard, with another list of drivers if one is given."""
    text = (REPOSITORY / "scheduler-config" / "dra-guard" / "admission.yaml").read_text()
    policy: dict[str, Any] = next(iter(yaml.safe_load_all(text)))
    if expression:
        policy["spec"]["variables"][0]["expression"] = expression
    return policy


@pytest.mark.parametrize(
    ("more", "guarded"),
    [
        ({}, set()),
        ({POLICY: manifest()}, set()),
        (BOUND, set()),
        ({POLICY: manifest()} | BOUND, {"gpu.nvidia.com"}),
        ({POLICY: manifest("['a.com', \"b.com\"]")} | BOUND, {"a.com", "b.com"}),
        ({POLICY: {"spec": {}}} | BOUND, set()),
    ],
    ids=["none", "no binding", "no policy", "as shipped", "others", "another policy of this name"],
)
async def test_the_guard_of_dra_devices_names_its_drivers(more: dict[str, Any], guarded: set[str]) -> None:
    server = Server(device_class(), more=more)
    facts = await Reader(cast("KubeClient", server)).facts()
    (node,) = facts.nodes
    assert len(node.drivers) == 1
    assert facts.guarded_drivers == guarded


OFFERED = {"cpu": "8", "memory": "16Gi", "pods": "110"}
SECOND = {"gpu.topology/node-agent": "second-endpoint"}


def agent(ready: str) -> dict[str, Any]:
    meta = {"name": "agent", "namespace": "muster-nodes", "uid": "u"}
    return {
        "metadata": meta | {"labels": {"app.kubernetes.io/name": "muster-node-agent"}},
        "spec": {"nodeName": "n", "schedulerName": "default-scheduler"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("resource", "labels", "ready", "level", "word"),
    [
        ("nvidia.com/gpu", {}, "True", Level.NOTE, "chooses"),
        ("nvidia.com/gpu", SECOND, "True", Level.OK, "planned"),
        ("nvidia.com/gpu", SECOND, "False", Level.WARNING, "ready"),
        ("amd.com/gpu", SECOND, "True", Level.NOTE, "chooses"),
        ("aliyun.com/gpu", {"ack.node.gpu.schedule": "topology"}, "True", Level.NOTE, "swap"),
    ],
)
async def test_what_hands_out_gpus_is_read_of_nodes_and_agents(
    resource: str, labels: dict[str, str], ready: str, level: Level, word: str
) -> None:
    server = Server()
    status = {"allocatable": OFFERED | {resource: "8"}}
    node = {"metadata": {"name": "n", "labels": labels}, "spec": {}, "status": status}
    server.objects |= {"/api/v1/nodes": {"items": [node]}, "/api/v1/pods": {"items": [agent(ready)]}}
    server.objects[f"{ADMISSION}/validatingadmissionpolicies/muster-node-agent"] = {}
    del server.objects[f"{DRA}/resourceslices"]
    facts = await Reader(cast("KubeClient", server)).facts()
    assert not facts.gpu_pods, "an agent has no GPUs"
    (finding,) = (finding for finding in judge(facts) if finding.check == "devices")
    assert finding.level is level
    assert word in finding.message


async def test_agents_are_believed_with_their_component_alone() -> None:
    status = {"allocatable": OFFERED | {"nvidia.com/gpu": "8"}}
    node = {"metadata": {"name": "n", "labels": SECOND}, "spec": {}, "status": status}
    more = {"/api/v1/nodes": {"items": [node]}, "/api/v1/pods": {"items": [agent("True")]}}
    (facts_of_node,) = (await Reader(cast("KubeClient", Server(more=more))).facts()).nodes
    assert facts_of_node.not_exact is HandsOut.AGENT_AWAY


async def test_who_has_rights_in_musters_namespaces_is_read() -> None:
    bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/muster-system/rolebindings"
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    more = {
        "/api/v1/namespaces": {"items": [{"metadata": {"name": "gpu-operator"}}]},
        "/api/v1/namespaces/muster-system": restricted,
        "/api/v1/namespaces/muster-nodes": {"metadata": {}},
        bindings: {"items": [{"metadata": {"name": name}} for name in ("muster-election", "mallory")]},
    }
    facts = await Reader(cast("KubeClient", Server(more=more))).facts()
    assert facts.namespaces == {
        "muster-system": NamespaceFacts(True, ("mallory",)),
        "muster-nodes": NamespaceFacts(False, ()),
    }
    assert (facts.exempt, facts.labels_guarded) == (("gpu-operator",), False)
