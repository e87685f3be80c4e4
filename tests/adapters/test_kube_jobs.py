"""What the service reads of jobs, from the watches' sinks into the gangs' coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from local_cluster.patience import HANG_S
from muster.adapters.kube import jobs
from muster.adapters.kube.intake import READ_AT_ONCE, Intake
from muster.dialects.kinds.table import modes_of
from muster.dialects.objects import CustomObject, NodeObject, OwnerReference, PodObject
from muster.dialects.settings import DialectSettings
from muster.gangs.messages.inputs import Input, Tick
from muster.gangs.messages.instructions import EmitEvent, EventReason
from muster.gangs.record.gang import Gang
from tests.adapters.changes import seen, seen_by_name
from tests.adapters.fake_api import gpu_node
from tests.gangs.world import World

Object = dict[str, Any]
QUEUE = {"kai.scheduler/queue": "team"}
TEMPLATE = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}


class Bench:
    """The intake's events go to a coordinator with the real planner."""

    def __init__(self, *modes: str) -> None:
        self.world = World()
        self.posted: list[EmitEvent] = []
        settings = DialectSettings(infer_gangs=modes_of(modes))
        self.leads = True
        self.inbox: asyncio.Queue[Input] | None = None
        """Where inputs wait in place of going to the coordinator."""
        self.intake = Intake(settings, self._put, self.posted.append, leads=lambda: self.leads)

    async def _put(self, message: Input) -> None:
        if self.inbox is None:
            self.world.send(message)
        else:
            await self.inbox.put(message)

    async def start(self, gpus: int = 8) -> Bench:
        self.world.start()
        await self.intake.nodes.on_node(*seen(msgspec.convert(gpu_node("a", gpus), NodeObject)))
        await self.intake.finish_start()
        return self

    async def job(self, kind: str = "PyTorchJob", workers: int = 3, **meta: object) -> None:
        types = {
            "Master": {"replicas": 1, "template": TEMPLATE},
            "Worker": {"replicas": workers, "template": TEMPLATE},
        }
        await self.custom("kubeflow.org/v1", kind, {"pytorchReplicaSpecs": types}, **meta)

    async def custom(self, api_version: str, kind: str, spec: Object, **meta: object) -> None:
        metadata = {"name": "train", "namespace": "ns", "uid": "j", **meta}
        item = {"apiVersion": api_version, "metadata": metadata, "spec": spec}
        await self.intake.jobs.on_job(kind, *seen_by_name(msgspec.convert(item, CustomObject)))

    async def all_read(self) -> None:
        """Wait until all pods are read that a job has read again."""
        if (reader := self.intake._pod_rereads.reader) is not None:
            await asyncio.wait_for(reader, HANG_S)

    async def pods(self, *names: str, node: str = "", **annotations: str) -> None:
        for name in names:
            await self.intake.on_pod(*seen(pod(name, node, **annotations)))

    @property
    def gangs(self) -> list[Gang]:
        return list(self.world.coordinator.state.gangs.values())

    @property
    def gang(self) -> Gang:
        (only,) = self.gangs
        return only

    def events(self, reason: EventReason) -> list[tuple[str, str]]:
        """(kind and name, message) of those that were posted."""
        posted = [*self.posted, *self.world.events]
        return [(f"{e.kind} {e.objects[0][0]}", e.message) for e in posted if e.reason is reason]


def pod(name: str, node: str = "", of_group: str = "", **annotations: str) -> PodObject:
    role, _, _ = name.partition("-")
    group = {"scheduling.run.ai/pod-group": of_group} if of_group else {}
    item = {
        "metadata": {
            "name": f"train-{name}",
            "namespace": "ns",
            "uid": name,
            "labels": {"training.kubeflow.org/replica-type": role, "training.kubeflow.org/job-name": "train"},
            "annotations": group | {f"gpu.topology/{key}": value for key, value in annotations.items()},
            "ownerReferences": [
                {
                    "apiVersion": "kubeflow.org/v1",
                    "kind": "PyTorchJob",
                    "name": "train",
                    "uid": "j",
                    "controller": True,
                }
            ],
        },
        "spec": {"schedulerName": "muster", "nodeName": node, **TEMPLATE["spec"]},
        "status": {"phase": "Running" if node else "Pending"},
    }
    return msgspec.convert(item, PodObject)


ALL = ("master-0", "worker-0", "worker-1", "worker-2")


def needed(bench: Bench) -> dict[str, int]:
    """Return role → the members of the gang that it needs."""
    quorum = bench.gang.group.quorum
    assert quorum is not None
    return {role: leaf.min_members for leaf in quorum.leaves() for role in leaf.roles}


async def test_a_job_with_kais_key_is_one_gang_with_roles() -> None:
    bench = await Bench().start()
    await bench.job(labels=QUEUE)
    await bench.pods(*ALL[:3])
    assert bench.gang.phase == "collecting"
    assert bench.gang.group.size == 4
    await bench.pods(ALL[3])
    assert bench.gang.phase == "planned"
    assert needed(bench) == {"master": 1, "worker": 3}
    assert bench.gang.group.pod_group is not None
    assert bench.gang.group.pod_group.queue == "team"
    assert bench.events(EventReason.NO_GANG) == []


async def test_its_pods_may_come_first() -> None:
    bench = await Bench().start()
    await bench.pods(*ALL)
    assert bench.gang.phase == "collecting"
    assert "PyTorchJob ns/train is not there" in bench.gang.reason
    await bench.job(labels=QUEUE)
    assert bench.gang.phase == "planned"


async def test_without_kais_keys_each_pod_is_alone_and_the_job_says_so_once() -> None:
    bench = await Bench().start()
    await bench.pods(ALL[0])
    await bench.job()
    await bench.pods(*ALL[1:])
    assert [gang.phase for gang in bench.gangs] == ["planned"] * 4
    ((subject, message),) = bench.events(EventReason.NO_GANG)
    assert subject == "PyTorchJob train"
    assert 'gpu.topology/group: train, gpu.topology/min-member: "4"' in message


TPU = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"google.com/tpu": 4}}}]}}


@pytest.mark.parametrize("job_first", [True, False])
async def test_a_job_with_other_accelerators_is_warned_of_too(job_first: bool) -> None:
    """The in-tree plugins place its pods, so they are in no gang."""
    bench = await Bench().start()
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": TPU}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
    if job_first:
        await bench.custom("batch/v1", "Job", spec)
    for name in ("train-0", "train-1"):
        meta = {"name": name, "namespace": "ns", "uid": name, "ownerReferences": [owner]}
        item = {"metadata": meta, "spec": {"schedulerName": "muster", **TPU["spec"]}}
        await bench.intake.on_pod(*seen(msgspec.convert(item, PodObject)))
    if not job_first:
        await bench.custom("batch/v1", "Job", spec)
        await bench.intake.on_pod(*seen(msgspec.convert(item, PodObject)))
    ((subject, message),) = bench.events(EventReason.NO_GANG)
    assert (subject, bench.gangs) == ("Job train", [])
    assert "one gang of 2, annotate each pod template: gpu.topology/group: train" in message
    for name in ("train-0", "train-1"):
        await bench.intake.on_pod(name, None)
    assert bench.intake.jobs._by_uid == {}


async def test_a_leader_that_comes_first_is_warned_of_before_its_workers_come() -> None:
    bench = await Bench().start()
    template = {"size": 3, "workerTemplate": TEMPLATE}
    spec = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": template}
    await bench.custom("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
    labels = {"leaderworkerset.sigs.k8s.io/name": "train", "leaderworkerset.sigs.k8s.io/group-index": "0"}
    labels["leaderworkerset.sigs.k8s.io/worker-index"] = "0"
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "s", "controller": True}
    meta = {"name": "train-0", "namespace": "ns", "uid": "p", "labels": labels, "ownerReferences": [owner]}
    item = {"metadata": meta, "spec": {"schedulerName": "muster", **TEMPLATE["spec"]}}
    await bench.intake.on_pod(*seen(msgspec.convert(item, PodObject)))
    ((subject, message),) = bench.events(EventReason.NO_GANG)
    assert subject == "LeaderWorkerSet train"
    assert "its 3 pods name no gang" in message
    assert "one gang of 3, of which 1 comes first, set infer_gangs to on" in message


async def test_a_number_of_the_pods_that_is_not_their_jobs_is_said_once_on_the_job() -> None:
    bench = await Bench().start()
    await bench.pods(*ALL, group="g", **{"min-member": "6"})
    assert bench.events(EventReason.COUNTS_DIFFER) == []
    await bench.job()
    await bench.pods(*ALL, group="g", **{"min-member": "7"})
    ((subject, message),) = bench.events(EventReason.COUNTS_DIFFER)
    assert subject == "PyTorchJob train"
    assert "it makes 4 pods at once, and they say gpu.topology/min-member: 6" in message
    assert bench.gang.phase == "collecting"
    assert bench.events(EventReason.NO_GANG) == []


def pod_group(least: int) -> tuple[str, CustomObject]:
    meta = {"name": "g", "namespace": "ns", "uid": "g"}
    item = {"apiVersion": "scheduling.run.ai/v2", "metadata": meta, "spec": {"minMember": least}}
    return seen(msgspec.convert(item, CustomObject))


@pytest.mark.parametrize("first", ["job", "pods", "group"])
async def test_a_pod_groups_number_above_that_of_its_job_is_said_on_the_job(first: str) -> None:
    """Whichever comes first. Nothing is refused: another job may make the other pods."""
    bench = await Bench().start()

    async def group() -> None:
        await bench.intake.on_pod_group(*pod_group(6))

    async def pods() -> None:
        for name in ALL:
            await bench.intake.on_pod(*seen(pod(name, of_group="g")))

    steps = {"job": bench.job, "group": group, "pods": pods}
    for step in (steps.pop(first), *steps.values(), pods, group):
        await step()
    ((subject, message),) = bench.events(EventReason.COUNTS_DIFFER)
    assert subject == "PyTorchJob train"
    assert "it makes 4 pods at once, and their PodGroup g says minMember: 6. That counts" in message
    assert bench.gang.phase == "collecting"


async def test_a_pod_groups_number_counts_in_place_of_that_of_its_pods() -> None:
    bench = await Bench().start()
    await bench.job()
    await bench.intake.on_pod_group(*pod_group(4))
    for name in ALL:
        await bench.intake.on_pod(*seen(pod(name, of_group="g", **{"min-member": "6"})))
    assert bench.events(EventReason.COUNTS_DIFFER) == []


async def test_a_pod_groups_number_may_be_smaller() -> None:
    bench = await Bench().start()
    await bench.job()
    await bench.intake.on_pod_group(*pod_group(3))
    for name in ALL:
        await bench.intake.on_pod(*seen(pod(name, of_group="g")))
    assert bench.events(EventReason.COUNTS_DIFFER) == []


async def test_a_pod_that_names_its_gang_itself_leaves_that_of_its_job() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(ALL[0])
    await bench.pods(ALL[0], group="mine", **{"min-member": "2"})
    assert bench.gang.name[2] == "mine"
    assert bench.world.coordinator.state.roster.pod_groups == {}
    await bench.intake.on_pod(ALL[0], None)
    assert bench.intake.jobs._by_uid == {}


@pytest.mark.parametrize(
    ("mode", "gangs", "warnings"), [("on", 1, 0), ("off", 4, 0), ("PyTorchJob=on", 1, 0)]
)
async def test_the_setting(mode: str, gangs: int, warnings: int) -> None:
    bench = await Bench(mode).start()
    await bench.job()
    await bench.pods(*ALL)
    assert len(bench.gangs) == gangs
    assert len(bench.events(EventReason.NO_GANG)) == warnings


async def test_a_kind_that_is_not_served_holds_nobody_up() -> None:
    bench = await Bench().start()
    await bench.pods(*ALL[:2])
    assert bench.gang.phase == "collecting"
    await bench.intake.jobs.on_absence("PyTorchJob", True)
    await bench.pods(*ALL[2:])
    assert [gang.phase for gang in bench.gangs] == ["planned"] * 4
    ((subject, message),) = bench.events(EventReason.NO_GANG)
    assert subject == "PyTorchJob train"
    assert "the service can't read pytorchjobs.kubeflow.org" in message
    await bench.intake.jobs.on_absence("PyTorchJob", False)
    await bench.job(labels=QUEUE)
    assert bench.gang.group.needed == 4


@pytest.mark.parametrize(
    ("mode", "names"), [("off", ALL), ("warn", ALL[:1])], ids=["it is off", "one pod alone"]
)
async def test_a_kind_that_is_not_served_is_no_news(mode: str, names: tuple[str, ...]) -> None:
    bench = await Bench(mode).start()
    await bench.intake.jobs.on_absence("PyTorchJob", True)
    await bench.pods(*names)
    assert len(bench.gangs) == len(names)
    assert bench.events(EventReason.NO_GANG) == []


async def test_a_job_that_is_deleted_while_its_pods_start_splits_nothing() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(*ALL[:3])
    await bench.intake.jobs.on_job("PyTorchJob", "ns/train", None)
    assert bench.gang.phase == "collecting"
    await bench.pods(*ALL[:2], node="a")  # bound before it went
    assert (bench.gang.group.needed, bench.world.evictions) == (4, [])
    for name in ALL[:3]:
        await bench.intake.on_pod(name, None)
    assert (bench.gangs, dict(bench.world.coordinator.state.roster.pod_groups)) == ([], {})


def orphan(name: str, node: str = "") -> PodObject:
    """The pod after `kubectl delete --cascade=orphan` of its job."""
    changed_pod = pod(name, node)
    return msgspec.structs.replace(
        changed_pod, metadata=msgspec.structs.replace(changed_pod.metadata, owner_references=None)
    )


@pytest.mark.parametrize("deleted_first", [False, True])
async def test_pods_whose_job_is_deleted_without_them_stay_one_gang(deleted_first: bool) -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(*ALL[:3])
    if deleted_first:
        await bench.intake.jobs.on_job("PyTorchJob", "ns/train", None)
    for name in ALL[:3]:
        await bench.intake.on_pod(*seen(orphan(name)))
    if not deleted_first:
        await bench.intake.jobs.on_job("PyTorchJob", "ns/train", None)
    assert (bench.gang.phase, bench.gang.group.needed) == ("collecting", 4)
    await bench.intake.on_pod(*seen(orphan(ALL[0], node="a")))
    assert (len(bench.gangs), bench.world.evictions) == (1, [])
    for name in ALL[:3]:
        await bench.intake.on_pod(name, None)
    assert (bench.gangs, bench.intake.jobs._places, bench.intake.jobs._jobs) == ([], {}, {})


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that are deleted are reported at once."""
    monkeypatch.setattr(jobs, "GONE_S", 0.0)


async def turn() -> None:
    """Let what the event loop was given run."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("at_once")
async def test_that_a_job_was_deleted_without_its_pods_is_said_once_on_the_first_that_waits() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(*ALL[:3])
    for _ in range(2):
        await bench.intake.jobs.on_job("PyTorchJob", "ns/train", None)
        await turn()
    assert bench.events(EventReason.JOB_GONE) == [
        ("Pod train-master-0", "PyTorchJob ns/train was deleted; its last count, 4, holds")
    ]
    await bench.job()
    await bench.intake.jobs.on_job("PyTorchJob", "ns/train", None)
    await turn()
    assert len(bench.events(EventReason.JOB_GONE)) == 2


GONE = {"pods that are deleted with it": "on", "pods that run": "on", "pods that are alone": "off"}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("case", GONE)
async def test_that_a_job_was_deleted_is_no_news_for(case: str) -> None:
    bench = await Bench(GONE[case]).start()
    await bench.job()
    await bench.pods(*ALL, node="a" if case == "pods that run" else "")
    await bench.intake.jobs.on_job("PyTorchJob", "ns/train", None)
    if case == "pods that are deleted with it":
        for name in ALL:
            await bench.intake.on_pod(name, None)
    await turn()
    assert bench.events(EventReason.JOB_GONE) == []


async def test_more_pods_than_the_job_makes_are_said_once_on_the_job() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(*ALL)
    assert bench.events(EventReason.COUNTS_DIFFER) == []
    await bench.pods("worker-3", "worker-4")
    assert bench.events(EventReason.COUNTS_DIFFER) == [
        ("PyTorchJob train", "it makes 4 pods of gang train, and 5 are there: all are placed if they fit")
    ]
    assert (len(bench.gangs), bench.world.evictions) == (1, [])


async def test_pods_that_have_ended_or_are_being_deleted_are_not_too_many() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(*ALL)
    for name, change in (("worker-0", {"phase": "Failed"}), ("worker-1", {})):
        changed_pod = pod(name)
        deleted = "" if change else "2026-01-01T00:00:00Z"
        meta = msgspec.structs.replace(changed_pod.metadata, deletion_timestamp=deleted or None)
        status = msgspec.structs.replace(changed_pod.status, **change)
        await bench.intake.on_pod(*seen(msgspec.structs.replace(changed_pod, metadata=meta, status=status)))
    await bench.pods("worker-3", "worker-4")
    assert bench.events(EventReason.COUNTS_DIFFER) == []


async def test_a_pod_that_another_controller_adopts_is_the_jobs_no_more() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(*ALL[:3])
    changed_pod = orphan(ALL[0])
    by = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    owner = msgspec.convert(by, OwnerReference)
    meta = msgspec.structs.replace(changed_pod.metadata, owner_references=[owner])
    await bench.intake.on_pod(*seen(msgspec.structs.replace(changed_pod, metadata=meta)))
    assert sorted(gang.phase for gang in bench.gangs) == ["collecting", "planned"]


async def test_a_pod_that_never_was_a_member_is_none_by_its_labels() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.intake.on_pod(*seen(orphan(ALL[0])))
    assert bench.gang.phase == "planned"


async def test_a_count_that_changes_counts_for_the_pods_that_wait() -> None:
    bench = await Bench("on").start()
    await bench.job(workers=3)
    await bench.pods(*ALL[:3])
    assert bench.gang.phase == "collecting"
    await bench.job(workers=2)
    assert bench.gang.phase == "planned"


async def test_a_key_that_comes_later_makes_a_gang_of_those_that_wait() -> None:
    bench = await Bench().start(gpus=2)
    await bench.job()
    await bench.pods(*ALL)
    assert len(bench.gangs) == 4
    await bench.job(labels=QUEUE)
    assert bench.gang.group.needed == 4


async def test_a_job_that_becomes_a_gang_and_is_one_no_more_again_and_again_splits_nothing() -> None:
    """Its key comes and goes while its pods wait for capacity."""
    bench = await Bench().start(gpus=3)
    await bench.pods(*ALL)
    for _ in range(5):
        await bench.job(labels=QUEUE)
        await bench.all_read()
        assert (bench.gang.phase, bench.gang.group.size) == ("unplaceable", 4)
        await bench.job()
        await bench.all_read()
        assert sorted(gang.phase for gang in bench.gangs) == ["planned"] * 3 + ["unplaceable"]
    assert len(bench.events(EventReason.NO_GANG)) == 1


async def test_what_the_pods_say_comes_first() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(*ALL, group="mine", **{"min-member": "3"})
    assert (bench.gang.name[2], bench.gang.group.needed) == ("mine", 3)
    assert bench.world.coordinator.state.roster.pod_groups == {}


async def test_a_count_larger_than_the_jobs_is_refused_and_both_are_named() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(*ALL, **{"min-member": "9"})
    assert bench.gang.phase == "invalid"
    assert "PyTorchJob ns/train has min-member: 4" in bench.gang.reason
    messages = [
        message for subject, message in bench.events(EventReason.INVALID) if subject == "PyTorchJob train"
    ]
    assert "min-member: 9" in messages[0]


async def test_an_ill_formed_key_makes_the_gang_invalid_and_names_the_job() -> None:
    bench = await Bench().start()
    await bench.job(annotations={"kai.scheduler/topology-required-placement": "no label"})
    await bench.pods(*ALL)
    assert bench.gang.phase == "invalid"
    assert "pytorchjob/ns/train: annotation kai.scheduler/topology-required-placement" in bench.gang.reason


async def test_a_misspelt_key_makes_the_gang_invalid_and_names_it() -> None:
    """The key is kept, though nothing else of that name is."""
    bench = await Bench().start()
    await bench.job(annotations={"kai.scheduler/topology-required-placment": "topology.kubernetes.io/rack"})
    await bench.pods(*ALL)
    assert bench.gang.phase == "invalid"
    assert "did you mean kai.scheduler/topology-required-placement?" in bench.gang.reason


async def test_a_key_that_belongs_on_the_pods_is_said_once_on_the_job() -> None:
    bench = await Bench("on").start()
    await bench.job(annotations={"gpu.topology/scope": "rack"})
    await bench.pods(*ALL)
    ((subject, message),) = bench.events(EventReason.KEY_IGNORED)
    assert subject == "PyTorchJob train"
    assert message == "gpu.topology/scope has no effect on the job: it belongs on the pod template"


async def test_kais_keys_on_pods_that_no_job_makes_are_said_once_for_each_gang() -> None:
    bench = await Bench().start()

    def bare(name: str, gang: str = "") -> PodObject:
        changed_pod = orphan(name)
        keys = {"kai.scheduler/segment-size": "2", **({"gpu.topology/group": gang} if gang else {})}
        return msgspec.structs.replace(
            changed_pod, metadata=msgspec.structs.replace(changed_pod.metadata, annotations=keys)
        )

    for name, of in (("a", "g"), ("b", "g"), ("c", ""), ("c", "")):
        await bench.intake.on_pod(*seen(bare(name, of)))
    events = bench.events(EventReason.KEY_IGNORED)
    assert [subject for subject, _ in events] == ["Pod train-a", "Pod train-c"]
    assert events[0][1] == (
        "annotation kai.scheduler/segment-size has no effect, since the gang is not read from a job: "
        "write gpu.topology/segment-size"
    )
    for name in "abc":
        await bench.intake.on_pod(name, None)
    assert not bench.intake.jobs._ignored._pods.groups


async def test_keys_of_the_object_that_made_the_job_count() -> None:
    bench = await Bench().start()
    maker = {"apiVersion": "ray.io/v1", "metadata": {"name": "r", "namespace": "ns", "labels": QUEUE}}
    by = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "r", "uid": "r", "controller": True}
    spec = {
        "headGroupSpec": {"template": {"spec": {}}},
        "workerGroupSpecs": [{"groupName": "gpus", "replicas": 1, "template": TEMPLATE}],
    }
    await bench.custom("ray.io/v1", "RayCluster", spec, ownerReferences=[by])
    worker = pod("worker-0")
    owner = msgspec.structs.replace(
        worker.metadata.owner_references[0],  # type: ignore[index]
        api_version="ray.io/v1",
        kind="RayCluster",
    )
    meta = msgspec.structs.replace(
        worker.metadata, labels={"ray.io/group": "gpus", "ray.io/cluster": "train"}, owner_references=[owner]
    )
    await bench.intake.on_pod(*seen(msgspec.structs.replace(worker, metadata=meta)))
    assert bench.gang.group.needed == 1
    await bench.intake.jobs.on_maker("RayJob", *seen_by_name(msgspec.convert(maker, CustomObject)))
    assert needed(bench) == {"gpus": 1, "headgroup": 1}


async def test_pods_of_other_schedulers_are_not_looked_at() -> None:
    bench = await Bench("on").start()
    await bench.job()
    foreign_pod = pod("worker-0")
    foreign_pod = msgspec.structs.replace(
        foreign_pod, spec=msgspec.structs.replace(foreign_pod.spec, scheduler_name="default-scheduler")
    )
    await bench.intake.on_pod(*seen(foreign_pod))
    assert bench.gangs == []
    assert bench.world.coordinator.state.roster.pod_groups == {}


async def test_bound_pods_that_were_read_before_their_job_are_what_it_says() -> None:
    bench = await Bench().start()
    await bench.pods(*ALL[:2], node="a")
    assert len(bench.gangs) == 1  # perhaps a gang
    await bench.job()
    assert len(bench.gangs) == 2  # as they were placed
    await bench.job(labels=QUEUE)
    assert len(bench.gangs) == 2  # and what runs stays as it is


def of_set(name: str, statefulset: str, index: int) -> PodObject:
    """A pod of group 0 of a LeaderWorkerSet."""
    changed_pod = pod(name)
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": statefulset, "uid": statefulset}
    labels = {
        "leaderworkerset.sigs.k8s.io/name": "train",
        "leaderworkerset.sigs.k8s.io/group-index": "0",
        "leaderworkerset.sigs.k8s.io/worker-index": str(index),
    }
    by = msgspec.convert({**owner, "controller": True}, type(changed_pod.metadata.owner_references[0]))  # type: ignore[index]
    meta = msgspec.structs.replace(changed_pod.metadata, name=name, labels=labels, owner_references=[by])
    return msgspec.structs.replace(changed_pod, metadata=meta)


async def test_no_template_is_to_name_the_gang_of_a_group_that_is_not_read() -> None:
    bench = await Bench().start()
    await bench.intake.jobs.on_absence("LeaderWorkerSet", True)
    await bench.intake.on_pod(*seen(of_set("train-0", "train", 0)))
    await bench.intake.on_pod(*seen(of_set("train-0-1", "train-0", 1)))
    ((_, message),) = bench.events(EventReason.NO_GANG)
    assert message.endswith("the right is missing (scheduler-config/jobs)")


async def test_workers_that_come_after_their_leader_are_of_its_gang() -> None:
    bench = await Bench("on").start()
    groups = {"size": 3, "workerTemplate": TEMPLATE}
    spec = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": groups}
    await bench.custom("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
    leader = of_set("train-0", "train", 0)
    await bench.intake.on_pod(*seen(leader))
    assert (bench.gang.phase, bench.gang.group.needed) == ("planned", 1)
    bench.world.reserve(gang="train-0")
    bench.world.permit("train-0")
    spec_of_bound = msgspec.structs.replace(leader.spec, node_name="a")
    await bench.intake.on_pod(*seen(msgspec.structs.replace(leader, spec=spec_of_bound)))
    assert bench.gang.phase == "running"
    key = bench.gang.key
    for number in (1, 2):
        await bench.intake.on_pod(*seen(of_set(f"train-0-{number}", "train-0", number)))
    bench.world.wait(0)
    assert (bench.gang.key, bench.gang.phase) == (key, "planned")
    assert len(bench.gang.group.bound) == 1


async def test_pods_that_come_later_are_not_too_many() -> None:
    bench = await Bench("on").start()
    groups = {"size": 3, "workerTemplate": TEMPLATE}
    spec = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": groups}
    await bench.custom("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
    for number in range(3):
        name = f"train-0-{number}" if number else "train-0"
        await bench.intake.on_pod(*seen(of_set(name, "train-0" if number else "train", number)))
    assert bench.events(EventReason.COUNTS_DIFFER) == []


async def test_a_change_that_says_nothing_new_reads_no_pod_again() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.pods(*ALL)
    read = bench.intake._take_pod
    again: list[str] = []

    async def noted(obj: PodObject) -> None:
        again.append(obj.metadata.name)
        await read(obj)

    bench.intake._take_pod = noted  # type: ignore[method-assign]
    await bench.job(annotations={"example.com/step": "2"})
    await bench.job(workers=2)
    assert again == []
    assert bench.gang.group.needed == 3
    await bench.job(workers=2, labels={"kai.scheduler/skip-podgrouper": "true"})
    assert len(again) == 4
    assert len(bench.gangs) == 4


async def test_a_job_that_is_a_gang_and_none_in_turn_has_few_of_its_pods_read_at_once() -> None:
    bench = await Bench("on").start()
    worker_count = 3 * READ_AT_ONCE
    await bench.job(workers=worker_count)
    await bench.pods("master-0", *(f"worker-{i}" for i in range(worker_count)))
    read, again, all_read = bench.intake._take_pod, list[str](), asyncio.Event()

    async def noted(obj: PodObject) -> None:
        again.append(obj.metadata.name)
        await read(obj)
        if len(bench.gangs) == 1 + worker_count:
            all_read.set()

    bench.intake._take_pod = noted  # type: ignore[method-assign]
    for label in ("true", "", "true"):
        await bench.job(
            workers=worker_count, labels={"kai.scheduler/skip-podgrouper": label} if label else {}
        )
    assert len(again) < 2 * READ_AT_ONCE
    await asyncio.wait_for(all_read.wait(), HANG_S)


async def test_an_object_that_makes_jobs_has_those_of_its_namespace_alone_read_again() -> None:
    bench = await Bench("on").start()
    read = list[tuple[str, str, str]]()

    async def noted(keys: Iterable[tuple[str, str, str]]) -> None:
        read.extend(keys)

    await bench.custom("ray.io/v1", "RayCluster", {}, namespace="other")
    await bench.custom("ray.io/v1", "RayCluster", {})
    bench.intake.jobs._read_jobs = noted  # type: ignore[method-assign]
    maker = {"metadata": {"name": "maker", "namespace": "ns", "uid": "m", "labels": QUEUE}}
    await bench.intake.jobs.on_maker("RayJob", *seen_by_name(msgspec.convert(maker, CustomObject)))
    assert read == [("RayCluster", "ns", "train")]


async def test_what_a_job_is_not_read_for_takes_no_memory() -> None:
    """Anybody may create large jobs: long strings, deep levels and containers are not kept."""
    bench = await Bench().start()
    deep: Any = "x"
    for _ in range(400):
        deep = {"a": deep}
    large = "x" * 100_000
    container = {**TEMPLATE["spec"]["containers"][0], "env": [{"name": large[:1000]}] * 1000}
    worker = {
        "replicas": 3,
        "template": {"spec": {"containers": [container], "volumes": [large[:1000]] * 1000}},
    }
    types = {"Master": {"replicas": 1, "template": TEMPLATE}, "Worker": worker}
    spec = {"pytorchReplicaSpecs": types, "note": large, "deep": deep}
    hostile = {"labels": QUEUE, "annotations": {"kubectl.kubernetes.io/last-applied-configuration": large}}
    await bench.custom("kubeflow.org/v1", "PyTorchJob", spec, **hostile)
    (job,) = bench.intake.jobs._jobs.values()
    assert job.text is not None
    assert len(job.text) < 2000
    await bench.pods(*ALL)
    assert bench.gang.group.size == 4


async def test_a_job_and_a_pod_that_go_while_many_are_read_again_are_left_out() -> None:
    bench = await Bench("on").start()
    await bench.job()
    await bench.job(name="other", uid="k")
    await bench.pods("master-0", "worker-0", "worker-1")
    reading = [
        asyncio.create_task(bench.intake.jobs.set_levels((), None)),
        asyncio.create_task(bench.intake.jobs.on_absence("PyTorchJob", absent=True)),
    ]
    await asyncio.sleep(0)
    await bench.intake.on_pod("worker-1", None)
    await bench.intake.jobs.on_job("PyTorchJob", "ns/other", None)
    await asyncio.gather(*reading)
    assert "ns/other" not in {f"{key[1]}/{key[2]}" for key in bench.intake.jobs._jobs}
    assert {pod.name for pod in bench.world.coordinator.state.roster.pods.values()} <= {
        "train-master-0",
        "train-worker-0",
    }


async def test_a_pod_that_goes_while_it_is_read_again_is_gone() -> None:
    """A reading waits while the inbox is full, and the pod goes meanwhile."""
    bench = await Bench().start()
    await bench.job()
    await bench.pods("worker-0")
    inbox = asyncio.Queue[Input](1)
    bench.inbox = inbox
    inbox.put_nowait(Tick(bench.world.now))
    readings = asyncio.gather(bench.job(labels=QUEUE), bench.intake.on_pod("worker-0", None))
    while not readings.done() or not inbox.empty():
        await asyncio.sleep(0)
        if inbox.full():
            bench.world.send(inbox.get_nowait())
    await readings
    assert not bench.world.coordinator.state.roster.pods
