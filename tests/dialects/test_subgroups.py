"""What a tree of subgroups requires is kept by what is planned, or refused; never quietly less."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from muster.dialects.gangs import podgroups
from muster.dialects.gangs.subgroups import KaiTopology
from muster.domain.levels import DEFAULT_LEVELS, FabricLevel
from muster.domain.podgroup import PodGroup
from tests.dialects.objects import custom_object

ZONE, RACK, HOST = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack", "kubernetes.io/hostname"
WIDE, NARROW = "example.com/pod", "example.com/block"
LABEL_OF = {"zone": ZONE, "rack": RACK, "node": HOST}
NODES = [
    dict(zip((ZONE, RACK, HOST, WIDE, NARROW), parts, strict=True))
    for parts in (
        ("z0", "r0", "n0", "w0", "b0"),
        ("z0", "r0", "n1", "w0", "b1"),
        ("z0", "r1", "n2", "w1", "b2"),
        ("z1", "r2", "n3", "w0", "b0"),
        ("z1", "r2", "n4", "w1", "b2"),
        ("z1", "r3", "n5", "w1", "b3"),
    )
]
"""Racks lie in zones and blocks in pods of the fabric; the one order knows nothing of the other."""
PAIRS = tuple(combinations(range(len(NODES)), 2))
TRUE = {"racks": KaiTopology((ZONE, RACK, HOST)), "blocks": KaiTopology((WIDE, NARROW))}
WRONG = {
    "upside-down": KaiTopology((HOST, RACK, ZONE)),
    "blocks-too": KaiTopology((NARROW, WIDE)),
    "last": KaiTopology((HOST, WIDE)),
}
"""They contradict the others, or what a node is."""


def read(
    spec: dict[str, Any], topologies: Any = None, levels: tuple[FabricLevel, ...] = DEFAULT_LEVELS
) -> PodGroup:
    obj = custom_object(podgroups.KAI_API, "PodGroup", "g", spec)
    return podgroups.read(obj, levels, topologies)


def requires(label: str | None) -> dict[str, Any]:
    return {} if label is None else {"topologyConstraint": {"requiredTopologyLevel": label}}


def is_allowed(group: PodGroup, first: tuple[str, int], second: tuple[str, int]) -> bool:
    """Whether two pods, each of a leaf and on a node, may lie so: all that is required is of pairs."""
    scopes = [group.topology_request.required_scope]
    scopes += [shared.scope for shared in group.subgroups if {first[0], second[0]} <= shared.roles]
    if first[0] == second[0]:
        scopes.append(group.role_topology_requests[first[0]].role_scope)
    return all(
        is_same_domain(LABEL_OF.get(scope, scope), first[1], second[1])
        for scope in scopes
        if scope is not None
    )


def is_same_domain(label: str, first: int, second: int) -> bool:
    return NODES[first][label] == NODES[second][label]


LEVEL = st.none() | st.sampled_from([ZONE, RACK, HOST, WIDE, NARROW])
TREE = st.lists(st.tuples(st.integers(0, 4), LEVEL), min_size=1, max_size=5)
"""Of each subgroup its parent, by its place among those before it (too large: none), and its level."""


@settings(max_examples=300, deadline=None)
@given(LEVEL, TREE, st.sets(st.sampled_from(sorted(WRONG))))
def test_what_is_planned_keeps_what_each_subgroup_requires(
    root: str | None, tree: list[tuple[int, str | None]], wrong: set[str]
) -> None:
    parents = [parent if parent < i else None for i, (parent, _) in enumerate(tree)]
    subgroups = [
        {"name": f"s{i}", **requires(level), **({} if parent is None else {"parent": f"s{parent}"})}
        for i, ((_, level), parent) in enumerate(zip(tree, parents, strict=True))
    ]
    group = read({"subGroups": subgroups, **requires(root)}, TRUE | {name: WRONG[name] for name in wrong})
    event("refused" if group.causes else "planned")
    if group.causes:
        return
    below: dict[int | None, set[str]] = {i: set() for i in (None, *range(len(tree)))}
    for i in set(range(len(tree))) - set(parents):
        above: int | None = i
        while above is not None:
            below[above].add(f"s{i}")
            above = parents[above]
        below[None].add(f"s{i}")
    assert group.role_topology_requests.keys() == below[None]
    for owner, level in ((None, root), *enumerate(level for _, level in tree)):
        apart = [] if level is None else [on for on in PAIRS if not is_same_domain(level, *on)]
        for (first, second), on in product(product(sorted(below[owner]), repeat=2), apart):
            assert not is_allowed(group, (first, on[0]), (second, on[1])), (first, second, on)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more subgroups than there are": (
        {"minSubGroup": 3, "subGroups": [{"name": "a"}, {"name": "b"}]},
        "spec.minSubGroup",
    ),
    "subgroups of a leaf": (
        {"subGroups": [{"name": "a", "minSubGroup": 1}, {"name": "b"}]},
        "spec.subGroups[0].minSubGroup",
    ),
    "a misspelt field": ({"minMember": 2, "topologyPolcy": {"scope": "rack"}}, "spec.topologyPolcy"),
    "another case": ({"minMember": 2, "subgroups": [{"name": "a", "minMember": 4}]}, "spec.subgroups"),
    "a misspelt field of a subgroup": (
        {"subGroups": [{"name": "a", "topologyConstraints": {"requiredTopologyLevel": RACK}}]},
        "spec.subGroups[0].topologyConstraints",
    ),
    "a misspelt level": (
        {"minMember": 2, "topologyConstraint": {"requiredTopologylevel": RACK}},
        "spec.topologyConstraint.requiredTopologylevel",
    ),
    "a node label that is our word for another": (
        {"minMember": 2, **requires("rack")},
        "spec.topologyConstraint.requiredTopologyLevel",
    ),
    "one that is a word of no level": (
        {"minMember": 2, **requires("nvlink-domain")},
        "spec.topologyConstraint.requiredTopologyLevel",
    ),
}


@pytest.mark.parametrize(("spec", "field"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_planned_as_it_is_said_is_refused(spec: dict[str, Any], field: str) -> None:
    assert [cause.field for cause in read(spec).causes] == [field]  # type: ignore[attr-defined]


KAIS_OTHER = (
    *("priorityClassName", "preemptibility", "parallelism", "completions", "backoffLimit"),
    *("markUnschedulable", "schedulingBackoff"),
)
"""Fields of KAI's that are not read (pkg/apis/scheduling/v2alpha2/podgroup_types.go)."""


def test_fields_of_another_scheduler_are_no_slips() -> None:
    spec = {"minMember": 2, **dict.fromkeys((*KAIS_OTHER, "minResources", "scheduleTimeoutSeconds"), "x")}
    assert read(spec).causes == ()


def test_a_word_may_be_the_label_of_its_own_level() -> None:
    levels = (FabricLevel("rack", ("rack", "topology.kubernetes.io/rack")),)
    group = read({"minMember": 2, **requires("rack")}, levels=levels)
    assert (group.topology_request.required_scope, group.causes) == ("rack", ())


@pytest.mark.parametrize(
    ("constraint", "gangs"),
    [
        ({"preferredTopologyLevel": RACK}, ("rack", "zone")),
        ({"preferredTopologyLevel": HOST}, ("node", "rack", "zone")),
        ({"preferredTopologyLevel": ZONE}, ("zone",)),
        ({"preferredTopologyLevel": HOST, "requiredTopologyLevel": ZONE}, ("node", "rack")),
        ({"preferredTopologyLevel": RACK, "requiredTopologyLevel": RACK}, ("rack",)),
        ({"preferredTopologyLevel": NARROW, "topology": "blocks"}, (NARROW, WIDE)),
    ],
)
def test_the_wider_levels_of_the_topology_follow_the_preferred_one(
    constraint: dict[str, Any], gangs: tuple[str, ...]
) -> None:
    """As in KAI: the first that holds all pods, up to the required level."""
    fields = {"topologyConstraint": {"topology": "racks", **constraint}}
    assert read(fields, TRUE).topology_request.preferred_scopes == gangs
    of_leaf = read({"subGroups": [{"name": "a", "minMember": 1, **fields}, {"name": "b"}]}, TRUE)
    is_required = constraint.get("requiredTopologyLevel") == constraint["preferredTopologyLevel"]
    assert of_leaf.role_topology_requests["a"].role_preferred == (() if is_required else gangs)
    leaves = [{"name": "a", "parent": "up"}, {"name": "b", "parent": "up"}, {"name": "c"}]
    of_two = read({"subGroups": [{"name": "up", **fields}, *leaves]}, TRUE)
    assert [preference.scopes for preference in of_two.role_preferences] == ([] if is_required else [gangs])
