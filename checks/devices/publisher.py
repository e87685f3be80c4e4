"""Compare what the agent reads of NVIDIA's driver with what nvidia-smi prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import combinations
from typing import TYPE_CHECKING

from checks.devices import smi
from checks.devices.smi import Card, Smi
from checks.devices.table import DIFFERS, SAME, UNKNOWN, NotCheckedError, Row, same
from muster.node_agent.hardware import Hardware

if TYPE_CHECKING:  # it needs packages
    from muster.adapters.agent.gpus import Source

SHOWN = 3
"""Pairs of GPUs that a row names."""


def read_cards(cards: list[Card]) -> Iterator[Row]:
    """Yield what nvidia-smi says alone: the order of its indexes is that of PCI addresses, as plans count."""
    indexes = [card.index for card in sorted(cards, key=lambda card: card.address)]
    how = SAME if indexes == sorted(indexes) else DIFFERS
    yield Row("nvidia-smi counts by PCI address", how, f"by address its indexes are {indexes}")


def compared(hardware: Hardware, order: list[str], cards: list[Card], ask: Smi) -> Iterator[Row]:
    """Yield the rows of the agent's facts. `order` has the uuids in NVML's own order."""
    gpus = hardware.inventory.gpus
    by_address = [card.uuid for card in sorted(cards, key=lambda card: card.address)]
    uuids = [gpu.uuid for gpu in gpus]
    yield same("GPUs", len(gpus), len(cards), f"{len(cards)} × {cards[0].name}")
    yield same("the agent counts by PCI address", uuids, by_address, ", ".join(by_address))
    yield same("NVML counts by PCI address", order, by_address, "so its indexes are those of plans")
    yield same("product", hardware.product, cards[0].name)
    memory = {card.uuid: card.memory_mib >> 10 for card in cards}
    yield same("memory in GiB", {gpu.uuid: gpu.memory_gib for gpu in gpus}, memory)
    table = smi.matrix(ask("topo", "-m"))
    yield _links(hardware.links, table.links)
    yield _numa(hardware.numa, table.numa)
    yield same("NVLink domain over nodes", hardware.clique, smi.clique(ask("-q")), hardware.clique or "none")
    sick = [gpu.uuid for gpu in gpus if not gpu.healthy]
    yield (
        Row("health", DIFFERS, f"unhealthy: {', '.join(sick)}") if sick else Row("health", SAME, "all sound")
    )


def _links(agents: tuple[tuple[str, ...], ...], nvidias: tuple[tuple[str, ...], ...]) -> Row:
    title, size = "links", len(agents)
    if [len(row) for row in agents] != [len(row) for row in nvidias]:
        return Row(title, DIFFERS, f"agent: {size} GPUs; nvidia-smi topo -m: {len(nvidias)}")
    pairs = list(combinations(range(size), 2))
    if not pairs:
        return Row(title, UNKNOWN, "one GPU has no links")
    wrong = [
        f"GPU{i}-GPU{j} agent: {agents[i][j]}; NVIDIA: {nvidias[i][j]}"
        for i, j in pairs
        if (agents[i][j], agents[j][i]) != (nvidias[i][j], nvidias[j][i])
    ]
    if wrong:
        return Row(title, DIFFERS, f"{len(wrong)} of {len(pairs)} pairs: {', '.join(wrong[:SHOWN])}")
    kinds = sorted({nvidias[i][j] for i, j in pairs})
    return Row(title, SAME, f"{len(pairs)} pairs: {', '.join(kinds)}")


def _numa(agents: tuple[int, ...], nvidias: tuple[str, ...]) -> Row:
    title = "NUMA nodes"
    if not all(cell.isdigit() for cell in nvidias):
        cells = ", ".join(dict.fromkeys(nvidias)) or "no column"
        return Row(title, UNKNOWN, f"nvidia-smi topo -m says {cells}; agent: {agents}")
    return same(title, list(agents), [int(cell) for cell in nvidias])


def opened() -> Source:
    """Return the driver, as the agent reads it.

    Raises:
        ImportError: NVIDIA's binding is not there.
        NotCheckedError: the driver's library can't be opened.
    """
    from muster.adapters.agent import nvml  # noqa: PLC0415 - its package may be missing
    from muster.node_agent.inventory import InventoryError  # noqa: PLC0415

    try:
        return nvml.Nvml()
    except InventoryError as problem:
        raise NotCheckedError(str(problem)) from None


def of_driver(cards: list[Card], ask: Smi) -> Iterator[Row]:
    """Yield the rows of the agent's publisher on NVML."""
    with closing(opened()) as source:
        import pynvml  # noqa: PLC0415 - it may be missing

        handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        order = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
        silent = [
            uuid
            for uuid, handle in zip(order, handles, strict=True)
            if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError
        ]
        yield from compared(source.read(), order, cards, ask)
        yield same("read again", source.read(), source.read(), "the same facts")
        verdict = f"not by {', '.join(silent)}" if silent else "by each GPU; none was caused here"
        yield Row("critical errors are told", UNKNOWN if silent else SAME, verdict)
