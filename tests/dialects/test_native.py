"""PodGroups of Kubernetes' own API: each field, bad input with its sentence, and the pods that name them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.dialects.gangs import native, podgroups
from muster.dialects.objects import Metadata
from muster.dialects.pods import pods
from muster.dialects.settings import DEFAULTS
from muster.domain.causes.ill_formed import DialectsDisagree
from muster.domain.constraints import MaxPer
from muster.domain.levels import FabricLevel
from muster.domain.pod import KUBERNETES, GangClaim, Pod
from muster.domain.podgroup import SCHEDULED, Condition, PodGroup
from muster.domain.request import Segment
from muster.gangs.membership.group import complete_pod
from tests.dialects.objects import custom_object, pod_object

API = "scheduling.k8s.io/v1beta1"
RACK, BLOCK = "topology.kubernetes.io/rack", "example.com/block"
GANG = {"schedulingPolicy": {"gang": {"minCount": 4}}}
BASIC: dict[str, Any] = {"schedulingPolicy": {"basic": {}}}
GPU = {"nvidia.com/gpu": 1}


def group(spec: Any, annotations: dict[str, str] | None = None, api: str = API, **more: Any) -> PodGroup:
    return podgroups.read(custom_object(api, "PodGroup", "x", spec, annotations=annotations), **more)


def key(label: str) -> dict[str, Any]:
    return {"schedulingConstraints": {"topology": [{"key": label}]}}


def sentences(facts: PodGroup) -> list[str]:
    return [str(cause) for cause in facts.causes]


# --- fields ----------------------------------------------------------------------------------------

FIELDS = [
    "parentCompositePodGroupName",
    "workloadRef.workloadName",
    "workloadRef.templateName",
    "schedulingPolicy.basic",
    "schedulingPolicy.gang.minCount",
    "schedulingConstraints.topology[].key",
    "resourceClaims[].name",
    "resourceClaims[].resourceClaimName",
    "resourceClaims[].resourceClaimTemplateName",
    "disruptionMode.single",
    "disruptionMode.all",
    "priorityClassName",
    "priority",
    "preemptionPolicy",
]
"""The fields of PodGroupSpec, k8s.io/api scheduling/v1beta1 v0.37.1."""

WORKLOAD = {"workloadRef": {"workloadName": "w", "templateName": "t"}}
CLAIM = {"resourceClaims": [{"name": "c", "resourceClaimName": "shared"}]}
TEMPLATE_CLAIM = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}
READ: dict[str, tuple[dict[str, Any], dict[str, Any] | str]] = {
    "parentCompositePodGroupName": (
        {"parentCompositePodGroupName": "p", **WORKLOAD},
        {"parent": "p", "causes": ()},
    ),
    "workloadRef.workloadName": (WORKLOAD, {"workload": "w", "causes": (), "problems": ()}),
    "workloadRef.templateName": (WORKLOAD, {"causes": (), "problems": ()}),
    "schedulingPolicy.basic": (BASIC, {"makes_gang": False, "size": None}),
    "schedulingPolicy.gang.minCount": (GANG, {"makes_gang": True, "min_member": 4, "size": 4}),
    "schedulingConstraints.topology[].key": (key(RACK), {"topology_request.required_scope": "rack"}),
    "resourceClaims[].name": (TEMPLATE_CLAIM, {"causes": (), "problems": ()}),
    "resourceClaims[].resourceClaimName": (CLAIM, {"causes": (), "problems": ()}),
    "resourceClaims[].resourceClaimTemplateName": (TEMPLATE_CLAIM, {"causes": (), "problems": ()}),
    "disruptionMode.single": ({"disruptionMode": {"single": {}}}, {"disruption": "single"}),
    "disruptionMode.all": ({"disruptionMode": {"all": {}}}, {"disruption": "all"}),
    "priorityClassName": ({"priorityClassName": "high"}, {"priority": None, "causes": ()}),
    "priority": ({"priority": 1000}, {"priority": 1000}),
    "preemptionPolicy": ({"preemptionPolicy": "Never"}, {"preempts": False, "causes": ()}),
}
"""Field → a spec with the field, and the facts or the sentence that this field makes."""


def test_the_table_has_every_field() -> None:
    assert list(READ) == FIELDS
    assert (
        tuple(dict.fromkeys(field.partition(".")[0].partition("[")[0] for field in FIELDS)) == native.FIELDS
    )


@pytest.mark.parametrize("api", native.APIS)
@pytest.mark.parametrize("field", FIELDS)
def test_each_field_is_read_or_refused(field: str, api: str) -> None:
    spec, expected = READ[field]
    facts = group({**GANG, **spec}, api=api)
    if isinstance(expected, str):
        assert [sentence.startswith(expected) for sentence in sentences(facts)] == [True]
        return
    for path, value in expected.items():
        holder: Any = facts
        for name in path.split("."):
            holder = getattr(holder, name)
        assert holder == value


def test_by_default_preemption_takes_single_pods_and_no_priority_is_stated() -> None:
    facts = group(GANG)
    assert (facts.disruption, facts.priority, facts.causes, facts.problems) == ("single", None, (), ())
    assert (facts.key, facts.api_version, facts.uid) == (("ns", KUBERNETES, "x"), API, "u")


KEYS = {
    "kubernetes.io/hostname": "node",
    RACK: "rack",
    BLOCK: BLOCK,
    "example.com/row": "block",  # a level of the cluster has exactly this label
}


@pytest.mark.parametrize("label", KEYS)
def test_a_key_is_a_required_scope_by_its_label(label: str) -> None:
    levels = (FabricLevel("block", ("example.com/row",)), FabricLevel("rack", (RACK,)))
    assert group({**GANG, **key(label)}, levels=levels).topology_request.required_scope == KEYS[label]


def test_basic_with_a_key_is_a_gang_that_starts_with_one_pod() -> None:
    facts = group({**BASIC, **key(RACK)})
    assert (facts.makes_gang, facts.min_member, facts.size, facts.count_field) == (True, 1, None, "")
    assert facts.topology_request.required_scope == "rack"


# --- bad input -------------------------------------------------------------------------------------

WHERE = "podgroup/ns/x: "
BAD: dict[str, tuple[Any, str]] = {
    "no spec": (None, 'spec.schedulingPolicy is "", expected either basic or gang'),
    "a spec that is no object": ("gang", 'spec is "gang", expected an object'),
    "no policy": ({}, 'spec.schedulingPolicy is "", expected either basic or gang'),
    "an empty policy": (
        {"schedulingPolicy": {}},
        'spec.schedulingPolicy is "", expected either basic or gang',
    ),
    "two policies": (
        {"schedulingPolicy": {"basic": {}, "gang": {"minCount": 2}}},
        'spec.schedulingPolicy is "basic, gang", expected either basic or gang',
    ),
    "a policy of a later version": (
        {"schedulingPolicy": {"opportunistic": {}}},
        'spec.schedulingPolicy is "opportunistic", expected either basic or gang',
    ),
    "a policy that is a word": (
        {"schedulingPolicy": "gang"},
        'spec.schedulingPolicy is "gang", expected an object',
    ),
    "basic with a field": (
        {"schedulingPolicy": {"basic": {"minCount": 2}}},
        'spec.schedulingPolicy.basic is "minCount", expected no fields',
    ),
    "no minCount": (
        {"schedulingPolicy": {"gang": {}}},
        'spec.schedulingPolicy.gang.minCount is "", expected how many pods must fit at once',
    ),
    "minCount 0": (
        {"schedulingPolicy": {"gang": {"minCount": 0}}},
        'spec.schedulingPolicy.gang.minCount is "0", expected a positive whole number',
    ),
    "a field beside minCount": (
        {"schedulingPolicy": {"gang": {"minCount": 2, "maxCount": 4}}},
        'spec.schedulingPolicy.gang.maxCount is "", expected none of this name',
    ),
    "an unknown constraint": (
        {**GANG, "schedulingConstraints": {"topologies": []}},
        'spec.schedulingConstraints.topologies is "", expected none of this name: known are topology',
    ),
    "several keys": (
        {**GANG, "schedulingConstraints": {"topology": [{"key": RACK}, {"key": BLOCK}]}},
        'spec.schedulingConstraints.topology is "a list of 2", expected a list of at most 1',
    ),
    "no key": (
        {**GANG, "schedulingConstraints": {"topology": [{}]}},
        'spec.schedulingConstraints.topology[0].key is "", expected a string',
    ),
    "a preference in place of a key": (
        {**GANG, "schedulingConstraints": {"topology": [{"key": RACK, "mode": "Preferred"}]}},
        'spec.schedulingConstraints.topology[0].mode is "", expected none of this name: known are key',
    ),
    "a key that is no label": (
        {**GANG, **key("no label")},
        'spec.schedulingConstraints.topology[0].key is "no label", expected a label key of nodes',
    ),
    "a key that is another scope's word": (
        {**GANG, **key("rack")},
        'spec.schedulingConstraints.topology[0].key is "rack", expected another node label: rack is a word',
    ),
    "half a Workload": (
        {**GANG, "workloadRef": {"workloadName": "w"}},
        'spec.workloadRef.templateName is "not given", expected at most 253 lower-case letters, digits, '
        "'-' and '.': the API server refuses a workloadRef without it",
    ),
    "a parent in another namespace": (
        {**GANG, **WORKLOAD, "parentCompositePodGroupName": "other/tree"},
        'spec.parentCompositePodGroupName is "other/tree", expected the name of a CompositePodGroup in '
        "namespace ns",
    ),
    "a parent without a Workload": (
        {**GANG, "parentCompositePodGroupName": "tree"},
        'spec.workloadRef is "not given", expected workloadName and templateName: the API server refuses a '
        "group of a tree without them",
    ),
    "two disruption modes": (
        {**GANG, "disruptionMode": {"single": {}, "all": {}}},
        'spec.disruptionMode is "all, single", expected either single or all',
    ),
    "a priority that is a word": (
        {**GANG, "priority": "high"},
        'spec.priority is "high", expected a whole number of at most 1,000,000,000',
    ),
    "a priority of the system": (
        {**GANG, "priority": 2_000_000_000},
        'spec.priority is "2000000000", expected a whole number of at most 1,000,000,000',
    ),
    "a priority class that is no name": (
        {**GANG, "priorityClassName": "No Name"},
        'spec.priorityClassName is "No Name", expected the name of a PriorityClass',
    ),
    "a preemption policy that does not exist": (
        {**GANG, "preemptionPolicy": "Always"},
        'spec.preemptionPolicy is "Always", expected either PreemptLowerPriority or Never',
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_names_the_object_and_the_field(name: str) -> None:
    spec, says = BAD[name]
    facts = group(spec)
    assert facts.makes_gang  # its pods must hear the cause
    assert any(sentence.startswith(f"{WHERE}{says}") for sentence in sentences(facts)), sentences(facts)


def test_an_unknown_field_beside_the_known_is_a_problem() -> None:
    facts = group({**GANG, "queue": "a"})
    assert (facts.causes, facts.problems) == ((), ("spec.queue is not read",))


# --- annotations -----------------------------------------------------------------------------------


def test_annotations_add_what_the_api_lacks() -> None:
    annotations = {
        "gpu.topology/size": "8",
        "gpu.topology/min-member": "4",
        "gpu.topology/preferred-scopes": "node",
        "gpu.topology/segment-size": "2",
        "gpu.topology/segment-scope": "nvlink-domain",
        "gpu.topology/max-per": "node=2",
        "example.com/team": "a",
    }
    facts = group({**GANG, **key(RACK)}, annotations)
    assert facts.causes == ()
    assert (facts.min_member, facts.size) == (4, 8)
    request = facts.topology_request
    assert (request.required_scope, request.preferred_scopes) == ("rack", ("node",))
    assert request.segments == (Segment(2, "nvlink-domain"),)
    assert request.per_scope == (MaxPer("node", 2),)


def test_an_annotated_scope_makes_a_gang_of_a_basic_pod_group() -> None:
    facts = group(BASIC, {"gpu.topology/scope": "rack"})
    assert (facts.makes_gang, facts.topology_request.required_scope) == (True, "rack")


BAD_ANNOTATIONS: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "another number": (
        GANG,
        {"gpu.topology/min-member": "8"},
        'annotation gpu.topology/min-member is "8", expected 4, as spec.schedulingPolicy.gang.minCount is',
    ),
    "a number of a basic group": (
        BASIC,
        {"gpu.topology/min-member": "8"},
        'annotation gpu.topology/min-member is "8", expected none: spec.schedulingPolicy.gang.minCount',
    ),
    "too small a size": (
        GANG,
        {"gpu.topology/size": "3"},
        'annotation gpu.topology/size is "3", expected at least spec.schedulingPolicy.gang.minCount, which',
    ),
    "another scope": (
        {**GANG, **key(RACK)},
        {"gpu.topology/scope": "node"},
        'annotation gpu.topology/scope is "node", expected rack, as spec.schedulingConstraints.topology',
    ),
    "a role": (
        GANG,
        {"gpu.topology/role": "worker"},
        'annotation gpu.topology/role is "worker", expected none: it is for pods, and this is a PodGroup',
    ),
    "a misspelt key": (
        GANG,
        {"gpu.topology/scop": "rack"},
        'gpu.topology/scop is "rack", expected none: did you mean gpu.topology/scope?',
    ),
    "a value that can't be read": (
        GANG,
        {"gpu.topology/max-per": "many"},
        'gpu.topology/max-per is "many", expected as in rack=2,node=1',
    ),
}


@pytest.mark.parametrize("name", BAD_ANNOTATIONS)
def test_annotations_contradict_no_field(name: str) -> None:
    spec, annotations, says = BAD_ANNOTATIONS[name]
    assert [sentence.startswith(f"{WHERE}{says}") for sentence in sentences(group(spec, annotations))] == [
        True
    ]


# --- annotations of its Workload -------------------------------------------------------------------


def with_workload(
    annotations: dict[str, str], spec: dict[str, Any] | None = None, of_group: dict[str, str] | None = None
) -> PodGroup:
    """The PodGroup of a Workload with these annotations."""
    facts = group({**GANG, **WORKLOAD, **(spec or {})}, of_group)
    workload = Metadata("w", namespace="ns", annotations=annotations)
    return native.add_workload(facts, native.read_workload(workload))


def test_annotations_of_a_workload_add_constraints() -> None:
    request = with_workload(
        {
            "gpu.topology/scope": "rack",
            "gpu.topology/preferred-scopes": "node",
            "gpu.topology/max-per": "node=2",
            "gpu.topology/segment-size": "2",
            "gpu.topology/segment-scope": "nvlink-domain",
            "example.com/team": "a",
        }
    ).topology_request
    assert (request.required_scope, request.preferred_scopes) == ("rack", ("node",))
    assert (request.per_scope, request.segments) == ((MaxPer("node", 2),), (Segment(2, "nvlink-domain"),))


def test_a_workload_is_the_weakest_voice() -> None:
    """Without a contradiction: a Workload states what is usual for all its PodGroups."""
    of_workload = {"gpu.topology/scope": "node", "gpu.topology/preferred-scopes": "rack"}
    by_field = with_workload(of_workload, key(RACK))
    by_annotation = with_workload(of_workload, of_group={"gpu.topology/scope": "rack"})
    for facts in (by_field, by_annotation):
        assert facts.causes == ()
        request = facts.topology_request
        assert (request.required_scope, request.preferred_scopes) == ("rack", ("rack",))
    pod = member(by_field, annotations={"gpu.topology/preferred-scopes": "node"})
    claim = complete_pod(pod, {by_field.key: by_field}).claim
    assert claim is not None
    assert claim.topology_request.preferred_scopes == ("node",)


def test_a_workload_makes_no_gang_of_a_basic_podgroup() -> None:
    facts = with_workload({"gpu.topology/scope": "rack", "gpu.topology/scop": "rack"}, BASIC)
    assert (facts.makes_gang, facts.topology_request.required_scope, facts.causes) == (False, None, ())


BAD_OF_WORKLOADS = {
    "gpu.topology/min-member": "it is for a PodGroup, and a Workload may have several",
    "gpu.topology/size": "it is for a PodGroup, and a Workload may have several",
    "gpu.topology/rank": "it is for pods, and this is a Workload",
    "gpu.topology/role": "it is for pods, and this is a Workload",
    "gpu.topology/preemptible": "it is for pods, and this is a Workload",
    "gpu.topology/min-runtime": "it is for pods, and this is a Workload",
    "gpu.topology/group": "it is for pods, and this is a Workload",
}


@pytest.mark.parametrize("name", BAD_OF_WORKLOADS)
def test_what_a_workload_can_t_state_is_refused(name: str) -> None:
    expected = f'workload/ns/w: annotation {name} is "4", expected none: {BAD_OF_WORKLOADS[name]}'
    assert sentences(with_workload({name: "4"})) == [expected]


def test_a_misspelt_annotation_of_a_workload_is_refused() -> None:
    (sentence,) = sentences(with_workload({"gpu.topology/scop": "rack"}))
    assert sentence.startswith('workload/ns/w: gpu.topology/scop is "rack", expected none: did you mean')


# --- pods ------------------------------------------------------------------------------------------

IN_GROUP = {"schedulingGroup": {"podGroupName": "x"}}
OF_X = GangClaim(KUBERNETES, "x", by_object=True)


def member(facts: PodGroup | None, spec: dict[str, Any] | None = None, **fields: Any) -> Pod:
    return pods.read(pod_object(spec={**IN_GROUP, **(spec or {})}, **fields), group=facts)


def completed(facts: PodGroup, **fields: Any) -> Pod:
    return complete_pod(member(facts, **fields), {facts.key: facts})


@pytest.mark.parametrize("facts", [None, group(GANG), group({**BASIC, **key(RACK)}), group({})])
def test_a_pod_belongs_to_the_group_that_it_names_even_before_the_group_is_there(
    facts: PodGroup | None,
) -> None:
    pod = member(facts)
    assert (pod.claim, pod.causes) == (OF_X, ())


def test_in_a_basic_group_the_other_words_of_a_pod_decide() -> None:
    basic = group(BASIC)
    alone = member(basic, limits=GPU)
    assert alone.claim is not None
    assert alone.claim.lone
    annotations = {"gpu.topology/group": "mine", "gpu.topology/min-member": "2"}
    in_another_gang = member(basic, annotations=annotations)
    assert in_another_gang.claim == GangClaim("annotations", "mine", min_member=2)
    without_gpus = member(basic)
    assert without_gpus.claim is not None  # the shim holds the pod, so it gets a verdict
    assert without_gpus.claim.lone


def test_a_pod_of_another_scheduler_is_no_member() -> None:
    assert member(group(GANG), scheduler="default-scheduler").claim is None


@pytest.mark.parametrize("name", [None, "", "No Name"])
def test_a_group_without_a_name_is_refused(name: str | None) -> None:
    pod = pods.read(pod_object(spec={"schedulingGroup": {"podGroupName": name}}))
    (cause,) = pod.causes
    assert str(cause).startswith("pod/ns/p: spec.schedulingGroup.podGroupName is ")
    assert "expected the name of a PodGroup in namespace ns" in str(cause)


def test_another_gang_of_the_pod_is_a_contradiction() -> None:
    annotations = {"gpu.topology/group": "mine", "gpu.topology/min-member": "2"}
    pod = member(group(GANG), annotations=annotations)
    assert pod.causes == (DialectsDisagree("p", "PodGroup: gang x", "annotations: gang mine of 2"),)
    of_kai = member(group(GANG), annotations={"scheduling.run.ai/pod-group": "x"})
    assert of_kai.causes == (DialectsDisagree("p", "PodGroup: gang x", "kai: gang x"),)


def test_a_number_of_the_pod_must_be_min_count() -> None:
    same = completed(group(GANG), annotations={"gpu.topology/min-member": "4", "gpu.topology/size": "8"})
    assert same.causes == ()
    assert same.claim is not None
    assert (same.claim.min_member, same.claim.size) == (4, 8)
    other = completed(group(GANG), annotations={"gpu.topology/min-member": "3"})
    (cause,) = other.causes
    assert str(cause) == (
        "pod p has gpu.topology/min-member: 3, and PodGroup ns/x has spec.schedulingPolicy.gang.minCount: 4"
    )


def test_the_nearest_annotation_wins() -> None:
    facts = group(GANG, {"gpu.topology/preferred-scopes": "rack", "gpu.topology/max-per": "node=2"})
    pod = completed(facts, annotations={"gpu.topology/preferred-scopes": "node"})
    assert pod.topology_request.preferred_scopes == ("node",)
    assert pod.topology_request.per_scope == (MaxPer("node", 2),)


def test_pods_of_another_priority_are_refused() -> None:
    facts = group({**GANG, "priority": 1000})
    assert completed(facts, spec={"priority": 1000}).causes == ()
    (cause,) = completed(facts).causes
    expected = "expected 1000, as PodGroup ns/x has it: set one priorityClassName in both"
    assert str(cause) == f'pod/ns/p: spec.priority is "0", {expected}'
    assert completed(facts, node="n").causes == ()  # it runs, whatever its group states


def test_pods_of_another_scheduler_are_named() -> None:
    foreign = ("p", "other")
    refused = native.check_scheduler(group(GANG), foreign, DEFAULTS)
    (sentence,) = sentences(refused)
    expected = "expected muster, since PodGroup ns/x has pods of that scheduler too"
    assert sentence == f'pod/ns/p: spec.schedulerName is "other", {expected}'
    assert native.check_scheduler(group(GANG), None, DEFAULTS) == group(GANG)
    assert native.check_scheduler(group(BASIC), foreign, DEFAULTS) == group(BASIC)


def test_only_living_pods_of_other_schedulers_count() -> None:
    theirs = pod_object(scheduler="other", spec=IN_GROUP)
    ended = pod_object(scheduler="other", spec=IN_GROUP, status={"phase": "Succeeded"})
    assert native.counts_as_foreign(theirs, DEFAULTS)
    assert not native.counts_as_foreign(ended, DEFAULTS)
    assert not native.counts_as_foreign(pod_object(spec=IN_GROUP), DEFAULTS)
    assert not native.counts_as_foreign(pod_object(scheduler="other"), DEFAULTS)


# --- the condition that an object shows -------------------------------------------------------------

TRUE = {"type": SCHEDULED, "status": "True", "reason": "Scheduled"}
OTHER = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
SHOWN: dict[str, tuple[Any, Condition | None]] = {
    "no status": (None, None),
    "no conditions": ({"resourceClaimStatuses": []}, None),
    "the condition among others": ({"conditions": [OTHER, TRUE]}, Condition(SCHEDULED, True, "Scheduled")),
    "another condition": ({"conditions": [OTHER]}, None),
    "an unknown status": ({"conditions": [TRUE | {"status": "Unknown"}]}, None),
    "no condition at all": ({"conditions": [TRUE | {"reason": 1}]}, None),
    "numbers": ({"conditions": [1, {"type": 2}]}, None),
    "a text": ("x", None),
    "conditions of another type": ({"conditions": {"type": SCHEDULED}}, None),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_shown_condition_is_read(name: str) -> None:
    status, expected = SHOWN[name]
    obj = msgspec.structs.replace(custom_object(API, "PodGroup", "x", GANG), status=status)
    assert podgroups.read(obj).status == expected
