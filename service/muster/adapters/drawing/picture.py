"""Describe what a picture shows, before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.domain.topology import GpuTopology


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of a GPU's box: one letter for its holder, and whether the GPU is chosen.

    Chosen are the GPUs that the picture is about.
    """

    letter: str
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class NodePicture:
    """One node, a `machine` of this type. `marks` are the taken GPUs by index; the others are free.

    `unindexed_gpus` more are taken, but their indices are unknown.
    """

    name: str
    topology: GpuTopology
    marks: Mapping[int, Mark] = field(default_factory=dict)
    unindexed_gpus: int = 0
    machine: str = ""

    @property
    def free_count(self) -> int:
        """The number of GPUs that no pod has."""
        return max(0, self.topology.gpu_count - len(self.marks) - self.unindexed_gpus)

    def is_chosen(self, gpu: int) -> bool:
        """Return whether the picture is about this GPU."""
        return gpu in self.marks and self.marks[gpu].is_chosen

    def style(self, gpu: int) -> str:
        """Return the rich style of a GPU's box."""
        if gpu not in self.marks:
            return ""
        return CHOSEN_STYLE if self.marks[gpu].is_chosen else TAKEN_STYLE


CHOSEN_STYLE = "bold green"
TAKEN_STYLE = "dim"
