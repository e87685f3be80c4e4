"""A hostile user, in a namespace of its own, and a hostile node: what they send while things break.

The API server knows them as what they are: one may do anything in that namespace, the other has the
certificate of a kubelet. What they may not do is refused, and counted. Ordinary pods may come to the node,
so it lies about all but how many GPUs it has. No pod of the user fits any node, so it takes no GPU of others.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from e2e import objects
from e2e.chaos.auditor import POD_GROUP
from e2e.chaos.patience import Patient
from e2e.client import Client
from e2e.dra import DRIVER, GROUP
from e2e.fuzz import attacks, largest
from e2e.fuzz.attacks import GROUPS, NAMESPACE, NODE, NODES, PODS, Attack
from e2e.fuzz.runner import Raw
from local_cluster.api import MERGE_PATCH, ApiUnreachable, Object
from local_cluster.cluster import LocalCluster
from local_cluster.nodes import RACK, SCHEDULE, ZONE
from local_cluster.patience import HANG_S
from local_cluster.policies import POLICIES, bound_sizes
from local_cluster.topology import load_topology

EVERY_S = 0.1
"""Between two requests of an actor. etcd keeps all versions of an object for five minutes, and has 2 GiB."""

OBJECTS_AT_ONCE = 150
"""Objects of an actor at a time: the oldest goes. Of the huge gang as many as `HUGE` alone."""

HUGE, HUGE_NEEDS = 400, 200
MATRIX_GPUS = 88
"""Many more do not fit into the 32 KiB that Muster reads."""

NOWHERE = {"kubernetes.io/hostname": "nowhere"}
SLICES = f"{GROUP}/resourceslices"
DEVICES = 128


Draw = Callable[[random.Random, int], Attack]


@dataclass
class HostileReport:
    """Requests by their kind: those that the API server took, and those that it refused."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


# --- the user ---------------------------------------------------------------------------------------


def of_user(dice: random.Random, number: int) -> Attack:
    """Return a request of the user; `number` makes names unique."""
    return dice.choice(_OF_USER)(dice, number)


def _fuzzed(dice: random.Random, number: int) -> Attack:
    attack = attacks.draw_of_users(dice, number)
    return _nowhere(attack) if attack.path == PODS else attack


def _nowhere(attack: Attack) -> Attack:
    """Return the new pod for a node that there is not, unless it comes bound and asks for no GPU."""
    body = json.loads(attack.body)
    if attack.name != "large Pod":
        body["spec"].pop("nodeName", None)
    body["spec"].setdefault("nodeSelector", {}).update(NOWHERE)
    return Attack(attack.name, attack.verb, attack.path, json.dumps(body), attack.content_type)


def _apart(dice: random.Random, number: int) -> Attack:
    """A member of a gang that wants a zone for each of its six pods. There is one zone."""
    gang = f"apart-{dice.randrange(3)}"
    pod = objects.pod(f"apart-{number}", gpus=8, gang=_own_words(gang, 6))
    pod["metadata"]["labels"]["apart"] = gang
    term = {"labelSelector": {"matchLabels": {"apart": gang}}, "topologyKey": ZONE}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    pod["spec"]["affinity"] = {"podAntiAffinity": rule}
    return _created("gang that never fits", PODS, pod)


def _huge(_: random.Random, number: int) -> Attack:
    pod = objects.pod(f"huge-{number}", gpus=8, gang=_own_words("huge", HUGE_NEEDS))
    return _created("huge gang", PODS, pod)


def _labels(dice: random.Random, _: int) -> Attack:
    """The victim joins a gang, another one, or none."""
    gang, replicas = dice.choice(((None, None), ("a", "1"), ("a", "9"), ("b", "2")))
    labels = {"gpu-topology": gang, "gpu-topology-replica": replicas}
    return _patched("labels of a gang", f"{PODS}/{attacks.POD}", {"metadata": {"labels": labels}})


def _name_of_others(dice: random.Random, number: int) -> Attack:
    """A pod, or a PodGroup, with the name of a gang that others have."""
    name = f"{dice.choice(('gang', 'target', 'devices'))}-{dice.randrange(60)}"
    needs = dice.choice((1, 2, 1_000_000))
    if dice.random() < 0.2:
        meta = {"apiVersion": "scheduling.run.ai/v2", "kind": "PodGroup", "metadata": {"name": name}}
        return _created("name of others", GROUPS, meta | {"spec": {"minMember": needs}})
    foreign_words = objects.Words({}, {POD_GROUP: name})
    words = dice.choice((objects.ack(name, needs), _own_words(name, needs), foreign_words))
    return _nowhere(_created("name of others", PODS, objects.pod(f"{name}-{number}", gang=words)))


def _own_words(gang: str, needs: int) -> objects.Words:
    return objects.Words({}, {"gpu.topology/group": gang, "gpu.topology/min-member": str(needs)})


_OF_USER: tuple[Draw, ...] = (_fuzzed, _fuzzed, _huge, _huge, _apart, _labels, _name_of_others)


# --- the node ---------------------------------------------------------------------------------------


def node() -> Object:
    """Return the hostile node as its owner made it: a good one for any gang of the first rack."""
    labels = {SCHEDULE: "topology", ZONE: "z0", RACK: "r0"}
    return objects.node(NODE, topology=objects.DOCUMENT_MESH, labels=labels)


def of_node(pools: str) -> Draw:
    """Return what draws a request of the node. `pools`: a pool of another node, with {} for its number."""

    def slices(dice: random.Random, number: int) -> Attack:
        """A part of a pool, of a later generation, whose other part never comes."""
        pool = dice.choice((NODE, pools.format(dice.randrange(4))))
        generation = dice.choice((1, 2, 10**9))
        devices = [{"name": f"gpu-{index}"} for index in range(DEVICES)]
        spec = {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": DEVICES},
            "devices": devices,
        }
        return _created("slice", SLICES, {"metadata": {"name": f"hostile-{number}"}, "spec": spec})

    draws = (_tick, _schedule, _matrix, slices, _many_labels)
    return lambda dice, number: dice.choice(draws)(dice, number)


def _tick(_: random.Random, number: int) -> Attack:
    return _of_meta("label of the node", {"labels": {"feature.example.com/tick": str(number)}})


def _schedule(dice: random.Random, _: int) -> Attack:
    return _of_meta("label of the node", {"labels": {SCHEDULE: dice.choice(("topology", "share", "x"))}})


def _matrix(dice: random.Random, _: int) -> Attack:
    """A matrix that is right, broken, or for many more GPUs than there are. The last two are problems."""
    right, link = load_topology(objects.DOCUMENT_MESH).annotation(), dice.choice(("NV1", "PIX", "SYS"))
    text = dice.choice((right, right[:-9], f"{'x' * 100_000}", largest.matrix(MATRIX_GPUS, link)))
    return _of_meta("matrix", {"annotations": {"GPU_TOPOLOGY": text}})


def _many_labels(dice: random.Random, _: int) -> Attack:
    value = dice.choice(("", None))
    return _of_meta("labels of the node", {"labels": {f"k{key}": value for key in range(1_500)}})


def _of_meta(name: str, changed: Object) -> Attack:
    return _patched(name, f"{NODES}/{NODE}", {"metadata": changed})


def _created(name: str, path: str, body: Object) -> Attack:
    return Attack(name, "POST", path, json.dumps(body))


def _patched(name: str, path: str, body: Object) -> Attack:
    return Attack(name, "PATCH", path, json.dumps(body), MERGE_PATCH)


# --- both -------------------------------------------------------------------------------------------


class Hostile:
    """Both actors, from when it is entered to when it is left. `pools`: as `of_node` takes it."""

    def __init__(self, cluster: LocalCluster, patient: Patient, seed: int, pools: str) -> None:
        self.report = HostileReport()
        self._cluster = cluster
        self._patient = patient
        self._draws: Mapping[str, Draw] = {"hostile": of_user, f"system:node:{NODE}": of_node(pools)}
        self._seed = seed
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def __enter__(self) -> Self:
        self._cluster.create_namespace(NAMESPACE)
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "hostile"}
        bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"
        binding = {"metadata": {"name": "hostile"}, "roleRef": role, "subjects": [subject]}
        self._patient.create(bindings, binding)
        self._patient.create(NODES, node())
        bound_sizes(self._cluster.api)
        for path, body in attacks.first():
            if path in (PODS, GROUPS) and body["metadata"]["name"] != attacks.LARGE_POD:
                self._patient.create(path, body)
        large = largest.pod("containers with a resource each", largest.OF_ETCD // 2, attacks.LARGE_POD)
        self._patient.create(PODS, large)
        for user, draw in self._draws.items():
            kubeconfig = self._cluster.kubeconfig_for_user(user, ["system:nodes"] if ":" in user else ())
            credentials = kubeconfig.with_suffix(".credentials")
            credentials.mkdir(mode=0o700)
            client = Client.of(kubeconfig, credentials)
            thread = threading.Thread(target=self._work, args=(user, client, draw), name=user, daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=HANG_S)

    def check(self) -> None:
        """Raise what an actor ended with."""
        for failure in self._failures:
            raise failure

    def tidy(self) -> None:
        """Remove the namespace, the node and its slices."""
        self._patient.delete(f"/api/v1/namespaces/{NAMESPACE}")
        self._patient.delete(f"{NODES}/{NODE}")
        for path in POLICIES.values():
            self._patient.delete(f"{path}/muster-sizes")
        self._patient.delete(f"{SLICES}?fieldSelector=spec.nodeName={NODE}")

    def _work(self, user: str, client: Client, draw: Draw) -> None:
        raw, dice = Raw(client), random.Random(f"{self._seed} {user}")
        created: dict[str, deque[str]] = {}
        try:
            for number in itertools.count():
                if self._over.wait(EVERY_S):
                    return
                attack = draw(dice, number)
                try:
                    status = raw.send(attack)
                    counts = self.report.accepted if status < 400 else self.report.refused
                    counts[attack.name] += 1
                    if status == 201:
                        huge = attack.name == "huge gang"
                        created_paths = created.setdefault("huge" if huge else "", deque())
                        created_paths.append(f"{attack.path}/{json.loads(attack.body)['metadata']['name']}")
                        if len(created_paths) > (HUGE if huge else OBJECTS_AT_ONCE):
                            client.send("DELETE", f"{created_paths.popleft()}?gracePeriodSeconds=0")
                except ApiUnreachable:  # it is killed now and then
                    self._over.wait(1)
        except BaseException as problem:  # noqa: BLE001  told to the main thread by `check`
            self._failures.append(problem)
