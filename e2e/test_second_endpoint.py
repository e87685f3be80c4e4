"""Behind a device plugin that chooses by itself, containers on real kubelets see exactly the planned GPUs.

The plugin is a stand-in for NVIDIA's (local_cluster/go/fake-gpus): it prefers the lowest GPUs. Plans often
name others, since members come and go in random order.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator

import pytest

from e2e.devices.agent_fleet import SecondFleet
from e2e.devices.members import Member, Part, gpus_seen
from e2e.facts import ALLOCATION
from local_cluster.real import agents
from local_cluster.real.support import why_not
from muster.domain.allocation import DEVICES

GPU = "nvidia.com/gpu"
MEMBERS = int(os.environ.get("MUSTER_E2E_MEMBERS", "0"))
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600 if MEMBERS else 1800)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecondFleet]:
    if reason := why_not():
        pytest.skip(f"no real nodes on this machine: {reason}")
    with SecondFleet(tmp_path_factory.mktemp("second")) as new_fleet:
        yield new_fleet


@pytest.fixture(autouse=True)
def swept(fleet: SecondFleet) -> Iterator[None]:
    yield
    fleet.delete(fleet.pods(), force=True)
    for node in fleet.nodes:
        fleet.label(node, {"agent": None})
    fleet.until(lambda: fleet.agents_ready(fleet.nodes), "all agents are ready")


def member(name: str, *parts: Part, gang: str = "", size: int = 1) -> Member:
    return Member(name, parts or (Part("main", 1),), gang, size, GPU)


def gang(name: str, gpus: int, size: int = 4) -> list[Member]:
    return [member(f"{name}-{i}", Part("main", gpus), gang=name, size=size) for i in range(size)]


def indices(fleet: SecondFleet, pod: str) -> str:
    return str(json.loads(fleet.pods()[pod]["metadata"]["annotations"][ALLOCATION])["indices"])


def test_gangs_of_four_in_random_order(fleet: SecondFleet) -> None:
    chance, rounds = random.Random(2), 0
    while rounds < 3 or fleet.checked < MEMBERS:
        rounds += 1
        shapes = chance.choice([[1, 1, 1, 1], [2, 2], [1, 1, 2], [4], [3]])
        members = [
            member for at, gpus in enumerate(shapes) for member in gang(f"r{rounds}-{chr(97 + at)}", gpus)
        ]
        chance.shuffle(members)
        fleet.create(*members)
        fleet.check(members)
        fleet.delete((member.name for member in members), force=chance.random() < 0.3)


def test_equal_pods_that_race(fleet: SecondFleet) -> None:
    members = [member(f"equal-{number}") for number in range(16)]
    fleet.create(*members)
    fleet.check(members)
    pods = fleet.pods()
    places = {(pods[member.name]["spec"]["nodeName"], _sees(fleet, member.name)) for member in members}
    assert len(places) == 16


def test_several_containers(fleet: SecondFleet) -> None:
    """An init container that ends, a sidecar, and two that stay."""
    parts = (
        Part("prepare", 1, ends=True),
        Part("proxy", 1, sidecar=True),
        Part("main", 1),
        Part("helper", 1),
    )
    members = [member(f"all-{i}", *parts, gang="all", size=4) for i in range(4)]
    fleet.create(*members)
    fleet.check(members)


@pytest.mark.parametrize("program", ["kubelet", "fake-gpus"])
def test_a_restart_of_the_kubelet_or_the_other_plugin(fleet: SecondFleet, program: str) -> None:
    """After both the kubelet would ask the other plugin. So the agent registers again."""
    before = gang("before", 1)
    fleet.create(*before)
    fleet.check(before)
    node = fleet.pods()["before-0"]["spec"]["nodeName"]
    fleet.cluster.real_nodes.restart(node, program)
    fleet.until(lambda: not fleet.agents_ready([node]), "the agent is not ready for a while")
    fleet.until(lambda: fleet.agents_ready([node]) and fleet.offers(node, GPU, 8), "it is ready again")
    after = gang("after", 2)
    fleet.create(*after)
    fleet.check([*before, *after])
    assert not fleet.events("TopologyEvicted")


def test_an_agent_that_starts_anew_goes_on(fleet: SecondFleet) -> None:
    with fleet.other_agents(fleet.nodes):
        for pod in agents.pods(fleet.api).values():
            fleet.api.send("DELETE", f"{agents.PODS}/{pod['metadata']['name']}")
    members = gang("new", 2)
    fleet.create(*members)
    fleet.check(members)


def test_without_an_agent_pods_run_and_the_node_says_that_gpus_are_not_exact(fleet: SecondFleet) -> None:
    """What containers got is told and counted when there is an agent again."""
    first, second_node = fleet.nodes
    fleet.create(member("holds", Part("main", 1)))
    fleet.check([member("holds", Part("main", 1))])
    with fleet.other_agents(()):
        for node in fleet.nodes:
            fleet.label(node, {"agent": "gone"})
        fleet.keep_agents_off({"agent": "gone"})
        fleet.until(lambda: not agents.pods(fleet.api), "no agent is left")
    fleet.until(
        lambda: any("none is ready there" in event["message"] for event in fleet.events("TopologyInvalid")),
        "an event on the node says so",
    )
    assert fleet.offers(first, GPU, 8)
    assert fleet.offers(second_node, GPU, 8)
    late = [member("late", Part("main", 2))]
    fleet.create(*late)
    fleet.until(lambda: fleet.pods()["late"]["status"]["phase"] == "Running", "it runs")
    assert indices(fleet, "late") == "advisory"
    messages = [event["message"] for event in fleet.events("TopologyPlaced")]
    assert [message for message in messages if message.endswith("may get other GPUs")]
    whole = [member("whole", Part("main", 8))]
    fleet.create(*whole)
    fleet.check(whole)  # NVIDIA's plugin has no choice, and the Binding says planned
    with fleet.other_agents(fleet.nodes):
        fleet.deploy()
        for node in fleet.nodes:
            fleet.label(node, {"agent": None})
    members = gang("exact", 1)
    fleet.create(*members)
    fleet.check(members)


def test_a_pod_without_a_plan_is_reported_and_gangs_are_planned_around_it(fleet: SecondFleet) -> None:
    node = fleet.nodes[0]
    planless = member("planless").body()
    planless["spec"] |= {"nodeName": node, "schedulerName": "by-hand"}
    fleet.api.post("/api/v1/namespaces/default/pods", planless)
    fleet.until(lambda: fleet.pods()["planless"]["status"]["phase"] == "Running", "it runs")
    gpus_taken = _sees(fleet, "planless")
    assert len(gpus_taken) == 1
    fleet.until(lambda: DEVICES in fleet.pods()["planless"]["metadata"].get("annotations", {}), "a report")
    members = gang("around", 3)
    fleet.create(*members)
    fleet.check(members)
    around = [member.name for member in members if fleet.pods()[member.name]["spec"]["nodeName"] == node]
    assert not set(gpus_taken) & {gpu for name in around for gpu in _sees(fleet, name)}


def _sees(fleet: SecondFleet, pod: str) -> tuple[str, ...]:
    return gpus_seen(fleet.variables(pod, "main"))
