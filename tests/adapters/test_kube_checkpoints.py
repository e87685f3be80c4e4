"""Checkpoints of running pods reach the gangs, and a renewal reads no pod anew."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from local_cluster.patience import HANG_S
from muster.adapters.kube.checkpoints import SENT_AT_ONCE, Checkpoints, take_off
from muster.adapters.kube.intake import Intake
from muster.dialects.gangs.own import LAST_CHECKPOINT, MAX_CHARACTERS
from muster.dialects.objects import PodObject
from muster.dialects.pods import pods
from muster.dialects.settings import DEFAULTS
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages.inputs import CheckpointsSeen, Input, PodSeen
from tests.adapters.changes import seen
from tests.adapters.heard import Heard
from tests.dialects.objects import pod_object
from tests.gangs.world import pod

NOON, LATER = "2026-01-01T12:00:00Z", "2026-01-01T12:00:01Z"
NOON_S = 1767268800.0
MEMBERS = 4_096


def member(uid: str, text: str | None, node: str = "a") -> PodObject:
    annotations = {"gpu.topology/group": "g", "gpu.topology/min-member": "2"}
    annotations |= {LAST_CHECKPOINT: text} if text is not None else {}
    return pod_object(annotations=annotations, limits={"nvidia.com/gpu": 1}, node=node, uid=uid, name=uid)


class Bench:
    """Without pauses after inputs."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.intake = Intake(DEFAULTS, self._put, lambda _: None)
        self.intake.checkpoints = Checkpoints(self._put, pause_s=0)

    async def _put(self, message: Input) -> None:
        self.inputs.append(message)

    async def sees(self, uid: str, text: str | None, **more: Any) -> None:
        await self.intake.on_pod(*seen(member(uid, text, **more)))

    async def passed_on(self) -> dict[str, float]:
        """The checkpoints that were passed on since the last call."""
        if (sender := self.intake.checkpoints.sender) is not None:
            await asyncio.wait_for(sender, HANG_S)
        saved: dict[str, float] = {}
        for message in self.inputs:
            saved |= message.saved if isinstance(message, CheckpointsSeen) else {}
        self.inputs.clear()
        return saved


async def test_renewals_of_a_large_gang_read_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, readings = Bench(), list[str]()
    read = pods.read

    def noted(obj: PodObject, *arguments: Any) -> Any:
        readings.append(obj.metadata.uid)
        return read(obj, *arguments)

    monkeypatch.setattr(pods, "read", noted)
    uids = [f"p{number}" for number in range(MEMBERS)]
    for uid in uids:
        await bench.sees(uid, NOON)
    assert len(readings) == MEMBERS
    assert await bench.passed_on() == dict.fromkeys(uids, NOON_S)
    readings.clear()
    for uid in uids:
        await bench.sees(uid, LATER)
    assert readings == []
    sender = bench.intake.checkpoints.sender
    assert sender is not None
    await asyncio.wait_for(sender, HANG_S)
    assert all(isinstance(message, CheckpointsSeen) for message in bench.inputs)
    assert len(bench.inputs) == MEMBERS // SENT_AT_ONCE
    assert await bench.passed_on() == dict.fromkeys(uids, NOON_S + 1)


async def test_a_checkpoint_comes_after_its_pod_and_the_newest_counts() -> None:
    bench = Bench()
    await bench.sees("p", NOON)
    await bench.sees("p", LATER)
    assert await bench.passed_on() == {"p": NOON_S + 1}
    await bench.sees("q", NOON)
    assert isinstance(bench.inputs[0], PodSeen)
    assert await bench.passed_on() == {"q": NOON_S}
    await bench.sees("q", NOON)
    assert await bench.passed_on() == {}


TEXTS: dict[str, tuple[str | None, float]] = {
    "it is taken back": (None, 0.0),
    "it can't be read": ("soon", 0.0),
    "it is long": ("2" * 100_000, 0.0),
}


@pytest.mark.parametrize(("text", "saved"), TEXTS.values(), ids=TEXTS.keys())
async def test_a_checkpoint_that_is_no_time_is_none(text: str | None, saved: float) -> None:
    bench = Bench()
    await bench.sees("p", NOON)
    await bench.passed_on()
    await bench.sees("p", text)
    assert all(len(text) <= MAX_CHARACTERS for text in bench.intake.checkpoints._texts.values())
    assert await bench.passed_on() == {"p": saved}


async def test_a_pod_that_is_gone_has_no_checkpoint() -> None:
    bench = Bench()
    await bench.sees("p", NOON)
    await bench.intake.on_pod("p", None)
    assert await bench.passed_on() == {}
    await bench.sees("p", NOON)
    await bench.passed_on()
    await bench.intake.on_pod("p", None)
    assert not bench.intake.checkpoints._texts


async def test_renewals_wait_for_the_pause_and_the_last_counts() -> None:
    heard = Heard()
    checkpoints = Checkpoints(heard.put, pause_s=2 * HANG_S)
    checkpoints.see("p", NOON)
    await heard.hears(lambda message: isinstance(message, CheckpointsSeen))
    sender = checkpoints.sender
    assert sender is not None
    for second in range(10):
        checkpoints.see("p", f"2026-01-01T12:00:0{second}Z")
        await asyncio.sleep(0)
    assert len(heard.events) == 1
    assert checkpoints.sender is sender
    assert checkpoints._texts == {"p": "2026-01-01T12:00:09Z"}
    sender.cancel()


def test_only_a_bound_pod_loses_the_annotation() -> None:
    waiting = member("p", NOON, node="")
    assert take_off(waiting) == (waiting, "")
    without, text = take_off(member("p", NOON))
    assert text == NOON
    assert without == member("p", None)
    alone = pod_object(annotations={LAST_CHECKPOINT: NOON}, node="a")
    assert take_off(alone)[0].metadata.annotations is None


def test_a_renewal_changes_nothing_but_the_annotation() -> None:
    assert msgspec.to_builtins(take_off(member("p", NOON))[0]) == msgspec.to_builtins(member("p", None))


def test_the_gangs_keep_checkpoints_of_pods_that_they_know() -> None:
    coordinator = Coordinator()
    coordinator.handle(PodSeen(1.0, pod("p", node="a")))
    coordinator.handle(CheckpointsSeen(2.0, {"p": NOON_S, "unknown": NOON_S}))
    checkpoints_of = coordinator.state.ledger.existing_pods.checkpoints
    assert checkpoints_of == {"p": NOON_S}
    coordinator.handle(CheckpointsSeen(3.0, {"p": 0.0}))
    assert checkpoints_of == {}
    coordinator.handle(CheckpointsSeen(4.0, {"p": NOON_S}))
    coordinator.handle(PodSeen(5.0, pod("p", node="a", finished=True)))
    assert checkpoints_of == {}
