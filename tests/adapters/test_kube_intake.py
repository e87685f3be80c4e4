"""What the watches see becomes events, once; Bindings in flight become usages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.adapters.kube import decode
from muster.adapters.kube.intake import Intake
from muster.adapters.kube.watch import Gone, Seen
from muster.dialects.settings import Settings
from muster.domain.allocation import ALLOCATION
from muster.gangs.events import Event, NodeGone, NodeSeen, PodGone, PodSeen
from tests.adapters.fake_api import gpu_node, gpu_pod


class Bench:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.intake = Intake(Settings(), self._put)

    async def _put(self, event: Event) -> None:
        self.events.append(event)

    async def sees_pod(self, item: dict[str, Any]) -> None:
        added = decode.pods().event(json.dumps({"type": "ADDED", "object": item}).encode())
        assert isinstance(added, decode.Added)
        await self.intake.on_pod(Seen(added.object))

    async def sees_node(self, item: dict[str, Any]) -> None:
        added = decode.nodes().event(json.dumps({"type": "ADDED", "object": item}).encode())
        assert isinstance(added, decode.Added)
        await self.intake.on_node(Seen(added.object))

    def kinds(self) -> list[type]:
        return [type(event) for event in self.events]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_status_that_changes_nothing_is_no_event(bench: Bench) -> None:
    await bench.sees_pod(gpu_pod("a", 1))
    written = gpu_pod("a", 1, version=2)
    written["status"]["conditions"] = [{"type": "PodScheduled", "status": "False"}]
    await bench.sees_pod(written)
    await bench.sees_node(gpu_node("n", 8))
    heartbeat = gpu_node("n", 8)
    heartbeat["metadata"]["resourceVersion"] = "9"
    await bench.sees_node(heartbeat)
    assert bench.kinds() == [PodSeen, NodeSeen]


async def test_a_finished_pod_is_seen_as_finished(bench: Bench) -> None:
    await bench.sees_pod(gpu_pod("a", 1))
    await bench.sees_pod({**gpu_pod("a", 1, version=2), "status": {"phase": "Failed"}})
    assert [event.pod.finished for event in bench.events if isinstance(event, PodSeen)] == [False, True]


async def test_what_was_never_seen_is_not_gone(bench: Bench) -> None:
    await bench.sees_pod(gpu_pod("a", 1))
    await bench.sees_node(gpu_node("n", 8))
    for key in ("uid-a", "uid-b"):
        await bench.intake.on_pod(Gone(key))
    for key in ("n", "m"):
        await bench.intake.on_node(Gone(key))
    assert bench.kinds() == [PodSeen, NodeSeen, PodGone, NodeGone]


async def test_a_node_with_a_broken_matrix_is_used_and_counted(bench: Bench) -> None:
    broken = gpu_node("n", 8)
    broken["metadata"]["annotations"] = {"GPU_TOPOLOGY": "{"}
    await bench.sees_node(broken)
    assert bench.kinds() == [NodeSeen]
    assert bench.intake.nodes_with_problems == 1


def carried(*gpus: int) -> dict[str, str]:
    return {ALLOCATION: json.dumps({"version": 1, "generation": 1, "gpus": list(gpus)})}


async def test_bindings_in_flight_take_their_gpus_unless_the_pod_speaks_for_itself(bench: Bench) -> None:
    for name in ("waits", "unknown-gpus", "bound", "finished"):
        item = gpu_pod(name, 2)
        if name == "bound":
            item["spec"]["nodeName"] = "n"
        if name == "finished":
            item["status"]["phase"] = "Succeeded"
        await bench.sees_pod(item)
    usages = bench.intake.in_flight(
        [
            ("uid-waits", "n", carried(1, 3)),
            ("uid-unknown-gpus", "n", {}),
            ("uid-bound", "n", carried(4, 5)),
            ("uid-finished", "n", carried(6, 7)),
            ("uid-deleted", "n", carried(0, 2)),
        ]
    )
    assert [(usage.pod_uid, usage.node, usage.gpus, usage.unindexed_gpus) for usage in usages] == [
        ("uid-waits", "n", 0b1010, 0),
        ("uid-unknown-gpus", "n", 0, 2),
    ]
