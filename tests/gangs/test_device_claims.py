"""What ResourceClaims hold is taken, in the ledger and from plans."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from muster.domain.allocation import ALLOCATION
from muster.domain.causes.ill_formed import BadValue
from muster.domain.causes.not_planned import TookTooLong
from muster.domain.decision import Unplaceable
from muster.domain.node import Device, DeviceClaim, Node, Resources, Usage
from muster.domain.pod import GangClaim
from muster.domain.policies import DEFAULT_POLICIES
from muster.domain.request import Role
from muster.domain.topology import mask_of
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.requests import request
from muster.gangs.membership.consistency import ill_formed
from muster.gangs.membership.roster import Roster
from muster.gangs.messages.calls import AgreeingGroup, BindingFate, InTreeAnswer
from muster.gangs.messages.inputs import DeviceClaimSeen
from muster.gangs.pending.answers import subrequests
from tests.gangs.world import World, node, pod

DRIVER = "gpu.example.com"


def device(number: int, on: str = "n") -> Device:
    return Device(DRIVER, on, f"gpu-{number}")


def served(name: str = "n", gpus: int = 4) -> Node:
    """A node whose GPUs a DRA driver serves."""
    return node(name, gpus, devices=tuple(device(number, name) for number in range(gpus)))


def devices(*numbers: int) -> tuple[Device, ...]:
    return tuple(map(device, numbers))


def usage(uid: str, gpus: int = 0, unindexed: int = 0) -> Usage:
    return Usage(uid, "n", Resources(100, 1 << 20, 1), gpus=gpus, unindexed_gpus=unindexed)


CASES: dict[str, tuple[list[Usage], list[Usage], list[tuple[tuple[int, ...], tuple[str, ...]]], int, int]] = {
    # bound, held, claims (devices, consumers) → free GPUs (mask), free GPUs (number)
    "nothing": ([], [], [], 0b1111, 4),
    "a claim of nobody": ([], [], [((1,), ())], 0b1101, 3),
    "a claim of an unbound pod": ([], [], [((1,), ("p",))], 0b1101, 3),
    "a bound pod and its claim count once": ([usage("p", 0b11)], [], [((0, 1), ("p",))], 0b1100, 2),
    "the claim outdoes the annotation": ([usage("p", 0b11)], [], [((2, 3), ("p",))], 0b0011, 2),
    "a foreign pod's GPUs become known": ([usage("p", 0, 2)], [], [((0, 3), ("p",))], 0b0110, 2),
    "two claims of a pod": ([usage("p", 0b11)], [], [((0,), ("p",)), ((1,), ("p",))], 0b1100, 2),
    "a plan and the claim that it writes": ([], [usage("p", 0b11)], [((0, 1), ("p",))], 0b1100, 2),
    "a plan beside the claim of an earlier one": ([], [usage("p", 0b11)], [((2, 3), ("p",))], 0, 0),
    "a claim that several pods share": ([usage("p", 0b1), usage("q")], [], [((3,), ("p", "q"))], 0b0110, 2),
    "a claim with too few devices": ([usage("p", 0b11)], [], [((2,), ("p",))], 0b1000, 1),
    "a bound pod without a claim or annotations": ([usage("p", 0, 4)], [], [], 0b1111, 4),
    "the same beside a claim of another pod": ([usage("p", 0, 4)], [], [((1,), ("q",))], 0b1101, 3),
    "a bound pod with annotations alone": ([usage("p", 0b11)], [], [], 0b1100, 2),
    "devices that the node does not have": ([], [], [((9,), ())], 0b1111, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_free(case: str) -> None:
    bound, plan_usages, claims, mask, number = CASES[case]
    claimed_devices = [(devices(*numbers), consumers) for numbers, consumers in claims]
    assert free_beside(served(), bound, plan_usages, claimed_devices) == (mask, number)


def free_beside(
    free_node: Node,
    bound: Sequence[Usage],
    plan_usages: Sequence[Usage],
    claims: Sequence[tuple[tuple[Device, ...], tuple[str, ...]]],
) -> tuple[int, int]:
    """Return the free GPUs of a node of four, as a bit mask and a number. In the end all are free again."""
    ledger = Ledger()
    ledger.set_node(free_node)
    for usage in bound:
        ledger.bind(usage.pod_uid, usage)
    ledger.hold(plan_usages)
    for at, (claimed_devices, consumers) in enumerate(claims):
        ledger.see_claim(DeviceClaim(f"c{at}", claimed_devices, consumers))
    state = ledger.snapshot().nodes["n"]
    for at in range(len(claims)):
        ledger.see_claim(DeviceClaim(f"c{at}", (), ()))
    for usage in (*bound, *plan_usages):
        ledger.bind(usage.pod_uid, None)
        ledger.release([usage.pod_uid])
    assert ledger.snapshot().nodes["n"].free_gpus == 0b1111
    return state.free_gpus, state.free_gpu_count


def test_a_claim_counts_when_its_node_comes_later() -> None:
    ledger = Ledger()
    ledger.see_claim(DeviceClaim("c", devices(0), ()))
    ledger.set_node(served())
    assert ledger.snapshot().nodes["n"].free_gpus == 0b1110


def test_pools_of_a_node_that_is_gone_are_forgotten() -> None:
    ledger = Ledger()
    ledger.set_node(served())
    ledger.drop_node("n")
    assert ledger.see_claim(DeviceClaim("c", devices(0), ())) == ()
    ledger.set_node(served())
    assert ledger.snapshot().nodes["n"].free_gpus == 0b1110
    ledger.set_node(node("n", 0))
    assert ledger.see_claim(DeviceClaim("c", (), ())) == ()


def test_a_freed_device_is_a_gain() -> None:
    ledger = Ledger()
    ledger.set_node(served())
    ledger.see_claim(DeviceClaim("c", devices(0), ()))
    ledger.take_changes()
    assert ledger.see_claim(DeviceClaim("c", (), ())) == ("n",)
    assert ledger.take_changes().gained_nodes == {"n"}


def test_the_shim_is_told_the_devices_of_the_planned_gpus() -> None:
    world = World().start(served())
    world.see(*(pod(f"p{rank}", gpus=2) for rank in range(2)))
    answer = world.filter()
    assert [len(nodes) for nodes in answer.candidates] == [1, 1]
    names_told = [name for member_devices in answer.devices for name in member_devices]
    assert sorted(names_told) == [str(device(number)) for number in range(4)]
    carried = world.run().annotations
    assert [
        tuple(json.loads(carried_annotations[ALLOCATION])["devices"]) for carried_annotations in carried
    ] == list(answer.devices)


def test_a_member_with_devices_has_no_second_candidate_and_others_none_with_devices() -> None:
    plain = replace(node("m"), labels={"kubernetes.io/hostname": "m"})
    world = World().start(served(), plain, node("o"))
    world.see(pod("p0", of=1), pod("q0", gang="h", of=1, gpus=4), pod("r0", gang="i", of=1))
    for gang in "ghi":
        answer = world.filter(gang)
        (nodes,), (device_names,) = answer.candidates, answer.devices
        assert nodes == ("n",) if device_names else "n" not in nodes


def test_a_gang_waits_while_a_claim_holds_what_it_needs_and_not_longer() -> None:
    world = World().start(served())
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(0), ())))
    world.see(pod("p0", of=1, gpus=4))
    assert not world.planned()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c")))
    world.wait(1)
    assert world.planned()


def test_claims_of_an_earlier_plan_are_free_for_their_own_gang() -> None:
    world = World().start(served())
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(0, 1, 2, 3), ("p0",))))
    world.see(pod("p0", of=1, gpus=4))
    assert world.planned()
    world.see(pod("q0", gang="h", of=1, gpus=1))
    assert not world.planned("h")


def test_a_refused_gang_may_use_what_claims_of_its_own_hold_from_then_on() -> None:
    """What comes free is enough only together with the devices of its claim."""
    world = World().start(served())
    world.see(pod("q0", gang="h", of=1, gpus=2))
    world.run("h")
    world.see(pod("p0", of=1, gpus=4))
    assert world.phase() == "unplaceable"
    others_gpus = world.coordinator.state.ledger.gpus_of("q0")
    free = [gpu for gpu in range(4) if not others_gpus >> gpu & 1]
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(*free), ("p0",))))
    assert world.phase() == "unplaceable"
    world.gone("q0")
    assert world.planned()


def test_a_claim_does_not_end_the_pause_after_a_decision_that_was_ended() -> None:
    """Users can change whom a claim is for all the time."""
    world = World(auto=False).start(served())
    world.see(pod("p0", of=1, gpus=4))
    while world.solves:
        world.solve(Unplaceable(world.solves[0].request.gang, (TookTooLong(10.0),)))
    for consumers in (("p0",), ("p0", "other"), ("p0",)):
        world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(3), consumers)))
    assert world.phase() == "unplaceable"
    assert not world.solves


def test_the_claims_of_a_plan_do_not_disturb_it() -> None:
    world = World().start(served())
    world.see(pod("p0", of=1, gpus=2))
    numbers = [int(name[-1]) for name in world.filter().devices[0]]
    assert world.reserve().claimed
    answer = world.permit()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(*numbers), ("p0",))))
    world.bind(answer)
    assert world.phase() == "running"
    state = world.coordinator.state.ledger.snapshot().nodes["n"]
    assert (state.free_gpus, state.free_gpu_count) == (0b1111 & ~mask_of(numbers), 2)


def test_a_claim_of_others_withdraws_a_plan_that_was_to_have_the_device() -> None:
    world = World().start(served())
    world.see(pod("p0", of=1, gpus=4))
    assert world.planned()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(2), ())))
    assert not world.planned()


def test_the_time_for_bindings_counts_the_claims() -> None:
    settings = World().coordinator.state.settings
    assert settings.bind_for(4, 4) == pytest.approx(settings.bind_for(4) + 4 * settings.device_s)


def test_what_a_member_holds_that_may_be_left_out_is_not_free_for_the_others() -> None:
    """The shim frees the devices of planned members alone: a plan on those of another one could never run."""
    world = World().start(served())
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(0, 1, 2, 3), ("p1",))))
    claim = GangClaim("ack", "g", min_member=1, replicas=2)
    world.see(*(pod(f"p{rank}", gpus=4, claim=claim) for rank in range(2)))
    assert not world.planned()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c")))  # the shim frees them when the gang is refused
    world.wait(1)
    assert world.planned()
    assert world.reserve().claimed
    assert world.permit().allowed


def test_members_that_wait_for_one_claim() -> None:
    """kube-scheduler gives it devices for one pod. One member may wait for it, and all once it has them."""
    world = World().start(node("n", 4))
    waiting = [pod(f"p{rank}", unallocated_claims=("nic",)) for rank in range(2)]
    expected = "a claim that has its devices before the gang starts: 2 members name it"
    world.see(*waiting, pod("q0", gang="h", of=1, unallocated_claims=("nic",)))
    assert not world.planned()
    assert world.planned("h")
    claims = {waiting_pod.claim for waiting_pod in waiting if waiting_pod.claim is not None}
    (cause,) = ill_formed("gang/default/g", 2, tuple(waiting), claims, DEFAULT_POLICIES)
    assert cause == BadValue("gang/default/g", "resourceClaimName", "nic", expected)
    world.see(*(replace(waiting_pod, unallocated_claims=()) for waiting_pod in waiting))
    world.wait(1)
    assert world.planned()


def test_a_member_whose_devices_must_agree_waits_for_those() -> None:
    """Two GPUs of different groups are free. It is planned when one is freed that agrees with another."""
    world = World().start(replace(served(), attribute_groups={"root": (0b0011, 0b1100)}))
    for claim, number in (("c", 1), ("d", 3)):
        world.send(DeviceClaimSeen(world.now, DeviceClaim(claim, devices(number), ())))
    world.see(pod("p0", of=1, gpus=2, match_attributes=("root",)))
    assert not world.planned()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c")))
    world.wait(1)
    assert world.planned()
    assert world.filter().devices == ((str(device(0)), str(device(1))),)


def test_members_with_other_attributes_are_another_role() -> None:
    ledger = Ledger()
    ledger.set_node(served())
    roster = Roster()
    for new_pod in (pod("p0", match_attributes=("root",)), pod("p1")):
        roster.see(new_pod)
    (group,) = roster.groups(next(iter(roster.names)))
    attributes_of = {role.members[0].uid: role.match_attributes for role in request(group, ledger).roles}
    assert attributes_of == {"p0": ("root",), "p1": ()}


def matching(
    answers: Iterable[InTreeAnswer], nodes: Mapping[str, Node], *counts: int
) -> list[Mapping[str, int]]:
    """Node → mask of the GPUs that members may have, for each subrequest. `counts` are their GPUs."""
    built = subrequests(Role("w", (), Resources(), 1, "g", gpu_counts=counts), answers, nodes, {})
    return [subrequest.matching for subrequest in built]


def may_have(*numbers: int, on: str = "n") -> InTreeAnswer:
    return InTreeAnswer(devices=({on: frozenset(f"{DRIVER}/gpu-{number}" for number in numbers)},))


def planned_devices(world: World) -> list[tuple[str, ...]]:
    return sorted(tuple(name.rpartition("/")[2] for name in of) for of in world.filter().devices)


def test_members_get_the_gpus_that_their_claims_match() -> None:
    world = World(answers_in_tree=True).start(served())
    world.see(*(pod(f"p{rank}", of=2, gpus=1, device_claims=True) for rank in range(2)))
    world.report(may_have(1, 3))
    assert planned_devices(world) == [("gpu-1",), ("gpu-3",)]


def test_the_refusal_says_how_many_match_and_other_answers_plan_it_again() -> None:
    world = World(answers_in_tree=True).start(served())
    world.see(pod("p0", of=1, gpus=2, device_claims=True))
    world.report(may_have(2))
    assert not world.planned()
    assert "on 1 node resourceClaims match 1 of 4 GPUs" in world.verdict().reason
    world.report(may_have(2, 3))
    world.wait(1)
    assert planned_devices(world) == [("gpu-2", "gpu-3")]


def test_members_with_different_answers_are_planned_where_these_agree() -> None:
    world = World(answers_in_tree=True).start(served(), served("o"))
    world.see(*(pod(f"p{rank}", of=2, gpus=1, device_claims=True) for rank in range(2)))
    world.report(may_have(0), may_have(1), of=((0,), (1,)))
    assert {world.home(0), world.home(1)} == {"o"}


def test_a_plan_with_a_gpu_that_matches_no_longer_is_made_again() -> None:
    world = World(answers_in_tree=True, auto=False).start(served())
    world.see(pod("p0", of=1, gpus=1, device_claims=True))
    world.report(may_have(1))
    first = world.solves[0]
    world.report(may_have(2))
    world.solve()
    assert world.solves[0].generation != first.generation
    world.solve()
    assert planned_devices(world) == [("gpu-2",)]


def test_names_of_devices() -> None:
    """A pool stands there if the driver has several on the node. A GPU without a device matches nothing."""
    node_devices = (
        device(0),
        Device(DRIVER, "pool", "gpu-0"),
        None,
        Device("other", "p/q", "gpu-0"),
        device(4),
    )
    nodes = {"n": node("n", 5, devices=node_devices)}
    all_names = frozenset({f"{DRIVER}/n/gpu-0", f"{DRIVER}/pool/gpu-0", f"{DRIVER}/gpu-4", "other/p/q/gpu-0"})
    assert matching((InTreeAnswer(devices=({"n": all_names, "gone": all_names},)),), nodes) == [
        {"n": 0b01011}
    ]
    first = InTreeAnswer(devices=({"n": frozenset({"other/gpu-0", f"{DRIVER}/n/gpu-0"})},))
    assert matching((first, InTreeAnswer(), InTreeAnswer(devices=({"n": all_names},))), nodes) == [
        {"n": 0b01001}
    ]
    assert matching((InTreeAnswer(),), nodes) == [{}]


def test_nodes_whose_pools_have_other_names_than_they() -> None:
    """One answer holds for 300 of them."""
    pools = {f"n{number}": f"pool-{number}" for number in range(300)}
    nodes = {
        name: node(name, 2, devices=tuple(Device(DRIVER, pool, f"gpu-{gpu}") for gpu in range(2)))
        for name, pool in pools.items()
    }
    answer = InTreeAnswer(devices=(dict.fromkeys(nodes, frozenset({f"{DRIVER}/gpu-1"})),))
    assert matching((answer,), nodes) == [dict.fromkeys(nodes, 0b10)]


def test_a_member_that_tolerates_a_taint_waits_for_gpus_that_have_it() -> None:
    """It is planned on a tainted GPU, and again when the one is freed that it lacked."""
    world = World(answers_in_tree=True).start(replace(served(), unhealthy=0b1100, tainted=0b1100))
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(3), ())))
    world.see(pod("p0", of=1, gpus=4, device_claims=True))
    world.report(may_have(0, 1, 2, 3))
    assert not world.planned()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c")))
    world.wait(1)
    assert planned_devices(world) == [("gpu-0", "gpu-1", "gpu-2", "gpu-3")]
    assert world.reserve().claimed
    answer = world.permit()
    assert answer.allowed
    world.bind(answer)
    assert world.phase() == "running"
    world.see(pod("q0", gang="h", of=1, gpus=1))
    assert not world.planned("h")


def test_an_answer_without_devices_allows_no_tainted_gpu() -> None:
    nodes = {"n": replace(served(), unhealthy=0b1000, tainted=0b1000)}
    answers = (may_have(2, 3), InTreeAnswer())
    assert matching(answers, nodes) == [{"n": 0b0100}]


def choices_of(*subrequests: tuple[int, ...]) -> InTreeAnswer:
    """An answer for pods with these subrequests."""
    return InTreeAnswer(devices=tuple(may_have(*numbers).devices[0] for numbers in subrequests))


def test_the_first_subrequest_that_fits_is_planned() -> None:
    world = World(answers_in_tree=True).start(served())
    world.see(pod("p0", of=1, gpus=2, device_claims=True))
    world.report(choices_of((1,), (2, 3), (0, 1, 2, 3)))
    assert planned_devices(world) == [("gpu-2", "gpu-3")]


def test_an_answer_with_fewer_subrequests_counts_with_its_last_one() -> None:
    answers = (choices_of((0, 1), (2, 3)), may_have(1, 2))
    assert matching(answers, {"n": served()}) == [{"n": 0b0010}, {"n": 0b0100}]


def test_a_plan_of_a_subrequest_that_is_still_there_stands() -> None:
    world = World(answers_in_tree=True, auto=False).start(served())
    world.see(pod("p0", of=1, gpus=2, device_claims=True))
    world.report(choices_of((0,), (2, 3)))
    first = world.solves[0]
    world.report(choices_of((0,), (1, 2, 3)))
    world.solve()
    assert not world.solves
    assert world.verdict().generation == first.generation
    assert planned_devices(world) == [("gpu-2", "gpu-3")]


def test_devices_that_change_are_seen() -> None:
    answer = (may_have(1),)
    assert matching(answer, {"n": served()}) == [{"n": 0b0010}]
    turned = replace(served(), devices=tuple(reversed(served().devices)))
    assert matching(answer, {"n": turned}) == [{"n": 0b0100}]


def few(groups: dict[tuple[int, ...], int], *more: int, on: str = "n") -> InTreeAnswer:
    """An answer by which the other devices at each of these groups of GPUs are enough for the given number of
    members, and those at `more` for all."""

    def names(numbers: Iterable[int]) -> frozenset[str]:
        return frozenset(f"{DRIVER}/gpu-{number}" for number in numbers)

    agreeing = tuple(AgreeingGroup(names(group), most) for group, most in groups.items())
    whole = names((*more, *(number for group in groups for number in group)))
    return InTreeAnswer(devices=({on: whole},), groups=({on: agreeing},))


@dataclass(frozen=True)
class Agreeing:
    """Roles, each with the number of its members, GPUs of each and its answer, and GPUs that others hold."""

    roles: tuple[tuple[int, int, InTreeAnswer], ...]
    planned: tuple[tuple[str, ...], ...]
    """The GPUs of each member; () for a gang that is refused."""
    held: tuple[int, ...] = ()


TWO_OF_FOUR = few({(0, 1, 2, 3): 2}, 4, 5)
AGREEING = {
    "no more than devices agree with": Agreeing(
        ((4, 1, TWO_OF_FOUR),), (("gpu-0",), ("gpu-1",), ("gpu-4",), ("gpu-5",))
    ),
    "one more does not fit": Agreeing(((5, 1, TWO_OF_FOUR),), ()),
    "of those that are free now": Agreeing(
        ((3, 1, TWO_OF_FOUR),), (("gpu-2",), ("gpu-3",), ("gpu-5",)), (0, 1, 4)
    ),
    "fewer are free than devices agree with": Agreeing(
        ((2, 1, TWO_OF_FOUR),), (("gpu-1",), ("gpu-4",)), (0, 2, 3, 5)
    ),
    "two GPUs for each member": Agreeing(
        ((3, 2, few({(0, 1, 2, 3, 4, 5): 2}, 6, 7)),),
        (("gpu-0", "gpu-1"), ("gpu-2", "gpu-3"), ("gpu-6", "gpu-7")),
    ),
    "roles share what is there": Agreeing(
        ((1, 1, few({(0, 1, 2, 3): 2})), (1, 1, few({(0, 1, 2, 3): 3}))), (("gpu-0",), ("gpu-1",))
    ),
    "more than one role leaves": Agreeing(
        ((1, 1, few({(0, 1, 2, 3): 2})), (2, 1, few({(0, 1, 2, 3): 3}))), ()
    ),
    "hidden from a role that needs no such devices too": Agreeing(
        ((2, 1, few({(0, 1, 2, 3): 2}, 4, 5, 6, 7)), (1, 5, InTreeAnswer())), ()
    ),
}


@pytest.mark.parametrize("case", AGREEING)
def test_members_whose_gpus_must_agree_with_other_devices(case: str) -> None:
    """Members of roles with other numbers of devices have the same GPUs to choose from."""
    agreeing = AGREEING[case]
    world = World(answers_in_tree=True).start(served(gpus=8))
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(*agreeing.held), ())))
    size, uids = sum(members for members, *_ in agreeing.roles), itertools.count()
    ranks = [[next(uids) for _ in range(members)] for members, *_ in agreeing.roles]
    world.see(
        *(
            pod(f"p{rank}", of=size, gpus=gpus, device_claims=True, resources=Resources(100 + at, 1 << 30, 1))
            for at, (_, gpus, _) in enumerate(agreeing.roles)
            for rank in ranks[at]
        )
    )
    world.report(*(answer for *_, answer in agreeing.roles), of=tuple(map(tuple, ranks)))
    assert bool(world.planned()) == bool(agreeing.planned)
    assert not agreeing.planned or planned_devices(world) == list(agreeing.planned)


def test_a_gang_waits_for_devices_that_agree() -> None:
    """The answer comes again when another claim frees some."""
    world = World(answers_in_tree=True).start(served())
    world.see(*(pod(f"p{rank}", of=2, device_claims=True) for rank in range(2)))
    world.report(few({(0, 1): 1}))
    assert not world.planned()
    assert "on 1 node resourceClaims match 1 of 4 GPUs" in world.verdict().reason
    world.report(few({(0, 1): 1}, 3))
    world.wait(1)
    assert planned_devices(world) == [("gpu-0",), ("gpu-3",)]


def test_a_plan_stands_if_its_gpus_agree_with_fewer_devices_now_but_some() -> None:
    """If they are too few, the in-tree plugin refuses the node, and the gang is planned anew."""
    world = World(answers_in_tree=True, auto=False).start(served())
    world.see(pod("p0", of=1, device_claims=True))
    world.report(few({(2, 3): 1}))
    first = world.solves[0]
    world.report(few({(1, 2, 3): 1}))
    world.solve()
    assert world.verdict().generation == first.generation
    assert planned_devices(world) == [("gpu-2",)]


def test_subrequests_have_groups_of_their_own() -> None:
    world = World(answers_in_tree=True).start(served())
    world.see(*(pod(f"p{rank}", of=2, device_claims=True) for rank in range(2)))
    first, second = few({(0, 1): 1}), few({(1, 2, 3): 2})
    answer = InTreeAnswer(devices=first.devices + second.devices, groups=first.groups + second.groups)
    world.report(answer)
    assert planned_devices(world) == [("gpu-1",), ("gpu-2",)]


def test_a_node_that_the_cycle_refuses_is_planned_without_its_group() -> None:
    """Another gang got the card meanwhile. The gang is asked about again, and is refused if none is left."""
    world = World(answers_in_tree=True).start(served(), served("o"))
    world.see(pod("p0", of=1, device_claims=True))
    answers = few({(0, 1): 1}), few({(0, 1): 1}, on="o")
    world.report(InTreeAnswer(devices=({**answers[0].devices[0], **answers[1].devices[0]},)))
    homes = list[str]()
    for nodes_without in ((), ("n", "o")):
        homes.append(world.home(0))
        second_node = {"n": "o", "o": "n"}[homes[0]]
        world.unreserve(0, BindingFate.NEVER_SENT, "PlannedResources", "cannot allocate all claims")
        refused = dict.fromkeys(nodes_without or (homes[0],), "PlannedResources: no card")
        world.report(replace(few({(0, 1): 1}, on=second_node), refused=refused))
        world.wait(1)
    assert set(homes) == {"n", "o"}
    assert not world.planned()
    assert "no card" in world.verdict().reason


def test_a_node_that_names_the_pool_of_another_hides_no_claims_of_it() -> None:
    """Any kubelet may publish slices in any pool."""
    ledger = Ledger()
    ledger.set_node(served())
    second_node = replace(served("m"), devices=(Device(DRIVER, "n", "x"), *served("m").devices[1:]))
    ledger.set_node(second_node)
    assert set(ledger.see_claim(DeviceClaim("c", devices(1), ()))) == {"n", "m"}
    assert ledger.snapshot().nodes["n"].free_gpus == 0b1101
    ledger.drop_node("m")
    assert set(ledger.see_claim(DeviceClaim("c", devices(2), ()))) == {"n"}
    assert ledger.snapshot().nodes["n"].free_gpus == 0b1011
