"""A live cluster as one file that `muster place` decides like the service would.

Nodes and pods are read as the service reads them, and only what is read is written: no environment, no
images, no secrets, no status but what counts. Of labels and annotations of pods the known ones are kept.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from muster.adapters.kube import decode
from muster.adapters.kube.client import ApiError, KubeClient
from muster.adapters.kube.decode import Resource, T
from muster.dialects.objects import Metadata, NodeObject, PodObject
from muster.dialects.settings import DEFAULTS, Settings

PAGE_SIZE = 500
ATTEMPTS = 3
"""How often a list is begun: the token of its next page may expire on the way."""
HTTP_GONE = 410

KEPT_PREFIXES = (
    "gpu.topology/",
    "apps.kubernetes.io/pod-index",
    "gpu-topology",
    "scheduling.run.ai/",
    "scheduling.x-k8s.io/",
    "aliyun.com/",
    "nvidia.com/",
    "ALIYUN_COM_GPU_",
    "scheduler.framework.gpushare.",
    "batch.kubernetes.io/job-completion-index",
)
"""Labels and annotations of pods, and annotations of nodes, that dialects read. Others may hold anything:
kubectl's last-applied-configuration holds the whole manifest."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The objects of a List, and what could not be read."""

    items: tuple[dict[str, Any], ...]
    nodes: int
    pods: int
    problems: tuple[str, ...]


async def capture(client: KubeClient, settings: Settings = DEFAULTS) -> Captured:
    """Read nodes and pods, page by page.

    Raises:
        KubeError: the API server refuses or does not answer.
        Undecodable: its answer is no list.
    """
    problems: list[str] = []
    nodes = await _listed(client, decode.nodes(), problems)
    pods = await _listed(client, decode.pods(), problems)
    items = [*(node_item(node, settings) for node in nodes), *(pod_item(pod, settings) for pod in pods)]
    return Captured(tuple(items), len(nodes), len(pods), tuple(problems))


async def _listed(client: KubeClient, resource: Resource[T], problems: list[str]) -> list[T]:
    for attempt in range(1, ATTEMPTS + 1):
        unreadable: list[str] = []
        try:
            items = [item async for item in _items(client, resource, unreadable)]
        except ApiError as refusal:
            if refusal.status != HTTP_GONE or attempt == ATTEMPTS:
                raise
        else:
            problems.extend(unreadable)
            return items
    raise AssertionError("the last attempt returns or raises")


async def _items(client: KubeClient, resource: Resource[T], problems: list[str]) -> AsyncIterator[T]:
    token = ""
    while True:
        query = {"limit": str(PAGE_SIZE)} | ({"continue": token} if token else {})
        page = resource.page(await client.get(resource.plural, resource.path, query))
        problems.extend(str(problem) for problem in page.unreadable)
        for item in page.items:
            yield item
        token = page.token
        if not token:
            return


# --- what is written -------------------------------------------------------------------------------


def node_item(node: NodeObject, settings: Settings = DEFAULTS) -> dict[str, Any]:
    """A node with all its labels: selectors and scopes may name any."""
    meta = _metadata(node.metadata, node.metadata.labels, settings)
    return _item("Node", msgspec.structs.replace(node, metadata=meta))


def pod_item(pod: PodObject, settings: Settings = DEFAULTS) -> dict[str, Any]:
    labels = _kept(pod.metadata.labels, settings)
    owners = [owner for owner in pod.metadata.owner_references or () if owner.controller]
    meta = _metadata(pod.metadata, labels, settings)
    meta = msgspec.structs.replace(meta, owner_references=owners or None)
    return _item("Pod", msgspec.structs.replace(pod, metadata=meta))


def _metadata(meta: Metadata, labels: dict[str, str] | None, settings: Settings) -> Metadata:
    return msgspec.structs.replace(
        meta, resource_version="", labels=labels, annotations=_kept(meta.annotations, settings)
    )


def _kept(values: Mapping[str, str] | None, settings: Settings) -> dict[str, str] | None:
    named = {settings.matrix, settings.ack_name, settings.ack_replicas, settings.ack_node_mode}
    kept = {
        key: value for key, value in (values or {}).items() if key in named or key.startswith(KEPT_PREFIXES)
    }
    return kept or None


def _item(kind: str, value: NodeObject | PodObject) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, **msgspec.to_builtins(value)}


def written(items: Iterable[dict[str, Any]], as_yaml: bool) -> str:
    """One `kind: List`: an object a line in JSON, a document of the usual look in YAML."""
    if as_yaml:
        whole = {"apiVersion": "v1", "kind": "List", "items": list(items)}
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        return str(yaml.dump(whole, Dumper=dumper, sort_keys=False, width=1_000_000))
    return '{"apiVersion":"v1","kind":"List","items":[\n' + ",\n".join(_lines(items)) + "\n]}\n"


def _lines(items: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(item, separators=(",", ":"), ensure_ascii=False) for item in items)
