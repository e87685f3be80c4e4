"""What the answers of in-tree plugins cost is bounded, whatever gangs a user creates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.node import Resources
from muster.domain.peers import PeerRules
from muster.domain.pod import TopologyRequest
from muster.domain.request import Role, Segment
from muster.gangs.messages.calls import AgreeingGroup, InTreeAnswer
from muster.gangs.messages.instructions import AskInTree
from muster.gangs.messages.settings import GangSettings
from muster.gangs.pending import answers
from muster.gangs.pending.answers import SubrequestCache, subrequests
from muster.gangs.pending.refinement import GangAnswers
from tests.gangs.world import World, node, pod, with_topology

BY = "VolumeBinding: node(s) didn't match PersistentVolume's node affinity"
NAMES = tuple(f"n{i:02}" for i in range(40))
CLAIMS = PeerRules(volume_claims=("c",))


def cluster() -> World:
    """It waits a second for more members. No planner answers."""
    world = World(settings=GangSettings(settle_s=1), auto=False, answers_in_tree=True)
    return world.start(*(node(name, 8) for name in NAMES))


def but(*open_nodes: str) -> InTreeAnswer:
    """All nodes are refused but these."""
    return InTreeAnswer({name: BY for name in NAMES if name not in open_nodes})


@pytest.mark.parametrize("answer", [InTreeAnswer(missing_claims=("c2",)), InTreeAnswer(everywhere=BY)])
def test_unlike_roles_that_no_node_admits_share_one_map_of_the_nodes(answer: InTreeAnswer) -> None:
    """A user may create thousands of roles, and a cluster has thousands of nodes."""
    world = cluster()
    unlike = (Resources(1_000 + i, 1 << 30, 1) for i in range(9))
    world.see(
        *(with_topology(f"m{i}", peers=CLAIMS, resources=resources) for i, resources in enumerate(unlike))
    )
    world.wait(1)
    world.report(InTreeAnswer(), answer, of=((0,), tuple(range(1, 9))))
    excluded = world.solves[-1].excluded
    refused = [nodes for nodes in excluded.values() if nodes]
    assert [len(nodes) for nodes in refused] == [40] * 8
    assert len({id(nodes) for nodes in refused}) == 1


def test_a_role_that_stays_whole_leaves_out_what_all_its_answers_refuse() -> None:
    world = cluster()
    topology_request = TopologyRequest(segments=(Segment(1, "rack"),))
    world.see(*(with_topology(f"m{i}", topology_request, peers=CLAIMS) for i in range(3)))
    world.wait(1)
    answers = (but("n01", "n02"), but("n02", "n03"), InTreeAnswer(everywhere=BY))
    world.report(*answers, of=((0,), (1,), (2,)))
    left_out = set().union(*world.solves[-1].excluded.values())
    assert left_out == set(NAMES) - {"n01", "n02", "n03"}


def test_a_gang_with_too_many_lists_of_matching_gpus_is_refused_and_they_are_not_kept() -> None:
    """Each pod may ask by other selectors, and each subrequest too: all nodes are looked at for each list."""
    world = cluster()
    world.see(*(with_topology(f"m{i}", peers=CLAIMS) for i in range(3)))
    world.wait(1)
    alike = frozenset({"gpu.example.com/gpu-0"})
    answers = [InTreeAnswer(devices=(dict.fromkeys(NAMES, alike),) * lists) for lists in (6, 6, 5)]
    world.report(*answers, of=((0,), (1,), (2,)))
    assert world.solves == []
    (view,) = world.coordinator.summary()
    assert "17 lists of matching GPUs" in view.reason
    assert "16 at most" in view.reason
    world.report(*answers[:2], InTreeAnswer(), of=((0,), (1,), (2,)))
    assert [len(role.subrequests) for role in world.solves[-1].request.roles] == [6, 6, 0]


def unlike_roles(world: World, roles: int) -> None:
    """Make a gang whose pods differ in their processors alone."""
    unlike = [Resources(1_000 + i, 1 << 30, 1) for i in range(roles)]
    world.see(
        *(
            with_topology(f"m{i}", peers=CLAIMS, gpus=1, resources=resources)
            for i, resources in enumerate(unlike)
        )
    )
    world.wait(1)


def with_cards() -> InTreeAnswer:
    """GPUs 0 and 1 match on all nodes, and a card agrees with them."""
    alike = frozenset({"gpu.example.com/gpu-0", "gpu.example.com/gpu-1"})
    return InTreeAnswer(
        devices=(dict.fromkeys(NAMES, alike),), groups=(dict.fromkeys(NAMES, (AgreeingGroup(alike, 1),)),)
    )


def test_roles_with_one_answer_share_what_is_made_of_its_lists() -> None:
    """The lists have all nodes: only they are work on the event loop, not each role."""
    world = cluster()
    unlike_roles(world, 9)
    world.report(with_cards())
    roles = world.solves[-1].request.roles
    assert len(roles) == 9
    assert len(roles[0].matching) == len(NAMES)
    assert len({id(role.matching) for role in roles}) == 1


def test_roles_that_take_all_matching_gpus_share_them_too() -> None:
    answers, nodes, cache = (with_cards(),), {name: node(name, 8) for name in NAMES}, SubrequestCache()
    role = Role("w", (), Resources(), 1, "g", gpu_counts=(0,))
    first, second = (subrequests(role, answers, nodes, cache) for _ in range(2))
    assert first[0].matching is second[0].matching


def test_a_gang_that_is_refused_costs_no_look_at_the_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(GangAnswers, "refine", lambda *arguments: looks.append(arguments))
    world = cluster()
    unlike_roles(world, 3)
    world.report(replace(with_cards(), everywhere=BY))
    assert world.solves == []
    assert looks == []


def test_a_gang_whose_lists_have_too_many_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same list counts once."""
    monkeypatch.setattr(answers, "MAX_LISTED_NODES", 2 * len(NAMES))
    world = cluster()
    unlike_roles(world, 3)
    world.report(with_cards())
    assert len(world.solves) == 1
    second_world = cluster()
    unlike_roles(second_world, 3)
    second_world.report(with_cards(), with_cards(), of=((0, 1), (2,)))
    (view,) = second_world.coordinator.summary()
    assert second_world.solves == []
    assert "lists of matching GPUs on 160 nodes" in view.reason


def test_the_question_of_a_gang_that_is_gone_is_taken_back() -> None:
    world = cluster()
    world.see(pod("x", gang="", peers=CLAIMS), pod("y", gang=""))
    world.wait(1)
    question = world.questions[-1]
    world.gone("y", "x")
    world.wait(1)
    assert world.questions[1:] == [AskInTree(question.gang, question.question + 1, question.namespace, ())]


class Compared(dict[str, str]):
    """Counts how often its nodes are compared with as many others."""

    times = 0
    __hash__ = None

    def __eq__(self, other: object) -> bool:
        Compared.times += isinstance(other, dict) and len(self) == len(other)
        return super().__eq__(other)


@pytest.mark.parametrize("roles", [1, 2, 16])
def test_large_answers_are_not_compared_for_each_role(roles: int) -> None:
    """Four answers, each as two equal objects. Each role has a member for each of these eight."""
    world = cluster()
    segments = TopologyRequest(segments=(Segment(1, "rack"),))
    unlike = [Resources(1_000 + role, 1 << 30, 1) for role in range(roles) for _ in range(8)]
    world.see(
        *(
            with_topology(f"m{i:03}", segments, peers=CLAIMS, resources=resources)
            for i, resources in enumerate(unlike)
        )
    )
    world.wait(1)
    answers = [InTreeAnswer(Compared(dict.fromkeys(NAMES[1:], f"{BY} {number % 4}"))) for number in range(8)]
    Compared.times = 0
    world.report(*answers, of=tuple(tuple(range(at, 8 * roles, 8)) for at in range(8)))
    assert len(world.solves[-1].request.roles) == roles
    assert Compared.times == 4, "the second of each two with the first"
