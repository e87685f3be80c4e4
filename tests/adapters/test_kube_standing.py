"""Each replica sees objects that something is to be said about: the one that leads says it, and once."""

from __future__ import annotations

import json

import msgspec
import pytest

from muster.adapters.kube import jobs
from muster.adapters.kube.leftout import LeftOutObjects
from muster.adapters.telemetry.metrics import Metrics
from muster.dialects.objects import ConfigMapObject, Identity
from muster.gangs.messages.instructions import EmitEvent, EventReason
from tests.adapters.changes import seen
from tests.adapters.fake_api import config_map
from tests.adapters.test_kube_jobs import ALL, Bench, orphan, turn

MISPLACED = {"gpu.topology/scope": "rack"}
"""A key that belongs on the pods of a job."""


async def standby(*modes: str) -> Bench:
    bench = await Bench(*modes).start()
    bench.leads = False
    return bench


def begin(bench: Bench) -> None:
    bench.leads = True
    bench.intake.post_held()


async def test_a_replica_that_does_not_lead_says_nothing_of_jobs_until_it_leads() -> None:
    bench = await standby("on")
    await bench.job(annotations=MISPLACED)
    await bench.pods(*ALL, "worker-3")
    assert bench.posted == []
    begin(bench)
    assert [event.reason for event in bench.posted] == [EventReason.KEY_IGNORED, EventReason.COUNTS_DIFFER]
    begin(bench)
    await bench.pods("worker-4")
    assert len(bench.posted) == 2


async def test_a_new_leader_says_only_what_still_holds_of_jobs() -> None:
    bench = await standby("on")
    await bench.job(annotations=MISPLACED)
    await bench.pods(*ALL, "worker-3")
    await bench.job(workers=4)
    begin(bench)
    assert bench.posted == []


async def test_a_new_leader_says_nothing_of_jobs_whose_pods_run_or_are_gone() -> None:
    bench = await standby("on")
    await bench.job(annotations=MISPLACED)
    await bench.pods(*ALL)
    await bench.pods(*ALL[:2], node="a")
    for name in ALL[2:]:
        await bench.intake.on_pod(name, None)
    begin(bench)
    assert bench.posted == []


@pytest.mark.parametrize("back", [True, False])
async def test_a_new_leader_says_that_a_job_was_deleted(back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GONE_S", 0.0)
    bench = await standby("on")
    await bench.job()
    await bench.pods(*ALL[:3])
    await bench.intake.jobs.on_job("PyTorchJob", "ns/train", None)
    await turn()
    assert bench.posted == []
    if back:
        await bench.job()
    begin(bench)
    assert [event.reason for event in bench.posted] == ([] if back else [EventReason.JOB_GONE])


@pytest.mark.parametrize("stays", [True, False])
async def test_keys_without_effect_on_pods_that_no_job_makes(stays: bool) -> None:
    bench = await standby()
    orphan_pod = orphan("a")
    meta = msgspec.structs.replace(orphan_pod.metadata, annotations={"kai.scheduler/segment-size": "2"})
    await bench.intake.on_pod(*seen(msgspec.structs.replace(orphan_pod, metadata=meta)))
    if not stays:
        await bench.intake.on_pod("a", None)
    assert bench.posted == []
    begin(bench)
    assert [event.reason for event in bench.posted] == ([EventReason.KEY_IGNORED] if stays else [])


@pytest.mark.parametrize("then", ["bad still", "good", "gone"])
async def test_policies_that_can_not_be_read(then: str) -> None:
    bench = await standby()

    async def sees(text: str) -> None:
        item = config_map("muster-system", "kai-scheduler-config", {"config.yaml": text})
        await bench.intake.on_config_map(*seen(msgspec.convert(item, ConfigMapObject)))

    await sees("topologyAwareScheduling: 1")
    if then == "good":
        await sees(json.dumps({"topologyAwareScheduling": {"enabled": False}}))
    elif then == "gone":
        await bench.intake.on_config_map("muster-system/kai-scheduler-config", None)
    assert bench.posted == []
    begin(bench)
    assert len(bench.posted) == (1 if then == "bad still" else 0)


@pytest.mark.parametrize("then", ["left out still", "read again", "gone from the list"])
def test_objects_that_are_left_out(then: str) -> None:
    posted: list[EmitEvent] = []
    leads = False
    left_out = LeftOutObjects(Metrics(), posted.append, lambda: leads)
    left_out.add("pods", "u", "pods ns/a: too deep", ("Pod", "/api/v1/pods", Identity("a", "", "ns", "u")))
    if then == "read again":
        left_out.clear("pods", "u")
    elif then == "gone from the list":
        left_out.keep_only("pods", ())
    assert posted == []
    leads = True
    left_out.post_held()
    assert len(posted) == (1 if then == "left out still" else 0)
