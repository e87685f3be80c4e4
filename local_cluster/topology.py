"""Link matrices: read what `nvidia-smi topo -m` and `rocm-smi --showtopo` print, publish it on a node.

Two ways to publish, both as users do it: the annotation GPU_TOPOLOGY of the original aliyun device
plugin, and node labels, which tell less (islands and their size, not each link).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from local_cluster.places import TOPOLOGIES
from muster.domain.topology import LINK_WORDS
from muster.node_agent.hardware import SWITCHED_FROM

_LINK = re.compile(r"[A-Z]+\d*")


class TopologyError(ValueError):
    """A matrix that can't be read, or can't be published in the way that was asked for."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The links between the GPUs of one node. `links[i][j]` is an abbreviation; symmetric, diagonal "X"."""

    name: str
    links: tuple[tuple[str, ...], ...]

    @property
    def gpu_count(self) -> int:
        """Return the number of GPUs."""
        return len(self.links)

    def first(self, count: int) -> Topology:
        """The same node with fewer GPUs: 0 to count - 1."""
        return Topology(self.name, tuple(row[:count] for row in self.links[:count]))

    def annotation(self) -> str:
        """The value of GPU_TOPOLOGY: JSON, `GPU_<ABBR>_<i>_<j>` with i < j → words, keys sorted."""
        pairs = {}
        for i, j in combinations(range(self.gpu_count), 2):
            link = self.links[i][j]
            if link not in LINK_WORDS:
                raise TopologyError(
                    f"topology {self.name}: GPU_TOPOLOGY has no words for link {link} (GPUs {i}, {j}); "
                    f"publish it as labels"
                )
            pairs[f"GPU_{link}_{i}_{j}"] = LINK_WORDS[link]
        return json.dumps(pairs, sort_keys=True, separators=(",", ":"))

    def labels(self) -> dict[str, str]:
        """What labels can tell of it. Islands must be equal and follow one another, or no label fits."""
        labels = {"nvidia.com/gpu.count": str(self.gpu_count)}
        islands = self.islands()
        size = len(islands[0])
        if any(island != tuple(range(k * size, (k + 1) * size)) for k, island in enumerate(islands)):
            raise TopologyError(
                f"topology {self.name}: its NVLink islands are {_islands_text(islands)}, and labels "
                f"can only tell of equal ones in a row; publish it as gpu-topology-annotation"
            )
        if size > 1:
            labels["gpu.topology/nvlink-domain-size"] = str(size)
        kinds = {self.links[i][j] for i, j in combinations(range(self.gpu_count), 2)}
        if self.gpu_count >= SWITCHED_FROM and len(kinds) == 1 and kinds.pop().startswith("NV"):
            labels["nvidia.com/nvswitch.present"] = "true"
        return labels

    def islands(self) -> list[tuple[int, ...]]:
        """GPUs that NVLink or xGMI joins, directly or through others, by their smallest index."""
        unvisited, islands = set(range(self.gpu_count)), []
        while unvisited:
            island, frontier = set(), {min(unvisited)}
            while frontier:
                island |= frontier
                joined = {
                    j for i in frontier for j in unvisited if self.links[i][j].startswith(("NV", "XGMI"))
                }
                frontier = joined - island
            islands.append(tuple(sorted(island)))
            unvisited -= island
        return islands


def load_topology(name: str, folder: Path = TOPOLOGIES) -> Topology:
    """The matrix `<folder>/<name>.txt`."""
    path = folder / f"{name}.txt"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in folder.glob("*.txt"))) or f"none, {folder} is empty"
        raise TopologyError(f"topology {name!r} is not known; known: {names}")
    return parse_topology(name, path.read_text())


def parse_topology(name: str, text: str) -> Topology:
    """Read the first matrix of links in the text. rocm-smi prints one of weights before it: skipped."""
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    for start, cells in enumerate(lines):
        count = _header_width(cells)
        if count == 0:
            continue
        rows = [line[1 : count + 1] for line in lines[start + 1 : start + 1 + count]]
        heads = [line[0] for line in lines[start + 1 : start + 1 + count] if line]
        if heads != [f"GPU{i}" for i in range(count)] or any(len(row) != count for row in rows):
            raise TopologyError(
                f"topology {name}: the matrix has {count} columns, but not {count} rows of as many cells"
            )
        if all(cell.isdigit() for row in rows for cell in row):
            continue
        return _checked(name, rows)
    raise TopologyError(f"topology {name}: no matrix in it: a line 'GPU0 GPU1 …' is missing")


def _header_width(cells: list[str]) -> int:
    """How many GPU columns a header line names; 0 for any other line.

    A row of the matrix begins with GPU0 as well, but goes on with a link: `GPU0 X NV1 …`.
    """
    if cells[:1] != ["GPU0"] or (len(cells) > 1 and cells[1] in {"X", "0", *LINK_WORDS}):
        return 0
    return next((i for i, cell in enumerate(cells) if cell != f"GPU{i}"), len(cells))


def _checked(name: str, rows: list[list[str]]) -> Topology:
    links = tuple(
        tuple("X" if i == j else cell.upper() for j, cell in enumerate(row)) for i, row in enumerate(rows)
    )
    for i, j in combinations(range(len(links)), 2):
        if links[i][j] != links[j][i]:
            raise TopologyError(
                f"topology {name}: GPU{i}–GPU{j} is {links[i][j]} in one row and {links[j][i]} in the other"
            )
        if not _LINK.fullmatch(links[i][j]):
            raise TopologyError(
                f"topology {name}: GPU{i}–GPU{j} is {links[i][j]!r}, which is no kind of link"
            )
    return Topology(name, links)


def _islands_text(islands: list[tuple[int, ...]]) -> str:
    return " ".join("{" + ",".join(map(str, island)) + "}" for island in islands)
