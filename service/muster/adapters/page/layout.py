"""Arrange the map: groups of nodes by the levels of the fabric, and one cell for each GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from muster.domain.levels import NVLINK, domains_by_scope
from muster.domain.node import Node
from muster.domain.printable import printable
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology, bits
from muster.domain.words import natural_key
from muster.gangs.reporting.places import PodGpus

MAX_CHARACTERS = 63
"""Largest number of characters of a name from a label, as of label values in Kubernetes."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node on the map.

    `domain` is its NVLink domain over nodes, "" for none. `islands` has a letter for each GPU. NVLink or xGMI
    joins GPUs with the same letter.
    """

    name: str
    gpus: int
    model: str
    domain: str
    islands: str


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes in one domain of the narrowest level. `path` has the names of this and all wider domains,
    widest first."""

    path: tuple[str, ...]
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Layout:
    """All nodes with GPUs, in the order of the map. `scopes` are the levels of the paths, widest first."""

    scopes: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the nodes in the order of the map."""
        return tuple(box.name for group in self.groups for box in group.boxes)

    @cached_property
    def first_cell(self) -> tuple[int, ...]:
        """Return the index of each node's first cell, then the number of cells."""
        firsts = [0]
        for group in self.groups:
            for box in group.boxes:
                firsts.append(firsts[-1] + box.gpus)
        return tuple(firsts)

    def as_json(self) -> dict[str, Any]:
        """Return the layout for the browser. A text that many nodes share occurs once."""
        models: dict[str, int] = {}
        islands: dict[str, int] = {}
        domains: dict[str, int] = {"": 0}

        def number(numbers: dict[str, int], text: str) -> int:
            return numbers.setdefault(text, len(numbers))

        groups = [
            [
                group.path,
                [
                    [
                        box.name,
                        box.gpus,
                        number(models, box.model),
                        number(islands, box.islands),
                        number(domains, box.domain),
                    ]
                    for box in group.boxes
                ],
            ]
            for group in self.groups
        ]
        shared = {"models": list(models), "islands": list(islands), "domains": list(domains)}
        return {"scopes": self.scopes, "groups": groups, **shared}


def arrange(snapshot: Snapshot, model_label: str) -> Layout:
    """Return the layout of the nodes with GPUs. Names from the cluster are made printable."""
    nodes = [state.node for state in snapshot.nodes.values() if state.node.topology.gpu_count]
    domains = domains_by_scope(nodes, snapshot.levels, snapshot.naming)
    nvlink_domain_of = domains.pop(NVLINK.scope, {})
    scopes = [scope for scope in domains if any(domains[scope].values())]
    groups: dict[tuple[str, ...], list[Box]] = {}
    for node in nodes:
        path = tuple(_short_text(domains[scope][node.name]) for scope in scopes)
        groups.setdefault(path, []).append(_box(node, nvlink_domain_of, model_label))
    ordered = sorted(groups.items(), key=lambda item: [(not name, natural_key(name)) for name in item[0]])
    return Layout(
        tuple(scopes),
        tuple(Group(path, tuple(sorted(boxes, key=_by_domain))) for path, boxes in ordered),
    )


def _box(node: Node, nvlink_domain_of: Mapping[str, str], model_label: str) -> Box:
    model = _short_text(node.labels.get(model_label) or node.machine)
    topology = node.topology
    return Box(
        node.name,
        topology.gpu_count,
        model,
        _short_text(nvlink_domain_of.get(node.name, "")),
        islands_of(topology),
    )


def islands_of(topology: GpuTopology) -> str:
    """Return a letter for each GPU; "" if no two GPUs are joined. Equal letters are one NVLink domain."""
    if not topology.has_fabric:
        return ""
    letters = ["?"] * topology.gpu_count
    for number, island in enumerate(topology.islands):
        for gpu in bits(island):
            letters[gpu] = chr(ord("A") + number % 26)
    return "".join(letters)


def _by_domain(box: Box) -> tuple[bool, object, object]:
    return not box.domain, natural_key(box.domain), natural_key(box.name)


def _short_text(name: str) -> str:
    return printable(name, MAX_CHARACTERS)


# --- what each cell shows ------------------------------------------------------------------------


class Cell(IntEnum):
    """Numbers of cells without one gang. From FIRST_GANG on, each gang has two numbers."""

    FREE = 0
    UNHEALTHY = 1
    OTHERS = 2
    """Pods without a gang, or a device claim, have the GPU."""
    SHARED = 3
    """Several gangs have slices of the GPU."""
    UNKNOWN = 4
    """The GPU counts as taken: the number of taken GPUs of the node is known, but not their indices."""


FIRST_GANG = 8
MAX_RESTING = 256
"""Largest number of free numbers that are not given to another gang yet."""


class NodeStatus(IntEnum):
    """Whether a node takes pods, and why not."""

    OPEN = 0
    CORDONED = 1
    NOT_READY = 2
    GONE = 3


class Numbers:
    """The two numbers of each gang: an even number for GPUs that its pods have, and the next number for
    reserved GPUs.

    Browsers turn numbers into letters, so numbers stay small. A number is used again, but not soon. It is
    only forgotten when no cell has it, so a browser cannot mix up two gangs.
    """

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._next = FIRST_GANG
        self._resting: deque[int] = deque()

    def of(self, gang: str) -> int:
        """Return the number of a gang's GPUs."""
        number = self._of.get(gang)
        if number is None and len(self._resting) > MAX_RESTING:
            number = self._of[gang] = self._resting.popleft()
        elif number is None:
            number = self._of[gang] = self._next
            self._next += 2
        return number

    def keep_only(self, gangs: Iterable[str]) -> None:
        """Forget all other gangs. Their numbers rest, and the number that has rested longest is used next."""
        numbers = {gang: self._of[gang] for gang in gangs if gang in self._of}
        self._resting += [number for gang, number in self._of.items() if gang not in numbers]
        self._of = numbers

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield each gang with its number."""
        yield from self._of.items()


def cells_of(state: NodeState, takers: Iterable[PodGpus], numbers: Numbers) -> list[int]:
    """Return the number of each GPU of a node."""
    count, unhealthy = state.node.topology.gpu_count, state.node.unhealthy
    cells = [
        Cell.UNHEALTHY if unhealthy >> gpu & 1 else Cell.FREE if state.free_gpus >> gpu & 1 else Cell.OTHERS
        for gpu in range(count)
    ]
    numbers_of_gpus: list[int] = [int(cell) for cell in cells]
    owned = 0
    for taker in takers:
        number = (numbers.of(taker.gang) + taker.reserved) if taker.gang else int(Cell.OTHERS)
        for gpu in bits(taker.gpus & ((1 << count) - 1)):
            old_number = numbers_of_gpus[gpu] if owned >> gpu & 1 else number
            numbers_of_gpus[gpu] = number if old_number == number else int(Cell.SHARED)
            owned |= 1 << gpu
    unknown = state.unindexed_gpus
    for gpu in reversed(range(count)):
        if unknown and numbers_of_gpus[gpu] == Cell.FREE:
            numbers_of_gpus[gpu] = int(Cell.UNKNOWN)
            unknown -= 1
    return numbers_of_gpus


def node_status(state: NodeState | None) -> NodeStatus:
    """Return whether the node takes pods, and why not."""
    if state is None:
        return NodeStatus.GONE
    if not state.node.ready:
        return NodeStatus.NOT_READY
    return NodeStatus.CORDONED if state.node.unschedulable else NodeStatus.OPEN
