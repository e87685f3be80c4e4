"""Nodes, pods and a driver: what stands for the adapters, the planner and the cluster in these tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from muster.domain import allocation
from muster.domain.clearing import Clearing, NoClearing
from muster.domain.decision import Decision
from muster.domain.node import Node, Resources, Usage
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.topology import GpuTopology, Link
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import (
    BindingFate,
    Call,
    CallAnswer,
    Filter,
    FilterAnswer,
    InTreeAnswer,
    InTreeReport,
    Permit,
    PermitAnswer,
    PlanRef,
    Reserve,
    ReserveAnswer,
    Unreserve,
)
from muster.gangs.messages.instructions import (
    AskInTree,
    EmitEvent,
    Evict,
    FindVictims,
    Instruction,
    Outcome,
    PushVerdict,
    ShowWaiting,
    Solve,
)
from muster.gangs.messages.settings import GangSettings
from muster.placement.clearing import clear
from muster.placement.limits import Limits
from muster.placement.place import place
from tests.gangs.invariants import check

GPU = "nvidia.com/gpu"
WALL_NS = 1_700_000_000_000_000_000
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def node(name: str, gpus: int = 4, labels: dict[str, str] | None = None, **more: object) -> Node:
    """A node whose GPUs are all joined by NV2, with room for the pods of these tests."""
    link = Link.of_kind("NV2")
    new_node = Node(
        name,
        Resources(64_000, 1 << 36, 100),
        GpuTopology.of_islands(gpus, max(1, gpus), link, link),
        frozenset({GPU, "aliyun.com/gpu"}) if gpus else frozenset(),
        {"kubernetes.io/hostname": name, **(labels or {})},
    )
    return replace(new_node, **more)  # type: ignore[arg-type]


def pod(uid: str, gang: str = "g", of: int = 2, gpus: int = 1, **more: object) -> Pod:
    """A pending pod of an ACK gang; its name is its UID. `gang=""`: a gang of one."""
    claim = GangClaim("ack", gang, min_member=of, replicas=of)
    if not gang:
        claim = GangClaim("gputopology", uid, min_member=1, replicas=1, lone=True)
    new_pod = Pod(
        uid=uid,
        namespace="ns",
        name=uid,
        scheduler_name="muster",
        resources=Resources(1_000, 1 << 30, 1),
        gpus=gpus,
        gpu_resource=GPU if gpus else "",
        container_gpus=(("main", gpus),) if gpus else (),
        claim=claim,
    )
    return replace(new_pod, **more)  # type: ignore[arg-type]


def with_topology(
    uid: str,
    topology_request: TopologyRequest | None = None,
    of: int | None = 1,
    gang: str = "g",
    gpus: int = 1,
    **more: Any,
) -> Pod:
    """A pending pod of a gang by our own annotations: at least `of` members must fit."""
    claim = GangClaim("annotations", gang, of, topology_request=topology_request or TopologyRequest())
    return pod(uid, gpus=gpus, claim=claim, **more)


def foreign(uid: str, on: str, gpus: int = 1) -> Pod:
    """A running pod of another scheduler."""
    return pod(uid, gpus=gpus, claim=None, scheduler_name="default-scheduler", node=on, running=True)


@dataclass
class World:
    """A coordinator with a clock, its instructions gathered, and the invariants asked after each step.

    `auto` answers each Solve at once with the real planner. Unless the settings say so, no gang waits for
    more pods than it needs: what is due at once is done at once. `answers_in_tree`: its shims answer
    questions about in-tree plugins; `report` is such an answer.
    """

    settings: GangSettings = field(default_factory=lambda: GangSettings(settle_s=0))
    auto: bool = True
    now: float = 1000.0
    epoch: int = 0
    answers_in_tree: bool = False

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(self.settings, lambda: self.now)
        self.solves: list[Solve] = []
        self.victim_questions: list[FindVictims] = []
        self.asked = 0
        self.verdicts: list[PushVerdict] = []
        self.events: list[EmitEvent] = []
        self.evictions: list[Evict] = []
        self.questions: list[AskInTree] = []
        self.shown: list[ShowWaiting] = []
        self.pods: dict[str, Pod] = {}

    # --- events -------------------------------------------------------------------------------------

    def start(self, *nodes: Node, in_flight: tuple[Usage, ...] = ()) -> World:
        """Nodes and pods are seen, then synced, then a shim connects."""
        for new_node in nodes:
            self.send(inputs.NodeSeen(self.now, new_node))
        self.send(inputs.Synced(self.now))
        while self.coordinator.catches_up:
            self.send(inputs.Tick(self.now))
        self.connect(in_flight)
        return self

    def restart(self) -> None:
        """The service starts again and knows nothing."""
        self.coordinator = Coordinator(self.settings, lambda: self.now)
        self.victim_questions.clear()

    def connect(self, in_flight: tuple[Usage, ...] = ()) -> None:
        self.epoch += 1
        self.send(inputs.SessionOpened(self.now, self.epoch, in_flight, self.answers_in_tree))

    def see(self, *pods: Pod) -> None:
        for seen_pod in pods:
            self.pods[seen_pod.uid] = seen_pod
            self.send(inputs.PodSeen(self.now, seen_pod))
            if not self.settings.settle_s:
                self.wait(0)

    def gone(self, *uids: str) -> None:
        for uid in uids:
            self.pods.pop(uid, None)
            self.send(inputs.PodGone(self.now, uid))
            if not self.settings.settle_s:
                self.wait(0)

    def wait(self, seconds: float) -> None:
        """Time passes; Ticks come when they are due."""
        until = self.now + seconds
        for _ in range(10_000):
            due = self.coordinator.next_deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.send(inputs.Tick(self.now))
        else:
            raise AssertionError("the deadlines never end")
        self.now = until

    def send(self, message: inputs.Input) -> None:
        self.take(self.coordinator.handle(message))

    def take(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Solve():
                    self.solves.append(instruction)
                    self.asked += 1
                case FindVictims():
                    self.victim_questions.append(instruction)
                case PushVerdict():
                    self.verdicts.append(instruction)
                case EmitEvent():
                    self.events.append(instruction)
                case AskInTree():
                    self.questions.append(instruction)
                case Evict():
                    self.evictions.append(instruction)
                case ShowWaiting():
                    self.shown.append(instruction)
        broken = check(self.coordinator)
        assert not broken, broken
        if self.auto and self.victim_questions:
            self.find_victims()
        if self.auto and self.solves:
            self.solve()

    def find_victims(self) -> None:
        """Find the victims of the question that is out."""
        question = self.victim_questions[0]
        limits = Limits(excluded=question.excluded)
        self.answer_victims(clear(question.snapshot, question.request, limits))

    def answer_victims(self, answer: Clearing | NoClearing | None) -> None:
        """Answer the question for victims that is out."""
        question = self.victim_questions.pop(0)
        self.send(inputs.VictimsFound(self.now, question.number, answer))

    def solve(self, decision: Decision | None = None, at: int = 0) -> None:
        """Answer one of the Solves that are out."""
        solve = self.solves.pop(at)
        if decision is None:
            decision = place(solve.snapshot, solve.request, Limits(excluded=solve.excluded))
        self.send(inputs.SolveAnswered(self.now, solve.gang, solve.generation, decision, TRACE_ID))

    # --- what the shim does -------------------------------------------------------------------------

    def verdict(self, gang: str = "g") -> PushVerdict:
        """The gang's last verdict."""
        return next(v for v in reversed(self.verdicts) if v.gang.split("/")[2] == gang)

    def ref(self, gang: str = "g") -> PlanRef:
        verdict = self.verdict(gang)
        return PlanRef(self.epoch, verdict.gang, verdict.generation)

    def planned(self, gang: str = "g") -> bool:
        return self.verdict(gang).outcome is Outcome.PLANNED

    def home(self, member: int, gang: str = "g") -> str:
        """The planned node of a member."""
        return self.filter(gang).candidates[member][0]

    def ask(self, call: Call[CallAnswer]) -> CallAnswer:
        """Make a call of the shim."""
        answer, out = self.coordinator.answer(call)
        self.take(out)
        return answer

    def filter(self, gang: str = "g") -> FilterAnswer:
        return self.coordinator.answer(Filter(self.now, self.ref(gang)))[0]

    def reserve(self, member: int = 0, on: str = "", gang: str = "g") -> ReserveAnswer:
        node = on or self.home(member, gang)
        return self.ask(Reserve(self.now, self.ref(gang), member, node))

    def permit(self, gang: str = "g", wall_ns: int = WALL_NS) -> PermitAnswer:
        return self.ask(Permit(self.now, self.ref(gang), wall_ns))

    def unreserve(
        self, member: int, fate: BindingFate, plugin: str = "", message: str = "", gang: str = "g"
    ) -> None:
        ref, node = self.ref(gang), self.home(member, gang)
        self.ask(Unreserve(self.now, ref, member, node, fate, plugin, message))

    def report(
        self,
        *answers: InTreeAnswer,
        of: tuple[tuple[int, ...], ...] = (),
        question: AskInTree | None = None,
        part: int = 0,
        more: bool = False,
    ) -> None:
        """Answer a question, the last one unless it is given: `of` are the indices of the pods that get each
        answer; all get one. `part` of a long report; `more` parts follow."""
        asked_question = question or self.questions[-1]
        pods = of or (tuple(range(len(asked_question.pods))),)
        parts = tuple(zip(pods, answers, strict=True))
        self.ask(
            InTreeReport(
                self.now, self.epoch, asked_question.gang, asked_question.question, parts, part, more
            )
        )

    def bind(self, answer: PermitAnswer, members: Iterable[int] = (), gang: str = "g") -> None:
        """The Bindings land, and the watch shows them. All members, or these."""
        verdict, nodes = self.verdict(gang), [self.home(i, gang) for i in range(len(answer.annotations))]
        ranks = list(members) or range(len(verdict.members))
        for member in ranks:
            uid = verdict.members[member][1]
            self.see(bound(self.pods[uid], nodes[member], answer.annotations[member]))

    def run(self, gang: str = "g") -> PermitAnswer:
        """From a planned gang to a running one."""
        assert self.reserve(gang=gang).claimed
        answer = self.permit(gang)
        assert answer.allowed
        self.bind(answer, gang=gang)
        return answer

    # --- what is seen -------------------------------------------------------------------------------

    def phase(self, gang: str = "g") -> str:
        views = [view for view in self.coordinator.summary() if view.name == gang]
        assert len(views) <= 1
        return views[0].phase if views else "none"

    def reasons(self) -> list[str]:
        """The reasons of the events so far, without their prefix."""
        return [event.reason.removeprefix("Topology") for event in self.events]

    def outcomes(self) -> list[str]:
        return [str(verdict.outcome) for verdict in self.verdicts]

    def held(self) -> set[str]:
        return set(self.coordinator.state.ledger.reservations)


def bound(pending: Pod, on: str, annotations: dict[str, str]) -> Pod:
    """The pod as the watch shows it after its Binding."""
    batch, gpus = allocation.read_batch(annotations), allocation.read(annotations, pending)
    if pending.gpu_counts and gpus is not None:
        pending = replace(pending, gpus=gpus.bit_count())
    return replace(pending, node=on, allocation=gpus, batch=batch)


def stand(at: str) -> World:
    """A world with gang g in this phase."""
    pair = (pod("p0"), pod("p1"))
    world = World(auto=at != "planning").start(node("a"), node("b"))
    if at == "collecting":
        world.see(pair[0])
    elif at == "invalid":
        world.see(pair[0], pod("p1", of=3))
    elif at == "unplaceable":
        world.see(foreign("f", "a"), pod("p0", gpus=4), pod("p1", gpus=4))
    else:
        world.see(*pair)
    if at in ("reserving", "permitted", "running"):
        assert world.reserve().claimed
    if at in ("permitted", "running"):
        answer = world.permit()
        assert answer.allowed
        if at == "running":
            world.bind(answer)
    if at == "withdrawn":
        world.wait(60)
    assert world.phase() == at
    return world
