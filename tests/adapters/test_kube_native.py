"""PodGroups of Kubernetes' own API in the intake: late, deleted, made anew, basic, foreign, not served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.adapters import turns
from muster.adapters.kube import decode
from muster.adapters.kube.client import KubeClient
from muster.adapters.kube.intake import (
    MAX_ANNOTATION,
    MAX_ANNOTATIONS,
    READ_AT_ONCE,
    Intake,
    without_labels,
)
from muster.adapters.kube.watch import Watcher
from muster.adapters.telemetry.metrics import Metrics
from muster.config import Watch
from muster.dialects import keys
from muster.dialects.gangs import native
from muster.dialects.kinds.description import JobPod
from muster.dialects.objects import CustomObject, Metadata, PodObject, WorkloadObject
from muster.dialects.settings import DEFAULTS
from muster.domain.pod import COMPOSITE, KUBERNETES, Pod
from muster.domain.podgroup import SCHEDULED, Condition, PodGroup, PodGroupKey
from muster.gangs.messages.inputs import Input, PodGroupGone, PodGroupSeen, PodSeen
from tests.adapters.changes import seen
from tests.adapters.fake_api import FakeApi, custom, gpu_pod, kubeconfig
from tests.adapters.heard import Heard

API = "scheduling.k8s.io/v1beta1"
GANG = {"schedulingPolicy": {"gang": {"minCount": 2}}}
BASIC: dict[str, Any] = {"schedulingPolicy": {"basic": {}}}
Object = dict[str, Any]
WAITS: Object = {
    "type": SCHEDULED,
    "status": "False",
    "reason": "Unschedulable",
    "message": "No room.",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
KEY = ("default", KUBERNETES, "x")


class Bench:
    """An intake, and the newest facts that it passed on."""

    def __init__(self) -> None:
        self.events: list[Input] = []
        self.intake = Intake(DEFAULTS, self._put, lambda _: None)

    async def _put(self, message: Input) -> None:
        self.events.append(message)

    async def sees_pod(self, name: str = "p0", **spec: Any) -> None:
        item = gpu_pod(name, 1)
        item["metadata"]["labels"] = spec.pop("labels", {})
        item["spec"] |= {"schedulerName": "muster", "schedulingGroup": {"podGroupName": "x"}, **spec}
        item["status"] = {"phase": item["spec"].pop("phase", "Pending")}
        if job := item["spec"].pop("job", ""):
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}
            item["metadata"]["ownerReferences"] = [owner]
        await self.intake.on_pod(*seen(decode.pods().item(json.dumps(item).encode())))

    async def sees_group(
        self, spec: dict[str, Any], uid: str = "g", condition: Object | None = None, **metadata: Any
    ) -> None:
        item = custom(API, "PodGroup", "x", spec, uid=uid, **metadata)
        item["status"] = {"conditions": [condition] if condition else []}
        await self.intake.on_pod_group(*seen(msgspec.convert(item, CustomObject)))

    async def sees_workload(self, annotations: dict[str, str] | None, name: str = "w") -> None:
        item = WorkloadObject(Metadata(name, namespace="default", annotations=annotations))
        await self.intake.on_workload(f"default/{name}", item if annotations is not None else None)

    async def sees_job(self, parallelism: int, name: str = "train") -> None:
        template = {"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
        spec = {"parallelism": parallelism, "completions": parallelism, "template": template}
        item = msgspec.convert(custom("batch/v1", "Job", name, spec), CustomObject)
        await self.intake.jobs.on_job("Job", f"default/{name}", item)

    async def deletes_group(self, uid: str = "g") -> None:
        await self.intake.on_pod_group(uid, None)

    async def sees(
        self,
        kind: str,
        name: str,
        least: int,
        parent: str = "",
        uid: str = "",
        workload: str = "w",
        condition: Object | None = None,
        **metadata: Any,
    ) -> None:
        """A group of a tree, with `name` as its UID unless said otherwise; with `least` 0 it is basic."""
        count = "minGroupCount" if kind == COMPOSITE else "minCount"
        spec: dict[str, Any] = {
            "schedulingPolicy": {"gang": {count: least}} if least else {"basic": {}},
            "workloadRef": {"workloadName": workload, "templateName": "t"},
        }
        spec |= {"parentCompositePodGroupName": parent} if parent else {}
        item = custom("scheduling.k8s.io/v1alpha3", kind, name, spec, uid=uid or f"{kind}/{name}", **metadata)
        item["status"] = {"conditions": [condition] if condition else []}
        await self.intake.on_pod_group(*seen(msgspec.convert(item, CustomObject)))

    async def sees_tree(self, least: int = 2) -> None:
        """Root t, with PodGroups x and y."""
        await self.sees(COMPOSITE, "t", least)
        await self.sees("PodGroup", "x", 2, "t")
        await self.sees("PodGroup", "y", 2, "t")

    async def deletes(self, kind: str, name: str) -> None:
        await self.deletes_group(f"{kind}/{name}")

    def gang(self, name: str, kind: str = COMPOSITE) -> PodGroup | None:
        """The facts of this gang that count now."""
        for event in reversed(self.events):
            if isinstance(event, PodGroupSeen) and event.group.key == ("default", kind, name):
                return event.group
            if isinstance(event, PodGroupGone) and event.key == ("default", kind, name):
                return None
        return None

    def place(self, name: str = "p0") -> tuple[str, str, str]:
        """Kind and name of the pod's gang, and its role."""
        claim = self.pod(name).claim
        assert claim is not None
        return claim.dialect, claim.name, claim.topology_request.role

    def pod(self, name: str = "p0") -> Pod:
        return next(
            event.pod
            for event in reversed(self.events)
            if isinstance(event, PodSeen) and event.pod.name == name
        )

    def dialect(self, name: str = "p0") -> str:
        claim = self.pod(name).claim
        assert claim is not None
        return claim.dialect

    def group(self) -> PodGroup | None:
        """The facts that count now; None if there is no gang."""
        last = [event for event in self.events if isinstance(event, PodGroupSeen | PodGroupGone)]
        return last[-1].group if last and isinstance(last[-1], PodGroupSeen) else None

    def says(self) -> Collection[str]:
        group = self.group()
        return [str(cause) for cause in group.causes] if group is not None else []


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_pods_wait_for_a_group_that_comes_late(bench: Bench) -> None:
    await bench.sees_pod()
    assert (bench.dialect(), bench.group()) == (KUBERNETES, None)
    await bench.sees_group(GANG)
    group = bench.group()
    assert group is not None
    assert (group.key, group.min_member) == (KEY, 2)
    assert [type(event) for event in bench.events] == [PodSeen, PodGroupSeen]


async def test_a_basic_group_that_comes_late_frees_its_pods(bench: Bench) -> None:
    await bench.sees_pod()
    await bench.sees_pod("bound", nodeName="n")
    await bench.sees_group(BASIC)
    assert (bench.dialect(), bench.dialect("bound")) == ("gputopology", "gputopology")
    group = bench.group()
    assert group is not None
    assert not group.makes_gang


async def test_a_changed_number_is_passed_on(bench: Bench) -> None:
    await bench.sees_group(GANG)
    await bench.sees_group({"schedulingPolicy": {"gang": {"minCount": 3}}})
    await bench.sees_group({"schedulingPolicy": {"gang": {"minCount": 3}}}, resourceVersion="9")
    assert [event.group.min_member for event in bench.events if isinstance(event, PodGroupSeen)] == [2, 3]


async def test_a_group_that_is_deleted_holds_its_waiting_pods(bench: Bench) -> None:
    await bench.sees_pod()
    await bench.sees_group(GANG)
    await bench.deletes_group()
    assert bench.group() is None
    assert isinstance(bench.events[-1], PodGroupGone)
    assert bench.events[-1].key == KEY


async def test_a_basic_group_that_is_deleted_holds_its_waiting_pods_too(bench: Bench) -> None:
    await bench.sees_group(BASIC)
    await bench.sees_pod()
    await bench.deletes_group()
    assert (bench.dialect(), bench.group()) == (KUBERNETES, None)


async def test_a_group_made_anew_with_another_policy_is_read_anew(bench: Bench) -> None:
    await bench.sees_group(GANG)
    await bench.sees_pod()
    await bench.deletes_group()
    await bench.sees_group(BASIC, "new")
    assert (bench.dialect(), bench.group()) == ("gputopology", None)
    await bench.deletes_group("new")
    await bench.sees_group(GANG, "newest")
    group = bench.group()
    assert group is not None
    assert (bench.dialect(), group.uid) == (KUBERNETES, "newest")


async def test_the_deletion_of_the_object_before_does_not_count(bench: Bench) -> None:
    await bench.sees_group(GANG)
    await bench.sees_group(GANG, "new")
    await bench.deletes_group()
    group = bench.group()
    assert group is not None
    assert group.uid == "new"


async def test_a_deleted_group_counts_until_its_last_running_pod_is_gone(bench: Bench) -> None:
    await bench.sees_group(GANG)
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.sees_pod("p1")
    await bench.deletes_group()
    assert bench.group() is not None
    await bench.sees_pod(nodeName="n", phase="Succeeded")
    assert bench.group() is None


async def test_a_deleted_group_of_running_pods_is_replaced_by_a_new_one(bench: Bench) -> None:
    await bench.sees_group(GANG)
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.deletes_group()
    await bench.sees_group({"schedulingPolicy": {"gang": {"minCount": 3}}}, "new")
    await bench.intake.on_pod(bench.pod().uid, None)
    group = bench.group()
    assert group is not None
    assert (group.uid, group.min_member) == ("new", 3)


async def test_a_group_of_another_namespace_is_no_group_of_its_namesakes_pods(bench: Bench) -> None:
    """Who may write PodGroups in one namespace has no part in the gangs of others."""
    await bench.sees_pod()
    for spec, uid in ((GANG, "gang"), (BASIC, "basic")):
        await bench.sees_group(spec, uid, namespace="other")
        assert bench.dialect() == KUBERNETES
        await bench.deletes_group(uid)
    await bench.sees_group(GANG)
    await bench.sees_group({"schedulingPolicy": {"gang": {"minCount": 1}}}, "theirs", namespace="other")
    await bench.deletes_group("theirs")
    facts = [event.group for event in bench.events if isinstance(event, PodGroupSeen)]
    assert [(group.min_member, bench.pod().namespace) for group in facts if group.key == KEY] == [
        (2, "default")
    ]
    gone = [event.key for event in bench.events if isinstance(event, PodGroupGone)]
    assert {key[0] for key in gone} == {"other"}
    assert isinstance(bench.events[0], PodSeen)
    assert len([event for event in bench.events if isinstance(event, PodSeen)]) == 1


async def test_a_pod_of_another_scheduler_is_named_until_it_ends(bench: Bench) -> None:
    await bench.sees_group(GANG)
    await bench.sees_pod("theirs", schedulerName="other")
    expected = (
        'pod/default/theirs: spec.schedulerName is "other", expected muster, since PodGroup default/x has'
    )
    assert [sentence.startswith(expected) for sentence in bench.says()] == [True]
    await bench.sees_pod("theirs", schedulerName="other", nodeName="n", phase="Running")
    assert len(bench.says()) == 1
    await bench.sees_pod("theirs", schedulerName="other", nodeName="n", phase="Failed")
    assert bench.says() == []


@pytest.mark.parametrize("scheduler", ["other", "muster"])
async def test_a_static_pod_of_a_hostile_node_has_no_part_in_a_group(bench: Bench, scheduler: str) -> None:
    """A kubelet may make a static pod in any namespace, and name any PodGroup there."""
    await bench.sees_group(GANG)
    item = gpu_pod("static", 1)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n", "controller": True}
    item["metadata"] |= {"annotations": {keys.MIRROR: "4f2a"}, "ownerReferences": [owner]}
    membership = {"schedulingGroup": {"podGroupName": "x"}}
    item["spec"] |= {"schedulerName": scheduler, "nodeName": "n", **membership}
    await bench.intake.on_pod(*seen(decode.pods().item(json.dumps(item).encode())))
    assert bench.says() == []
    assert bench.pod("static").claim is None
    await bench.deletes_group()
    assert bench.group() is None


async def test_pods_are_refused_while_pod_groups_are_not_served(bench: Bench) -> None:
    await bench.sees_pod()
    await bench.intake.native_groups.on_absence(True)
    expected = f'podgroup/default/x: apiVersion is "{API}", expected an API that Muster may read'
    assert [sentence.startswith(expected) for sentence in bench.says()] == [True]
    await bench.intake.on_pod(bench.pod().uid, None)
    assert bench.group() is None
    await bench.sees_pod("p1")
    assert len(bench.says()) == 1
    await bench.intake.native_groups.on_absence(False)
    assert bench.group() is None
    await bench.sees_group(GANG)
    assert bench.says() == []


OF_WORKLOAD: dict[str, Any] = {**GANG, "workloadRef": {"workloadName": "w", "templateName": "t"}}


def scope(bench: Bench) -> str | None:
    group = bench.group()
    assert group is not None
    return group.topology_request.required_scope


async def test_the_annotations_of_a_workload_count_while_it_is_there(bench: Bench) -> None:
    await bench.sees_group(OF_WORKLOAD)
    assert scope(bench) is None
    await bench.sees_workload({"gpu.topology/scope": "rack"})
    assert scope(bench) == "rack"
    await bench.sees_workload({"gpu.topology/scope": "node"}, "another")
    await bench.sees_workload({"gpu.topology/scope": "block"})
    assert scope(bench) == "block"
    await bench.sees_workload({"example.com/team": "a"})
    assert scope(bench) is None
    await bench.sees_workload({"gpu.topology/scope": "rack"})
    await bench.sees_workload(None)
    assert scope(bench) is None


async def test_a_workload_may_come_before_its_podgroup(bench: Bench) -> None:
    await bench.sees_workload({"gpu.topology/scope": "rack"})
    await bench.sees_group(OF_WORKLOAD)
    assert scope(bench) == "rack"
    await bench.sees_group(GANG)
    assert scope(bench) is None
    assert [type(event) for event in bench.events] == [PodGroupSeen, PodGroupSeen]


async def test_a_workload_that_does_not_change_passes_nothing_on(bench: Bench) -> None:
    await bench.sees_group(OF_WORKLOAD)
    for _ in range(3):
        await bench.sees_workload({"gpu.topology/scope": "rack"})
    assert len(bench.events) == 2


def size(bench: Bench) -> int | None:
    group = bench.group()
    assert group is not None
    return group.size


async def test_a_gang_expects_the_pods_that_its_job_runs_at_once(bench: Bench) -> None:
    await bench.sees_group(GANG)
    await bench.sees_job(4)
    assert size(bench) == 2
    await bench.sees_pod(job="train")
    assert size(bench) == 4
    await bench.sees_job(8)
    assert size(bench) == 8
    await bench.sees_job(1)
    assert size(bench) == 2  # minCount
    await bench.sees_job(4)
    await bench.intake.on_pod(bench.pod().uid, None)
    assert size(bench) == 2


async def test_a_job_that_is_read_after_its_pods_counts_too(bench: Bench) -> None:
    await bench.sees_pod(job="train")
    await bench.sees_group(GANG)
    assert size(bench) == 2
    await bench.sees_job(4)
    assert size(bench) == 4


async def test_several_jobs_of_one_podgroup_are_not_added_up(bench: Bench) -> None:
    await bench.sees_group(GANG)
    for name in ("master", "worker"):
        await bench.sees_job(4, name)
        await bench.sees_pod(name, job=name)
    assert size(bench) == 2
    await bench.intake.on_pod(bench.pod("master").uid, None)
    assert size(bench) == 4


async def test_members_are_told_of_a_size_before_they_are_seen(bench: Bench) -> None:
    """So the first member makes no gang that begins without the others."""
    await bench.sees_group(GANG)
    await bench.sees_job(4)
    bench.events.clear()
    await bench.sees_pod(job="train")
    assert [type(event) for event in bench.events] == [PodGroupSeen, PodSeen]


async def test_listed_items_have_the_version_of_their_list(tmp_path: Path) -> None:
    """The API server states the version of a built-in kind once in a list, and not in its items."""
    api, heard = FakeApi(), Heard()
    listed_group = custom(API, "PodGroup", "x", GANG)
    del listed_group["apiVersion"], listed_group["kind"]
    api.served[f"/apis/{API}/podgroups"] = [listed_group]
    (resource,) = [resource for resource in decode.pod_groups() if resource.by_right]
    intake = Intake(DEFAULTS, heard.put, lambda _: None)
    async with api.running() as port, KubeClient(kubeconfig(tmp_path, port)) as client:
        watcher = Watcher(client, resource, intake.on_pod_group, Metrics(), Watch(backoff_first_s=0.01))
        task = asyncio.create_task(watcher.run())
        await heard.hears(lambda event: isinstance(event, PodGroupSeen))
        task.cancel()
    (listed,) = [event.group for event in heard.events if isinstance(event, PodGroupSeen)]
    assert (listed.key, listed.api_version, listed.min_member) == (KEY, API, 2)


def test_only_muster_s_annotations_of_a_group_are_kept() -> None:
    annotations = {"gpu.topology/scope": "rack", "gpu.topology/size": "9" * 5000, "example.com/a": "b"}
    annotations |= {f"gpu.topology/{number}": "" for number in range(100)}
    item = custom(API, "PodGroup", "x", GANG, annotations=annotations)  # type: ignore[arg-type]
    texts = without_labels(msgspec.convert(item, CustomObject)).metadata.annotations
    assert texts is not None
    assert len(texts) == MAX_ANNOTATIONS
    assert (texts["gpu.topology/scope"], len(texts["gpu.topology/size"])) == ("rack", MAX_ANNOTATION)
    assert "example.com/a" not in texts


def test_each_version_is_watched_and_an_account_without_the_right_starts() -> None:
    (resource,) = [resource for resource in decode.pod_groups() if resource.by_right]
    assert resource.plural == "podgroups.scheduling.k8s.io"
    assert resource.paths == tuple(f"/apis/{version}/podgroups" for version in native.APIS)
    assert resource.optional


@pytest.mark.parametrize("resource", decode.pod_groups(), ids=lambda resource: resource.plural)
def test_podgroups_of_each_api_have_one_limit_of_their_size(resource: decode.Resource[CustomObject]) -> None:
    large = custom(API, "PodGroup", "x", {"note": "x" * decode.MAX_FREE_BYTES})
    with pytest.raises(decode.Undecodable, match="spec and status have more than 262,144 bytes"):
        resource.item(json.dumps(large).encode())


def test_of_a_workload_the_service_reads_only_its_metadata() -> None:
    resource = decode.WORKLOADS
    assert resource.paths == tuple(f"/apis/{version}/workloads" for version in native.APIS)
    assert (resource.optional, resource.by_right) == (True, True)
    item = custom(API, "Workload", "w", {"podGroupTemplates": "of any form"})
    assert msgspec.to_builtins(resource.item(json.dumps(item).encode())).keys() == {"metadata"}


async def test_a_group_that_is_basic_and_a_gang_in_turn_has_few_pods_read_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its pods are in the gang at once: else those that are read later could start alone."""
    names = [f"p{number}" for number in range(3 * READ_AT_ONCE)]
    await bench.sees_group(BASIC)
    for name in names:
        await bench.sees_pod(name)
    await bench.intake.finish_start()
    names_read: list[str] = []
    read = bench.intake._read_pod

    def count_and_read(obj: PodObject, place_in_job: JobPod | None) -> Pod:
        names_read.append(obj.metadata.name)
        return read(obj, place_in_job)

    monkeypatch.setattr(bench.intake, "_read_pod", count_and_read)
    await bench.sees_group(GANG)
    assert names_read == names[:READ_AT_ONCE]
    assert {bench.dialect(name) for name in names} == {KUBERNETES}
    await bench.intake._pod_rereads.reader  # type: ignore[misc]
    assert names_read == names
    assert {bench.dialect(name) for name in names} == {KUBERNETES}


async def test_the_condition_that_a_gang_shows_is_passed_on(bench: Bench) -> None:
    await bench.sees_group(GANG, generation=2)
    await bench.sees_group(GANG, generation=2, condition=WAITS, resourceVersion="2")
    await bench.sees_group(GANG, generation=2, condition=WAITS, resourceVersion="3")
    groups = [event.group for event in bench.events if isinstance(event, PodGroupSeen)]
    shown = Condition(SCHEDULED, False, "Unschedulable", "No room.")
    assert [group.status for group in groups] == [None, shown]
    assert isinstance(groups[1].status, Condition)
    assert (groups[1].status.since, groups[1].generation) == (WAITS["lastTransitionTime"], 2)


async def test_a_basic_group_begins_with_its_first_bound_pod(bench: Bench) -> None:
    await bench.sees_group(BASIC)
    await bench.sees_pod()
    assert bench.group() is None
    await bench.sees_pod(nodeName="n")
    group = bench.group()
    assert group is not None
    assert (group.makes_gang, group.begun) == (False, True)
    count = len(bench.events)
    await bench.sees_pod(nodeName="n", phase="Succeeded")
    await bench.sees_group(BASIC, resourceVersion="2")
    assert not [event for event in bench.events[count:] if not isinstance(event, PodSeen)]
    await bench.deletes_group()
    assert bench.group() is None


async def test_a_basic_group_that_comes_after_its_bound_pod_has_begun(bench: Bench) -> None:
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.sees_group(BASIC)
    group = bench.group()
    assert group is not None
    assert group.begun


async def test_a_basic_group_made_anew_has_not_begun(bench: Bench) -> None:
    await bench.sees_group(BASIC)
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.sees_pod(nodeName="n", phase="Succeeded")
    await bench.deletes_group()
    await bench.sees_group(BASIC, "new")
    assert bench.group() is None


# --- trees -----------------------------------------------------------------------------------------


IN_T = {
    "parentCompositePodGroupName": "t",
    "workloadRef": {"workloadName": "w", "templateName": "t"},
}
IN_Y = {"schedulingGroup": {"podGroupName": "y"}}


async def test_a_tree_is_one_gang_whatever_comes_first(bench: Bench) -> None:
    await bench.sees_pod()
    assert bench.place() == (KUBERNETES, "x", "")
    await bench.sees("PodGroup", "x", 2, "t")
    assert (bench.place(), bench.gang("x", KUBERNETES)) == ((COMPOSITE, "t", "x"), None)
    await bench.sees("PodGroup", "y", 3, "t")
    assert bench.gang("t") is None
    await bench.sees(COMPOSITE, "t", 2)
    tree = bench.gang("t")
    assert tree is not None
    assert (tree.role_min, tree.causes) == ({"x": 2, "y": 3}, ())
    await bench.sees_pod("p1", **IN_Y)
    assert bench.place("p1") == (COMPOSITE, "t", "y")


async def test_a_bound_pod_moves_with_a_tree_that_comes_late(bench: Bench) -> None:
    """When the service starts, pods may be read before the groups, and each level of groups one by one."""
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.sees("PodGroup", "x", 2, "m")
    await bench.sees_pod(nodeName="n", phase="Running", hostname="changed")
    await bench.sees(COMPOSITE, "m", 1, "t")
    await bench.sees(COMPOSITE, "t", 1)
    assert bench.place() == (COMPOSITE, "t", "x")


async def test_a_group_that_comes_late_is_a_part_of_the_tree(bench: Bench) -> None:
    await bench.sees(COMPOSITE, "t", 1)
    await bench.sees("PodGroup", "x", 2, "t")
    await bench.sees("PodGroup", "y", 2, "t")
    tree = bench.gang("t")
    assert tree is not None
    assert tree.quorum is not None
    assert (tree.quorum.min_parts, len(tree.quorum.parts)) == (1, 2)


async def test_a_root_that_is_deleted_holds_its_waiting_pods(bench: Bench) -> None:
    await bench.sees_tree()
    await bench.sees_pod()
    await bench.deletes(COMPOSITE, "t")
    assert (bench.gang("t"), bench.place()) == (None, (COMPOSITE, "t", "x"))
    await bench.sees(COMPOSITE, "t", 0, uid="new")  # basic, so each PodGroup is a gang
    assert (bench.gang("t"), bench.place()) == (None, (KUBERNETES, "x", ""))
    alone = bench.gang("x", KUBERNETES)
    assert alone is not None
    assert alone.min_member == 2


async def test_a_tree_keeps_its_shape_until_its_last_running_pod_has_ended(bench: Bench) -> None:
    await bench.sees(COMPOSITE, "t", 1)
    await bench.sees(COMPOSITE, "m", 1, "t")
    await bench.sees("PodGroup", "x", 1, "m")
    await bench.sees("PodGroup", "y", 1, "t")
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.sees_pod("p1", nodeName="n", phase="Running", **IN_Y)
    await bench.sees_pod("waits")
    shape = bench.gang("t")
    assert shape is not None
    await bench.deletes(COMPOSITE, "m")
    await bench.deletes(COMPOSITE, "t")
    assert bench.gang("t") == shape
    await bench.sees_pod(nodeName="n", phase="Succeeded")
    assert (bench.gang("t"), bench.place("waits")) == (shape, (COMPOSITE, "t", "x"))
    await bench.sees_pod("p1", nodeName="n", phase="Succeeded", **IN_Y)
    assert (bench.gang("t"), bench.place("waits")) == (None, (COMPOSITE, "m", "x"))


async def test_the_condition_of_a_podgroup_in_a_tree_is_passed_on(bench: Bench) -> None:
    await bench.sees_tree()
    group = custom(API, "PodGroup", "x", GANG | IN_T, uid="PodGroup/x")
    group["status"] = {"conditions": [WAITS]}
    await bench.intake.on_pod_group(*seen(msgspec.convert(group, CustomObject)))
    tree = bench.gang("t")
    assert tree is not None
    shown = {pod_group.name: pod_group.status for pod_group in tree.pod_groups}
    assert shown == {"x": Condition(SCHEDULED, False, "Unschedulable", "No room."), "y": None}


async def test_parents_that_form_a_circle_are_named(bench: Bench) -> None:
    await bench.sees_tree()
    await bench.sees_pod()
    await bench.deletes(COMPOSITE, "t")
    await bench.sees(COMPOSITE, "t", 1, "u", uid="new")
    await bench.sees(COMPOSITE, "u", 1, "t")
    assert bench.place() == (KUBERNETES, "x", "")
    alone = bench.gang("x", KUBERNETES)
    assert alone is not None
    (sentence,) = map(str, alone.causes)
    assert sentence.startswith("compositepodgroup/default/t: spec.parentCompositePodGroupName is ")
    await bench.deletes(COMPOSITE, "u")
    assert (bench.place(), bench.gang("x", KUBERNETES)) == ((COMPOSITE, "u", "x"), None)


async def test_a_pod_of_another_scheduler_in_a_tree_is_named(bench: Bench) -> None:
    await bench.sees_tree()
    await bench.sees_pod("theirs", schedulerName="other", **IN_Y)
    tree = bench.gang("t")
    assert tree is not None
    (sentence,) = map(str, tree.causes)
    assert sentence == (
        'pod/default/theirs: spec.schedulerName is "other", expected muster, since CompositePodGroup '
        "default/t has pods of that scheduler too"
    )
    await bench.intake.on_pod("uid-theirs", None)
    tree = bench.gang("t")
    assert tree is not None
    assert tree.causes == ()


async def test_pods_are_refused_while_trees_are_not_served(bench: Bench) -> None:
    await bench.sees("PodGroup", "x", 2, "t")
    await bench.sees_pod()
    await bench.intake.native_groups.on_absence(True, COMPOSITE)
    tree = bench.gang("t")
    assert tree is not None
    (sentence,) = map(str, tree.causes)
    assert sentence.startswith('compositepodgroup/default/t: apiVersion is "scheduling.k8s.io/v1alpha3"')
    assert "the feature gate CompositePodGroup, the right to read compositepodgroups" in sentence
    await bench.intake.native_groups.on_absence(False, COMPOSITE)
    assert bench.gang("t") is None


async def test_the_number_of_groups_is_not_compared_with_a_job(bench: Bench) -> None:
    await bench.sees(COMPOSITE, "t", 9)
    assert not bench.intake.jobs._groups


def test_trees_are_watched_in_each_version() -> None:
    resource = decode.COMPOSITE_POD_GROUPS
    assert resource.plural == "compositepodgroups.scheduling.k8s.io"
    assert resource.paths == tuple(f"/apis/{version}/compositepodgroups" for version in native.APIS)
    assert (resource.optional, resource.by_right) == (True, True)
    text = b'{"metadata":{"resourceVersion":"1"},"apiVersion":"scheduling.k8s.io/v1alpha3","items":'
    page = resource.page(text + b'[{"metadata":{"name":"t","namespace":"ns","uid":"u"},"spec":{}}]}')
    assert [(item.kind, item.api_version) for item in page.items] == [(COMPOSITE, native.APIS[2])]


async def test_running_pods_of_a_basic_group_are_members_of_the_gang_that_is_made_anew(bench: Bench) -> None:
    await bench.sees_group(BASIC)
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.sees_pod("p1")
    assert (bench.dialect(), bench.dialect("p1")) == ("gputopology", "gputopology")
    await bench.sees_group(GANG, "new")
    await bench.deletes_group()
    assert (bench.dialect(), bench.dialect("p1")) == (KUBERNETES, KUBERNETES)


async def test_a_group_that_changes_all_the_time_has_few_pods_passed_on(bench: Bench) -> None:
    names = [f"p{number}" for number in range(3 * READ_AT_ONCE)]
    for name in names:
        await bench.sees_pod(name)
    await bench.intake.finish_start()
    await bench.sees_group(BASIC, "0")
    bench.events.clear()
    for uid in range(20):
        await bench.deletes_group(str(uid))
        await bench.sees_group(BASIC, str(uid + 1))
    assert len([event for event in bench.events if isinstance(event, PodSeen)]) < 3 * len(names)
    await bench.intake._pod_rereads.reader  # type: ignore[misc]
    assert {bench.dialect(name) for name in names} == {"gputopology"}


async def test_a_pod_keeps_its_own_gang_until_it_is_read(bench: Bench) -> None:
    """Its gang starts as a whole, and the disagreement with the PodGroup is seen when the pod is read."""
    names = [f"p{number}" for number in range(READ_AT_ONCE + 1)]
    await bench.sees_group(BASIC)
    for name in names:
        await bench.sees_pod(name, labels={"gpu-topology": "own", "gpu-topology-replica": "2"})
    await bench.intake.finish_start()
    await bench.sees_group(GANG)
    assert [bench.dialect(name) for name in (names[0], names[-1])] == [KUBERNETES, "ack"]
    await bench.intake._pod_rereads.reader  # type: ignore[misc]
    assert bench.dialect(names[-1]) == KUBERNETES
    assert bench.pod(names[-1]).causes


async def test_a_part_without_podgroups_counts_while_it_is_there(bench: Bench) -> None:
    await bench.sees_tree(1)
    await bench.sees(COMPOSITE, "m", 3, "t", workload="other")
    tree = bench.gang("t")
    assert tree is not None
    (sentence,) = map(str, tree.causes)
    assert sentence.startswith("compositepodgroup/default/m: spec.workloadRef.workloadName is ")
    await bench.deletes(COMPOSITE, "m")
    tree = bench.gang("t")
    assert tree is not None
    assert tree.causes == ()


async def test_nothing_stays_of_a_tree_that_is_deleted_from_below(bench: Bench) -> None:
    await bench.sees_tree()
    for kind, name in (("PodGroup", "x"), ("PodGroup", "y"), (COMPOSITE, "t")):
        await bench.deletes(kind, name)
    assert (bench.gang("t"), bench.intake.native_groups._passed) == (None, {})


SCOPE = {"gpu.topology/scope": "rack"}


async def test_running_pods_move_with_a_tree_that_dissolves_and_comes_back(bench: Bench) -> None:
    await bench.sees(COMPOSITE, "t", 0, annotations=SCOPE)
    await bench.sees("PodGroup", "x", 2, "t")
    await bench.sees_pod(nodeName="n", phase="Running")
    assert bench.place() == (COMPOSITE, "t", "x")
    await bench.sees(COMPOSITE, "t", 0)
    assert bench.place() == (KUBERNETES, "x", "")
    await bench.sees(COMPOSITE, "t", 1, uid="new")
    assert bench.place() == (COMPOSITE, "t", "x")
    await bench.sees(COMPOSITE, "t", 0, uid="newest")
    assert bench.place() == (KUBERNETES, "x", "")


async def test_a_tree_expects_the_pods_of_the_jobs_of_its_podgroups(bench: Bench) -> None:
    def size_of_tree() -> int | None:
        tree = bench.gang("t")
        return tree.size if tree is not None else None

    await bench.sees_tree()
    await bench.sees_job(5)
    assert size_of_tree() == 4
    bench.events.clear()
    await bench.sees_pod(job="train")
    assert [type(event) for event in bench.events] == [PodGroupSeen, PodSeen]
    assert size_of_tree() == 7
    await bench.sees_job(3, "small")
    await bench.sees_pod("p1", job="small", **IN_Y)
    assert size_of_tree() == 8
    await bench.intake.on_pod(bench.pod("p0").uid, None)
    assert size_of_tree() == 5


async def test_an_edit_that_moves_no_pods_looks_at_no_podgroup(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands below one CompositePodGroup."""
    await bench.sees(COMPOSITE, "t", 0)
    names = [f"x{number}" for number in range(400)]
    for name in names:
        await bench.sees("PodGroup", name, 1, "t")
    forest, roots = bench.intake.native_groups._forest, list[PodGroupKey]()
    root_of = forest.root_of

    def note_and_find(key: PodGroupKey) -> PodGroup:
        roots.append(key)
        return root_of(key)

    monkeypatch.setattr(forest, "root_of", note_and_find)
    await bench.sees(COMPOSITE, "t", 0, annotations={"gpu.topology/preferred-scopes": "rack"})
    assert len(roots) > len(names)  # they are one gang from now on
    roots.clear()
    await bench.sees(COMPOSITE, "t", 0, annotations=SCOPE)
    assert {key[1] for key in roots} == {COMPOSITE}


async def test_the_status_of_a_composite_is_not_read(bench: Bench) -> None:
    await bench.sees(COMPOSITE, "t", 2, condition=WAITS)
    assert bench.intake._groups["CompositePodGroup/t"].status is None


async def test_a_deleted_composite_goes_when_its_last_podgroup_is_in_another_tree(
    bench: Bench,
) -> None:
    await bench.sees(COMPOSITE, "t", 1)
    await bench.sees("PodGroup", "x", 1, "t")
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.deletes(COMPOSITE, "t")
    await bench.deletes("PodGroup", "x")
    await bench.sees("PodGroup", "x", 1, "u", uid="new")
    assert (bench.gang("t"), bench.intake.native_groups._deleted) == (None, set())


async def test_a_pod_that_ends_looks_at_no_deleted_group_of_another_tree(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that deletes thousands of groups in one namespace must not slow the pods of others."""
    await bench.sees_group(GANG)
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.sees("PodGroup", "y", 2)
    await bench.sees_pod("p1", nodeName="n", phase="Running", **IN_Y)
    await bench.deletes("PodGroup", "y")
    forest, keys_read = bench.intake.native_groups._forest, list[PodGroupKey]()
    ancestry = forest.ancestry

    def note_and_read(key: PodGroupKey) -> list[PodGroup]:
        keys_read.append(key)
        return ancestry(key)

    monkeypatch.setattr(forest, "ancestry", note_and_read)
    await bench.intake.on_pod(bench.pod("p0").uid, None)
    assert set(keys_read) == {KEY}


async def count_turns(work: Coroutine[Any, Any, None]) -> int:
    """Return how often another task of the loop gets its turn while this work is done."""
    task, count = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        count += 1
    return count


@pytest.mark.parametrize("least", [0, 2], ids=["basic", "gang"])
@pytest.mark.parametrize("deleted_first", [True, False])
async def test_a_running_pod_moves_when_its_podgroup_is_made_anew_below_a_parent(
    bench: Bench, least: int, deleted_first: bool
) -> None:
    await bench.sees(COMPOSITE, "t", 1)
    await bench.sees("PodGroup", "x", least)
    await bench.sees_pod(nodeName="n", phase="Running")
    if deleted_first:
        await bench.deletes("PodGroup", "x")
    await bench.sees("PodGroup", "x", least, "t", uid="new")
    if not deleted_first:
        await bench.deletes("PodGroup", "x")
    assert (bench.place(), bench.gang("x", KUBERNETES)) == ((COMPOSITE, "t", "x"), None)


@pytest.mark.parametrize(("least_before", "least"), [(0, 2), (2, 0)], ids=["made", "dissolved"])
async def test_the_loop_goes_on_while_a_large_tree_is_made_or_dissolved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, least_before: int, least: int
) -> None:
    monkeypatch.setattr(turns, "SLICE_S", 0)
    names = [f"x{number}" for number in range(20)]
    await bench.sees(COMPOSITE, "t", least_before)
    for name in names:
        await bench.sees("PodGroup", name, 2, "t")
    assert await count_turns(bench.sees(COMPOSITE, "t", least)) >= len(names), "one for each PodGroup"
    assert (bench.gang("t") is not None) is bool(least)
    assert all((bench.gang(name, KUBERNETES) is None) is bool(least) for name in names)


async def test_a_podgroup_that_leaves_a_tree_while_it_dissolves_has_its_gang(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLICE_S", 0)
    await bench.sees_tree()
    await bench.sees_pod(nodeName="n", phase="Running")
    edit = asyncio.create_task(bench.sees(COMPOSITE, "t", 0))
    await asyncio.sleep(0)
    await bench.sees("PodGroup", "x", 2, "other")
    await edit
    assert (bench.place(), bench.gang("x", KUBERNETES)) == ((COMPOSITE, "other", "x"), None)
    assert bench.gang("y", KUBERNETES) is not None


async def test_a_group_made_anew_while_deleted_ones_are_forgotten_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLICE_S", 0)
    await bench.sees(COMPOSITE, "t", 1)
    await bench.sees(COMPOSITE, "m", 1, "t")
    await bench.sees("PodGroup", "x", 2, "m")
    await bench.sees_pod(nodeName="n", phase="Running")
    await bench.deletes(COMPOSITE, "t")
    await bench.deletes(COMPOSITE, "m")
    end = asyncio.create_task(bench.intake.on_pod(bench.pod().uid, None))
    await asyncio.sleep(0)
    await bench.sees(COMPOSITE, "m", 1, uid="new")
    await end
    group = bench.gang("m")
    assert group is not None
    assert group.uid == "new"
