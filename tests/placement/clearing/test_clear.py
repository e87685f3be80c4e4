"""Who is a victim, and who is not: small drawn clusters full of named gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.domain.clearing import BlockerKind, Clearing, ClearQuestion, NoClearing, Occupancy, Occupant, Unit
from muster.domain.constraints import Affinity
from muster.domain.node import Resources, Usage
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits, mask_of
from muster.placement.clearing import clear
from muster.placement.limits import Limits
from muster.placement.verify import verify_clearing
from tests.placement.drawings import cluster, gang

NOW = 1_000_000.0
MINUTE = 60.0


class World:
    """A drawn cluster, filled with units: "a b/0123" is a unit of two pods, on a's next free GPU and on four
    of b's."""

    def __init__(self, drawing: str, **settings: Any) -> None:
        self.snapshot = cluster(drawing)
        self.occupants: list[Occupant] = []
        self.units: dict[str, Unit] = {}
        self.settings = settings

    def unit(
        self,
        key: str,
        places: str,
        minutes: float = 60,
        *,
        priority: int = 0,
        pods: dict[str, Any] | None = None,
        **facts: Any,
    ) -> World:
        """Add a unit whose pods have run this long; each place is node/GPUs."""
        words = places.split()
        for number, place in enumerate(words):
            node, _, gpus = place.partition("/")
            usage = Usage(
                f"{key}-{number}", node, Resources(pods=1), gpus=mask_of([int(digit) for digit in gpus])
            )
            started = NOW - minutes * MINUTE
            occupant = Occupant(usage, f"{key}-{number}", key, started, rank=number)
            self.occupants.append(replace(occupant, **(pods or {})))
            self.snapshot = self.snapshot.with_usages([usage])
        self.units[key] = Unit(key, priority, **{"min_members": len(words), **facts})
        return self

    def question(self, request: str, priority: int = 100) -> ClearQuestion:
        occupancy = replace(Occupancy.of(self.occupants, self.units, NOW), **self.settings)
        return ClearQuestion(gang(request), occupancy, priority)

    def clear(self, request: str, priority: int = 100) -> Clearing | NoClearing:
        return clear(self.snapshot, self.question(request, priority))

    def victims(self, request: str, priority: int = 100) -> str:
        """The pods that go, by unit; a unit that ends is followed by an exclamation mark."""
        answer = self.clear(request, priority)
        assert answer.proven
        if isinstance(answer, NoClearing):
            return "none"
        return ", ".join(
            f"{victim.unit}!" if victim.ends else " ".join(pod.name for pod in victim.pods)
            for victim in answer.victims
        )


def two_nodes(**settings: Any) -> World:
    return World("rack r1: a[4] rack r2: b[4]".replace(" rack r2", "\nrack r2"), **settings)


def test_a_gang_that_fits_hurts_nobody() -> None:
    world = two_nodes().unit("old", "a/0123")
    assert world.victims("1 x 4 GPU") == ""


def test_the_priority_counts_before_the_loss() -> None:
    world = two_nodes().unit("low", "a/0123", 5000, priority=1).unit("high", "b/0123", 1, priority=2)
    assert world.victims("1 x 4 GPU") == "low!"


def test_the_loss_counts_before_the_number_of_gangs() -> None:
    world = two_nodes().unit("old", "a/0123", 600)
    for gpu in range(4):
        world.unit(f"young{gpu}", f"b/{gpu}", 1)
    assert world.victims("1 x 4 GPU") == "young0!, young1!, young2!, young3!"
    assert world.victims("2 x 4 GPU") == "old!, young0!, young1!, young2!, young3!"


def test_of_equal_losses_the_fewest_gangs_are_hurt() -> None:
    world = two_nodes().unit("pair", "a/01 a/23", 30).unit("x", "b/01", 30).unit("y", "b/23", 30)
    assert world.victims("1 x 4 GPU") == "pair!"


@pytest.mark.parametrize(("priority", "victims"), [(100, "none"), (101, "old!")])
def test_only_lower_priorities_are_hurt(priority: int, victims: str) -> None:
    world = World("rack r1: a[4]").unit("old", "a/0123", priority=100)
    assert world.victims("1 x 4 GPU", priority) == victims


def test_a_gang_that_says_never_stays() -> None:
    world = two_nodes().unit("never", "a/0123", 1, protected="it says never").unit("old", "b/0123", 900)
    assert world.victims("1 x 4 GPU") == "old!"
    assert world.victims("2 x 4 GPU") == "none"


@pytest.mark.parametrize(("until", "victims"), [(NOW + 1, "old!"), (NOW, "young!")])
def test_a_gang_that_asks_for_a_run_time_stays_until_then(until: float, victims: str) -> None:
    world = two_nodes().unit("young", "a/0123", 1, protected_until=until).unit("old", "b/0123", 900)
    assert world.victims("1 x 4 GPU") == victims


def test_the_time_that_a_gang_asks_for_is_named() -> None:
    world = World("rack r1: a[4]").unit("young", "a/0123", 1, protected_until=NOW + 90)
    answer = world.clear("1 x 4 GPU")
    assert isinstance(answer, NoClearing)
    assert [blocker.clause for blocker in answer.blockers] == ["its minimum run time ends in 2 min"]


def test_a_gang_ends_as_a_whole_and_an_elastic_one_shrinks() -> None:
    world = World("rack r1: a[4]").unit("rigid", "a/0 a/1 a/2 a/3", 10)
    assert world.victims("1 x 1 GPU") == "rigid!"
    world = World("rack r1: a[4]").unit("elastic", "a/0 a/1 a/2 a/3", 10, min_members=2)
    assert len(world.victims("2 x 1 GPU").split()) == 2
    assert world.victims("3 x 1 GPU") == "elastic!"


def test_a_subgroup_keeps_its_minimum() -> None:
    world = World("rack r1: a[2]\nrack r1: b[2]", budgets={})
    world.unit("gang", "a/0 a/1 b/0 b/1", min_members=1, min_by_subgroup={"": 4}).unit("x", "b", 500)
    assert world.victims("1 x 1 GPU") == "gang!"


def test_checkpoints_cap_the_loss() -> None:
    world = two_nodes().unit("old", "a/0123", 900, pods={"saved": NOW - 60}).unit("young", "b/0123", 10)
    assert world.victims("1 x 4 GPU") == "old!"
    world = two_nodes().unit("old", "a/0123", 900, checkpoint_s=60).unit("young", "b/0123", 10)
    assert world.victims("1 x 4 GPU") == "old!"
    world = two_nodes().unit("old", "a/0123", 900, pods={"saved": NOW + 600}).unit("young", "b/0123", 10)
    assert world.victims("1 x 4 GPU") == "young!"


def test_the_newest_checkpoint_of_a_member_counts_for_all() -> None:
    world = two_nodes().unit("old", "a/01 a/23", 900).unit("young", "b/0123", 200)
    assert world.victims("1 x 4 GPU") == "young!"
    world.occupants[0] = replace(world.occupants[0], saved=NOW - 60)
    assert world.victims("1 x 4 GPU") == "old!"


def test_the_loss_is_age_and_a_restart() -> None:
    answer = two_nodes().unit("old", "a/0123", 50).unit("x", "b/0123", 51).clear("1 x 4 GPU")
    assert isinstance(answer, Clearing)
    assert answer.loss == 4 * (50 + 10)


def test_a_start_in_the_future_protects() -> None:
    world = two_nodes().unit("odd", "a/0123", -30).unit("old", "b/0123", 90)
    assert world.victims("1 x 4 GPU") == "old!"
    world = two_nodes().unit("now", "a/0123", -0.5).unit("old", "b/0123", 90)
    assert world.victims("1 x 4 GPU") == "now!"


def test_a_budget_counts_over_all_victims() -> None:
    def full(allowed: int) -> World:
        world = World("rack r1: a[4]\nrack r2: b[4]", budgets={"p": allowed})
        for gpu in range(4):
            world.unit(f"young{gpu}", f"a/{gpu}", 1, pods={"budget": "p"})
        return world.unit("old", "b/0123", 600)

    assert full(4).victims("1 x 4 GPU").startswith("young0!")
    assert full(3).victims("1 x 4 GPU") == "old!"


def test_a_budget_counts_pods_in_other_racks_too() -> None:
    world = two_nodes(budgets={"p": 1}).unit("wide", "a/0123 b/0", 1, pods={"budget": "p"})
    assert world.victims("1 x 4 GPU, scope rack") == "none"


def test_pods_that_end_anyway_are_no_victims() -> None:
    world = two_nodes().unit("ending", "a/0123", pods={"ends": NOW + 20}).unit("young", "b/0123", 1)
    answer = world.clear("1 x 4 GPU")
    assert isinstance(answer, Clearing)
    assert answer.victims == ()
    assert [pod.name for pod in answer.going] == ["ending-0"]
    world = two_nodes().unit("lingers", "a/0123", pods={"ends": NOW - 90}).unit("young", "b/0123", 1)
    assert world.victims("1 x 4 GPU") == "young!"


def test_a_required_rack_is_cleared_as_a_whole() -> None:
    world = two_nodes().unit("a", "a/01", 1).unit("b", "b/01", 1).unit("old", "b/2", 100)
    assert world.victims("3 x 1 GPU") == ""
    assert world.victims("3 x 1 GPU, scope rack") == "a!"


def test_a_preferred_rack_is_worth_no_victim() -> None:
    world = two_nodes().unit("a", "a/01", 1).unit("b", "b/01", 1)
    assert world.victims("4 x 1 GPU, prefer rack") == ""


def test_islands_and_segments_decide_who_goes() -> None:
    world = World("rack r1: a[4 = 2+2]").unit("left", "a/0", 1).unit("mid", "a/2", 5).unit("right", "a/3", 50)
    assert world.victims("1 x 2 GPU, scope nvlink-domain") == "left!"
    world = two_nodes().unit("x", "a/0", 1).unit("y", "a/1", 1).unit("z", "b/012", 2)
    assert world.victims("4 x 1 GPU by 4 node") == "x!, y!"


def test_sums_name_a_victim_that_does_not_help_and_a_cut_names_another() -> None:
    """The example of `placement/clearing/clear.py`."""
    world = World("rack r1: n[4 = 2+2]").unit("x", "n/0", 20).unit("y", "n/2", 0).unit("z", "n/3", 30)
    answer = world.clear("1 x 2 GPU, scope nvlink-domain")
    assert isinstance(answer, Clearing)
    assert [(victim.unit, victim.loss) for victim in answer.victims] == [("x", 30)]


def test_cpu_pods_block_too() -> None:
    world = World("rack r1: a[4, cpu 4]")
    usage = Usage("cpu-0", "a", Resources(4000))
    world.occupants.append(Occupant(usage, "cpu-0", "cpu", NOW - 600))
    world.snapshot = world.snapshot.with_usages([usage])
    world.units["cpu"] = Unit("cpu", 0, 1)
    answer = world.clear("1 x 1 GPU 1 cpu")
    assert isinstance(answer, Clearing)
    assert answer.loss == 1, "a minute, though no GPU is lost"


def test_two_roles_are_cleared_together() -> None:
    world = two_nodes().unit("x", "a/0123", 1).unit("y", "b/01", 1).unit("z", "b/23", 100)
    assert world.victims("1 x 4 GPU + 1 x 2 GPU") == "x!, y!"


def test_without_time_a_good_choice_is_given_with_a_gap_or_nothing_is_claimed() -> None:
    world = two_nodes().unit("x", "a/012", 60).unit("y", "b/0", 30).unit("z", "b/12", 90)
    answer = clear(world.snapshot, world.question("1 x 4 GPU"), Limits(deterministic_time=0))
    assert isinstance(answer, Clearing)
    assert not answer.proven
    assert answer.gap is not None
    assert 0 < answer.gap < 1
    assert [victim.unit for victim in answer.victims] == ["x"]
    in_rack = world.question("1 x 4 GPU, scope rack")
    assert clear(world.snapshot, in_rack, Limits(deterministic_time=0)) == NoClearing(
        in_rack.request.gang, False
    )


def _full(**facts: Any) -> World:
    """A rack whose GPUs all belong to x, and a larger rack whose GPUs belong to y, which has priority 200."""
    world = World("rack r1: a[4]\nrack r2: b[4] c[4]", budgets={"p": 2})
    return world.unit("x", "a/01 a/23", **facts).unit("y", "b/0123 c/0123", 600, priority=200)


def _with_affinity(world: World) -> ClearQuestion:
    question = world.question("1 x 4 GPU")
    near = Affinity("near x", "node", frozenset({"w"}), existing=frozenset({"a"}))
    return replace(question, request=replace(question.request, constraints=(near,)))


@pytest.mark.parametrize(
    ("world", "request_", "blockers"),
    [
        (_full(priority=100), "1 x 4 GPU, scope rack", "x: priority 100, 2 pods, 4 GPUs"),
        (_full(priority=100), "2 x 4 GPU, scope rack", "y: priority 200, 2 pods, 8 GPUs"),
        (_full(priority=100), "1 x 1 GPU", "x: priority 100, 1 pods, 2 GPUs"),
        (_full(protected="it says never"), "1 x 4 GPU", "x: it says never, 2 pods, 4 GPUs"),
        (
            _full(protected="it says never"),
            "3 x 4 GPU",
            "y: priority 200, 2 pods, 8 GPUs; x: it says never, 2 pods, 4 GPUs",
        ),
        (_full(minutes=-30), "1 x 4 GPU", "x: its pod x-0 started in the future, 2 pods, 4 GPUs"),
        (
            _full(pods={"ends": NOW - 90}),
            "1 x 4 GPU",
            "x: its pod x-0 was deleted, but does not end, 2 pods, 4 GPUs",
        ),
        (_full(pods={"budget": "p"}), "3 x 4 GPU", "y: priority 200, 2 pods, 8 GPUs"),
        (_full(pods={"budget": "q"}), "1 x 4 GPU", "budget q: allows 0 of 2"),
        (_full(), "4 x 4 GPU", "even empty"),
        (_full(), "1 x 5 GPU", "even empty"),
    ],
)
def test_blockers_are_named(world: World, request_: str, blockers: str) -> None:
    assert _blockers(world.clear(request_)) == blockers


def test_a_unit_that_the_gang_must_be_near_is_a_blocker() -> None:
    world = _full()
    answer = clear(world.snapshot, _with_affinity(world))
    assert _blockers(answer) == "x: the gang's affinity or spread counts pods on its nodes, 2 pods, 4 GPUs"


def test_only_some_of_many_blockers_are_named() -> None:
    world = World("rack r1: " + " ".join(f"n{node}[4]" for node in range(5)))
    for number in range(20):
        world.unit(f"x{number:02}", f"n{number // 4}/{number % 4}", priority=100)
    answer = world.clear("5 x 4 GPU")
    assert isinstance(answer, NoClearing)
    assert answer.blocker_count == 20
    assert [blocker.name for blocker in answer.blockers] == [f"x{number:02}" for number in range(10)]


def _blockers(answer: Clearing | NoClearing) -> str:
    assert isinstance(answer, NoClearing)
    assert answer.proven
    assert answer.blocker_count == len(answer.blockers)
    words = ["even empty"] if answer.even_empty else []
    for blocker in answer.blockers:
        if blocker.kind is BlockerKind.BUDGET:
            words.append(f"budget {blocker.name}: allows {blocker.allowed} of {blocker.pods}")
            continue
        is_protected = blocker.kind is BlockerKind.PROTECTED
        reason = blocker.clause if is_protected else f"priority {blocker.priority}"
        words.append(f"{blocker.name}: {reason}, {blocker.pods} pods, {blocker.gpus} GPUs")
    return "; ".join(words)


def test_victims_are_judged_by_code_of_their_own() -> None:
    world = two_nodes(budgets={"p": 0}).unit("x", "a/0123").unit("y", "b/0123", 600, pods={"budget": "p"})
    question, answer = world.question("1 x 4 GPU"), world.clear("1 x 4 GPU")
    assert isinstance(answer, Clearing)
    (victim,) = answer.victims

    def errors(snapshot: Snapshot = world.snapshot, priority: int = 100, **changes: Any) -> str:
        changed = replace(victim, **changes)
        other = replace(question, priority=priority)
        return "; ".join(verify_clearing(snapshot, other, replace(answer, victims=(changed,))))

    pods = {pod.name: pod for pod in world.occupants}
    assert errors() == ""
    assert "x has priority 0, the gang 0" in errors(priority=0)
    assert "unit z is not known" in errors(unit="z")
    assert "no running pod of y" in errors(unit="y")
    assert "budget p, which allows 0" in errors(unit="y", pods=(pods["y-0"],))
    assert "would keep too few pods" in errors(ends=False)
    assert "GPUs" in errors(unit="y", pods=(pods["y-0"],))
    held = world.snapshot.with_usages([Usage("held", "a", Resources())])
    assert "not all that it has given away" in errors(held)
    assert world.snapshot.nodes["a"] == NodeState.of(world.snapshot.nodes["a"].node, [pods["x-0"].usage])
    assert list(bits(pods["x-0"].usage.gpus)) == [0, 1, 2, 3]
