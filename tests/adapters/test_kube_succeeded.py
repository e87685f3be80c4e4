"""What Jobs say of pods that have succeeded, from the watches' sinks into the gangs' coordinator."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.adapters.kube.intake import Intake
from muster.dialects.objects import CustomObject, NodeObject, PodObject
from muster.dialects.settings import DialectSettings
from muster.gangs.messages.inputs import Input, JobSeen
from tests.adapters.changes import seen, seen_by_name
from tests.adapters.fake_api import gpu_node
from tests.gangs.world import World


class Bench:
    """The intake's events go to a coordinator with the real planner."""

    def __init__(self) -> None:
        self.world = World().start()
        self.said: list[tuple[str, int]] = []
        """(Job, number) as the gangs were told."""
        self.intake = Intake(DialectSettings(), self._put, lambda event: None)

    async def _put(self, message: Input) -> None:
        if isinstance(message, JobSeen):
            self.said.append((message.uid, message.succeeded))
        self.world.send(message)

    async def node(self) -> Bench:
        await self.intake.nodes.on_node(*seen(msgspec.convert(gpu_node("a", 8), NodeObject)))
        return self

    async def job(self, succeeded: int, uid: str = "u1", **spec: Any) -> None:
        item = {
            "apiVersion": "batch/v1",
            "metadata": {"name": "train", "namespace": "ns", "uid": uid},
            "spec": {"parallelism": 3, "completions": 3, **spec},
            "status": {"succeeded": succeeded},
        }
        await self.intake.jobs.on_job("Job", *seen_by_name(msgspec.convert(item, CustomObject)))

    async def job_gone(self) -> None:
        await self.intake.jobs.on_job("Job", "ns/train", None)

    async def pod(self, name: str, node: str = "", phase: str = "Pending", owner: str = "u1") -> None:
        labels = {"gpu-topology": "train", "gpu-topology-replica": "3"}
        by = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": owner, "controller": True}
        item = {
            "metadata": {
                "name": name, "namespace": "ns", "uid": name, "labels": labels, "ownerReferences": [by],
            },
            "spec": {
                "schedulerName": "muster",
                "nodeName": node,
                "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
            },
            "status": {"phase": phase},
        }  # fmt: skip
        await self.intake.on_pod(*seen(msgspec.convert(item, PodObject)))

    async def pods_gone(self, *names: str) -> None:
        for name in names:
            await self.intake.on_pod(name, None)

    @property
    def phases(self) -> list[str]:
        return [str(gang.phase) for gang in self.world.coordinator.state.gangs.values()]


async def test_the_pods_that_a_job_makes_again_do_not_wait_for_one_that_succeeded_and_is_deleted() -> None:
    """A Job of three was on one node, which is deleted with all pods after one member had succeeded."""
    bench = await Bench().node()
    await bench.job(0)
    for name in ("p0", "p1", "p2"):
        await bench.pod(name, node="a", phase="Running")
    await bench.pod("p0", node="a", phase="Succeeded")
    await bench.pods_gone("p0", "p1", "p2")
    await bench.job(1)
    await bench.pod("q1")
    assert bench.phases == ["collecting"]
    await bench.pod("q2")
    assert bench.phases == ["planned"]


async def test_its_pods_may_come_first() -> None:
    """A service that starts now may see the pods before their Job."""
    bench = await Bench().node()
    await bench.pod("q1")
    await bench.pod("q2")
    assert bench.phases == ["collecting"]
    await bench.job(1)
    assert bench.phases == ["planned"]


async def test_the_gangs_are_told_of_jobs_with_pods_of_ours_alone() -> None:
    bench = await Bench().node()
    await bench.job(1)
    await bench.job(2)
    assert bench.said == []
    await bench.pod("q1")
    await bench.job(2)
    await bench.job(3)
    await bench.pods_gone("q1")
    assert bench.said == [("u1", 2), ("u1", 3), ("u1", 0)]


@pytest.mark.parametrize(
    "spec",
    [{"parallelism": 2}, {"completions": None}, {"completions": "three"}, {"parallelism": -3}],
    ids=str,
)
async def test_jobs_whose_pods_do_not_all_run_at_once_say_nothing(spec: dict[str, Any]) -> None:
    bench = await Bench().node()
    await bench.pod("q1")
    await bench.job(1, **spec)
    assert bench.said == []


async def test_what_a_deleted_job_said_counts_until_its_last_pod_is_gone() -> None:
    bench = await Bench().node()
    await bench.job(1)
    await bench.pod("q1")
    await bench.job_gone()
    assert bench.said == [("u1", 1)]
    await bench.pods_gone("q1")
    assert bench.said == [("u1", 1), ("u1", 0)]
    await bench.pod("late")
    assert bench.said[2:] == []


async def test_a_job_of_the_same_name_is_another_one() -> None:
    bench = await Bench().node()
    await bench.job(1)
    await bench.pod("q1")
    await bench.job(0, uid="u2")
    await bench.pod("r1", owner="u2")
    assert bench.said == [("u1", 1)]
    await bench.job(2, uid="u2")
    assert bench.said[1:] == [("u2", 2)]


async def test_nothing_is_kept_of_jobs_and_pods_that_are_gone() -> None:
    bench = await Bench().node()
    for number in range(3):
        uid = f"u{number}"
        await bench.job(1, uid=uid)
        await bench.pod(f"q{number}", owner=uid)
        await bench.job_gone()
        await bench.pods_gone(f"q{number}")
        await bench.job(1, uid=uid)
        await bench.job_gone()
    succeeded = bench.intake.jobs._succeeded
    assert not any((succeeded._numbers, succeeded._uids, succeeded._pods.groups, succeeded._gone))
    assert not bench.world.coordinator.state.roster._succeeded
    assert not bench.world.coordinator.state.roster._names_of
