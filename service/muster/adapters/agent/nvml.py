"""The GPUs of this node, as NVIDIA's driver knows them.

GPUs are counted in the order of their PCI addresses, as nvidia-smi and the plans do.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import pynvml

from muster.domain.topology import bits
from muster.node_agent.hardware import Hardware
from muster.node_agent.inventory import Gpu, Inventory, InventoryError

GIB = 1 << 30
MAX_LINKS = 18
NUMA_WORDS = 16
"""Number of words of 64 bits, with a bit for each NUMA node: Linux has at most 1,024."""
LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PSB",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
OF_APPLICATIONS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a program can cause on a healthy GPU. NVIDIA's device plugin ignores these XIDs too."""


class Nvml:
    """Reads the driver. A GPU that had a critical error stays unhealthy until the agent starts anew."""

    def __init__(self) -> None:
        """Open the driver.

        Raises:
            InventoryError: there is no driver.
        """
        self._broken: set[str] = set()
        try:
            pynvml.nvmlInit()
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as problem:
            raise InventoryError(
                f"NVML: {problem}: is NVIDIA's driver on this node, and visible here?"
            ) from None
        self._handles: dict[str, Any] = {}
        self._fixed: tuple[tuple[str, ...], Hardware] | None = None

    def read(self) -> Hardware:
        """Return the GPUs. Links, memory and names are read only when the GPUs have changed."""
        try:
            handles = self._handles_by_address()
            uuids = tuple(pynvml.nvmlDeviceGetUUID(handle) for handle in handles)
            self._watch(dict(zip(uuids, handles, strict=True)))
            self._note_errors()
            if self._fixed is None or self._fixed[0] != uuids:
                self._fixed = (uuids, self._hardware(handles, uuids))
        except pynvml.NVMLError as problem:
            raise InventoryError(f"NVML: {problem}") from None
        fixed = self._fixed[1]
        gpus = tuple(
            Gpu(gpu.index, gpu.uuid, gpu.memory_gib, gpu.uuid not in self._broken)
            for gpu in fixed.inventory.gpus
        )
        return Hardware(Inventory(gpus), fixed.links, fixed.numa, fixed.product, fixed.clique)

    def close(self) -> None:
        """Close the driver."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._events)
            pynvml.nvmlShutdown()

    @staticmethod
    def _handles_by_address() -> list[Any]:
        handles = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            # a lost GPU has no handle: it is missing here, and `with_lost` keeps its place
            with contextlib.suppress(pynvml.NVMLError_GpuIsLost):
                handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
        return sorted(handles, key=_address)

    def _watch(self, handles: dict[str, Any]) -> None:
        for uuid, handle in handles.items():
            if uuid not in self._handles:
                self._handles[uuid] = handle
                # older GPUs have no such events
                with contextlib.suppress(pynvml.NVMLError_NotSupported):
                    pynvml.nvmlDeviceRegisterEvents(
                        handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                    )

    def _note_errors(self) -> None:
        """Take in all errors that have come since the last call."""
        with contextlib.suppress(pynvml.NVMLError_Timeout):
            while True:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                if event.eventData not in OF_APPLICATIONS:
                    self._broken.add(pynvml.nvmlDeviceGetUUID(event.device))

    def _hardware(self, handles: list[Any], uuids: tuple[str, ...]) -> Hardware:
        gpus = tuple(
            Gpu(index, uuid, pynvml.nvmlDeviceGetMemoryInfo(handle).total // GIB)
            for index, (handle, uuid) in enumerate(zip(handles, uuids, strict=True))
        )
        common_ancestor = pynvml.nvmlDeviceGetTopologyCommonAncestor
        links = [
            [LEVELS.get(common_ancestor(a, b), "SYS") if a is not b else "X" for b in handles]
            for a in handles
        ]
        for pair, count in _nvlinks(handles).items():
            for i, j in (pair, pair[::-1]):
                links[i][j] = f"NV{min(count, MAX_LINKS)}"
        product = str(pynvml.nvmlDeviceGetName(handles[0])) if handles else ""
        numa = tuple(_numa(handle) for handle in handles)
        return Hardware(Inventory(gpus), tuple(map(tuple, links)), numa, product, _clique(handles))


def _address(handle: Any) -> tuple[int, int, int]:
    info = pynvml.nvmlDeviceGetPciInfo(handle)
    return info.domain, info.bus, info.device


def _nvlinks(handles: list[Any]) -> dict[tuple[int, int], int]:
    """Return the number of NVLinks between two GPUs, the smaller index first. Links to a switch count for all
    GPUs that are on the switch."""
    by_address = {_address(handle): index for index, handle in enumerate(handles)}
    link_counts: dict[tuple[int, int], int] = {}
    to_switch = [0] * len(handles)
    for index, handle in enumerate(handles):
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                    continue
                kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
                if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                    to_switch[index] += 1
                    continue
                remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
            except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
                break  # it has no more links
            peer = by_address.get((remote.domain, remote.bus, remote.device))
            if peer is not None and index < peer:
                link_counts[index, peer] = link_counts.get((index, peer), 0) + 1
    for i in range(len(handles)):
        for j in range(i + 1, len(handles)):
            if count := min(to_switch[i], to_switch[j]):
                link_counts[i, j] = count
    return link_counts


def _numa(handle: Any) -> int:
    """Return the NUMA node whose memory is nearest, as nvidia-smi shows it; -1 if no node or
    several nodes are nearest.

    In many virtual machines the kernel knows no NUMA node of a PCI device, while the driver does.
    """
    try:
        words = pynvml.nvmlDeviceGetMemoryAffinity(handle, NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return -1
    numa_nodes = [*bits(sum(word << 64 * place for place, word in enumerate(words)))]
    return numa_nodes[0] if len(numa_nodes) == 1 else -1


def _clique(handles: list[Any]) -> str:
    """Return the NVLink domain over several nodes, if the driver has joined one."""
    if not handles:
        return ""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    try:
        pynvml.nvmlDeviceGetGpuFabricInfoV(handles[0], ctypes.byref(info))
    except (pynvml.NVMLError, AttributeError):  # an older driver
        return ""
    cluster = bytes(bytearray(info.clusterUuid)).hex()
    is_joined = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and set(cluster) != {"0"}
    return f"{cluster}.{info.cliqueId}" if is_joined else ""
