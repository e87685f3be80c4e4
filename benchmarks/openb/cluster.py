"""What is free while pods arrive, and the ways in which a request could be placed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.openb.trace import GPU, Nodes, Request, Whole

SLOTS = 8
"""GPUs of the largest node: columns of `free`."""


@dataclass(frozen=True, slots=True)
class States:
    """What is free on nodes, a row each: millicores; GPU-thousandths of each GPU; the model."""

    cpu: Whole
    free: Whole
    model: Whole

    @property
    def gpu_milli(self) -> Whole:
        """Free GPU-thousandths of each."""
        total: Whole = self.free.sum(axis=1)
        return total


@dataclass(frozen=True, slots=True)
class Options:
    """Ways to place one request: `before` has a row for each node that takes it, `after` one for each option.

    Option i is on node `nodes[row[i]]`, and takes the GPU in column `column[i]` if the request is shared.
    """

    nodes: Whole
    before: States
    after: States
    row: Whole
    column: Whole


class Cluster:
    """The nodes while pods arrive.

    Invariant: `free` has ascending rows, `SLOTS` wide, 0 where there is no GPU. Which GPU is which does not
    matter here, so the first one that fits is the fullest, and whole free GPUs are the last.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.cpu = nodes.cpu.copy()
        self.memory = nodes.memory.copy()
        self.free: Whole = np.where(np.arange(SLOTS) >= SLOTS - nodes.gpus[:, None], GPU, 0)

    def states(self, rows: Whole | slice = slice(None)) -> States:
        """What is free on these nodes now."""
        return States(self.cpu[rows], self.free[rows], self.nodes.model[rows])

    def options(self, request: Request, nodes: Whole) -> Options:
        """The ways to place it on these nodes; of GPUs with equally much free one stands for all."""
        nodes = nodes[(self.cpu[nodes] >= request.cpu) & (self.memory[nodes] >= request.memory)]
        if request.models:
            accepted = np.array([request.accepts(model) for model in self.nodes.models])
            nodes = nodes[accepted[self.nodes.model[nodes]]]
        ways = self._ways(request, self.free[nodes])
        takes = ways.any(axis=1)
        nodes, (row, column) = nodes[takes], np.nonzero(ways[takes])
        before = self.states(nodes)
        free = before.free[row]
        if request.is_shared:
            free[np.arange(len(row)), column] -= request.gpu_milli
        elif request.gpus:
            free[:, -request.gpus :] = 0
        return Options(
            nodes, before, States(before.cpu[row] - request.cpu, free, before.model[row]), row, column
        )

    def place(self, request: Request, node: int, column: int) -> None:
        """Take it, as `options` offered."""
        self.cpu[node] -= request.cpu
        self.memory[node] -= request.memory
        if request.is_shared:
            self.free[node, column] -= request.gpu_milli
        elif request.gpus:
            self.free[node, -request.gpus :] = 0
        self.free[node].sort()

    @staticmethod
    def _ways(request: Request, free: Whole) -> NDArray[np.bool_]:
        if not request.is_shared:
            return free[:, [-request.gpus]] == GPU if request.gpus else np.ones((len(free), 1), dtype=bool)
        ways = free >= request.gpu_milli
        ways[:, 1:] &= free[:, 1:] != free[:, :-1]
        return ways
