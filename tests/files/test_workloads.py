"""`muster place` on Workloads and on Jobs with spec.scheduling: the PodGroups that controllers make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.adapters.files.reading.capture import capture, text_of
from muster.adapters.files.reading.notes import NotesByObject
from muster.adapters.files.reading.sources import Document
from muster.adapters.files.reading.workloads import with_pod_groups
from muster.adapters.kube.client import KubeClient
from muster.dialects.gangs import native
from tests.adapters.fake_api import FakeApi, kubeconfig
from tests.files.manifests import Object, controller, decisions, node, nodes_of, place, pod, spec, write

API = "scheduling.k8s.io/v1beta1"
RACK = "topology.kubernetes.io/rack"
RACKS = [node("a", 4, "r1"), node("b", 4, "r1"), node("c", 8, "r2")]
IN_RACK = {"topology": [{"key": RACK}]}


def gang(min_count: int) -> Object:
    return {"gang": {"minCount": min_count}}


def template(name: str = "t", min_count: int = 2, **more: Any) -> Object:
    return {"name": name, "schedulingPolicy": gang(min_count), **more}


def workload(*templates: Object, name: str = "w", api: str = API, **more: Any) -> Object:
    return controller("Workload", api, name, podGroupTemplates=list(templates), **more)


def tree(*templates: Object, **more: Any) -> Object:
    return controller("Workload", API, "w", compositePodGroupTemplates=list(templates), **more)


def members(group: str, count: int = 2, gpus: int = 4) -> list[Object]:
    return [
        pod(f"{group}-{rank}", gpus=gpus, schedulingGroup={"podGroupName": group}) for rank in range(count)
    ]


def pod_group(name: str, workload: str, template: str) -> Object:
    reference = {"workloadName": workload, "templateName": template}
    return controller("PodGroup", API, name, schedulingPolicy=gang(2), workloadRef=reference)


def made_of(*objects: Object) -> tuple[list[Object], list[str]]:
    """Return the groups that are made of these objects, and the notes."""
    notes = NotesByObject()
    documents = [Document("f", f"document {number}", item) for number, item in enumerate(objects, 1)]
    values = [document.value for document in with_pod_groups(documents, notes)]
    return [item for item in values if item not in objects and item["kind"].endswith("PodGroup")], list(notes)


# --- fields of a Workload --------------------------------------------------------------------------

OF_TEMPLATES: dict[str, Any] = {
    "schedulingPolicy": gang(3),
    "schedulingConstraints": IN_RACK,
    "resourceClaims": [{"name": "c", "resourceClaimName": "shared"}],
    "disruptionMode": {"all": {}},
    "priorityClassName": "high",
    "priority": 7,
    "preemptionPolicy": "Never",
}
"""The fields of PodGroupTemplate, k8s.io/api scheduling/v1beta1 v0.37.1, but its name."""
OF_COMPOSITES: dict[str, Any] = {
    **{field: value for field, value in OF_TEMPLATES.items() if field != "resourceClaims"},
    "schedulingPolicy": {"gang": {"minGroupCount": 1}},
}
"""The fields of CompositePodGroupTemplate, but its name and its templates."""


def test_the_rows_have_every_field_of_a_template() -> None:
    assert {*OF_TEMPLATES, "parentCompositePodGroupName", "workloadRef"} == {*native.FIELDS}


@pytest.mark.parametrize("field", OF_TEMPLATES)
def test_each_field_of_a_template_is_that_of_its_podgroup(field: str) -> None:
    (group,), notes = made_of(workload(template(**{field: OF_TEMPLATES[field]})))
    assert (group["kind"], group["apiVersion"], group["metadata"]["name"]) == ("PodGroup", API, "t")
    assert group["spec"] == {
        "schedulingPolicy": gang(2),
        field: OF_TEMPLATES[field],
        "workloadRef": {"workloadName": "w", "templateName": "t"},
    }
    by_hand = "Kubernetes makes none by itself: in a cluster, create them too"
    assert notes == [f"Workload default/w: t is made of its template. {by_hand}"]


@pytest.mark.parametrize("field", OF_COMPOSITES)
def test_each_field_of_a_composite_template_is_that_of_its_group(field: str) -> None:
    shared = {field: OF_COMPOSITES[field]} if field.startswith("priority") else {}
    composite = {"name": "top", field: OF_COMPOSITES[field], "podGroupTemplates": [template(**shared)]}
    (group, child), _ = made_of(tree(composite))
    assert (group["kind"], group["metadata"]["name"]) == ("CompositePodGroup", "top")
    assert group["spec"] == {
        field: OF_COMPOSITES[field],
        "workloadRef": {"workloadName": "w", "templateName": "top"},
    }
    assert child["spec"]["parentCompositePodGroupName"] == "top"


def test_composites_in_composites_are_made_with_their_parents() -> None:
    inner = {"name": "inner", "schedulingPolicy": {"basic": {}}, "podGroupTemplates": [template("leaf")]}
    outer = {"name": "outer", "schedulingPolicy": {"basic": {}}, "compositePodGroupTemplates": [inner]}
    groups, _ = made_of(tree(outer))
    assert [
        (item["kind"], item["metadata"]["name"], item["spec"].get("parentCompositePodGroupName"))
        for item in groups
    ] == [
        ("CompositePodGroup", "outer", None),
        ("CompositePodGroup", "inner", "outer"),
        ("PodGroup", "leaf", "inner"),
    ]


def test_the_controller_is_named_in_the_note_alone() -> None:
    """spec.controllerRef: kind and name are for the sentence, and apiGroup is not read."""
    reference = {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "train"}
    groups, notes = made_of(workload(template(), template("u"), controllerRef=reference))
    assert [item["metadata"]["name"] for item in groups] == ["t", "u"]
    assert notes == ["Workload default/w: t, u are made of its templates, as JobSet train does in a cluster"]


# --- which groups are made, and their names --------------------------------------------------------


def test_a_group_that_is_in_the_input_is_not_made_again() -> None:
    (group,), notes = made_of(workload(template("a"), template("b")), pod_group("mine", "w", "a"))
    assert group["metadata"]["name"] == "b"
    assert len(notes) == 1


def test_nothing_is_made_of_a_workload_that_has_its_groups() -> None:
    assert made_of(workload(template()), pod_group("mine", "w", "t")) == ([], [])


def test_a_group_below_a_composite_of_the_input_has_that_one_as_its_parent() -> None:
    composite = {"name": "top", "schedulingPolicy": {"basic": {}}, "podGroupTemplates": [template()]}
    reference = {"workloadName": "w", "templateName": "top"}
    top = controller("CompositePodGroup", API, "mine", schedulingPolicy={"basic": {}}, workloadRef=reference)
    (group,), _ = made_of(tree(composite), top)
    assert group["spec"]["parentCompositePodGroupName"] == "mine"


def test_a_workload_that_a_cluster_has_stored_has_its_groups_there() -> None:
    stored = workload(template())
    stored["metadata"]["uid"] = "u"
    assert made_of(stored) == ([], [])


NAMES: dict[str, tuple[list[Object], list[str]]] = {
    "the template's": ([workload(template("a"), template("b")), *members("b")], ["a", "b"]),
    "the Workload's and the template's": (
        [workload(template("a"), template("b")), *members("w-b")],
        ["a", "w-b"],
    ),
    "the only one that pods name": ([workload(template("a")), *members("w-a-x7f")], ["w-a-x7f"]),
    "both names with an ending": (
        [workload(template("a"), template("b")), *members("w-b-x7f"), *members("w-a-0")],
        ["w-a-0", "w-b-x7f"],
    ),
    "not the only one of two templates": (
        [workload(template("a"), template("b")), *members("other")],
        ["a", "b"],
    ),
    "not that of a group which is there": (
        [workload(template("a")), pod_group("x", "v", "a"), *members("x")],
        ["a"],
    ),
    "one template name in two Workloads": (
        [workload(template("a")), workload(template("a"), name="v")],
        ["a", "v-a"],
    ),
    "that in a job's pod template": (
        [
            workload(template("a")),
            controller(
                "Job", "batch/v1", "j", template={"spec": spec(schedulingGroup={"podGroupName": "x"})}
            ),
        ],
        ["x"],
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_group_has_the_name_that_pods_use(name: str) -> None:
    objects, expected = NAMES[name]
    groups, _ = made_of(*objects)
    assert [item["metadata"]["name"] for item in groups] == expected


LEAF = [template()]
BASIC: Object = {"basic": {}}
BAD: dict[str, tuple[Object, str]] = {
    "no template": (workload(), "spec: expected either podGroupTemplates or compositePodGroupTemplates"),
    "both lists": (
        workload(template(), compositePodGroupTemplates=[{"name": "c", "podGroupTemplates": LEAF}]),
        "spec: expected either podGroupTemplates or compositePodGroupTemplates",
    ),
    "too many templates": (
        workload(*(template(f"t{number}") for number in range(9))),
        "spec.podGroupTemplates: expected a list of at most 8 templates",
    ),
    "no list": (
        controller("Workload", API, "w", podGroupTemplates={"name": "t"}),
        "spec.podGroupTemplates: expected a list of at most 8 templates",
    ),
    "no name": (
        workload({"schedulingPolicy": BASIC}),
        "spec.podGroupTemplates[0].name: expected at most 253 lower-case letters",
    ),
    "a name twice": (workload(template(), template()), "spec.podGroupTemplates[1].name: t is given twice"),
    "a name twice in a tree": (
        tree({"name": "t", "podGroupTemplates": LEAF}),
        "spec.compositePodGroupTemplates[0].podGroupTemplates[0].name: t is given twice",
    ),
    "an empty composite": (
        tree({"name": "c", "schedulingPolicy": BASIC}),
        "spec.compositePodGroupTemplates[0]: expected at least one template in it",
    ),
    "priorities that differ": (
        workload(template(), template("u", priorityClassName="high")),
        "spec: expected one priorityClassName and priority in all templates",
    ),
}


def nested(levels: int) -> Object:
    item: Object = {"name": "c1", "podGroupTemplates": LEAF}
    for number in range(2, levels + 1):
        item = {"name": f"c{number}", "compositePodGroupTemplates": [item]}
    return item


BAD["too many levels"] = (tree(nested(4)), "[0]: expected at most 4 levels of templates")


@pytest.mark.parametrize("name", BAD)
def test_what_the_api_server_refuses_is_bad_input(name: str, tmp_path: Path) -> None:
    item, says = BAD[name]
    result = place(write(tmp_path, *RACKS, item))
    assert result.exit_code == 2
    assert "Workload default/w: " in result.stderr
    assert says in result.stderr


def test_four_levels_of_templates_are_allowed() -> None:
    assert len(made_of(tree(nested(3)))[0]) == 4


def test_a_workload_without_podgroups_places_its_pods(tmp_path: Path) -> None:
    answer = decisions(
        write(tmp_path, *RACKS, workload(template(schedulingConstraints=IN_RACK)), *members("t"))
    )
    (shown,) = answer["gangs"]
    assert (shown["name"], shown["status"]) == ("t", "placed")
    assert set(nodes_of(answer).values()) in ({"a", "b"}, {"c"})


def test_an_older_version_is_noted(tmp_path: Path) -> None:
    older = workload(template(), api="scheduling.k8s.io/v1alpha1")
    answer = decisions(write(tmp_path, *RACKS, older, *members("t")))
    assert answer["gangs"][0]["status"] == "waiting"
    assert answer["notes"][0].startswith("Workload default/w is not read in scheduling.k8s.io/v1alpha1: ")


# --- annotations of a Workload ---------------------------------------------------------------------


def annotated(item: Object, **annotations: str) -> Object:
    texts = {f"gpu.topology/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return {**item, "metadata": {**item["metadata"], "annotations": texts}}


def test_annotations_of_a_workload_add_what_its_groups_lack(tmp_path: Path) -> None:
    objects = (annotated(workload(template()), scope="rack"), *members("t", gpus=3))
    answer = decisions(write(tmp_path, node("a", 3, "r1"), node("b", 4, "r2"), node("c", 4, "r2"), *objects))
    assert set(nodes_of(answer).values()) == {"b", "c"}


def test_a_podgroup_is_stronger_than_its_workload(tmp_path: Path) -> None:
    group = annotated(pod_group("t", "w", "t"), scope="rack")
    objects = (annotated(workload(template()), scope="node"), group, *members("t"))
    (shown,) = decisions(write(tmp_path, node("a", 4, "r1"), node("b", 4, "r1"), *objects))["gangs"]
    assert shown["status"] == "placed"


async def test_a_captured_workload_decides_as_in_the_cluster(tmp_path: Path) -> None:
    api = FakeApi()
    group, owner = pod_group("t", "w", "t"), annotated(workload(template()), scope="rack")
    plain = annotated(workload(template(), name="plain"))
    plain["metadata"]["annotations"] = {"example.com/password": "s3cret"}
    for item in (group, owner, plain):
        item["metadata"] |= {"namespace": "default", "uid": item["metadata"]["name"], "resourceVersion": "1"}
        del item["apiVersion"], item["kind"]
    api.served[f"/apis/{API}/podgroups"] = [group]
    api.served[f"/apis/{API}/workloads"] = [owner, plain]
    api.nodes = [node("a", 4, "r1"), node("b", 4, "r2")]
    api.pods = {item["metadata"]["name"]: item for item in members("t")}
    for name, item in api.pods.items():
        item["metadata"] |= {"namespace": "default", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    async with api.running() as port, KubeClient(kubeconfig(tmp_path, port)) as client:
        captured = await capture(client)
    (workload_item,) = [item for item in captured.items if item["kind"] == "Workload"]
    assert workload_item["metadata"]["annotations"] == {"gpu.topology/scope": "rack"}
    assert "spec" not in workload_item
    path = tmp_path / "captured.json"
    path.write_text(text_of(captured.items, as_yaml=False))
    (shown,) = decisions(str(path))["gangs"]
    assert (shown["name"], shown["status"]) == ("t", "unplaceable")


# --- Jobs with spec.scheduling ---------------------------------------------------------------------


def job(scheduling: Any, parallelism: int = 2, template_spec: Object | None = None, **more: Any) -> Object:
    pods = {"metadata": {}, "spec": spec(4, **(template_spec or {}))}
    return controller(
        "Job",
        "batch/v1",
        "train",
        parallelism=parallelism,
        completions=parallelism,
        template=pods,
        scheduling=scheduling,
        **more,
    )


GATE = (
    "Job default/train: spec.scheduling makes a PodGroup, as the Job controller does with the feature gate "
    "WorkloadWithJob. Without the gate the API server drops the field"
)
OF_JOBS: dict[str, tuple[Object, Object]] = {
    "nothing": ({}, {"schedulingPolicy": BASIC}),
    "basic": ({"schedulingPolicy": BASIC}, {"schedulingPolicy": BASIC}),
    "gang": ({"schedulingPolicy": {"gang": {}}}, {"schedulingPolicy": gang(4)}),
    "minCount": ({"schedulingPolicy": gang(3)}, {"schedulingPolicy": gang(3)}),
    **{
        field: ({field: OF_TEMPLATES[field]}, {"schedulingPolicy": BASIC, field: OF_TEMPLATES[field]})
        for field in ("schedulingConstraints", "disruptionMode", "resourceClaims")
    },
}
"""A Job of four pods: its spec.scheduling, and the spec of its PodGroup."""


@pytest.mark.parametrize("name", OF_JOBS)
def test_a_job_makes_the_podgroup_of_its_scheduling(name: str) -> None:
    scheduling, expected = OF_JOBS[name]
    (group,), notes = made_of(job(scheduling, 4))
    assert (group["metadata"]["name"], group["spec"]) == ("train-pgt-0", expected)
    assert notes == [GATE]


def test_the_priority_class_of_a_jobs_pods_is_that_of_its_podgroup() -> None:
    (group,), _ = made_of(job({}, template_spec={"priorityClassName": "high"}))
    assert group["spec"]["priorityClassName"] == "high"


def test_a_job_with_scheduling_is_a_gang_in_one_rack(tmp_path: Path) -> None:
    item = job({"schedulingPolicy": {"gang": {}}, "schedulingConstraints": IN_RACK})
    answer = decisions(write(tmp_path, *RACKS, item))
    (shown,) = answer["gangs"]
    assert (shown["name"], shown["status"], shown["present"]) == ("train-pgt-0", "placed", 2)
    assert set(nodes_of(answer).values()) in ({"a", "b"}, {"c"})
    assert answer["notes"] == [GATE]


def test_a_job_without_scheduling_makes_no_podgroup() -> None:
    item = job(None)
    assert made_of(item) == ([], [])


def test_an_unknown_field_of_scheduling_is_noted() -> None:
    _, notes = made_of(job({"priority": 9}))
    fields = "schedulingPolicy, schedulingConstraints, disruptionMode, resourceClaims"
    unread = f"Job default/train: spec.scheduling.priority is not read: known are {fields}"
    assert notes == [GATE, unread]


def test_more_pods_than_the_job_runs_are_bad_input(tmp_path: Path) -> None:
    result = place(write(tmp_path, *RACKS, job({"schedulingPolicy": gang(3)})))
    assert result.exit_code == 2
    at_most = 'expected at most spec.parallelism, which is 2, got "3"'
    assert f"spec.scheduling.schedulingPolicy.gang.minCount: {at_most}" in result.stderr


def test_a_job_whose_pods_name_a_podgroup_gets_no_other() -> None:
    item = job({"schedulingPolicy": {"gang": {}}}, template_spec={"schedulingGroup": {"podGroupName": "x"}})
    no_effect = "spec.scheduling has no effect: the pod template names a PodGroup itself"
    assert made_of(item) == ([], [f"Job default/train: {no_effect}"])


def test_a_job_that_another_object_controls_gets_none() -> None:
    item = job({})
    item["metadata"]["ownerReferences"] = [
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "s", "controller": True}
    ]
    no_effect = "spec.scheduling has no effect: JobSet s controls the Job"
    assert made_of(item) == ([], [f"Job default/train: {no_effect}"])


def test_a_job_with_a_podgroup_in_the_input_joins_it(tmp_path: Path) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}
    group = controller("PodGroup", API, "train-x7f", schedulingPolicy=gang(2))
    group["metadata"]["ownerReferences"] = [owner]
    answer = decisions(write(tmp_path, *RACKS, job({"schedulingPolicy": {"gang": {}}}), group))
    (shown,) = answer["gangs"]
    assert (shown["name"], shown["status"], answer["notes"]) == ("train-x7f", "placed", [])


def test_a_job_with_pods_in_the_input_is_left_as_it_is(tmp_path: Path) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    running = pod("train-0", gpus=4)
    running["metadata"]["ownerReferences"] = [owner]
    answer = decisions(write(tmp_path, *RACKS, job({"schedulingPolicy": {"gang": {}}}), running))
    assert [shown["name"] for shown in answer["gangs"]] == ["train-0"]
