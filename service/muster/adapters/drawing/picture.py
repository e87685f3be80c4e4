"""What a picture shows, before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.domain.topology import GpuTopology


@dataclass(frozen=True, slots=True)
class Mark:
    """What stands in a GPU's box: one letter for its holder, and whether this picture is about it."""

    letter: str
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class NodePicture:
    """One node, a `machine` of this type. `marks` tell of the GPUs that are taken, by index; the others are
    free.

    `unindexed_gpus` more are taken; their indices are not known.
    """

    name: str
    topology: GpuTopology
    marks: Mapping[int, Mark] = field(default_factory=dict)
    unindexed_gpus: int = 0
    machine: str = ""

    @property
    def free_count(self) -> int:
        """GPUs that no pod has."""
        return max(0, self.topology.gpu_count - len(self.marks) - self.unindexed_gpus)

    def chosen(self, gpu: int) -> bool:
        """Return whether the picture is about this GPU."""
        return gpu in self.marks and self.marks[gpu].chosen

    def style(self, gpu: int) -> str:
        """The rich style of a GPU's box."""
        if gpu not in self.marks:
            return ""
        return CHOSEN_STYLE if self.marks[gpu].chosen else TAKEN_STYLE


CHOSEN_STYLE = "bold green"
TAKEN_STYLE = "dim"
