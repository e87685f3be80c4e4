"""A node that publishes much, or something else all the time, delays no other node."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from muster.adapters.kube import nodes as node_intake
from muster.adapters.kube.intake import Intake
from muster.adapters.kube.leftout import LeftOutObjects
from muster.adapters.kube.nodes import ADVANCE_S, CHANGE_S, LARGE, SHARE, NodeIntake
from muster.adapters.telemetry.metrics import Metrics
from muster.dialects.devices.published import NodeSlices
from muster.dialects.nodes import bounds
from muster.dialects.objects import ConfigMapObject, NodeObject
from muster.dialects.settings import DEFAULTS
from muster.domain.allocation import MAX_GPUS
from muster.domain.node import Node
from muster.domain.rate import Rate
from muster.gangs.messages.inputs import Input, NodeGone, NodeSeen
from tests.adapters.changes import seen
from tests.adapters.fake_api import config_map
from tests.dialects.objects import node_object
from tests.dialects.test_dra import device_class, gpu, piece

GPU = "nvidia.com/gpu"


class Bench:
    """`now` is the clock, `cost` what a reading takes. `on_loop` has, for each reading, whether it was on the
    event loop's thread. Others begin with `started`, and end when they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Input] = []
        self.now = 0.0
        self.on_loop: list[bool] = []
        self.cost = 0.0
        self.intake = NodeIntake(
            DEFAULTS, self._put, LeftOutObjects(Metrics()), NodeSlices, clock=lambda: self.now
        )
        self.started, self.may_end = asyncio.Event(), threading.Event()
        self.may_end.set()
        loop, of_loop, read = asyncio.get_running_loop(), threading.get_ident(), node_intake._Facts.read

        def noted(facts: Any) -> tuple[Node, float]:
            self.on_loop.append(threading.get_ident() == of_loop)
            if not self.on_loop[-1]:
                loop.call_soon_threadsafe(self.started.set)
                self.may_end.wait()
            return read(facts)[0], self.cost

        monkeypatch.setattr(node_intake._Facts, "read", noted)

    async def _put(self, message: Input) -> None:
        self.seen.append(message)

    async def sees(self, obj: NodeObject) -> None:
        await self.intake.on_node(*seen(obj))

    def nodes(self, name: str = "n") -> list[Node]:
        return [event.node for event in self.seen if isinstance(event, NodeSeen) and event.node.name == name]


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def named(name: str, obj: NodeObject) -> NodeObject:
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, name=name))


def matrix(gpus: int, word: str = "NV1") -> str:
    return json.dumps([["X" if i == j else word for j in range(gpus)] for i in range(gpus)])


def large(word: str = "NV1", gpus: int = 64) -> NodeObject:
    return node_object({GPU: str(gpus)}, annotations={"GPU_TOPOLOGY": matrix(gpus, word)})


LARGE_ONES: dict[str, Callable[[], NodeObject]] = {
    "a matrix": large,
    "labels": lambda: node_object({GPU: "8"}, labels={f"l{number}": "v" for number in range(2000)}),
    "resources": lambda: node_object(
        {GPU: "8"} | {f"x.example.com/r{number}": "1" for number in range(2000)}
    ),
    "uuids": lambda: node_object({GPU: "1"}, annotations={"gpu.topology/gpu-uuids": "GPU-1," * 4000}),
}


@pytest.mark.parametrize("case", LARGE_ONES)
async def test_a_large_node_is_read_on_a_thread(bench: Bench, case: str) -> None:
    await bench.sees(LARGE_ONES[case]())
    assert not bench.seen
    await bench.intake.until_read()
    assert (len(bench.nodes()), bench.on_loop) == (1, [False])


@pytest.mark.parametrize("count", ["256", "9" * 60])
async def test_gpus_that_no_node_has_make_no_node_large(bench: Bench, count: str) -> None:
    await bench.sees(node_object({GPU: count}))
    (node,) = bench.nodes()
    assert node.topology.gpu_count == MAX_GPUS
    assert bench.on_loop == [True]


async def test_a_small_node_is_read_at_once_while_a_large_one_is_being_read(bench: Bench) -> None:
    await bench.sees(named("m", large()))
    await bench.sees(node_object({GPU: "8"}))
    assert (len(bench.nodes("n")), len(bench.nodes("m"))) == (1, 0)
    await bench.intake.until_read()
    assert (len(bench.nodes("m")), bench.on_loop) == (1, [True, False])


async def test_changes_before_the_reading_are_read_at_once(bench: Bench) -> None:
    for word in ("NV1", "NV2", "NV4"):
        await bench.sees(large(word))
    await bench.intake.until_read()
    (node,) = bench.nodes()
    assert node.topology.links[0][1] is not None
    assert node.topology.links[0][1].kind == "NV4"


async def test_a_large_node_that_goes_before_it_is_read_is_never_seen(bench: Bench) -> None:
    await bench.sees(large())
    await bench.intake.on_node("n", None)
    await bench.intake.until_read()
    assert not bench.seen
    bench.may_end.clear()
    await bench.sees(large())
    await bench.started.wait()
    await bench.intake.on_node("n", None)
    await bench.sees(node_object({GPU: "8"}))
    bench.may_end.set()
    await bench.intake.until_read()
    assert [node.topology.gpu_count for node in bench.nodes()] == [8]
    assert not any(isinstance(event, NodeGone) for event in bench.seen)


async def test_a_node_that_changes_all_the_time_is_read_at_its_own_rate(bench: Bench) -> None:
    for tick in range(1000):
        await bench.sees(node_object({GPU: "8"}, labels={"tick": str(tick)}))
        await bench.sees(named(f"other-{tick}", node_object({GPU: "8"})))
    assert len(bench.nodes()) == ADVANCE_S / CHANGE_S + 1
    assert len(bench.seen) - len(bench.nodes()) == 1000  # the other nodes
    bench.now += 1000 * CHANGE_S
    bench.intake._queue_read("n")  # what the timer does
    await bench.intake.until_read()
    assert bench.nodes()[-1].labels == {"tick": "999"}
    await bench.sees(node_object({GPU: "8"}))
    assert bench.nodes()[-1].labels == {}


async def test_a_node_pays_for_readings_that_change_nothing(bench: Bench) -> None:
    bench.cost = 0.01
    for tick in range(1000):
        await bench.sees(node_object({GPU: "8"}, annotations={"other": str(tick)}))
    assert len(bench.nodes()) == 1
    assert len(bench.on_loop) * SHARE * bench.cost <= ADVANCE_S + 1


async def test_a_config_map_is_read_with_its_node_and_once(bench: Bench) -> None:
    labels = {"ack.node.gpu.schedule": "topology", "nodename": "n"}
    item = config_map("kube-system", "t", {"linkType": matrix(40)}, labels)
    await bench.sees(node_object({GPU: "40"}))
    for _ in range(2):
        await bench.intake.on_config_map("kube-system/t", msgspec.convert(item, ConfigMapObject))
        await bench.intake.until_read()
    assert bench.on_loop[-1:] == [False]
    assert [node.topology.is_known for node in bench.nodes()] == [False, True]
    await bench.sees(node_object({GPU: "40"}, labels={"a": "b"}))
    assert len(bench.nodes()) == 3  # at once: nothing is left to decode
    await bench.intake.on_config_map("kube-system/t", None)
    assert not bench.nodes()[-1].topology.is_known


async def test_slices_of_a_node_are_decoded_on_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[Input] = []

    async def put(message: Input) -> None:
        messages.append(message)

    intake = Intake(DEFAULTS, put, lambda event: None)
    on_loop: list[bool] = []
    loop = threading.get_ident()
    read = node_intake._Facts.read

    def noted(facts: node_intake._Facts) -> tuple[Node, float]:
        on_loop.append(threading.get_ident() == loop)
        return read(facts)

    monkeypatch.setattr(node_intake._Facts, "read", noted)
    await intake.devices.on_class(*seen(device_class()))
    await intake.nodes.on_node(*seen(node_object({"cpu": "8"})))
    for at in range(3):
        devices = [gpu(number) for number in range(128 * at, 128 * at + 128)]
        await intake.devices.on_slice(*seen(piece(devices, f"s{at}", count=3)))
    await intake.nodes.until_read()
    assert on_loop[-1] is False
    last = messages[-1]
    assert isinstance(last, NodeSeen)
    assert len(last.node.devices) == MAX_GPUS


def test_who_owes_nothing_is_forgotten() -> None:
    now = [0.0]
    rate = Rate(ADVANCE_S, lambda: now[0])
    rate.charge("n", SHARE + CHANGE_S)
    assert rate.wait_s("n") == SHARE + CHANGE_S - ADVANCE_S
    rate.forget()
    assert rate.wait_s("n")
    now[0] = SHARE + CHANGE_S
    rate.forget()
    assert not rate._paid


def test_a_usual_node_is_small() -> None:
    labels = {f"feature.node.kubernetes.io/cpu-{number}": "true" for number in range(200)}
    uuids = ",".join(f"GPU-{number:032}" for number in range(16))
    node_annotations = {"GPU_TOPOLOGY": matrix(16, "NV18"), "gpu.topology/gpu-uuids": uuids}
    usual = node_object({GPU: "16", "cpu": "96"}, labels=labels, annotations=node_annotations)
    assert bounds.reading_size(usual, (), DEFAULTS) < LARGE / 1.5
