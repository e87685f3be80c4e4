"""How many of a node's free GPUs each kind of request could use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.openb.cluster import States
from benchmarks.openb.trace import Request, Whole

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mix:
    """The kinds of requests that ask for GPUs.

    Kinds that differ in the models they accept alone have one *size*, and what a size could use is counted
    once. An entry a kind: `share`, of all kinds, those without GPUs too, so they add up to less than 1;
    `size`; in `accepts`, a row per model, 1 where the kind takes it. An entry a
    size: `cpu`, and `shape`, the row in `shapes`, the distinct (GPUs, thousandths of each).
    """

    share: Values
    size: Whole
    accepts: Values
    cpu: Whole
    shape: Whole
    shapes: Whole

    @classmethod
    def of(cls, shares: Mapping[Request, float], models: tuple[str, ...]) -> Self:
        """From shares by request; `models`: those of the cluster, in the order of `States.model`."""
        kinds = [request for request in shares if request.gpus]
        sizes = sorted({replace(request, models=()) for request in kinds})
        shapes = sorted({(size.gpus, size.gpu_milli) for size in sizes})
        return cls(
            np.array([shares[request] for request in kinds]),
            np.array([sizes.index(replace(request, models=())) for request in kinds]),
            np.array([[float(request.accepts(model)) for request in kinds] for model in models]),
            np.array([size.cpu for size in sizes]),
            np.array([shapes.index((size.gpus, size.gpu_milli)) for size in sizes]),
            np.array(shapes),
        )

    def weights(self, of_kinds: Values) -> Values:
        """Weights of kinds as weights of sizes, a row per model: summed over the kinds that accept it."""
        by_size = np.zeros((len(self.cpu), len(self.accepts)))
        np.add.at(by_size, self.size, (self.accepts * of_kinds).T)
        return by_size.T

    def roomy(self, states: States) -> Values:
        """GPU-thousandths free on GPUs that have what the size asks of one, if it fits: a row per state."""
        roomy: Values = self._by_shape(states)[:, self.shape] * (states.cpu[:, None] >= self.cpu)
        return roomy

    def _by_shape(self, states: States) -> Values:
        """What is free on GPUs that have what a shape asks of one, if there are enough: a column a shape."""
        gpus, size = self.shapes.T
        enough = (states.free[:, :, None] >= size).astype(np.float64)
        milli = np.matmul(states.free[:, None, :].astype(np.float64), enough)[:, 0]
        milli_by_node: Values = milli * (enough.sum(axis=1) >= gpus)
        return milli_by_node
