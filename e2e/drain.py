"""Drain a node that runs a replica of Muster: its pod is evicted as `kubectl drain` does it.

Muster's processes run outside of the cluster. So each replica that takes part has a pod that stands for it,
with the labels of the Deployment. The PodDisruptionBudget is that of scheduler-config/.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from e2e.record import Record
from e2e.scene import Scene
from local_cluster.api import ApiError, Object
from local_cluster.stack_config import MANIFESTS, manifests_of

NAMESPACE = "muster-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
TOO_MANY_REQUESTS = 429


class Seats:
    """The pods of replicas, and their budget. All of them are gone at the end."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._pods: list[str] = []
        (deployment,) = manifests_of(MANIFESTS / "deployment.yaml")
        (self._budget,) = manifests_of(MANIFESTS / "poddisruptionbudget.yaml")
        self._template: Object = deployment["spec"]["template"]
        self._template["spec"].pop("priorityClassName")  # it is not installed here

    def __enter__(self) -> Self:
        self._scene.client.post(BUDGETS, self._budget)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._pods:
            if self._scene.client.find(f"{PODS}/{name}") is not None:
                self._scene.client.delete(f"{PODS}/{name}", grace_s=0)
        self._scene.client.delete(f"{BUDGETS}/{self._budget['metadata']['name']}")

    def take(self, name: str, node: str) -> None:
        """Create the pod of a replica that is ready, on this node."""
        labels = {"labels": self._template["metadata"]["labels"]}
        pod = {"metadata": {"name": name, **labels}, "spec": self._template["spec"] | {"nodeName": node}}
        self._scene.client.post(PODS, pod)
        self._pods.append(name)

    def may_go(self, count: int) -> None:
        """Wait until the budget allows this number of evictions."""
        with Record(self._scene.client, (BUDGETS,)) as record:
            record.until(
                lambda: any(
                    budget.get("status", {}).get("disruptionsAllowed") == count
                    for budget in record.live(BUDGETS)
                ),
                f"the budget allows {count} evictions",
            )

    def evict(self, name: str) -> bool:
        """Return whether the pod may be evicted now; if so, it is being."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        try:
            self._scene.client.post(f"{PODS}/{name}/eviction", eviction)
        except ApiError as refusal:
            if refusal.status != TOO_MANY_REQUESTS:
                raise
            return False
        return True
