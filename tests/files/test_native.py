"""`muster place` on PodGroups of Kubernetes' own API, as users write them and as a cluster has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.adapters.files.reading.capture import capture, text_of
from muster.adapters.kube.client import KubeClient
from muster.dialects.gangs import native
from tests.adapters.fake_api import FakeApi, kubeconfig
from tests.files.device_manifests import gpus, request, template, tray
from tests.files.manifests import Object, controller, decisions, node, nodes_of, pod, spec, write

API = "scheduling.k8s.io/v1beta1"
RACK = "topology.kubernetes.io/rack"
RACKS = [node("a", 4, "r1"), node("b", 4, "r1"), node("c", 8, "r2")]


def group(policy: Object, api: str = API, **fields: Any) -> Object:
    spec = {"schedulingPolicy": policy, **fields}
    return {"apiVersion": api, "kind": "PodGroup", "metadata": {"name": "x"}, "spec": spec}


def gang(min_count: int, **fields: Any) -> Object:
    return group({"gang": {"minCount": min_count}}, **fields)


def members(count: int, name: str = "x", gpus: int = 4, **more: Any) -> list[Object]:
    return [
        pod(f"{name}-{i}", gpus=gpus, schedulingGroup={"podGroupName": name}, **more) for i in range(count)
    ]


IN_RACK: Object = {"schedulingConstraints": {"topology": [{"key": RACK}]}}


def test_a_gang_starts_as_a_whole_in_its_rack(tmp_path: Path) -> None:
    answer = decisions(write(tmp_path, *RACKS, gang(2, **IN_RACK), *members(2)))
    (shown,) = answer["gangs"]
    assert (shown["name"], shown["status"], answer["notes"]) == ("x", "placed", [])
    assert set(nodes_of(answer).values()) in ({"a", "b"}, {"c"})


def test_a_gang_waits_for_its_min_count_and_says_which_field_states_it(tmp_path: Path) -> None:
    (shown,) = decisions(write(tmp_path, *RACKS, gang(4), *members(2)))["gangs"]
    assert shown["status"] == "waiting"
    stated_by = "spec.schedulingPolicy.gang.minCount of PodGroup default/x"
    assert shown["message"] == f"Waiting for 2 more members: 2 of 4 are here ({stated_by})"


def test_more_pods_than_min_count_start_as_far_as_they_fit(tmp_path: Path) -> None:
    answer = decisions(write(tmp_path, node("a", 8), gang(1), *members(3)))
    assert list(nodes_of(answer).values()).count("a") == 2
    assert answer["gangs"][0]["status"] == "placed"


def test_a_basic_group_is_no_gang(tmp_path: Path) -> None:
    answer = decisions(write(tmp_path, node("a", 4), group({"basic": {}}), *members(2)))
    assert sorted(shown["status"] for shown in answer["gangs"]) == ["placed", "unplaceable"]
    assert answer["notes"] == []


def test_pods_of_a_basic_group_with_a_key_share_its_rack(tmp_path: Path) -> None:
    answer = decisions(write(tmp_path, *RACKS, group({"basic": {}}, **IN_RACK), *members(3)))
    (shown,) = answer["gangs"]
    placed = {placed for placed in nodes_of(answer).values() if placed}
    assert shown["status"] == "placed"
    assert placed in ({"a", "b"}, {"c"})


def test_a_job_in_a_basic_group_stays_the_gang_that_its_annotations_make(tmp_path: Path) -> None:
    template = {
        "metadata": {"annotations": {"gpu.topology/group": "mine", "gpu.topology/min-member": "2"}},
        "spec": spec(4, schedulingGroup={"podGroupName": "x"}),
    }
    job = controller("Job", "batch/v1", "train", parallelism=2, completions=2, template=template)
    (shown,) = decisions(write(tmp_path, *RACKS, group({"basic": {}}), job))["gangs"]
    assert (shown["name"], shown["status"]) == ("mine", "placed")


def test_the_pods_of_several_jobs_are_one_gang(tmp_path: Path) -> None:
    jobs = [
        controller(
            "Job",
            "batch/v1",
            name,
            template={"metadata": {}, "spec": spec(4, schedulingGroup={"podGroupName": "x"})},
        )
        for name in ("master", "worker")
    ]
    (shown,) = decisions(write(tmp_path, *RACKS, gang(2), *jobs))["gangs"]
    assert (shown["name"], shown["status"], shown["present"]) == ("x", "placed", 2)


def test_more_pods_than_a_job_makes_are_noted(tmp_path: Path) -> None:
    template = {"metadata": {}, "spec": spec(4, schedulingGroup={"podGroupName": "x"})}
    job = controller("Job", "batch/v1", "train", parallelism=2, completions=2, template=template)
    answer = decisions(write(tmp_path, *RACKS, gang(4), job))
    assert answer["gangs"][0]["status"] == "waiting"
    counts = "it makes 2 pods at once, and their PodGroup x says minCount: 4. That counts"
    effect = "unless another job makes the other 2, the gang waits for ever"
    assert answer["notes"] == [f"Job default/train: {counts}: {effect}"]


def test_the_number_of_the_pod_group_is_compared_with_the_job_whatever_its_pods_state(tmp_path: Path) -> None:
    metadata = {"annotations": {"gpu.topology/min-member": "3"}}
    template = {"metadata": metadata, "spec": spec(4, schedulingGroup={"podGroupName": "x"})}
    job = controller("Job", "batch/v1", "train", parallelism=1, completions=1, template=template)
    answer = decisions(write(tmp_path, *RACKS, gang(2), job))
    assert answer["gangs"][0]["status"] == "invalid"
    counts = "it makes 1 pod at once, and their PodGroup x says minCount: 2. That counts"
    effect = "unless another job makes the other 1, the gang waits for ever"
    assert answer["notes"] == [f"Job default/train: {counts}: {effect}"]
    enough = job | {"spec": job["spec"] | {"parallelism": 2, "completions": 2}}
    assert decisions(write(tmp_path, *RACKS, gang(2), enough))["notes"] == []


def high(name: str = "high", **more: Any) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 1000,
        **more,
    }


PRIORITIES: dict[str, tuple[list[Object], str]] = {
    "the class of both": (
        [high(), gang(2, priorityClassName="high"), *members(2, priorityClassName="high")],
        "placed",
    ),
    "no class": ([gang(2), *members(2)], "placed"),
    "the class of the group alone": ([high(), gang(2, priorityClassName="high"), *members(2)], "invalid"),
    "the class of the pods alone": ([high(), gang(2), *members(2, priorityClassName="high")], "invalid"),
    "the default of both": ([high(globalDefault=True), gang(2), *members(2)], "placed"),
}


@pytest.mark.parametrize("name", PRIORITIES)
def test_group_and_pods_must_have_one_priority(name: str, tmp_path: Path) -> None:
    objects, status = PRIORITIES[name]
    (shown,) = decisions(write(tmp_path, *RACKS, *objects))["gangs"]
    assert shown["status"] == status
    assert ("set one priorityClassName in both" in shown["message"]) == (status == "invalid")


REFUSED: dict[str, tuple[list[Object], str]] = {
    "no policy": ([group({}), *members(2)], "podgroup/default/x: spec.schedulingPolicy is"),
    "a claim without a claim or a template": (
        [gang(2, resourceClaims=[{"name": "c"}]), *members(2)],
        "podgroup/default/x: spec.resourceClaims[0].resourceClaimTemplateName",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_t_be_followed_starts_nothing(name: str, tmp_path: Path) -> None:
    objects, says = REFUSED[name]
    (shown,) = decisions(write(tmp_path, *RACKS, *objects))["gangs"]
    assert shown["status"] == "invalid"
    assert says in shown["message"]


def sharing(*templates: str, **fields: Any) -> Object:
    """A PodGroup of three pods with a claim of each of these templates."""
    return gang(3, resourceClaims=entries(*templates), **fields)


def entries(*templates: str) -> list[Object]:
    return [{"name": name, "resourceClaimTemplateName": name} for name in templates]


def sharers(*templates: str, count: int = 3) -> list[Object]:
    return members(count, gpus=0, resourceClaims=entries(*templates))


TRAYS = [tray("a", gpus=0), tray("b", gpus=0)]
FOUR_GPUS = template("t", request(count=4))


def test_pods_that_share_a_claim_of_their_group_share_its_gpus_on_one_node(tmp_path: Path) -> None:
    published = [gpus("a"), gpus("b", count=2)]
    answer = decisions(write(tmp_path, *TRAYS, *published, FOUR_GPUS, sharing("t"), *sharers("t")))
    (shown,) = answer["gangs"]
    assert shown["status"] == "placed"
    assert set(nodes_of(answer).values()) == {"a"}


def test_a_claim_of_the_pods_alone_counts_for_each_of_them(tmp_path: Path) -> None:
    answer = decisions(write(tmp_path, *TRAYS, gpus("a"), gpus("b"), FOUR_GPUS, gang(3), *sharers("t")))
    assert answer["gangs"][0]["status"] == "unplaceable"


def test_pods_with_a_claim_that_no_node_has_room_for_say_what_binds_them(tmp_path: Path) -> None:
    room_for_two = {"allocatable": {"cpu": "144", "memory": "960Gi", "pods": "2"}}
    nodes = [tray(name, gpus=0) | {"status": room_for_two} for name in ("a", "b")]
    objects = [*nodes, gpus("a"), gpus("b"), FOUR_GPUS, sharing("t"), *sharers("t")]
    (shown,) = decisions(write(tmp_path, *objects))["gangs"]
    assert shown["status"] == "unplaceable"
    assert "By ResourceClaim x-t, its members must lie in one node: 2 of 3 fit" in shown["message"]


def test_a_basic_group_with_a_claim_is_a_gang_that_starts_with_one_pod(tmp_path: Path) -> None:
    basic = group({"basic": {}}, resourceClaims=entries("t"))
    answer = decisions(write(tmp_path, *TRAYS, gpus("a"), FOUR_GPUS, basic, *sharers("t")))
    (shown,) = answer["gangs"]
    assert (shown["status"], set(nodes_of(answer).values())) == ("placed", {"a"})


def test_a_claim_template_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    answer = decisions(write(tmp_path, *TRAYS, gpus("a"), sharing("t"), *sharers("t")))
    effect = "3 pods are planned without it. In a cluster pods wait for it"
    assert answer["notes"] == [f"ResourceClaimTemplate default/t is not in the input: {effect}"]


def test_a_group_with_pods_of_two_schedulers_is_refused(tmp_path: Path) -> None:
    other = pod("other", gpus=4, schedulingGroup={"podGroupName": "x"}, schedulerName="default-scheduler")
    (shown,) = decisions(write(tmp_path, *RACKS, gang(2), *members(2), other))["gangs"]
    assert shown["status"] == "invalid"
    assert 'pod/default/other: spec.schedulerName is "default-scheduler", expected muster' in shown["message"]


def test_a_key_that_no_node_has_is_named(tmp_path: Path) -> None:
    in_block: Object = {"schedulingConstraints": {"topology": [{"key": "example.com/block"}]}}
    (shown,) = decisions(write(tmp_path, *RACKS, gang(2, **in_block), *members(2)))["gangs"]
    assert shown["status"] == "unplaceable"
    assert "example.com/block" in shown["message"]


def test_a_node_with_an_empty_label_is_in_no_domain(tmp_path: Path) -> None:
    nodes = [node("a", 4, ""), node("b", 4, ""), node("c", 4, "r2")]
    (shown,) = decisions(write(tmp_path, *nodes, gang(2, **IN_RACK), *members(2)))["gangs"]
    assert shown["status"] == "unplaceable"


def test_a_group_of_another_namespace_is_not_there(tmp_path: Path) -> None:
    elsewhere = gang(2)
    elsewhere["metadata"]["namespace"] = "other"
    (shown,) = decisions(write(tmp_path, *RACKS, elsewhere, *members(2)))["gangs"]
    assert shown["status"] == "waiting"
    assert shown["message"] == "PodGroup default/x does not exist yet; its pods wait for it"


def test_an_older_version_is_noted(tmp_path: Path) -> None:
    older = gang(2, api="scheduling.k8s.io/v1alpha2")
    answer = decisions(write(tmp_path, *RACKS, older, *members(2)))
    assert answer["gangs"][0]["status"] == "waiting"
    way_out = "write it in scheduling.k8s.io/v1beta1, where its fields have other names"
    assert answer["notes"][0] == f"PodGroup default/x is not read in scheduling.k8s.io/v1alpha2: {way_out}"


def test_an_unknown_field_is_noted(tmp_path: Path) -> None:
    answer = decisions(write(tmp_path, *RACKS, gang(2, queue="a"), *members(2)))
    assert answer["notes"] == ["PodGroup default/x: spec.queue is not read"]


# --- trees -----------------------------------------------------------------------------------------

ALPHA = "scheduling.k8s.io/v1alpha3"
ZONE = "topology.kubernetes.io/zone"


def of_tree(kind: str, name: str, least: int, parent: str = "", key: str = "", **fields: Any) -> Object:
    """A group of a tree; with `least` 0 it is basic."""
    count = "minGroupCount" if kind == "CompositePodGroup" else "minCount"
    group_spec: Object = {
        "schedulingPolicy": {"gang": {count: least}} if least else {"basic": {}},
        "workloadRef": {"workloadName": "w", "templateName": "t"},
        **fields,
    }
    group_spec |= {"parentCompositePodGroupName": parent} if parent else {}
    group_spec |= {"schedulingConstraints": {"topology": [{"key": key}]}} if key else {}
    return {"apiVersion": ALPHA, "kind": kind, "metadata": {"name": name}, "spec": group_spec}


def composite(name: str, least: int, parent: str = "", key: str = "", **fields: Any) -> Object:
    return of_tree("CompositePodGroup", name, least, parent, key, **fields)


def pod_group(name: str, least: int, parent: str = "", key: str = "", **fields: Any) -> Object:
    return of_tree("PodGroup", name, least, parent, key, **fields)


def in_zone(zone: str, name: str, gpus: int, rack: str) -> Object:
    return node(name, gpus, rack, labels={ZONE: zone})


SMALL_AND_LARGE = [*members(2, "x"), *members(1, "y", gpus=8)]
ZONES = [
    in_zone("z1", "a", 4, "r1"),
    in_zone("z1", "b", 4, "r2"),
    in_zone("z2", "c", 4, "r3"),
    in_zone("z2", "d", 4, "r3"),
    in_zone("z2", "e", 2, "r4"),
]
TREES: dict[str, tuple[list[Object], str, set[str]]] = {
    "x alone would take the only node for y": (
        [*RACKS, composite("t", 2), pod_group("x", 2, "t", RACK), pod_group("y", 1, "t"), *SMALL_AND_LARGE],
        "placed",
        {"x-0", "x-1", "y-0"},
    ),
    "not both, and both must": (
        [node("c", 8), composite("t", 2), pod_group("x", 2, "t"), pod_group("y", 1, "t"), *SMALL_AND_LARGE],
        "unplaceable",
        set(),
    ),
    "not both, and one is enough": (
        [
            *(node("a", 4), node("b", 4)),
            composite("t", 1),
            pod_group("x", 2, "t"),
            pod_group("y", 1, "t"),
            *SMALL_AND_LARGE,
        ],
        "placed",
        {"x-0", "x-1"},
    ),
    "a zone for all, a rack for x": (
        [
            *ZONES,
            composite("t", 2, key=ZONE),
            pod_group("x", 2, "t", RACK),
            pod_group("y", 1, "t"),
            *members(2, "x"),
            *members(1, "y", gpus=2),
        ],
        "placed",
        {"x-0", "x-1", "y-0"},
    ),
    "a rack for all does not hold y": (
        [
            *ZONES,
            composite("t", 2, key=RACK),
            pod_group("x", 2, "t", ZONE),
            pod_group("y", 1, "t"),
            *members(2, "x"),
            *members(1, "y", gpus=2),
        ],
        "unplaceable",
        set(),
    ),
    "three keys for the same pods": (
        [
            *ZONES,
            composite("t", 1, key="kubernetes.io/hostname"),
            composite("m", 1, "t", RACK),
            pod_group("x", 2, "m", ZONE),
            *members(2, "x", gpus=2),
        ],
        "placed",
        {"x-0", "x-1"},
    ),
    "the key in the middle is the narrowest": (
        [
            *ZONES,
            composite("t", 1, key=ZONE),
            composite("m", 1, "t", "kubernetes.io/hostname"),
            pod_group("x", 2, "m", RACK),
            *members(2, "x", gpus=4),
        ],
        "unplaceable",
        set(),
    ),
    "a key of a PodGroup of unlike pods": (
        [
            *(node("a", 5), node("b", 4), node("c", 3, "r2")),
            composite("t", 2),
            pod_group("x", 3, "t", RACK),
            pod_group("y", 1, "t"),
            *members(2, "x"),
            pod("x-small", gpus=1, schedulingGroup={"podGroupName": "x"}),
            *members(1, "y", gpus=3),
        ],
        "placed",
        {"x-0", "x-1", "x-small", "y-0"},
    ),
    "a basic root without a key": (
        [
            node("c", 8),
            composite("t", 0),
            pod_group("x", 2, "t"),
            pod_group("y", 1, "t"),
            *members(2, "x"),
            *members(1, "y", gpus=16),
        ],
        "placed",
        {"x-0", "x-1"},
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_decided_as_one_gang(name: str, tmp_path: Path) -> None:
    objects, status, placed = TREES[name]
    answer = decisions(write(tmp_path, *objects))
    assert answer["gangs"][0]["status"] == status
    assert {pod for pod, on in nodes_of(answer).items() if on} == placed
    assert answer["notes"] == []


def test_the_scopes_of_a_tree_hold(tmp_path: Path) -> None:
    objects, _, _ = TREES["a zone for all, a rack for x"]
    on = nodes_of(decisions(write(tmp_path, *objects)))
    assert ({on["x-0"], on["x-1"]}, on["y-0"]) == ({"c", "d"}, "e")


REFUSED_TREES: dict[str, tuple[list[Object], str, str]] = {
    "a parent that is not there": (
        [pod_group("x", 2, "t"), *members(2)],
        "waiting",
        "CompositePodGroup default/t does not exist yet; the pods below it wait for it, since "
        "spec.parentCompositePodGroupName of a group names it",
    ),
    "a parent in another namespace": (
        [pod_group("x", 2, "other/t"), *members(2)],
        "invalid",
        'podgroup/default/x: spec.parentCompositePodGroupName is "other/t", expected the name of a '
        "CompositePodGroup in namespace default",
    ),
    "a circle": (
        [composite("t", 1, "u"), composite("u", 1, "t"), pod_group("x", 2, "t"), *members(2)],
        "invalid",
        'compositepodgroup/default/t: spec.parentCompositePodGroupName is "u", expected no circle of groups',
    ),
    "too few groups": (
        [composite("t", 2), pod_group("x", 2, "t"), *members(2)],
        "waiting",
        "Waiting for 1 more group: 1 of 2 are here",
    ),
    "a group without pods": (
        [composite("t", 2), pod_group("x", 2, "t"), pod_group("y", 1, "t"), *members(2)],
        "waiting",
        "Waiting for 1 more member of role y: 0 of 1 are here (spec.schedulingPolicy of PodGroup default/y)",
    ),
    "another priority": (
        [
            high(),
            composite("t", 1, priorityClassName="high"),
            pod_group("x", 2, "t"),
            *members(2, priorityClassName="high"),
        ],
        "invalid",
        'podgroup/default/x: spec.priority is "0", expected 1000, as CompositePodGroup default/t has it',
    ),
    "another scheduler": (
        [
            composite("t", 1),
            pod_group("x", 2, "t"),
            pod_group("y", 1, "t"),
            *members(2),
            *members(1, "y", schedulerName="default-scheduler"),
        ],
        "invalid",
        'pod/default/y-0: spec.schedulerName is "default-scheduler", expected muster, since '
        "CompositePodGroup default/t has pods of that scheduler too",
    ),
    "a key that no node has": (
        [composite("t", 1, key="example.com/row"), pod_group("x", 2, "t"), *members(2)],
        "unplaceable",
        "example.com/row",
    ),
    "more PodGroups than are planned": (
        [
            composite("t", 65),
            *(pod_group(f"p{number}", 1, "t") for number in range(65)),
            *(pod for number in range(65) for pod in members(1, f"p{number}", gpus=0)),
        ],
        "unplaceable",
        "CompositePodGroup default/t has pods of 65 PodGroups or different requests, and a tree may have 64",
    ),
}


@pytest.mark.parametrize("name", REFUSED_TREES)
def test_a_tree_that_can_t_start_says_why(name: str, tmp_path: Path) -> None:
    objects, status, says = REFUSED_TREES[name]
    (shown,) = decisions(write(tmp_path, *RACKS, *objects))["gangs"]
    assert (shown["status"], says in shown["message"]) == (status, True), shown["message"]


def test_a_part_of_a_tree_without_pods_is_noted(tmp_path: Path) -> None:
    answer = decisions(
        write(
            tmp_path, *RACKS, composite("t", 1), pod_group("x", 2, "t"), pod_group("y", 1, "t"), *members(2)
        )
    )
    assert answer["gangs"][0]["status"] == "placed"
    assert answer["notes"] == ["PodGroup default/y: no pod of ours names it"]


def test_each_group_of_a_tree_that_names_no_workload_is_named(tmp_path: Path) -> None:
    groups = [composite("t", 2), pod_group("x", 2, "t"), pod_group("y", 1, "t")]
    for group_of_tree in groups[:2]:
        del group_of_tree["spec"]["workloadRef"]
    (shown,) = decisions(write(tmp_path, *RACKS, *groups, *SMALL_AND_LARGE))["gangs"]
    assert shown["status"] == "invalid"
    refused = 'spec.workloadRef is "not given", expected workloadName and templateName: the API server'
    for name in ("compositepodgroup/default/t", "podgroup/default/x"):
        assert shown["message"].count(f"{name}: {refused}") == 1
    assert "pods (" not in shown["message"]
    assert "workloadName is" not in shown["message"]


async def test_a_captured_group_decides_as_in_the_cluster(tmp_path: Path) -> None:
    api = FakeApi()
    fields: Object = {**IN_RACK, "priority": 0, "disruptionMode": {"all": {}}}
    stored = gang(2, **fields)
    annotations = {"gpu.topology/preferred-scopes": "node", "example.com/password": "s3cret"}
    stored["metadata"] |= {
        "namespace": "default",
        "uid": "g",
        "resourceVersion": "1",
        "annotations": annotations,
    }
    del stored["apiVersion"], stored["kind"]  # a list of a built-in kind states them once
    stored["spec"] |= {
        "parentCompositePodGroupName": "t",
        "workloadRef": {"workloadName": "w", "templateName": "t"},
    }
    root = composite("t", 1, priority=0)
    root["metadata"] |= {"namespace": "default", "uid": "t", "resourceVersion": "1"}
    del root["apiVersion"], root["kind"]
    api.served["/apis/scheduling.k8s.io/v1beta1/podgroups"] = [stored]
    api.served["/apis/scheduling.k8s.io/v1alpha3/compositepodgroups"] = [root]
    api.nodes = RACKS
    api.pods = {item["metadata"]["name"]: item for item in members(2)}
    for name, item in api.pods.items():
        item["metadata"] |= {"namespace": "default", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    async with api.running() as port, KubeClient(kubeconfig(tmp_path, port)) as client:
        captured = await capture(client)
    (captured_group,) = [item for item in captured.items if item["kind"] == "PodGroup"]
    assert (captured_group["apiVersion"], captured_group["spec"]) == (API, stored["spec"])
    assert captured_group["metadata"]["annotations"] == {"gpu.topology/preferred-scopes": "node"}
    path = tmp_path / "captured.json"
    path.write_text(text_of(captured.items, as_yaml=False))
    (captured_root,) = [item for item in captured.items if item["kind"] == "CompositePodGroup"]
    assert (captured_root["apiVersion"], captured_root["spec"]) == (ALPHA, root["spec"])
    (shown,) = decisions(str(path))["gangs"]
    assert (shown["name"], shown["status"]) == ("t", "placed")


async def test_a_capture_without_the_right_to_read_podgroups_says_whose_are_left_out(tmp_path: Path) -> None:
    api = FakeApi()
    api.forbidden = {f"/apis/{version}/podgroups" for version in native.APIS}
    api.nodes = RACKS
    api.pods = {item["metadata"]["name"]: item for item in members(2)}
    for name, item in api.pods.items():
        item["metadata"] |= {"namespace": "default", "uid": name}
    async with api.running() as port, KubeClient(kubeconfig(tmp_path, port)) as client:
        captured = await capture(client)
    assert captured.problems == (
        "GET podgroups.scheduling.k8s.io: 403, refused by the test: left out. "
        "So `muster place` does not find the PodGroups of 2 waiting pods",
    )
