"""Objects that are as large as the API server takes, each in one field. Pure.

etcd takes 1.5 MiB for an object. In JSON a pod of that size may be larger, up to 3 MiB, which is what a
request may have.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from local_cluster.api import Object

OF_A_REQUEST = 3 * 1024 * 1024
"""Bytes of JSON."""
OF_ETCD = 1_400_000
"""The same of a custom object, which is stored as JSON."""
OF_A_GROUP = 250_000
"""The same of a PodGroup that Muster reads."""
OF_ANNOTATIONS = 250_000
"""The API server counts the annotations of an object."""
OF_A_NODE = 1_000_000
"""Bytes of JSON in all fields of `OF_NODES`. The API server adds to it who owns each entry."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_SELECTOR = {"matchLabels": {"a": "b"}}

Make = Callable[[int], Any]
"""One entry by its number: an element of a list, or a key and its value."""


def _container(number: int, **more: Any) -> Object:
    stored = {"imagePullPolicy": "Always", "terminationMessagePath": "/t", "terminationMessagePolicy": "File"}
    return {"name": f"c{number}", "image": "b", **stored, **more}


def _asking(number: int, amounts: Object, **more: Any) -> Object:
    return _container(number, resources={"limits": amounts, "requests": amounts}, **more)


def _term(**more: Any) -> Object:
    return {"topologyKey": "z", "labelSelector": _SELECTOR, **more}


def _expression(number: int) -> Object:
    return {"key": f"k{number}", "operator": "Exists"}


def _long(number: int) -> str:
    """Return the longest name that a label may have."""
    return ".".join(["d" * 63] * 3 + ["d" * 61]) + f"/{number:k>63}"


OF_PODS: dict[str, tuple[str, Make]] = {
    "labels": ("metadata.labels", lambda n: (f"k{n}", "")),
    "annotations": ("metadata.annotations", lambda n: (f"k{n}", "")),
    "annotations of ours": ("metadata.annotations", lambda n: (f"gpu.topology/k{n}", "")),
    "annotations like ours": ("metadata.annotations", lambda n: (f"gpu.topology/grou{n}", "")),
    "annotations like KAI's": ("metadata.annotations", lambda n: (f"kai.scheduler/queu{n}", "")),
    "owners": (
        "metadata.ownerReferences",
        lambda n: {"apiVersion": "v1", "kind": "X", "name": f"n{n}", "uid": f"u{n}"},
    ),
    "containers": ("spec.containers", lambda n: _asking(n, {"cpu": f"{n}m", "memory": f"{n}Ki"})),
    "containers with GPUs": ("spec.containers", lambda n: _asking(n, {"nvidia.com/gpu": "1"})),
    "containers with a resource each": ("spec.containers", lambda n: _asking(n, {f"x.y/r{n}": "1"})),
    "containers with shared GPUs": ("spec.containers", lambda n: _asking(n, {"aliyun.com/gpu-mem": "1"})),
    "init containers": ("spec.initContainers", lambda n: _asking(n, {"cpu": f"{n}m", "memory": f"{n}Ki"})),
    "init containers with a resource each": ("spec.initContainers", lambda n: _asking(n, {f"x.y/r{n}": "1"})),
    "sidecars": (
        "spec.initContainers",
        lambda n: _asking(n, {"cpu": f"{n}m", "memory": f"{n}Ki"}, restartPolicy="Always"),
    ),
    "sidecars with a resource each": (
        "spec.initContainers",
        lambda n: _asking(n, {f"x.y/r{n}": "1"}, restartPolicy="Always"),
    ),
    "resources": ("spec.containers.0.resources.limits", lambda n: (f"x.y/r{n}", f"{n}")),
    "overhead": ("spec.overhead", lambda n: (f"x.y/r{n}", f"{n}")),
    "resources of the pod": ("spec.resources.limits", lambda n: (f"hugepages-{n}Ki", f"{n}")),
    "ports": (
        "spec.containers.0.ports",
        lambda n: {
            "containerPort": 1,
            "hostPort": n % 65_535 + 1,
            "hostIP": f"10.{n % 9}.{n % 255}.{n // 255 % 255}",
        },
    ),
    "ports of the network": ("spec.containers.0.ports", lambda n: {"containerPort": n % 65_535 + 1}),
    "tolerations": ("spec.tolerations", lambda n: {"key": f"k{n}", "operator": "Exists"}),
    "node selector": ("spec.nodeSelector", lambda n: (f"k{n}", "v")),
    "terms of node affinity": (
        f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms",
        lambda n: {"matchExpressions": [_expression(n)]},
    ),
    "expressions of node affinity": (
        f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms.0.matchExpressions",
        _expression,
    ),
    "values of node affinity": (
        f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms.0.matchExpressions.0.values",
        lambda n: f"v{n}",
    ),
    "preferred terms of node affinity": (
        f"spec.affinity.nodeAffinity.{_PREFERRED}",
        lambda n: {"weight": 1, "preference": {"matchExpressions": [_expression(n)]}},
    ),
    "terms of pod affinity": (f"spec.affinity.podAffinity.{_REQUIRED}", lambda n: _term(topologyKey=f"z{n}")),
    "terms of pod anti-affinity": (
        f"spec.affinity.podAntiAffinity.{_REQUIRED}",
        lambda n: _term(topologyKey=f"z{n}"),
    ),
    "namespaces of pod anti-affinity": (
        f"spec.affinity.podAntiAffinity.{_REQUIRED}.0.namespaces",
        lambda n: f"ns{n}",
    ),
    "labels of pod anti-affinity": (
        f"spec.affinity.podAntiAffinity.{_REQUIRED}.0.labelSelector.matchLabels",
        lambda n: (f"k{n}", ""),
    ),
    "expressions of pod anti-affinity": (
        f"spec.affinity.podAntiAffinity.{_REQUIRED}.0.labelSelector.matchExpressions",
        _expression,
    ),
    "spread": (
        "spec.topologySpreadConstraints",
        lambda n: _term(maxSkew=1, whenUnsatisfiable="DoNotSchedule", topologyKey=f"z{n}"),
    ),
    "soft spread": (
        "spec.topologySpreadConstraints",
        lambda n: _term(maxSkew=1, whenUnsatisfiable="ScheduleAnyway", topologyKey=f"z{n}"),
    ),
    "label keys of spread": ("spec.topologySpreadConstraints.0.matchLabelKeys", lambda n: f"k{n}"),
    "volumes": ("spec.volumes", lambda n: {"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"c{n}"}}),
    "volumes of one claim": (
        "spec.volumes",
        lambda n: {"name": f"v{n}", "persistentVolumeClaim": {"claimName": "c"}},
    ),
    "ephemeral volumes": ("spec.volumes", lambda n: {"name": f"v{n}", "ephemeral": {}}),
    "scheduling gates": ("spec.schedulingGates", lambda n: {"name": f"a/g{n}"}),
    "resource claims": ("spec.resourceClaims", lambda n: {"name": f"c{n}", "resourceClaimName": f"c{n}"}),
    "conditions": ("status.conditions", lambda n: {"type": f"t{n}", "status": "True"}),
    "conditions of a resize": (
        "status.conditions",
        lambda n: {"type": "PodResizePending", "status": "True", "reason": f"r{n}"},
    ),
    "statuses of containers": (
        "status.containerStatuses",
        lambda n: {"name": f"c{n}", "allocatedResources": {"cpu": f"{n}m"}},
    ),
    "statuses of claims": (
        "status.resourceClaimStatuses",
        lambda n: {"name": f"c{n}", "resourceClaimName": f"c{n}"},
    ),
}
"""Field of a pod → its path, and what it is filled with."""

OF_GROUPS: dict[str, tuple[str, Make]] = {
    "labels": ("metadata.labels", lambda n: (f"k{n}", "")),
    "subgroups": ("spec.subGroups", lambda n: {"name": f"s{n}", "minMember": 1}),
    "subgroups in a chain": (
        "spec.subGroups",
        lambda n: {"name": f"s{n}", "parent": f"s{n - 1}"} if n else {"name": "s0"},
    ),
    "subgroups in a tree": (
        "spec.subGroups",
        lambda n: {"name": f"s{n}", "minSubGroup": 1, **({"parent": f"s{(n - 1) // 2}"} if n else {})},
    ),
    "subgroups in a ring": ("spec.subGroups", lambda n: {"name": f"s{n}", "parent": f"s{n + 1}"}),
    "subgroups of one name": ("spec.subGroups", lambda n: {"name": "s", "minMember": 1}),
    "tasks": ("spec.minTaskMember", lambda n: (f"t{n}", 1)),
    "terms": ("spec.topologyPolicy.affinity.required", lambda n: {"key": f"k{n}", "operator": "Exists"}),
    "unknown fields": ("spec", lambda n: (f"k{n}", n)),
    "numbers": ("spec.any", lambda n: 1),
    "status": ("status.any", lambda n: {"a": n}),
}
"""The same of a PodGroup."""

OF_JOBS: dict[str, tuple[str, Make]] = {
    "labels": ("metadata.labels", lambda n: (f"k{n}", "")),
    "annotations of the template": (
        "spec.template.metadata.annotations",
        lambda n: (f"kai.scheduler/k{n}", ""),
    ),
    "labels of the template": ("spec.template.metadata.labels", lambda n: (f"k{n}", "")),
    "containers": ("spec.template.spec.containers", lambda n: _asking(n, {"cpu": f"{n}m"})),
    "sidecars with a resource each": (
        "spec.template.spec.initContainers",
        lambda n: _asking(n, {f"x.y/r{n}": "1"}, restartPolicy="Always"),
    ),
    "resources": ("spec.template.spec.containers.0.resources.limits", lambda n: (f"x.y/r{n}", f"{n}")),
    "environment": ("spec.template.spec.containers.0.env", lambda n: {"name": f"k{n}", "value": "v"}),
    "tolerations": ("spec.template.spec.tolerations", lambda n: {"key": f"k{n}", "operator": "Exists"}),
    "numbers": ("spec.any", lambda n: 1),
    "conditions": ("status.conditions", lambda n: {"type": f"t{n}", "status": "True"}),
}
"""The same of a Job. The other kinds of jobs have such a template too."""

OF_NODES: dict[str, tuple[str, Make]] = {
    "labels": ("metadata.labels", lambda n: (_long(n), "v" * 63)),
    "annotations": ("metadata.annotations", lambda n: (f"k{n}", "v" * 10_000)),
    "taints": ("spec.taints", lambda n: {"key": _long(n), "value": "v" * 63, "effect": "NoSchedule"}),
    "resources": ("status.allocatable", lambda n: (_long(n), "1")),
}
"""The same of a Node, which may be large in all of these fields at once. Names are long: the API server works
for a second on a change of 40,000 short ones, and a node that changes slowly harms no one."""


def pod(field: str, number_of_bytes: int = OF_A_REQUEST, name: str = "large", **spec: Any) -> Object:
    """Return a pod that waits for a GPU, and is so large in this field of `OF_PODS`."""
    body = {
        "metadata": {"name": name, "labels": {}, "annotations": {}},
        "spec": {
            "schedulerName": "muster",
            "containers": [_asking(0, {"nvidia.com/gpu": "1"}, name="main")],
            **spec,
        },
    }
    size = min(number_of_bytes, OF_ANNOTATIONS) if "annotation" in field else number_of_bytes
    return filled(body, *OF_PODS[field], size)


def group(field: str, number_of_bytes: int = OF_A_GROUP, name: str = "large") -> Object:
    """Return a PodGroup that is so large in this field of `OF_GROUPS`."""
    body = {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": 2},
    }
    return filled(body, *OF_GROUPS[field], number_of_bytes)


def job(field: str, number_of_bytes: int = OF_ETCD, name: str = "large") -> Object:
    """Return a Job of two pods that is so large in this field of `OF_JOBS`."""
    template = {
        "spec": {"schedulerName": "muster", "containers": [_asking(0, {"nvidia.com/gpu": "1"}, name="main")]}
    }
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    body = {"apiVersion": "batch/v1", "metadata": {"name": name}, "spec": spec}
    return filled(body, *OF_JOBS[field], number_of_bytes)


def node(body: Object, number_of_bytes: int = OF_A_NODE) -> Object:
    """Return this Node, made so large in all fields of `OF_NODES` together."""
    for path, make in OF_NODES.values():
        filled(body, path, make, number_of_bytes // len(OF_NODES))
    return body


def matrix(gpus: int, link: str) -> str:
    """Return a matrix of this number of GPUs with this link between each two."""
    rows = [["X" if row == at else link for at in range(gpus)] for row in range(gpus)]
    head = "\t" + "\t".join(f"GPU{gpu}" for gpu in range(gpus))
    return "\n".join([head, *(f"GPU{gpu}\t" + "\t".join(row) for gpu, row in enumerate(rows))])


def filled(body: Object, path: str, make: Make, number_of_bytes: int) -> Object:
    """Return an object with `number_of_bytes` of JSON in the field at `path`, after what is there."""
    *parents, last = path.split(".")
    at: Any = body
    for key, after in zip(parents, [*parents, last][1:], strict=True):
        if key == "0":
            at.extend([] if at else [{}])
            at = at[0]
        else:
            at = at.setdefault(key, [] if after == "0" else {})
    entry = make(10**5)
    of_map = isinstance(entry, tuple)
    size = len(json.dumps(dict([entry]) if of_map else entry)) + (0 if of_map else 2)
    entries = [make(number) for number in range(number_of_bytes // size)]
    if of_map:  # the API server sends the members of a map in order
        at[last] = dict(sorted([*at.get(last, {}).items(), *entries]))
    else:
        at[last] = [*at.get(last, []), *entries]
    return body
