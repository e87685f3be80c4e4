"""What each cell of the map shows: a number for the state of a GPU or for its owner."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum

from muster.domain.snapshot import NodeState
from muster.domain.topology import bits
from muster.gangs.reporting.places import Taken


class Cell(IntEnum):
    """Numbers that stand for no gang. A gang has two numbers of its own, from FIRST_GANG on."""

    FREE = 0
    UNHEALTHY = 1
    OTHERS = 2
    """Pods of no gang have it, or a device claim."""
    SHARED = 3
    """Several gangs have slices of it."""
    UNKNOWN = 4
    """Taken, as far as the number tells: which GPUs of the node are taken is not known."""


FIRST_GANG = 8
MOST_RESTING = 256
"""Numbers that were given up and are not given to another gang yet."""


class Closed(IntEnum):
    """Whether a node takes pods."""

    OPEN = 0
    CORDONED = 1
    NOT_READY = 2
    GONE = 3


class Numbers:
    """The numbers of gangs: an even one for GPUs that its pods have, and the next one for reserved GPUs.

    Browsers make letters of them, so they stay small: a number is given again, but not soon. No cell has it
    when it is forgotten, so a browser cannot mix two gangs up.
    """

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._next = FIRST_GANG
        self._resting: deque[int] = deque()

    def of(self, gang: str) -> int:
        """Return the number of a gang's GPUs."""
        number = self._of.get(gang)
        if number is None and len(self._resting) > MOST_RESTING:
            number = self._of[gang] = self._resting.popleft()
        elif number is None:
            number = self._of[gang] = self._next
            self._next += 2
        return number

    def keep(self, gangs: Iterable[str]) -> None:
        """Forget all other gangs: their numbers rest, and the one that has rested longest is given next."""
        numbers = {gang: self._of[gang] for gang in gangs if gang in self._of}
        self._resting += [number for gang, number in self._of.items() if gang not in numbers]
        self._of = numbers

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield each gang with its number."""
        yield from self._of.items()


def cells_of(state: NodeState, takers: Iterable[Taken], numbers: Numbers) -> list[int]:
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
            before = numbers_of_gpus[gpu] if owned >> gpu & 1 else number
            numbers_of_gpus[gpu] = number if before == number else int(Cell.SHARED)
            owned |= 1 << gpu
    unknown = state.unindexed_gpus
    for gpu in reversed(range(count)):
        if unknown and numbers_of_gpus[gpu] == Cell.FREE:
            numbers_of_gpus[gpu] = int(Cell.UNKNOWN)
            unknown -= 1
    return numbers_of_gpus


def closed(state: NodeState | None) -> Closed:
    """Return whether the node takes pods."""
    if state is None:
        return Closed.GONE
    if not state.node.ready:
        return Closed.NOT_READY
    return Closed.CORDONED if state.node.unschedulable else Closed.OPEN
