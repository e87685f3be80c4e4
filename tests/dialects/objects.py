"""Kubernetes objects for these tests, as the API has them and decoded as in production."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from muster.dialects.objects import ConfigMapObject, CustomObject, Metadata, NodeObject, PodObject


def pod_object(
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    limits: dict[str, Any] | None = None,
    scheduler: str = "muster",
    node: str = "",
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **metadata: Any,
) -> PodObject:
    """A pod with one container `main`; what is given replaces fields."""
    return msgspec.convert(
        {
            "metadata": {
                "name": "p",
                "namespace": "ns",
                "uid": "u",
                "labels": labels,
                "annotations": annotations,
                "creationTimestamp": "2026-01-01T00:00:00Z",
                **metadata,
            },
            "spec": {
                "schedulerName": scheduler,
                "nodeName": node,
                "containers": [{"name": "main", "resources": {"limits": limits or {}}}],
                **(spec or {}),
            },
            "status": status or {"phase": "Pending"},
        },
        PodObject,
    )


def node_object(
    allocatable: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    matrix: str | None = None,
    annotations: dict[str, str] | None = None,
    **more: Any,
) -> NodeObject:
    """A ready node; `matrix` is its GPU_TOPOLOGY."""
    return msgspec.convert(
        {
            "metadata": {
                "name": "n",
                "labels": labels,
                "annotations": annotations if matrix is None else {"GPU_TOPOLOGY": matrix},
            },
            "spec": more.get("spec", {}),
            "status": {
                "capacity": more.get("capacity"),
                "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110", **(allocatable or {})},
                "conditions": [{"type": "Ready", "status": more.get("ready", "True")}],
            },
        },
        NodeObject,
    )


def config_map(
    name: str,
    data: dict[str, str] | None,
    labels: dict[str, str] | None = None,
    namespace: str = "kube-system",
) -> ConfigMapObject:
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "data": data}, ConfigMapObject
    )


def custom_object(
    api_version: str, kind: str, name: str, spec: Any, *, annotations: dict[str, str] | None = None
) -> CustomObject:
    """A PodGroup, a CompositePodGroup or a Topology."""
    namespace = "" if kind == "Topology" else "ns"
    metadata = Metadata(name=name, namespace=namespace, uid="u", annotations=annotations)
    return CustomObject(api_version, metadata, spec, kind=kind)


def full_matrix(gpus: int, kind: str = "NV2", words: str = "Two NVLinks") -> dict[str, str]:
    """The pairs of GPU_TOPOLOGY, all alike."""
    return {f"GPU_{kind}_{i}_{j}": words for i in range(gpus) for j in range(i + 1, gpus)}


def as_json(pairs: dict[str, str]) -> str:
    return json.dumps(pairs)
