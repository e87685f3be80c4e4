"""What a running gang keeps of a lost member that it needs, and the turn of the replacement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.node import DeviceClaim, Resources
from muster.domain.pod import Pod
from muster.domain.topology import bits
from muster.gangs.capacity.ledger import fits
from muster.gangs.lifecycle import reconciliation
from muster.gangs.lifecycle.deferral import MANY
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate
from muster.gangs.messages.settings import GangSettings
from muster.gangs.pending import reservations, scheduling_queue
from tests.gangs.test_device_claims import devices, served
from tests.gangs.world import World, foreign, node, pod, with_topology

KEPT_S = GangSettings().lost_s


def member(uid: str, **more: object) -> Pod:
    """A member of gang g: four of 8 GPUs, of one Job."""
    return pod(uid, **{"of": 4, "gpus": 8, "owner": "job", "created": 10.0} | more)  # type: ignore[arg-type]


def single(uid: str, gpus: int = 8, **more: object) -> Pod:
    """A gang of one, in another namespace."""
    return pod(uid, gang="", gpus=gpus, **{"namespace": "other", "created": 20.0} | more)  # type: ignore[arg-type]


def full(*waiting: str) -> World:
    """Gang g runs on all four nodes; these pods wait."""
    world = World().start(*(node(f"n{i}", 8) for i in range(4)))
    world.see(*(member(f"g{i}") for i in range(4)))
    world.run()
    world.see(*(single(uid) for uid in waiting))
    return world


def fail(world: World, uid: str) -> None:
    """The pod failed: its kubelet says so."""
    world.see(replace(world.pods[uid], finished=True))


LOSSES: dict[str, Callable[[World, str], None]] = {"fails": fail, "is deleted": World.gone}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("after", [0.0, 10.0, KEPT_S - 1])
def test_the_replacement_has_the_place_that_was_lost(
    lose: Callable[[World, str], None], after: float
) -> None:
    """As a Job's controller does it, which waits ten seconds. Five pods wait for longer."""
    world = full("q0", "q1", "q2", "q3", "q4")
    lose(world, "g2")
    world.wait(after)
    assert [world.phase(f"q{i}") for i in range(5)] == 5 * ["unplaceable"]
    world.see(member("g9", created=30.0))
    world.run()
    assert world.phase() == "running"
    assert world.held() == set()


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_others_have_the_place_if_no_replacement_comes_in_time(lose: Callable[[World, str], None]) -> None:
    world = full("q")
    lose(world, "g2")
    world.wait(KEPT_S - 1)
    assert world.phase("q") == "unplaceable"
    world.wait(1)
    assert world.planned("q")
    assert world.held() == {"q"}


def test_a_replacement_that_was_there_before_the_place_came_free_has_it() -> None:
    world = full("q")
    world.see(replace(world.pods["g2"], terminating=True))
    world.see(member("g9", created=30.0))
    assert world.phase() == "unplaceable"
    world.gone("g2")
    assert (world.planned(), world.phase("q")) == (True, "unplaceable")


def test_several_members_have_what_they_lost() -> None:
    world = full("q", "r")
    fail(world, "g1")
    fail(world, "g2")
    world.see(member("g8", created=30.0))
    assert (world.phase(), world.phase("q")) == ("collecting", "unplaceable")
    world.see(member("g9", created=30.0))
    world.run()
    assert (world.phase(), world.phase("q"), world.held()) == ("running", "unplaceable", set())


def test_members_that_end_one_by_one_cost_a_look_at_each_place_and_not_at_all_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World().start(*(node(f"n{i}", 8) for i in range(5)))
    world.see(*(member(f"g{i}", of=40, gpus=1) for i in range(40)))
    world.run()
    looks = list[int]()

    def counted(*args: Any) -> bool:
        looks.append(1)
        return fits(*args)

    monkeypatch.setattr(reservations, "fits", counted)
    for number in range(20):
        world.gone(f"g{number}")
    assert world.held() == {f"g{number}" for number in range(20)}
    assert len(looks) <= 2 * 20


# --- what is not kept ---------------------------------------------------------------------------------------


def test_a_later_loss_keeps_the_first_place_for_no_longer() -> None:
    """Its user deletes a member of two gangs in turn, or one after another."""
    world = World().start(*(node(f"n{i}", 8) for i in range(4)))
    world.see(*(member(f"g{i}", of=8, gpus=4) for i in range(8)))
    world.run()
    world.see(single("q", gpus=4))
    for number in range(4):
        assert world.phase("q") == "unplaceable"
        world.gone(f"g{number}")
        world.wait(KEPT_S / 4)
    assert world.planned("q")


def test_no_more_is_kept_than_still_runs() -> None:
    """Its user's quota is free again, and is not to hold many times that quota."""
    world = full("q", "r")
    for number in range(3):
        world.gone(f"g{number}")
    assert (world.planned("q"), world.planned("r")) == (True, True)
    assert len(world.held() - {"q", "r"}) == 1


def large() -> World:
    """Gang g is so large that it is regrouped later. It runs on all nodes."""
    members = MANY + 8
    world = World().start(*(node(f"n{i}", 8) for i in range(members // 8)))
    world.see(*(member(f"g{i}", of=members, gpus=1) for i in range(members)))
    world.wait(1.0)
    world.run()
    return world


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_member_of_a_large_gang_has_its_place_too(lose: Callable[[World, str], None]) -> None:
    world = large()
    world.see(single("q", gpus=1))
    lose(world, "g2")
    world.wait(10.0)
    assert world.phase("q") == "unplaceable"
    world.see(member("r2", of=MANY + 8, gpus=1, created=50.0))
    world.wait(1.0)
    assert (world.phase(), world.phase("q")) == ("planned", "unplaceable")


@pytest.mark.parametrize("most", [4, 256])
def test_a_large_gang_that_ends_keeps_no_more_than_still_runs(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "_MAX_NOTED_LOSSES", most)
    world = large()
    for number in range(MANY + 8):
        fail(world, f"g{number}")
        assert len(world.held()) <= MANY + 7 - number
    assert world.held() == set()


def test_no_more_places_are_kept_than_the_gang_lacks() -> None:
    """A member ends long after it was deleted and replaced, and together with another one."""
    world = World().start(*(node(f"n{i}", 8) for i in range(5)))
    world.see(*(member(f"g{i}") for i in range(4)))
    world.run()
    world.see(replace(world.pods["g0"], terminating=True), member("r0", created=30.0))
    world.run()
    world.see(single("q"))
    world.gone("g1", "g0")
    assert len(world.held() - {"q"}) == 1
    assert world.planned("q")


@pytest.mark.parametrize("loss", ["succeeds", "above the minimum", "the last one", "a gang of one"])
def test_nothing_is_kept_of_a_member_that_its_gang_does_not_need(loss: str) -> None:
    world = World().start(node("a", 2))
    lone = loss == "a gang of one"
    least = 1 if loss == "above the minimum" else 2
    members = (
        [single("p0", gpus=2)] if lone else [with_topology(f"p{i}", of=least, owner="job") for i in range(2)]
    )
    world.see(*members)
    world.run("p0" if lone else "g")
    if least == 1 and not lone:
        world.run()  # the one above the minimum
    world.see(single("q", gpus=1))
    if loss == "succeeds":
        world.see(replace(world.pods["p0"], finished=True, succeeded=True))
    else:
        world.gone(*(["p1", "p0"] if loss == "the last one" else ["p0"]))
    assert world.planned("q")
    assert world.held() == {"q"}


def test_a_place_goes_with_its_node_and_if_others_take_it() -> None:
    for others_take_it in (True, False):
        world = full()
        home = world.pods["g2"].node
        fail(world, "g2")
        assert world.held() == {"g2"}
        world.see(foreign("f", home, 8)) if others_take_it else world.send(inputs.NodeGone(world.now, home))
        assert world.held() == set()


def test_a_member_of_a_gang_of_the_same_name_in_another_namespace_has_nothing_of_it() -> None:
    world = full()
    fail(world, "g2")
    world.see(member("o0", of=1, namespace="other", owner="their"))
    assert [view.phase for view in world.coordinator.summary()] == ["running", "unplaceable"]


def test_others_have_what_is_free_next_to_the_place() -> None:
    """Of two free GPUs, a member had one."""
    world = World().start(node("a", 8), node("b", 8))
    world.see(*(member(f"g{i}", of=2, gpus=1) for i in range(2)))
    world.run()
    world.see(foreign("f", "b", 7), foreign("e", "a", 6))
    world.gone("g0")
    world.see(single("q", gpus=1), single("r", gpus=1))
    assert [world.planned("q"), world.phase("r")] == [True, "unplaceable"]


def test_the_place_is_kept_when_the_plan_of_the_replacement_is_void() -> None:
    world = full("q")
    fail(world, "g2")
    world.see(member("g9", created=30.0))
    world.unreserve(0, BindingFate.NEVER_SENT)
    assert (world.phase(), world.phase("q")) == ("withdrawn", "unplaceable")
    world.wait(1)
    world.run()
    assert (world.phase(), world.phase("q"), world.held()) == ("running", "unplaceable", set())


def test_the_place_is_kept_while_the_gang_has_other_owners() -> None:
    """The master is the only pod of its owner, and is made anew."""
    world = World().start(node("a", 8), node("b", 8))
    world.see(member("m", of=2, owner="master"), member("w", of=2, owner="workers"))
    world.run()
    world.see(single("q"))
    first = world.coordinator.keys()
    fail(world, "m")
    assert world.coordinator.keys() != first
    world.wait(10)
    assert world.phase("q") == "unplaceable"
    world.see(member("n", of=2, owner="master", created=30.0))
    world.run()
    assert (world.phase(), world.phase("q"), world.held()) == ("running", "unplaceable", set())


def test_a_replacement_that_goes_while_it_waits_leaves_its_turn() -> None:
    world = full()
    world.send(inputs.NodeGone(world.now, world.pods["g2"].node))
    world.gone("g2")
    world.see(member("g9", created=30.0))
    world.wait(KEPT_S + 1)
    (gang,) = world.coordinator.state.gangs.values()
    assert gang.has_precedence
    world.gone("g9")
    world.see(member("g10", created=40.0))
    assert not gang.has_precedence


@pytest.mark.parametrize(("gpus", "phase"), [(8, "planned"), (7, "unplaceable")])
def test_a_backfill_reservation_hides_nothing_from_what_was_lost(gpus: int, phase: str) -> None:
    world = full()
    world.see(*(single(f"h{i}", created=5.0) for i in range(1)))
    world.wait(600)
    reservation = world.coordinator.state.backfill.current
    assert reservation is not None
    (lost_uid,) = (uid for uid in world.pods if world.pods[uid].node in reservation.wants)
    world.gone(lost_uid)
    world.see(member("g9", gpus=gpus, created=30.0))
    assert world.phase() == phase


def test_members_without_gpus_have_their_place_too() -> None:
    world = World().start(node("a", 0))
    half = Resources(32_000, 1 << 30, 1)
    world.see(*(member(f"g{i}", of=2, gpus=0, resources=half) for i in range(2)))
    world.run()
    world.see(single("q", gpus=0, resources=half))
    world.gone("g0")
    world.wait(10)
    assert world.phase("q") == "unplaceable"
    world.see(member("g9", of=2, gpus=0, resources=half, created=30.0))
    assert world.planned()


def test_a_place_whose_devices_are_still_allocated_is_kept() -> None:
    """The claim of a pod that failed goes some time after it."""
    world = World().start(served(gpus=2))
    world.see(*(member(f"g{i}", of=2, gpus=1) for i in range(2)))
    world.run()
    had = bits(world.pods["g0"].allocation or 0)
    world.send(inputs.DeviceClaimSeen(world.now, DeviceClaim("c", devices(*had), ("g0",))))
    world.see(single("q", gpus=1))
    fail(world, "g0")
    world.send(inputs.DeviceClaimSeen(world.now, DeviceClaim("c", (), ())))
    assert world.phase("q") == "unplaceable"
    world.see(member("g9", of=2, gpus=1, created=30.0))
    assert world.planned()


def test_a_new_service_keeps_nothing_and_the_replacement_waits_in_line() -> None:
    world = full("q")
    fail(world, "g2")
    world.restart()
    for listed_pod in world.pods.values():
        world.send(inputs.PodSeen(world.now, listed_pod))
    world.start(*(node(f"n{i}", 8) for i in range(4)))
    assert world.planned("q")


DOES = ("delete", "delete", "replace", "replace by a smaller one", "wait")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(DOES), max_size=14))
def test_a_user_who_deletes_members_at_will_has_no_more_than_before(does: list[str]) -> None:
    world = full("q0", "q1")
    lost_at: dict[str, float] = {}
    for number, step in enumerate(does):
        members = [pod for pod in world.pods.values() if pod.namespace == "ns"]
        running = sorted(pod.uid for pod in members if pod.node)
        if step == "delete" and running:
            lost_at[running[0]] = world.now
            world.gone(running[0])
        elif step.startswith("replace") and len(members) < 4:
            gpus = 8 if step == "replace" else 4
            world.see(member(f"r{number}", gpus=gpus, created=30.0 + number))
        elif step == "wait":
            world.wait(KEPT_S / 3)
        if world.phase() == "planned":
            world.run()
        kept_uids = world.held() & lost_at.keys()
        has = sum(pod.gpus for pod in world.pods.values() if pod.namespace == "ns" and pod.node)
        assert all(world.now - lost_at[uid] <= KEPT_S for uid in kept_uids)
        keeps = sum(world.coordinator.state.ledger.reservations[uid].gpus.bit_count() for uid in kept_uids)
        assert keeps <= min(has, 32 - has)
    world.wait(KEPT_S)
    assert not world.held() & lost_at.keys()


# --- the line -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_fair_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn goes to the gang that was planned longest ago."""
    monkeypatch.setattr(scheduling_queue, "FAIR_TURN", 1 << 30)


def crowd(replacement: Pod, *more: Pod, wait: float = 0.0) -> list[str]:
    """The node of a member is gone. These pods and its replacement wait, and are planned in which order?"""
    world = full()
    world.send(inputs.NodeGone(world.now, world.pods["g2"].node))
    world.gone("g2")
    world.wait(wait)
    world.auto = False
    world.see(single("busy", gpus=1))
    world.see(*more)
    world.see(replacement)
    world.solve()
    gang_names = []
    while world.solves:
        gang_names.append(world.solves[0].request.gang.name)
        world.solve()
    return gang_names[:3]


OLD = (single("old", created=1.0), single("old2", created=2.0))


@pytest.mark.usefixtures("no_fair_turns")
@pytest.mark.parametrize(
    ("replacement", "wait", "order"),
    [
        (member("g9", created=99.0), 0, ["g", "old", "old2"]),
        (member("g9", created=99.0), KEPT_S + 1, ["old", "old2", "g"]),
        (member("g9", created=99.0, gpus=9), 0, ["old", "old2", "g"]),
        (member("g9", created=99.0, resources=Resources(2_000, 1 << 30, 1)), 0, ["old", "old2", "g"]),
        (member("g9", created=99.0, priority=-1), 0, ["old", "old2", "g"]),
    ],
    ids=["what was lost", "too late", "more GPUs", "more CPUs", "another priority"],
)
def test_the_replacement_of_what_was_lost_comes_first(
    replacement: Pod, wait: float, order: list[str]
) -> None:
    assert crowd(replacement, *OLD, wait=wait) == order


def test_of_two_gangs_the_older_one_has_its_replacement_first() -> None:
    world = World().start(*(node(f"n{i}", 8) for i in range(5)))
    for name, age in (("young", 15.0), ("old", 5.0)):
        world.see(*(pod(f"{name}{i}", name, gpus=8, owner=name, created=age) for i in range(2)))
        world.run(name)
    lost_nodes = [world.pods[f"{name}0"].node for name in ("young", "old")]
    for name in lost_nodes:
        world.send(inputs.NodeGone(world.now, name))
    world.gone("young0", "old0")
    world.see(foreign("f", next(f"n{i}" for i in range(5) if not _used(world, f"n{i}")), 8))
    world.see(pod("young9", "young", gpus=8, owner="young", created=30.0))
    world.see(pod("old9", "old", gpus=8, owner="old", created=31.0))
    world.gone("f")
    assert [world.phase(name) for name in ("young", "old")] == ["unplaceable", "planned"]


def _used(world: World, name: str) -> bool:
    return name not in world.coordinator.state.ledger.nodes or any(
        bound_pod.node == name for bound_pod in world.pods.values()
    )


@pytest.mark.usefixtures("no_fair_turns")
@pytest.mark.parametrize(("ready", "turn"), [(False, True), (True, False)], ids=["broken", "sound"])
def test_a_pod_that_is_deleted_on_a_broken_node_is_lost_at_once(ready: bool, turn: bool) -> None:
    """No kubelet ends it. On a sound node it has its place until it ends, which its user may delay."""
    world = full("q")
    home = world.pods["g2"].node
    world.send(inputs.NodeSeen(world.now, node(home, 8, ready=ready)))
    world.see(replace(world.pods["g2"], terminating=True))
    world.see(member("g9", created=30.0))
    (gang,) = (gang for gang in world.coordinator.state.gangs.values() if gang.name[2] == "g")
    assert gang.has_precedence is turn
    world.wait(KEPT_S + 1)
    assert gang.has_precedence is turn
    first = min(world.coordinator.summary(), key=lambda view: view.queue_order)
    assert first.name == ("g" if turn else "q")
    world.send(inputs.NodeSeen(world.now, node("n9", 8)))
    assert (world.planned(), world.planned("q")) == (turn, not turn)


@pytest.mark.usefixtures("no_fair_turns")
def test_a_higher_priority_comes_before_it() -> None:
    urgent = replace(OLD[0], priority=5)
    assert crowd(member("g9", created=99.0), urgent, OLD[1]) == ["old", "g", "old2"]


@pytest.mark.usefixtures("no_fair_turns")
def test_another_priority_gives_no_precedence_in_its_own_line() -> None:
    """Its user runs a gang of low priority, deletes a member, and sends an urgent one for it."""
    older = tuple(replace(old, priority=5) for old in OLD)
    assert crowd(member("g9", created=99.0, priority=5), *older) == ["old", "old2", "g"]
