"""The node agent with a fake kubelet and a fake API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from muster.adapters.agent.api import MAX_BYTES
from muster.adapters.agent.gpus import source_of
from muster.dialects.objects import PodObject
from muster.dialects.pods import pods
from muster.domain.pod import Pod
from muster.node_agent.inventory import InventoryError
from tests.adapters.agent_world import ALL, MATRIX, FakeApi, World, next_devices, pod, refused
from tests.adapters.fake_kubelet import FakeKubelet
from tests.manifests.rendering import SCHEDULER_CONFIG


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    file = tmp_path / "gpus.txt"
    file.write_text(MATRIX)
    async with FakeKubelet(tmp_path) as kubelet:
        yield World(kubelet, FakeApi(), file)


async def test_a_container_gets_its_plan_and_its_pod_is_marked(world: World) -> None:
    async with world.agent():
        plugin = await world.plugin()
        world.kubelet.pods = {"team/a": {}, "other/quiet": {}}
        world.api.pods = [pod("a", 2, 0)]
        assert await plugin.prefer(ALL, 2) == ["GPU-2", "GPU-0"]
        allocation = await plugin.allocate(["GPU-0", "GPU-2"])
        assert allocation.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-0"}
        assert [device.name for device in allocation.cdi_devices] == [
            "nvidia.com/gpu=GPU-2",
            "nvidia.com/gpu=GPU-0",
        ]
        patch = await world.api.until("/api/v1/namespaces/team/pods/a")
        assert patch["metadata"] == {"uid": "u", "annotations": {"ALIYUN_COM_GPU_ASSIGNED": "true"}}
        await plugin.close()


async def test_no_plan_no_answer_and_an_event(world: World) -> None:
    async with world.agent():
        plugin = await world.plugin()
        world.kubelet.pods = {"team/a": {}}
        world.api.pods = [pod("a")]
        assert "pod team/a has no plan for its GPUs" in await refused(plugin.prefer(ALL, 1))
        event = await world.api.until("/api/v1/namespaces/default/events")
        assert event["reason"] == "GpusRefused"
        assert event["involvedObject"]["name"] == "n"
        assert "without asking" in await refused(plugin.allocate(["GPU-0"]))
        await plugin.close()


async def test_a_booked_gpu_that_the_node_lacks_is_told_on_the_pod(world: World) -> None:
    async with world.agent():
        plugin = await world.plugin()
        world.kubelet.pods = {"team/a": {}}
        world.api.pods = [pod("a", 7)]
        assert "GPU 7 of the plan is not on the node any more" in await refused(plugin.prefer(ALL, 1))
        event = await world.api.until("/api/v1/namespaces/team/events")
        assert event["involvedObject"]["name"] == "a"
        await plugin.close()


async def test_an_api_server_that_is_away_gives_nothing_out(world: World) -> None:
    async with world.agent():
        plugin = await world.plugin()
        world.kubelet.pods = {"team/a": {}}
        world.api.pods, world.api.down = [pod("a", 1)], True
        assert "the plan of its GPUs can't be read: GET pods" in await refused(plugin.prefer(ALL, 1))
        world.api.down = False
        assert await plugin.prefer(ALL, 1) == ["GPU-1"]
        await plugin.close()


async def test_one_of_two_equal_pods_has_been_admitted_before(world: World) -> None:
    async with world.agent():
        plugin = await world.plugin()
        world.kubelet.pods = {"team/a": {}, "team/b": {}}
        world.api.pods = [pod("a", 1, uid="1"), pod("b", 2, uid="2")]
        assert "not one pod of the node waits for devices, but 2" in await refused(plugin.prefer(ALL, 1))
        world.api.pods[0] = pod("a", 1, uid="1", started=True)
        assert await plugin.prefer(ALL, 1) == ["GPU-2"]
        await plugin.close()


async def test_a_new_kubelet_is_registered_with_again(world: World) -> None:
    async with world.agent():
        first = await world.plugin()
        await world.kubelet.stop()
        world.kubelet.refuse = "starting"
        await world.kubelet.start()
        world.kubelet.refuse = ""
        second = await world.plugin()
        assert await next_devices(second.devices()) == dict.fromkeys(ALL, "Healthy")
        await first.close()
        await second.close()


async def test_health_goes_to_the_kubelet_and_to_the_node(world: World) -> None:
    async with world.agent():
        plugin = await world.plugin()
        devices = plugin.devices()
        assert await next_devices(devices) == dict.fromkeys(ALL, "Healthy")
        world.file.write_text(f"# unhealthy: 1\n{MATRIX}")
        assert await next_devices(devices) == dict.fromkeys(ALL, "Healthy") | {"GPU-1": "Unhealthy"}
        while world.api.annotations.get("gpu.topology/unhealthy") != "1":
            await world.api.until("/api/v1/nodes/n")
        await plugin.close()


async def test_other_devices_than_planned_are_reported(world: World) -> None:
    """They are what the kubelet says: another plugin, or a Binding that somebody changed."""
    world.kubelet.pods = {"team/a": {"main": ["GPU-0"]}, "team/b": {"main": ["GPU-2", "GPU-1"]}}
    world.api.pods = [pod("a", 1, uid="1", started=True), pod("b", 1, 2, uid="2", started=True)]
    async with world.agent():
        await (await world.plugin()).close()
        patch = await world.api.until("/api/v1/namespaces/team/pods/")
        reported = json.dumps({"version": 1, "gpus": [0]}, separators=(",", ":"))
        assert patch["metadata"] == {"uid": "1", "annotations": {"gpu.topology/devices": reported}}


async def test_a_pod_in_admission_is_compared_when_all_its_containers_have_devices(world: World) -> None:
    world.kubelet.pods = {"team/a": {"main": ["GPU-2"]}, "team/b": {"main": ["GPU-0"]}}
    world.api.pods = [pod("a", 1, uid="1"), pod("b", 1, uid="2", started=True)]
    async with world.agent():
        await (await world.plugin()).close()
        assert (await world.api.until("/api/v1/namespaces/team/pods/"))["metadata"]["uid"] == "2"
        world.api.pods[0] = pod("a", 1, uid="1", started=True)
        assert (await world.api.until("/api/v1/namespaces/team/pods/"))["metadata"]["uid"] == "1"


async def test_a_pod_that_can_not_be_read_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = pods.read

    def broken(obj: PodObject) -> Pod:
        if obj.metadata.name == "bad":
            raise ZeroDivisionError
        return read(obj)

    monkeypatch.setattr(pods, "read", broken)
    world.kubelet.pods = {"team/a": {}}
    world.api.pods = [pod("bad", 2, uid="1"), pod("a", 1, uid="2")]
    async with world.agent():
        plugin = await world.plugin()
        assert await plugin.prefer(ALL, 1) == ["GPU-1"]
        world.kubelet.pods = {"team/bad": {}}
        assert "the plan of pod team/bad does not name the GPUs" in await refused(plugin.prefer(ALL, 1))
        await plugin.close()


def test_pods_of_the_largest_size_fit_into_the_memory_of_the_agent() -> None:
    """Else a user who fills a node with them stops the agent, and with it all GPUs of the node."""
    manifest = yaml.safe_load((SCHEDULER_CONFIG / "node-agent" / "daemonset.yaml").read_text())
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Mi")) << 20
    assert MAX_BYTES > 110 * 1.5 * (1 << 20)
    assert limit > 2 * MAX_BYTES + (64 << 20)


async def test_devices_that_the_node_lacks_are_told(world: World) -> None:
    world.kubelet.pods = {"team/a": {"main": ["GPU-x"]}}
    world.api.pods = [pod("a", 1, started=True)]
    async with world.agent():
        await (await world.plugin()).close()
        event = await world.api.until("/api/v1/namespaces/team/events")
        assert event["reason"] == "GpusDiffer"
        assert "hold 1 GPUs, of which the node has 0 now" in event["message"]


TORN = {
    "no file": None,
    "half a matrix": MATRIX[:40],
    "an unknown word": MATRIX.replace("NV2", "NV"),
    "two words for one pair": MATRIX.replace("GPU1\tNV2", "GPU1\tSYS"),
    "uuids": f"# uuids: a,b\n{MATRIX}",
    "memory": f"# memory-gib: much\n{MATRIX}",
}


@pytest.mark.parametrize("kind", TORN)
async def test_torn_facts_take_no_gpu_away(world: World, kind: str) -> None:
    async with world.agent():
        plugin = await world.plugin()
        text = TORN[kind]
        world.file.unlink() if text is None else world.file.write_text(text)
        event = await world.api.until("/api/v1/namespaces/default/events")
        assert event["reason"] == "GpusUnreadable"
        assert str(world.file) in event["message"]
        assert "what was known before is used" in event["message"]
        world.kubelet.pods, world.api.pods = {"team/a": {}}, [pod("a", 1)]
        assert await plugin.prefer(ALL, 1) == ["GPU-1"]
        await plugin.close()


async def test_a_vanished_gpu_is_told_and_keeps_its_place_over_a_restart(world: World) -> None:
    async with world.agent():
        plugin = await world.plugin()
        await plugin.close()
        while world.api.annotations.get("gpu.topology/gpu-uuids") != "GPU-0,GPU-1,GPU-2":
            await world.api.until("/api/v1/nodes/n")
    world.file.write_text("# uuids: GPU-0,GPU-2\n\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n")
    async with world.agent():
        plugin = await world.plugin()
        event = await world.api.until("/api/v1/namespaces/default/events")
        assert (event["reason"], "GPU 1 (GPU-1)" in event["message"]) == ("GpuVanished", True)
        world.kubelet.pods, world.api.pods = {"team/a": {}}, [pod("a", 2)]
        assert await plugin.prefer(["GPU-0", "GPU-2"], 1) == ["GPU-2"]
        await plugin.close()


async def test_gpus_with_other_uuids_after_a_reboot_are_told_and_counted_anew(world: World) -> None:
    world.api.annotations["gpu.topology/gpu-uuids"] = "GPU-a,GPU-b,GPU-c"
    async with world.agent():
        plugin = await world.plugin()
        event = await world.api.until("/api/v1/namespaces/default/events")
        assert event["reason"] == "GpusRenumbered"
        assert "GPU 0 was GPU-a and is GPU-0" in event["message"]
        assert event["involvedObject"]["kind"] == "Node"
        while world.api.annotations["gpu.topology/gpu-uuids"] != "GPU-0,GPU-1,GPU-2":
            await world.api.until("/api/v1/nodes/n")
        await plugin.close()


async def test_another_label_offers_another_resource_or_nothing(world: World) -> None:
    world.api.labels["ack.node.gpu.schedule"] = "cgpu"
    async with world.agent():
        plugin = await world.plugin()
        assert len(await next_devices(plugin.devices())) == 3 * 16
        await plugin.close()
    world.api.labels["ack.node.gpu.schedule"] = "default"
    async with world.agent():
        while "GPU_TOPOLOGY" not in world.api.annotations:
            await world.api.until("/api/v1/nodes/n")
    assert world.kubelet.registered.empty()


async def test_the_end_removes_the_socket(world: World) -> None:
    async with world.agent():
        await (await world.plugin()).close()
    assert [path.name for path in world.kubelet.sockets.plugins.iterdir()] == ["kubelet.sock"]


@pytest.mark.parametrize("name", ["", "matrix:", "magic"])
def test_an_unknown_source_is_refused(name: str) -> None:
    with pytest.raises(InventoryError, match="expected nvml or matrix:FILE"):
        source_of(name)
