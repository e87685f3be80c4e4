"""PodGroups of three APIs, KAI's topologies and subgroups; what pods say that name them; any input at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.dialects.gangs import podgroups
from muster.dialects.gangs.subgroups import KaiTopology, Topologies
from muster.dialects.objects import CustomObject
from muster.dialects.pods import pods
from muster.domain.causes.ill_formed import BadValue, DialectsDisagree
from muster.domain.constraints import Subgroup
from muster.domain.levels import FabricLevel
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import OURS, PodGroup, PodGroupStatus
from muster.domain.quorums import Leaf, Quorum
from muster.domain.request import RolePreference, SelectorTerm
from tests.dialects.objects import custom_object, pod_object

RACK, HOST = "topology.kubernetes.io/rack", "kubernetes.io/hostname"
ZONE, BLOCK = "topology.kubernetes.io/zone", "example.com/block"


def read(spec: Any, api: str = OURS, **more: Any) -> PodGroup:
    return podgroups.read(custom_object(api, "PodGroup", "g", spec), **more)


def kai(**spec: Any) -> PodGroup:
    return read(spec, podgroups.KAI_API)


def subgroup(
    name: str, count: int, parent: str = "", required: str = "", preferred: str = ""
) -> dict[str, Any]:
    levels = {"requiredTopologyLevel": required, "preferredTopologyLevel": preferred}
    group: dict[str, Any] = {"name": name, "minMember": count}
    group |= {"parent": parent} if parent else {}
    constraint = {key: level for key, level in levels.items() if level}
    return group | ({"topologyConstraint": constraint} if constraint else {})


def two_of_three(**levels: str) -> list[dict[str, Any]]:
    """Three leaves, and a parent of two of them."""
    return [subgroup("up", 1, **levels), subgroup("a", 1, "up"), subgroup("b", 1, "up"), subgroup("c", 1)]


TWO = frozenset({"a", "b"})


@dataclass(frozen=True)
class Case:
    """A PodGroup, and what it says of its gang: the required scope of the whole, those of its roles."""

    spec: dict[str, Any]
    min_member: int
    scope: str | None = None
    preferred: tuple[str, ...] = ()
    roles: dict[str, str | None] = field(default_factory=dict)
    api: str = OURS


CASES = {
    "a count alone": Case({"minMember": 4}, 4),
    "the recipe's training job": Case(
        {"minMember": 4, "queue": "training", "topologyPolicy": {"scope": "nvlink-domain"}},
        4,
        "nvlink-domain",
    ),
    "a label as scope": Case(
        {"minMember": 2, "topologyPolicy": {"scope": "example.com/row"}}, 2, "example.com/row"
    ),
    "coscheduling": Case(
        {"minMember": 3, "minResources": {"cpu": "3"}, "scheduleTimeoutSeconds": 10},
        3,
        api=podgroups.COSCHEDULING_API,
    ),
    "KAI: no count is one": Case({"queue": "q"}, 1, api=podgroups.KAI_API),
    "KAI: levels of the whole": Case(
        {
            "minMember": 2,
            "topologyConstraint": {
                "requiredTopologyLevel": "example.com/row",
                "preferredTopologyLevel": RACK,
            },
        },
        2,
        "example.com/row",
        ("rack",),
        api=podgroups.KAI_API,
    ),
    "KAI: the host is the node": Case(
        {"minMember": 2, "topologyConstraint": {"requiredTopologyLevel": HOST}},
        2,
        "node",
        api=podgroups.KAI_API,
    ),
    "KAI: subgroups add up": Case(
        {"minMember": 3, "subGroups": [subgroup("prefill", 2, required=RACK), subgroup("decode", 2)]},
        4,
        roles={"prefill": "rack", "decode": None},
        api=podgroups.KAI_API,
    ),
    "KAI: a parent of one leaf": Case(
        {"subGroups": [subgroup("up", 1, required=HOST), subgroup("leaf", 3, "up"), subgroup("other", 1)]},
        4,
        roles={"leaf": "node", "other": None},
        api=podgroups.KAI_API,
    ),
    "KAI: a parent of all leaves": Case(
        {
            "subGroups": [
                subgroup("all", 1, required=RACK, preferred=HOST),
                subgroup("a", 1, "all", required=HOST),
                subgroup("b", 2, "all"),
            ]
        },
        3,
        "rack",
        ("node",),
        {"a": "node", "b": None},
        api=podgroups.KAI_API,
    ),
    "KAI: the narrowest of the levels of all": Case(
        {
            "topologyConstraint": {"requiredTopologyLevel": ZONE, "preferredTopologyLevel": RACK},
            "subGroups": [
                subgroup("all", 1, required=RACK, preferred=HOST),
                subgroup("a", 1, "all"),
                subgroup("b", 2, "all"),
            ],
        },
        3,
        "rack",
        ("node", "rack"),
        {"a": None, "b": None},
        api=podgroups.KAI_API,
    ),
    "KAI: the narrowest of the levels of a leaf": Case(
        {"subGroups": [subgroup("up", 1, required=RACK), subgroup("leaf", 3, "up", HOST), subgroup("b", 1)]},
        4,
        roles={"leaf": "node", "b": None},
        api=podgroups.KAI_API,
    ),
    "KAI: a parent around what the whole requires": Case(
        {"topologyConstraint": {"requiredTopologyLevel": RACK}, "subGroups": two_of_three(required=ZONE)},
        3,
        "rack",
        roles={"a": None, "b": None, "c": None},
        api=podgroups.KAI_API,
    ),
    "KAI: one leaf is the whole": Case(
        {"subGroups": [subgroup("a", 2, required=RACK, preferred=HOST)]},
        2,
        "rack",
        ("node",),
        {"a": None},
        api=podgroups.KAI_API,
    ),
    "KAI: a leaf that may stay away": Case(
        {"subGroups": [subgroup("a", 2), subgroup("b", 0)], "minSubGroup": 2},
        2,
        roles={"a": None, "b": None},
        api=podgroups.KAI_API,
    ),
    "KAI: none that must come": Case(
        {"subGroups": [subgroup("a", 0)]}, 1, roles={"a": None}, api=podgroups.KAI_API
    ),
    "KAI's fields in our version": Case(
        {"minMember": 2, "subGroups": [subgroup("a", 2)], "topologyPolicy": {"scope": "zone"}},
        2,
        "zone",
        roles={"a": None},
    ),
    "null is a field not given": Case(
        {"minMember": 2, "queue": None, "topologyPolicy": {"scope": None, "affinity": None}}, 2
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_pod_group_says(case: Case) -> None:
    group = read(case.spec, case.api)
    assert group.causes == ()
    assert group.min_member == case.min_member
    assert group.topology_request == TopologyRequest(
        required_scope=case.scope, preferred_scopes=case.preferred
    )
    assert {
        role: topology_request.role_scope for role, topology_request in group.role_topology_requests.items()
    } == case.roles
    assert set(group.role_min) == set(case.roles)
    assert not case.roles or sum(group.role_min.values()) <= case.min_member


def of(name: str, least: int = 1) -> Leaf:
    return Leaf(frozenset({name}), least)


PARTIAL_STARTS: dict[str, tuple[dict[str, Any], int, Quorum]] = {
    # name: the spec, the fewest members that start it, the tree
    "replicas": (
        {"subGroups": [subgroup("a", 8), subgroup("b", 8), subgroup("c", 8)], "minSubGroup": 2},
        16,
        Quorum(2, (of("a", 8), of("b", 8), of("c", 8))),
    ),
    "a tree": (
        {"subGroups": two_of_three(), "minSubGroup": 1},
        1,
        Quorum(1, (Quorum(2, (of("a"), of("b"))), of("c"))),
    ),
    "some below a subgroup, all of the gang": (
        {"subGroups": [{"name": "up", "minSubGroup": 1}, *two_of_three()[1:]]},
        2,
        Quorum(2, (Quorum(1, (of("a"), of("b"))), of("c"))),
    ),
    "one that KAI's CRD filled in": (
        {"subGroups": [subgroup("a", 2), subgroup("b", 1)], "minSubGroup": 1, "minMember": 1},
        1,
        Quorum(1, (of("a", 2), of("b"))),
    ),
    "members that need not come": (
        {"subGroups": [subgroup("a", 0), subgroup("b", 1)], "minSubGroup": 1},
        1,
        Quorum(1, (of("a", 0), of("b"))),
    ),
}


@pytest.mark.parametrize(("spec", "least", "quorum"), PARTIAL_STARTS.values(), ids=PARTIAL_STARTS)
def test_fewer_subgroups_than_all_may_start(spec: dict[str, Any], least: int, quorum: Quorum) -> None:
    group = read(spec, podgroups.KAI_API)
    assert (group.causes, group.min_member, group.role_min) == ((), least, {})
    assert group.quorum == quorum


def test_the_recipes_affinity_is_node_selector_terms() -> None:
    terms = [
        {"key": "nvidia.com/nvswitch.present", "operator": "In", "values": ["true"]},
        {"key": "example.com/old", "operator": "DoesNotExist"},
        {"key": "example.com/age", "operator": "Lt", "values": ["5"]},
    ]
    spec = {"minMember": 2, "topologyPolicy": {"scope": "rack", "affinity": {"required": terms}}}
    group = read(spec)
    assert group.causes == ()
    assert group.required == (
        SelectorTerm("nvidia.com/nvswitch.present", "In", ("true",)),
        SelectorTerm("example.com/old", "DoesNotExist"),
        SelectorTerm("example.com/age", "Lt", ("5",)),
    )


def test_a_key_that_is_no_text_is_unknown_as_others_are() -> None:
    (cause,) = read({"minMember": 1, "topologyPolicy": {1: "a", "scope": "node", False: "b"}}).causes
    assert isinstance(cause, BadValue)
    assert cause.field == "spec.topologyPolicy.1"  # the first of them


def test_a_queue_of_any_length_is_no_name_of_a_metric() -> None:
    assert read({"minMember": 1, "queue": "q" * 253}).queue == "q" * 253
    (cause,) = read({"minMember": 1, "queue": "q" * 254}, podgroups.KAI_API).causes
    assert isinstance(cause, BadValue)
    assert (cause.field, cause.expected) == ("spec.queue", "at most 253 characters")


def test_a_list_that_is_too_long_is_not_shown() -> None:
    (cause,) = read({"minMember": 1, "subGroups": [subgroup("a", 1)] * 1_000}, podgroups.KAI_API).causes
    assert isinstance(cause, BadValue)
    assert (cause.value, cause.expected) == ("a list of 1000", "a list of at most 256")


def test_a_label_has_the_word_of_the_level_that_it_alone_gives() -> None:
    levels = (FabricLevel("block", ("example.com/block",)), FabricLevel("rack", (RACK, "example.com/rack")))
    spec = {"requiredTopologyLevel": "example.com/block", "preferredTopologyLevel": RACK}
    group = read({"minMember": 1, "topologyConstraint": spec}, levels=levels)
    # A rack may have its name from another label first, so the first label alone is not the level.
    assert group.topology_request == TopologyRequest(required_scope="block", preferred_scopes=(RACK,))


def test_a_level_must_be_one_of_its_topology() -> None:
    spec = {"topology": "dc", "requiredTopologyLevel": RACK}
    whole = {"minMember": 1, "topologyConstraint": spec}
    assert read(whole, topologies={"dc": KaiTopology((RACK, HOST))}).causes == ()
    assert read(whole, topologies=None).causes == ()
    (cause,) = read(whole, topologies={"dc": KaiTopology((HOST,))}).causes
    assert isinstance(cause, BadValue)
    assert cause.field == "spec.topologyConstraint.requiredTopologyLevel"
    (cause,) = read(whole, topologies={"other": KaiTopology((RACK,))}).causes
    assert isinstance(cause, BadValue)
    assert (cause.field, cause.value) == ("spec.topologyConstraint.topology", "dc")


ALIASES = KaiTopology((ZONE, RACK, HOST), {"room": ZONE, "rack": RACK, "host": HOST})
"""As in KAI's example of topology aliases (its pull request 1788)."""


@pytest.mark.parametrize(
    ("level", "scope"), {"room": "zone", "rack": "rack", "host": "node", RACK: "rack", ZONE: "zone"}.items()
)
def test_a_level_may_be_named_by_its_alias(level: str, scope: str) -> None:
    spec = {"minMember": 2, "topologyConstraint": {"topology": "dc", "requiredTopologyLevel": level}}
    group = read(spec, podgroups.KAI_API, topologies={"dc": ALIASES})
    assert (group.causes, group.topology_request.required_scope) == ((), scope)


def test_an_unknown_level_is_refused_with_the_aliases_beside_the_labels() -> None:
    spec = {"minMember": 2, "topologyConstraint": {"topology": "dc", "preferredTopologyLevel": "row"}}
    (cause,) = read(spec, podgroups.KAI_API, topologies={"dc": ALIASES}).causes
    assert isinstance(cause, BadValue)
    assert cause.expected == (f"a level of Topology dc: {ZONE} (or room), {RACK} (or rack), {HOST} (or host)")


@pytest.mark.parametrize(
    ("levels", "aliases"),
    [
        ([{"nodeLabel": "a", "alias": "x"}, {"nodeLabel": "b"}], {"x": "a"}),
        ([{"nodeLabel": "a", "alias": "x"}, {"nodeLabel": "b", "alias": "x"}], {"x": "a"}),
        ([{"nodeLabel": "a", "alias": "b"}, {"nodeLabel": "b"}], {}),
        ([{"nodeLabel": "a", "alias": 7}, {"alias": "x"}], {}),
    ],
)
def test_an_alias_names_one_level(levels: list[Any], aliases: dict[str, str]) -> None:
    topology = custom_object("kai.scheduler/v1alpha1", "Topology", "dc", {"levels": levels})
    assert podgroups.read_topology(topology).aliases == aliases


REFUSED: dict[str, tuple[dict[str, Any], Topologies | None, str, str]] = {
    # name: the spec, Topologies, the field, what is expected
    "two levels of which nobody knows how they lie": (
        {
            "topologyConstraint": {"requiredTopologyLevel": RACK},
            "subGroups": [subgroup("a", 1, required=BLOCK)],
        },
        None,
        "spec.subGroups[0].topologyConstraint.requiredTopologyLevel",
        "a level inside or around rack, which is required too",
    ),
    "more subgroups than all": (
        {"subGroups": two_of_three(), "minSubGroup": 3},
        None,
        "spec.minSubGroup",
        "a number from 1 to 2: 2 subgroups lie directly below",
    ),
    "no subgroups of all": (
        {"subGroups": two_of_three(), "minSubGroup": 0},
        None,
        "spec.minSubGroup",
        "a number from 1 to 2: 2 subgroups lie directly below",
    ),
    "more pods than some subgroups need": (
        {"subGroups": two_of_three(), "minSubGroup": 1, "minMember": 2},
        None,
        "spec.minMember",
        "at most 1, with which the subgroups start that minSubGroup asks for",
    ),
    "a deep tree of which some are enough": (
        {
            "subGroups": [
                subgroup("s0", 1),
                *(subgroup(f"s{i}", 1, f"s{i - 1}") for i in range(1, 17)),
                subgroup("t", 1),
            ],
            "minSubGroup": 1,
        },
        None,
        "spec.subGroups[16].parent",
        "at most 16 subgroups in each other, where minSubGroup is below their number",
    ),
    "a count below zero": (
        {"subGroups": [subgroup("a", -1)]},
        None,
        "spec.subGroups[0].minMember",
        "a whole number that is not negative: 0, 1, …",
    ),
}


@pytest.mark.parametrize(("spec", "topologies", "cause_field", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_the_planner_can_not_be_asked_for_is_refused_and_named(
    spec: dict[str, Any], topologies: Topologies | None, cause_field: str, expected: str
) -> None:
    (cause,) = read(spec, podgroups.KAI_API, topologies=topologies).causes
    assert isinstance(cause, BadValue)
    assert (cause.field, cause.expected) == (cause_field, expected)


def test_a_topology_says_which_level_lies_in_which() -> None:
    spec = {
        "topologyConstraint": {"topology": "dc", "requiredTopologyLevel": RACK},
        "subGroups": two_of_three(required=BLOCK),
    }
    group = read(spec, podgroups.KAI_API, topologies={"dc": KaiTopology((BLOCK, RACK))})
    assert (group.causes, group.topology_request.required_scope) == ((), "rack")
    assert group.subgroups == ()
    group = read(spec, podgroups.KAI_API, topologies={"dc": KaiTopology((RACK, BLOCK))})
    assert group.subgroups == (Subgroup("the level of subgroup up", BLOCK, TWO),)


SHARED: dict[str, tuple[dict[str, Any], tuple[Subgroup, ...]]] = {
    "a level for two of three leaves": (
        {"subGroups": two_of_three(required=RACK)},
        (Subgroup("the level of subgroup up", "rack", TWO),),
    ),
    "one inside what the whole requires": (
        {"topologyConstraint": {"requiredTopologyLevel": ZONE}, "subGroups": two_of_three(required=RACK)},
        (Subgroup("the level of subgroup up", "rack", TWO),),
    ),
    "one that the whole's keeps": (
        {"topologyConstraint": {"requiredTopologyLevel": RACK}, "subGroups": two_of_three(required=ZONE)},
        (),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_level_of_some_leaves_is_for_their_members_together(name: str) -> None:
    spec, shared = SHARED[name]
    group = read(spec, podgroups.KAI_API)
    assert (group.causes, group.subgroups) == ((), shared)


UP = RolePreference("subgroup up", ("rack",), TWO)
PREFERRED: dict[str, tuple[list[dict[str, Any]], dict[str, str], dict[str, tuple[str, ...]], Any]] = {
    # name: subgroups, the level of the whole, preferred scopes of leaves, preferences of several
    "a leaf's": ([subgroup("a", 1, preferred=RACK), subgroup("b", 1)], {}, {"a": ("rack",)}, ()),
    "that of some leaves": (two_of_three(preferred=RACK), {}, {}, (UP,)),
    "one that its own requirement keeps": (
        [subgroup("a", 1, required=HOST, preferred=RACK), subgroup("b", 1)],
        {},
        {},
        (),
    ),
    "one inside its own requirement": (
        [subgroup("a", 1, required=ZONE, preferred=RACK), subgroup("b", 1)],
        {},
        {"a": ("rack",)},
        (),
    ),
    "one that the whole's keeps": (two_of_three(preferred=RACK), {"requiredTopologyLevel": RACK}, {}, ()),
    "one of all leaves": ([subgroup("a", 1, preferred=RACK)], {}, {}, ()),
    "those around one leaf, the narrowest first": (
        [subgroup("up", 1, preferred=ZONE), subgroup("a", 1, "up", preferred=RACK), subgroup("b", 1)],
        {},
        {"a": ("rack", "zone")},
        (),
    ),
}


@pytest.mark.parametrize(("subgroups", "whole", "of_leaves", "of_several"), PREFERRED.values(), ids=PREFERRED)
def test_a_level_that_some_leaves_prefer(
    subgroups: list[dict[str, Any]], whole: dict[str, str], of_leaves: dict[str, Any], of_several: Any
) -> None:
    group = read({"subGroups": subgroups, "topologyConstraint": whole}, podgroups.KAI_API)
    stated = {
        leaf: topology_request.role_preferred
        for leaf, topology_request in group.role_topology_requests.items()
    }
    assert ({leaf: scopes for leaf, scopes in stated.items() if scopes}, group.causes) == (of_leaves, ())
    assert group.role_preferences == of_several


def test_a_topology_is_its_labels_widest_first() -> None:
    levels = [{"nodeLabel": "example.com/block"}, {"nodeLabel": 7}, {}, {"nodeLabel": HOST}]
    obj = custom_object("kai.scheduler/v1alpha1", "Topology", "dc", {"levels": levels})
    assert podgroups.read_topology(obj).labels == ("example.com/block", HOST)


def test_the_status_that_we_wrote_is_read_back_and_kais_is_not() -> None:
    status = {"phase": "Running", "needed": 2, "present": 2, "placed": 2, "running": 1, "domain": "node a"}
    for api, expected in (
        (OURS, PodGroupStatus("Running", 2, 2, 2, 1, "node a")),
        (podgroups.KAI_API, None),
    ):
        obj = msgspec.structs.replace(custom_object(api, "PodGroup", "g", {"minMember": 2}), status=status)
        assert podgroups.read(obj).status == expected


# --- pods that name one ----------------------------------------------------------------------------

GPU = {"nvidia.com/gpu": 1}
RECIPE = "scheduling.run.ai/"


def claim_and_pod(**fields: Any) -> tuple[GangClaim | None, Pod]:
    pod = pods.read(pod_object(**fields))
    return pod.claim, pod


def test_the_recipes_annotations() -> None:
    annotations = {
        f"{RECIPE}pod-group": "llm",
        f"{RECIPE}topology-role": "prefill",
        f"{RECIPE}topology-policy": "nvswitch-preference, nvlink-locality",
    }
    claim, pod = claim_and_pod(limits=GPU, annotations=annotations)
    topology_request = TopologyRequest(role="prefill", policies=("nvlink-locality", "nvswitch-preference"))
    assert claim == GangClaim("kai", "llm", topology_request=topology_request, by_object=True)
    assert pod.causes == ()


def test_a_policy_counts_without_a_group() -> None:
    claim, pod = claim_and_pod(limits=GPU, annotations={f"{RECIPE}topology-policy": "nvlink-locality"})
    assert claim is not None
    assert (claim.lone, claim.topology_request.policies, pod.causes) == (True, ("nvlink-locality",), ())


def test_kais_own_keys() -> None:
    claim, pod = claim_and_pod(
        annotations={"pod-group-name": "pg-train"}, labels={"kai.scheduler/subgroup-name": "leaf"}
    )
    assert claim == GangClaim(
        "kai", "pg-train", topology_request=TopologyRequest(role="leaf"), by_object=True
    )
    assert pod.causes == ()


def test_the_old_label_of_coscheduling() -> None:
    claim, _ = claim_and_pod(labels={"pod-group.scheduling.sigs.k8s.io": "train"})
    assert claim == GangClaim("coscheduling", "train", by_object=True)


def test_a_count_that_another_dialect_adds_is_kept() -> None:
    annotations = {f"{RECIPE}pod-group": "train", "gpu.topology/min-member": "4"}
    claim, pod = claim_and_pod(annotations=annotations)
    assert claim == GangClaim("kai", "train", min_member=4, by_object=True)
    claim, pod = claim_and_pod(
        annotations={f"{RECIPE}pod-group": "train"},
        labels={"gpu-topology": "train", "gpu-topology-replica": "3"},
    )
    assert claim == GangClaim("kai", "train", min_member=3, replicas=3, by_object=True)
    assert pod.causes == ()


def test_a_gang_has_one_pod_group() -> None:
    _, pod = claim_and_pod(
        annotations={f"{RECIPE}pod-group": "train"}, labels={"scheduling.x-k8s.io/pod-group": "train"}
    )
    assert pod.causes == (DialectsDisagree("p", "kai: gang train", "coscheduling: gang train"),)


DISAGREEING = {
    "two groups": (
        {"annotations": {f"{RECIPE}pod-group": "a", "pod-group-name": "b"}},
        ("kai: gang a", "kai: gang b"),
    ),
    "two roles": (
        {
            "annotations": {f"{RECIPE}topology-role": "a"},
            "labels": {"kai.scheduler/subgroup-name": "b"},
            "limits": GPU,
        },
        (f"{RECIPE}topology-role: role a", "kai.scheduler/subgroup-name: role b"),
    ),
    "a role of ours and another": (
        {"annotations": {f"{RECIPE}topology-role": "a", "gpu.topology/role": "b"}, "limits": GPU},
        ("annotations: role b", "kai: role a"),
    ),
}


@pytest.mark.parametrize(("fields", "names"), DISAGREEING.values(), ids=DISAGREEING)
def test_what_a_pod_says_twice_must_be_the_same(fields: dict[str, Any], names: tuple[str, str]) -> None:
    _, pod = claim_and_pod(**fields)
    assert pod.causes == (DialectsDisagree("p", *names),)


# --- any input -------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "rack", RACK, HOST, "", " ", "A_", "-", "x" * 400])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
COUNT = st.integers(-1, 4) | ANYTHING
CONSTRAINT = (
    st.fixed_dictionaries(
        {},
        optional={
            "topology": NAMES | ANYTHING,
            "requiredTopologyLevel": NAMES | ANYTHING,
            "preferredTopologyLevel": NAMES | ANYTHING,
        },
    )
    | ANYTHING
)
TERM = (
    st.fixed_dictionaries(
        {},
        optional={
            "key": NAMES | ANYTHING,
            "operator": st.sampled_from(["In", "Exists", "Gt", "?"]) | ANYTHING,
            "values": st.lists(NAMES | st.just("5"), max_size=2) | ANYTHING,
        },
    )
    | ANYTHING
)
SUBGROUP = (
    st.fixed_dictionaries(
        {"name": NAMES | ANYTHING},
        optional={
            "minMember": COUNT,
            "parent": NAMES | ANYTHING,
            "minSubGroup": COUNT,
            "topologyConstraint": CONSTRAINT,
        },
    )
    | ANYTHING
)
SPEC = (
    st.fixed_dictionaries(
        {},
        optional={
            "minMember": COUNT,
            "minSubGroup": COUNT,
            "queue": NAMES | ANYTHING,
            "topologyConstraint": CONSTRAINT,
            "subGroups": st.lists(SUBGROUP, max_size=5) | ANYTHING,
            "topologyPolicy": st.fixed_dictionaries(
                {},
                optional={
                    "scope": NAMES | ANYTHING,
                    "affinity": st.fixed_dictionaries({"required": st.lists(TERM, max_size=3) | ANYTHING})
                    | ANYTHING,
                },
            )
            | ANYTHING,
        },
    )
    | ANYTHING
)
TOPOLOGIES = st.none() | st.just({"a": KaiTopology((RACK, HOST), {"row": RACK})})
APIS = st.sampled_from([version for versions in podgroups.APIS for version in versions])


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SPEC, ANYTHING, APIS, TOPOLOGIES)
def test_any_pod_group_is_read(spec: Any, status: Any, api: str, topologies: Any) -> None:
    obj = CustomObject(api, custom_object(api, "PodGroup", "g", None).metadata, spec, status)
    group = podgroups.read(obj, topologies=topologies)
    hash((group.causes, group.topology_request, group.required))
    assert group.causes or (group.min_member or 0) > 0
    assert podgroups.read(obj, topologies=topologies) == group


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "levels": ANYTHING
            | st.lists(st.fixed_dictionaries({"nodeLabel": NAMES}, optional={"alias": NAMES | ANYTHING}))
        }
    )
    | ANYTHING
)
def test_any_topology_is_read(spec: Any) -> None:
    topology = podgroups.read_topology(custom_object("kai.scheduler/v1alpha1", "Topology", "t", spec))
    assert all(label.strip() for label in topology.labels)
    assert topology.aliases.keys().isdisjoint(topology.labels)
    assert set(topology.aliases.values()) <= set(topology.labels)


KEYS = st.sampled_from(
    [
        f"{RECIPE}pod-group",
        f"{RECIPE}topology-role",
        f"{RECIPE}topology-policy",
        "pod-group-name",
        "kai.scheduler/subgroup-name",
        "scheduling.x-k8s.io/pod-group",
        "pod-group.scheduling.sigs.k8s.io",
        "gpu.topology/group",
        "gpu.topology/role",
    ]
)
KEY_MAPS = st.dictionaries(KEYS, NAMES | st.text(max_size=8), max_size=4)


@settings(max_examples=300, deadline=None)
@given(KEY_MAPS, KEY_MAPS, st.sampled_from([{}, GPU]))
def test_any_pod_that_names_one_is_read(labels: Any, annotations: Any, limits: Any) -> None:
    pod = pods.read(pod_object(labels=labels, annotations=annotations, limits=limits))
    assert pod.claim is not None or (pod.causes == () and not limits)
    hash((pod.claim, pod.causes))
