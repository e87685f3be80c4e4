"""What a planner is asked about the other places of a gang: the cluster and the gang, as if it had none."""

from __future__ import annotations

from muster.gangs.lifecycle import alternatives as module
from muster.gangs.reporting.places import AskAlternatives
from muster.placement.alternatives import alternatives
from tests.gangs.world import World, foreign, node, pod


def asked(world: World) -> AskAlternatives | str:
    (key,) = world.coordinator.keys()
    return world.coordinator.alternatives(key)


def test_a_planned_gang_is_asked_about_without_itself() -> None:
    world = World().start(node("a", 4), node("b", 4))
    world.see(foreign("f", "b"), *(pod(f"p{rank}", gpus=2) for rank in range(2)))
    question = asked(world)
    assert isinstance(question, AskAlternatives)
    assert [(member.node, len(member.gpus)) for member in question.request.members] == [("a", 2), ("a", 2)]
    assert question.snapshot.nodes["a"].free_gpu_count == 4
    assert question.snapshot.nodes["b"].free_gpu_count == 3
    assert question.request.request.size == 2
    assert question.request.request.running == ()


def test_a_bound_gang_is_asked_about_as_if_it_waited() -> None:
    world = World().start(node("a", 4), node("b", 4))
    world.see(*(pod(f"p{rank}", gpus=2) for rank in range(2)))
    before = asked(world)
    assert isinstance(before, AskAlternatives)
    world.run()
    question = asked(world)
    assert isinstance(question, AskAlternatives)
    assert question.request.members == before.request.members
    assert question.snapshot.nodes["a"].free_gpu_count == 4
    (alternative,) = alternatives(question.snapshot, question.request).tried
    assert (alternative.domain, alternative.says) == ("node b", "as good at each level")


def test_nothing_is_changed_and_no_instruction_follows() -> None:
    world = World().start(node("a", 4), node("b", 4))
    world.see(pod("p0", of=1))
    state = world.coordinator.state
    before = (world.coordinator.snapshot(), world.coordinator.summary(), len(world.verdicts))
    asked(world)
    assert (world.coordinator.snapshot(), world.coordinator.summary()) == before[:2]
    assert not state.ledger.gained_nodes
    assert not state.ledger.existing_pods.changes.concern_peers
    world.wait(0)
    assert len(world.verdicts) == before[2]


def test_what_can_not_be_asked_is_said() -> None:
    world = World().start(node("a", 1))
    world.see(pod("p0", of=1, gpus=2))
    assert asked(world) == module.NO_PLACE
    assert world.coordinator.alternatives("no/such/gang") == module.NO_PLACE
    unindexed = World().start(node("a", 4))
    unindexed.see(pod("p0", of=1, gpus=2, node="a", running=True))
    assert asked(unindexed) == module.UNINDEXED
