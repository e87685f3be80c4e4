"""Extended resources that DRA drivers serve: what DeviceClasses add to nodes and waiting pods."""

from __future__ import annotations

from itertools import permutations

import pytest

from muster.adapters.kube.intake import Intake
from muster.dialects.devices.objects import DeviceClassObject
from muster.dialects.quantities import MAX_AMOUNT
from muster.dialects.settings import DEFAULTS
from muster.gangs.messages.inputs import Input, NodeSeen, PodSeen
from tests.adapters.changes import seen
from tests.dialects.objects import node_object, pod_object
from tests.dialects.test_dra import device_class

NIC = "example.com/nic"
IMPLICIT = "deviceclass.resource.kubernetes.io/nic"


NIC_CLASS = device_class("device.driver == 'nic.example.com'", "nic", NIC)


class Bench:
    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.intake = Intake(DEFAULTS, self.put, lambda _: None)

    async def put(self, message: Input) -> None:
        self.inputs.append(message)

    async def node(self, allocatable: dict[str, str]) -> None:
        await self.intake.nodes.on_node(*seen(node_object({"nvidia.com/gpu": "8", **allocatable})))
        await self.intake.nodes.until_read()

    async def pod(self, resource: str) -> None:
        await self.intake.on_pod(*seen(pod_object(limits={"nvidia.com/gpu": "1", resource: "1"})))

    async def see_class(self, device_class: DeviceClassObject) -> None:
        await self.intake.devices.on_class(*seen(device_class))

    @property
    def offered(self) -> dict[str, int]:
        """Return what the node offers besides GPUs, cpu and memory, as the gangs know it."""
        nodes = [message.node for message in self.inputs if isinstance(message, NodeSeen)]
        return dict(nodes[-1].allocatable.others)

    @property
    def asked_about(self) -> bool:
        """Return whether in-tree plugins are asked about the pod."""
        pods = [message.pod for message in self.inputs if isinstance(message, PodSeen)]
        return pods[-1].device_claims


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("resource", [NIC, IMPLICIT])
@pytest.mark.parametrize("order", list(permutations(("node", "pod", "class"))))
async def test_a_resource_of_a_class_is_offered_and_asked_about(
    bench: Bench, resource: str, order: tuple[str, ...]
) -> None:
    """From a review: a GPU pod with such a resource was refused for ever. The stock scheduler starts it."""
    for kind in order:
        match kind:
            case "node":
                await bench.node({})
            case "pod":
                await bench.pod(resource)
            case "class":
                await bench.see_class(NIC_CLASS)
    assert bench.offered == {resource: MAX_AMOUNT}
    assert bench.asked_about


async def test_what_a_device_plugin_offers_counts_in_place_of_the_class(bench: Bench) -> None:
    await bench.see_class(NIC_CLASS)
    await bench.pod(NIC)
    await bench.node({NIC: "2"})
    assert bench.offered == {NIC: 2}
    await bench.node({NIC: "0"})
    assert bench.offered == {NIC: MAX_AMOUNT}


async def test_without_its_class_the_resource_is_offered_no_more(bench: Bench) -> None:
    await bench.see_class(NIC_CLASS)
    await bench.node({})
    await bench.pod(NIC)
    await bench.intake.devices.on_class("nic", None)
    assert bench.offered == {}
    assert not bench.asked_about


@pytest.mark.parametrize(
    "resource", ["example.com/other", "deviceclass.resource.kubernetes.io/gpu.nvidia.com"]
)
async def test_other_resources_and_those_of_gpus_are_not_offered(bench: Bench, resource: str) -> None:
    await bench.see_class(NIC_CLASS)
    await bench.see_class(device_class())
    await bench.node({})
    await bench.pod(resource)
    assert bench.offered == {}
    assert not bench.asked_about


async def test_nodes_are_read_again_once_for_any_number_of_pods(bench: Bench) -> None:
    await bench.see_class(NIC_CLASS)
    await bench.node({})
    for _ in range(3):
        await bench.pod(NIC)
        await bench.intake.on_pod("u", None)
    assert sum(isinstance(message, NodeSeen) for message in bench.inputs) == 2
