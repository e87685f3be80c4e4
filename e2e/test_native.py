"""Gangs that Kubernetes' own PodGroups describe, on a cluster that serves them (NATIVE_GATES)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e import objects
from e2e.arena import QuickStack
from e2e.client import Client
from e2e.kinds.controllers import Controller
from e2e.kinds.jobs import Jobs, template
from e2e.record import Record
from e2e.rights import AUDIT_POLICY, grants, refused, requests, unused
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.cluster import LocalCluster
from local_cluster.stack import Stack
from local_cluster.stack_config import MANIFESTS
from muster.domain.pod import KUBERNETES
from tests.local_cluster.cluster_waiting import eventually

pytestmark = pytest.mark.cluster

RACK = "topology.kubernetes.io/rack"
IN_A_RACK = {"topology": [{"key": RACK}]}
API = "scheduling.k8s.io/v1beta1"
SCHEDULED = "PodGroupInitiallyScheduled"
API_OF_TREES = "scheduling.k8s.io/v1alpha3"
WAITING = "gpu.topology/WaitingForMembers"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Muster's processes on a cluster that serves PodGroups."""
    folder = tmp_path_factory.mktemp("native")
    with (
        LocalCluster(
            folder / "cluster",
            native=True,
            audit=True,
            audit_policy=AUDIT_POLICY,
        ) as cluster,
        QuickStack(cluster, folder / "stack") as native_stack,
    ):
        yield native_stack


@pytest.fixture
def scene(stack: Stack, tmp_path: Path) -> Iterator[Scene]:
    """A scene with two racks, of one node with six GPUs and of two nodes with four each."""
    stack.restore()
    with Scene(Client.of(stack.cluster.kubeconfig, tmp_path)) as new_scene:
        for name, gpus, rack in (("a", 6, "r1"), ("b", 4, "r2"), ("c", 4, "r2")):
            new_scene.node(objects.node(name, gpus=gpus, labels={RACK: rack}))
        yield new_scene
        new_scene.audit()


@pytest.fixture(scope="module")
def controllers(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The controllers of JobSet and LeaderWorkerSet. Their own PodGroups are not there: these versions make
    none."""
    folder = tmp_path_factory.mktemp("controllers")
    with Controller(stack.cluster, folder, "jobset"), Controller(stack.cluster, folder, "lws"):
        yield


@pytest.fixture
def jobs(scene: Scene, stack: Stack, controllers: None) -> Iterator[Jobs]:
    new_jobs = Jobs(scene, stack)
    yield new_jobs
    new_jobs.clear()


def pod_group(name: str, min_count: int, **spec: object) -> Object:
    policy = {"gang": {"minCount": min_count}} if min_count else {"basic": {}}
    return {
        "apiVersion": API,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy, **spec},
    }


def part(name: str, min_count: int, parent: str = "tree", **spec: object) -> Object:
    """A PodGroup in a tree."""
    return pod_group(name, min_count, **in_tree(parent), **spec)


def composite(name: str, min_groups: int, parent: str = "", **spec: object) -> Object:
    policy = {"gang": {"minGroupCount": min_groups}} if min_groups else {"basic": {}}
    return {
        "apiVersion": API_OF_TREES,
        "kind": "CompositePodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy, **in_tree(parent), **spec},
    }


def in_tree(parent: str) -> Object:
    fields: Object = {"workloadRef": {"workloadName": "w", "templateName": "t"}}
    return fields | ({"parentCompositePodGroupName": parent} if parent else {})


def member(group: str, rank: int, gpus: int = 1) -> Object:
    membership = {"schedulingGroup": {"podGroupName": group}}
    return objects.pod(f"{group}-{rank}", gpus=gpus, spec=membership)


def members(scene: Scene, group: str, count: int, gpus: int = 1) -> list[str]:
    return scene.create(*(member(group, rank, gpus) for rank in range(count)))


def racks(scene: Scene, names: list[str]) -> set[str]:
    by_node = {node["metadata"]["name"]: node["metadata"]["labels"][RACK] for node in nodes(scene)}
    return {by_node[scene.pods()[name].node] for name in names}


def nodes(scene: Scene) -> list[Object]:
    listed: list[Object] = scene.client.get("/api/v1/nodes")["items"]
    return listed


def test_pods_wait_for_their_podgroup_and_start_together_in_one_rack(scene: Scene) -> None:
    names = members(scene, "train", 4, gpus=2)
    waiting = scene.event("TopologyWaiting", names[0])
    assert f"PodGroup {scene.name}/train does not exist yet" in waiting.message
    scene.runs(scene.create(objects.pod("lone")))
    assert not {*names} & scene.bound()
    scene.apply(pod_group("train", 4, schedulingConstraints=IN_A_RACK))
    scene.runs(names)
    assert racks(scene, names) == {"r2"}


def test_the_minimum_may_change_while_the_gang_waits(scene: Scene) -> None:
    scene.apply(pod_group("train", 3))
    names = members(scene, "train", 2)
    assert "minCount of PodGroup" in scene.event("TopologyWaiting", names[0]).message
    path = f"/apis/{API}/namespaces/{scene.name}/podgroups/train"
    scene.client.patch(path, {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
    scene.runs(names)


def test_a_podgroup_made_anew_holds_and_a_raised_minimum_takes_no_member_back(scene: Scene) -> None:
    scene.apply(pod_group("train", 4))
    names = members(scene, "train", 3)
    scene.event("TopologyWaiting", names[0])
    path = f"/apis/{API}/namespaces/{scene.name}/podgroups/train"
    scene.client.delete(path)
    assert scene.client.get(path)["metadata"]["deletionTimestamp"]  # a finalizer keeps it while pods name it
    scene.client.patch(path, {"metadata": {"finalizers": None}})
    scene.apply(pod_group("train", 3, schedulingConstraints=IN_A_RACK))
    scene.runs(names)
    assert len(racks(scene, names)) == 1
    scene.client.patch(path, {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}})
    late = scene.create(member("train", 3))
    scene.runs([*names, *late])


def test_a_gang_outlives_a_restart_of_the_service(scene: Scene, stack: Stack) -> None:
    """The new process reads the PodGroup from a list, and takes the bound members for members."""
    scene.apply(pod_group("train", 2, schedulingConstraints=IN_A_RACK))
    (first,) = members(scene, "train", 1, gpus=4)
    scene.event("TopologyWaiting", first)
    stack.service.kill()
    stack.restore()
    (second,) = scene.create(member("train", 1, gpus=4))
    scene.runs([first, second])
    stack.service.kill()
    stack.restore()
    scene.delete(second)
    (replacement,) = scene.create(member("train", 1, gpus=4))
    scene.runs([first, replacement])
    assert racks(scene, [first, replacement]) == {"r2"}


def test_pods_of_a_basic_podgroup_start_one_by_one(scene: Scene) -> None:
    scene.apply(pod_group("replicas", 0))
    names = members(scene, "replicas", 4, gpus=4)
    scene.until(lambda: len(scene.bound()) == 3, "three of four replicas are bound")
    (waiting,) = {*names} - scene.bound()
    scene.says(waiting, objects.GPU)


def test_a_job_without_gpus_and_annotations_starts_beside_its_basic_podgroup(scene: Scene) -> None:
    scene.create_job(objects.job("ordinary", objects.pod("template", gpus=0), completions=3))
    scene.until(lambda: len(scene.pods_of_job("ordinary")) == 3, "the Job has three pods")
    assert all(body["spec"].get("schedulingGroup") for body in pods(scene))
    scene.runs(scene.pods_of_job("ordinary"))


def test_a_job_whose_podgroup_the_job_controller_makes_is_a_gang(scene: Scene) -> None:
    job = objects.job("train", objects.pod("template", gpus=2), completions=4)
    job["spec"]["scheduling"] = {"schedulingPolicy": {"gang": {}}, "schedulingConstraints": IN_A_RACK}
    scene.create_job(job)
    scene.until(lambda: len(scene.pods_of_job("train")) == 4, "the Job has four pods")
    names = scene.pods_of_job("train")
    scene.runs(names)
    assert racks(scene, names) == {"r2"}


def native_objects(scene: Scene) -> list[str]:
    """Names of the PodGroups and Workloads of the scene."""
    paths = (f"/apis/{API}/namespaces/{scene.name}/{plural}" for plural in ("podgroups", "workloads"))
    return [item["metadata"]["name"] for path in paths for item in scene.client.get(path)["items"]]


@pytest.mark.parametrize("gpus", [2, 8])
def test_the_podgroup_of_a_deleted_job_goes_with_it(scene: Scene, gpus: int) -> None:
    """Of a Job that runs, and of a Job that waits for room. The PodGroup has a finalizer."""
    job = objects.job("train", objects.pod("template", gpus=gpus), completions=2)
    job["spec"]["scheduling"] = {"schedulingPolicy": {"gang": {}}, "schedulingConstraints": IN_A_RACK}
    scene.create_job(job)
    scene.until(lambda: len(scene.pods_of_job("train")) == 2, "the Job has two pods")
    names = scene.pods_of_job("train")
    if gpus == 2:
        scene.runs(names)
    else:
        scene.event("TopologyUnplaceable", names[0])
    (group,) = scene.client.get(f"/apis/{API}/namespaces/{scene.name}/podgroups")["items"]
    assert group["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]
    path = f"/apis/batch/v1/namespaces/{scene.name}/jobs/train"
    scene.client.delete(f"{path}?propagationPolicy=Background")
    scene.until(lambda: not scene.pods(), "the pods are gone")
    eventually(lambda: not native_objects(scene), "PodGroup and Workload are gone")


def in_group(gpus: int) -> Object:
    """A pod template of the PodGroup train."""
    body = template(gpus)
    body["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    return body


def test_the_pods_of_a_job_set_are_the_gang_of_their_podgroup(scene: Scene, jobs: Jobs) -> None:
    scene.apply(pod_group("train", 4, schedulingConstraints=IN_A_RACK))
    pods_of_workers = in_group(2)
    pods_of_workers["spec"]["restartPolicy"] = "Never"
    job = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": pods_of_workers}
    workers = {"name": "workers", "replicas": 2, "template": {"spec": job}}
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "set"}}
    jobs.submit({**body, "spec": {"replicatedJobs": [workers]}})
    scene.until(lambda: len(scene.pods()) == 4, "the JobSet has four pods")
    scene.runs(scene.pods())
    assert racks(scene, [*scene.pods()]) == {"r2"}
    assert jobs.gangs() == {"train": (KUBERNETES, 4, 4, 4)}
    assert native_objects(scene) == ["train"]  # the Job controller makes none of a JobSet's Jobs


def test_the_pods_of_a_leader_worker_set_are_the_gang_of_their_podgroup(scene: Scene, jobs: Jobs) -> None:
    """One gang of two replicas, which would be two gangs without the PodGroup."""
    scene.apply(pod_group("train", 4, schedulingConstraints=IN_A_RACK))
    body = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve"},
    }
    group_template = {"size": 2, "workerTemplate": in_group(2)}
    jobs.submit({**body, "spec": {"replicas": 2, "leaderWorkerTemplate": group_template}})
    scene.until(lambda: len(scene.pods()) == 4, "the LeaderWorkerSet has four pods")
    scene.runs(scene.pods())
    assert racks(scene, [*scene.pods()]) == {"r2"}
    assert jobs.gangs() == {"train": (KUBERNETES, 4, 4, 4)}


def test_the_annotations_of_a_workload_count(scene: Scene) -> None:
    """They come after the pods, and change where the gang may lie."""
    templates = [{"name": "t", "schedulingPolicy": {"gang": {"minCount": 3}}}]
    body = {"apiVersion": API, "kind": "Workload", "spec": {"podGroupTemplates": templates}}
    scene.apply({**body, "metadata": {"name": "w", "annotations": {"gpu.topology/scope": "node"}}})
    scene.apply(pod_group("train", 3, workloadRef={"workloadName": "w", "templateName": "t"}))
    names = members(scene, "train", 3, gpus=4)
    scene.event("TopologyUnplaceable", names[0])
    assert not scene.bound()
    path = f"/apis/{API}/namespaces/{scene.name}/workloads/w"
    scene.client.patch(path, {"metadata": {"annotations": {"gpu.topology/scope": None}}})
    scene.runs(names)


def test_a_job_with_annotations_stays_a_gang_beside_its_basic_podgroup(scene: Scene) -> None:
    """With the gate WorkloadWithJob each Job gets a PodGroup. Without spec.scheduling its policy is basic."""
    scene.create_job(
        objects.job("train", objects.pod("template", gpus=4, gang=objects.ack("g", 4)), completions=4)
    )
    scene.until(lambda: len(scene.pods_of_job("train")) == 4, "the Job has four pods")
    names = scene.pods_of_job("train")
    assert all(body["spec"].get("schedulingGroup") for body in pods(scene))
    scene.event("TopologyUnplaceable", names[0])
    assert not scene.bound()
    scene.node(objects.node("d", gpus=4, labels={RACK: "r3"}))
    scene.runs(names)


def pods(scene: Scene) -> list[Object]:
    listed: list[Object] = scene.client.get(f"/api/v1/namespaces/{scene.name}/pods")["items"]
    return listed


def test_a_priority_that_differs_from_the_pods_is_refused(scene: Scene) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    name = f"high-{scene.name}"
    scene.client.post(classes, {"metadata": {"name": name}, "value": 1000})
    scene.apply(pod_group("train", 2, priorityClassName=name))
    names = members(scene, "train", 2)
    scene.says(
        names[0], f"pod/{scene.name}/train-0", "spec.priority", f"1000, as PodGroup {scene.name}/train"
    )
    assert not scene.bound()
    scene.client.delete(f"{classes}/{name}")


# --- the condition PodGroupInitiallyScheduled ---------------------------------------------------------


class Groups:
    """The conditions of the PodGroups of a scene, as a watch shows them."""

    def __init__(self, scene: Scene, record: Record, path: str) -> None:
        self._client = scene.client
        self._record = record
        self._path = path

    def history(self, name: str = "train") -> list[str]:
        """Status and reason of the condition, of each change; "" without a condition."""
        words: list[str] = []
        for change in self._record.changes():
            if change.body["metadata"]["name"] == name:
                condition = condition_of(change.body)
                word = f"{condition['status']} {condition['reason']}" if condition else ""
                words += [word] if words[-1:] != [word] else []
        return words

    def until(self, *words: str, name: str = "train") -> Object:
        """Wait until the condition had these in turn, and has the last of them now; the condition."""
        self._record.until(lambda: self.history(name)[-len(words) :] == [*words], f"{name} shows {words}")
        return condition_of(self.get(name))

    def get(self, name: str = "train") -> Object:
        return self._client.get(f"{self._path}/{name}")

    def change_status(self, status: Object, name: str = "train") -> None:
        """Merge this into the status, as a user with the right to do so."""
        self._client.patch(f"{self._path}/{name}/status", {"status": status})


def condition_of(group: Object) -> Object:
    """The condition PodGroupInitiallyScheduled; empty without one."""
    conditions = (group.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == SCHEDULED), {})


@pytest.fixture
def groups(scene: Scene) -> Iterator[Groups]:
    path = f"/apis/{API}/namespaces/{scene.name}/podgroups"
    with Record(scene.client, (path,)) as record:
        yield Groups(scene, record, path)


def test_the_condition_is_false_with_the_sentence_of_the_pods_and_true_once_bound(
    scene: Scene, groups: Groups
) -> None:
    scene.apply(pod_group("train", 4, schedulingConstraints=IN_A_RACK))
    names = members(scene, "train", 4, gpus=4)
    waiting = groups.until("False Unschedulable")
    assert waiting["message"]
    generations = (waiting.get("observedGeneration"), groups.get()["metadata"].get("generation"))
    assert generations[0] == generations[1]  # Kubernetes 1.37 counts no generations of PodGroups
    scene.says(names[0], waiting["message"])
    for name in ("d", "e"):
        scene.node(objects.node(name, gpus=8, labels={RACK: "r3"}))
    scene.runs(names)
    assert groups.until("", "False Unschedulable", "True Scheduled")["message"] == ""


def test_true_outlives_a_failed_pod_a_restart_and_forged_statuses(
    scene: Scene, groups: Groups, stack: Stack
) -> None:
    scene.apply(pod_group("train", 2))
    names = members(scene, "train", 2, gpus=4)
    scene.runs(names)
    groups.until("True Scheduled")
    scene.fail(names[0])
    scene.until(lambda: scene.pods()[names[0]].finished, "a member has failed")
    stack.service.kill()
    stack.restore()
    (big,) = scene.create(member("train", 7, gpus=64))
    scene.event("TopologyUnplaceable", big)  # without the condition, this verdict would be its False
    forged = {"type": SCHEDULED, "status": "False", "reason": "Forged", "message": ""}
    groups.change_status({"conditions": [forged | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    groups.until("", "True Scheduled", "False Forged", "True Scheduled")
    scene.delete(big)


def test_a_refused_group_says_why_and_the_rest_of_its_status_stays(scene: Scene, groups: Groups) -> None:
    group = pod_group("train", 2, resourceClaims=[{"name": "c", "resourceClaimTemplateName": "none"}])
    group["metadata"]["annotations"] = {"gpu.topology/role": "worker"}
    scene.apply(group)
    claim_statuses = [{"name": "c", "resourceClaimName": "made"}]
    groups.change_status({"resourceClaimStatuses": claim_statuses})
    names = members(scene, "train", 2)
    condition = groups.until("False SchedulerError")
    assert f"podgroup/{scene.name}/train: annotation gpu.topology/role" in condition["message"]
    scene.says(names[0], condition["message"])
    assert groups.get()["status"]["resourceClaimStatuses"] == claim_statuses


def test_a_basic_group_is_scheduled_with_its_first_pod(scene: Scene, groups: Groups) -> None:
    scene.apply(pod_group("replicas", 0))
    scene.runs(scene.create(member("replicas", 0)))
    groups.until("True Scheduled", name="replicas")


def test_the_service_has_the_rights_for_podgroups_and_uses_them(stack: Stack) -> None:
    """e2e/test_rights.py has no API server that serves PodGroups. Run the whole file."""
    roles = yaml.safe_load_all((MANIFESTS / "rbac-service.yaml").read_text())
    of_groups = {grant for grant in grants(roles) if "podgroups.scheduling.k8s.io" in grant.resource}
    sent = {*requests(stack.cluster.audit_log.read_text().splitlines())}
    assert {grant.verb for grant in of_groups} == {"list", "watch", "patch"}
    assert not unused(of_groups, sent, {})
    assert not refused(of_groups, sent)


# --- trees -----------------------------------------------------------------------------------------


def waits(scene: Scene, name: str, words: str) -> None:
    """Wait until the pod says with these words for what its gang waits."""
    scene.until(
        lambda: words in scene.conditions(name).get(WAITING, {}).get("message", ""),
        f"{name} says that its gang waits: {words}",
    )


def test_the_groups_of_a_tree_start_jointly(scene: Scene, groups: Groups) -> None:
    """`small` alone would take node a, the tightest for its GPUs. Then `large` would fit nowhere."""
    scene.apply(composite("tree", 2), part("small", 2, schedulingConstraints=IN_A_RACK), part("large", 1))
    small = members(scene, "small", 2, gpus=3)
    large = members(scene, "large", 1, gpus=6)
    scene.runs([*small, *large])
    assert (racks(scene, small), racks(scene, large)) == ({"r2"}, {"r1"})
    for name in ("small", "large"):
        groups.until("True Scheduled", name=name)


def test_a_tree_starts_with_as_many_groups_as_it_needs(scene: Scene) -> None:
    scene.apply(composite("tree", 1, schedulingConstraints=IN_A_RACK), part("wide", 2), part("small", 1))
    wide = members(scene, "wide", 2, gpus=6)
    scene.event("TopologyUnplaceable", wide[0])
    small = members(scene, "small", 1, gpus=4)
    scene.runs(small)
    assert scene.bound() == {*small}


def test_a_tree_waits_for_a_parent_that_comes_late(scene: Scene) -> None:
    scene.apply(part("x", 2, parent="middle"), part("y", 1))
    names = [*members(scene, "x", 2), *members(scene, "y", 1)]
    waits(scene, names[0], f"CompositePodGroup {scene.name}/middle does not exist yet")
    scene.apply(composite("middle", 1, parent="tree"))
    waits(scene, names[0], f"CompositePodGroup {scene.name}/tree does not exist yet")
    assert not scene.bound()
    scene.apply(composite("tree", 2, schedulingConstraints=IN_A_RACK))
    scene.runs(names)
    assert len(racks(scene, names)) == 1


def test_parents_that_form_a_circle_are_refused(scene: Scene) -> None:
    scene.apply(composite("tree", 1, parent="other"), composite("other", 1, parent="tree"), part("x", 2))
    names = members(scene, "x", 2)
    fault = f"compositepodgroup/{scene.name}/other: spec.parentCompositePodGroupName"
    scene.says(names[0], fault, "expected no circle of groups")
    assert not scene.bound()
    scene.client.delete(f"{trees(scene)}/other")
    scene.apply(composite("other", 1))
    scene.runs(names)


def trees(scene: Scene) -> str:
    return f"/apis/{API_OF_TREES}/namespaces/{scene.name}/compositepodgroups"


def test_a_running_tree_keeps_its_shape_when_its_root_is_deleted(scene: Scene) -> None:
    scene.apply(composite("tree", 2, schedulingConstraints=IN_A_RACK), part("x", 1), part("y", 1))
    x, y = members(scene, "x", 1, gpus=4), members(scene, "y", 1, gpus=4)
    scene.runs([*x, *y])
    scene.client.delete(f"{trees(scene)}/tree")
    scene.delete(*x)
    scene.create(member("x", 0, gpus=4))
    scene.runs([*x, *y])
    assert racks(scene, [*x, *y]) == {"r2"}
    assert not scene.events("TopologyEvicted")
    scene.delete(*x, *y)
    late = members(scene, "x", 1, gpus=4)
    waits(scene, late[0], f"CompositePodGroup {scene.name}/tree does not exist yet")


def test_a_tree_outlives_a_restart_of_the_service(scene: Scene, stack: Stack) -> None:
    """The new process reads the groups from lists, whatever their order."""
    scene.apply(composite("tree", 2, schedulingConstraints=IN_A_RACK), part("x", 1), part("y", 1))
    x = members(scene, "x", 1, gpus=4)
    waits(scene, x[0], f"0 of 1 are here (spec.schedulingPolicy of PodGroup {scene.name}/y)")
    stack.service.kill()
    stack.restore()
    y = members(scene, "y", 1, gpus=4)
    scene.runs([*x, *y])
    stack.service.kill()
    stack.restore()
    scene.delete(*y)
    scene.create(member("y", 0, gpus=4))
    scene.runs([*x, *y])
    assert racks(scene, [*x, *y]) == {"r2"}
