"""ConfigMaps → facts of nodes, and the text of the cluster's policies.

kube-system, labels ack.node.gpu.schedule=topology, nodename=<node>: what newer ACK device plugins publish
    devices:   {"0":"Healthy","1":"Unhealthy"}       of each GPU
    linkType:  [["X","NV2"],["NV2","X"]]              in any form that `matrices` reads
    bandwidth: [[0,48.4],[48.3,0]]                    GB/s, in place of the modelled ones
kube-system/unhealthy-gpu-<node>:                    what gpushare's device plugin publishes
    gpus: "0,2"
muster-system/kai-scheduler-config:                  the cluster's policies, see `policies`
    config.yaml: …

All values are text, most of it JSON. A value that can't be read becomes a sentence among the `problems` of
the node, which is used without this value. There are no exceptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from muster.dialects import keys
from muster.dialects.nodes import matrices
from muster.dialects.nodes.bounds import MAX_TEXT
from muster.dialects.nodes.matrices import Matrix
from muster.dialects.objects import ConfigMapObject, Metadata
from muster.dialects.reading import mask_of_list, natural
from muster.dialects.settings import DEFAULTS, DialectSettings
from muster.domain.allocation import MAX_GPUS
from muster.domain.topology import Link

DEVICES, LINKS, BANDWIDTH = "devices", "linkType", "bandwidth"
UNHEALTHY = "gpus"

MAX_GB_PER_S = 1e6

_HEALTHY = "healthy"
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class NodeFact:
    """The facts that a device plugin publishes about one node's GPUs.

    `matrix` is None if the matrix can't be read. No pod may be planned on GPUs of the bit mask `unhealthy`.
    `name` is the name of the ConfigMap, for sentences.
    """

    node: str
    name: str
    has_matrix: bool = False
    matrix: Matrix | None = None
    unhealthy: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyText:
    """The cluster's policies as text; "" if the key is missing."""

    text: str


def read(obj: ConfigMapObject, settings: DialectSettings = DEFAULTS) -> NodeFact | PolicyText | None:
    """Return the facts that the ConfigMap publishes; None if it is another ConfigMap."""
    meta, data = obj.metadata, obj.data or {}
    if (meta.namespace, meta.name) == (settings.policies_namespace, settings.policies_name):
        return PolicyText(data.get(settings.policies_key, ""))
    node, name = node_of(obj, settings), f"ConfigMap {meta.namespace}/{meta.name}"
    if not node:
        return None
    return (_read_topology if _is_topology(obj) else _read_unhealthy)(node, name, data)


def node_of(obj: ConfigMapObject, settings: DialectSettings = DEFAULTS) -> str:
    """Return the node that the ConfigMap describes; "" if it describes none."""
    meta = obj.metadata
    if meta.namespace != settings.system_namespace:
        return ""
    if _is_topology(obj):
        return (meta.labels or {})[keys.ACK_NODE_NAME]
    node = meta.name.removeprefix(keys.UNHEALTHY_PREFIX)
    return node if node != meta.name else ""


def trim(obj: ConfigMapObject) -> ConfigMapObject:
    """Return the parts of a node's ConfigMap that are read, because a ConfigMap may have a megabyte."""
    data, meta = obj.data or {}, obj.metadata
    texts = {key: data[key][: MAX_TEXT + 1] for key in (DEVICES, LINKS, BANDWIDTH, UNHEALTHY) if key in data}
    identity = Metadata(meta.name, "", meta.namespace, meta.uid, labels=meta.labels)
    return ConfigMapObject(identity, texts or dict.fromkeys(list(data)[:1], ""))


def _is_topology(obj: ConfigMapObject) -> bool:
    labels = obj.metadata.labels or {}
    return bool(labels.get(keys.ACK_NODE_NAME)) and labels.get(keys.ACK_NODE_MODE) == keys.ACK_TOPOLOGY


def _read_unhealthy(node: str, name: str, data: Mapping[str, str]) -> NodeFact:
    if data and UNHEALTHY not in data:
        expected = f'{name}: expected the key {UNHEALTHY}, as in {UNHEALTHY}: "0,2"'
        return NodeFact(node, name, problems=(f"{expected}: all GPUs count as healthy",))
    mask, slips = mask_of_list(data.get(UNHEALTHY, "")[:MAX_TEXT], MAX_GPUS)
    if not slips:
        return NodeFact(node, name, unhealthy=mask)
    problem = (
        f'{name}: {UNHEALTHY} has {slips[0][:_SHOWN]!r} in it, expected GPUs as in "0,2": the others are used'
    )
    return NodeFact(node, name, unhealthy=mask, problems=(problem,))


def _read_topology(node: str, name: str, data: Mapping[str, str]) -> NodeFact:
    problems: list[str] = []
    unhealthy, matrix = 0, None
    try:
        unhealthy, slip = _read_devices(data)
        problems += [f"{name}: {DEVICES}: {slip}"] if slip else []
    except _Unreadable as error:
        problems.append(f"{name}: {DEVICES}: {error}; all GPUs count as healthy")
    try:
        matrix = matrices.read(data[LINKS]) if LINKS in data else None
    except matrices.Unreadable as error:
        problems.append(f"{name}: {LINKS}: {error}; it is not used")
    if matrix is not None:
        problems.extend(f"{name}: {LINKS}: {problem}" for problem in matrix.problems)
    if matrix is not None and BANDWIDTH in data:
        try:
            matrix, slip = _with_measured_bandwidths(matrix, data)
            problems += [f"{name}: {BANDWIDTH}: {slip}"] if slip else []
        except _Unreadable as error:
            problems.append(f"{name}: {BANDWIDTH}: {error}; modelled bandwidths are used")
    return NodeFact(node, name, LINKS in data, matrix, unhealthy, tuple(problems))


class _Unreadable(ValueError):
    """Its text says why a value can't be read."""


def _read_devices(data: Mapping[str, str]) -> tuple[int, str]:
    """Return the bit mask of unhealthy GPUs, and a sentence about entries that can't be read.

    An entry that can't be read changes no other GPU. No pod is planned on a GPU that is reported broken.
    """
    if DEVICES not in data:
        return 0, ""
    states = _json(data[DEVICES])
    if not isinstance(states, dict):
        raise _Unreadable('expected a JSON object, as in {"0":"Healthy"}')
    mask, bad = 0, list[str]()
    for key, state in states.items():
        gpu = natural(key)
        if gpu is None or gpu >= MAX_GPUS or not isinstance(state, str):
            bad.append(f"{key[:_SHOWN]!r}: {str(state)[:_SHOWN]!r}")
        else:
            mask |= (state.lower() != _HEALTHY) << gpu
    expected = 'is no state of a GPU, expected as in {"0":"Healthy"}: the others are used'
    return mask, f"{bad[0]} {expected}" if bad else ""


def _with_measured_bandwidths(matrix: Matrix, data: Mapping[str, str]) -> tuple[Matrix, str]:
    """Return the links with measured bandwidths: that of the slower direction, in whole GB/s.

    Bandwidths are rounded so that measurement noise does not make every node different. A pair without two
    bandwidths keeps the modelled bandwidth. Also return a sentence about such pairs.
    """
    rows = _json(data[BANDWIDTH])
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise _Unreadable("expected a JSON list of lists")
    links, bad = dict(matrix.links), list[str]()
    for (i, j), link in matrix.links.items():
        forward_speed, backward_speed = _speed(rows, i, j), _speed(rows, j, i)
        if forward_speed is None or backward_speed is None:
            bad.append(f"GPUs {i} and {j} have no positive number of GB/s")
        elif link is not None:
            links[i, j] = Link(link.kind, float(max(1, round(min(forward_speed, backward_speed)))))
    and_more = f" (and {len(bad) - 1} pairs more)" if len(bad) > 1 else ""
    slip = f"{bad[0]} both ways{and_more}; modelled bandwidths are used there" if bad else ""
    return replace(matrix, links=links), slip


def _speed(rows: list[list[object]], i: int, j: int) -> float | None:
    value = rows[i][j] if i < len(rows) and j < len(rows[i]) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_GB_PER_S:
        return float(value)
    return None


def _json(text: str) -> object:
    if len(text) > MAX_TEXT:
        raise _Unreadable(f"it has more than {MAX_TEXT:,} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"it is no JSON ({str(error)[:80]})") from error
