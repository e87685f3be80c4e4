"""`muster place` and `muster capture` know what pods ask for about other pods, as the service does."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.adapters.files.decide import decide
from muster.adapters.files.reading import cluster, sources
from muster.adapters.files.reading.capture import capture, pod_item, text_of
from muster.adapters.kube.client import KubeClient
from muster.dialects.objects import PodObject
from muster.dialects.settings import DEFAULTS
from muster.domain.causes.too_little import MemberTooLarge
from muster.domain.constraints import NODE, Affinity, AntiAffinity, PeerConstraint, TopologySpread
from muster.domain.decision import Decision, Unplaceable
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.limits import Timings
from tests.adapters.fake_api import FakeApi, kubeconfig
from tests.files.manifests import Object, node, pod

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NAMES = [f"n{i}" for i in range(4)]


def labelled(manifest: Object, **labels: str) -> Object:
    manifest["metadata"].setdefault("labels", {}).update(labels)
    return manifest


def term(key: str = HOST, **more: Any) -> Object:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"tier": "db"}}, **more}


def anti(*terms: Object) -> Object:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def asked(folder: Path, *objects: Object) -> dict[str, tuple[PeerConstraint, ...]]:
    """The constraints that the planner is told, by gang."""
    file = folder / "cluster.json"
    file.write_text("\n".join(json.dumps(item) for item in objects))
    read_cluster = cluster.cluster_of(sources.read([str(file)], io.BytesIO()), DEFAULTS)
    constraints: dict[str, tuple[PeerConstraint, ...]] = {}

    def refuse(_: Snapshot, request: Request, __: Timings) -> Decision:
        constraints[request.gang.name] = request.constraints
        return Unplaceable(request.gang, (MemberTooLarge("", "gpus", 1, "n0", 0),))

    decide(read_cluster, refuse, lambda: 0.0)
    return constraints


def test_a_pending_pod_keeps_away_from_one_that_runs(tmp_path: Path) -> None:
    objects = [
        *(node(name, 8, "r0") for name in NAMES),
        labelled(pod("db", nodeName="n1"), tier="db"),
        pod("p", gpus=1, affinity=anti(term())),
    ]
    (constraint,) = asked(tmp_path, *objects)["p"]
    assert constraint == AntiAffinity(
        f"podAntiAffinity tier=db by {HOST}", HOST, frozenset({""}), existing=frozenset({"n1"})
    )


def test_label_keys_are_merged_as_the_api_server_does(tmp_path: Path) -> None:
    rev: dict[str, Any] = {"matchLabelKeys": ["rev"]}
    old = labelled(pod("old", nodeName="n0"), tier="db", rev="1")
    new = labelled(pod("new", nodeName="n1"), tier="db", rev="2")
    pending = labelled(pod("p", gpus=1, affinity=anti(term(**rev))), tier="db", rev="2")
    (constraint,) = asked(tmp_path, *(node(name, 8, "r0") for name in NAMES), old, new, pending)["p"]
    assert isinstance(constraint, AntiAffinity)
    assert constraint.other_roles == {""}
    assert constraint.existing == {"n1"}


def test_namespaces_have_their_labels_and_their_names(tmp_path: Path) -> None:
    nodes = [node(name, 8, "r0") for name in NAMES]
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "m", "labels": {"team": "t"}}}
    databases = [
        labelled(pod(f"db-{name}", nodeName=on), tier="db") for name, on in (("m", "n0"), ("k", "n1"))
    ]
    for manifest in databases:
        manifest["metadata"]["namespace"] = manifest["metadata"]["name"].removeprefix("db-")
    by_team = pod("p", gpus=1, affinity=anti(term(namespaceSelector={"matchLabels": {"team": "t"}})))
    name = {"matchLabels": {"kubernetes.io/metadata.name": "k"}}
    by_name = pod("q", gpus=1, affinity=anti(term(namespaceSelector=name)))
    constraints = asked(tmp_path, *nodes, team, *databases, by_team, by_name)
    assert [set(constraint.existing) for constraint in constraints["p"]] == [{"n0"}]
    assert [set(constraint.existing) for constraint in constraints["q"]] == [{"n1"}]


def test_host_ports_spread_and_affinity_of_a_template(tmp_path: Path) -> None:
    spec = {
        "schedulerName": "muster",
        "hostNetwork": True,
        "containers": [
            {
                "name": "main",
                "ports": [{"containerPort": 9000}],
                "resources": {"limits": {"nvidia.com/gpu": 1}},
            }
        ],
        "affinity": {"podAffinity": {REQUIRED: [term(ZONE)]}},
        "topologySpreadConstraints": [
            {**term(), "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"},
            {**term(ZONE), "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"},
        ],
        "restartPolicy": "Never",
    }
    labels = {"tier": "db", "gpu-topology": "train", "gpu-topology-replica": "2"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"parallelism": 2, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    constraints = asked(tmp_path, *(node(name, 8, "r0") for name in NAMES), job)["train"]
    one_role = frozenset({""})
    assert constraints == (
        Affinity(f"podAffinity tier=db by {ZONE}", ZONE, one_role, one_role),
        TopologySpread(
            f"topologySpreadConstraints tier=db by {HOST}, maxSkew 2",
            HOST,
            2,
            one_role,
            one_role,
            {},
            1,
            frozenset({HOST}),
        ),
        AntiAffinity("hostPort 9000/TCP", NODE, one_role, one_role),
    )


def test_labels_by_which_pods_select_are_captured() -> None:
    pod_object = msgspec.convert(
        labelled(pod("p", affinity=anti(term())), tier="db", app="x", other="s"), PodObject
    )
    assert pod_item(pod_object)["metadata"]["labels"] == {"app": "x"}
    item = pod_item(pod_object, keys=frozenset({"tier"}))
    assert item["metadata"]["labels"] == {"app": "x", "tier": "db"}
    assert msgspec.convert(item, PodObject).spec == pod_object.spec


@pytest.mark.parametrize("selects", [True, False])
async def test_a_captured_cluster_asks_for_the_same(tmp_path: Path, selects: bool) -> None:
    api = FakeApi()
    api.nodes = [node(name, 8, "r0") for name in NAMES]
    labels = {"team": "t", "secret": "s3cret"}
    api.served["/api/v1/namespaces"] = [
        {"metadata": {"name": name, "labels": {**labels, "kubernetes.io/metadata.name": name}}}
        for name in ("default", "m")
    ]
    by_team: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"team": "t"}}} if selects else {}
    running = labelled(pod("db", nodeName="n1"), tier="db", other="s3cret")
    for manifest in (running, pod("p", gpus=1, affinity=anti(term(**by_team)))):
        name = manifest["metadata"]["name"]
        manifest["metadata"] |= {
            "namespace": "default",
            "uid": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        api.pods[name] = manifest
    async with api.running() as port, KubeClient(kubeconfig(tmp_path, port)) as client:
        captured = await capture(client)
    text = text_of(captured.items, as_yaml=False)
    assert "s3cret" not in text
    assert ('"Namespace"' in text) is selects
    (constraint,) = asked(tmp_path, json.loads(text))["p"]
    assert set(constraint.existing) == {"n1"}
