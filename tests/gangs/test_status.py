"""The status of PodGroups: what it shows in each phase, and how seldom it is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from muster.domain.causes.ill_formed import BadValue
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup, PodGroupStatus
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import EventReason, Instruction, WriteStatus
from muster.gangs.messages.settings import GangSettings
from muster.gangs.reporting import podgroup_status
from tests.gangs.world import World, foreign, node, pod

GROUP = PodGroup(
    "ns", "kai", "train", uid="g", min_member=2, topology_request=TopologyRequest(required_scope="node")
)
QUIET = GangSettings(settle_s=0)


class Written(World):
    """A world that keeps what is written, with the time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.written: list[tuple[float, WriteStatus]] = []

    def take(self, instructions: list[Instruction]) -> None:  # type: ignore[override]  # a narrower container
        self.written += [
            (self.now, instruction) for instruction in instructions if isinstance(instruction, WriteStatus)
        ]
        super().take(instructions)

    def shows(self) -> PodGroupStatus:
        """The status, once nothing changes any more."""
        self.wait(2 * self.settings.status_s)
        return self.statuses()[-1]

    def statuses(self) -> list[PodGroupStatus]:
        """All statuses that were written."""
        statuses = [write.status for _, write in self.written]
        return [status for status in statuses if isinstance(status, PodGroupStatus)]


def named(uid: str, gpus: int = 1) -> Pod:
    return pod(uid, gpus=gpus, claim=GangClaim("kai", "train", by_object=True))


def begun(*nodes: str, group: PodGroup = GROUP) -> Written:
    world = Written(QUIET)
    world.start(*map(node, nodes))
    world.send(inputs.PodGroupSeen(world.now, group))
    return world


def test_it_follows_the_gang_from_its_first_pod_to_its_last() -> None:
    world = begun("a")
    shown = world.shows()
    assert (shown.phase, shown.needed, shown.present) == ("Collecting", 2, 0)
    world.see(named("p0"))
    assert world.shows().present == 1
    world.see(named("p1"))
    shown = world.shows()
    assert (shown.phase, shown.present, shown.placed) == ("Planning", 2, 0)
    answer = world.reserve(gang="train")
    assert answer.claimed
    permitted = world.permit(gang="train")
    shown = world.shows()
    assert (shown.phase, shown.placed, shown.domain) == ("Permitted", 2, "nvlink-domain a/0")
    world.bind(permitted, gang="train")
    assert world.shows().phase == "Running"
    for uid in ("p0", "p1"):
        world.see(replace(world.pods[uid], running=True))
    shown = world.shows()
    assert (shown.running, shown.domain, shown.reason) == (2, "nvlink-domain a/0", "")
    assert [condition.status for condition in shown.conditions] == [True, True]
    for uid in ("p0", "p1"):
        world.see(replace(world.pods[uid], running=False, finished=True, succeeded=True))
    assert world.shows().phase == "Finished"
    world.gone("p0", "p1")
    assert world.shows().phase == "Finished"


def test_a_gang_that_does_not_fit_says_why_and_has_an_event_on_its_pod_group() -> None:
    world = begun("a")
    world.see(foreign("f", on="a", gpus=3), named("p0"), named("p1"))
    shown = world.shows()
    assert (shown.phase, shown.placed) == ("Unplaceable", 0)
    assert shown.reason == world.verdict("train").reason
    assert [condition.status for condition in shown.conditions] == [True, False]
    (event,) = [event for event in world.events if event.kind == "PodGroup"]
    assert (event.reason, event.objects) == (EventReason.UNPLACEABLE, (("train", "g"),))
    assert event.api_version == "scheduling.run.ai/v2"


def test_an_ill_formed_pod_group_says_so_before_it_has_pods() -> None:
    cause = BadValue("podgroup/ns/train", "spec.minMember", "0", "a positive whole number")
    shown = begun("a", group=replace(GROUP, min_member=None, causes=(cause,))).shows()
    assert shown.phase == "Invalid"
    assert "spec.minMember" in shown.reason


def test_a_crowd_of_pods_is_a_write_a_second_at_most() -> None:
    world = begun("a", group=replace(GROUP, min_member=1000))
    for number in range(300):
        world.now += 0.01
        world.see(named(f"p{number}"))
    assert world.shows().present == 300
    times = [when for when, _ in world.written]
    assert all(later - before >= QUIET.status_s for before, later in pairwise(times))
    assert 3 <= len(times) <= 5


def test_numbers_alone_are_written_at_a_slow_rate() -> None:
    world = begun("a", "b", "c")
    for name in ("a", "b", "c"):
        world.see(foreign(f"f-{name}", on=name, gpus=4))
    world.see(named("p0"), named("p1"))
    first = world.shows()
    assert first.phase == "Unplaceable"
    count = len(world.written)
    for number in range(20):
        world.see(foreign("f-a", on="a", gpus=4 - number % 2))
        world.wait(1.0)
    assert len(world.written) == count
    world.see(named("p2"))
    assert world.shows().present == 3
    assert len(world.written) == count + 1


def test_plans_that_are_made_and_withdrawn_are_one_state() -> None:
    world = begun("a", "b")
    world.see(named("p0"), named("p1"))
    assert world.shows().phase == "Planning"
    count = len(world.written)
    for _ in range(40):
        for name in ("a", "b"):
            world.send(inputs.NodeGone(world.now, name))
            world.send(inputs.NodeSeen(world.now, node(name)))
        world.wait(1)
    assert world.outcomes().count("withdrawn") > 5
    assert len(world.written) <= count + 1  # why one of them was withdrawn


def written_twice() -> tuple[Written, PodGroupStatus, PodGroupStatus]:
    """The PodGroup's status with one member there, and with both."""
    world = begun("a")
    world.see(named("p0"))
    old = world.shows()
    world.see(named("p1"))
    return world, old, world.shows()


def test_a_write_that_lands_after_the_next_one_is_written_over() -> None:
    world, old, new = written_twice()
    count = len(world.written)
    for shown, writes in ((new, 0), (old, 1), (new, 0)):
        world.send(inputs.PodGroupSeen(world.now, replace(GROUP, status=shown)))
        world.wait(5)
        count += writes
        assert len(world.written) == count
        assert world.written[-1][1].status == new


def test_what_the_watch_shows_late_is_no_other_status() -> None:
    """Two writes, both seen when the second has been made."""
    world, old, new = written_twice()
    count = len(world.written)
    for shown in (old, new):
        world.send(inputs.PodGroupSeen(world.now, replace(GROUP, status=shown)))
    world.wait(5)
    assert len(world.written) == count


@dataclass(frozen=True)
class Other:
    """A PodGroup whose status is not written, for this reason."""

    group: PodGroup
    connected: bool = True


OTHERS = {
    "KAI's": Other(replace(GROUP, api_version="scheduling.run.ai/v2alpha2")),
    "coscheduling's": Other(replace(GROUP, api_version="scheduling.x-k8s.io/v1alpha1")),
    "what it shows is so already": Other(
        replace(
            GROUP,
            status=PodGroupStatus("Collecting", 2, reason="Waiting for 2 more members: 0 of 2 are here"),
        )
    ),
    "another service has the shim": Other(GROUP, connected=False),
}


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_not_written(case: Other) -> None:
    world = Written(QUIET)
    world.send(inputs.NodeSeen(world.now, node("a")))
    world.send(inputs.Synced(world.now))
    if case.connected:
        world.connect()
    world.send(inputs.PodGroupSeen(world.now, case.group))
    world.wait(10)
    assert world.written == []


@pytest.mark.parametrize(("last", "writes"), [("Running", 1), ("Collecting", 0)])
def test_a_new_leader_writes_what_is_not_shown_yet(last: str, writes: int) -> None:
    world = Written(QUIET)
    world.send(inputs.Synced(world.now))
    world.see(named("p0"))
    reason = "Waiting for 1 more member: 1 of 2 are here"
    for phase in ("Planning", last):  # another service writes
        status = PodGroupStatus(phase, 2, 1, reason=reason)
        world.send(inputs.PodGroupSeen(world.now, replace(GROUP, status=status)))
    world.wait(10)
    world.connect()
    world.wait(10)
    assert [status.phase for status in world.statuses()] == ["Collecting"] * writes


@pytest.mark.parametrize(("pods", "counts"), [(0, [2, 4, 5]), (1, [1, 2, 3, 4, 5])])
def test_statuses_that_are_due_together_are_written_by_several_ticks(
    monkeypatch: pytest.MonkeyPatch, pods: int, counts: list[int]
) -> None:
    monkeypatch.setattr(podgroup_status, "WRITTEN_AT_ONCE", 2)
    world = Written(QUIET)
    world.start(node("a"))
    for name in map(str, range(5)):
        world.send(inputs.PodGroupSeen(world.now, replace(GROUP, name=name, uid=name)))
        world.see(*(pod(f"{name}-{i}", claim=GangClaim("kai", name, by_object=True)) for i in range(pods)))
    assert world.written == []
    world.now += QUIET.status_s
    written_counts = []
    while world.coordinator.next_deadline() == world.now:
        world.send(inputs.Tick(world.now))
        written_counts.append(len(world.written))
    assert written_counts == counts
