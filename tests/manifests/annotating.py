"""Pods with annotations, made and changed by a client of a real API server."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from kubernetes.client.exceptions import ApiException

from tests.manifests.rendering import Manifest


def pods(client: Any) -> Any:
    """The client's view of pods."""
    return client.resources.get(api_version="v1", kind="Pod")


def pod(annotations: Mapping[str, str], scheduler: str = "muster") -> Manifest:
    """A pod of a name that no other has."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p-{uuid.uuid4().hex[:8]}", "annotations": dict(annotations)},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "image": "main"}]},
    }


def create(client: Any, annotations: Mapping[str, str], namespace: str = "default") -> Manifest:
    """Create such a pod."""
    created: Manifest = pods(client).create(body=pod(annotations), namespace=namespace).to_dict()
    return created


def refused(
    client: Any, annotations: Mapping[str, str], namespace: str = "default", scheduler: str = "muster"
) -> str:
    """Why such a pod is refused; "" if it is not."""
    body = pod(annotations, scheduler)
    try:
        pods(client).create(body=body, namespace=namespace, query_params=[("dryRun", "All")])
    except ApiException as problem:
        return str(problem.body)
    return ""


def annotate(client: Any, on: Manifest, change: Mapping[str, str | None], path: str = "") -> None:
    """Change annotations of a pod, through a subresource if `path` names one."""
    resource = pods(client).subresources[path] if path else pods(client)
    resource.patch(
        body={"metadata": {"annotations": change}},
        name=on["metadata"]["name"],
        namespace=on["metadata"]["namespace"],
        content_type="application/merge-patch+json",
    )


def bind(client: Any, on: Manifest, annotations: Mapping[str, str]) -> None:
    """Bind a pod to node n1 with these annotations."""
    name = on["metadata"]["name"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": dict(annotations)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    resource = pods(client).subresources["binding"]
    resource.create(body=binding, name=name, namespace=on["metadata"]["namespace"])
