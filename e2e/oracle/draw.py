"""Draw random clusters, and pods that use what a pod may ask for: the same seed gives the same objects."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from e2e import objects
from local_cluster.api import Object

HOSTNAME, ZONE, RACK = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/rack",
)
NODE_LABEL = "oracle.muster.dev/world"
"""Label of all nodes of one world; every pod selects it, so that worlds do not see each other's nodes."""
APPS = ("web", "db", "cache")
PORTS = (8080, 9090)
LOCAL_CLASS, ZONAL_CLASS = "oracle-local", "oracle-zonal"
"""StorageClasses without a provisioner that wait for the first consumer."""
GI = "Gi"


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume to create: `nodes` (or a zone) is where pods can reach it."""

    name: str
    storage_class: str
    nodes: tuple[str, ...] = ()
    zone: str = ""

    def body(self) -> Object:
        """Return the PersistentVolume as the API server takes it."""
        key, values = (HOSTNAME, list(self.nodes)) if self.nodes else (ZONE, [self.zone])
        term = {"matchExpressions": [{"key": key, "operator": "In", "values": values}]}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self.name},
            "spec": {
                "capacity": {"storage": f"10{GI}"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": self.storage_class,
                "local": {"path": "/mnt/data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            },
        }


@dataclass(frozen=True, slots=True)
class World:
    """A cluster. `residents` are pods that run already; they name their node."""

    name: str
    nodes: tuple[Object, ...]
    residents: tuple[Object, ...]
    volumes: tuple[Volume, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A pod to be placed, and the StorageClass of each claim that it mounts.

    `asks` names the constraints that were drawn, for reports. `missing_claim`: it names a claim that is never
    created.
    """

    body: Object
    claims: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    missing_claim: bool = False


def world(seed: int) -> World:
    """Draw a cluster of 3 to 14 nodes, or of 30 to 50, in three zones, with running pods and volumes."""
    chance = random.Random(f"world {seed}")
    name = f"w{seed}"
    size = chance.randint(3, 14) if chance.random() < 0.7 else chance.randint(30, 50)
    nodes = tuple(_node(chance, name, index) for index in range(size))
    names = [str(node["metadata"]["name"]) for node in nodes]
    residents = tuple(
        _resident(chance, f"{name}-resident-{index}", chance.choice(names))
        for index in range(chance.randint(0, len(nodes)))
    )
    volumes = [
        Volume(f"{name}-local-{index}", LOCAL_CLASS, (chance.choice(names),))
        for index in range(chance.randint(1, 4))
    ]
    zones = sorted({str(node["metadata"]["labels"].get(ZONE, "")) for node in nodes} - {""})
    volumes += [
        Volume(f"{name}-zonal-{index}", ZONAL_CLASS, zone=chance.choice(zones))
        for index in range(chance.randint(0, 3) if zones else 0)
    ]
    return World(name, nodes, residents, tuple(volumes))


def pod(seed: int, number: int, world: World) -> Drawn:
    """Draw a pod with one to three constraints, one of them perhaps that none of the nodes can satisfy."""
    chance = random.Random(f"pod {seed} {number}")
    body = objects.pod(f"{world.name}-p{number}", gpus=chance.choice((1, 1, 1, 2, 4)))
    body["metadata"]["labels"]["app"] = chance.choice(APPS)
    body["spec"]["nodeSelector"] = {NODE_LABEL: world.name}
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = chance.choice(("100m", "1", "4"))
    draft = _Draft(chance, body, world)
    for ask in chance.sample(sorted(_ASKS), chance.choice((0, 1, 1, 1, 2, 2, 3))):
        _ASKS[ask](draft)
        draft.asks.append(ask)
    return Drawn(body, tuple(draft.claims), tuple(draft.asks), draft.missing_claim)


@dataclass(slots=True)
class _Draft:
    chance: random.Random
    body: Object
    world: World
    claims: list[str] = field(default_factory=list)
    asks: list[str] = field(default_factory=list)
    missing_claim: bool = False

    @property
    def spec(self) -> Object:
        spec: Object = self.body["spec"]
        return spec

    def affinity(self, kind: str) -> Object:
        terms: Object = self.spec.setdefault("affinity", {}).setdefault(kind, {})
        return terms

    def some_app(self) -> Object:
        """Return a selector: of the pod's own app, of another one, or of several."""
        app = self.chance.choice((self.body["metadata"]["labels"]["app"], *APPS))
        if self.chance.random() < 0.3:
            values = sorted({app, self.chance.choice(APPS)})
            return {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
        return {"matchLabels": {"app": app}}

    def some_key(self) -> str:
        return self.chance.choice((HOSTNAME, HOSTNAME, ZONE, RACK, "disk"))

    def mount(self, storage_class: str) -> None:
        """Mount one more claim; `trial` replaces the placeholder by the claim's name."""
        name = f"data-{len(self.claims)}"
        self.claims.append(storage_class)
        claim = {"name": name, "persistentVolumeClaim": {"claimName": name}}
        self.spec.setdefault("volumes", []).append(claim)


def _node_affinity(draft: _Draft) -> None:
    chance = draft.chance
    names = [str(node["metadata"]["name"]) for node in draft.world.nodes]
    requirement: Mapping[str, object] = chance.choice(
        (
            {"key": "disk", "operator": "In", "values": ["ssd"]},
            {"key": "disk", "operator": "NotIn", "values": ["ssd"]},
            {"key": RACK, "operator": "Exists"},
            {"key": "cores", "operator": "Gt", "values": ["32"]},
            {"key": HOSTNAME, "operator": "NotIn", "values": chance.sample(names, 1)},
        )
    )
    term = {"matchExpressions": [dict(requirement)]}
    required = {"nodeSelectorTerms": [term]}
    draft.affinity("nodeAffinity")["requiredDuringSchedulingIgnoredDuringExecution"] = required


def _preferred_node(draft: _Draft) -> None:
    requirement = {"key": "disk", "operator": "In", "values": ["ssd"]}
    preferred = [{"weight": draft.chance.randint(1, 100), "preference": {"matchExpressions": [requirement]}}]
    draft.affinity("nodeAffinity")["preferredDuringSchedulingIgnoredDuringExecution"] = preferred


def _selector(draft: _Draft) -> None:
    draft.spec["nodeSelector"][draft.chance.choice((ZONE, "disk"))] = draft.chance.choice(("z0", "z1", "ssd"))


def _toleration(draft: _Draft) -> None:
    draft.spec["tolerations"] = [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]


def _pod_affinity(draft: _Draft) -> None:
    term = {"labelSelector": draft.some_app(), "topologyKey": draft.some_key()}
    if draft.chance.random() < 0.2:
        term["namespaceSelector"] = {}
    draft.affinity("podAffinity")["requiredDuringSchedulingIgnoredDuringExecution"] = [term]


def _pod_anti_affinity(draft: _Draft) -> None:
    terms = [{"labelSelector": draft.some_app(), "topologyKey": draft.some_key()}]
    draft.affinity("podAntiAffinity")["requiredDuringSchedulingIgnoredDuringExecution"] = terms


def _preferred_pod(draft: _Draft) -> None:
    term = {"labelSelector": draft.some_app(), "topologyKey": draft.some_key()}
    preferred = [{"weight": draft.chance.randint(1, 100), "podAffinityTerm": term}]
    kind = draft.chance.choice(("podAffinity", "podAntiAffinity"))
    draft.affinity(kind)["preferredDuringSchedulingIgnoredDuringExecution"] = preferred


def _spread(draft: _Draft) -> None:
    chance = draft.chance
    constraint: Object = {
        "maxSkew": chance.choice((1, 1, 2, 3)),
        "topologyKey": chance.choice((HOSTNAME, ZONE, RACK)),
        "whenUnsatisfiable": chance.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
        "labelSelector": draft.some_app(),
    }
    if constraint["whenUnsatisfiable"] == "DoNotSchedule" and chance.random() < 0.3:
        constraint["minDomains"] = chance.randint(1, 4)
    if chance.random() < 0.3:
        constraint["nodeTaintsPolicy"] = "Honor"
    if chance.random() < 0.2:
        constraint["nodeAffinityPolicy"] = "Ignore"
    draft.spec["topologySpreadConstraints"] = [constraint]


def _host_port(draft: _Draft) -> None:
    port: Object = {"containerPort": 80, "hostPort": draft.chance.choice(PORTS), "protocol": "TCP"}
    if draft.chance.random() < 0.3:
        port["hostIP"] = draft.chance.choice(("127.0.0.1", "0.0.0.0"))
    draft.spec["containers"][0]["ports"] = [port]


def _local_volume(draft: _Draft) -> None:
    draft.mount(LOCAL_CLASS)


def _zonal_volume(draft: _Draft) -> None:
    draft.mount(ZONAL_CLASS)


def _missing_claim(draft: _Draft) -> None:
    if draft.chance.random() < 0.3:
        draft.missing_claim = True
        claim = {"name": "gone", "persistentVolumeClaim": {"claimName": "not-there"}}
        draft.spec.setdefault("volumes", []).append(claim)


_ASKS: dict[str, Callable[[_Draft], None]] = {
    "node affinity": _node_affinity,
    "preferred node affinity": _preferred_node,
    "node selector": _selector,
    "toleration": _toleration,
    "pod affinity": _pod_affinity,
    "pod anti-affinity": _pod_anti_affinity,
    "preferred pod affinity": _preferred_pod,
    "spread": _spread,
    "host port": _host_port,
    "local volume": _local_volume,
    "zonal volume": _zonal_volume,
    "missing claim": _missing_claim,
}


def _node(chance: random.Random, world: str, index: int) -> Object:
    name = f"{world}-n{index}"
    labels = {HOSTNAME: name, NODE_LABEL: world}
    if chance.random() < 0.9:
        labels[ZONE] = f"z{chance.randrange(3)}"
    if chance.random() < 0.8:
        labels[RACK] = f"r{chance.randrange(4)}"
    if chance.random() < 0.5:
        labels["disk"] = chance.choice(("ssd", "hdd"))
    if chance.random() < 0.5:
        labels["cores"] = chance.choice(("16", "64"))
    node = objects.node(name, gpus=chance.choice((0, 4, 8, 8)), labels=labels)
    if chance.random() < 0.15:
        taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
        node["spec"]["taints"] = [taint]
    if chance.random() < 0.2:
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            amounts |= {"cpu": "6"}
    return node


def _resident(chance: random.Random, name: str, node: str) -> Object:
    """Draw a running pod without GPUs, some with anti-affinity or a host port of their own."""
    body = objects.pod(name, gpus=0, scheduler="somebody-else", spec={"nodeName": node})
    body["metadata"]["labels"]["app"] = chance.choice(APPS)
    if chance.random() < 0.25:
        selector = {"matchLabels": {"app": chance.choice(APPS)}}
        term = {"labelSelector": selector, "topologyKey": chance.choice((HOSTNAME, RACK))}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        body["spec"]["affinity"] = {"podAntiAffinity": required}
    if chance.random() < 0.2:
        body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": chance.choice(PORTS)}]
    return body
