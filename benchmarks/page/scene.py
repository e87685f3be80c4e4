"""A cluster without an API server: the real coordinator and planner, and pods that are bound as planned.

It stands for `adapters.control_loop.ControlLoop`, as far as the page uses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from muster.adapters.page.detail import History
from muster.domain.alternatives import Alternatives, not_known
from muster.domain.node import Node, Resources
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.snapshot import Snapshot
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import Filter, Permit, PlanRef, Reserve
from muster.gangs.messages.instructions import Instruction, Moved, Outcome, PushVerdict, Solve
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.gang import GangView
from muster.gangs.reporting.places import GangDetails
from muster.placement.alternatives import alternatives
from muster.placement.limits import Limits
from muster.placement.place import place

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Ask:
    """A gang of `pods` pods with `gpus` GPUs each. `age_s`: how long ago they were created."""

    namespace: str
    name: str
    pods: int
    gpus: int
    scope: str | None = None
    present: int | None = None
    age_s: float = 60.0
    priority: int = 0

    def members(self, created: float) -> list[Pod]:
        """Return the pods that are there."""
        claim = GangClaim(
            "annotations",
            self.name,
            self.pods,
            topology_request=TopologyRequest(required_scope=self.scope),
            size=self.pods,
        )
        count = self.pods if self.present is None else self.present
        return [
            Pod(
                uid=f"{self.namespace}/{self.name}-{at}",
                namespace=self.namespace,
                name=f"{self.name}-{at}",
                scheduler_name="muster",
                resources=Resources(4_000, 16 << 30, 1),
                gpus=self.gpus,
                gpu_resource=GPU,
                container_gpus=(("main", self.gpus),),
                claim=claim,
                priority=self.priority,
                created=created - self.age_s,
            )
            for at in range(count)
        ]


class Scene:
    """Gangs on nodes. What the planner is asked is answered at once."""

    def __init__(self) -> None:
        self.gangs = Coordinator(GangSettings(settle_s=0))
        self.history = History()
        self.pods: dict[str, Pod] = {}
        self._verdicts: dict[str, PushVerdict] = {}
        self.leads = True
        self.is_synced = True

    def start(self, nodes: Iterable[Node], bound: Iterable[Pod] = ()) -> None:
        """Begin with these nodes and bound pods, and with a shim."""
        now = time.monotonic()
        for node in nodes:
            self._send(inputs.NodeSeen(now, node))
        for pod in bound:
            self.pods[pod.uid] = pod
            self._send(inputs.PodSeen(now, pod))
        self._send(inputs.Synced(now))
        self._send(inputs.SessionOpened(now, 1, (), False))

    def change(self, node: Node) -> None:
        """Take in a node that has changed."""
        self._send(inputs.NodeSeen(time.monotonic(), node))

    def submit(self, *asks: Ask) -> None:
        """Create the pods of these gangs."""
        for ask in asks:
            self.see(*ask.members(time.time()))

    def see(self, *pods: Pod) -> None:
        """Take in pods."""
        for pod in pods:
            self.pods[pod.uid] = pod
            self._send(inputs.PodSeen(time.monotonic(), pod))
        self._tick()

    def delete(self, *uids: str) -> None:
        """Take in that pods are gone."""
        for uid in uids:
            del self.pods[uid]
            self._send(inputs.PodGone(time.monotonic(), uid))
        self._tick()

    def planned(self) -> list[str]:
        """Return the names of the gangs that have a plan and are not bound."""
        verdicts = self._verdicts.items()
        return [name for name, verdict in verdicts if verdict.outcome is Outcome.PLANNED]

    async def alternatives(self, key: str) -> Alternatives:
        """Return where else the gang could have gone, as the service does in a process of its own."""
        question = self.gangs.alternatives(key)
        if isinstance(question, str):
            return not_known(question)
        return alternatives(question.snapshot, question.request, Limits(0.1, excluded=question.excluded))

    def key(self, name: str) -> str:
        """Return the key of the gang of this name."""
        return next(key for key in self.gangs.keys() if key.split("/")[2] == name)  # noqa: SIM118

    def bind(self, *names: str) -> None:
        """Bind the members of planned gangs, as the shim does."""
        for name in names:
            verdict = self._verdicts.pop(name)
            ref = PlanRef(1, verdict.gang, verdict.generation)
            nodes = [
                candidates[0] for candidates in self.gangs.answer(Filter(time.monotonic(), ref))[0].candidates
            ]
            for member, node in enumerate(nodes):
                self._take(self.gangs.answer(Reserve(time.monotonic(), ref, member, node))[1])
            answer, then = self.gangs.answer(Permit(time.monotonic(), ref, time.time_ns()))
            if not answer.allowed:
                raise RuntimeError(f"{name}: {answer.reason}")
            self._take(then)
            places = {taken_gpus.pod: taken_gpus.gpus for taken_gpus in self._details(verdict.gang).places}
            for (pod, uid), node in zip(verdict.members, nodes, strict=True):
                bound = replace(self.pods[uid], node=node, running=True, allocation=places[pod])
                self.see(bound)

    # --- what the page reads --------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the cluster as it is now."""
        return self.gangs.snapshot()

    async def summary(self, namespace: str = "", name: str = "") -> list[Any]:
        """Return all gangs."""
        views: list[GangView] = []
        for start, key in enumerate(self.gangs.keys(), 1):
            views += self.gangs.summary((key,))
            if start % 100 == 0:
                await asyncio.sleep(0)
        return views

    # --- inside ---------------------------------------------------------------------------------------

    def _details(self, key: str) -> GangDetails:
        details = self.gangs.details(key)
        if details is None:
            raise KeyError(key)
        return details

    def _tick(self) -> None:
        while (due := self.gangs.next_deadline()) is not None and due <= time.monotonic():
            self._send(inputs.Tick(time.monotonic()))

    def _send(self, message: inputs.Input) -> None:
        self._take(self.gangs.handle(message))

    def _take(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Solve(gang, generation, request, snapshot, excluded):
                    decision = place(snapshot, request, Limits(excluded=excluded))
                    self._send(inputs.SolveAnswered(time.monotonic(), gang, generation, decision, ""))
                case PushVerdict():
                    self._verdicts[instruction.gang.split("/")[2]] = instruction
                case Moved():
                    self.history.note_move(instruction)
