"""The node agent as a second endpoint behind another device plugin, with a fake kubelet."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from local_cluster.patience import HANG_S
from muster.adapters.agent.generated import v1beta1 as api
from muster.adapters.agent.plugin import Plugin
from muster.node_agent.booking import Refused
from tests.adapters.agent_world import ALL, MATRIX, FakeApi, World, refused
from tests.adapters.agent_world import pod as any_pod
from tests.adapters.fake_kubelet import FakeKubelet

NVIDIA = "nvidia.com/gpu"
LABEL = {"gpu.topology/node-agent": "second-endpoint"}


class First:
    """A device plugin that prefers the lowest devices, and says in the environment which ones were taken."""

    def __init__(self, folder: Path) -> None:
        self.plugin = Plugin(folder / "nvidia-gpu.sock", self)
        self.prefers = True
        self.refuses = ""
        self.lists = 0
        self.started: list[list[str]] = []

    async def why_inexact(self) -> str:
        return ""

    async def options(self) -> api.DevicePluginOptions:
        return api.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=self.prefers
        )

    async def devices(self) -> AsyncIterator[api.ListAndWatchResponse]:
        self.lists += 1
        yield api.ListAndWatchResponse()

    async def prefer(self, available: list[str], must: list[str], size: int) -> list[str]:
        if not self.prefers:
            raise Refused("it was not to be asked")
        return sorted(available)[:size]

    async def allocate(self, devices: list[str]) -> api.ContainerAllocateResponse:
        if self.refuses:
            raise Refused(self.refuses)
        return api.ContainerAllocateResponse(
            envs={"FIRST": ",".join(sorted(devices))},
            devices=[api.DeviceSpec(container_path=f"/dev/{device}") for device in devices],
            annotations={"cdi": "yes"},
        )

    async def before_start(self, devices: list[str]) -> None:
        self.started.append(devices)


def pod(name: str, *gpus: int, uid: str = "u", started: bool = False) -> dict[str, object]:
    return any_pod(name, *gpus, uid=uid, started=started, resource=NVIDIA)


@pytest.fixture
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("k")  # paths of sockets have at most 107 characters
    file = folder / "gpus.txt"
    file.write_text(MATRIX)
    async with FakeKubelet(folder, NVIDIA) as kubelet:
        kubelet.devices = ALL
        yield World(kubelet, FakeApi(labels=dict(LABEL)), file)


@pytest.fixture
async def first(world: World) -> AsyncIterator[First]:
    plugin = First(world.kubelet.sockets.plugins)
    await plugin.plugin.start()
    yield plugin
    await plugin.plugin.stop()


async def until(answer: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not answer():  # noqa: ASYNC110 - the agent shows no event for it
            await asyncio.sleep(0.01)


async def test_a_planned_pod_gets_its_plan_by_the_other_plugin(world: World, first: First) -> None:
    """The other plugin's answer arrives whole."""
    async with world.agent():
        plugin = await world.plugin()
        world.kubelet.pods = {"team/a": {}}
        world.api.pods = [pod("a", 2, 1)]
        assert await plugin.prefer(ALL, 2) == ["GPU-2", "GPU-1"]
        allocation = await plugin.allocate(["GPU-1", "GPU-2"])
        assert allocation == await first.allocate(["GPU-1", "GPU-2"])
        await plugin.before_start(["GPU-1", "GPU-2"])
        assert first.started == [["GPU-1", "GPU-2"]]
        assert (await plugin.options()).pre_start_required
        await plugin.close()
    written = [path for path, _ in iter(lambda: _next(world), None)]
    assert not [path for path in written if "/pods/" in path], "only pods of aliyun.com/gpu are marked"


def _next(world: World) -> tuple[str, object] | None:
    return None if world.api.written.empty() else world.api.written.get_nowait()


async def test_other_devices_than_planned_are_refused(world: World, first: First) -> None:
    async with world.agent():
        plugin = await world.plugin()
        world.kubelet.pods = {"team/a": {}}
        world.api.pods = [pod("a", 2)]
        assert await plugin.prefer(ALL, 1) == ["GPU-2"]
        assert "the plan is GPU-2" in await refused(plugin.allocate(["GPU-0"]))
        assert "is held by another container" in await refused(plugin.prefer(["GPU-0", "GPU-1"], 1))
        await plugin.close()


async def test_who_takes_without_asking_gets_nothing_while_a_planned_pod_waits(
    world: World, first: First
) -> None:
    async with world.agent():
        plugin = await world.plugin()
        world.kubelet.pods = {"team/a": {}}
        world.api.pods = [pod("a", 2)]
        assert "without asking" in await refused(plugin.allocate(["GPU-0"]))
        world.api.pods = [pod("a", 2, started=True)]
        assert (await plugin.allocate(["GPU-0"])).envs == {"FIRST": "GPU-0"}
        world.api.down = True
        assert "can't be read" in await refused(plugin.allocate(["GPU-0"]))
        await plugin.close()


@pytest.mark.parametrize("prefers", [True, False])
async def test_a_pod_without_a_plan_leaves_planned_devices_alone(
    world: World, first: First, prefers: bool
) -> None:
    """While there are enough others. Its devices are those of the other plugin's choice, and no others."""
    first.prefers = prefers
    world.kubelet.pods = {"team/free": {}}
    world.api.pods = [pod("a", 0, uid="1"), pod("free", uid="2")]
    async with world.agent():
        plugin = await world.plugin()
        assert await plugin.prefer(ALL, 1) == ["GPU-1"]
        assert (await plugin.allocate(["GPU-1"])).envs == {"FIRST": "GPU-1"}
        assert await plugin.prefer(ALL, 3) == ALL, "too few others"
        assert await plugin.prefer(ALL, 1) == ["GPU-1"]
        assert "without asking" in await refused(plugin.allocate(["GPU-2"]))
        world.kubelet.pods = {"team/a": {}, "team/free": {"main": ["GPU-1"]}}
        assert await plugin.prefer(["GPU-0", "GPU-2"], 1) == ["GPU-0"]
        await plugin.close()


@pytest.mark.parametrize("devices", [["GPU-0::0", "GPU-0::1"], ["MIG-1", "MIG-2"]])
async def test_with_parts_of_gpus_the_other_plugin_chooses(
    world: World, first: First, devices: list[str]
) -> None:
    """No plan can name them. The node says so once, and the agent is not ready: the plan is not exact."""
    world.kubelet.devices, world.kubelet.pods = devices, {"team/a": {}}
    world.api.pods = [pod("a", 2)]
    async with world.agent() as agent:
        plugin = await world.plugin()
        assert await plugin.prefer(devices, 1) == devices[:1]
        assert (await plugin.allocate(devices[:1])).envs == {"FIRST": devices[0]}
        event = await world.api.until("/api/v1/namespaces/default/events")
        assert event["reason"] == "GpusNotAsPlanned"
        assert f"offers {devices[0]}, which is no whole GPU" in event["message"]
        assert not agent.is_ready
        await plugin.close()


async def test_the_other_plugin_alone_lists_devices(world: World, first: First) -> None:
    async with world.agent():
        plugin = await world.plugin()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(plugin.devices())
        assert first.lists == 0
        await plugin.close()


async def test_a_refusal_of_the_other_plugin_is_passed_on(world: World, first: First) -> None:
    first.refuses = "no such device"
    async with world.agent():
        plugin = await world.plugin()
        assert "does not answer" in (text := await refused(plugin.allocate(["GPU-0"])))
        assert "no such device" in text
        await plugin.close()


async def test_it_registers_after_the_other_plugin_and_again_when_that_is_settled(
    world: World, first: First
) -> None:
    """The kubelet asks the last one that registered. Until then the agent is not ready."""
    world.settled_after_s = 1.5
    async with world.agent() as agent:
        early = await world.plugin()
        assert not agent.is_ready
        late = await world.plugin()
        await until(lambda: agent.is_ready)
        world.kubelet.pods, world.api.pods = {"team/a": {}}, [pod("a", 1)]
        assert await late.prefer(ALL, 1) == ["GPU-1"]
        await early.close()
        await late.close()


async def test_without_the_other_plugin_nothing_is_registered(world: World) -> None:
    """It would offer devices that no plugin can give. When it is there, the agent is."""
    async with world.agent() as agent:
        await until(lambda: "GPU_TOPOLOGY" in world.api.annotations)
        assert world.kubelet.registered.empty()
        first = First(world.kubelet.sockets.plugins)
        await first.plugin.start()
        await (await world.plugin()).close()
        await until(lambda: agent.is_ready)
        await first.plugin.stop()
        plugins = world.kubelet.sockets.plugins
        await until(lambda: [path.name for path in plugins.iterdir()] == ["kubelet.sock"])
        assert not agent.is_ready


async def test_a_dead_plugin_leaves_its_socket(world: World, first: First) -> None:
    """One that was killed does not remove it. The agent asks from time to time whether it is there."""
    async with world.agent() as agent:
        await (await world.plugin()).close()
        await until(lambda: agent.is_ready)
        path = first.plugin.socket
        os.link(path, path.with_suffix(".kept"))
        await first.plugin.stop()
        os.link(path.with_suffix(".kept"), path)
        await until(lambda: not agent.is_ready)
        path.unlink()
        path.with_suffix(".kept").unlink()


async def test_an_older_kubelet_knows_one_endpoint_alone(world: World, first: First) -> None:
    """There all devices would be gone when this one disconnects."""
    world.api.kubelet = "v1.36.3"
    async with world.agent() as agent:
        event = await world.api.until("/api/v1/namespaces/default/events")
        assert event["reason"] == "GpusNotAsPlanned"
        assert "needs a kubelet of 1.37 or newer, and this one is v1.36.3" in event["message"]
        assert world.kubelet.registered.empty()
        assert not agent.is_ready


async def test_gpus_that_the_other_plugin_calls_unhealthy_are_published(world: World, first: First) -> None:
    async with world.agent() as agent:
        await (await world.plugin()).close()
        await until(lambda: agent.is_ready)
        for offered, label in ((["GPU-0", "GPU-2"], "1"), (ALL, None)):
            world.kubelet.devices = offered
            await until(lambda: world.api.annotations.get("gpu.topology/unhealthy") == label)  # noqa: B023


async def test_while_it_withdraws_it_still_answers(world: World, first: First) -> None:
    """The kubelet goes on asking until the list of devices has ended."""
    world.kubelet.pods, world.api.pods = {"team/a": {}}, [pod("a", 1)]
    async with world.agent():
        plugin = await world.plugin()
        devices = plugin.devices()
        listing = asyncio.ensure_future(anext(devices, None))
        await until(lambda: True)
        await plugin.options()
        first.plugin.socket.touch()
        world.api.labels.pop("gpu.topology/node-agent")
        assert await asyncio.wait_for(listing, HANG_S) is None, "the list ends"
        assert await plugin.prefer(ALL, 1) == ["GPU-1"]
        await plugin.close()


async def test_an_ordinary_pod_with_init_containers_blocks_no_other(world: World, first: First) -> None:
    """The kubelet does not list the devices of init containers that end; the API server may lag behind."""
    planless = pod("init", uid="1")
    spec = planless["spec"]
    assert isinstance(spec, dict)
    spec["initContainers"], spec["containers"] = spec["containers"], [{"name": "quiet"}]
    world.kubelet.pods, world.api.pods = {"team/init": {}}, [planless]
    async with world.agent():
        plugin = await world.plugin()
        assert await plugin.prefer(ALL, 1) == ["GPU-0"]
        await plugin.allocate(["GPU-0"])
        patch = await world.api.until("/api/v1/namespaces/team/pods/init")
        assert patch["metadata"]["annotations"]["gpu.topology/devices"] == '{"version":1,"gpus":[0]}'
        world.kubelet.pods |= {"team/a": {}}
        world.api.pods.append(pod("a", 2, uid="2"))
        assert await plugin.prefer(ALL, 1) == ["GPU-2"]
        await plugin.close()


async def test_a_static_pod_comes_to_the_api_server_later(world: World, first: First) -> None:
    async with world.agent():
        plugin = await world.plugin()
        world.kubelet.pods = {"team/static": {}}
        assert await plugin.prefer(ALL, 1) == ["GPU-0"]
        assert (await plugin.allocate(["GPU-0"])).envs == {"FIRST": "GPU-0"}
        await plugin.close()


async def test_a_plan_that_can_not_be_true_is_no_missing_plan(world: World, first: First) -> None:
    """Else the pod would get any GPUs, and nothing would say so."""
    async with world.agent():
        plugin = await world.plugin()
        forged = pod("a", 1, 2)
        forged["spec"]["containers"][0]["resources"]["limits"][NVIDIA] = "1"  # type: ignore[index]
        world.kubelet.pods, world.api.pods = {"team/a": {}}, [forged]
        assert "does not name the GPUs of its container main" in await refused(plugin.prefer(ALL, 1))
        await plugin.close()


async def test_after_another_plugin_was_asked_it_registers_again(world: World, first: First) -> None:
    async with world.agent():
        await (await world.plugin()).close()
        world.kubelet.pods = {"team/a": {"main": ["GPU-0"]}}
        world.api.pods = [pod("a", 1, started=True)]
        await (await world.plugin()).close()
        assert await world.api.until("/api/v1/namespaces/team/pods/a")
