"""Ask both schedulers about the same pod in the same state of a real cluster, the stock one first.

The stock scheduler's pod is deleted again, with its claims, before Muster is asked. What Muster binds stays,
so that the cluster fills up. A pod that the stock scheduler refuses is given to Muster as well: it must not
bind it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field

from e2e.chaos.patience import Patient
from e2e.chaos.strangers import SCHEDULER as STOCK
from e2e.client import Client
from e2e.objects import MUSTER
from e2e.oracle.draw import LOCAL_CLASS, ZONAL_CLASS, Drawn, Volume, World, pod, world
from e2e.record import NODES, PODS, Record, TooLateError
from local_cluster.api import ApiError, Object
from local_cluster.patience import HANG_S, Guard

CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
KINDS = (PODS, NODES, CLAIMS, VOLUMES)
REFUSED_FOR_S = 1.0
"""How long a pod that the stock scheduler refuses is left to Muster, after Muster has refused it as well."""
RETRY_S = 2.5
"""How long the stock scheduler may take back a refusal: its caches may be behind the objects that were just
made, such as the pod's claims. It tries again at their events, after a back-off of one second.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one scheduler did: the node, or "" and the pod's condition; and after how many seconds."""

    node: str
    message: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A pod on which the two differ."""

    pod: Drawn
    stock: Answer
    muster: Answer

    def __str__(self) -> str:
        name = self.pod.body["metadata"]["name"]
        asks = ", ".join(self.pod.asks) or "nothing"
        return (
            f"{name} (asks for {asks}): stock: {self.stock.node or self.stock.message}; "
            f"Muster: {self.muster.node or self.muster.message or 'no answer'}"
        )


@dataclass(slots=True)
class Tally:
    """Figures of a run. `seconds`: how long Muster took for each pod that it bound."""

    pods: int = 0
    placed: int = 0
    refused: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    """Constraint → pods that asked for it and were placed by the stock scheduler."""
    seconds: list[float] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)

    def text(self) -> str:
        """Return the figures as one paragraph, the disagreements below it."""
        times = sorted(self.seconds) or [0.0]
        late = sum(seconds > 3.0 for seconds in times)
        head = (
            f"{self.pods} pods: the stock scheduler placed {self.placed} and refused {self.refused}; "
            f"disagreements: {len(self.disagreements)}. Muster's time to bound: median "
            f"{times[len(times) // 2]:.2f} s, longest {times[-1]:.2f} s, over 3 s: {late}."
        )
        asks = ", ".join(f"{ask} {count}" for ask, count in sorted(self.asked.items()))
        return "\n".join([head, f"Placed pods asked for: {asks}.", *map(str, self.disagreements)])


class Trial:
    """Worlds one after another in one namespace of a cluster on which both schedulers run."""

    def __init__(self, client: Client, namespace: str, *, within_s: float) -> None:
        """`within_s`: how long Muster may take for a pod that the stock scheduler has placed."""
        self.tally = Tally()
        self._client = client
        self._patient = Patient(client)
        self._namespace = namespace
        self._within_s = within_s
        self._record = Record(client, KINDS)

    def run(self, seed: int, pods: int) -> None:
        """Play one world with `pods` pods."""
        drawn = world(seed)
        with self._record:
            self._create(drawn)
            for number in range(pods):
                self._one(pod(seed, number, drawn), drawn)
            self._clear(drawn)
        self._record = Record(self._client, KINDS)

    # --- one pod --------------------------------------------------------------------------------

    def _one(self, drawn: Drawn, drawn_world: World) -> None:
        stock = self._ask(drawn, STOCK, "stock")
        self._take_back(drawn, "stock", drawn_world)
        muster = self._ask(drawn, MUSTER, "ours", self._within_s if stock.node else REFUSED_FOR_S)
        if muster.node:
            self.tally.seconds.append(muster.seconds)
        else:
            self._take_back(drawn, "ours", drawn_world)
        self.tally.pods += 1
        self.tally.placed += bool(stock.node)
        self.tally.asked.update(drawn.asks if stock.node else ())
        self.tally.refused += not stock.node
        if bool(stock.node) != bool(muster.node):
            self.tally.disagreements.append(Disagreement(drawn, stock, muster))

    def _ask(self, drawn: Drawn, scheduler: str, suffix: str, within_s: float = HANG_S) -> Answer:
        """Create the pod and wait until it is bound, or for the stock scheduler until its refusal stands."""
        body = deepcopy(drawn.body)
        name = body["metadata"]["name"] = f"{body['metadata']['name']}-{suffix}"
        body["spec"]["schedulerName"] = scheduler
        for index, storage_class in enumerate(drawn.claims):
            claim = f"{name}-data-{index}"
            self._post("persistentvolumeclaims", _claim(claim, storage_class))
            volume = next(v for v in body["spec"]["volumes"] if v["name"] == f"data-{index}")
            volume["persistentVolumeClaim"]["claimName"] = claim
        began = time.monotonic()
        self._post("pods", body)
        if scheduler == STOCK:
            self._record.until(
                lambda: self._bound_or_refused(name), f"{STOCK} answers about {name}", within_s
            )
            within_s = RETRY_S
        with suppress(TooLateError):
            self._record.until(lambda: self._bound(name), f"{scheduler} binds {name}", within_s)
        live_object = self._find(PODS, name) or body
        return Answer(
            str(live_object["spec"].get("nodeName", "")), _condition(live_object), time.monotonic() - began
        )

    def _bound(self, name: str) -> bool:
        live_object = self._find(PODS, name)
        return live_object is not None and bool(live_object["spec"].get("nodeName"))

    def _bound_or_refused(self, name: str) -> bool:
        live_object = self._find(PODS, name)
        return live_object is not None and bool(
            live_object["spec"].get("nodeName") or _condition(live_object)
        )

    def _take_back(self, drawn: Drawn, suffix: str, drawn_world: World) -> None:
        """Delete the pod with its claims, and make the volumes that they were bound to free again."""
        name = f"{drawn.body['metadata']['name']}-{suffix}"
        claims = [f"{name}-data-{index}" for index in range(len(drawn.claims))]
        self._patient.delete(self._path("pods", name), grace_s=0)
        self._gone(PODS, [name])
        for claim in claims:
            self._patient.delete(self._path("persistentvolumeclaims", claim))
        if claims:
            self._gone(CLAIMS, claims)
            self._free_volumes(drawn_world, claims)

    def _free_volumes(self, drawn_world: World, claims: list[str]) -> None:
        """Make the volumes that were bound to these claims anew: that is all that frees one at once."""
        for volume in drawn_world.volumes:
            live_object = self._find(VOLUMES, volume.name)
            claim = ((live_object or {}).get("spec") or {}).get("claimRef") or {}
            if claim.get("name") in claims:
                self._patient.delete(f"{VOLUMES}/{volume.name}")
                self._gone(VOLUMES, [volume.name])
                self._create_volume(volume)

    # --- worlds ---------------------------------------------------------------------------------

    def _create(self, drawn: World) -> None:
        for name in (LOCAL_CLASS, ZONAL_CLASS):
            body = {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": name},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer",
            }
            self._patient.create(CLASSES, body)
        for node in drawn.nodes:
            self._client.post(NODES, node)
        names = [str(node["metadata"]["name"]) for node in drawn.nodes]
        self._record.until(
            lambda: all(_takes_pods(self._find(NODES, name)) for name in names),
            f"the nodes of {drawn.name} are ready",
        )
        for resident in drawn.residents:
            self._post("pods", resident)
        for volume in drawn.volumes:
            self._create_volume(volume)

    def _create_volume(self, volume: Volume) -> None:
        self._client.post(VOLUMES, volume.body())
        self._record.until(
            lambda: (
                ((self._find(VOLUMES, volume.name) or {}).get("status") or {}).get("phase") == "Available"
            ),
            f"{volume.name} is available",
            HANG_S,
        )

    def _clear(self, drawn: World) -> None:
        for plural in ("pods", "persistentvolumeclaims"):
            self._client.delete(f"/api/v1/namespaces/{self._namespace}/{plural}", grace_s=0)
        for kind in (PODS, CLAIMS):
            self._gone(kind, [str(body["metadata"]["name"]) for body in self._own(kind)])
        for volume in drawn.volumes:
            self._patient.delete(f"{VOLUMES}/{volume.name}")
        for node in drawn.nodes:
            self._patient.delete(f"{NODES}/{node['metadata']['name']}")
        self._gone(NODES, [str(node["metadata"]["name"]) for node in drawn.nodes])

    # --- inside ---------------------------------------------------------------------------------

    def _post(self, plural: str, body: Object) -> None:
        """Create an object in the namespace; a service account that is made a moment later is waited for."""
        path = f"/api/v1/namespaces/{self._namespace}/{plural}"
        guard = Guard()
        while True:
            try:
                self._client.post(path, body)
            except ApiError as problem:
                if problem.status != 403 or guard.over:
                    raise
            else:
                return

    def _path(self, plural: str, name: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{plural}/{name}"

    def _gone(self, kind: str, names: Sequence[str]) -> None:
        """Wait until none of these objects exists."""
        self._record.until(
            lambda: not any(self._find(kind, name) for name in names),
            f"{kind} {', '.join(names)} are gone",
        )

    def _own(self, kind: str) -> list[Object]:
        return [
            body for body in self._record.live(kind) if body["metadata"].get("namespace") == self._namespace
        ]

    def _find(self, kind: str, name: str) -> Object | None:
        bodies = self._record.live(kind) if kind in (NODES, VOLUMES) else self._own(kind)
        return next((body for body in bodies if body["metadata"]["name"] == name), None)


def _claim(name: str, storage_class: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def _condition(body: Object) -> str:
    for condition in (body.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def _takes_pods(body: Object | None) -> bool:
    """Tell whether a node is ready and carries no taint but the drawn one."""
    if body is None:
        return False
    conditions = (body.get("status") or {}).get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and all(taint["key"] == "dedicated" for taint in body["spec"].get("taints") or ())
