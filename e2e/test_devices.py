"""Containers on real kubelets see exactly the GPUs that their Bindings name, whatever ends or starts anew.

make e2e-nodes              some 100 members
make e2e-nodes MEMBERS=500  the long form
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.devices.agent_fleet import OFFERS, WHOLE_NODES, AgentFleet
from e2e.devices.members import MEMORY, WHOLE, Member, Part, gpus_seen
from local_cluster.real import agents
from local_cluster.real.support import why_not

ASSIGNED, MEM_ASSIGNED = "ALIYUN_COM_GPU_ASSIGNED", "ALIYUN_COM_GPU_MEM_ASSIGNED"
MEMBERS = int(os.environ.get("MUSTER_E2E_MEMBERS", "0"))
"""How many members the random rounds go on to; 0 for three rounds."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600 if MEMBERS else 1800)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentFleet]:
    if reason := why_not():
        pytest.skip(f"no real nodes on this machine: {reason}")
    with AgentFleet(tmp_path_factory.mktemp("devices")) as new_fleet:
        yield new_fleet


@pytest.fixture(autouse=True)
def swept(fleet: AgentFleet) -> Iterator[None]:
    """Each test begins with free and healthy GPUs, and all agents."""
    yield
    fleet.delete(fleet.pods(), force=True)
    for node in WHOLE_NODES:
        fleet.label(node, {"agent": None})
    for node in OFFERS:
        fleet.describe(node)
    fleet.until(fleet.offer_all, "all nodes offer all of their GPUs")
    fleet.until(lambda: fleet.agents_ready(OFFERS), "all agents are ready")


def gang(name: str, gpus: int, size: int = 4) -> list[Member]:
    return [Member(f"{name}-{i}", (Part("main", gpus),), name, size) for i in range(size)]


def test_gangs_of_four_in_random_order(fleet: AgentFleet) -> None:
    """Freed GPUs are used again at once. With a seed, so that a failure can be repeated."""
    chance, rounds = random.Random(1), 0
    while rounds < 3 or fleet.checked < MEMBERS:
        rounds += 1
        shapes = chance.choice([[1, 1, 1, 1], [2, 2], [1, 1, 2], [4], [3]])
        gangs = [gang(f"r{rounds}-{chr(97 + at)}", gpus) for at, gpus in enumerate(shapes)]
        members = [member for gang_members in gangs for member in gang_members]
        chance.shuffle(members)
        fleet.create(*members)
        fleet.check(members)
        fleet.delete((member.name for member in members), force=chance.random() < 0.3)


def test_equal_pods_that_race(fleet: AgentFleet) -> None:
    """Sixteen equal pods on two nodes: only their names tell them apart."""
    members = [Member(f"equal-{number}") for number in range(16)]
    fleet.create(*members)
    fleet.check(members)
    places = [
        (fleet.pods()[member.name]["spec"]["nodeName"], _sees(fleet, member.name)) for member in members
    ]
    assert len(set(places)) == 16


SEVERAL = {
    "two": (Part("main", 2), Part("helper", 1)),
    "init": (Part("prepare", 2, ends=True), Part("main", 2)),
    "small-init": (Part("prepare", 1, ends=True), Part("main", 3)),
    "init-alone": (Part("prepare", 2, ends=True), Part("main", 2), Part("idle", 0)),
    "sidecar": (Part("proxy", 1, sidecar=True), Part("main", 2)),
    "all": (
        Part("prepare", 1, ends=True),
        Part("proxy", 1, sidecar=True),
        Part("main", 1),
        Part("helper", 1),
    ),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_containers(fleet: AgentFleet, kind: str) -> None:
    members = [Member(f"{kind}-{i}", SEVERAL[kind], kind, 4) for i in range(4)]
    fleet.create(*members)
    fleet.check(members)


def test_a_restart_of_the_kubelet_withdraws_nothing(fleet: AgentFleet) -> None:
    """Its node offers no GPUs for some seconds and is Ready. No pod is evicted."""
    before = gang("before", 1)
    fleet.create(*before)
    fleet.check(before)
    uids = {name: pod["metadata"]["uid"] for name, pod in fleet.pods().items()}
    node = fleet.pods()["before-0"]["spec"]["nodeName"]
    fleet.cluster.real_nodes.restart(node)
    after = gang("after", 2)
    fleet.create(*after)
    fleet.until(lambda: fleet.offers(node, WHOLE, 8), "the node offers its GPUs again")
    fleet.check(before)
    fleet.check(after, away=True)
    pods_after = fleet.pods()
    assert {name: pods_after[name]["metadata"]["uid"] for name in uids} == uids
    assert not fleet.events("TopologyEvicted")


def test_an_agent_that_starts_anew_goes_on(fleet: AgentFleet) -> None:
    before = gang("old", 1)
    fleet.create(*before)
    fleet.check(before)
    with fleet.other_agents(OFFERS):
        for pod in agents.pods(fleet.api).values():
            fleet.api.send("DELETE", f"{agents.PODS}/{pod['metadata']['name']}")
    after = gang("new", 2)
    fleet.create(*after)
    fleet.check([*before, *after])


def test_a_dead_agent_gives_out_nothing(fleet: AgentFleet) -> None:
    """The kubelet takes its GPUs out of what the node offers; containers that run keep theirs."""
    before = [Member("stays", (Part("main", 3),))]
    fleet.create(*before)
    fleet.check(before)
    node = fleet.pods()["stays"]["spec"]["nodeName"]
    (second_node,) = set(WHOLE_NODES) - {node}
    with fleet.other_agents(OFFERS.keys() - {node}):
        fleet.label(node, {"agent": "gone"})
        fleet.keep_agents_off({"agent": "gone"})
    fleet.until(lambda: fleet.offers(node, WHOLE, 0), "the node offers no GPUs")
    fleet.until(
        lambda: any("does the agent run?" in event["message"] for event in fleet.events("TopologyInvalid")),
        "an event on the node says so",
    )
    late = [Member(f"late-{i}", (Part("main", 2),)) for i in range(4)]
    fleet.create(*late)
    fleet.check(late)
    assert {fleet.pods()[member.name]["spec"]["nodeName"] for member in late} == {second_node}
    with fleet.other_agents(OFFERS):
        fleet.deploy()
    fleet.until(lambda: fleet.offers(node, WHOLE, 8), "the node offers its GPUs again")
    fleet.check(before)


def test_an_unhealthy_gpu_is_not_given_out(fleet: AgentFleet) -> None:
    for node in WHOLE_NODES:
        fleet.describe(node, unhealthy="0,5")
        fleet.until(lambda: fleet.offers(node, WHOLE, 6), "two GPUs are gone")  # noqa: B023
    fleet.until(
        lambda: all(fleet.annotation(node, "gpu.topology/unhealthy") == "0,5" for node in WHOLE_NODES),
        "the nodes say which",
    )
    fleet.until(lambda: fleet.agents_ready(WHOLE_NODES), "the agents are ready")
    members = [Member(f"well-{number}", (Part("main", 3),)) for number in range(4)]
    fleet.create(*members)
    fleet.check(members)
    assert not {"GPU-0", "GPU-5"} & {gpu for member in members for gpu in _sees(fleet, member.name)}


def test_freed_by_force_and_used_again(fleet: AgentFleet) -> None:
    for turn in range(3):
        members = gang(f"force-{turn}", 4)
        fleet.create(*members)
        fleet.check(members)
        fleet.delete((member.name for member in members), force=True)


def test_a_pod_without_a_plan_gets_nothing_and_says_why(fleet: AgentFleet) -> None:
    """Somebody binds it by hand: it fails with a sentence, and no other pod of the node does."""
    pod = Member("planless").body()
    pod["spec"] |= {"nodeName": WHOLE_NODES[0], "schedulerName": "by-hand"}
    fleet.api.post("/api/v1/namespaces/default/pods", pod)
    fleet.until(lambda: fleet.pods()["planless"]["status"]["phase"] == "Failed", "it fails")
    status = fleet.pods()["planless"]["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "pod default/planless has no plan for its GPUs" in status["message"]
    members = gang("planned", 2)
    fleet.create(*members)
    fleet.check(members)


def test_pods_are_marked_as_assigned(fleet: AgentFleet) -> None:
    """As the documents show it: kubectl get pod has ALIYUN_COM_GPU_ASSIGNED "true"."""
    fleet.create(Member("marked"))
    fleet.until(lambda: _marked(fleet, "marked", ASSIGNED), "the pod is marked")


EXAMPLES = Path(__file__).parents[1] / "examples" / "cgpu"


def apply_document(fleet: AgentFleet, name: str) -> str:
    """Create the StatefulSet of document 4, with an image that real nodes have; return its pod's name."""
    (body,) = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    template = body["spec"]["template"]
    member = Member(name, resource=MEMORY).body()
    (container,) = template["spec"]["containers"]
    container |= {key: member["spec"]["containers"][0][key] for key in ("image", "command")}
    template["metadata"]["labels"] |= {"e2e": "devices"}
    selector = template["spec"]["nodeSelector"]
    template["spec"] = member["spec"] | template["spec"] | {"restartPolicy": "Always"}
    template["spec"]["nodeSelector"] = selector
    del template["spec"]["initContainers"]
    fleet.api.post("/apis/apps/v1/namespaces/default/statefulsets", body)
    fleet.until(lambda: f"{name}-0" in fleet.pods(), f"the pod of {name} exists")
    fleet.until(lambda: fleet.pods()[f"{name}-0"]["status"]["phase"] == "Running", f"{name}-0 runs")
    return f"{name}-0"


@pytest.fixture
def documents(fleet: AgentFleet) -> Iterator[None]:
    yield
    for name in ("cgpu-test", "cgpu-test-no-isolation"):
        path = f"/apis/apps/v1/namespaces/default/statefulsets/{name}"
        fleet.api.send("DELETE", f"{path}?propagationPolicy=Background")


@pytest.fixture
def library(fleet: AgentFleet) -> Iterator[None]:
    """The agents are told of an isolation library."""
    with fleet.other_agents(OFFERS):
        fleet.deploy(f"--isolation-library={fleet.library}")
    yield
    with fleet.other_agents(OFFERS):
        fleet.deploy()


@pytest.mark.usefixtures("documents")
def test_document_4_without_an_isolation_library(fleet: AgentFleet) -> None:
    """Both pods see all memory of their card, and an event says that this was not meant for one of them."""
    shared = fleet.variables(apply_document(fleet, "cgpu-test-no-isolation"), "cgpu-test-no-isolation")
    assert len(gpus_seen(shared)) == 1
    assert shared["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
    assert shared["ALIYUN_COM_GPU_MEM_DEV"] == "16", "the card"
    assert "CUDA_DEVICE_MEMORY_LIMIT" not in shared
    assert not fleet.events("GpuMemoryNotIsolated")
    isolated = fleet.variables(apply_document(fleet, "cgpu-test"), "cgpu-test")
    assert "CUDA_DEVICE_MEMORY_LIMIT" not in isolated
    fleet.until(lambda: fleet.events("GpuMemoryNotIsolated"), "an event")
    (event,) = fleet.events("GpuMemoryNotIsolated")
    assert event["involvedObject"]["name"] == "cgpu-test-0"


@pytest.mark.usefixtures("library", "documents")
def test_document_4_with_an_isolation_library(fleet: AgentFleet) -> None:
    """On the cgpu node the container sees a limit of 3 GiB, on the share node the card."""
    isolated = fleet.variables(apply_document(fleet, "cgpu-test"), "cgpu-test")
    assert isolated["CUDA_DEVICE_MEMORY_LIMIT"] == "3g"
    assert isolated["LD_PRELOAD"] == str(fleet.library)
    assert len(gpus_seen(isolated)) == 1
    shared = fleet.variables(apply_document(fleet, "cgpu-test-no-isolation"), "cgpu-test-no-isolation")
    assert shared["CGPU_DISABLE"] == "true"
    assert "CUDA_DEVICE_MEMORY_LIMIT" not in shared
    assert "LD_PRELOAD" not in shared
    fleet.until(lambda: _marked(fleet, "cgpu-test-0", MEM_ASSIGNED), "the pod is marked")


def test_pods_share_gpus_as_planned(fleet: AgentFleet) -> None:
    """Gangs of shared memory fill a card, and containers of one pod share it."""
    parts = (Part("main", 5), Part("helper", 3))
    mode = {"ack.node.gpu.schedule": "share"}
    members = [Member(f"shares-{i}", parts, "shares", 4, resource=MEMORY, selector=mode) for i in range(4)]
    fleet.create(*members)
    fleet.check(members)


def _sees(fleet: AgentFleet, pod: str) -> tuple[str, ...]:
    return gpus_seen(fleet.variables(pod, "main"))


def _marked(fleet: AgentFleet, pod: str, key: str) -> bool:
    return (fleet.pods()[pod]["metadata"].get("annotations") or {}).get(key) == "true"
