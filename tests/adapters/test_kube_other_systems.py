"""Gangs in the words of other systems, in the service: they wait for all their pods, or say why."""

from __future__ import annotations

import msgspec

from muster.dialects.objects import CustomObject, PodObject
from muster.gangs.messages.instructions import EventReason
from tests.adapters.changes import seen
from tests.adapters.test_kube_jobs import TEMPLATE, Bench, Object

KUEUE = "kueue.x-k8s.io"


async def pods(
    bench: Bench,
    *names: str,
    labels: Object | None = None,
    annotations: Object | None = None,
    gates: bool = False,
) -> None:
    """Show pods of one GPU to the intake."""
    for name in names:
        meta = {"name": name, "namespace": "ns", "uid": name, "labels": labels, "annotations": annotations}
        gate_fields = {"schedulingGates": [{"name": f"{KUEUE}/admission"}]} if gates else {}
        item = {"metadata": meta, "spec": {"schedulerName": "muster", **TEMPLATE["spec"], **gate_fields}}
        await bench.intake.on_pod(*seen(msgspec.convert(item, PodObject)))


async def pod_group(bench: Bench, api: str, **spec: object) -> None:
    item = {"apiVersion": api, "metadata": {"name": "g", "namespace": "ns", "uid": "g"}, "spec": spec}
    await bench.intake.on_pod_group(*seen(msgspec.convert(item, CustomObject)))


async def test_a_gang_of_volcano_waits_for_its_pod_group_and_for_its_pods() -> None:
    bench = await Bench().start()
    keys = {"scheduling.k8s.io/group-name": "g"}
    await pods(bench, "a", annotations=keys)
    assert (bench.gang.phase, "PodGroup ns/g does not exist yet" in bench.gang.reason) == ("collecting", True)
    await pod_group(bench, "scheduling.volcano.sh/v1beta1", minMember=2)
    assert bench.gang.phase == "collecting"
    await pods(bench, "b", annotations=keys)
    assert (bench.gang.phase, bench.gang.group.needed) == ("planned", 2)


async def test_a_gang_of_coschedulings_older_api() -> None:
    bench = await Bench().start()
    await pod_group(bench, "scheduling.sigs.k8s.io/v1alpha1", minMember=2)
    await pods(bench, "a", labels={"pod-group.scheduling.sigs.k8s.io": "g"})
    assert bench.gang.phase == "collecting"
    await pods(bench, "b", labels={"pod-group.scheduling.sigs.k8s.io": "g"})
    assert bench.gang.phase == "planned"


async def test_a_gang_of_koordinator_waits_for_all_its_pods() -> None:
    bench = await Bench().start()
    keys = {
        f"gang.scheduling.koordinator.sh/{key}": value
        for key, value in (("name", "g"), ("min-available", "2"))
    }
    await pods(bench, "a", annotations=keys)
    assert bench.gang.phase == "collecting"
    await pods(bench, "b", annotations=keys)
    assert bench.gang.group.needed == 2


async def test_a_group_of_kueue_waits_until_kueue_has_let_all_its_pods_go() -> None:
    bench = await Bench().start()
    labels, annotations = {f"{KUEUE}/pod-group-name": "g"}, {f"{KUEUE}/pod-group-total-count": "2"}
    await pods(bench, "a", "b", labels=labels, annotations=annotations, gates=True)
    await pods(bench, "a", labels=labels, annotations=annotations)
    assert bench.gang.phase == "collecting"
    await pods(bench, "b", labels=labels, annotations=annotations)
    assert bench.gang.phase == "planned"


async def test_a_gang_of_grove_is_refused_with_one_event() -> None:
    bench = await Bench().start()
    await pods(bench, "a", "b", labels={"grove.io/podgang": "g"})
    assert bench.gang.phase == "invalid"
    ((subject, message), *more) = bench.events(EventReason.INVALID)
    assert (subject, "gangs of Grove are not read" in message) == ("Pod a", True)
    assert more == []
    muster_keys = {"gpu.topology/group": "mine", "gpu.topology/min-member": "2"}
    await pods(bench, "a", "b", labels={"grove.io/podgang": "g"}, annotations=muster_keys)
    assert bench.gang.phase in ("collecting", "planned")


async def test_a_key_of_an_unknown_system_is_told_on_the_first_pod() -> None:
    bench = await Bench().start()
    await pods(bench, "a", labels={"example.com/gang-id": "g"})
    ((subject, message),) = bench.events(EventReason.KEY_IGNORED)
    assert (subject, message.startswith("label example.com/gang-id is not read")) == ("Pod a", True)
    await bench.intake.on_pod("a", None)
