"""Whether a waiting gang would fit: a model of the cluster from API objects, without any code of the planner.

It is simple on purpose: what it claims, it shows, as a node for each member. It knows resources, memory by
GPU, cordons, taints, ACK's node label, node selectors and the scopes rack, zone, node and nvlink-domain, and
packs members greedily, largest first. It knows that members with anti-affinity take a node each, and that a
claim named after a rack is reached from that rack alone. Of a gang that only a search could fit (spread
constraints), or in words that it does not know, it says nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from e2e.facts import DRA_GPUS, FINISHED, GPU_RESOURCES, GROUP_RESOURCE, Gang, PodFacts
from e2e.slices import RESOURCE, memory_of
from local_cluster.api import Object
from local_cluster.nodes import RACK, SCHEDULE, ZONE

SCOPE = "gpu.topology/scope"
LABELS = {"rack": RACK, "zone": ZONE}
"""Scope → the node label whose values are its parts."""

CLAIM_OF_RACK = "data-"
"""Begins the names of claims; the rest is the rack whose nodes reach the volume."""

GPUS_BY_CLAIM = "chaos.muster.dev/gpus-by-claim"
"""Label of pods: how many devices their claims ask for, counted as DRA_RESOURCE."""
DRA_RESOURCE = "nvidia.com/gpu"

DOMAIN_SIZE = "gpu.topology/nvlink-domain-size"
READ = frozenset({"group", "min-member", "scope", "allocation", "decision"})
"""Our annotations, less their prefix, that are read here; a gang with another one is left alone."""

WORDS = frozenset({"", "node", "nvlink-domain", *LABELS})
UNITS: dict[str, int | Fraction] = {"": 1, "m": Fraction(1, 1000), "k": 10**3, "M": 10**6, "G": 10**9}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


@dataclass(frozen=True, slots=True)
class Fit:
    """A gang that waits, and where its waiting members could go: pod name → node."""

    gang: str
    placement: Mapping[str, str]

    def __str__(self) -> str:
        places = ", ".join(f"{pod} on {node}" for pod, node in sorted(self.placement.items()))
        return f"{self.gang} waits, though there is room: {places}"


@dataclass
class Room:
    """What is free of one node. `islands` are its free GPUs by NVLink domain; None if pods hold unknown
    GPUs, and nothing narrower than the node can be promised. `memory`: GiB that are free of
    each shared GPU."""

    name: str
    labels: Mapping[str, str]
    free: dict[str, Fraction]
    islands: list[set[int]] | None
    gpus_free: int
    memory: list[int]


@dataclass
class Part:
    """A part of a scope: rooms, and how many GPUs may be taken of each."""

    rooms: list[tuple[Room, int]] = field(default_factory=list)


def waiting_that_fit(
    pods: Iterable[Object], nodes: Iterable[Object], gangs: Mapping[str, Gang], scopes: Mapping[str, str]
) -> list[Fit]:
    """Gangs of Muster's that are complete, wait, and would fit now, each judged alone.

    `gangs`: UID of a pod → its gang; a pod that is not in it is one of its own. `scopes`: key of a gang →
    its required scope, where objects other than its pods say it.
    """
    alive = [pod for pod in pods if not _finished(pod)]
    rooms = [room for node in nodes if (room := _room(node, alive)) is not None]
    members: dict[str, list[Object]] = defaultdict(list)
    for pod in pods:
        if pod["spec"].get("schedulerName") == "muster":
            gang = gangs.get(str(pod["metadata"]["uid"]))
            members[gang.key if gang else _name(pod)].append(pod)
    fits = []
    for key, all_pods in sorted(members.items()):
        gang = gangs.get(str(all_pods[0]["metadata"]["uid"]))
        fit = _fit(key, gang.needed if gang else 1, all_pods, rooms, scopes.get(key, ""))
        if fit is not None:
            fits.append(fit)
    return fits


def _fit(
    key: str, members_needed: int, pods: Sequence[Object], rooms: Sequence[Room], scope: str
) -> Fit | None:
    waiting = [pod for pod in pods if _waits(pod)]
    bound = [pod for pod in pods if pod["spec"].get("nodeName") and not _finished(pod) and not _going(pod)]
    nodes_taken = {str(pod["spec"].get("nodeName")) for pod in pods if not _finished(pod)}
    owners = {_owner(pod) for pod in waiting} - {""}
    done = sum(1 for pod in pods if _succeeded(pod) and _owner(pod) in owners)
    if not waiting or not members_needed or len(waiting) + len(bound) + done < members_needed:
        return None
    scopes = {_annotation(pod, SCOPE) for pod in waiting}
    wishes = {key for pod in waiting for key in (pod["metadata"].get("annotations") or {})}
    unread = {key for key in wishes if key.startswith("gpu.topology/")} - {f"gpu.topology/{w}" for w in READ}
    if len(scopes) != 1 or unread:
        return None
    scope = scopes.pop() or scope
    if scope not in WORDS or any(pod["spec"].get("topologySpreadConstraints") for pod in waiting):
        return None
    # of an elastic gang that runs, one more is enough to say that it could grow
    count = max(members_needed - len(bound) - done, 1)
    to_place = sorted(waiting, key=lambda pod: (-_gpus(pod), -_requests(pod).get(RESOURCE, 0), _name(pod)))
    to_place = to_place if count >= len(to_place) else to_place[-count:]
    for part in _parts(scope, rooms, bound):
        placement = _pack(to_place, part, nodes_taken)
        if placement is not None:
            return Fit(key, placement)
    return None


def _parts(scope: str, rooms: Sequence[Room], bound: Sequence[Object]) -> list[Part]:
    """The parts in which the waiting members may lie, given where the others run."""
    homes = {str(pod["spec"]["nodeName"]) for pod in bound}
    if scope == "":
        return [Part([(room, room.gpus_free) for room in rooms])]
    if scope in LABELS:
        racks: dict[str, Part] = defaultdict(Part)
        for room in rooms:
            if value := room.labels.get(LABELS[scope]):
                racks[value].rooms.append((room, room.gpus_free))
        return [part for part in racks.values() if homes <= {room.name for room, _ in part.rooms}]
    alone = [room for room in rooms if homes <= {room.name}]
    if scope == "node":
        return [Part([(room, room.gpus_free)]) for room in alone]
    if homes:
        return []  # in which domain the others lie is for the planner to know
    # a single GPU without NVLink is a domain of its own, and holds no gang
    return [Part([(room, len(island))]) for room in alone for island in room.islands or () if len(island) > 1]


def _pack(pods: Sequence[Object], part: Part, nodes_taken: set[str]) -> dict[str, str] | None:
    """A node for each pod, the first node that has room for it; None if a pod has no room.

    `nodes_taken`: nodes of members that run or terminate, which repel pods with anti-affinity.
    """
    free = {room.name: dict(room.free) for room, _ in part.rooms}
    gpus = {room.name: most for room, most in part.rooms}
    memory = {room.name: list(room.memory) for room, _ in part.rooms}
    placement: dict[str, str] = {}
    for pod in pods:
        pod_requests, count = _requests(pod), _gpus(pod)
        selector = ((pod["spec"].get("nodeSelector") or {}) | _reachable(pod)).items()
        apart = "podAntiAffinity" in (pod["spec"].get("affinity") or {})
        for room, _ in part.rooms:
            room_left = free[room.name]
            enough = all(room_left.get(resource, 0) >= amount for resource, amount in pod_requests.items())
            slices = _slices(pod, memory[room.name])
            enough = enough and slices is not None and gpus[room.name] >= count
            repelled = apart and room.name in nodes_taken | set(placement.values())
            if enough and not repelled and selector <= room.labels.items():
                memory[room.name] = slices or []
                for resource, amount in pod_requests.items():
                    room_left[resource] -= amount
                gpus[room.name] -= count
                placement[_name(pod)] = room.name
                break
        else:
            return None
    return placement


def _reachable(pod: Object) -> dict[str, str]:
    """The node labels that the pod's claims ask for."""
    for volume in pod["spec"].get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            return {RACK: claim["claimName"].removeprefix(CLAIM_OF_RACK)}
    return {}


def _slices(pod: Object, free: list[int]) -> list[int] | None:
    """Return what the pod's slice leaves of each GPU, taking the fullest that fits; None without room."""
    slice_asked = PodFacts.of(pod).slice
    if slice_asked is None:
        return free
    share = slice_asked.memory // slice_asked.gpus
    enough = sorted((units, gpu) for gpu, units in enumerate(free) if units >= share)[: slice_asked.gpus]
    gpus_taken = {gpu for _, gpu in enough}
    if len(gpus_taken) < slice_asked.gpus:
        return None
    return [units - share if gpu in gpus_taken else units for gpu, units in enumerate(free)]


def _room(node: Object, alive: Sequence[Object]) -> Room | None:
    """What is free of a node; None when it takes no pods."""
    meta, spec, status = node["metadata"], node["spec"], node.get("status") or {}
    labels = meta.get("labels") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    held_off = any(taint["effect"] != "PreferNoSchedule" for taint in spec.get("taints") or ())
    shares = labels.get(SCHEDULE) == "share"
    serves = shares or labels.get(SCHEDULE, "topology") == "topology"
    if not ready or held_off or spec.get("unschedulable") or meta.get("deletionTimestamp") or not serves:
        return None
    by_slices, _, served = str((meta.get("annotations") or {}).get(DRA_GPUS, "")).partition("=")
    offered = (status.get("allocatable") or {}) | ({by_slices: served} if served else {})
    gpus = by_slices or GROUP_RESOURCE
    free = {resource: _quantity(amount) for resource, amount in offered.items()}
    pods_of_node = [pod for pod in alive if pod["spec"].get("nodeName") == meta["name"]]
    gpus_taken: set[int] = set()
    all_indexed = True
    memory = list(memory_of(node)) if shares else []
    for pod in pods_of_node:
        for resource, amount in _requests(pod).items():
            free[resource] = free.get(resource, Fraction(0)) - amount
        facts = PodFacts.of(pod)
        all_indexed = all_indexed and (facts.allocation is not None or not facts.gpus)
        gpus_taken |= set(facts.allocation or ())
        for gpu, units in (facts.slice.given if facts.slice and memory else {}).items():
            memory[gpu] -= units
    count = 0 if shares else int(_quantity(offered.get(gpus, "0")))
    islands = [island - gpus_taken for island in _islands(node, count)] if all_indexed else None
    gpus_free = 0 if shares else max(0, int(free.get(gpus, 0)))
    if all_indexed:
        gpus_free = min(gpus_free, len(set(range(count)) - gpus_taken))
    return Room(str(meta["name"]), labels, free, islands, gpus_free, memory)


def _islands(node: Object, count: int) -> list[set[int]]:
    """GPUs that NVLink joins, directly or through others, as GPU_TOPOLOGY or the size of a domain says."""
    meta = node["metadata"]
    matrix = (meta.get("annotations") or {}).get("GPU_TOPOLOGY")
    if matrix is not None:
        joined = [{gpu} for gpu in range(count)]
        for key in json.loads(matrix):
            _, link, first, second = key.split("_")
            if link.startswith("NV"):
                first_island = next(island for island in joined if int(first) in island)
                second_island = next(island for island in joined if int(second) in island)
                if first_island is not second_island:
                    joined.remove(second_island)
                    first_island |= second_island
        return joined
    size = int((meta.get("labels") or {}).get(DOMAIN_SIZE, "1"))
    return [set(range(start, min(start + size, count))) for start in range(0, count, size)]


def _requests(pod: Object) -> dict[str, Fraction]:
    """What the pod takes of each resource; itself counts as one of `pods`."""
    total: dict[str, Fraction] = defaultdict(Fraction, pods=Fraction(1))
    for container in pod["spec"].get("containers") or ():
        resources = container.get("resources") or {}
        amounts = (resources.get("limits") or {}) | (resources.get("requests") or {})
        for resource, amount in amounts.items():
            total[resource] += _quantity(amount)
    if by_claim := (pod["metadata"].get("labels") or {}).get(GPUS_BY_CLAIM):
        total[DRA_RESOURCE] += _quantity(by_claim)
    return dict(total)


def _quantity(text: object) -> Fraction:
    """A Kubernetes quantity: "100m", "96", "256Gi"."""
    digits = str(text).rstrip("mkKMGTi")
    return Fraction(digits) * UNITS[str(text)[len(digits) :]]


def _gpus(pod: Object) -> int:
    requests = _requests(pod)
    return int(sum(requests.get(resource, 0) for resource in GPU_RESOURCES))


def _name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _annotation(pod: Object, key: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(key, ""))


def _owner(pod: Object) -> str:
    return next((str(owner["uid"]) for owner in pod["metadata"].get("ownerReferences") or ()), "")


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _finished(pod: Object) -> bool:
    return _phase(pod) in FINISHED


def _succeeded(pod: Object) -> bool:
    return _phase(pod) == "Succeeded"


def _going(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _waits(pod: Object) -> bool:
    spec = pod["spec"]
    bound_or_held = spec.get("nodeName") or spec.get("schedulingGates")
    return not bound_or_held and not _finished(pod) and not _going(pod)
