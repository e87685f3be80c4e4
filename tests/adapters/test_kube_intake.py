"""What the watches see becomes events, once; Bindings in flight become usages."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from structlog.testing import capture_logs

from muster.adapters.kube import decode
from muster.adapters.kube.intake import Intake
from muster.dialects.objects import ConfigMapObject, CustomObject, NamespaceObject
from muster.dialects.pods import pods
from muster.dialects.settings import DialectSettings
from muster.domain.allocation import ALLOCATION
from muster.domain.node import Node
from muster.domain.podgroup import PodGroup, PodGroupStatus
from muster.domain.policies import DEFAULT_POLICIES
from muster.gangs.messages.inputs import (
    Input,
    NamespaceSeen,
    NodeGone,
    NodeSeen,
    PodGone,
    PodGroupGone,
    PodGroupSeen,
    PodSeen,
    PoliciesSeen,
)
from muster.gangs.messages.instructions import EmitEvent, EventReason
from tests.adapters.changes import seen
from tests.adapters.fake_api import config_map, custom, gpu_node, gpu_pod

AGENTS = "muster-nodes"


class Bench:
    def __init__(self) -> None:
        self.events: list[Input] = []
        self.posted: list[EmitEvent] = []
        self.intake = Intake(DialectSettings(node_agents=AGENTS), self._put, self.posted.append)

    async def _put(self, message: Input) -> None:
        self.events.append(message)

    async def sees_pod(self, item: dict[str, Any]) -> None:
        await self.intake.on_pod(*seen(decode.pods().item(json.dumps(item).encode())))

    async def sees_node(self, item: dict[str, Any]) -> None:
        await self.intake.nodes.on_node(*seen(decode.NODES.item(json.dumps(item).encode())))

    async def sees_config_map(self, item: dict[str, Any]) -> None:
        await self.intake.on_config_map(*seen(msgspec.convert(item, ConfigMapObject)))

    async def sees_pod_group(self, item: dict[str, Any]) -> None:
        await self.intake.on_pod_group(*seen(msgspec.convert(item, CustomObject)))

    async def sees_topology(self, name: str, *labels: str) -> None:
        spec = {"levels": [{"nodeLabel": label} for label in labels]}
        item = custom("kai.scheduler/v1alpha1", "Topology", name, spec)
        await self.intake.on_topology(name, msgspec.convert(item, CustomObject))

    def last_node(self) -> Node:
        return next(event.node for event in reversed(self.events) if isinstance(event, NodeSeen))

    def last_group(self) -> PodGroup:
        return next(event.group for event in reversed(self.events) if isinstance(event, PodGroupSeen))

    def kinds(self) -> list[type]:
        return [type(event) for event in self.events]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_topologies_tell_domains_apart(bench: Bench) -> None:
    await bench.sees_topology("dc", "example.com/row", "example.com/shelf", "kubernetes.io/hostname")
    await bench.sees_topology("flat", "kubernetes.io/hostname")
    trees = [event.policies.naming.trees for event in bench.events if isinstance(event, PoliciesSeen)]
    assert trees == [(("example.com/row", "example.com/shelf"),)]
    await bench.intake.on_topology("dc", None)
    assert isinstance(bench.events[-1], PoliciesSeen)
    assert bench.events[-1].policies == DEFAULT_POLICIES


async def test_names_of_several_domains_are_reported(bench: Bench) -> None:
    for name in ("a", "b"):
        item = gpu_node(name, 8)
        item["metadata"]["labels"] = {
            "topology.kubernetes.io/zone": name,
            "topology.kubernetes.io/rack": "r1",
        }
        await bench.sees_node(item)
    with capture_logs() as logged:
        (sentence,) = bench.intake.repeated_names
        assert "r1 of zone a, r1 of zone b" in sentence
        assert bench.intake.repeated_names == (sentence,)
        item["metadata"]["labels"]["topology.kubernetes.io/rack"] = "r2"
        await bench.sees_node(item)
        assert not bench.intake.repeated_names
    assert [line["event"] for line in logged] == ["several domains have one name"]


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


async def test_an_object_as_it_was_is_not_read_again_and_a_changed_one_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Mock(wraps=pods.read)
    monkeypatch.setattr(pods, "read", read)
    item = gpu_pod("a", 1)
    await bench.sees_pod(item)
    for version in range(2, 5):
        item["metadata"]["resourceVersion"] = str(version)
        item["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": f"try {version}"}]
        await bench.sees_pod(item)
    assert read.call_count == 1
    changes: list[tuple[str, dict[str, Any]]] = [
        ("metadata", {"labels": {"a": "b"}}),
        ("metadata", {"annotations": {"a": "b"}}),
        ("metadata", {"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        ("spec", {"nodeName": "n"}),
        ("spec", {"schedulingGates": [{"name": "held"}]}),
        ("status", {"phase": "Running"}),
        ("status", {"startTime": "2026-01-01T00:00:00Z"}),
        ("status", {"conditions": [{"type": "PodResizePending", "reason": "Infeasible"}]}),
    ]
    for number, (part, change) in enumerate(changes, start=2):
        item[part] |= change
        await bench.sees_pod(item)
        assert read.call_count == number, change


async def test_a_number_beyond_64_bits_is_a_slip_as_any(bench: Bench) -> None:
    item = gpu_pod("p", 1)
    item["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 2**70
    await bench.sees_pod(item)
    (event,) = bench.events
    assert isinstance(event, PodSeen)
    assert event.pod.causes


async def test_a_pod_that_comes_again_is_seen_again(bench: Bench) -> None:
    for _ in range(2):
        await bench.sees_pod(gpu_pod("a", 1))
        await bench.intake.on_pod("uid-a", None)
    assert bench.kinds() == [PodSeen, PodGone] * 2


async def test_a_finished_pod_is_seen_as_finished(bench: Bench) -> None:
    await bench.sees_pod(gpu_pod("a", 1))
    await bench.sees_pod({**gpu_pod("a", 1, version=2), "status": {"phase": "Failed"}})
    assert [event.pod.finished for event in bench.events if isinstance(event, PodSeen)] == [False, True]


async def test_what_was_never_seen_is_not_gone(bench: Bench) -> None:
    await bench.sees_pod(gpu_pod("a", 1))
    await bench.sees_node(gpu_node("n", 8))
    for key in ("uid-a", "uid-b"):
        await bench.intake.on_pod(key, None)
    for key in ("n", "m"):
        await bench.intake.nodes.on_node(key, None)
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


# --- facts from two objects ------------------------------------------------------------------------


async def test_a_nodes_config_maps_are_read_with_it_whichever_comes_first(bench: Bench) -> None:
    await bench.sees_config_map(config_map("kube-system", "unhealthy-gpu-n", {"gpus": "0,2"}))
    assert bench.events == []
    await bench.sees_node(gpu_node("n", 8))
    assert bench.last_node().unhealthy == 0b101
    devices = {"devices": json.dumps({"7": "Unhealthy"})}
    labels = {"ack.node.gpu.schedule": "topology", "nodename": "n"}
    await bench.sees_config_map(config_map("kube-system", "topology-of-n", devices, labels))
    assert bench.last_node().unhealthy == 0b1000_0101
    await bench.intake.on_config_map("kube-system/unhealthy-gpu-n", None)
    assert bench.last_node().unhealthy == 0b1000_0000
    assert bench.kinds() == [NodeSeen] * 3


async def test_a_config_map_that_names_another_node_leaves_the_first(bench: Bench) -> None:
    labels = {"ack.node.gpu.schedule": "topology", "nodename": "n"}
    devices = {"devices": json.dumps({"0": "Unhealthy"})}
    for name in ("n", "m"):
        await bench.sees_node(gpu_node(name, 8))
    await bench.sees_config_map(config_map("kube-system", "topology", devices, labels))
    await bench.sees_config_map(config_map("kube-system", "topology", devices, labels | {"nodename": "m"}))
    unhealthy = {
        event.node.name: event.node.unhealthy for event in bench.events if isinstance(event, NodeSeen)
    }
    assert unhealthy == {"n": 0, "m": 1}


async def test_other_config_maps_say_nothing(bench: Bench) -> None:
    await bench.sees_node(gpu_node("n", 8))
    await bench.sees_config_map(config_map("kube-system", "coredns", {"Corefile": "."}))
    await bench.sees_config_map(config_map("team-a", "unhealthy-gpu-n", {"gpus": "0"}))
    assert bench.kinds() == [NodeSeen]


POLICIES = """
topologyAwareScheduling:
  enabled: true
  policies:
    - {name: near, weight: 100, topology: nvlink, strategy: pack}
  levels:
    - {name: rack, label: example.com/rack}
"""


def policies(text: str) -> dict[str, Any]:
    return config_map("muster-system", "kai-scheduler-config", {"config.yaml": text})


async def test_policies_are_taken_in_and_a_bad_one_leaves_the_last_good_one(bench: Bench) -> None:
    await bench.sees_config_map(policies(POLICIES))
    assert bench.kinds() == [PoliciesSeen]
    await bench.sees_config_map(policies(POLICIES.replace("100", "heavy")))
    assert bench.kinds() == [PoliciesSeen]
    assert bench.intake.policies_refused
    (event,) = bench.posted
    assert (event.kind, event.reason) == ("ConfigMap", EventReason.INVALID)
    assert event.objects == (("kai-scheduler-config", "uid-kai-scheduler-config"),)
    assert event.message.startswith("topology policies are refused, the last good ones stay: ")
    assert "weight" in event.message
    await bench.sees_config_map(policies(POLICIES))
    assert not bench.intake.policies_refused
    assert bench.kinds() == [PoliciesSeen]


async def test_bad_policies_at_the_start_leave_the_defaults_which_is_said(bench: Bench) -> None:
    await bench.sees_config_map(policies(POLICIES.replace("100", "heavy")))
    assert (bench.kinds(), bench.intake.policies_refused) == ([], True)
    (event,) = bench.posted
    assert event.message.startswith("topology policies are refused, and the defaults hold: ")


async def test_without_their_config_map_the_defaults_hold(bench: Bench) -> None:
    await bench.sees_config_map(policies(POLICIES))
    await bench.intake.on_config_map("muster-system/kai-scheduler-config", None)
    *_, last = bench.events
    assert isinstance(last, PoliciesSeen)
    assert last.policies == DEFAULT_POLICIES


def kai_group(**constraint: str) -> dict[str, Any]:
    spec = {"minMember": 2, "topologyConstraint": constraint}
    return custom("scheduling.run.ai/v2alpha2", "PodGroup", "train", spec)


async def test_of_a_namespace_the_labels_count(bench: Bench) -> None:
    def team(labels: dict[str, str] | None, **more: Any) -> tuple[str, NamespaceObject]:
        item = {"metadata": {"name": "team-a", "labels": labels, **more}, "status": {"phase": "Active"}}
        return seen(msgspec.convert(item, NamespaceObject))

    await bench.intake.on_namespace(*team({"team": "a", "env": "b"}))
    await bench.intake.on_namespace(*team({"env": "b", "team": "a"}, annotations={"touched": "1"}))
    await bench.intake.on_namespace(*team(None))
    await bench.intake.on_namespace("team-a", None)
    await bench.intake.on_namespace("team-b", None)
    assert bench.kinds() == [NamespaceSeen, NamespaceSeen, NamespaceSeen]
    first, second, gone = bench.events
    assert isinstance(first, NamespaceSeen)
    assert (first.name, first.labels) == ("team-a", (("env", "b"), ("team", "a")))
    assert isinstance(second, NamespaceSeen)
    assert second.labels == ()
    assert isinstance(gone, NamespaceSeen)
    assert (gone.name, gone.labels) == ("team-a", None)


async def test_a_pod_group_comes_and_goes(bench: Bench) -> None:
    await bench.sees_pod_group(kai_group())
    written = kai_group() | {"status": {"phase": "Running"}}
    await bench.sees_pod_group(written)
    await bench.intake.on_pod_group("uid-train", None)
    await bench.intake.on_pod_group("uid-other", None)
    assert bench.kinds() == [PodGroupSeen, PodGroupGone]
    *_, last = bench.events
    assert isinstance(last, PodGroupGone)
    assert last.key == ("default", "kai", "train")


async def test_another_status_of_ours_is_an_event(bench: Bench) -> None:
    """Who leads next must know what is shown."""
    group = custom("scheduling.run.ai/v2", "PodGroup", "train", {"minMember": 2})
    await bench.sees_pod_group(group)
    for phase in ("Planning", "Running", "Running"):
        await bench.sees_pod_group(group | {"status": {"phase": phase}})
    assert bench.kinds() == [PodGroupSeen] * 3
    shown = bench.last_group().status
    assert isinstance(shown, PodGroupStatus)
    assert shown.phase == "Running"


async def test_a_topology_that_changes_has_pod_groups_read_again(bench: Bench) -> None:
    await bench.sees_pod_group(kai_group(topology="dc", requiredTopologyLevel="example.com/row"))
    assert bench.last_group().causes == ()
    await bench.sees_topology("other", "example.com/row")
    assert bench.last_group().causes
    await bench.sees_topology("dc", "example.com/row", "kubernetes.io/hostname")
    assert bench.last_group().causes == ()
    await bench.intake.on_topology("dc", None)
    assert bench.last_group().causes


async def test_the_levels_of_the_policies_give_kais_labels_their_words(bench: Bench) -> None:
    await bench.sees_pod_group(kai_group(requiredTopologyLevel="example.com/rack"))
    assert bench.last_group().topology_request.required_scope == "example.com/rack"
    await bench.sees_config_map(policies(POLICIES))
    assert bench.last_group().topology_request.required_scope == "rack"


def agent_pod(name: str, node: str, ready: str = "True", **metadata: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "muster-node-agent"}
    new_pod: dict[str, Any] = gpu_pod(name, 0)
    new_pod["metadata"] |= {"namespace": AGENTS, "labels": labels} | metadata
    new_pod["spec"]["nodeName"] = node
    new_pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
    return new_pod


SECOND, AWAY = "second-endpoint", "agent-away"


async def test_a_pod_that_looks_like_an_agent_is_none_unless_the_setting_says_where_they_are(
    bench: Bench,
) -> None:
    node = gpu_node("node-a", 8)
    node["metadata"]["labels"] = {"gpu.topology/node-agent": "second-endpoint"}
    bench.intake = Intake(DialectSettings(), bench._put, bench.posted.append)
    await bench.sees_pod(agent_pod("agent-1", "node-a"))
    await bench.sees_node(node)
    assert bench.last_node().hands_out == AWAY


async def test_a_node_has_a_second_endpoint_while_its_agent_is_ready(bench: Bench) -> None:
    """Also during a rolling update, and if the node is seen after its agent."""
    node = gpu_node("node-a", 8)
    node["metadata"]["labels"] = {"gpu.topology/node-agent": "second-endpoint"}
    await bench.sees_node(node)
    assert bench.last_node().hands_out == AWAY
    (problem,) = bench.last_node().problems
    assert problem.startswith(
        "the label gpu.topology/node-agent asks for a node agent, and none is ready there"
    )
    await bench.sees_pod(agent_pod("agent-1", "node-a", ready="False"))
    assert bench.last_node().hands_out == AWAY
    await bench.sees_pod(agent_pod("agent-1", "node-a"))
    assert (bench.last_node().hands_out, bench.last_node().problems) == (SECOND, ())
    await bench.sees_pod(agent_pod("agent-2", "node-a"))
    await bench.intake.on_pod("uid-agent-1", None)
    assert bench.last_node().hands_out == SECOND
    await bench.sees_pod(agent_pod("agent-2", "node-a", deletionTimestamp="2026-11-23T00:00:00Z"))
    assert bench.last_node().hands_out == AWAY
    await bench.sees_pod(agent_pod("agent-3", "node-b"))
    await bench.sees_node(node | {"metadata": node["metadata"] | {"name": "node-b"}})
    assert bench.last_node().hands_out == SECOND


@pytest.mark.parametrize(
    "metadata", [{"namespace": "team"}, {"labels": {"app.kubernetes.io/name": "x"}}, {"labels": None}]
)
async def test_no_other_pod_is_a_node_agent(bench: Bench, metadata: dict[str, Any]) -> None:
    node = gpu_node("node-a", 8)
    node["metadata"]["labels"] = {"gpu.topology/node-agent": "second-endpoint"}
    await bench.sees_node(node)
    await bench.sees_pod(agent_pod("forged", "node-a", **metadata))
    assert bench.last_node().hands_out == AWAY


async def test_an_agent_that_offers_gpus_itself_is_no_second_endpoint(bench: Bench) -> None:
    await bench.sees_node(gpu_node("node-a", 8))
    await bench.sees_pod(agent_pod("agent-1", "node-a"))
    assert (bench.last_node().hands_out, bench.last_node().problems) == ("own-choice", ())
