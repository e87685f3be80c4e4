"""CompositePodGroups of Kubernetes' own API: each field, and bad input with its sentence."""

from __future__ import annotations

from typing import Any

import pytest

from muster.dialects.gangs import native, podgroups
from muster.domain.pod import COMPOSITE
from muster.domain.podgroup import PodGroup
from tests.dialects.objects import custom_object

API = "scheduling.k8s.io/v1alpha3"
RACK = "topology.kubernetes.io/rack"
WORKLOAD = {"workloadRef": {"workloadName": "w", "templateName": "t"}}
GANG: dict[str, Any] = {"schedulingPolicy": {"gang": {"minGroupCount": 2}}, **WORKLOAD}
BASIC: dict[str, Any] = {"schedulingPolicy": {"basic": {}}, **WORKLOAD}
KEY = {"schedulingConstraints": {"topology": [{"key": RACK}]}}


def group(spec: Any, annotations: dict[str, str] | None = None, api: str = API) -> PodGroup:
    return podgroups.read(custom_object(api, COMPOSITE, "t", spec, annotations=annotations))


def sentences(facts: PodGroup) -> list[str]:
    return [str(cause) for cause in facts.causes]


FIELDS = [
    "parentCompositePodGroupName",
    "workloadRef.workloadName",
    "workloadRef.templateName",
    "schedulingPolicy.basic",
    "schedulingPolicy.gang.minGroupCount",
    "schedulingConstraints.topology[].key",
    "disruptionMode.single",
    "disruptionMode.all",
    "priorityClassName",
    "priority",
    "preemptionPolicy",
]
"""The fields of CompositePodGroupSpec, k8s.io/api scheduling/v1alpha3 v0.37.1."""

READ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "parentCompositePodGroupName": ({"parentCompositePodGroupName": "p"}, {"parent": "p"}),
    "workloadRef.workloadName": ({}, {"workload": "w"}),
    "workloadRef.templateName": ({}, {"problems": ()}),
    "schedulingPolicy.basic": (BASIC, {"makes_gang": False, "min_member": 1}),
    "schedulingPolicy.gang.minGroupCount": (GANG, {"makes_gang": True, "min_member": 2}),
    "schedulingConstraints.topology[].key": (
        {**BASIC, **KEY},
        {"makes_gang": True, "topology_request.required_scope": "rack"},
    ),
    "disruptionMode.single": ({"disruptionMode": {"single": {}}}, {"disruption": "single"}),
    "disruptionMode.all": ({"disruptionMode": {"all": {}}}, {"disruption": "all"}),
    "priorityClassName": ({"priorityClassName": "high"}, {"priority": None}),
    "priority": ({"priority": 1000}, {"priority": 1000}),
    "preemptionPolicy": ({"preemptionPolicy": "Never"}, {"preempts": False}),
}
"""Field → a spec with the field, and the facts that this field makes."""


def test_the_table_has_every_field() -> None:
    assert list(READ) == FIELDS
    first_parts = (field.partition(".")[0].partition("[")[0] for field in FIELDS)
    assert tuple(dict.fromkeys(first_parts)) == native.COMPOSITE_FIELDS


@pytest.mark.parametrize("api", native.APIS)
@pytest.mark.parametrize("field", FIELDS)
def test_each_field_is_read(field: str, api: str) -> None:
    spec, expected = READ[field]
    facts = group({**GANG, **spec}, api=api)
    assert facts.causes == ()
    for path, value in expected.items():
        holder: Any = facts
        for name in path.split("."):
            holder = getattr(holder, name)
        assert holder == value


def test_a_composite_and_a_pod_group_of_one_name_are_two() -> None:
    facts = group(GANG)
    assert (facts.key, facts.title) == (("ns", COMPOSITE, "t"), "CompositePodGroup ns/t")
    assert facts.priority is None


WHERE = "compositepodgroup/ns/t: "
BAD: dict[str, tuple[Any, str]] = {
    "no policy": (WORKLOAD, 'spec.schedulingPolicy is "", expected either basic or gang'),
    "two policies": (
        {**WORKLOAD, "schedulingPolicy": {"basic": {}, "gang": {"minGroupCount": 2}}},
        'spec.schedulingPolicy is "basic, gang", expected either basic or gang',
    ),
    "no minGroupCount": (
        {**WORKLOAD, "schedulingPolicy": {"gang": {}}},
        'spec.schedulingPolicy.gang.minGroupCount is "", expected how many groups must fit at once',
    ),
    "minGroupCount 0": (
        {**WORKLOAD, "schedulingPolicy": {"gang": {"minGroupCount": 0}}},
        'spec.schedulingPolicy.gang.minGroupCount is "0", expected a positive whole number',
    ),
    "the number of a PodGroup": (
        {**WORKLOAD, "schedulingPolicy": {"gang": {"minGroupCount": 2, "minCount": 2}}},
        'spec.schedulingPolicy.gang.minCount is "", expected none of this name: known are minGroupCount',
    ),
    "no Workload": (
        {"schedulingPolicy": {"basic": {}}},
        'spec.workloadRef is "not given", expected workloadName and templateName: the API server refuses a '
        "group of a tree without them",
    ),
    "a parent in another namespace": (
        {**GANG, "parentCompositePodGroupName": "other/p"},
        'spec.parentCompositePodGroupName is "other/p", expected the name of a CompositePodGroup in '
        "namespace ns",
    ),
    "several keys": (
        {**GANG, "schedulingConstraints": {"topology": [{"key": RACK}, {"key": "example.com/row"}]}},
        'spec.schedulingConstraints.topology is "a list of 2", expected a list of at most 1',
    ),
    "a priority of the system": (
        {**GANG, "priority": 2_000_000_000},
        'spec.priority is "2000000000", expected a whole number of at most 1,000,000,000',
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_names_the_object_and_the_field(name: str) -> None:
    spec, says = BAD[name]
    facts = group(spec)
    assert facts.makes_gang  # the pods below it must hear the cause
    assert any(sentence.startswith(f"{WHERE}{says}") for sentence in sentences(facts)), sentences(facts)


def test_a_claim_of_a_composite_is_an_unknown_field() -> None:
    facts = group({**GANG, "resourceClaims": []})
    assert (facts.causes, facts.problems) == ((), ("spec.resourceClaims is not read",))


def test_annotations_add_scopes_alone() -> None:
    annotations = {"gpu.topology/scope": "rack", "gpu.topology/preferred-scopes": "node"}
    facts = group(GANG, annotations)
    assert facts.causes == ()
    request = facts.topology_request
    assert (request.required_scope, request.preferred_scopes) == ("rack", ("node",))
    (sentence,) = sentences(group(GANG, {"gpu.topology/size": "4"}))
    says = 'annotation gpu.topology/size is "4", expected none: of these annotations a CompositePodGroup has'
    assert sentence.startswith(f"{WHERE}{says}")
    (sentence,) = sentences(group({**GANG, **KEY}, {"gpu.topology/scope": "node"}))
    assert sentence.startswith(f'{WHERE}annotation gpu.topology/scope is "node", expected rack, as spec.')
