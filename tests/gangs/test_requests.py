"""What a gang's pods amount to: roles, what is to be placed, and what runs already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.domain.constraints import PER_SCOPE, MaxPer
from muster.domain.node import Resources
from muster.domain.pod import Pod, TopologyRequest
from muster.domain.request import (
    Member,
    NodeRules,
    RunningMember,
    Segment,
    SelectorTerm,
    Toleration,
)
from muster.domain.sentences import sentence
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.requests import request
from muster.gangs.membership.group import Group, NameKey
from muster.gangs.membership.roster import Roster
from tests.gangs.world import World, bound, node, pod, with_topology

FOURS = TopologyRequest(segments=(Segment(4, "node"),))


def group_of(*pods: Pod) -> Group:
    roster = Roster()
    for member_pod in pods:
        roster.see(member_pod)
    (group,) = roster.groups(("ns", "annotations", "g", ""))
    return group


def ledger_of(*pods: Pod) -> Ledger:
    ledger = Ledger()
    for name in ("a", "b"):
        ledger.set_node(node(name))
    for bound_pod in pods:
        ledger.bind(bound_pod.uid, bound_pod.usage)
    return ledger


def on(name: str, gpus: int | None, member_pod: Pod) -> Pod:
    return replace(member_pod, node=name, allocation=gpus)


ROLES: dict[str, tuple[list[Pod], list[str]]] = {
    "one that nobody named": ([with_topology("p0"), with_topology("p1")], [": p0 p1"]),
    "one that has a name": ([with_topology("p0", TopologyRequest(role="w"))], ["w: p0"]),
    "by GPUs, the most first": (
        [with_topology("p0", gpus=1), with_topology("p1", gpus=2)],
        ["role-1: p1", "role-2: p0"],
    ),
    "by their topology requests": (
        [with_topology("p0", FOURS), with_topology("p1")],
        ["role-1: p1", "role-2: p0"],
    ),
    "one name for different requests": (
        [
            with_topology("p0", TopologyRequest(role="w"), gpus=2),
            with_topology("p1", TopologyRequest(role="w")),
        ],
        ["w-1: p0", "w-2: p1"],
    ),
    "no name that another has": (
        [
            with_topology("p0"),
            with_topology("p1", gpus=2),
            with_topology("p2", TopologyRequest(role="role-1")),
        ],
        ["role-2: p1", "role-3: p0", "role-1: p2"],
    ),
    "by rank, then by the numbers in their names": (
        [with_topology("p10"), with_topology("p9"), with_topology("x", rank=0), with_topology("a", rank=1)],
        [": x a p9 p10"],
    ),
    "a role keeps its name while another runs": (
        [on("a", None, with_topology("p0", gpus=2)), with_topology("p1", gpus=1)],
        ["role-2: p1"],
    ),
}


@pytest.mark.parametrize(("pods", "roles"), ROLES.values(), ids=ROLES.keys())
def test_roles(pods: list[Pod], roles: list[str]) -> None:
    for order in (pods, pods[::-1]):
        gang_request = request(group_of(*order), ledger_of(*order))
        assert [f"{r.name}: {' '.join(m.name for m in r.members)}" for r in gang_request.roles] == roles


def test_what_is_wished_is_asked() -> None:
    topology_request = TopologyRequest(
        "w", "zone", ("node", "rack"), "rack", (Segment(4, "node"),), (MaxPer("node", 4),)
    )
    gang_request = request(group_of(with_topology("p0", topology_request)), ledger_of())
    assert (gang_request.required_scope, gang_request.preferred_scopes, gang_request.per_scope) == (
        "zone", ("node", "rack"), (MaxPer("node", 4),),
    )  # fmt: skip
    (role,) = gang_request.roles
    assert (role.name, role.required_scope, role.segments) == ("w", "rack", (Segment(4, "node"),))


def test_bound_members_run_on_the_gpus_that_the_ledger_believes() -> None:
    pods = [
        on("a", 0b0110, with_topology("r0", gpus=2, rank=0)),
        on("a", 0b0100, with_topology("r1", rank=1)),  # a GPU that r0 has
        on("b", 0b10000, with_topology("r2", rank=2)),  # of four
        on("b", None, with_topology("r3", rank=3)),
        on("gone", 0b0001, with_topology("r4", rank=4)),
        on("a", None, with_topology("r5", gpus=0, rank=5)),
        replace(on("a", 0b1000, with_topology("r6")), terminating=True),
        with_topology("p", rank=6),
    ]
    gang_request = request(group_of(*pods), ledger_of(*pods))
    assert [(role.name, len(role.members)) for role in gang_request.roles] == [("role-2", 1)]
    assert gang_request.running == (
        RunningMember(Member("r0", "r0", 0), "role-1", "a", 0b0110),
        RunningMember(Member("r1", "r1", 1), "role-2", "a", 0),
        RunningMember(Member("r2", "r2", 2), "role-2", "b", 0),
        RunningMember(Member("r3", "r3", 3), "role-2", "b", 0),
        RunningMember(Member("r5", "r5", 5), "role-3", "a", 0),
    )


DISK = SelectorTerm("disk", "In", ("ssd",))


def in_rack(uid: str, **more: Any) -> Pod:
    return with_topology(uid, TopologyRequest("w", role_scope="rack"), **more)


DISAGREE: dict[str, tuple[list[Pod], str]] = {
    "a scope that one does not have": (
        [with_topology("p0", TopologyRequest(required_scope="rack")), with_topology("p1")],
        'scope: "" (pod p1), "rack" (pod p0)',
    ),
    "preferred scopes in another order": (
        [
            with_topology("p0", TopologyRequest(preferred_scopes=("node", "rack"))),
            with_topology("p1", TopologyRequest(preferred_scopes=("rack", "node"))),
        ],
        'preferred scopes: "node,rack" (pod p0), "rack,node" (pod p1)',
    ),
    "counts": (
        [with_topology("p0", of=2), with_topology("p1", of=3)],
        'min-member: "2" (pod p0), "3" (pod p1)',
    ),
    "a count that one does not have": (
        [with_topology("p0", of=2), with_topology("p1", of=None)],
        'min-member: "" (pod p1), "2" (pod p0)',
    ),
    **{
        kind.annotation: (
            [
                with_topology("p0", TopologyRequest(per_scope=(kind("node", 1), kind("rack", 2)))),
                with_topology("p1", TopologyRequest(per_scope=(kind("node", 2),))),
            ],
            f'{kind.annotation}: "node=1,rack=2" (pod p0), "node=2" (pod p1)',
        )
        for kind in PER_SCOPE
    },
    "a role's scope": (
        [
            with_topology("p0", TopologyRequest("w", role_scope="rack")),
            with_topology("p1", TopologyRequest("w", role_scope="zone")),
        ],
        'role-scope of role w: "rack" (pod p0), "zone" (pod p1)',
    ),
    "a role's preferred scopes": (
        [
            with_topology("p0", TopologyRequest("w", role_preferred=("rack",))),
            with_topology("p1", TopologyRequest("w")),
        ],
        'role-preferred-scopes of role w: "" (pod p1), "rack" (pod p0)',
    ),
    "a role's segments": (
        [
            with_topology("p0", TopologyRequest("w", segments=FOURS.segments)),
            with_topology("p1", TopologyRequest("w")),
        ],
        'segments of role w: "" (pod p1), "4 in one node" (pod p0)',
    ),
    "what a role with a scope asks for": (
        [
            with_topology("p0", TopologyRequest("w", role_scope="rack"), gpus=2),
            with_topology("p1", TopologyRequest("w", role_scope="rack")),
        ],
        'requests of role w: "1 nvidia.com/gpu, 1 cpu, 1Gi memory" (pod p1), '
        '"2 nvidia.com/gpu, 1 cpu, 1Gi memory" (pod p0)',
    ),
    "memory that is no whole number of Gi": (
        [in_rack("p0"), in_rack("p1", resources=Resources(1_500, 10**9, 1))],
        'requests of role w: "1 nvidia.com/gpu, 1 cpu, 1Gi memory" (pod p0), '
        '"1 nvidia.com/gpu, 1.5 cpu, 953.67431640625Mi memory" (pod p1)',
    ),
    "node selectors": (
        [in_rack("p0", rules=NodeRules((SelectorTerm("pool", "In", ("a",)),))), in_rack("p1")],
        'node selector of role w: "" (pod p1), "pool=a" (pod p0)',
    ),
    "node affinities": (
        [
            in_rack("p0", rules=NodeRules((), ((SelectorTerm("zone", "In", ("a", "b")),),))),
            in_rack("p1", rules=NodeRules((), ((SelectorTerm("zone", "Exists"),), (DISK,)))),
        ],
        'node affinity of role w: "zone exists or disk=ssd" (pod p1), "zone in (a, b)" (pod p0)',
    ),
    "tolerations": (
        [
            in_rack("p0", rules=NodeRules((), (), (Toleration("t", "Exists", "", "NoSchedule"),))),
            in_rack("p1", rules=NodeRules((), (), (Toleration("t", "Equal", "x", "NoExecute"),))),
        ],
        'tolerations of role w: "t:NoSchedule" (pod p0), "t=x:NoExecute" (pod p1)',
    ),
}


@pytest.mark.parametrize(("pods", "ending"), DISAGREE.values(), ids=DISAGREE.keys())
def test_pods_that_disagree(pods: list[Pod], ending: str) -> None:
    group = group_of(*pods)
    assert sentence(group.causes) == f"Pods of one gang disagree on {ending}"
    assert group_of(*pods[::-1]).causes == group.causes
    request(group, ledger_of())


def test_roles_and_pods_that_nobody_named_may_wish_what_they_like() -> None:
    assert not group_of(
        with_topology("p0", TopologyRequest("x", role_scope="rack")),
        with_topology("p1", TopologyRequest("y", role_scope="zone"), gpus=2),
        with_topology("p2", FOURS),
        with_topology("p3", gpus=2),
    ).causes


def test_a_gang_without_a_count_says_what_to_add() -> None:
    world = World().start(node("a"))
    world.see(with_topology("p0", of=None), with_topology("p1", of=None))
    assert world.phase() == "invalid"
    assert world.verdict().reason == (
        'gang/ns/g: min-member is "", expected how many of its members must fit at once: '
        'add the annotation gpu.topology/min-member, as in "4", to each'
    )
    world.see(with_topology("p0", of=2), with_topology("p1", of=2))
    assert world.planned()


# --- near running members ----------------------------------------------------------------------------


def asked(world: World) -> Any:
    return world.solves[-1].request


def running_pair(**more: Any) -> World:
    """A gang of two that runs on a, whose r2 is out of work; another like it waits for the planner."""
    world = World().start(node("a"), node("b"))
    world.see(pod("p0", **more), pod("p1", **more))
    world.run()
    world.auto = False
    return world


def test_a_replacement_is_asked_for_beside_those_that_run() -> None:
    world = running_pair()
    running_pod = world.pods["p0"]
    world.gone("p1")
    world.see(pod("p9"))
    gang_request = asked(world)
    assert [member.uid for role in gang_request.roles for member in role.members] == ["p9"]
    assert gang_request.running == (
        RunningMember(Member("p0", "p0"), "", running_pod.node, running_pod.allocation or 0),
    )
    assert gang_request.min_member == 1
    free = world.solves[-1].snapshot.nodes[running_pod.node].free_gpus
    assert not free & (running_pod.allocation or 0)


def test_what_runs_has_no_say_in_what_replaces_it() -> None:
    """A template that was changed: its pods are replaced one by one, and each has the new one."""
    world = World().start(node("a"), node("b"))
    old = TopologyRequest("w", preferred_scopes=("node",))
    new = TopologyRequest("w", required_scope="node", per_scope=(MaxPer("node", 3),))
    world.see(*(with_topology(f"p{i}", old, of=3) for i in range(3)))
    world.run()
    world.gone("p1")
    world.see(with_topology("p8", new, of=2))
    assert world.planned()
    world.run()
    world.auto = False
    world.gone("p2")
    world.see(with_topology("p9", new, of=2))
    gang_request = asked(world)
    assert (gang_request.required_scope, gang_request.preferred_scopes, gang_request.per_scope) == (
        "node",
        (),
        new.per_scope,
    )
    assert (gang_request.min_member, gang_request.size, len(gang_request.running)) == (1, 1, 2)
    assert [running.role for running in gang_request.running] == [
        role.name for role in gang_request.roles
    ] * 2


def test_a_gang_that_runs_grows_by_what_the_new_pods_say() -> None:
    world = World().start(node("a"), node("b"))
    world.see(pod("p0"), pod("p1"))
    world.run()
    world.see(pod("p2", of=4))
    assert world.phase() == "collecting"
    world.see(pod("p3", of=4))
    assert len(world.verdict().members) == 2
    world.run()
    assert world.phase() == "running"


def test_of_those_that_wait_one_that_agrees_with_those_that_run_is_a_member() -> None:
    """It is not taken for one more like the other, which waits for a gang of its own."""
    world = World().start(node("a"), node("b"))
    world.see(*(with_topology(f"p{i}", of=2) for i in range(2)))
    world.run()
    world.see(with_topology("p2", of=8), with_topology("p3", of=2))
    assert world.verdict().members == (("p3", "p3"),)
    phases = {(view.present, view.needed): str(view.phase) for view in world.coordinator.summary()}
    assert phases == {(3, 2): "planned", (1, 8): "collecting"}


def test_an_elastic_member_is_asked_for_beside_those_that_run() -> None:
    world = World().start(node("a"), node("b"))
    world.see(*(with_topology(f"p{i}", of=2) for i in range(2)))
    world.run()
    world.auto = False
    world.see(with_topology("p2", of=2), with_topology("p3", of=2))
    world.solve()  # for p2 alone, before p3 came
    world.reserve()
    world.bind(world.permit())
    gang_request = asked(world)
    assert (gang_request.min_member, gang_request.size, len(gang_request.running)) == (1, 1, 3)


def test_members_on_their_way_are_neither_running_nor_asked_for() -> None:
    """One is bound, one permitted: nothing is asked before the second is settled."""
    world = World().start(node("a"), node("b"))
    world.see(pod("p0"), pod("p1"))
    assert world.reserve().claimed
    answer = world.permit()
    world.auto = False
    world.bind(answer, [0])
    assert world.phase() == "permitted"
    assert not world.solves
    world.wait(22)
    gang_request = asked(world)
    assert [running.member.uid for running in gang_request.running] == ["p0"]
    assert [member.uid for role in gang_request.roles for member in role.members] == ["p1"]


def test_a_terminating_member_is_no_neighbour() -> None:
    world = running_pair()
    world.see(replace(world.pods["p1"], terminating=True), pod("p9"))
    assert [running.member.uid for running in asked(world).running] == ["p0"]


def test_a_rank_that_changes_voids_the_plan() -> None:
    world = World().start(node("a"))
    world.see(with_topology("p0", FOURS, of=2), with_topology("p1", FOURS, of=2))
    assert world.planned()
    world.see(with_topology("p1", FOURS, of=2, rank=7))
    assert world.outcomes() == ["planned", "withdrawn", "planned"]


def test_a_gang_of_two_roles_is_not_counted_again_for_each_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(auto=False).start(node("a"))
    counted: list[NameKey] = []
    roster = world.coordinator.state.roster
    groups = roster.groups

    def count(key: NameKey) -> list[Group]:
        counted.append(key)
        return groups(key)

    monkeypatch.setattr(roster, "groups", count)
    world.see(*(with_topology(f"p{i}", TopologyRequest("xy"[i % 2]), of=200) for i in range(200)))
    world.wait(1)
    assert asked(world).size == 200
    assert len(counted) < 10


def test_a_restart_knows_where_the_others_run() -> None:
    world = World(auto=False)
    world.see(bound(pod("p0"), "b", {"gpu.topology/allocation": '{"version":1,"gpus":[2]}'}), pod("p1"))
    world.start(node("a"), node("b"))
    assert asked(world).running == (RunningMember(Member("p0", "p0"), "", "b", 0b0100),)
