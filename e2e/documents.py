"""The manifests of the four documents, as examples/ has them, and the nodes that they are for."""

from __future__ import annotations

from e2e.objects import KWOK
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.examples.catalogue import EXAMPLES, objects_in


def manifests(name: str) -> list[Object]:
    """The objects of one example: ack/pytorchjob-pods."""
    return objects_in(EXAMPLES / f"{name}.yaml")


def create_nodes(scene: Scene, cluster: str = "documents") -> dict[str, Object]:
    """The nodes of a cluster of examples/, idle; by the name that they have there."""
    bodies = [
        body for body in objects_in(EXAMPLES / "clusters" / f"{cluster}.yaml") if body["kind"] == "Node"
    ]
    nodes = {}
    for body in bodies:
        name = body["metadata"]["name"]
        body["metadata"].setdefault("annotations", {}).update(KWOK)
        body["status"]["capacity"] = body["status"]["allocatable"]
        nodes[name] = scene.client.get(f"/api/v1/nodes/{scene.node(body)}")
    return nodes


def short(scene: Scene, node: str) -> str:
    """A node's name as examples/ has it."""
    return node.removeprefix(f"{scene.name}-")


def grepped(scene: Scene) -> list[str]:
    """What `kubectl get events | grep -i topology` prints: the columns of the API server's own table."""
    path = f"/api/v1/namespaces/{scene.name}/events"
    rows = scene.client.table(path)["rows"]
    lines = ["   ".join(str(cell) for cell in row["cells"]) for row in rows]
    return [line for line in lines if "topology" in line.lower()]
