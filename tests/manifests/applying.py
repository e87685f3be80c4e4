"""Server-side apply with any kubeconfig, as `kubectl apply --server-side --validate=strict` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient

from tests.manifests.rendering import Manifest

FIELD_MANAGER = "muster-manifests"


def connect(kubeconfig: Path) -> Any:
    """A dynamic client: it finds paths by kind, and carries no class for each of them."""
    load: Any = config.new_client_from_config  # untyped, like all of that package
    dynamic: Any = DynamicClient
    return dynamic(load(config_file=str(kubeconfig)))


def apply(client: Any, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
    """Apply one object; what the server made of it. Unknown and doubled fields are errors."""
    resource = client.resources.get(api_version=manifest["apiVersion"], kind=manifest["kind"])
    query = [("fieldValidation", "Strict"), ("fieldManager", FIELD_MANAGER), ("force", "true")]
    if dry_run:
        query.append(("dryRun", "All"))
    metadata = manifest["metadata"]
    namespace = metadata.get("namespace") if resource.namespaced else None
    try:
        answer = client.server_side_apply(resource, body=manifest, namespace=namespace, query_params=query)
    except ApiException as problem:
        text = f"{manifest['kind']} {metadata['name']}: {problem.status} {problem.body}"
        raise AssertionError(text) from problem
    applied: Manifest = answer.to_dict()
    return applied
