"""Small clusters full of running pods, and gangs of many kinds. For most there are victims that help."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from muster.domain.clearing import ClearQuestion, Occupancy, Occupant, Unit
from muster.domain.constraints import AntiAffinity, MaxPer, Subgroup
from muster.domain.node import Node, Resources, Usage
from muster.domain.quorums import Leaf, Quorum
from muster.domain.request import GangId, Member, Request, Role, RunningMember, Segment, Slice
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits, mask_of
from tests.placement.clearing.questions import NOW, PRIORITY, Question
from tests.placement.drawings import LABELS, RESOURCE, islands

GANG = GangId("default", "test", "gang")
UNITS = "abcde"


def _role(name: str, count: int, gpus: int, cpu: int = 0) -> Role:
    members = tuple(Member(f"{name}{i}", f"{name}-{i}", i) for i in range(count))
    return Role(name, members, Resources(cpu), gpus, RESOURCE if gpus else "")


def _request(*roles: Role, scope: str | None = None) -> Request:
    return Request(GANG, roles, sum(len(role.members) for role in roles), scope)


def _plain(rng: random.Random) -> Request:
    count, gpus = rng.choice([(1, 4), (1, 3), (2, 2), (2, 3), (3, 1), (4, 1), (2, 4), (3, 2)])
    return _request(_role("w", count, gpus), scope=rng.choice([None, "rack", "rack", "node", "zone"]))


def _roles(rng: random.Random) -> Request:
    first, second = rng.sample([(1, 4), (1, 3), (2, 2), (2, 1), (1, 2)], 2)
    return _request(_role("w", *first), _role("x", *second), scope=rng.choice([None, "rack", "rack"]))


def _cpu(rng: random.Random) -> Request:
    worker, loader = (
        _role("w", rng.randint(1, 2), rng.choice([1, 2]), 1000),
        _role("x", rng.randint(1, 2), 0, 2000),
    )
    return _request(*rng.choice([(worker, loader), (worker,), (loader,)]), scope=rng.choice([None, "rack"]))


def _slices(rng: random.Random) -> Request:
    role = replace(
        _role("w", rng.randint(1, 3), 0), slice=Slice(rng.choice([2, 4, 5, 8]), rng.choice([1, 1, 2]))
    )
    whole = _role("x", 1, rng.choice([1, 2]))
    return _request(*rng.choice([(role,), (role, whole), (whole,)]), scope=rng.choice([None, "rack"]))


def _segments(rng: random.Random) -> Request:
    segment = Segment(rng.choice([2, 2, 3]), rng.choice(["node", "rack", "nvlink-domain"]))
    return _request(replace(_role("w", rng.randint(2, 4), rng.choice([1, 1, 2])), segments=(segment,)))


def _islands(rng: random.Random) -> Request:
    return _request(_role("w", rng.choice([1, 2]), rng.choice([1, 2])), scope="nvlink-domain")


def _scoped(rng: random.Random) -> Request:
    scoped = replace(_role("w", 2, rng.choice([1, 2])), required_scope=rng.choice(["node", "rack"]))
    request = _request(scoped, _role("x", 1, rng.choice([1, 2])))
    together = Subgroup("w and x", "rack", frozenset("wx"))
    return replace(request, subgroups=rng.choice([(), (together,)]))


def _quorum(rng: random.Random) -> Request:
    roles = _role("w", 2, rng.choice([2, 3])), _role("x", 1, 4), _role("y", 2, rng.choice([0, 1]), 1000)
    leaves = tuple(Leaf(frozenset(role.name), len(role.members)) for role in roles)
    quorum = Quorum(rng.choice([1, 2]), leaves, only=rng.random() < 0.5)
    return replace(_request(*roles), min_member=1, quorum=quorum)


def _apart(rng: random.Random) -> Request:
    request = _request(_role("w", rng.choice([2, 2, 3]), rng.choice([1, 2])))
    existing = frozenset(rng.sample("mnop", rng.choice([0, 1])))
    apart = AntiAffinity(
        "apart", rng.choice(["node", LABELS["rack"]]), frozenset("w"), frozenset("w"), existing
    )
    if rng.random() < 0.5:
        return replace(request, per_scope=(MaxPer("node", 1),))
    return replace(request, constraints=(apart,))


def _running(rng: random.Random) -> Request:
    request = _request(_role("w", rng.choice([1, 2]), rng.choice([1, 2])), scope=rng.choice(["rack", "node"]))
    member = Member("w9", "w-9", 9)
    usage = Usage("w9", rng.choice("mno"), Resources(), gpus=1)
    return replace(request, running=(RunningMember(member, "w", usage.node, 1, usage),))


def _claims(rng: random.Random) -> Request:
    """Claims match some GPUs of nodes, and nodes attach few volumes."""
    role = _role("w", rng.choice([1, 2, 3]), rng.choice([1, 2]))
    matching = {node: rng.choice([15, 15, 7, 12, 3]) for node in rng.sample("mnop", 2)}
    room = {node: rng.choice([0, 1, 2]) for node in rng.sample("mnop", 1)}
    return _request(replace(role, matching=matching, room=room), scope=rng.choice([None, "rack"]))


KINDS: Mapping[str, Callable[[random.Random], Request]] = {
    "plain": _plain,
    "several roles": _roles,
    "cpu": _cpu,
    "slices": _slices,
    "segments": _segments,
    "islands": _islands,
    "roles with scopes": _scoped,
    "some of several subgroups": _quorum,
    "kept apart": _apart,
    "running members": _running,
    "claims": _claims,
}
"""Gangs by what they ask for."""


def drawn(kind: str, number: int) -> Question:
    """A cluster of three or four nodes in two racks, and a gang of this kind."""
    rng = random.Random(f"{kind} {number}")
    request = KINDS[kind](rng)
    occupants = [Occupant(member.usage, "w-9") for member in request.running if member.usage]
    nodes: list[Node] = []
    for name in "mnop"[: rng.choice([3, 3, 4])]:
        sizes = rng.choice([[4], [2, 2], [2, 2]])
        labels = {LABELS["rack"]: rng.choice(["r1", "r2"]), LABELS["zone"]: "z"}
        memory = (8,) * 4 if kind == "slices" and rng.random() < 0.8 else ()
        cpu = Resources(rng.choice([2000, 4000, 4000]), 2**40, 110)
        nodes.append(Node(name, cpu, islands(sizes), frozenset({RESOURCE}), labels, gpu_memory=memory))
    keys = UNITS[: rng.choice([2, 3, 4, 5])]
    for node in nodes:
        state = NodeState.of(node, [pod.usage for pod in occupants if pod.usage.node == node.name])
        for number_on_node in range(3):
            usage = _usage(rng, f"{node.name}{number_on_node}", state)
            if usage is not None:
                state = state.with_usage(usage)
                occupants.append(_occupant(rng, usage, rng.choice(keys)))
    sizes_of_units = Counter(occupant.unit for occupant in occupants)
    units = {key: _unit(rng, key, sizes_of_units[key]) for key in keys}
    budgets = {"p": rng.choice([0, 1, 2, 5]), "q": rng.choice([0, 1, 2])}
    snapshot = Snapshot.of(nodes, [occupant.usage for occupant in occupants])
    occupancy = Occupancy.of(occupants, units, NOW, budgets)
    return Question(snapshot, ClearQuestion(request, occupancy, PRIORITY))


def _usage(rng: random.Random, uid: str, state: NodeState) -> Usage | None:
    name, free = state.node.name, list(bits(state.free_gpus))
    cpu = min(rng.choice([0, 0, 500, 1000]), state.free.cpu_milli)
    if state.memory and rng.random() < 0.5:
        units = rng.choice([1, 3, 4, 6])
        open_gpus = [gpu for gpu, free_units in enumerate(state.free_memory) if free_units >= units]
        return (
            Usage(uid, name, Resources(cpu), gpus=1 << rng.choice(open_gpus), units=units)
            if open_gpus
            else None
        )
    count = min(rng.choice([0, 1, 1, 2, 2, 4]), state.free_gpu_count)
    if not count:
        return Usage(uid, name, Resources(min(rng.choice([1000, 3000]), state.free.cpu_milli)))
    if rng.random() < 0.07:
        return Usage(uid, name, Resources(cpu), unindexed_gpus=count)
    return Usage(uid, name, Resources(cpu), gpus=mask_of(rng.sample(free, count)))


def _occupant(rng: random.Random, usage: Usage, unit: str) -> Occupant:
    return Occupant(
        usage,
        f"pod-{usage.pod_uid}",
        unit,
        started=NOW + 300 if rng.random() < 0.02 else NOW - rng.choice([0, 90, 600, 3600, 7200]),
        saved=rng.choice([0, 0, 0, 0, NOW - 60, NOW + 60, NOW - 5000]),
        subgroup=rng.choice(["", "", "x"]),
        budget=rng.choice(["", "", "", "", "p", "q"]),
        ends=rng.choice([NOW + 30, NOW - 30, NOW - 90]) if rng.random() < 0.08 else 0.0,
    )


def _unit(rng: random.Random, key: str, size: int) -> Unit:
    return Unit(
        f"gang {key}",
        rng.choice([0, 0, 0, 5, 5, 9, PRIORITY]),
        rng.choice([size, size, 1, max(1, size - 1)]),
        rng.choice([{}, {}, {"x": 1}, {"": 1}]),
        "it says never" if rng.random() < 0.08 else "",
        rng.choice([float("inf"), float("inf"), 120.0]),
    )
