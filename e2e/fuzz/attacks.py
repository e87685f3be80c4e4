"""Requests that hostile users send: objects of each kind that is watched, with anything in any field."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from e2e import objects
from e2e.fuzz import largest, texts
from local_cluster.api import JSON, MERGE_PATCH, Object
from muster.domain.constraints import PER_SCOPE

NAMESPACE = "hostile"
NODE = "hostile-node"
POD, LARGE_POD, GROUP, MAP = "victim", "large-victim", "group", "map"
"""Objects that are patched again and again."""
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
GROUPS = f"/apis/scheduling.run.ai/v2/namespaces/{NAMESPACE}/podgroups"
KAI_GROUPS = f"/apis/scheduling.run.ai/v2alpha2/namespaces/{NAMESPACE}/podgroups"
MAPS = "/api/v1/namespaces/kube-system/configmaps"
POLICIES = "/api/v1/namespaces/muster-system/configmaps"
NODES = "/api/v1/nodes"

_SPEC = ("minMember", "queue", "topologyPolicy", "topologyConstraint", "subGroups", "minSubGroup", "any")
ANNOTATIONS = (
    "gpu.topology/scope",
    "gpu.topology/group",
    "gpu.topology/min-member",
    *(f"gpu.topology/{kind.annotation}" for kind in PER_SCOPE),
    "gpu.topology/segment-size",
    "gpu.topology/allocation",
    "gpu.topology/decision",
    "gpu.topology/any",
    "scheduling.run.ai/topology-policy",
    "scheduling.run.ai/pod-group",
    "ALIYUN_COM_GPU_GROUP",
    "ALIYUN_COM_GPU_MEM_IDX",
    "scheduler.framework.gpushare.allocation",
)


@dataclass(frozen=True, slots=True)
class Attack:
    """One request. `name` is its kind, for the report; a request may be refused."""

    name: str
    verb: str
    path: str
    body: str
    content_type: str = JSON


def first() -> list[tuple[str, Object]]:
    """What is patched later: (collection, object)."""
    waiting = objects.pod(POD, gang=objects.ack("incomplete", 9))
    group: Object = {"apiVersion": "scheduling.run.ai/v2", "kind": "PodGroup", "spec": {"minMember": 2}}
    return [
        (NODES, objects.node(NODE)),
        (PODS, waiting),
        (PODS, largest.pod("sidecars with a resource each", largest.OF_ETCD // 2, LARGE_POD)),
        (GROUPS, group | {"metadata": {"name": GROUP}}),
        (MAPS, {"metadata": {"name": MAP, "labels": _TOPOLOGY}, "data": {}}),
    ]


_TOPOLOGY = {"ack.node.gpu.schedule": "topology", "nodename": NODE}


def sure() -> list[Attack]:
    """Return the requests of every run: each kind of object deep, large and with broken escapes, each JSON
    type in each field of a PodGroup, and changes of a pod with thousands of sidecars."""
    half = r'{"f:\ud800":{},"f:\udfff\ud800":{}}'
    paths = (f"{PODS}/{POD}", f"{NODES}/{NODE}", f"{GROUPS}/{GROUP}", f"{MAPS}/{MAP}")
    attacks = [owned_fields(path, text) for path in paths for text in (half, texts.nested(texts.DEPTHS[-1]))]
    keys = json.dumps([texts.MANY_KEYS])
    for text in (keys, "[" * texts.DEEPEST + "]" * texts.DEEPEST, json.dumps("x" * texts.LARGE), r'"\ud800"'):
        attacks.append(patch("PodGroup patch", f"{GROUPS}/{GROUP}", f'{{"spec":{{"any":{text}}}}}'))
    attacks.append(patch("PodGroup patch", f"{GROUPS}/{GROUP}", '{"spec":{"any":null}}'))
    for number, (field_name, value) in enumerate(product(_SPEC[1:], texts.EACH_TYPE)):
        path, version = ((GROUPS, "v2"), (KAI_GROUPS, "v2alpha2"))[number % 2]
        attacks.append(_group(path, version, f"t{number}", f'"{field_name}":{value}'))
    attacks.append(Attack("ConfigMap", "POST", MAPS, _map("large", {"devices": "x" * 1_000_000})))
    attacks += [_tick(number) for number in range(3)]
    return attacks


def _group(path: str, version: str, name: str, fields: str) -> Attack:
    body = (
        f'{{"apiVersion":"scheduling.run.ai/{version}","kind":"PodGroup",'
        f'"metadata":{{"name":"{name}"}},"spec":{{"minMember":2,{fields}}}}}'
    )
    return Attack("PodGroup", "POST", path, body)


def group(name: str, fields: str) -> Attack:
    """A new PodGroup with these fields, as JSON, in its spec."""
    return _group(GROUPS, "v2", name, fields)


def _map(name: str, data: dict[str, str]) -> str:
    return json.dumps({"metadata": {"name": name, "labels": _TOPOLOGY}, "data": data})


def draw(dice: random.Random, number: int) -> Attack:
    """A hostile request; `number` makes names unique."""
    return dice.choice(_ATTACKS)(dice, number)


def draw_of_users(dice: random.Random, number: int) -> Attack:
    """A request of one who may do anything in the namespace: objects that are as large as it goes."""
    return dice.choice((_pod, _large_pod, _large_pod, _change_of_a_large_pod, _large_group))(dice, number)


def owned_fields(path: str, fields_v1: str) -> Attack:
    """A patch of any object's managedFields, in which the API server checks little."""
    entry = '{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":%s}'
    return patch("managedFields", path, '{"metadata":{"managedFields":[' + entry % fields_v1 + "]}}")


def patch(name: str, path: str, body: str) -> Attack:
    """A merge patch. `name` is its kind, for the report."""
    return Attack(name, "PATCH", path, body, MERGE_PATCH)


def _managed_fields(dice: random.Random, _: int) -> Attack:
    paths = (f"{PODS}/{POD}", f"{NODES}/{NODE}", f"{GROUPS}/{GROUP}", f"{MAPS}/{MAP}")
    return owned_fields(dice.choice(paths), texts.fields(dice))


def _annotation(dice: random.Random, _: int) -> Attack:
    path = dice.choice((f"{PODS}/{POD}", f"{NODES}/{NODE}", f"{GROUPS}/{GROUP}"))
    key = dice.choice((*ANNOTATIONS, "GPU_TOPOLOGY", "gpu.topology/gpu-mem", "NODE_TYPE"))
    return patch("annotation", path, f'{{"metadata":{{"annotations":{{"{key}":{texts.text(dice)}}}}}}}')


def _labels(dice: random.Random, _: int) -> Attack:
    path = dice.choice((f"{PODS}/{POD}", f"{NODES}/{NODE}", f"{GROUPS}/{GROUP}", f"{MAPS}/{MAP}"))
    count = dice.choice((10, 1_000, 40_000))
    return patch("labels", path, json.dumps({"metadata": {"labels": {f"k{n}": "" for n in range(count)}}}))


def _field_of_a_group(dice: random.Random, number: int) -> Attack:
    path = dice.choice((GROUPS, KAI_GROUPS))
    version = "v2" if path == GROUPS else "v2alpha2"
    extra = ",".join(f'"{field}":{texts.value(dice)}' for field in dice.sample(_SPEC[1:], 2))
    return _group(path, version, f"g{number}", extra)


def _patch_of_a_group(dice: random.Random, _: int) -> Attack:
    field = dice.choice(_SPEC)
    return patch("PodGroup patch", f"{GROUPS}/{GROUP}", f'{{"spec":{{"{field}":{texts.value(dice)}}}}}')


def _status_of_a_group(dice: random.Random, _: int) -> Attack:
    field = dice.choice(("phase", "needed", "domain", "reason", "conditions", "any"))
    body = f'{{"status":{{"phase":"running","{field}":{texts.value(dice)}}}}}'
    return patch("PodGroup status", f"{GROUPS}/{GROUP}/status", body)


def _pod(dice: random.Random, number: int) -> Attack:
    body = objects.pod(f"p{number}", gpus=dice.choice((0, 1, 9, 2**31 - 1)))
    spec, meta = body["spec"], body["metadata"]
    for key in dice.sample(ANNOTATIONS, 3):
        meta["annotations"][key] = json.loads(texts.text(dice))[:50_000]
    if dice.random() < 0.3:
        spec["nodeName"] = NODE  # bound by the user
    count = dice.choice((1, 100, 5_000))
    spec["tolerations"] = [{"key": f"k{n}", "operator": "Exists"} for n in range(count)]
    if dice.random() < 0.5:
        terms = [{"key": f"k{n}", "operator": "In", "values": ["v"] * 20} for n in range(count // 4 + 1)]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    if dice.random() < 0.3:
        spec["initContainers"] = [objects.container(f"i{n}", n % 3) for n in range(count)]
    if dice.random() < 0.3:
        spec["nodeSelector"] = {f"k{n}": "v" for n in range(count)}
    spec["containers"][0]["resources"]["requests"]["cpu"] = dice.choice(("1e18", "1n", "8Ei", "0"))
    return Attack("Pod", "POST", PODS, json.dumps(body))


def _large_pod(dice: random.Random, number: int) -> Attack:
    """A pod that is as large as the API server takes it, in one field. Half of them are bound by the user."""
    field = dice.choice([*largest.OF_PODS])
    spec = {"nodeName": NODE} if dice.random() < 0.5 else {}
    scheduler = dice.choice(("muster", "nobody"))
    size = dice.choice((largest.OF_ETCD, largest.OF_ETCD // 2, largest.OF_ETCD // 8))
    body = largest.pod(field, size, f"large-{number}", schedulerName=scheduler, **spec)
    return Attack("large Pod", "POST", PODS, json.dumps(body))


def _change_of_a_large_pod(_: random.Random, number: int) -> Attack:
    return _tick(number)


def _tick(number: int) -> Attack:
    """Return a small request that sends all watches a large object."""
    tick = json.dumps({"metadata": {"labels": {"tick": str(number)}}})
    return patch("large Pod patch", f"{PODS}/{LARGE_POD}", tick)


def _large_group(dice: random.Random, number: int) -> Attack:
    field = dice.choice([*largest.OF_GROUPS])
    body = largest.group(field, dice.choice((largest.OF_ETCD, largest.OF_A_GROUP)), f"large-{number}")
    return Attack("large PodGroup", "POST", GROUPS, json.dumps(body))


def _config_map(dice: random.Random, number: int) -> Attack:
    path, data = dice.choice(
        (
            (POLICIES, {"config.yaml": texts.yaml(dice)}),
            (MAPS, {dice.choice(("devices", "linkType", "bandwidth")): texts.yaml(dice)}),
            (MAPS, {"gpus": texts.yaml(dice)}),
        )
    )
    name = f"unhealthy-gpu-{NODE}" if "gpus" in data else f"m{number}"
    if path == POLICIES:
        name = "kai-scheduler-config"
        return patch("policies", f"{path}/{name}", json.dumps({"data": data}))
    return Attack("ConfigMap", "POST", path, _map(name, data))


def _node(dice: random.Random, _: int) -> Attack:
    amounts = {
        resource: dice.choice(("0", "1", "9999999999", "8Ei", "1n", "257"))
        for resource in (objects.GPU, "aliyun.com/gpu-mem", "cpu", "nvidia.com/gpu")
    }
    taints = [{"key": f"k{n}", "effect": "NoSchedule"} for n in range(dice.choice((0, 10, 3_000)))]
    path, body = dice.choice(
        (
            (f"{NODES}/{NODE}/status", {"status": {"capacity": amounts, "allocatable": amounts}}),
            (f"{NODES}/{NODE}", {"spec": {"taints": taints}}),
        )
    )
    return patch("Node", path, json.dumps(body))


_ATTACKS: tuple[Callable[[random.Random, int], Attack], ...] = (
    _managed_fields,
    _managed_fields,
    _annotation,
    _labels,
    _field_of_a_group,
    _patch_of_a_group,
    _status_of_a_group,
    _pod,
    _large_pod,
    _change_of_a_large_pod,
    _large_group,
    _config_map,
    _node,
)
