"""Measure the longest turn of the service's loop when something concerns thousands of gangs: `make turns`.

The coordinator takes in one input in a turn. Here it has nodes with one free GPU each, and refused gangs with
unlike needs. Processor time in milliseconds. Each turn counts with its least time of some rounds: other work
on the machine only adds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated

from benchmarks.clusters import Boards, topology
from benchmarks.page.scene import Ask
from benchmarks.page.scenes import RACK, node, other
from muster.adapters.garbage import short_collections
from muster.adapters.kube.checkpoints import SENT_AT_ONCE
from muster.command_line import Option, run_command
from muster.domain.clearing import NoClearing
from muster.domain.decision import Decision
from muster.domain.node import Resources
from muster.domain.pod import GangClaim, Pod
from muster.domain.policies import DEFAULT_POLICIES
from muster.domain.preemption import DisruptionBudget
from muster.domain.request import SelectorTerm
from muster.domain.topology import bits
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import FindVictims, Solve
from muster.gangs.messages.settings import GangSettings
from muster.placement.limits import Limits
from muster.placement.place import place

BUSY = 0b111_1111
ENDING = 50
"""Pods that end one after another."""
HUGE = 10_000
"""Pods of one gang."""
BUDGETS, BUDGETS_OF_NAMESPACE = 10_000, 50


class World:
    """A coordinator with what it sees. Each gang is refused with the reason of the first.

    With `victims`, gangs of a lower priority run on the nodes, else pods of other schedulers.
    """

    def __init__(self, nodes: int, gangs: int, *, victims: bool = False) -> None:
        self.coordinator = Coordinator(GangSettings(settle_s=0))
        self.now = 1000.0
        self.turns: list[float] = []
        self.epoch = 0
        self._asked: list[Solve | FindVictims] = []
        self._refusal: Decision | None = None
        board = topology(Boards.NVSWITCH)
        self.nodes = [node(f"n{at:05}", f"r{at // 16:04}", board, "H100") for at in range(nodes)]
        self.running = [other(f"u{at:05}", world_node.name, BUSY) for at, world_node in enumerate(self.nodes)]
        if victims:
            self.running = [pod for world_node in self.nodes for pod in _low(world_node.name)]
        for world_node in self.nodes:
            self.send(inputs.NodeSeen(self.now, world_node))
        for pod in self.running:
            self.send(inputs.PodSeen(self.now, pod))
        for at in range(gangs):
            (pod,) = Ask(f"team-{at % 20}", f"g{at:05}", 1, 8).members(self.now)
            self.send(inputs.PodSeen(self.now, replace(pod, resources=Resources(1000 + at, 1 << 30, 1))))

    def send(self, message: inputs.Input) -> None:
        """Have the coordinator take in one input, and note how long that took."""
        began = time.thread_time()
        out = self.coordinator.handle(message)
        self.turns.append(1000 * (time.thread_time() - began))
        self._asked += [question for question in out if isinstance(question, Solve | FindVictims)]

    def rest(self) -> None:
        """Answer the planner's questions, and let time pass until nothing is due."""
        while True:
            if self._asked:
                self._answer(self._asked.pop())
            elif (due := self.coordinator.next_deadline()) is not None and due <= self.now + 0.1:
                self.now = max(self.now, due)
                self.send(inputs.Tick(self.now))
            else:
                return

    def _answer(self, solve: Solve | FindVictims) -> None:
        if isinstance(solve, FindVictims):
            none = NoClearing(solve.request.gang, proven=True, even_empty=True)
            self.send(inputs.VictimsFound(self.now, solve.number, none))
            return
        if self._refusal is None:
            self._refusal = place(solve.snapshot, solve.request, Limits())
        refusal = replace(self._refusal, gang=solve.request.gang)
        self.send(inputs.SolveAnswered(self.now, solve.gang, solve.generation, refusal, ""))


def _synced(world: World) -> None:
    world.send(inputs.Synced(world.now))


def _session(world: World) -> None:
    world.epoch += 1
    world.send(inputs.SessionOpened(world.now, world.epoch, (), False))


def _rack(world: World) -> None:
    moved = world.nodes[17]
    world.send(inputs.NodeSeen(world.now, replace(moved, labels={**moved.labels, RACK: "other"})))


def _node_gone(world: World) -> None:
    world.send(inputs.NodeGone(world.now, world.nodes[18].name))


def _pods_end(world: World) -> None:
    for pod in world.running[:ENDING]:
        world.send(inputs.PodGone(world.now, pod.uid))


def _policies(world: World) -> None:
    world.send(inputs.PoliciesSeen(world.now, replace(DEFAULT_POLICIES, levels=DEFAULT_POLICIES.levels[:1])))


def _huge(world: World) -> None:
    """The least number is 2, so that it is planned before all of its pods have come."""
    claim = GangClaim("annotations", "huge", 2)
    for pod in Ask("team-1", "huge", HUGE, 8).members(world.now):
        world.send(inputs.PodSeen(world.now, replace(pod, claim=claim)))


def _checkpoints(world: World) -> None:
    saved = {pod.uid: 1.0 for pod in world.running}
    for at in range(0, len(saved), SENT_AT_ONCE):
        world.send(inputs.CheckpointsSeen(world.now, dict(list(saved.items())[at : at + SENT_AT_ONCE])))


def _budgets(world: World) -> None:
    for at in range(BUDGETS):
        namespace, name = f"team-{at // BUDGETS_OF_NAMESPACE}", f"b{at}"
        budget = DisruptionBudget(namespace, name, (SelectorTerm("app", "In", (name,)),), 1)
        world.send(inputs.BudgetSeen(world.now, budget.key, budget))


def _low(on: str) -> Iterator[Pod]:
    """Gangs of one pod with one GPU, of a lower priority than any other gang."""
    for gpu in bits(BUSY):
        uid = f"{on}-{gpu}"
        claim = GangClaim("gputopology", uid, 1, 1, lone=True)
        yield replace(other(uid, on, 1 << gpu), claim=claim, priority=-1)


CHANGES: dict[str, Callable[[World], None]] = {
    "the first lists are complete": _synced,
    "the first session": _session,
    "the next session": _session,
    "a node changes its rack": _rack,
    "a node is gone": _node_gone,
    f"{ENDING} pods end": _pods_end,
    "the policies change": _policies,
    "all running pods save their work": _checkpoints,
    f"{BUDGETS:,} disruption budgets come": _budgets,
    f"a gang of {HUGE:,} pods comes": _huge,
}
WITH_VICTIMS: dict[str, Callable[[World], None]] = {
    "the first lists are complete, with 7 pods of a lower priority on each node": _synced,
    "the first session: each refusal asks for its victims": _session,
    "then all running pods save their work": _checkpoints,
    f"then {BUDGETS:,} disruption budgets come": _budgets,
}


def main(
    nodes: Annotated[int, Option(min=20)] = 5_000,
    gangs: Annotated[int, Option(min=1)] = 10_000,
    rounds: Annotated[int, Option(min=1)] = 3,
) -> None:
    """Print the longest turn of each change, in milliseconds of processor time."""
    least: dict[str, list[float]] = {}
    with short_collections():
        for _ in range(rounds):
            for changes in (CHANGES, WITH_VICTIMS):
                world = World(nodes, gangs, victims=changes is WITH_VICTIMS)
                for name, change in changes.items():
                    world.turns = []
                    change(world)
                    world.rest()
                    least[name] = list(map(min, world.turns, least.get(name, world.turns)))
    for name, turns in least.items():
        print(f"{max(turns):8.1f}  {name}")


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.turns"))
