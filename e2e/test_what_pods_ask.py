"""Each thing that Kubernetes lets a pod ask for, a row each: docs/what-a-pod-may-ask.md lists the same rows.

Four nodes: a and b in zone z0, c and d in zone z1; a and c have fast disks. Each row says what the pods ask
for, what is there before, and which nodes are right in the end. "" stands for a pod that must not start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from e2e import objects
from e2e.record import PODS
from e2e.scene import Scene
from local_cluster.api import Object

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
NODES = {"a": ("z0", "ssd"), "b": ("z0", "hdd"), "c": ("z1", "ssd"), "d": ("z1", "hdd")}
CARD = "example.com/card"
Ask = Callable[[Object, Scene], None]
"""Adds to a pod what it asks for."""


@dataclass(frozen=True, slots=True)
class Row:
    """`asks` are applied to each of `members` pods of one gang. `before`: pods that run, (name, node, asks).

    `right` judges the nodes of the members, in order. `refused`: the pods must wait, and say these words.
    """

    asks: Sequence[Ask]
    right: Callable[[list[str]], bool] = all
    members: int = 1
    before: Sequence[tuple[str, str, Sequence[Ask]]] = ()
    prepare: Callable[[Scene], None] = lambda scene: None
    refused: tuple[str, ...] = ()
    gpus: int = 1
    words: dict[str, str] = field(default_factory=dict)


# --- what pods ask for -------------------------------------------------------------------------------


def affinity(kind: str, rule: str, term: Object) -> Ask:
    def ask(pod: Object, _: Scene) -> None:
        pod["spec"].setdefault("affinity", {}).setdefault(kind, {}).setdefault(rule, []).append(term)

    return ask


def node_affinity(key: str, operator: str, *values: str) -> Ask:
    requirement = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}

    def ask(pod: Object, _: Scene) -> None:
        terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
        pod["spec"].setdefault("affinity", {})["nodeAffinity"] = {REQUIRED: terms}

    return ask


def node_field(suffix: str) -> Ask:
    def ask(pod: Object, scene: Scene) -> None:
        requirement = {"key": "metadata.name", "operator": "In", "values": [f"{scene.name}-{suffix}"]}
        terms = {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
        pod["spec"].setdefault("affinity", {})["nodeAffinity"] = {REQUIRED: terms}

    return ask


def selector(**labels: str) -> Ask:
    def ask(pod: Object, _: Scene) -> None:
        pod["spec"]["nodeSelector"] = (pod["spec"].get("nodeSelector") or {}) | labels

    return ask


def tolerates(key: str) -> Ask:
    def ask(pod: Object, _: Scene) -> None:
        pod["spec"]["tolerations"] = [{"key": key, "operator": "Exists"}]

    return ask


def labelled(app: str) -> Ask:
    def ask(pod: Object, _: Scene) -> None:
        pod["metadata"]["labels"]["app"] = app

    return ask


def of(app: str, key: str, **more: object) -> Object:
    """Return a pod affinity term."""
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}


def apart(app: str, key: str) -> Ask:
    return affinity("podAntiAffinity", REQUIRED, of(app, key))


def near(app: str, key: str, **more: object) -> Ask:
    return affinity("podAffinity", REQUIRED, of(app, key, **more))


def spread(app: str, key: str, skew: int, **more: object) -> Ask:
    constraint = {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
        **more,
    }

    def ask(pod: Object, _: Scene) -> None:
        pod["spec"]["topologySpreadConstraints"] = [constraint]

    return ask


def host_port(port: int) -> Ask:
    def ask(pod: Object, _: Scene) -> None:
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": port}]

    return ask


def requests(**amounts: str) -> Ask:
    def ask(pod: Object, _: Scene) -> None:
        resources = pod["spec"]["containers"][0]["resources"]
        amounts_by_name = {name.replace("_", "-"): amount for name, amount in amounts.items()}
        resources["requests"] |= amounts_by_name

    return ask


def card(count: int) -> Ask:
    def ask(pod: Object, _: Scene) -> None:
        resources = pod["spec"]["containers"][0]["resources"]
        resources["requests"][CARD] = resources["limits"][CARD] = str(count)

    return ask


def mounts(claim: str) -> Ask:
    def ask(pod: Object, _: Scene) -> None:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
        pod["spec"].setdefault("volumes", []).append(volume)

    return ask


def host_path(pod: Object, _: Scene) -> None:
    pod["spec"]["volumes"] = [{"name": "tmp", "hostPath": {"path": "/tmp"}}]


# --- what is there before ----------------------------------------------------------------------------


def offers_cards(**counts: int) -> Callable[[Scene], None]:
    """Have nodes offer an extended resource."""

    def prepare(scene: Scene) -> None:
        for suffix, count in counts.items():
            amounts = {CARD: str(count)}
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            scene.client.patch(f"/api/v1/nodes/{scene.name}-{suffix}/status", status)

    return prepare


def tainted(suffix: str) -> Callable[[Scene], None]:
    def prepare(scene: Scene) -> None:
        taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
        scene.client.patch(f"/api/v1/nodes/{scene.name}-{suffix}", {"spec": {"taints": [taint]}})

    return prepare


def cordoned(*suffixes: str) -> Callable[[Scene], None]:
    def prepare(scene: Scene) -> None:
        for suffix in suffixes:
            scene.client.patch(f"/api/v1/nodes/{scene.name}-{suffix}", {"spec": {"unschedulable": True}})

    return prepare


def volume(
    *,
    node: str = "",
    zone: str = "",
    mode: str = "ReadWriteOnce",
    waits: bool = False,
) -> Callable[[Scene], None]:
    """Create a volume that one node or zone can reach, and the claim `data` for it.

    `waits`: the claim is bound when a pod that mounts it is placed (WaitForFirstConsumer).
    """

    def prepare(scene: Scene) -> None:
        storage_class = scene.name if waits else ""
        if waits:
            scene.client.post(
                "/apis/storage.k8s.io/v1/storageclasses",
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "metadata": {"name": storage_class},
                    "provisioner": "kubernetes.io/no-provisioner",
                    "volumeBindingMode": "WaitForFirstConsumer",
                },
            )
        key, value = (HOST, f"{scene.name}-{node}") if node else (ZONE, zone)
        term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        shared = {"accessModes": [mode], "storageClassName": storage_class}
        scene.client.post(
            "/api/v1/persistentvolumes",
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": scene.name},
                "spec": {
                    **shared,
                    "capacity": {"storage": "1Gi"},
                    "local": {"path": "/mnt"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                },
            },
        )
        claim: Object = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": {**shared, "resources": {"requests": {"storage": "1Gi"}}},
        }
        if not waits:
            claim["spec"]["volumeName"] = scene.name
        scene.client.post(f"/api/v1/namespaces/{scene.name}/persistentvolumeclaims", claim)

    return prepare


def on(*suffixes: str) -> Callable[[list[str]], bool]:
    """Return a judge: all members are on these nodes."""
    return lambda nodes: {*nodes} <= {*suffixes}


def distinct(nodes: list[str]) -> bool:
    return all(nodes) and len({*nodes}) == len(nodes)


def zones(nodes: list[str]) -> list[str]:
    return [NODES[node][0] for node in nodes if node]


def balanced(nodes: list[str]) -> bool:
    counts = [zones(nodes).count(zone) for zone in ("z0", "z1")]
    return all(nodes) and max(counts) - min(counts) <= 1


WEB = labelled("web")
ROWS: dict[str, Row] = {
    "NodeAffinity: nodeSelector": Row([selector(disk="ssd")], on("a", "c")),
    "NodeAffinity: required, In": Row([node_affinity("disk", "In", "hdd")], on("b", "d")),
    "NodeAffinity: required, matchFields": Row([node_field("c")], on("c")),
    "NodeName: a node that nobody has": Row([node_affinity(HOST, "In", "none")], refused=(HOST,)),
    "NodeUnschedulable: cordoned nodes": Row([], on("d"), prepare=cordoned("a", "b", "c")),
    "TaintToleration: not tolerated": Row([selector(disk="ssd")], on("c"), prepare=tainted("a")),
    "TaintToleration: tolerated": Row(
        [tolerates("dedicated"), node_field("a")], on("a"), prepare=tainted("a")
    ),
    "NodeResourcesFit: cpu": Row([requests(cpu="65")], refused=("cpu",)),
    "NodeResourcesFit: an extended resource": Row([card(2)], on("c"), prepare=offers_cards(a=1, c=2)),
    "NodeResourcesFit: extended, of a gang": Row(
        [card(1)], lambda nodes: sorted(nodes) == ["a", "c", "c"], members=3, prepare=offers_cards(a=1, c=2)
    ),
    "NodeResourcesFit: ephemeral-storage": Row(
        [requests(ephemeral_storage="1Gi")], refused=("ephemeral-storage",)
    ),
    "NodePorts: members among themselves": Row([host_port(8080)], distinct, members=4),
    "NodePorts: one too many": Row([host_port(8080)], members=5, refused=("8080",)),
    "NodePorts: beside a running pod": Row(
        [host_port(8080), selector(disk="ssd")], on("c"), before=[("other", "a", [host_port(8080)])]
    ),
    "InterPodAffinity: anti-affinity by host, members": Row([WEB, apart("web", HOST)], distinct, members=4),
    "InterPodAffinity: anti-affinity by host, one too many": Row(
        [WEB, apart("web", HOST)], members=5, refused=("podAntiAffinity",)
    ),
    "InterPodAffinity: anti-affinity by zone, members": Row(
        [WEB, apart("web", ZONE)], lambda nodes: sorted(zones(nodes)) == ["z0", "z1"], members=2
    ),
    "InterPodAffinity: anti-affinity, a running pod": Row(
        [apart("db", ZONE)], on("c", "d"), before=[("other", "b", [labelled("db")])]
    ),
    "InterPodAffinity: anti-affinity of a running pod": Row(
        [WEB], on("c", "d"), before=[("other", "b", [labelled("db"), apart("web", ZONE)])]
    ),
    "InterPodAffinity: affinity, a running pod": Row(
        [near("db", ZONE)], on("c", "d"), before=[("other", "d", [labelled("db")])], members=2
    ),
    "InterPodAffinity: affinity by host, a running pod": Row(
        [near("db", HOST)], on("d"), before=[("other", "d", [labelled("db")])], members=2
    ),
    "InterPodAffinity: affinity, namespaceSelector": Row(
        [near("db", HOST, namespaceSelector={})], on("d"), before=[("other", "d", [labelled("db")])]
    ),
    "InterPodAffinity: affinity among members": Row(
        [WEB, near("web", ZONE)], lambda nodes: all(nodes) and len({*zones(nodes)}) == 1, members=2, gpus=8
    ),
    "InterPodAffinity: affinity to nobody": Row([near("db", ZONE)], refused=("podAffinity",)),
    "PodTopologySpread: by zone, members": Row([WEB, spread("web", ZONE, 1)], balanced, members=5),
    "PodTopologySpread: by zone, beside running pods": Row(
        [WEB, spread("web", ZONE, 1)],
        on("c", "d"),
        before=[("x", "a", [WEB]), ("y", "b", [WEB])],
    ),
    "PodTopologySpread: minDomains": Row(
        [WEB, spread("web", ZONE, 1, minDomains=3)], members=3, refused=("topologySpreadConstraints",)
    ),
    "VolumeBinding: a bound claim, local to a node": Row([mounts("data")], on("d"), prepare=volume(node="d")),
    "VolumeBinding: a bound claim, local to a zone, a gang": Row(
        [mounts("data")], on("c", "d"), prepare=volume(zone="z1", mode="ReadWriteMany"), members=3, gpus=4
    ),
    "VolumeBinding: WaitForFirstConsumer": Row(
        [mounts("data")], on("b"), prepare=volume(node="b", waits=True)
    ),
    "VolumeBinding: a claim that is not there": Row([mounts("gone")], refused=("gone",)),
    "VolumeRestrictions: ReadWriteOncePod in use": Row(
        [mounts("data")],
        prepare=volume(zone="z0", mode="ReadWriteOncePod"),
        before=[("other", "a", [mounts("data")])],
        refused=("ReadWriteOncePod",),
    ),
    "hostPath": Row([host_path]),
    "preferred node affinity": Row(
        [
            affinity(
                "nodeAffinity",
                PREFERRED,
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [{"key": "disk", "operator": "In", "values": ["hdd"]}]
                    },
                },
            )
        ],
        on("b", "d"),
    ),
    "preferred pod affinity": Row(
        [affinity("podAffinity", PREFERRED, {"weight": 100, "podAffinityTerm": of("db", HOST)})],
        on("c"),
        before=[("other", "c", [labelled("db")])],
    ),
    "PodTopologySpread: ScheduleAnyway": Row(
        [WEB, spread("web", ZONE, 1, whenUnsatisfiable="ScheduleAnyway")],
        on("c", "d"),
        before=[("x", "a", [WEB]), ("y", "b", [WEB])],
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_what_a_pod_asks_for(scene: Scene, row: Row) -> None:
    for name, (zone, disk) in NODES.items():
        scene.node(objects.node(name, labels={ZONE: zone, "disk": disk}))
    row.prepare(scene)
    try:
        _place_and_judge(scene, row)
    finally:
        _delete_volumes(scene)


def _place_and_judge(scene: Scene, row: Row) -> None:
    for name, node, asks in row.before:
        running = objects.pod(name, gpus=0, scheduler="somebody-else")
        for ask in asks:
            ask(running, scene)
        running["spec"]["nodeName"] = f"{scene.name}-{node}"
        scene.runs(scene.create(running))
    gang = objects.ack("g", row.members) if row.members > 1 else None
    pods = [objects.pod(f"w-{rank}", gpus=row.gpus, gang=gang) for rank in range(row.members)]
    for pod in pods:
        for ask in row.asks:
            ask(pod, scene)
    names = scene.create(*map(deepcopy, pods))
    if row.refused:
        scene.says(names[0], *row.refused)
        assert not {*names} & scene.bound()
        return
    scene.runs(names)
    nodes = [scene.pods()[name].node.removeprefix(f"{scene.name}-") for name in names]
    assert row.right(nodes), nodes


def _delete_volumes(scene: Scene) -> None:
    """Delete what the namespace does not take along."""
    scene.client.delete(f"{PODS.replace('/pods', '')}/namespaces/{scene.name}/pods", grace_s=0)
    for path in ("/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/storageclasses"):
        listed = scene.client.get(path)["items"]
        for name in [item["metadata"]["name"] for item in listed if item["metadata"]["name"] == scene.name]:
            scene.client.delete(f"{path}/{name}")
