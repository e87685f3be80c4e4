"""Hostile PodGroups, CompositePodGroups and Workloads of Kubernetes' own API (scheduling.k8s.io).

The API server checks these kinds field by field, so most values of another type are refused. What is left are
texts, numbers at their ends, parents in rings, and metadata that is as large as the API server takes.
"""

from __future__ import annotations

import json
import random
from itertools import product

from e2e.fuzz import largest, texts
from e2e.fuzz.attacks import ANNOTATIONS, NAMESPACE, PODS, Attack, owned_fields, patch
from local_cluster.api import Object

_API = f"/apis/scheduling.k8s.io/{{}}/namespaces/{NAMESPACE}"
GROUPS = f"{_API.format('v1beta1')}/podgroups"
COMPOSITES = f"{_API.format('v1alpha3')}/compositepodgroups"
WORKLOADS = f"{_API.format('v1beta1')}/workloads"
KINDS = ("Kubernetes PodGroup", "CompositePodGroup", "Workload", "PodGroup minCount", "Pod of a group")
"""Kinds of requests. Each run has accepted requests of each kind."""
GROUP, COMPOSITE, WORKLOAD = "native", "tree", "workload"
"""Objects that are patched again and again, and that new objects name."""

_KINDS = {
    GROUPS: ("v1beta1", "PodGroup"),
    COMPOSITES: ("v1alpha3", "CompositePodGroup"),
    WORKLOADS: ("v1beta1", "Workload"),
}
_WORKLOAD_REF = {"workloadName": WORKLOAD, "templateName": "t"}
_COUNTS = (1, 2, 9, 2**31 - 1)
_KEYS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone", "no/such-key", "gpu.topology/scope")
_MODES: tuple[Object, ...] = ({"single": {}}, {"all": {}})
_FIELDS = (
    "schedulingPolicy",
    "schedulingConstraints",
    "parentCompositePodGroupName",
    "workloadRef",
    "resourceClaims",
    "disruptionMode",
    "priorityClassName",
    "priority",
    "preemptionPolicy",
    "any",
)


def first() -> list[tuple[str, Object]]:
    """What is patched later: (collection, object)."""
    return [
        (WORKLOADS, _body(WORKLOADS, WORKLOAD, podGroupTemplates=[_template()])),
        (COMPOSITES, _body(COMPOSITES, COMPOSITE, workloadRef=_WORKLOAD_REF, **_policy(COMPOSITES, 2))),
        (GROUPS, _body(GROUPS, GROUP, **_policy(GROUPS, 2))),
        (PODS, largest.pod("labels", 1_000, "native-member", schedulingGroup={"podGroupName": GROUP})),
    ]


def sure() -> list[Attack]:
    """Return the requests of every run: each JSON type in each field of each kind, large metadata,
    and changes of a minimum."""
    attacks = [_min_count(count) for count in _COUNTS]
    for collection, name in ((GROUPS, GROUP), (COMPOSITES, COMPOSITE), (WORKLOADS, WORKLOAD)):
        path = f"{collection}/{name}"
        attacks.append(owned_fields(path, r'{"f:\ud800":{},"f:\udfff\ud800":{}}'))
        attacks.append(owned_fields(path, texts.nested(texts.DEPTHS[-1])))
        for number, (field, value) in enumerate(product(_FIELDS, texts.EACH_TYPE)):
            attacks.append(_with_text(collection, f"each-{number}", field, value))
        attacks += [_large(collection, field, f"large-{field}") for field in ("labels", "annotations")]
    return attacks


def draw(dice: random.Random, number: int) -> Attack:
    """A hostile request about one of the three kinds, or a pod that names a group."""
    return dice.choice((_new, _new, _pod, _change, _annotation, _metadata, _any_value, _status))(dice, number)


def _body(collection: str, name: str, **spec: object) -> Object:
    version, kind = _KINDS[collection]
    api_version = f"scheduling.k8s.io/{version}"
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _policy(collection: str, count: int) -> Object:
    field = "minGroupCount" if collection == COMPOSITES else "minCount"
    return {"schedulingPolicy": {"gang": {field: count}} if count else {"basic": {}}}


def _template() -> Object:
    return {"name": "t", **_policy(GROUPS, 2)}


def _name(collection: str) -> str:
    """The kind for the report: other APIs have PodGroups too."""
    return "Kubernetes PodGroup" if collection == GROUPS else _KINDS[collection][1]


def _post(collection: str, body: Object) -> Attack:
    return Attack(_name(collection), "POST", collection, json.dumps(body))


def _new(dice: random.Random, number: int) -> Attack:
    """A valid object of any of the three kinds. Parents may not exist, or form a ring."""
    collection = dice.choice([*_KINDS])
    if collection == WORKLOADS:
        return _post(WORKLOADS, _body(WORKLOADS, f"w{number}", podGroupTemplates=[_template()]))
    spec: Object = {"workloadRef": _WORKLOAD_REF, **_policy(collection, dice.choice((0, *_COUNTS)))}
    spec["disruptionMode"] = dice.choice(_MODES)
    if dice.random() < 0.6:
        names = (COMPOSITE, f"c{number}", f"c{number + 1}", f"c{number - 1}", "nobody")
        spec["parentCompositePodGroupName"] = dice.choice(names)
    if dice.random() < 0.5:
        spec["schedulingConstraints"] = {"topology": [{"key": dice.choice(_KEYS)}]}
    if dice.random() < 0.2:
        claims = [{"name": f"c{claim}", "resourceClaimName": f"claim-{claim}"} for claim in range(4)]
        spec["resourceClaims"] = claims
    prefix = "c" if collection == COMPOSITES else "g"
    body = _body(collection, f"{prefix}{number}", **spec)
    keys = dice.sample(ANNOTATIONS, 3)
    body["metadata"]["annotations"] = {key: json.loads(texts.text(dice))[:50_000] for key in keys}
    return _post(collection, body)


def _pod(dice: random.Random, number: int) -> Attack:
    """A member of one of these groups. Its other gang keys may disagree with the group."""
    name = dice.choice((GROUP, GROUP, f"g{number - 1}", f"g{number + 1}", "nobody"))
    body = largest.pod("labels", 1_000, f"n{number}", schedulingGroup={"podGroupName": name})
    if dice.random() < 0.3:
        annotations = {
            "gpu.topology/group": "other",
            "gpu.topology/min-member": dice.choice(("2", "-1", "x")),
        }
        body["metadata"]["annotations"] = annotations
    return Attack("Pod of a group", "POST", PODS, json.dumps(body))


def _change(dice: random.Random, _: int) -> Attack:
    return _min_count(dice.choice(_COUNTS))


def _min_count(count: int) -> Attack:
    """Another minimum, which a PodGroup may get at any time."""
    body = {"spec": _policy(GROUPS, count)}
    return patch("PodGroup minCount", f"{GROUPS}/{GROUP}", json.dumps(body))


def _path(dice: random.Random) -> str:
    collection, name = dice.choice(((GROUPS, GROUP), (COMPOSITES, COMPOSITE), (WORKLOADS, WORKLOAD)))
    return f"{collection}/{name}"


def _annotation(dice: random.Random, _: int) -> Attack:
    body = f'{{"metadata":{{"annotations":{{"{dice.choice(ANNOTATIONS)}":{texts.text(dice)}}}}}}}'
    return patch("annotation of a group", _path(dice), body)


def _metadata(dice: random.Random, number: int) -> Attack:
    """Fields with thousands of owners, or an object that is as large as the API server takes it."""
    if dice.random() < 0.5:
        return owned_fields(_path(dice), texts.fields(dice))
    return _large(dice.choice([*_KINDS]), dice.choice(("labels", "annotations")), f"l{number}")


def _large(collection: str, field: str, name: str) -> Attack:
    size = largest.OF_ANNOTATIONS if field == "annotations" else largest.OF_ETCD
    spec: Object = {"podGroupTemplates": [_template()]} if collection == WORKLOADS else _policy(collection, 2)
    if collection == COMPOSITES:
        spec["workloadRef"] = _WORKLOAD_REF
    path, make = largest.OF_PODS[field]
    return _post(collection, largest.filled(_body(collection, name, **spec), path, make, size))


def _any_value(dice: random.Random, number: int) -> Attack:
    collection = dice.choice([*_KINDS])
    return _with_text(collection, f"v{number}", dice.choice(_FIELDS), texts.value(dice))


def _with_text(collection: str, name: str, field: str, value: str) -> Attack:
    """A new object with this JSON in a field of its spec."""
    spec = _policy(collection, 2) | ({"workloadRef": _WORKLOAD_REF} if collection == COMPOSITES else {})
    fields = [f'"{key}":{json.dumps(other)}' for key, other in spec.items() if key != field]
    text = ",".join([*fields, f'"{field}":{value}'])
    version, kind = _KINDS[collection]
    body = (
        f'{{"apiVersion":"scheduling.k8s.io/{version}","kind":"{kind}",'
        f'"metadata":{{"name":"{name}"}},"spec":{{{text}}}}}'
    )
    return Attack(_name(collection), "POST", collection, body)


def _status(dice: random.Random, _: int) -> Attack:
    """The condition that we write ourselves, with another text."""
    condition = (
        f'{{"type":"PodGroupInitiallyScheduled","status":"{dice.choice(("True", "False", "Unknown"))}",'
        f'"reason":"X","message":{texts.text(dice)},"lastTransitionTime":"2026-01-01T00:00:00Z"}}'
    )
    body = f'{{"status":{{"conditions":[{condition}]}}}}'
    return patch("PodGroup status", f"{GROUPS}/{GROUP}/status", body)
