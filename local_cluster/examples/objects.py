"""Objects of any kind that examples/ holds: to the API server, and away from it again."""

from __future__ import annotations

from collections.abc import Iterable

from local_cluster.api import Api, ApiError, Object
from local_cluster.cluster import LocalCluster

CLUSTER_WIDE = frozenset({"Node", "Namespace", "CustomResourceDefinition", "Topology"})


def collection(body: Object) -> str:
    """The API path of the object's collection."""
    version, kind = str(body["apiVersion"]), str(body["kind"])
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
    if kind in CLUSTER_WIDE:
        return f"{root}/{plural}"
    return f"{root}/namespaces/{namespace_of(body)}/{plural}"


def namespace_of(body: Object) -> str:
    """Return the object's namespace."""
    return str(body["metadata"].get("namespace", "default"))


def apply(cluster: LocalCluster, objects: Iterable[Object]) -> None:
    """Create the objects in their order, with their namespaces; what is there already is brought to what is
    wanted."""
    for body in objects:
        if body["kind"] not in CLUSTER_WIDE:
            cluster.create_namespace(namespace_of(body))
        if not cluster.api.create(collection(body), body):
            cluster.api.patch(f"{collection(body)}/{body['metadata']['name']}", body)


def remove(api: Api, objects: Iterable[Object]) -> None:
    """Delete the objects, and what controllers made of them; nodes stay."""
    for body in objects:
        if body["kind"] == "Node":
            continue
        path = f"{collection(body)}/{body['metadata']['name']}"
        try:
            api.delete(f"{path}?propagationPolicy=Background")
        except ApiError as problem:
            if problem.status != 404:
                raise
