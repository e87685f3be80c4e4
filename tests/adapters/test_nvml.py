"""What the node agent reads of NVIDIA's driver, from a fake of it."""

from __future__ import annotations

import inspect
from typing import Any

import pynvml
import pytest

from muster.adapters.agent import nvml
from muster.node_agent.inventory import InventoryError
from tests.adapters.fake_nvml import GIB, SWITCH, Card, FakeNvml


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs on bus 2 and 1, in the driver's order, without NVLink."""
    fake = FakeNvml([Card("GPU-b", 2), Card("GPU-a", 1)])
    monkeypatch.setattr(nvml, "pynvml", fake)
    return fake


CALLS = [name for name in vars(FakeNvml) if name.startswith("nvml")]


@pytest.mark.parametrize("name", CALLS)
def test_the_fake_takes_what_nvidias_binding_takes(name: str) -> None:
    real, fake = (inspect.signature(getattr(of, name)) for of in (pynvml, FakeNvml))
    required = [parameter for parameter in real.parameters.values() if parameter.default is parameter.empty]
    assert len(required) <= len(fake.parameters) - 1 <= len(real.parameters)


def health(reader: nvml.Nvml) -> dict[str, bool]:
    return {gpu.uuid: gpu.healthy for gpu in reader.read().inventory.gpus}


def test_gpus_are_counted_by_pci_address_with_whole_gib(machine: FakeNvml) -> None:
    hardware = nvml.Nvml().read()
    assert [(gpu.index, gpu.uuid, gpu.memory_gib) for gpu in hardware.inventory.gpus] == [
        (0, "GPU-a", 80),
        (1, "GPU-b", 80),
    ]
    assert (hardware.product, hardware.clique, hardware.numa) == ("NVIDIA H100 80GB HBM3", "", (-1, -1))


LEVELS = {
    "NVML_TOPOLOGY_INTERNAL": "PSB",
    "NVML_TOPOLOGY_SINGLE": "PIX",
    "NVML_TOPOLOGY_MULTIPLE": "PXB",
    "NVML_TOPOLOGY_HOSTBRIDGE": "PHB",
    "NVML_TOPOLOGY_NODE": "NODE",
    "NVML_TOPOLOGY_SYSTEM": "SYS",
}


@pytest.mark.parametrize("level", LEVELS)
def test_two_gpus_without_nvlink_have_the_level_of_their_ancestor(machine: FakeNvml, level: str) -> None:
    machine.common = lambda *_: int(getattr(pynvml, level))
    link = LEVELS[level]
    assert nvml.Nvml().read().links == (("X", link), (link, "X"))


def test_nvlinks_between_gpus_are_counted_without_those_that_are_off(machine: FakeNvml) -> None:
    b, a = machine.cards
    c = Card("GPU-c", 3)
    machine.cards.append(c)
    a.links, b.links, c.links = [b, None, b, c], [a, a], [a]
    assert nvml.Nvml().read().links == (("X", "NV2", "NV1"), ("NV2", "X", "SYS"), ("NV1", "SYS", "X"))


def test_links_to_a_switch_reach_all_that_have_such(machine: FakeNvml) -> None:
    c = Card("GPU-c", 3)
    machine.cards.append(c)
    for card, count in zip(machine.cards[:2], (18, 17), strict=True):
        card.links = [SWITCH] * count
    assert nvml.Nvml().read().links == (("X", "NV17", "SYS"), ("NV17", "X", "SYS"), ("SYS", "SYS", "X"))


@pytest.mark.parametrize(
    ("nearest", "numa"), [((0,), 0), ((1,), 1), ((70,), 70), ((), -1), ((0, 1), -1), (None, -1)]
)
def test_the_numa_node_is_the_nearest_by_the_driver(
    machine: FakeNvml, nearest: tuple[int, ...] | None, numa: int
) -> None:
    machine.cards[1].numa_nodes = nearest
    assert nvml.Nvml().read().numa == (numa, -1)


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        ((bytes(range(16)), 7), "000102030405060708090a0b0c0d0e0f.7"),
        ((bytes(16), 7), ""),
    ],
)
def test_a_domain_over_nodes_is_named_once_it_is_joined(
    machine: FakeNvml, fabric: tuple[bytes, int], expected: str
) -> None:
    for card in machine.cards:
        card.fabric = fabric
    assert nvml.Nvml().read().clique == expected


def test_a_gpu_with_a_critical_error_stays_unhealthy(machine: FakeNvml) -> None:
    reader = nvml.Nvml()
    assert health(reader) == {"GPU-a": True, "GPU-b": True}
    machine.events += [(machine.cards[0], 13), (machine.cards[1], 79)]
    assert health(reader) == {"GPU-a": False, "GPU-b": True}
    assert health(reader) == {"GPU-a": False, "GPU-b": True}


def test_a_gpu_without_events_is_read_all_the_same(machine: FakeNvml) -> None:
    machine.cards[0].old = True
    assert health(nvml.Nvml()) == {"GPU-a": True, "GPU-b": True}


def test_a_lost_gpu_is_missing_and_the_slow_questions_are_asked_again_then_alone(machine: FakeNvml) -> None:
    reader = nvml.Nvml()
    for _ in range(3):
        reader.read()
    assert machine.asked == 2
    machine.cards[1].lost = True
    assert health(reader) == {"GPU-b": True}
    assert machine.asked == 3


def failing(*_: Any) -> Any:
    raise pynvml.NVMLError_Unknown


def test_a_driver_that_fails_says_so_and_is_asked_again(machine: FakeNvml) -> None:
    reader = nvml.Nvml()
    machine.nvmlDeviceGetCount = failing  # type: ignore[method-assign]
    with pytest.raises(InventoryError, match="NVML: Unknown Error"):
        reader.read()
    del machine.nvmlDeviceGetCount
    assert len(reader.read().inventory.gpus) == 2


def test_a_machine_without_a_driver_says_what_to_look_for(machine: FakeNvml) -> None:
    machine.driver = False
    with pytest.raises(InventoryError, match="is NVIDIA's driver on this node, and visible here"):
        nvml.Nvml()


def test_the_driver_is_closed_and_an_end_after_its_own_is_no_error(machine: FakeNvml) -> None:
    reader = nvml.Nvml()
    reader.close()
    assert not machine.open
    reader.close()


def test_memory_that_is_no_whole_gib_is_none(machine: FakeNvml) -> None:
    machine.cards[0].memory = GIB - 1
    with pytest.raises(InventoryError, match="0 GiB"):
        nvml.Nvml().read()
