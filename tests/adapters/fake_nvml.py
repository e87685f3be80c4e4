"""A machine with NVIDIA GPUs in memory: the functions of nvidia-ml-py that the node agent calls.

Constants, errors and structures are those of nvidia-ml-py itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 1 << 30
CRITICAL = pynvml.nvmlEventTypeXidCriticalError


@dataclass(eq=False)
class Card:
    """One GPU, which is its own handle. `links`: what each of its NVLinks leads to, None for one that is off.

    `fabric`: UUID and clique of its NVLink domain over nodes, once it is joined.
    """

    uuid: str
    bus: int
    memory: int = 80 * GIB + 1000
    links: list[Card | str | None] = field(default_factory=list)
    lost: bool = False
    old: bool = False
    """It knows no events."""
    fabric: tuple[bytes, int] | None = None
    watched: bool = False
    numa_nodes: tuple[int, ...] | None = None
    """The NUMA nodes that are nearest, None if the driver can't tell."""


SWITCH = "switch"


@dataclass
class FakeNvml:
    """Stands for the module `pynvml`. `cards` are in the driver's order; `common` tells the level of two."""

    cards: list[Card]
    common: Callable[[Card, Card], int] = lambda *_: int(pynvml.NVML_TOPOLOGY_SYSTEM)
    driver: bool = True
    events: list[tuple[Card, int]] = field(default_factory=list)
    asked: int = 0
    """How often the slow questions were asked."""
    open: bool = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and not name.startswith(("nvmlEventType", "nvmlGpuFabricInfo_")):
            raise AssertionError(f"the fake has no {name}")
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        if not self.driver:
            raise pynvml.NVMLError_LibraryNotFound
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlEventSetFree(self, _: object) -> None:
        if not self.open:
            raise pynvml.NVMLError_Uninitialized

    def nvmlDeviceRegisterEvents(self, card: Card, kinds: int, _: object) -> None:
        if card.old:
            raise pynvml.NVMLError_NotSupported
        assert kinds == CRITICAL
        card.watched = True

    def nvmlDeviceGetSupportedEventTypes(self, card: Card) -> int:
        return 0 if card.old else int(CRITICAL)

    def nvmlEventSetWait_v2(self, _: object, timeout_ms: int) -> Any:
        assert timeout_ms == 0
        while self.events:
            card, xid = self.events.pop(0)
            if card.watched:
                return SimpleNamespace(device=card, eventType=CRITICAL, eventData=xid)
        raise pynvml.NVMLError_Timeout

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        if self.cards[index].lost:
            raise pynvml.NVMLError_GpuIsLost
        return self.cards[index]

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        if card.lost:
            raise pynvml.NVMLError_GpuIsLost
        return card.uuid

    def nvmlDeviceGetPciInfo(self, card: Card) -> Any:
        return SimpleNamespace(domain=0, bus=card.bus, device=0)

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        self.asked += 1
        return SimpleNamespace(total=card.memory)

    def nvmlDeviceGetName(self, _: Card) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryAffinity(self, card: Card, words: int, scope: int) -> list[int]:
        assert scope == pynvml.NVML_AFFINITY_SCOPE_NODE
        if card.numa_nodes is None:
            raise pynvml.NVMLError_NotSupported
        bits = sum(1 << number for number in card.numa_nodes)
        return [bits >> 64 * word & (1 << 64) - 1 for word in range(words)]

    def nvmlDeviceGetTopologyCommonAncestor(self, first: Card, second: Card) -> int:
        return self.common(first, second)

    def nvmlDeviceGetNvLinkState(self, card: Card, link: int) -> int:
        if link >= len(card.links):
            raise pynvml.NVMLError_InvalidArgument if card.links else pynvml.NVMLError_NotSupported
        return int(card.links[link] is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card: Card, link: int) -> int:
        kinds = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
        return int(kinds[card.links[link] != SWITCH])

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: Card, link: int) -> Any:
        peer = card.links[link]
        assert isinstance(peer, Card)
        return self.nvmlDeviceGetPciInfo(peer)

    def nvmlDeviceGetGpuFabricInfoV(self, card: Card, info: Any) -> None:
        if card.fabric is None:
            raise pynvml.NVMLError_NotSupported
        fabric_info = info._obj
        fabric_info.state = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        for at, byte in enumerate(card.fabric[0]):
            fabric_info.clusterUuid[at] = byte
        fabric_info.cliqueId = card.fabric[1]
