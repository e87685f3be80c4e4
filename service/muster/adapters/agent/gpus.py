"""Sources of the facts about a node's GPUs: the driver, or a file in place of GPUs.

    nvml                 what NVIDIA's driver says (`nvml`)
    matrix:FILE          what `nvidia-smi topo -m` printed, for machines without GPUs

Lines of the file that begin with # may say more:

    # memory-gib: 16                of each GPU, or "16,16,24,24"
    # unhealthy: 1,3
    # uuids: GPU-a,GPU-b            else GPU-0, GPU-1, …
    # product: NVIDIA-H100
    # clique: 7f3a.1                NVLink domain over several nodes
    # numa: 0,0,1,1
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from muster.dialects.nodes import matrices
from muster.node_agent.hardware import Hardware
from muster.node_agent.inventory import Gpu, Inventory, InventoryError

if TYPE_CHECKING:  # the library is not always there
    from muster.adapters.agent.nvml import Nvml

MEMORY_GIB = 16
MAX_BYTES = 1 << 20
_SETTING = re.compile(r"^#\s*([a-z-]+)\s*:\s*(.*?)\s*$", re.MULTILINE)


class MatrixFile:
    """GPUs that a file describes. The file is read again each time, so that a test can change it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Hardware:
        """Return the GPUs of the file.

        Raises:
            InventoryError: the GPUs can't be read, or contradict each other.
        """
        try:
            text = self._path.read_bytes()[:MAX_BYTES].decode()
            settings = dict(_SETTING.findall(text))
            matrix = matrices.read(text)
        except (OSError, UnicodeDecodeError, matrices.Unreadable) as problem:
            raise InventoryError(f"{self._path}: {problem}") from problem
        if matrix.problems:
            raise InventoryError(f"{self._path}: {matrix.problems[0]}")
        count = max((last for _, last in matrix.links), default=-1) + 1
        topology, problems = matrix.of_node(count)
        if problems:
            raise InventoryError(f"{self._path}: {problems[0]}")
        memory = self._numbers(settings, "memory-gib", count, MEMORY_GIB)
        unhealthy = {int(index) for index in _split(settings.get("unhealthy", "")) if index.isdigit()}
        uuids = _split(settings.get("uuids", "")) or [f"GPU-{index}" for index in range(count)]
        if len(uuids) != count:
            raise InventoryError(f"{self._path}: {len(uuids)} uuids for {count} GPUs")
        gpus = tuple(
            Gpu(index, uuids[index], memory[index], index not in unhealthy) for index in range(count)
        )
        kinds = tuple(tuple(link.kind if link else "X" for link in row) for row in topology.links)
        numa = tuple(self._numbers(settings, "numa", count, -1))
        return Hardware(Inventory(gpus), kinds, numa, settings.get("product", ""), settings.get("clique", ""))

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _numbers(self, settings: dict[str, str], key: str, count: int, default: int) -> list[int]:
        parts = _split(settings.get(key, str(default)))
        try:
            numbers = [int(number) for number in parts]
        except ValueError:
            raise InventoryError(f"{self._path}: {key} is {settings[key]!r}, expected numbers") from None
        numbers = numbers * count if len(numbers) == 1 else numbers
        if len(numbers) != count:
            raise InventoryError(f"{self._path}: {key} has {len(numbers)} numbers for {count} GPUs")
        return numbers


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


Source: TypeAlias = "MatrixFile | Nvml"
"""The GPUs of this node."""


def source_of(name: str) -> Source:
    """Return the source of that name.

    Raises:
        InventoryError: there is no such source, or it can't be used.
    """
    kind, _, path = name.partition(":")
    if kind == "matrix" and path:
        return MatrixFile(Path(path))
    if name == "nvml":
        from muster.adapters.agent.nvml import Nvml  # noqa: PLC0415 - the library is not always there

        return Nvml()
    raise InventoryError(f"--gpus {name}: expected nvml or matrix:FILE")
