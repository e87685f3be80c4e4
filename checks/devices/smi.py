"""What nvidia-smi says of the GPUs of this machine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from checks.devices.table import NotCheckedError

QUERY = ("--query-gpu=index,uuid,pci.bus_id,name,memory.total", "--format=csv,noheader,nounits")
LIMIT_S = 30.0
STYLE = re.compile(r"\x1b\[[0-9;]*m")
GPU = re.compile(r"GPU(\d+)")
Smi = Callable[..., str]
"""Runs nvidia-smi with these arguments, and returns what it prints."""


class NoGpuError(NotCheckedError):
    """There is no nvidia-smi, or it knows no GPU. The text has its words."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU. `address` is the PCI domain, bus and device."""

    index: int
    uuid: str
    address: tuple[int, int, int]
    name: str
    memory_mib: int


def run(*arguments: str) -> str:
    """Run nvidia-smi.

    Raises:
        NoGpuError: it is not there, or fails.
    """
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
    except FileNotFoundError:
        raise NoGpuError("there is no nvidia-smi") from None
    except subprocess.TimeoutExpired:
        raise NoGpuError(f"nvidia-smi {arguments[0]} does not answer in {LIMIT_S:g} s") from None
    except (OSError, subprocess.CalledProcessError) as failed:
        output = (getattr(failed, "stdout", "") or "") + (getattr(failed, "stderr", "") or "")
        raise NoGpuError(f"nvidia-smi: {' '.join(output.split()) or failed}") from None
    return done.stdout


def cards(smi: Smi) -> list[Card]:
    """Return the GPUs in the order of their indexes.

    Raises:
        NoGpuError: it knows none.
    """
    cards_by_line = []
    for line in smi(*QUERY).splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdigit():
            index, uuid, address, name, memory = cells
            cards_by_line.append(Card(int(index), uuid, _address(address), name, int(memory)))
    if not cards_by_line:
        raise NoGpuError("nvidia-smi lists no GPU")
    return sorted(cards_by_line, key=lambda card: card.index)


def _address(text: str) -> tuple[int, int, int]:
    """Return the numbers of 00000000:07:00.0."""
    domain, bus, device = text.partition(".")[0].split(":")
    return int(domain, 16), int(bus, 16), int(device, 16)


@dataclass(frozen=True, slots=True)
class Matrix:
    """`nvidia-smi topo -m`: the link of each pair of GPUs, and the NUMA node of each GPU, "" if not told."""

    links: tuple[tuple[str, ...], ...]
    numa: tuple[str, ...]


def matrix(text: str) -> Matrix:
    """Read the table, apart from how Muster reads it. One tab or several part its cells.

    Raises:
        NotCheckedError: there is no table in it.
    """
    lines = [re.split(r"\s*\t\s*", line.strip()) for line in STYLE.sub("", text).splitlines()]
    header = next((cells for cells in lines if GPU.fullmatch(cells[0])), None)
    if header is None:
        raise NotCheckedError("nvidia-smi topo -m prints no table of GPUs")
    columns = [at for at, cell in enumerate(header) if GPU.fullmatch(cell)]
    rows = [cells[1:] for cells in lines if cells is not header and GPU.fullmatch(cells[0])]
    numa = header.index("NUMA Affinity") if "NUMA Affinity" in header else len(header)
    return Matrix(
        tuple(tuple(row[column] for column in columns if column < len(row)) for row in rows),
        tuple(row[numa] if len(row) == len(header) and numa < len(row) else "" for row in rows),
    )


def clique(text: str) -> str:
    """Return the NVLink domain over nodes from `nvidia-smi -q`, as the agent writes it; "" for none."""
    fields = dict(re.findall(r"^\s+(State|CliqueId|ClusterUUID)\s*: (.*?)\s*$", _fabric(text), re.MULTILINE))
    cluster = fields.get("ClusterUUID", "").replace("-", "").lower()
    has_cluster = re.fullmatch("[0-9a-f]{32}", cluster) and set(cluster) != {"0"}
    return f"{cluster}.{fields['CliqueId']}" if has_cluster and fields.get("State") == "Completed" else ""


def _fabric(text: str) -> str:
    """Return the part of the first GPU that says Fabric: lines that are indented more than this word."""
    match = re.search(r"^([ \t]*)Fabric[ \t]*\n((?:\1[ \t]+.*\n?)*)", text, re.MULTILINE)
    return match[2] if match else ""
