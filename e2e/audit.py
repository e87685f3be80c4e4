"""The auditor: what must hold whatever Muster does, judged from API objects alone.

`judge` looks at one moment; `Auditor` follows the history and judges every bind in its order. Both give
violations, each with the name of its rule:

    gpu-twice             two live pods of a node have the same GPU
    gpu-out-of-range      an index that the node does not have, or the same one twice in a pod
    gpu-count             not as many indices as GPUs asked for
    annotation-missing    a bound GPU pod of ours without its allocation
    annotations-disagree  the allocation and ALIYUN_COM_GPU_GROUP name different GPUs
    annotation-unreadable
    overcommitted         pods of a node ask for more GPUs than it has
    gang-partial          some members are bound, fewer than the gang needs, and longer than the grace
    bound-too-early       a member was bound before the gang's members all existed
    binding-in-two-steps  a pod was seen with a node and without its GPUs
    allocation-moved      a bound pod's GPUs were changed afterwards

and of slices of GPU memory those that `slices` lists, of devices those of `device_claims`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from e2e.facts import GROUP_RESOURCE, SUCCEEDED, NodeFacts, PodFacts
from e2e.slices import judge_memory, judge_slice

OURS = frozenset({"muster", "kai-scheduler"})
"""Scheduler names whose pods must carry an allocation. The second is a profile that can be switched on."""

GRACE_S = 10.0
"""How long a gang may be half bound, in seconds of `e2e.pace`. Binds of one gang follow one another within
milliseconds."""
LEASE_S = 60.0
"""The same where a leader is killed: its lease holds for 8 s, or 24 s on a slow machine. Then the gang is
completed."""
EVICTED_S = 60.0
"""The same where a member can't be bound: after 30 s (gangs.partial_s) its gang is given up."""


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def judge(pods: Iterable[PodFacts], nodes: Iterable[NodeFacts]) -> list[Violation]:
    """All that is wrong with the cluster at one moment."""
    pods = list(pods)
    by_name = {node.name: node for node in nodes}
    violations = [
        violation for pod in pods if pod.holds for violation in judge_pod(pod, by_name.get(pod.node))
    ]
    by_node: dict[str, list[PodFacts]] = defaultdict(list)
    for pod in pods:
        if pod.holds:
            by_node[pod.node].append(pod)
    for name, pods_of_node in sorted(by_node.items()):
        violations += _judge_node(name, by_name.get(name), pods_of_node)
    return violations + judge_gangs(pods)


def judge_pod(pod: PodFacts, node: NodeFacts | None) -> list[Violation]:
    """One bound pod against its node; `node` is None when that is gone."""
    violations = [Violation("annotation-unreadable", f"{pod.name}: {problem}") for problem in pod.unreadable]
    if pod.slice is not None and pod.scheduler in OURS and not violations:
        violations = [
            Violation(*wrong) for wrong in judge_slice(pod.name, pod.slice, node.memory if node else None)
        ]
    if not pod.gpus or pod.scheduler not in OURS or violations:
        return violations
    if pod.allocation is None:
        return [Violation("annotation-missing", f"{pod.name} is bound to {pod.node} without an allocation")]
    if pod.resource == GROUP_RESOURCE and pod.group is None:
        violations.append(Violation("annotation-missing", f"{pod.name} has no ALIYUN_COM_GPU_GROUP"))
    if pod.group is not None and sorted(pod.group) != sorted(pod.allocation):
        text = f"{pod.name}: the allocation says {pod.allocation}, ALIYUN_COM_GPU_GROUP {pod.group}"
        violations.append(Violation("annotations-disagree", text))
    if len(pod.allocation) != pod.gpus:
        violations.append(
            Violation("gpu-count", f"{pod.name} asked for {pod.gpus} GPUs and got {pod.allocation}")
        )
    distinct = set(pod.allocation)
    if len(distinct) != len(pod.allocation) or min(distinct, default=0) < 0:
        violations.append(Violation("gpu-out-of-range", f"{pod.name} got {pod.allocation}"))
    elif node is not None and max(distinct, default=0) >= node.count:
        text = f"{pod.name} got {pod.allocation} on {node.name}, which has {node.count} GPUs"
        violations.append(Violation("gpu-out-of-range", text))
    return violations


def _judge_node(name: str, node: NodeFacts | None, pods: Sequence[PodFacts]) -> list[Violation]:
    """The pods that hold GPUs of one node against each other."""
    violations = []
    owner: dict[int, str] = {}
    for pod in pods:
        for gpu in (pod.allocation or ()) if pod.gpus else ():
            if owner.setdefault(gpu, pod.name) != pod.name:
                text = f"GPU {gpu} of {name} belongs to {owner[gpu]} and to {pod.name}"
                violations.append(Violation("gpu-twice", text))
    slices = {pod.name: pod.slice for pod in pods if pod.slice is not None}
    violations += [
        Violation(*wrong) for wrong in judge_memory(name, node.memory if node else (), slices, owner)
    ]
    gpus_asked = sum(pod.gpus for pod in pods)
    if node is not None and gpus_asked > node.count:
        violations.append(
            Violation("overcommitted", f"{gpus_asked} GPUs of {name} are asked for, it has {node.count}")
        )
    return violations


def judge_gangs(pods: Iterable[PodFacts]) -> list[Violation]:
    """Return gangs with some bound members, but too few. Finished members count as bound.

    A gang whose pods have all finished is over: kube-controller-manager deletes those of lost nodes later.
    """
    members: dict[str, list[PodFacts]] = defaultdict(list)
    for pod in pods:
        if pod.gang is not None:
            members[pod.gang.key].append(pod)
    violations = []
    for key, gang in sorted(members.items()):
        members_needed = max(pod.gang.needed for pod in gang if pod.gang)
        bound = sorted(pod.name for pod in gang if pod.node)
        over = all(pod.finished for pod in gang)
        if 0 < len(bound) < members_needed and not over:
            violations.append(
                Violation("gang-partial", f"{key} needs {members_needed}, bound are {', '.join(bound)}")
            )
    return violations


@dataclass
class _Life:
    """One gang from its first pod until none of its pods exists. `bound` keeps those deleted since.

    `done`: pods that have succeeded and are deleted, with their owner, which does not make them again.
    """

    pods: dict[str, PodFacts] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    done: dict[str, str] = field(default_factory=dict)
    went: list[float] = field(default_factory=list)
    half_since: float | None = None
    overdue: bool = False


class Auditor:
    """Follows changes in the order in which the API server made them; `violations` grows.

    What existed before is told with `existed`: it was not seen happening and is not judged as if it were.
    A member that went less than `race_s` before another was bound counts as one that existed: where members
    are deleted at any moment, Bindings are under way that can't be called back. The grace counts seconds of
    `clock`, which is given moments of the changes.
    """

    def __init__(
        self,
        grace_s: float = GRACE_S,
        *,
        race_s: float = 0.0,
        clock: Callable[[float], float] = float,
    ) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._race_s = race_s
        self._pods: dict[str, PodFacts] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._gangs: dict[str, _Life] = defaultdict(_Life)
        self.violations: list[Violation] = []
        self.binds: list[tuple[float, PodFacts]] = []

    def node(self, node: NodeFacts) -> None:
        self._nodes[node.name] = node

    def existed(self, at: float, pod: PodFacts) -> None:
        self._see(at, pod, judged=False)

    def pod(self, at: float, pod: PodFacts) -> None:
        """A pod was created or changed."""
        self._see(at, pod, judged=True)

    def gone(self, at: float, uid: str) -> None:
        """A pod was removed."""
        self.passed(at)
        pod = self._pods.pop(uid, None)
        if pod is None or pod.gang is None:
            return
        life = self._gangs[pod.gang.key]
        life.pods.pop(uid, None)
        life.went.append(at)
        if pod.owner and pod.phase == SUCCEEDED:
            life.done[uid] = pod.owner
            life.bound.discard(uid)
        if not any(member.node for member in life.pods.values()):  # given up: what comes begins anew
            life.bound.clear()
            life.half_since = None
        if not (life.pods or life.done):
            del self._gangs[pod.gang.key]

    def passed(self, now: float) -> None:
        """Time passed: gangs that are half bound for too long are found."""
        for key, life in self._gangs.items():
            if life.half_since is None or life.overdue:
                continue
            if self._clock(now) - self._clock(life.half_since) > self._grace_s:
                life.overdue = True
                text = f"{key} was half bound for more than {self._grace_s:g} s: {len(life.bound)} bound"
                self.violations.append(Violation("gang-partial", text))

    @property
    def in_order(self) -> bool:
        """Whether no gang is half bound, or one has been for too long: there is nothing to wait for."""
        return not self.half_bound() or bool(self.violations)

    def half_bound(self) -> list[str]:
        """Gangs that are half bound now."""
        return sorted(key for key, life in self._gangs.items() if life.half_since is not None)

    def _see(self, at: float, pod: PodFacts, *, judged: bool) -> None:
        self.passed(at)
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        newly_bound = bool(pod.node) and not (before and before.node)
        if judged and newly_bound:
            self.binds.append((at, pod))
            self._judge_bind(pod)
        if judged and before and before.node and before.allocation not in (None, pod.allocation):
            text = f"{pod.name} had {before.allocation}, now {pod.allocation}"
            self.violations.append(Violation("allocation-moved", text))
        if pod.gang is not None:
            self._see_member(at, pod, pod.gang.key, judged=judged and newly_bound)

    def _judge_bind(self, pod: PodFacts) -> None:
        for violation in judge_pod(pod, self._nodes.get(pod.node)):
            late = violation.rule == "annotation-missing"
            self.violations.append(replace(violation, rule="binding-in-two-steps") if late else violation)
        pods_of_node = [holder for holder in self._pods.values() if holder.holds and holder.node == pod.node]
        self.violations += _judge_node(pod.node, self._nodes.get(pod.node), pods_of_node)

    def _see_member(self, at: float, pod: PodFacts, key: str, *, judged: bool) -> None:
        life = self._gangs[key]
        if not life.pods and pod.owner not in life.done.values():
            life = self._gangs[key] = _Life()  # another run of this name
        life.pods[pod.uid] = pod
        life.seen.add(pod.uid)
        members_needed = max(member.gang.needed for member in life.pods.values() if member.gang) - len(
            life.done
        )
        existed = len(life.pods) + sum(at - went < self._race_s for went in life.went)
        if judged and existed < members_needed:
            text = (
                f"{pod.name} was bound when {len(life.pods)} of the {members_needed} members of {key} existed"
            )
            if (
                len(life.seen) < members_needed or not life.bound
            ):  # a replacement of a running gang may come alone
                self.violations.append(Violation("bound-too-early", text))
        if pod.node:
            life.bound.add(pod.uid)
        half = 0 < len(life.bound) < members_needed
        life.half_since = (at if life.half_since is None else life.half_since) if half else None
