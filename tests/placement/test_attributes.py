"""GPUs that must agree on attributes: as many members as trying everything finds, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.domain.causes.not_planned import NotDecided, NotSupported
from muster.domain.constraints import AttributesDiffer, DropConstraint
from muster.domain.decision import Placed, Unplaceable
from muster.domain.request import Request, RolePreference
from muster.domain.snapshot import Snapshot
from muster.domain.topology import bits, mask_of
from muster.placement.cluster.matching import groups_of
from muster.placement.moves import move
from muster.placement.place import place
from muster.placement.verify import verify
from tests.placement.drawings import cluster, gang

ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
Groups = dict[str, tuple[int, ...]]
PAIRS = {ROOT: (0b11, 0b1100, 0b110000, 0b11000000), NUMA: (0b1111, 0b11110000)}


def cluster_with_groups(text: str, **groups: Groups) -> Snapshot:
    snapshot = cluster(text)
    for name, attribute_groups in groups.items():
        state = snapshot.nodes[name]
        state = replace(state, node=replace(state.node, attribute_groups=attribute_groups))
        snapshot = replace(snapshot, nodes={**snapshot.nodes, name: state})
    return snapshot


def gang_with_attributes(text: str, *attributes: str, roles: str = "wxyz") -> Request:
    """The gang of the drawing. Members of these roles name the attributes."""
    request = gang(text)
    changed = [
        replace(role, match_attributes=attributes) if role.name in roles else role for role in request.roles
    ]
    return replace(request, roles=tuple(changed))


def test_members_do_not_span_groups() -> None:
    decision = place(cluster_with_groups(": a[8]", a=PAIRS), gang_with_attributes("4 x 2 GPU", ROOT))
    assert isinstance(decision, Placed)
    assert sorted(mask_of(member.gpus) for member in decision.members) == sorted(PAIRS[ROOT])


def test_a_member_moves_to_gpus_that_agree() -> None:
    """The lowest free GPUs of both nodes are 1 and 2, which do not agree."""
    nodes = ": a[8, free 0111 1111] b[8, free 0111 1111]"
    snapshot, request = cluster_with_groups(nodes, a=PAIRS, b=PAIRS), gang_with_attributes("1 x 2 GPU", ROOT)
    plan = place(snapshot, request)
    assert isinstance(plan, Placed)
    (other_node,) = {"a", "b"} - {plan.members[0].node}
    moved = move(snapshot, request, plan, plan.members[0].uid, other_node)
    assert moved is not None
    assert mask_of(moved.members[0].gpus) in PAIRS[ROOT]


@pytest.mark.parametrize(
    ("free", "partitions"),
    [("1111 1111", [0b1111, 0b11110000]), ("0111 1111", [0b11110000]), ("0111 1110", [])],
)
def test_members_get_whole_partitions_of_nvidias_fabric_manager(free: str, partitions: list[int]) -> None:
    """A member with as many GPUs as a partition has gets one, and none with GPUs of two."""
    name = "gpu.nvidia.com/partition4"
    snapshot = cluster_with_groups(f": a[8, free {free}]", a={name: (0b1111, 0b11110000)})
    for members in range(1, 3):
        decision = place(snapshot, gang_with_attributes(f"{members} x 4 GPU", name))
        assert isinstance(decision, Placed) == (members <= len(partitions))
        if isinstance(decision, Placed):
            assert {mask_of(member.gpus) for member in decision.members} <= set(partitions)


PARTITIONS = ((2, "p2"), (4, "p4"), (8, ""))
"""As on a node of NVIDIA's Fabric Manager. All its GPUs are one partition, so a pod with them names none."""
GROUPS = {"p2": (0b11, 0b1100, 0b110000, 0b11000000), "p4": (0b1111, 0b11110000)}
STARTS = {
    "1 GPU": ("1 x 1 GPU", (), True, ""),
    "all GPUs": ("1 x 8 GPU", (), True, ""),
    "a claim for a partition": ("2 x 4 GPU", ("p4",), True, ""),
    "no claim": ("1 x 4 GPU", (), False, "Ask for these GPUs by a claim with matchAttribute p4."),
    "another size": ("1 x 2 GPU", ("p4",), False, "Ask for these GPUs by a claim with matchAttribute p2."),
    "none of this size": (
        "1 x 3 GPU",
        (),
        False,
        "Ask for as many GPUs in a pod as a partition of 1 node has.",
    ),
}


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("1 x 8 GPU", "Ask for these GPUs by one claim."),
        ("1 x 4 GPU", "Ask for these GPUs by a claim with matchAttribute p4."),
        ("1 x 1 GPU", ""),
    ],
)
def test_gpus_of_several_claims_are_no_partition_each(text: str, advice: str) -> None:
    """All GPUs of the node are a partition, and those of one of two claims are any of them."""
    snapshot, request = cluster_with_groups(": a[8]", a=GROUPS), gang_with_attributes(text)
    request = replace(request, roles=tuple(replace(role, several_claims=True) for role in request.roles))
    plan = place(snapshot, request)
    assert isinstance(plan, Placed)
    state = snapshot.nodes["a"]
    among = replace(snapshot, nodes={"a": replace(state, node=replace(state.node, partitions=PARTITIONS))})
    decision = place(among, request)
    assert isinstance(decision, Placed) == (not advice)
    assert bool(verify(among, request, plan)) == bool(advice)
    if isinstance(decision, Unplaceable):
        assert [cause.advice for cause in decision.causes] == [advice]


@pytest.mark.parametrize("case", STARTS)
def test_a_node_in_partitions_gets_no_member_that_would_hang_there(case: str) -> None:
    text, attributes, starts, advice = STARTS[case]
    snapshot, request = cluster_with_groups(": a[8]", a=GROUPS), gang_with_attributes(text, *attributes)
    state = snapshot.nodes["a"]
    state = replace(state, node=replace(state.node, partitions=PARTITIONS))
    among = replace(snapshot, nodes={"a": state})
    decision = place(among, request)
    assert isinstance(decision, Placed) == starts
    if isinstance(decision, Placed):
        assert not verify(among, request, decision)
        return
    assert advice in [cause.advice for cause in decision.causes]
    elsewhere = place(snapshot, request)  # the same node without partitions
    if isinstance(elsewhere, Placed):
        assert any(
            "need not be one partition" in violation for violation in verify(among, request, elsewhere)
        )


@pytest.mark.parametrize("terms", ["numa:spread", "numa:pack", "nvlink:spread", "nvlink:pack"])
@pytest.mark.parametrize("members", [1, 4])
def test_a_node_with_too_many_sets_of_gpus_to_try_gets_an_answer(members: int, terms: str) -> None:
    groups = {ROOT: tuple(0xFF << first for first in range(0, 32, 8))}
    decision = place(
        cluster_with_groups(": a[32 pcie, free 01111111 01111111 01111111 01111111]", a=groups),
        gang_with_attributes(f"{members} x 2 GPU, terms {terms}", ROOT),
    )
    if isinstance(decision, Unplaceable):
        assert [type(cause) for cause in decision.causes] == [NotDecided]
    else:
        assert not decision.optimal


def test_many_attributes_make_no_more_groups_than_there_are_gpus() -> None:
    """A driver may publish 32 attributes of a device, and a claim may name all of them."""
    snapshot = cluster_with_groups(": a[8]", a={f"gpu.example.com/a{i}": PAIRS[ROOT] for i in range(32)})
    node = snapshot.nodes["a"].node
    assert groups_of(node, tuple(node.attribute_groups)) == PAIRS[ROOT]


def test_a_wide_nvlink_domain_is_no_group() -> None:
    decision = place(
        cluster_with_groups(": a[8, clique k]", a=PAIRS), gang_with_attributes("2 x 4 GPU", NUMA)
    )
    assert isinstance(decision, Placed)
    assert {mask_of(member.gpus) for member in decision.members} == {*PAIRS[NUMA]}
    assert dict(decision.objective.crossings)["nvlink-domain"] == 1


def test_the_links_decide_between_groups() -> None:
    """Of two groups the one that NVLink joins is taken; the values are those of the node as it is."""
    node_groups: Groups = {ROOT: (0b0011, 0b1100)}
    snapshot = cluster_with_groups(": a[4 = 1+1+2]", a=node_groups)
    decision = place(snapshot, gang_with_attributes("1 x 2 GPU", ROOT))
    assert isinstance(decision, Placed)
    assert decision.members[0].gpus == (2, 3)
    assert not decision.optimal
    assert decision.unproven == "nvlink_domains"


def test_other_roles_span_groups() -> None:
    """GPUs 2 and 5 have no other one of their group next to them: only x can have them together."""
    snapshot = cluster_with_groups(": a[8, free 1110 0111]", a=PAIRS)
    decision = place(snapshot, gang_with_attributes("2 x 2 GPU + 1 x 2 GPU", ROOT, roles="w"))
    assert isinstance(decision, Placed)
    assert {m.role: m.gpus for m in decision.members} == {"w": (6, 7), "x": (2, 5)}


def test_changes_between_gangs_are_seen() -> None:
    """The groups of nodes that did not change are not made again."""
    before = cluster_with_groups(": a[4] b[4]", a=PAIRS, b={})
    after = cluster_with_groups(": a[4, free 0101] b[4]", a=PAIRS, b={ROOT: (0b1001,)})
    after = replace(before, nodes={**before.nodes, **after.nodes})
    for snapshot, attribute, home in (
        (before, ROOT, ("a", (0, 1))),
        (after, ROOT, ("b", (0, 3))),
        (before, NUMA, ("a", (0, 1))),
        (replace(before, nodes={"b": after.nodes["b"]}), ROOT, ("b", (0, 3))),
        (before, ROOT, ("a", (0, 1))),
    ):
        decision = place(snapshot, gang_with_attributes("1 x 2 GPU", attribute))
        assert isinstance(decision, Placed)
        assert [(member.node, member.gpus) for member in decision.members] == [home]


def test_several_attributes() -> None:
    node_groups = {ROOT: (0b0011, 0b1100), NUMA: (0b0111,)}
    node = cluster_with_groups(": a[4]", a=node_groups).nodes["a"].node
    assert groups_of(node, (ROOT, NUMA)) == (0b0011, 0b0100, 0b1000)
    assert groups_of(node, (ROOT, "other")) == ()


REFUSED: dict[str, tuple[str, Groups, str, AttributesDiffer, str]] = {
    "in pieces too small": (
        ": a[4, free 0101]",
        {ROOT: (0b0011, 0b1100)},
        "1 x 2 GPU",
        AttributesDiffer("w", (ROOT,), 2, 1, 0, 1),
        "the 2 GPUs of each member of role w must agree on matchAttribute resource.kubernetes.io/pcieRoot",
    ),
    "no node has the attribute": (
        ": a[4]",
        {NUMA: (0b1111,)},
        "1 x 2 GPU",
        AttributesDiffer("w", (ROOT,), 2, 0, 0, 1, even_empty=True),
        "no node that admits it has two GPUs that do",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_attribute(name: str) -> None:
    drawn, node_groups, text, cause, sentence = REFUSED[name]
    decision = place(cluster_with_groups(drawn, a=node_groups), gang_with_attributes(text, ROOT))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (cause,)
    assert sentence in str(cause)
    assert DropConstraint(f"matchAttribute {ROOT}") in decision.relaxations


def test_rules_by_nvlink_domain_are_not_supported_beside_it() -> None:
    snapshot = cluster_with_groups(": a[8 = 4+4]", a=PAIRS)
    for rule in (", scope nvlink-domain", " within nvlink-domain", ", max nvlink-domain=1"):
        decision = place(snapshot, gang_with_attributes(f"2 x 2 GPU{rule}", ROOT))
        assert isinstance(decision, Unplaceable)
        (cause,) = decision.causes
        assert isinstance(cause, NotSupported)
        assert str(cause).endswith(f"is not supported together with matchAttribute {ROOT}")


def test_a_preference_by_nvlink_domain_beside_it_is_not_proven() -> None:
    """Groups stand in the place of the domains, so nothing decides the preference."""
    snapshot, roles = cluster_with_groups(": a[8 = 4+4] b[8 = 4+4]", a=PAIRS, b=PAIRS), frozenset("w")
    request = gang_with_attributes("6 x 2 GPU, prefer nvlink-domain", ROOT)
    of_role = RolePreference("theirs", ("nvlink-domain",), roles)
    for variant, level in (
        (request, "preferred_scope"),
        (replace(request, preferred_scopes=(), role_preferences=(of_role,)), "role_preferences"),
    ):
        decision = place(snapshot, variant)
        assert isinstance(decision, Placed)
        assert (decision.optimal, decision.unproven) == (False, level)


def test_roles_with_different_attributes_are_not_supported() -> None:
    request = gang_with_attributes("1 x 2 GPU + 1 x 3 GPU", ROOT, roles="w")
    first, second = request.roles
    request = replace(request, roles=(first, replace(second, match_attributes=(NUMA,))))
    decision = place(cluster_with_groups(": a[8]", a=PAIRS), request)
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (NotSupported("matchAttribute", NUMA, ROOT),)


def test_members_that_share_gpus_are_not_supported() -> None:
    snapshot = cluster_with_groups(": a[2, mem 8] b[4]", b={ROOT: (0b0011,)})
    decision = place(snapshot, gang_with_attributes("1 x 4 GiB + 1 x 2 GPU", ROOT, roles="x"))
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (NotSupported("matchAttribute", ROOT),)


def test_the_judge_sees_gpus_that_differ() -> None:
    snapshot, plain = cluster_with_groups(": a[8]", a=PAIRS), gang_with_attributes("4 x 2 GPU")
    plan = place(snapshot, plain)
    assert isinstance(plan, Placed)
    for attribute, wrong in ((ROOT, False), (NUMA, False), ("other", True)):
        request = replace(plain, roles=tuple(replace(r, match_attributes=(attribute,)) for r in plain.roles))
        violations = [violation for violation in verify(snapshot, request, plan) if "agree on" in violation]
        assert len(violations) == (4 if wrong else sum(not _agree(m.gpus, attribute) for m in plan.members))


def _agree(gpus: tuple[int, ...], attribute: str) -> bool:
    return any(mask_of(list(gpus)) & ~group == 0 for group in PAIRS[attribute])


@st.composite
def nodes(draw: st.DrawFn) -> tuple[str, int, tuple[int, ...]]:
    """A drawing of a node, the mask of its free GPUs, and its groups. Some GPUs are in none."""
    count = draw(st.integers(2, 6))
    numbers = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count))
    free = draw(st.integers(0, (1 << count) - 1))
    groups = [mask_of([gpu for gpu, number in enumerate(numbers) if number == group]) for group in range(3)]
    shown = "".join("01"[free >> gpu & 1] for gpu in range(count))
    kind = draw(st.sampled_from([f"{count}", f"{count} pcie", f"{count} = 1+{count - 1}"]))
    return f"[{kind}, free {shown}]", free, tuple(group for group in groups if group)


def most_by_trying_all(free: int, groups: tuple[int, ...], gpus: int, single_gpus: int) -> int:
    """The most members of `gpus` GPUs that agree, next to `single_gpus` single GPUs, by trying everything."""

    def fit(free_left: int) -> int:
        sets = (mask_of(list(c)) for group in groups for c in combinations([*bits(free_left & group)], gpus))
        return max((1 + fit(free_left & ~gpu_set) for gpu_set in sets), default=0)

    most_members = fit(free)
    return min(most_members, max(0, free.bit_count() - single_gpus) // gpus)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(nodes(), min_size=1, max_size=3), st.integers(2, 3), st.integers(1, 3), st.booleans())
def test_as_many_fit_as_by_trying_everything(
    drawn: list[tuple[str, int, tuple[int, ...]]], gpus: int, members: int, min_one: bool
) -> None:
    text = " ".join(f"{name}{node}" for name, (node, _, _) in zip("abc", drawn, strict=False))
    node_groups = {name: {ROOT: groups} for name, (_, _, groups) in zip("abc", drawn, strict=False)}
    least = 1 if min_one else members
    decision = place(
        cluster_with_groups(f": {text}", **node_groups),
        gang_with_attributes(f"{members} x {gpus} GPU, min {least}", ROOT),
    )
    fit = sum(most_by_trying_all(free, groups, gpus, 0) for _, free, groups in drawn)
    placed_count = len(decision.members) if isinstance(decision, Placed) else 0
    assert placed_count == (min(members, fit) if fit >= least else 0)
