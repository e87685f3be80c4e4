"""What pods and PodDisruptionBudgets state about the end of a pod for the sake of another pod."""

from __future__ import annotations

import math
from dataclasses import dataclass

from muster.domain.peers import Selector


@dataclass(frozen=True, slots=True)
class Preemption:
    """What a pod states about preemption. Pods that state the same share one object.

    `preempts`: whether other pods may end for this pod. `protected`: why this pod may never be a victim, as a
    clause about "it"; "" if it may. `min_runtime_s`: the time after its start in which it may be no victim.
    `checkpoint_s`: the longest time between two of its checkpoints, as it promises.
    """

    preempts: bool = True
    protected: str = ""
    min_runtime_s: float = 0.0
    checkpoint_s: float = math.inf


NO_TERMS = Preemption()
"""The value of pods that state nothing."""


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """The facts of a PodDisruptionBudget: the pods that it covers, and how many may be evicted now."""

    namespace: str
    name: str
    selector: Selector
    allowed: int

    @property
    def key(self) -> str:
        """Return its namespace and name."""
        return f"{self.namespace}/{self.name}"
