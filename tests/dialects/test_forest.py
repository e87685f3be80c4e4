"""Trees of CompositePodGroups and PodGroups → the facts of their gangs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from muster.dialects.gangs import podgroups
from muster.dialects.gangs.forest import MAX_DEPTH, MAX_GROUPS, Forest
from muster.dialects.pods import pods
from muster.domain.constraints import Subgroup
from muster.domain.pod import COMPOSITE, KUBERNETES, GangClaim, TopologyRequest
from muster.domain.podgroup import SCHEDULED, Condition, PodGroup, PodGroupKey
from muster.domain.quorums import Leaf, Quorum
from muster.domain.request import RolePreference, Segment
from tests.dialects.objects import custom_object, pod_object

API = "scheduling.k8s.io/v1alpha3"
ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"


def group(
    kind: str,
    name: str,
    least: int,
    parent: str = "",
    key: str = "",
    annotations: dict[str, str] | None = None,
    **fields: Any,
) -> PodGroup:
    """A group; with `least` 0 it is basic."""
    count = "minGroupCount" if kind == COMPOSITE else "minCount"
    spec: dict[str, Any] = {
        "schedulingPolicy": {"gang": {count: least}} if least else {"basic": {}},
        "workloadRef": {"workloadName": "w", "templateName": "t"},
        **fields,
    }
    spec |= {"parentCompositePodGroupName": parent} if parent else {}
    spec |= {"schedulingConstraints": {"topology": [{"key": key}]}} if key else {}
    return podgroups.read(custom_object(API, kind, name, spec, annotations=annotations))


def composite(name: str, least: int, parent: str = "", key: str = "", **more: Any) -> PodGroup:
    return group(COMPOSITE, name, least, parent, key, **more)


def pod_group(name: str, least: int, parent: str = "", key: str = "", **more: Any) -> PodGroup:
    return group(KUBERNETES, name, least, parent, key, **more)


def gang(*groups: PodGroup, root: str = "t") -> PodGroup:
    facts = Forest(groups).gang(("ns", COMPOSITE, root))
    assert facts is not None
    return facts


def of(name: str) -> PodGroupKey:
    return ("ns", KUBERNETES, name)


def tree(name: str) -> PodGroupKey:
    return ("ns", COMPOSITE, name)


def leaf(name: str, least: int) -> Leaf:
    return Leaf(frozenset((name,)), least)


def sentences(facts: PodGroup) -> list[str]:
    return [str(cause) for cause in facts.causes]


# --- quorums ---------------------------------------------------------------------------------------

QUORUMS: dict[str, tuple[list[PodGroup], dict[str, int] | Quorum]] = {
    "both of two": (
        [composite("t", 2), pod_group("a", 4, "t"), pod_group("b", 2, "t")],
        {"a": 4, "b": 2},
    ),
    "one of two": (
        [composite("t", 1), pod_group("a", 4, "t"), pod_group("b", 2, "t")],
        Quorum(1, (leaf("a", 4), leaf("b", 2))),
    ),
    "a basic PodGroup counts with one pod": (
        [composite("t", 2), pod_group("a", 4, "t"), pod_group("b", 0, "t")],
        {"a": 4, "b": 1},
    ),
    "basic with a key needs one group": (
        [composite("t", 0, key=RACK), pod_group("a", 4, "t"), pod_group("b", 2, "t")],
        Quorum(1, (leaf("a", 4), leaf("b", 2))),
    ),
    "three levels, all needed": (
        [
            composite("t", 2),
            composite("left", 1, "t"),
            composite("right", 2, "t"),
            pod_group("a", 4, "left"),
            pod_group("b", 2, "right"),
            pod_group("c", 1, "right"),
        ],
        {"a": 4, "b": 2, "c": 1},
    ),
    "three levels, one part of each": (
        [
            composite("t", 1),
            composite("left", 0, "t"),
            composite("right", 2, "t"),
            pod_group("a", 4, "left"),
            pod_group("b", 2, "right"),
            pod_group("c", 1, "right"),
        ],
        Quorum(1, (Quorum(1, (leaf("a", 4),)), Quorum(2, (leaf("b", 2), leaf("c", 1))))),
    ),
    "composites and PodGroups side by side": (
        [composite("t", 2), pod_group("z", 1, "t"), composite("a", 1, "t"), pod_group("b", 2, "a")],
        {"b": 2, "z": 1},
    ),
}


@pytest.mark.parametrize("name", QUORUMS)
def test_a_tree_is_a_quorum(name: str) -> None:
    groups, expected = QUORUMS[name]
    facts = gang(*groups)
    assert (facts.causes, facts.missing) == ((), None)
    assert (facts.role_min or facts.quorum) == expected
    if isinstance(expected, dict):
        assert (facts.quorum, facts.min_member, facts.size) == (None, *[sum(expected.values())] * 2)
    leaves = [item for item in groups if item.dialect == KUBERNETES]
    assert facts.role_topology_requests.keys() == {item.name for item in leaves}
    assert facts.size == sum(item.min_member or 0 for item in leaves)


def test_the_fewest_members_of_a_tree_count() -> None:
    facts = gang(composite("t", 1), pod_group("a", 4, "t"), pod_group("b", 2, "t"))
    assert (facts.min_member, facts.size) == (2, 6)


TOO_FEW: dict[str, tuple[list[PodGroup], str]] = {
    "of the root": (
        [composite("t", 3), pod_group("a", 1, "t")],
        "waiting for 2 more groups: 1 of 3 are here (spec.schedulingPolicy.gang.minGroupCount of "
        "CompositePodGroup ns/t)",
    ),
    "of a needed part": (
        [composite("t", 2), pod_group("a", 1, "t"), composite("b", 2, "t"), pod_group("c", 1, "b")],
        "waiting for 1 more group: 1 of 2 are here (spec.schedulingPolicy.gang.minGroupCount of "
        "CompositePodGroup ns/b)",
    ),
    "of a basic part, which has no field for a number": (
        [composite("t", 2), pod_group("a", 1, "t"), composite("b", 0, "t")],
        "waiting for 1 more group: 1 of 2 are here (spec.schedulingPolicy.gang.minGroupCount of "
        "CompositePodGroup ns/t)",
    ),
    "of an optional part": (
        [composite("t", 1), pod_group("a", 1, "t"), composite("b", 2, "t"), pod_group("c", 1, "b")],
        "None",
    ),
}


@pytest.mark.parametrize("name", TOO_FEW)
def test_a_tree_waits_for_its_groups(name: str) -> None:
    groups, expected = TOO_FEW[name]
    facts = gang(*groups)
    assert (str(facts.missing), facts.causes) == (expected, ())


def test_a_tree_that_has_started_waits_for_no_groups() -> None:
    """A group may have ended, and be deleted."""
    started = replace(pod_group("a", 2, "left"), status=Condition(SCHEDULED, True, "Scheduled"))
    groups = [
        composite("t", 3),
        composite("left", 2, "t"),
        composite("right", 2, "t"),
        pod_group("b", 1, "right"),
    ]
    facts = gang(*groups, started)
    assert facts.missing is None
    assert facts.quorum == Quorum(1, (Quorum(1, (leaf("a", 2),)), Quorum(2, (leaf("b", 1),))))
    refused = replace(started, status=Condition(SCHEDULED, False, "Unschedulable"))
    assert gang(*groups, refused).missing is not None


def test_an_optional_part_with_too_few_groups_does_not_start() -> None:
    groups, _ = TOO_FEW["of an optional part"]
    facts = gang(*groups)
    assert facts.quorum == Quorum(1, (Quorum(2, (leaf("c", 1),)), leaf("a", 1)))
    assert facts.quorum.starts({"a": 1})
    assert not facts.quorum.starts({"a": 1, "c": 1})


# --- scopes ----------------------------------------------------------------------------------------


def test_each_key_is_a_scope_of_what_is_below_it() -> None:
    facts = gang(
        composite("t", 2, key=ZONE),
        composite("left", 2, "t", RACK),
        pod_group("a", 4, "left", "kubernetes.io/hostname"),
        pod_group("b", 2, "left"),
        pod_group("c", 1, "t", RACK),
    )
    assert facts.topology_request == TopologyRequest(required_scope="zone")
    assert facts.role_topology_requests == {role: TopologyRequest(role) for role in "abc"}
    field = "spec.schedulingConstraints of"
    assert set(facts.subgroups) == {
        Subgroup(f"{field} CompositePodGroup left", "rack", frozenset("ab")),
        Subgroup(f"{field} PodGroup a", "node", frozenset("a")),
        Subgroup(f"{field} PodGroup c", "rack", frozenset("c")),
    }


def test_keys_that_hold_for_the_same_pods_all_count() -> None:
    """None is left out as implied by another, whichever labels the cluster's nodes have."""
    facts = gang(
        composite("t", 1, key="example.com/row"), composite("m", 1, "t", RACK), pod_group("a", 2, "m", ZONE)
    )
    assert facts.topology_request.required_scope == "example.com/row"
    assert {item.scope for item in facts.subgroups} == {"rack", "zone"}


def test_preferred_scopes_of_annotations() -> None:
    near = {"gpu.topology/preferred-scopes": "rack"}
    facts = gang(
        composite("t", 2, annotations={"gpu.topology/preferred-scopes": "zone"}),
        composite("m", 1, "t", annotations=near),
        pod_group("a", 2, "m", annotations={"gpu.topology/preferred-scopes": "node"}),
        pod_group("b", 2, "t"),
    )
    assert facts.topology_request.preferred_scopes == ("zone",)
    assert set(facts.role_preferences) == {
        RolePreference("CompositePodGroup m", ("rack",), frozenset("a")),
        RolePreference("PodGroup a", ("node",), frozenset("a")),
    }


def test_segments_are_those_of_the_role() -> None:
    segments = {"gpu.topology/segment-size": "2", "gpu.topology/segment-scope": "node"}
    facts = gang(composite("t", 1), pod_group("a", 4, "t", annotations=segments))
    assert facts.role_topology_requests["a"].segments == (Segment(2, "node"),)


# --- roots -----------------------------------------------------------------------------------------

ROOTS: dict[str, tuple[list[PodGroup], PodGroupKey, bool]] = {
    "alone": ([pod_group("a", 2)], of("a"), True),
    "alone and basic": ([pod_group("a", 0)], of("a"), False),
    "not there": ([], of("a"), True),
    "in a tree": ([composite("t", 1), pod_group("a", 2, "t")], tree("t"), True),
    "two levels up": (
        [composite("t", 1), composite("m", 0, "t"), pod_group("a", 0, "m")],
        tree("t"),
        True,
    ),
    "the parent is not there": ([pod_group("a", 2, "t")], tree("t"), True),
    "the parent of the parent is not there": (
        [composite("m", 0, "t"), pod_group("a", 2, "m")],
        tree("t"),
        True,
    ),
    "below a basic composite": ([composite("t", 0), pod_group("a", 2, "t")], of("a"), True),
    "all basic": ([composite("t", 0), pod_group("a", 0, "t")], of("a"), False),
    "below basic composites": (
        [composite("t", 0), composite("m", 0, "t"), pod_group("a", 2, "m")],
        of("a"),
        True,
    ),
    "a gang below a basic composite": (
        [composite("t", 0), composite("m", 1, "t"), pod_group("a", 2, "m")],
        tree("m"),
        True,
    ),
    "below a basic composite with a key": (
        [composite("t", 0, key=RACK), pod_group("a", 2, "t")],
        tree("t"),
        True,
    ),
    "below a basic composite that is ill-formed": (
        [composite("t", 0, priority=-1.5), pod_group("a", 2, "t")],
        tree("t"),
        True,
    ),
    "of four levels": (
        [composite("t", 1), composite("u", 1, "t"), composite("v", 1, "u"), pod_group("a", 2, "v")],
        tree("t"),
        True,
    ),
}


@pytest.mark.parametrize("name", ROOTS)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_root_of_a_pod_group(name: str, backwards: bool) -> None:
    groups, expected, makes_gang = ROOTS[name]
    root = Forest(reversed(groups) if backwards else groups).root_of(of("a"))
    assert (root.key, root.makes_gang) == (expected, makes_gang)


def test_groups_come_and_go() -> None:
    trees = Forest([pod_group("a", 2, "t")])
    assert trees.gang(tree("t")) is None
    trees.put(tree("t"), composite("t", 2))
    facts = trees.gang(tree("t"))
    assert facts is not None
    assert str(facts.missing).startswith("waiting for 1 more group: 1 of 2 are here")
    trees.put(of("b"), pod_group("b", 3, "t"))
    facts = trees.gang(tree("t"))
    assert facts is not None
    assert (facts.missing, facts.role_min) == (None, {"a": 2, "b": 3})
    assert (trees.gang(of("a")), list(trees.pod_groups_below(tree("t")))) == (None, [of("a"), of("b")])
    trees.put(tree("t"), None)
    assert trees.gang(tree("t")) is None
    trees.put(of("b"), None)
    trees.put(of("a"), pod_group("a", 2))
    assert (trees.root_of(of("a")).key, list(trees.pod_groups_below(tree("t")))) == (of("a"), [])


# --- bad trees -------------------------------------------------------------------------------------

CIRCLES: dict[str, tuple[list[PodGroup], str]] = {
    "its own parent": (
        [composite("t", 1, "t"), pod_group("a", 1, "t")],
        'compositepodgroup/ns/t: spec.parentCompositePodGroupName is "t", expected no circle of groups: '
        "t → t",
    ),
    "two parents of each other": (
        [composite("t", 1, "u"), composite("u", 1, "t"), pod_group("a", 1, "t")],
        'compositepodgroup/ns/t: spec.parentCompositePodGroupName is "u", expected no circle of groups: '
        "t → u → t",
    ),
    "basic ones": (
        [composite("t", 0, "u"), composite("u", 0, "t"), pod_group("a", 0, "t")],
        'compositepodgroup/ns/t: spec.parentCompositePodGroupName is "u", expected no circle of groups: '
        "t → u → t",
    ),
    "five levels": (
        [*(composite(f"c{level}", 1, f"c{level + 1}") for level in range(4)), pod_group("a", 1, "c0")],
        'podgroup/ns/a: spec.parentCompositePodGroupName is "c0", expected a group whose tree has at most 4 '
        "levels, of which the last is for PodGroups",
    ),
    "a long circle": (
        [*(composite(f"c{level}", 1, f"c{(level + 1) % 9}") for level in range(9)), pod_group("a", 1, "c0")],
        'podgroup/ns/a: spec.parentCompositePodGroupName is "c0", expected a group whose tree has at most 4',
    ),
}


@pytest.mark.parametrize("name", CIRCLES)
def test_a_pod_group_whose_ancestors_can_t_be_followed_is_refused(name: str) -> None:
    groups, says = CIRCLES[name]
    facts = Forest(groups).gang(of("a"))
    assert facts is not None
    (sentence,) = sentences(facts)
    assert sentence.startswith(says)


def test_a_tree_with_a_part_too_deep_is_refused() -> None:
    deep = [composite("t", 1), composite("u", 1, "t"), composite("v", 1, "u"), composite("w", 1, "v")]
    (sentence,) = sentences(gang(*deep, pod_group("a", 1, "t")))
    assert sentence.startswith('compositepodgroup/ns/w: spec.parentCompositePodGroupName is "v", expected a')


@pytest.mark.parametrize("one_more", [pod_group("a", 1, "t"), composite("a", 1, "t")])
def test_a_tree_has_so_many_groups(one_more: PodGroup) -> None:
    many = [pod_group(f"p{number}", 1, "t") for number in range(MAX_GROUPS)]
    assert gang(composite("t", 1), *many).causes == ()
    (sentence,) = sentences(gang(composite("t", 1), *many, one_more))
    says = 'number of groups below it is "more than 256", expected at most 256'
    assert sentence == f"compositepodgroup/ns/t: {says}"


DIFFERENCES: dict[str, tuple[PodGroup, str]] = {
    "priority": (
        pod_group("a", 1, "t", priority=5),
        'podgroup/ns/a: spec.priority is "5", expected 1000, as CompositePodGroup ns/t has it',
    ),
    "Workload": (
        pod_group("a", 1, "t", workloadRef={"workloadName": "v", "templateName": "t"}),
        'podgroup/ns/a: spec.workloadRef.workloadName is "v", expected w, as CompositePodGroup ns/t has it',
    ),
    "a limit of the gang": (
        pod_group("a", 1, "t", annotations={"gpu.topology/max-per": "node=2"}),
        'podgroup/ns/a: annotation gpu.topology/max-per is "node=2", expected none: the limit is for a whole',
    ),
    "its own mistake": (
        pod_group("a", 1, "t", disruptionMode={"single": {}, "all": {}}),
        'podgroup/ns/a: spec.disruptionMode is "all, single", expected either single or all',
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_groups_of_one_tree_agree(name: str) -> None:
    odd, says = DIFFERENCES[name]
    (sentence,) = sentences(gang(composite("t", 1, priority=1000), odd))
    assert sentence.startswith(says)


# --- pods ------------------------------------------------------------------------------------------

IN_A = {"schedulingGroup": {"podGroupName": "a"}}


def test_a_pod_of_a_tree_is_in_the_gang_of_the_root_and_in_the_role_of_its_pod_group() -> None:
    root = composite("t", 1)
    pod = pods.read(pod_object(spec=IN_A), group=root)
    assert pod.claim == GangClaim(COMPOSITE, "t", by_object=True, topology_request=TopologyRequest("a"))
    assert pod.causes == ()


def test_a_role_of_its_own_is_a_contradiction() -> None:
    pod = pods.read(
        pod_object(spec=IN_A, annotations={"gpu.topology/role": "worker"}), group=composite("t", 1)
    )
    (cause,) = pod.causes
    expected = "expected none: in CompositePodGroup ns/t the role of a pod is its PodGroup a"
    assert str(cause) == f'pod/ns/p: role is "worker", {expected}'


def test_another_gang_of_the_pod_is_a_contradiction() -> None:
    annotations = {"gpu.topology/group": "mine", "gpu.topology/min-member": "2"}
    pod = pods.read(pod_object(spec=IN_A, annotations=annotations), group=composite("t", 1))
    (cause,) = pod.causes
    says = "names two different gangs or counts: CompositePodGroup: gang t and annotations: gang mine of 2"
    assert str(cause) == f"pod p {says}"


# --- drawn trees -----------------------------------------------------------------------------------


def drawn_tree(chance: random.Random) -> list[PodGroup]:
    """A tree of up to four levels, with its root first."""
    groups = [composite("t", chance.randint(1, 3))]
    depths = {"t": 1}
    for number in range(chance.randint(1, 8)):
        parent, name = chance.choice(sorted(depths)), f"g{number}"
        if depths[parent] < MAX_DEPTH - 1 and chance.random() < 0.4:
            groups.append(composite(name, chance.randint(0, 2), parent))
            depths[name] = depths[parent] + 1
        else:
            groups.append(pod_group(name, chance.randint(0, 3), parent))
    return groups


def starts(group: PodGroup, groups: list[PodGroup], counts: dict[str, int]) -> bool:
    """Whether a group starts with these members, read off the API alone."""
    least = group.min_member or 1
    if group.dialect == KUBERNETES:
        return counts[group.name] >= least
    return sum(starts(child, groups, counts) for child in groups if child.parent == group.name) >= least


def is_whole(group: PodGroup, groups: list[PodGroup], counts: dict[str, int]) -> bool:
    """Whether a group starts, or no pod below it does; and so below it."""
    children = [child for child in groups if group.dialect == COMPOSITE and child.parent == group.name]
    if members_below(group, groups, counts) and not starts(group, groups, counts):
        return False
    return all(is_whole(child, groups, counts) for child in children)


def members_below(group: PodGroup, groups: list[PodGroup], counts: dict[str, int]) -> int:
    if group.dialect == KUBERNETES:
        return counts[group.name]
    return sum(members_below(child, groups, counts) for child in groups if child.parent == group.name)


@pytest.mark.parametrize("seed", range(200))
def test_a_drawn_tree_starts_as_its_groups_state(seed: int) -> None:
    chance = random.Random(seed)
    groups = drawn_tree(chance)
    root, leaves = groups[0], [group.name for group in groups if group.dialect == KUBERNETES]
    facts = gang(*chance.sample(groups, len(groups)))
    assert (facts.missing is None) == starts(root, groups, dict.fromkeys(leaves, 9))
    quorum = facts.quorum or Quorum(
        len(leaves), tuple(leaf(name, facts.role_min[name]) for name in sorted(leaves))
    )
    for _ in range(50):
        counts = {name: chance.randint(0, 3) for name in leaves}
        expected = starts(root, groups, counts) and is_whole(root, groups, counts)
        assert quorum.starts(counts) == expected
