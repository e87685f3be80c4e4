"""Pods and nodes with anything in their fields go through the whole service without an exception."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.adapters.grpc import messages
from muster.adapters.kube.intake import Intake
from muster.dialects.objects import NodeObject, PodObject
from muster.dialects.settings import DialectSettings
from muster.gangs.messages.inputs import Input
from tests.adapters.changes import seen
from tests.dialects.test_fuzz import NODE, POD
from tests.gangs.world import World

NAMES = ("a", "b", "c")
"""Of pods and of nodes: the API server checks these, and the values of labels."""
PLACES = st.sampled_from(["", *NAMES])


def _pod(raw: dict[str, Any], name: str, node: str, ours: bool) -> PodObject:
    spec = {**raw["spec"], "nodeName": node}
    if ours:
        spec["schedulerName"] = "muster"
    return msgspec.convert(
        {"metadata": {**raw["metadata"], "name": name, "namespace": "ns", "uid": name}, "spec": spec},
        PodObject,
    )


def _node(raw: dict[str, Any], name: str) -> NodeObject:
    return msgspec.convert({**raw, "metadata": {**raw["metadata"], "name": name}}, NodeObject)


STEPS = st.lists(
    st.builds(_pod, POD, st.sampled_from(NAMES), PLACES, st.booleans())
    | st.builds(_node, NODE, st.sampled_from(NAMES))
    | st.builds("gone/{}".format, st.sampled_from(NAMES)),
    min_size=1,
    max_size=10,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_any_objects_are_planned_or_refused(steps: list[PodObject | NodeObject | str]) -> None:
    world = World()

    async def put(message: Input) -> None:
        world.send(replace(message, now=world.now))

    intake = Intake(DialectSettings(), put, world.events.append)

    async def run() -> None:
        for step in steps:
            match step:
                case PodObject():
                    await intake.on_pod(*seen(step))
                case NodeObject():
                    await intake.nodes.on_node(*seen(step))
                case str():
                    await intake.on_pod(step.removeprefix("gone/"), None)
            world.wait(5)

    world.start()
    asyncio.run(run())
    for verdict in world.verdicts:
        bytes(messages.verdict(verdict))
    msgspec.json.encode(world.coordinator.summary())
    msgspec.json.encode(world.events)
