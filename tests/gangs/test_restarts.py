"""Bindings under way when a session begins, names used again, and gangs of thousands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from muster.domain.node import Usage
from muster.gangs.membership.group import Group, NameKey
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate, PlanRef, Unreserve
from tests.gangs.invariants import check
from tests.gangs.world import World, bound, node, pod

PAIR = (pod("p0"), pod("p1"))


def test_a_restart_takes_bindings_under_way_as_taken() -> None:
    world = World().start(node("a"), in_flight=(Usage("p0", "a", PAIR[0].resources, gpus=0b1110),))
    assert world.coordinator.state.orphans.keys() == {"p0"}
    world.see(pod("q", gang="", gpus=2))
    assert world.phase("q") == "unplaceable"
    world.wait(31)
    assert world.planned("q")


def test_a_gang_with_bindings_under_way_waits_for_them() -> None:
    world = World()
    world.see(*PAIR)
    usage = Usage("p0", "a", PAIR[0].resources, gpus=0b0010)
    world.start(node("a"), in_flight=(usage,))
    assert world.phase() == "permitted"
    world.see(replace(PAIR[0], node="a", allocation=0b0010))
    assert world.phase() == "planned"
    assert world.held() == {"p1"}
    assert world.verdict().required == 1


def test_a_gang_that_a_killed_leader_left_partially_bound_is_completed_soon() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    world.bind(world.permit(), members=(0,))
    world.connect()  # another shim: it knows of no Binding under way
    world.wait(9)
    assert world.phase() == "permitted"
    assert world.held() == {"p1"}
    world.wait(2)  # the pause after a withdrawal included
    assert world.planned()
    assert world.verdict().members == (("p1", "p1"),)


def test_what_a_new_session_reports_as_under_way_has_its_full_time() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    world.bind(world.permit(), members=(0,))
    world.connect(in_flight=(Usage("p1", "a", PAIR[1].resources, gpus=0b0010),))
    world.wait(19)
    assert world.phase() == "permitted"
    world.wait(3)
    assert world.planned()


def test_a_member_that_succeeded_needs_no_place_again() -> None:
    world = World().start(node("a"))
    world.see(pod("p0", owner="job", node="a", finished=True, succeeded=True), pod("p1", owner="job"))
    assert world.planned()
    assert world.verdict().members == (("p1", "p1"),)


WITHOUT_OWNER = {
    "it was there when the others began": ((9.0, 9.0), (1.0,), True),
    "it was created in the second in which the others began": ((9.0, 9.0), (9.0,), True),
    "two of three were never bound": ((9.0,), (1.0, 1.0), True),
    "it came later: its name may be used again": ((9.0, 9.0), (10.0,), False),
    "one of two came later": ((9.0,), (1.0, 10.0), False),
    "more pods than the gang has members": ((9.0, 9.0, 9.0), (1.0,), False),
    "it is not known when the others began": ((0.0, 0.0), (1.0,), False),
}
"""When pods of a gang of three that succeeded began; when waiting ones were created; are these planned?"""


@pytest.mark.parametrize(("began", "created", "planned"), WITHOUT_OWNER.values(), ids=WITHOUT_OWNER.keys())
def test_pods_without_an_owner_that_succeeded_count_for_pods_that_were_there(
    began: tuple[float, ...], created: tuple[float, ...], planned: bool
) -> None:
    """A leader was killed when it had bound some members, and these ended before the next one led."""
    world = World()
    for number, started in enumerate(began):
        done = pod(f"d{number}", of=3, node="a", created=1.0, started=started)
        world.see(replace(done, finished=True, succeeded=True))
    world.see(*(pod(f"p{number}", of=3, created=at) for number, at in enumerate(created)))
    world.start(node("a"))
    assert world.phase() == ("planned" if planned else "collecting")


def test_a_member_that_succeeded_needs_no_place_again_though_its_pod_is_deleted() -> None:
    """Its node went with all members. The Job makes the two again that have not succeeded."""
    world = World().start(node("a"))
    first = [pod(f"p{i}", of=3, owner="job", created=1.0) for i in range(3)]
    world.see(*first)
    world.run()
    world.see(replace(world.pods["p0"], started=2.0, finished=True, succeeded=True))
    for member in first:
        world.gone(member.uid)
    world.see(*(pod(f"q{i}", of=3, owner="job", created=9.0) for i in (0, 1)))
    assert world.phase() == "collecting"
    world.send(inputs.JobSeen(world.now, "job", 1))
    assert world.planned()
    assert world.verdict().members == (("q0", "q0"), ("q1", "q1"))


def test_a_member_counts_once_if_its_job_and_its_pod_say_that_it_succeeded() -> None:
    world = World().start(node("a"))
    world.send(inputs.JobSeen(world.now, "job", 1))
    done = pod("p0", of=3, owner="job", node="a", started=1.0, finished=True, succeeded=True)
    world.see(done, pod("p1", of=3, owner="job"))
    assert world.phase() == "collecting"


def test_what_a_job_says_holds_until_it_is_forgotten() -> None:
    world = World().start(node("a"))
    world.send(inputs.JobSeen(world.now, "job", 1))
    world.see(pod("p1", of=3, owner="job"), pod("other", "h", of=3, owner="other job"))
    assert [view.needed for view in world.coordinator.summary()] == [2, 3]
    world.send(inputs.JobSeen(world.now, "job", 0))
    assert [view.needed for view in world.coordinator.summary()] == [3, 3]


def test_a_job_that_says_any_number_stops_nobody() -> None:
    world = World().start(node("a"))
    world.send(inputs.JobSeen(world.now, "job", 10**9))
    world.see(pod("p1", of=3, owner="job"))
    assert world.planned()


def test_pods_of_a_job_that_are_gangs_of_one_do_not_count_for_each_other() -> None:
    world = World().start(node("a"))
    world.send(inputs.JobSeen(world.now, "job", 1))
    world.see(pod("p1", gang="", owner="job"))
    assert world.verdict("p1").members == (("p1", "p1"),)


def test_a_name_used_again_is_another_gang() -> None:
    world = World().start(node("a"), node("b"))
    world.see(*(pod(f"p{i}", owner="first") for i in (0, 1)))
    world.run()
    first = world.verdict().gang
    world.see(pod("q0", owner="second", created=5.0))
    phases = {view.key: str(view.phase) for view in world.coordinator.summary()}
    assert phases == {first: "running", first.replace("first", "second"): "collecting"}
    world.see(pod("q1", owner="second", created=5.0))
    assert world.planned()
    assert world.verdict().gang != first


def test_two_owners_are_one_gang_until_the_count_is_reached() -> None:
    world = World().start(node("a"))
    world.see(pod("master", of=3, owner="m"), pod("w0", of=3, owner="w"), pod("w1", of=3, owner="w"))
    assert world.verdict().gang == "ns/ack/g/m/w"
    assert len(world.verdict().members) == 3


def test_a_recreated_lone_pod_is_another_gang() -> None:
    world = World().start(node("a"))
    world.see(pod("u1", gang="", name="same"), pod("u2", gang="", name="same"))
    assert len({view.key for view in world.coordinator.summary()}) == 2


def test_another_owners_succeeded_pods_do_not_count() -> None:
    world = World().start(node("a"))
    world.see(pod("old", owner="first", finished=True, succeeded=True), pod("p1", owner="second"))
    assert world.phase() == "collecting"


def test_a_gang_of_thousands_is_not_counted_again_for_each_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(auto=False).start(node("a"))
    counted: list[object] = []
    groups = world.coordinator.state.roster.groups

    def count(key: NameKey) -> list[Group]:
        counted.append(key)
        return groups(key)

    monkeypatch.setattr(world.coordinator.state.roster, "groups", count)
    members = [pod(f"p{i}", of=500) for i in range(500)]
    for index, member in enumerate(members):
        world.see(member)
        if index == 99:
            world.wait(3)
            assert world.events[-1].message == "Waiting for 400 more members: 100 of 500 are here"
    world.wait(1)
    assert len(counted) < 10
    assert world.solves[0].request.size == 500
    world.see(replace(members[7], running=True))
    assert len(counted) < 10


def test_a_sibling_owner_that_has_succeeded_wholly_still_counts() -> None:
    """kubernetes#142330, over two Jobs: the master is done, a worker's replacement must not wait for it."""
    world = World().start(node("a"))
    master = pod("m0", of=3, owner="m", created=1.0, started=9.0, finished=True, succeeded=True)
    worker = pod("w0", of=3, owner="w", created=2.0, started=9.0, node="a", allocation=1)
    world.see(master, worker, pod("w1-again", of=3, owner="w", created=50.0))
    assert world.verdict().gang == "ns/ack/g/m/w"
    assert world.verdict().members == (("w1-again", "w1-again"),)


def test_a_run_that_has_succeeded_does_not_count_for_the_next_one() -> None:
    world = World().start(node("a"))
    world.see(pod("m0", of=3, owner="m", created=1.0, started=9.0, finished=True, succeeded=True))
    world.see(*(pod(f"w{i}", of=3, owner="later", created=20.0) for i in range(2)))
    assert world.phase() == "collecting"
    assert world.coordinator.summary()[0].key == "ns/ack/g/later"


@pytest.mark.parametrize("service", [False, True], ids=["the shim reconnects", "the service restarts"])
def test_a_refusal_of_a_binding_from_the_session_before_is_heard(service: bool) -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    world.permit()
    verdict, home = world.verdict(), world.home(1)
    flying = tuple(Usage(uid, "a", PAIR[0].resources, gpus=1 << i) for i, uid in enumerate(("p0", "p1")))
    if service:
        world.restart()
        world.see(*PAIR)
        world.start(node("a"), in_flight=flying)
    else:
        world.connect(flying)
    ref = PlanRef(world.epoch, verdict.gang, verdict.generation)
    for uid, fate in (("p1", BindingFate.REFUSED), ("p0", BindingFate.NEVER_SENT)):
        index = [name for name, _ in verdict.members].index(uid)
        world.ask(Unreserve(world.now, ref, index, home, fate, uid=uid))
    assert (world.phase(), world.held()) == ("withdrawn", set())


def test_a_refusal_of_a_binding_of_an_unknown_gang_is_heard() -> None:
    world = World().start(node("a"), in_flight=(Usage("p0", "a", PAIR[0].resources, gpus=1),))
    back = partial(Unreserve, world.now, PlanRef(world.epoch, "ns/ack/g", 7), 0, "a", uid="p0")
    world.ask(back(BindingFate.UNKNOWN))
    assert world.held() == {"p0"}
    world.ask(back(BindingFate.REFUSED))
    assert world.held() == set()


def test_what_died_before_a_new_session_began_had_been_bound_all_the_same() -> None:
    """All of the gang were bound, though not at one time."""
    world = World().start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    answer = world.permit()
    uids = [uid for _, uid in world.verdict().members]
    binding = world.coordinator.state.ledger.reservations[uids[1]]
    world.see(bound(world.pods[uids[0]], binding.node, answer.annotations[0]))
    world.gone(uids[0])
    world.connect(in_flight=(binding,))
    world.see(bound(world.pods[uids[1]], binding.node, answer.annotations[1]))
    world.wait(100)
    assert (world.phase(), world.evictions) == ("running", [])


def test_bindings_that_a_new_service_finds_under_way_complete_the_gang_once_they_have_landed() -> None:
    """Though the first has ended before the second is bound."""
    world = World()
    world.see(*PAIR)
    flying = tuple(Usage(f"p{i}", "a", PAIR[i].resources, gpus=1 << i) for i in (0, 1))
    world.start(node("a"), in_flight=flying)
    world.see(replace(PAIR[0], node="a", allocation=1))
    world.see(replace(PAIR[0], node="a", allocation=1, finished=True))
    world.see(replace(PAIR[1], node="a", allocation=2))
    world.wait(100)
    assert (world.phase(), world.evictions) == ("running", [])


def test_a_new_session_gives_a_partially_bound_gang_its_grace_though_its_members_were_not_counted_since() -> (
    None
):
    world = World().start(node("a"))
    world.see(*(pod(f"p{i}", of=3) for i in range(3)))
    assert world.reserve().claimed
    world.bind(world.permit(), members=(0,))
    world.connect(tuple(world.coordinator.state.ledger.reservations.values()))
    assert world.coordinator.summary()[0].bound == 1
    assert check(world.coordinator) == []
