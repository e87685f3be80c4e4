"""The judge: good plans pass, each broken one is refused for what is broken in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from muster.domain.decision import Placed
from muster.domain.levels import DEFAULT_LEVELS
from muster.domain.request import GangId, Request, TypicalRequest
from muster.domain.snapshot import Snapshot
from muster.placement.place import place
from muster.placement.verify import verify
from tests.placement import naive
from tests.placement.constraints import TESTED
from tests.placement.drawings import cluster, gang, plan
from tests.placement.worlds import BLOCKS, World, worlds

PLAIN = """
zone z1 rack r1: a[8 = 4+4, cpu 4] b[8 = 4+4, cpu 4, free 1101 1111]
zone z1 rack r2: c[8, cordoned] d[0, cpu 8] e[8, unindexed 6]
zone z2: f[8, pool=q] g[2 pcie]
"""
SPANNED = "rack r1: a[4, clique k] b[4, clique k]\n rack r2: c[4, clique l] d[4, clique l]"
ISLANDS = "rack r1: a[8 = 4+4] b[8 = 4+4]\n rack r2: c[8 = 4+4] d[8 = 4+4]\n: e[8 = 4+4]"

TWINS = "zone z1 rack r1: a[4] b[4]\n zone z2 rack r1: c[4] d[4]"
"""Two racks of one name."""


@dataclass(frozen=True)
class Case:
    """A plan that passes, and one that breaks exactly one rule, all its claims true."""

    cluster: str
    gang: str
    good: str
    bad: str
    says: str


CASES = {
    "too much cpu": Case(
        PLAIN, "3 x 1 GPU 2 cpu", "w-0@a/0 w-1@a/1 w-2@b/0", "w-0@a/0 w-1@a/1 w-2@a/2", "of cpu free"
    ),
    "a GPU that is taken": Case(PLAIN, "1 x 2 GPU", "w-0@b/01", "w-0@b/02", "GPU 2 of node b is not free"),
    "one GPU for two": Case(PLAIN, "2 x 2 GPU", "w-0@a/01 w-1@a/23", "w-0@a/01 w-1@a/12", "is given twice"),
    "more than free by number": Case(
        PLAIN, "3 x 1 GPU", "w-0@e/0 w-1@e/1 w-2@f/0", "w-0@e/0 w-1@e/1 w-2@e/2", "has 2 GPUs free"
    ),
    "fewer GPUs than asked": Case(PLAIN, "1 x 2 GPU", "w-0@a/01", "w-0@a/0", "asks for 2 GPUs and gets 1"),
    "a cordon": Case(PLAIN, "1 x 1 GPU", "w-0@a/0", "w-0@c/0", "does not admit role w: taint"),
    "a selector": Case(PLAIN, "1 x 1 GPU pool=q", "w-0@f/0", "w-0@a/0", "selector on pool"),
    "too few members": Case(PLAIN, "3 x 1 GPU, min 2", "w-0@a/0 w-1@a/1", "w-0@a/0", "at least 2 must be"),
    "not the last ranks left out": Case(
        PLAIN, "11 x 1 GPU, min 2", "w-0@a/0 w-1@a/1 w-2@a/2", "w-0@a/0 w-1@a/1 w-10@a/2", "last ranks"
    ),
    "a required node": Case(
        PLAIN, "2 x 1 GPU, scope node", "w-0@a/0 w-1@a/4", "w-0@a/0 w-1@b/0", "no one node holds all"
    ),
    "a required domain inside a node": Case(
        PLAIN, "2 x 1 GPU, scope nvlink-domain", "w-0@a/0 w-1@a/3", "w-0@a/0 w-1@a/4", "no one nvlink-domain"
    ),
    "a required domain over nodes": Case(
        SPANNED, "2 x 4 GPU, scope nvlink-domain", "w-0@a/0123 w-1@b/0123", "w-0@b/0123 w-1@c/0123", "no one"
    ),
    "no domain is promised among GPUs of unknown index": Case(
        f"{PLAIN}: h[8 = 4+4, unindexed 2]", "1 x 1 GPU, scope nvlink-domain", "w-0@e/0", "w-0@h/0", "no one"
    ),
    "no GPU either": Case(
        PLAIN, "1 x 1 GPU, scope gpu", "w-0@a/0", "w-0@e/0", "no one gpu holds all members"
    ),
    "a required rack": Case(
        PLAIN, "2 x 0 GPU, scope rack", "w-0@a w-1@b", "w-0@a w-1@d", "no one rack holds all members"
    ),
    "a required rack, and two have its name": Case(
        TWINS, "2 x 1 GPU, scope rack", "w-0@a/0 w-1@b/0", "w-0@a/0 w-1@c/0", "no one rack holds all"
    ),
    "a role in two racks of one name": Case(
        TWINS,
        "2 x 1 GPU within rack",
        "w-0@a/0 w-1@b/0",
        "w-0@a/0 w-1@c/0",
        "no one rack holds all members of role w",
    ),
    "a segment in two racks of one name": Case(
        TWINS, "2 x 1 GPU by 2 rack", "w-0@a/0 w-1@b/0", "w-0@a/0 w-1@c/0", "members 0 to 1 by rank of role w"
    ),
    "too many in a rack that has its name with others": Case(
        TWINS,
        "2 x 1 GPU, max rack=1",
        "w-0@a/0 w-1@c/0",
        "w-0@a/0 w-1@b/0",
        "2 members lie in rack r1 of zone z1, at most 1 may",
    ),
    "a required rack, and none is on the label": Case(
        PLAIN, "2 x 1 GPU, scope rack", "w-0@a/0 w-1@a/1", "w-0@f/0 w-1@f/1", "no one rack holds all members"
    ),
    "a required label": Case(
        PLAIN, "1 x 1 GPU, scope pool", "w-0@f/0", "w-0@a/0", "no one pool holds all members"
    ),
    "a role in two racks": Case(
        PLAIN,
        "2 x 1 GPU within rack + 2 x 0 GPU within rack",
        "w-0@a/0 w-1@b/0 x-0@d x-1@e",
        "w-0@a/0 w-1@b/0 x-0@d x-1@b",
        "no one rack holds all members of role x",
    ),
    "two roles that share a rack": Case(
        PLAIN,
        "1 x 1 GPU + 1 x 0 GPU + 1 x 0 GPU, share rack=w+x",
        "w-0@a/0 x-0@b y-0@d",
        "w-0@a/0 x-0@d y-0@a",
        "the level of w+x: no one rack holds all its members",
    ),
    "a role away from a running member of one that shares its node": Case(
        ISLANDS,
        "1 x 1 GPU + 1 x 1 GPU, share rack=w+x, running w-9@a/0",
        "w-0@b/0 x-0@a/1",
        "w-0@b/0 x-0@c/0",
        "the level of w+x: no one rack holds all its members",
    ),
    "a role away from its running member": Case(
        ISLANDS,
        "1 x 1 GPU within rack + 1 x 1 GPU, running w-9@a/0",
        "w-0@b/0 x-0@c/0",
        "w-0@c/1 x-0@c/0",
        "no one rack holds all members of role w",
    ),
    "a segment in two domains": Case(
        ISLANDS,
        "4 x 2 GPU by 2 nvlink-domain",
        "w-0@a/01 w-1@a/23 w-2@a/45 w-3@a/67",
        "w-0@a/01 w-1@a/45 w-2@b/01 w-3@b/23",
        "no one nvlink-domain holds members 0 to 1 by rank of role w",
    ),
    "a wide segment in two racks": Case(
        ISLANDS,
        "4 x 4 GPU by 4 rack by 1 nvlink-domain",
        "w-0@a/0123 w-1@a/4567 w-2@b/0123 w-3@b/4567",
        "w-0@a/0123 w-1@a/4567 w-2@b/0123 w-3@c/4567",
        "no one rack holds members 0 to 3 by rank of role w",
    ),
    "the last, shorter segment": Case(
        ISLANDS,
        "5 x 1 GPU by 3 node",
        "w-0@a/0 w-1@a/1 w-2@a/2 w-3@b/0 w-4@b/1",
        "w-0@a/0 w-1@a/1 w-2@a/2 w-3@a/3 w-4@b/1",
        "no one node holds members 3 to 4",
    ),
    "segments go by rank, not by the order of the plan": Case(
        ISLANDS,
        "11 x 0 GPU by 2 node, min 4",
        "w-2@b w-0@a w-3@b w-1@a",
        "w-0@a w-2@a w-1@b w-3@b",
        "no one node holds members",
    ),
    "a segment away from its running member": Case(
        ISLANDS,
        "3 x 1 GPU by 2 node, running w-3@b/0",
        "w-0@a/0 w-1@a/1 w-2@b/1",
        "w-0@b/1 w-1@b/2 w-2@a/1",
        "no one node holds members 2 to 3",
    ),
    "a running member takes its position": Case(
        ISLANDS,
        "3 x 1 GPU by 2 node, running w-00@b/0",
        "w-0@b/1 w-1@a/0 w-2@a/1",
        "w-0@a/2 w-1@a/0 w-2@a/1",
        "no one node holds members 0 to 1",
    ),
    "a segment where nothing names the part": Case(
        ISLANDS, "1 x 1 GPU by 1 rack", "w-0@a/0", "w-0@e/0", "no one rack holds members 0 to 0"
    ),
    "a preferred scope cannot excuse a required one": Case(
        PLAIN,
        "2 x 1 GPU, scope rack, prefer zone",
        "w-0@a/0 w-1@b/0",
        "w-0@a/0 w-1@e/0",
        "no one rack holds all",
    ),
    "the scope counts running members": Case(
        ISLANDS, "1 x 1 GPU, scope rack, running w-9@a/0", "w-0@b/0", "w-0@c/0", "no one rack holds all"
    ),
    "GPUs of a running member that nobody knows": Case(
        "rack r1: a[4, unindexed 1] b[4 = 2+2, unindexed 1]",
        "1 x 1 GPU, scope nvlink-domain, running w-9@a",
        "w-0@a/0",
        "w-0@b/0",
        "no one nvlink-domain holds all",
    ),
}


CASES |= {name: Case(*row) for kind_tested in TESTED for name, row in kind_tested.plans.items()}


@pytest.mark.parametrize("name", CASES)
def test_broken_plans_are_refused(name: str) -> None:
    case = CASES[name]
    snapshot, request = cluster(case.cluster), gang(case.gang)
    assert verify(snapshot, request, plan(snapshot, request, case.good)) == ()
    violations = verify(snapshot, request, plan(snapshot, request, case.bad))
    assert [v for v in violations if case.says in v] == list(violations) != [], violations


Change = Callable[[Placed], Placed]


def member(**changes: Any) -> Change:
    """The first member otherwise."""
    return lambda before: replace(
        before, members=(replace(before.members[0], **changes), *before.members[1:])
    )


def claim(**changes: Any) -> Change:
    return lambda before: replace(before, objective=replace(before.objective, **changes))


def with_changes(**changes: Any) -> Change:
    return lambda before: replace(before, **changes)


LIES: dict[str, tuple[Change, str]] = {
    "a node of no cluster": (member(node="nowhere"), "node nowhere is not in the cluster"),
    "a stranger": (member(uid="stranger"), "is not of the gang"),
    "another name": (member(name="other"), "is called other of role w"),
    "another role": (member(role="x"), "is called w-0 of role x"),
    "twice": (member(uid="w1", name="w-1"), "w-1 is placed twice"),
    "GPUs that fall": (member(gpus=(1, 0)), "do not rise"),
    "a GPU twice in one member": (member(gpus=(1, 1)), "is given twice"),
    "a GPU that is not there": (member(gpus=(7, 8)), "GPU 8 of node a is not free"),
    "a node without the resource": (member(node="c"), "it does not offer nvidia.com/gpu"),
    "a negative GPU": (member(gpus=(-1, 1)), "GPU -1 of node a is not free"),
    "nobody": (with_changes(members=()), "no member is placed"),
    "another gang": (with_changes(gang=GangId("default", "test", "gang", ("new",))), "not of default/gang"),
    "the weakest link": (claim(weakest_link_gb_per_s=300.0), "the weakest link is 50.0, not 300.0"),
    "no link": (claim(weakest_link_gb_per_s=None), "the weakest link is 50.0, not None"),
    "the rings": (claim(ring_gb_per_s=1.0), "not 1.0 GB/s"),
    "the sockets": (claim(socket_distance=64), "the socket distance is 0, not 64"),
    "the rails": (claim(rails=1), "on 2 rails, not 1"),
    "no rails": (claim(rails=None), "on 2 rails, not None"),
    "the damage": (claim(damage=0), "the damage is"),
    "racks": (claim(crossings=(("rack", 2), ("node", 2), ("nvlink-domain", 2))), "touched are rack 1"),
    "nodes": (claim(crossings=(("rack", 1), ("node", 1), ("nvlink-domain", 2))), "touched are rack 1"),
    "domains": (claim(crossings=(("rack", 1), ("node", 2), ("nvlink-domain", 1))), "nvlink-domain 2"),
    "a level left out": (claim(crossings=(("node", 2), ("nvlink-domain", 2))), "touched are rack 1"),
    "a level that is none": (
        claim(crossings=(("zone", 1), ("rack", 1), ("node", 2), ("nvlink-domain", 2))),
        "not zone 1",
    ),
    "a preferred scope that holds not all": (claim(preferred_reached="node"), "is rack, not node"),
    "a preferred scope that was better": (claim(preferred_reached="pool"), "is rack, not pool"),
    "no preferred scope": (claim(preferred_reached=None), "is rack, not None"),
    "another part": (with_changes(domain="rack r2"), "do not lie in rack, rack r2"),
    "a part of another scope": (with_changes(domain="r1"), "do not lie in rack, r1"),
    "a scope too narrow": (with_changes(scope_reached="node", domain="node a"), "do not lie in node, node a"),
    "a scope too wide": (with_changes(scope_reached="pool", domain="pool p"), "do not lie in pool"),
    "a part of no scope": (with_changes(scope_reached=None), "no scope is reached"),
    "no scope": (with_changes(scope_reached=None, domain=""), "one rack holds all members, not only None"),
    "optimal with a gap": (with_changes(gap=0.5), "called optimal"),
    "optimal and cut short": (with_changes(truncated=True), "called optimal"),
}


@pytest.mark.parametrize("name", LIES)
def test_false_claims_are_refused(name: str) -> None:
    snapshot = cluster(
        "rack r1: a[v100-8x-gputopology-document] b[v100-8x-gputopology-document]\n rack r2: c[0]"
    )
    request = gang("2 x 2 GPU, prefer node rack pool")
    true_plan = plan(snapshot, request, "w-0@a/03 w-1@b/03")
    assert verify(snapshot, request, true_plan) == ()
    change, says = LIES[name]
    violations = verify(snapshot, request, change(true_plan))
    assert any(says in violation for violation in violations), violations


def test_levels_are_those_of_the_snapshot() -> None:
    drawn = """
    zone z1 example.com/block b1 rack r1: a[4]
    zone z1 example.com/pod b2 rack r1: b[4]
    zone z1 rack r3: c[4]"""
    snapshot, request = cluster(drawn, BLOCKS), gang("2 x 1 GPU, scope zone")
    true_plan = plan(snapshot, request, "w-0@a/0 w-1@b/0")
    assert true_plan.objective.crossings[:3] == (("zone", 1), ("block", 2), ("rack", 2))
    assert verify(snapshot, request, true_plan) == ()
    assert verify(cluster(drawn, DEFAULT_LEVELS), request, true_plan)
    blocks = replace(request, required_scope="block")
    assert "no one block holds all members, although it is required" in verify(snapshot, blocks, true_plan)


def test_running_members_on_nodes_that_are_gone_count_for_nothing() -> None:
    snapshot = cluster(ISLANDS)
    alone, request = gang("1 x 1 GPU, scope rack"), gang("1 x 1 GPU, scope rack, running w-9@gone/0")
    assert verify(snapshot, request, plan(snapshot, alone, "w-0@a/0")) == ()


def test_what_runs_is_not_the_plans_fault() -> None:
    """Three on b and a segment over b and c were so before: the plan is judged where it puts a member."""
    snapshot = cluster(ISLANDS)
    request = gang("2 x 1 GPU by 2 node, max node=2, running w-2@b/0 w-3@c/0 w-4@b/1 w-5@b/2")
    assert verify(snapshot, request, plan(snapshot, request, "w-0@a/0 w-1@a/1")) == ()
    violations = verify(snapshot, request, plan(snapshot, request, "w-0@b/3 w-1@b/4"))
    assert violations == ("5 members lie in node b, at most 2 may",)


# --- against the oracle --------------------------------------------------------------------------------

SETTINGS = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
WORLDS = st.one_of(
    worlds(),
    worlds("segments", "ranks"),
    worlds("max per", "levels"),
    worlds("role scope", "running"),
    worlds("subgroups", "running"),
    worlds("unknown running"),
    worlds("ranks", "segments", "max per", "running"),
    worlds("anti-affinity"),
    worlds("affinity"),
    worlds("skew"),
    worlds("room", "scores"),
    worlds("anti-affinity", "affinity", "skew", "room", "running"),
    worlds("slices", "running"),
    worlds("terms", "running"),
    worlds("terms", "slices"),
    worlds("typical"),
    worlds("typical", "slices", "levels"),
    *(worlds(*features) for kind_tested in TESTED for features in kind_tested.families.values()),
)


@pytest.mark.brute_force
@SETTINGS
@given(WORLDS, st.data())
def test_the_best_plan_passes_and_a_change_only_if_it_is_as_true(world: World, data: st.DataObject) -> None:
    """Both ways: what the oracle finds valid and true must pass, and everything else must not."""
    value_and_plan = naive.best_value_and_plan(*world)
    assume(value_and_plan is not None)
    assert value_and_plan is not None
    assert verify(*world, value_and_plan[1]) == ()
    changed = data.draw(mutations(*world, value_and_plan[1]))
    good = naive.valid(*world, changed.members) and naive.honest(*world, changed)
    assert (verify(*world, changed) == ()) is good, verify(*world, changed)


@st.composite
def mutations(draw: st.DrawFn, snapshot: Snapshot, request: Request, true_plan: Placed) -> Placed:
    """The plan with one thing changed. Half of those with other places claim what is true of them."""
    if draw(st.integers(0, 3)) == 0:
        return draw(_claimed_otherwise(true_plan))
    members = list(true_plan.members)
    at = draw(st.integers(0, len(members) - 1))
    other_rank = draw(st.integers(0, len(members) - 1))
    match draw(st.sampled_from(["gpu", "node", "exchange", "swap gpus", "drop", "twice", "unlike"])):
        case "gpu":
            gpus = draw(st.sets(st.integers(0, 4), min_size=len(members[at].gpus), max_size=4))
            members[at] = replace(members[at], gpus=tuple(sorted(gpus)))
        case "node":
            members[at] = replace(members[at], node=draw(st.sampled_from([*snapshot.nodes, "nowhere"])))
        case "exchange":
            first, second = members[at], members[other_rank]
            members[at] = replace(first, node=second.node, gpus=second.gpus)
            members[other_rank] = replace(second, node=first.node, gpus=first.gpus)
        case "swap gpus":
            first, second = members[at], members[other_rank]
            members[at], members[other_rank] = (
                replace(first, gpus=second.gpus),
                replace(second, gpus=first.gpus),
            )
        case "drop":
            del members[at]
        case "twice":
            members.append(members[at])
        case "unlike":
            field = draw(st.sampled_from(["uid", "name", "role"]))
            members[at] = replace(members[at], **{field: getattr(members[other_rank], field) + "?"})
    changed = replace(true_plan, members=tuple(members))
    if draw(st.booleans()) and naive.valid(snapshot, request, changed.members):
        return naive.plan(snapshot, request, changed.members)
    return changed


@st.composite
def _claimed_otherwise(draw: st.DrawFn, true_plan: Placed) -> Placed:
    value = true_plan.objective
    bent = [(scope, count + draw(st.sampled_from([-1, 0, 0, 1]))) for scope, count in value.crossings]
    scope = draw(st.sampled_from([None, "gpu", "nvlink-domain", "node", "rack", "block", "zone"]))
    return draw(
        st.sampled_from(
            [
                replace(true_plan, objective=replace(value, crossings=tuple(bent))),
                replace(true_plan, objective=replace(value, crossings=value.crossings[1:])),
                replace(true_plan, objective=replace(value, damage=value.damage + 250)),
                replace(true_plan, objective=replace(value, socket_distance=value.socket_distance + 1)),
                replace(true_plan, objective=replace(value, rails=(value.rails or 0) + 1)),
                replace(true_plan, objective=replace(value, preference_penalty=1)),
                replace(true_plan, objective=replace(value, unusable_gpus=(value.unusable_gpus or 0) + 1)),
                replace(true_plan, objective=replace(value, best_fit=value.best_fit + 1)),
                replace(true_plan, objective=replace(value, costs=(("sharing", 1), ("shared_gpus", 1)))),
                replace(true_plan, objective=replace(value, ring_gb_per_s=value.ring_gb_per_s + 1)),
                replace(true_plan, objective=replace(value, weakest_link_gb_per_s=25.0)),
                replace(true_plan, objective=replace(value, preferred_reached=scope)),
                replace(true_plan, scope_reached=scope),
                replace(true_plan, domain=true_plan.domain + "x"),
                replace(true_plan, unknown_links=(*true_plan.unknown_links, "nowhere")),
                replace(true_plan, unknown_indices=(*true_plan.unknown_indices, "nowhere")),
                replace(true_plan, gap=0.5),
                replace(true_plan, optimal=False, gap=0.5),
            ]
        )
    )


def test_a_slice_of_a_gpu_that_the_node_lacks_is_a_sentence() -> None:
    """Priced damage is counted over all GPUs of the node."""
    typical = (TypicalRequest(share=1, gpus=1, cpu_milli=1),)
    snapshot = replace(cluster(": a[4, share, mem 4 4 4 4] b[4]"), typical=typical)
    request = gang("1 x 1 GiB")
    true_plan = place(snapshot, request)
    assert isinstance(true_plan, Placed)
    [member] = true_plan.members
    wrong = replace(true_plan, members=(replace(member, gpus=(4,)),))
    assert any("GPU 4" in sentence for sentence in verify(snapshot, request, wrong))
