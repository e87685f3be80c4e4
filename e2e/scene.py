"""What one test has for itself: a namespace, nodes, a record of all that happens, and the auditor.

A test creates pods and awaits what becomes of them, as somebody at a terminal would. Every wait is for a
change on the API server, and what is awaited is named if it never comes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from e2e.audit import GRACE_S, Auditor, Violation, judge
from e2e.client import Client
from e2e.facts import NodeFacts, PodFacts
from e2e.pace import Pace
from e2e.record import EVENTS, NODES, PODS, Record
from local_cluster.api import ApiError, Object
from local_cluster.examples.objects import collection
from local_cluster.patience import HANG_S

FENCE = "e2e.muster.dev/scene"
COMPLETE = "local-cluster/complete-after"
"""Annotation: kwok ends a running pod so long after it began (local_cluster/kwok_stages.yaml)."""
EXIT_CODE = "local-cluster/exit-code"


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """A Kubernetes event on a pod."""

    pod: str
    reason: str
    message: str
    count: int


class Scene:
    """`name` is unique and begins the names of all that belongs to it."""

    def __init__(self, client: Client, *, fenced: bool = False, grace_s: float = GRACE_S) -> None:
        self.client = client
        self.name = f"e2e-{uuid.uuid4().hex[:8]}"
        self.record = Record(client)
        self._fenced = fenced
        self._nodes: list[str] = []
        self._audited = 0
        self._pace = Pace(client, self.name)
        self._auditor = Auditor(grace_s, clock=self._pace.at)

    def __enter__(self) -> Self:
        self.record.__enter__()
        self.client.post("/api/v1/namespaces", {"metadata": {"name": self.name}})
        account = f"/api/v1/namespaces/{self.name}/serviceaccounts/default"
        accounts = f"/api/v1/namespaces/{self.name}/serviceaccounts"
        with Record(self.client, (accounts,)) as record:
            record.until(lambda: record.live(accounts), f"{account} exists")
        self._pace.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pace.__exit__(kind, error, trace)
        try:
            self.clear()
            self.client.delete(f"/api/v1/namespaces/{self.name}")
        finally:
            self.record.__exit__(kind, error, trace)

    # --- creating and deleting ------------------------------------------------------------------

    def node(self, body: Object) -> str:
        """Create a node, its name made unique, and wait until it takes pods; its full name."""
        name = f"{self.name}-{body['metadata']['name']}"
        labels = body["metadata"]["labels"] | {"kubernetes.io/hostname": name, FENCE: self.name}
        body["metadata"] |= {"name": name, "labels": labels}
        self._nodes.append(name)
        self.client.post(NODES, body)
        self.until(lambda: self._takes_pods(name), f"node {name} is ready")
        return name

    def create(self, *pods: Object) -> list[str]:
        """Create pods, in this order; their names."""
        return [self._create("/api/v1", "pods", pod, pod) for pod in map(deepcopy, pods)]

    def create_job(self, job: Object) -> str:
        """Create a Job; its name. Its pods are the job controller's to make."""
        job = deepcopy(job)
        return self._create("/apis/batch/v1", "jobs", job, job["spec"]["template"])

    def apply(self, *bodies: Object) -> None:
        """Create objects of any kind, in this order, in the scene's namespace instead of their own."""
        for body in map(deepcopy, bodies):
            body["metadata"]["namespace"] = self.name
            pod = body if body["kind"] == "Pod" else (body.get("spec") or {}).get("template")
            if self._fenced and pod is not None:
                pod["spec"]["nodeSelector"] = pod["spec"].get("nodeSelector", {}) | {FENCE: self.name}
            self.client.post(collection(body), body)

    def delete(self, *names: str) -> None:
        """Delete pods and wait until they are gone."""
        for name in names:
            self._delete(f"/api/v1/namespaces/{self.name}/pods/{name}")
        self.until(lambda: not {*names} & {*self.pods()}, f"pods {', '.join(names)} are gone")

    def end(self, *names: str) -> None:
        """Have running pods come to their end, and wait for it; where no kwok does that, delete them."""
        if self._fenced:
            self.delete(*names)
            return
        for name in names:
            path = f"/api/v1/namespaces/{self.name}/pods/{name}"
            self.client.patch(path, {"metadata": {"annotations": {COMPLETE: "0s"}}})
        self.until(
            lambda: all(pod.finished for name, pod in self.pods().items() if name in names),
            f"pods {', '.join(names)} have ended",
        )

    def fail(self, name: str) -> None:
        """Have a running pod fail. Its controller may replace it at once, so nothing is waited for."""
        path = f"/api/v1/namespaces/{self.name}/pods/{name}"
        self.client.patch(path, {"metadata": {"annotations": {COMPLETE: "0s", EXIT_CODE: "1"}}})

    def clear(self) -> None:
        """Delete all that makes pods, pods and nodes of the scene; wait until pods and nodes are gone."""
        for owners in ("batch/v1/namespaces/{}/jobs", "apps/v1/namespaces/{}/statefulsets"):
            self.client.delete(f"/apis/{owners.format(self.name)}?propagationPolicy=Background")
        self.client.delete(f"/api/v1/namespaces/{self.name}/pods", grace_s=0)
        self.until(lambda: not self.pods(), "all pods of the scene are gone")
        for name in self._nodes:
            self._delete(f"{NODES}/{name}")
        self._nodes.clear()
        self.until(lambda: not self._own(NODES), "all nodes of the scene are gone")

    # --- looking --------------------------------------------------------------------------------

    def until(self, question: Callable[[], object], event: str, quiet_s: float = HANG_S) -> None:
        """Wait until the answer is true; it is asked again after every change."""
        self.record.until(lambda: question() or None, event, quiet_s)

    def pods(self) -> dict[str, PodFacts]:
        """The pods of the namespace by name."""
        return {str(body["metadata"]["name"]): PodFacts.of(body) for body in self._own(PODS)}

    def pods_of_job(self, job: str) -> list[str]:
        return sorted(
            str(body["metadata"]["name"])
            for body in self._own(PODS)
            if (body["metadata"].get("labels") or {}).get("batch.kubernetes.io/job-name") == job
        )

    def bound(self) -> set[str]:
        """Names of the pods that have a node."""
        return {name for name, pod in self.pods().items() if pod.node}

    def gpus(self, name: str) -> tuple[int, ...]:
        """The GPUs that a bound pod's annotations give it, rising."""
        return tuple(sorted(self.allocation_in_order(name)))

    def allocation_in_order(self, name: str) -> tuple[int, ...]:
        """The same in the plan's order."""
        allocation = self.pods()[name].allocation
        assert allocation is not None, f"{name} has no allocation"
        return allocation

    def events(self, reason: str, pod: str = "") -> list[SeenEvent]:
        """Events of this reason, on one pod (or node) or on any."""
        return [
            event for event in self.all_events() if event.reason == reason and (not pod or event.pod == pod)
        ]

    def all_events(self) -> list[SeenEvent]:
        return [
            SeenEvent(
                pod=str(body["involvedObject"].get("name", "")),
                reason=str(body.get("reason", "")),
                message=str(body.get("message", "")),
                count=int(body.get("count") or (body.get("series") or {}).get("count") or 1),
            )
            for body in self._own(EVENTS)
        ]

    def condition(self, pod: str) -> str:
        """The message of the pod's PodScheduled condition while it is False; "" otherwise."""
        scheduled = self.conditions(pod).get("PodScheduled", {})
        return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""

    def conditions(self, pod: str) -> dict[str, Object]:
        """The pod's conditions by type; none if there is no such pod."""
        for body in self._own(PODS):
            if body["metadata"]["name"] == pod:
                conditions = (body.get("status") or {}).get("conditions") or ()
                return {condition["type"]: condition for condition in conditions}
        return {}

    # --- awaiting -------------------------------------------------------------------------------

    def runs(self, names: Iterable[str]) -> None:
        """Wait until these pods run."""
        awaited = set(names)

        def all_run() -> bool:
            pods = self.pods()
            return all(name in pods and pods[name].phase == "Running" for name in awaited)

        self.until(all_run, f"{', '.join(sorted(awaited))} run")

    def event(self, reason: str, pod: str = "") -> SeenEvent:
        """Wait for an event of this reason."""
        self.until(lambda: self.events(reason, pod), f"an event {reason} on {pod or 'a pod'}")
        return self.events(reason, pod)[0]

    def says(self, pod: str, *words: str) -> str:
        """Wait until the pod's condition holds these words; the condition's message."""
        self.until(
            lambda: all(word in self.condition(pod) for word in words) and self.condition(pod),
            f"the PodScheduled condition of {pod} says {', '.join(words)}",
        )
        return self.condition(pod)

    # --- the auditor ----------------------------------------------------------------------------

    def audit(self) -> None:
        """Judge all that happened so far and what is there now; a half-bound gang has its grace to finish."""
        self._catch_up()
        if self._auditor.half_bound():
            aim = f"half-bound gangs become whole: {', '.join(self._auditor.half_bound())}"
            self.until(lambda: self._catch_up() and self._auditor.in_order, aim)
        findings = self.findings()
        assert not findings, "the auditor found:\n" + "\n".join(f"  {violation}" for violation in findings)

    def findings(self) -> list[Violation]:
        """What the auditor has found so far, and finds now; each once."""
        self._catch_up()
        return list(dict.fromkeys(self._auditor.violations + self._judge_now()))

    @property
    def binds(self) -> list[PodFacts]:
        """The scene's pods that were bound while it watched, each as first seen with a node, in order."""
        self._catch_up()
        return [pod for _, pod in self._auditor.binds if pod.name.startswith(f"{self.name}/")]

    @property
    def bound_at(self) -> list[float]:
        """When each of the scene's pods was seen with a node first, rising."""
        self._catch_up()
        return sorted(at for at, pod in self._auditor.binds if pod.name.startswith(f"{self.name}/"))

    def _catch_up(self) -> bool:
        for change in self.record.changes(self._audited):
            self._audited += 1
            if change.kind == NODES:
                self._auditor.node(NodeFacts.of(change.body))
            elif change.kind == PODS and change.deed == "DELETED":
                self._auditor.gone(change.at, change.uid)
            elif change.kind == PODS and change.deed == "LISTED":
                self._auditor.existed(change.at, PodFacts.of(change.body))
            elif change.kind == PODS:
                self._auditor.pod(change.at, PodFacts.of(change.body))
        self._auditor.passed(time.monotonic())
        return True

    def _judge_now(self) -> list[Violation]:
        """From fresh lists, not from what was watched."""
        pods = self.client.get(PODS)["items"]
        nodes = self.client.get(NODES)["items"]
        return judge(map(PodFacts.of, pods), map(NodeFacts.of, nodes))

    # --- inside ---------------------------------------------------------------------------------

    def _own(self, kind: str) -> list[Object]:
        if kind == NODES:
            return [body for body in self.record.live(NODES) if body["metadata"]["name"] in self._nodes]
        return [body for body in self.record.live(kind) if self._is_own(body)]

    def _is_own(self, body: Object) -> bool:
        """Of our namespace, or an event on one of our nodes, which lie in `default`."""
        on = body.get("involvedObject") or {}
        on_node = on.get("kind") == "Node" and on.get("name") in self._nodes
        return on_node or body["metadata"]["namespace"] == self.name

    def _takes_pods(self, name: str) -> bool:
        for body in self._own(NODES):
            if body["metadata"]["name"] == name:
                conditions = (body.get("status") or {}).get("conditions") or ()
                ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
                return ready and not body["spec"].get("taints")
        return False

    def _create(self, group: str, plural: str, body: Object, pod: Object) -> str:
        """Create an object with a pod (template) in it, kept on the scene's nodes where there are others."""
        if self._fenced:
            pod["spec"]["nodeSelector"] = {FENCE: self.name}
        created = self.client.post(f"{group}/namespaces/{self.name}/{plural}", body)
        return str(created["metadata"]["name"])

    def _delete(self, path: str) -> None:
        """Delete an object at once; nothing when it is gone already."""
        try:
            self.client.delete(path, grace_s=0)
        except ApiError as problem:
            if problem.status != 404:
                raise
