"""The condition PodGroupInitiallyScheduled of Kubernetes' PodGroups: when it is written, with which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.domain.causes.ill_formed import BadValue
from muster.domain.peers import PeerRules
from muster.domain.pod import COMPOSITE, KUBERNETES, GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import SCHEDULED, Condition, PodGroup
from muster.domain.quorums import Leaf, Quorum
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import InTreeAnswer
from muster.gangs.messages.instructions import Instruction, WriteStatus
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.phases import Phase
from tests.gangs.world import World, foreign, node, pod

API = "scheduling.k8s.io/v1beta1"
GROUP = PodGroup(
    "ns", KUBERNETES, "x", uid="g", min_member=2, size=2, api_version=API, generation=3,
    count_field="spec.schedulingPolicy.gang.minCount",
)  # fmt: skip
CLAIM = GangClaim(KUBERNETES, "x", by_object=True)
YES = Condition(SCHEDULED, True, "Scheduled")
STALE = Condition(SCHEDULED, False, "Unschedulable", "an old sentence", since="2026-01-01T00:00:00Z")
BAD = BadValue("podgroup/ns/x", "spec.priority", "x", "a whole number")


class Written(World):
    """A world that keeps what is written, with the time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.written: list[tuple[float, WriteStatus]] = []

    def take(self, instructions: list[Instruction]) -> None:  # type: ignore[override]  # a narrower container
        writes = [instruction for instruction in instructions if isinstance(instruction, WriteStatus)]
        self.written += [(self.now, write) for write in writes]
        super().take(instructions)

    def conditions(self) -> list[Condition]:
        """What was written, once nothing changes any more."""
        self.wait(2 * self.settings.status_s)
        return [write.status for _, write in self.written if isinstance(write.status, Condition)]

    def shows(self, condition: Condition | None, group: PodGroup = GROUP) -> None:
        """The watch shows the PodGroup with this condition."""
        self.send(inputs.PodGroupSeen(self.now, replace(group, status=condition)))


def member(uid: str, on: str = "", **more: object) -> Pod:
    return replace(pod(uid, claim=CLAIM), node=on, **more)  # type: ignore[arg-type]  # fields of a pod


def begun(*nodes: str, group: PodGroup = GROUP, shown: Condition | None = None) -> Written:
    world = Written(GangSettings(settle_s=0))
    world.start(*map(node, nodes))
    world.shows(shown, group)
    return world


def test_it_says_nothing_before_a_verdict_and_true_once_the_minimum_is_bound() -> None:
    world = begun("a")
    world.see(member("p0"))
    assert world.conditions() == []
    world.see(member("p1"))
    assert world.reserve(gang="x").claimed
    permitted = world.permit(gang="x")
    assert world.conditions() == []
    world.bind(permitted, gang="x")
    assert world.conditions() == [YES]
    ((_, write),) = world.written
    assert (write.namespace, write.name, write.uid) == ("ns", "x", "g")
    assert (write.api_version, write.generation) == (API, 3)


def test_a_part_of_the_minimum_is_not_enough() -> None:
    world = begun("a")
    world.see(member("p0", on="a"), member("p1"))
    assert YES not in world.conditions()
    world.see(member("p1", on="a"))
    assert world.conditions()[-1] == YES


def test_a_refused_gang_shows_the_sentence_of_its_pods() -> None:
    world = begun("a")
    world.see(foreign("f", on="a", gpus=3), member("p0"), member("p1"))
    sentence = world.verdict("x").reason
    assert sentence
    assert world.conditions() == [Condition(SCHEDULED, False, "Unschedulable", sentence)]
    world.shows(world.conditions()[0])
    assert len(world.conditions()) == 1, "nothing is written twice"


def test_another_reason_of_a_plugin_is_shown_at_once() -> None:
    """From a review: the condition and the event showed the reason of a minute before."""
    world = Written(GangSettings(settle_s=0), answers_in_tree=True)
    world.start(node("a"))
    world.shows(None)
    world.see(*(member(uid, peers=PeerRules(volume_claims=(uid,))) for uid in ("p0", "p1")))
    for number, reason in enumerate(("ResourceClaim not created yet", "device class x does not exist"), 1):
        world.report(InTreeAnswer(everywhere=f"DynamicResources: {reason}"))
        assert reason in world.verdict("x").reason
        assert [reason in event.message for event in world.events[-2:]] == [True, True]
        assert [event.kind for event in world.events[-2:]] == ["Pod", "PodGroup"]
        assert reason in world.conditions()[-1].message
        assert len(world.written) == number
        world.shows(world.conditions()[-1])
    world.wait(200)
    assert len(world.written) == 2, "the same reason is not written again"


def test_an_ill_formed_group_shows_its_sentence_once_it_has_pods() -> None:
    group = replace(GROUP, causes=(BAD,))
    world = begun("a", group=group)
    assert world.conditions() == []
    world.see(member("p0"), member("p1"))
    (condition,) = world.conditions()
    assert (condition.status, condition.reason) == (False, "SchedulerError")
    assert "spec.priority" in condition.message


def test_a_long_sentence_is_cut_and_written_once() -> None:
    cause = BadValue("podgroup/ns/x", "spec.y", "z", "\x1b[1A" + 3000 * "z")
    world = begun("a", group=replace(GROUP, causes=(cause,)))
    world.see(member("p0"), member("p1"))
    (condition,) = world.conditions()
    assert condition.message.endswith("z…")
    world.shows(condition, replace(GROUP, causes=(cause,)))
    world.wait(100)
    assert len(world.conditions()) == 1


def test_true_is_never_taken_back() -> None:
    world = begun("a")
    world.see(member("p0", on="a"), member("p1", on="a"))
    assert world.conditions() == [YES]
    world.shows(YES)
    world.see(member("p1", on="a", finished=True))
    world.gone("p1")
    world.see(foreign("f", on="a", gpus=3), member("p2"))
    assert world.coordinator.summary()[0].phase in (Phase.UNPLACEABLE, Phase.COLLECTING)
    world.wait(100)
    assert world.conditions() == [YES]


def test_pods_that_ended_or_failed_count_for_the_minimum() -> None:
    world = begun("a")
    world.see(member("p0", on="a", finished=True, succeeded=True))
    assert world.conditions() == []
    world.see(member("p1", on="a", finished=True))
    assert world.conditions() == [YES]


def test_the_time_of_the_last_change_is_kept_while_the_status_stays() -> None:
    world = begun("a", shown=STALE)
    world.see(foreign("f", on="a", gpus=3), member("p0"), member("p1"))
    (condition,) = world.conditions()
    assert (condition.since, condition.message) == (STALE.since, world.verdict("x").reason)


def test_a_stale_write_that_lands_after_true_is_written_over() -> None:
    world = begun("a")
    world.see(member("p0", on="a"), member("p1", on="a"))
    assert world.conditions() == [YES]
    world.shows(STALE)
    assert world.conditions() == [YES, YES]


def test_a_user_who_changes_the_status_all_the_time_causes_a_write_a_second_at_most() -> None:
    world = begun("a")
    world.see(member("p0", on="a"), member("p1", on="a"))
    for number in range(500):
        world.now += 0.01
        world.shows(replace(STALE, message=str(number)))
    assert set(world.conditions()) == {YES}
    assert len(world.written) <= 7


def test_a_user_who_changes_the_message_all_the_time_causes_a_write_a_minute_at_most() -> None:
    world = begun("a")
    world.see(foreign("f", on="a", gpus=3), member("p0"), member("p1"))
    (condition,) = world.conditions()
    for number in range(500):
        world.now += 0.1
        world.shows(replace(condition, message=str(number)))
    assert len(world.written) == 1
    world.wait(100)
    assert world.conditions() == [condition, condition]


def test_a_crowd_of_pods_costs_one_write() -> None:
    world = begun("a", group=replace(GROUP, min_member=200, size=200))
    for number in range(300):
        world.now += 0.02
        world.see(member(f"p{number}", on="a"))
    assert world.conditions() == [YES]


def test_a_new_leader_writes_nothing_over_true() -> None:
    world = Written(GangSettings(settle_s=0))
    world.send(inputs.NodeSeen(world.now, node("a")))
    world.shows(YES)
    world.see(member("p0", on="a"), member("p1"))
    world.send(inputs.Synced(world.now))
    world.wait(5)
    assert world.conditions() == []
    world.connect()
    world.wait(5)
    assert world.conditions() == []


NOT_WRITTEN: dict[str, Callable[[], PodGroup]] = {
    "no pod of it is bound": lambda: replace(GROUP, makes_gang=False, min_member=1),
    "the API server serves no PodGroups": lambda: replace(GROUP, uid="", causes=(BAD,)),
}


@pytest.mark.parametrize("case", NOT_WRITTEN)
def test_not_written(case: str) -> None:
    world = begun("a", group=NOT_WRITTEN[case]())
    world.see(member("p0"), member("p1"))
    assert world.conditions() == []


def test_a_basic_group_is_scheduled_with_its_first_bound_pod() -> None:
    world = begun("a", group=replace(GROUP, makes_gang=False, begun=True, min_member=1))
    assert world.conditions() == [YES]


def test_pods_that_still_name_a_group_that_makes_no_gang_wait_until_they_are_read_again() -> None:
    world = begun("a", group=replace(GROUP, makes_gang=False, begun=True, min_member=1))
    world.see(member("p0"))
    (view,) = world.coordinator.summary()
    assert "does not exist yet" in view.reason


# --- trees -----------------------------------------------------------------------------------------


def tree_of(*pod_groups: PodGroup) -> PodGroup:
    """A tree that starts with one of its PodGroups."""
    quorum = Quorum(1, tuple(Leaf(frozenset((part.name,)), part.min_member or 1) for part in pod_groups))
    return PodGroup(
        "ns", COMPOSITE, "t", uid="t", min_member=1, size=9, api_version="scheduling.k8s.io/v1alpha3",
        quorum=quorum, pod_groups=pod_groups,
    )  # fmt: skip


def part_of_tree(name: str, min_member: int, shown: Condition | None = None) -> PodGroup:
    return replace(GROUP, name=name, uid=name, min_member=min_member, parent="t", status=shown)


def pod_of_tree(uid: str, role: str, on: str = "") -> Pod:
    claim = GangClaim(COMPOSITE, "t", by_object=True, topology_request=TopologyRequest(role))
    return replace(pod(uid, claim=claim), node=on)


def written_by_name(world: Written) -> dict[str, list[Condition]]:
    world.conditions()
    by_name: dict[str, list[Condition]] = {}
    for _, write in world.written:
        assert isinstance(write.status, Condition)
        assert write.uid == write.name
        by_name.setdefault(write.name, []).append(write.status)
    return by_name


def test_each_podgroup_of_a_tree_shows_whether_its_own_minimum_is_bound() -> None:
    world = begun("a", group=tree_of(part_of_tree("x", 2), part_of_tree("y", 3), part_of_tree("z", 1)))
    world.see(*(pod_of_tree(uid, "x", on="a") for uid in ("x0", "x1")), pod_of_tree("y0", "y", on="a"))
    assert written_by_name(world) == {"x": [YES]}
    world.see(*(pod_of_tree(uid, "y", on="a") for uid in ("y1", "y2")))
    assert written_by_name(world) == {"x": [YES], "y": [YES]}


def test_podgroups_of_a_refused_tree_show_its_sentence_if_they_have_pods() -> None:
    world = begun("a", group=tree_of(part_of_tree("x", 1), part_of_tree("y", 1)))
    world.see(foreign("f", on="a", gpus=4), pod_of_tree("x0", "x"))
    sentence = world.verdict("t").reason
    assert sentence
    assert written_by_name(world) == {"x": [Condition(SCHEDULED, False, "Unschedulable", sentence)]}


def test_a_forged_condition_in_a_tree_is_written_again_and_true_is_not_taken_back() -> None:
    tree = tree_of(part_of_tree("x", 1), part_of_tree("y", 1))
    world = begun("a", group=tree)
    world.see(pod_of_tree("x0", "x", on="a"))
    assert written_by_name(world) == {"x": [YES]}
    world.send(inputs.PodGroupSeen(world.now, tree_of(part_of_tree("x", 1, YES), part_of_tree("y", 1))))
    world.send(inputs.PodGroupSeen(world.now, tree_of(part_of_tree("x", 1, STALE), part_of_tree("y", 1))))
    assert written_by_name(world) == {"x": [YES, YES]}
