"""The trace as it was published: nodes, lists of pods, and the order in which they arrive."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"
LISTS = ("default", "multigpu50", "gpushare100", "gpuspec33")

GPU = 1000
"""One GPU, in thousandths."""

INFLATION = 1.3
"""Pods arrive until their requests reach this share of the cluster's GPUs."""

TYPICAL = 0.95
"""In the published runs, the most frequent requests that make up this share of the pods are typical."""

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Nodes:
    """A row a node: millicores, MiB, GPUs, and the GPUs' model as an index into `models`."""

    cpu: Whole
    memory: Whole
    gpus: Whole
    model: Whole
    models: tuple[str, ...]

    @property
    def gpu_milli(self) -> int:
        """Capacity of the cluster, in GPU-thousandths."""
        return int(self.gpus.sum()) * GPU

    def reordered(self, order: Sequence[int]) -> Nodes:
        """The same nodes, row i from row `order[i]`."""
        rows = np.array(order)
        return Nodes(self.cpu[rows], self.memory[rows], self.gpus[rows], self.model[rows], self.models)


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """What a pod asks for: millicores, MiB, GPUs, thousandths of each of them, and models, any if empty.

    Invariant: `gpu_milli` is `GPU` where `gpus` > 1, and 0 where `gpus` is 0.
    """

    cpu: int
    memory: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...] = ()

    @property
    def milli(self) -> int:
        """GPU-thousandths in all."""
        return self.gpus * self.gpu_milli

    @property
    def is_shared(self) -> bool:
        """Takes a part of one GPU."""
        return 0 < self.gpu_milli < GPU

    def accepts(self, model: str) -> bool:
        """Whether GPUs of this model will do."""
        return not self.models or model in self.models


@cache
def nodes() -> Nodes:
    """The cluster, in the order of names."""
    rows = sorted(_rows("nodes"), key=lambda row: row["sn"])
    models = tuple(sorted({row["model"] for row in rows}))
    cpu, memory, gpus = (
        np.array([int(row[name]) for row in rows]) for name in ("cpu_milli", "memory_mib", "gpu")
    )
    return Nodes(cpu, memory, gpus, np.array([models.index(row["model"]) for row in rows]), models)


@cache
def pods(name: str) -> tuple[Request, ...]:
    """One of `LISTS`, in the order of the pods' names."""
    return tuple(_request(row) for row in sorted(_rows(f"pods_{name}"), key=lambda row: row["name"]))


def arrivals(workload: Sequence[Request], capacity: int, seed: int) -> tuple[list[Request], list[int]]:
    """The pods in the order in which they arrive, and the order of nodes that decides between equal ones.

    As the published runs do it: pods shuffled, then random clones appended (or random pods left out) until
    the requests reach `INFLATION` of `capacity`, in GPU-thousandths; nodes in random order. Theirs is the
    generator of Go, ours that of Python: equal seeds do not give equal orders.
    """
    generator = random.Random(seed)
    order = list(workload)
    generator.shuffle(order)
    limit = int(INFLATION * capacity)
    total = sum(request.milli for request in order)
    if total > limit:
        while total > limit:
            total -= order.pop(generator.randrange(len(order))).milli
    else:
        while total + (clone := workload[generator.randrange(len(workload))]).gpu_milli <= limit:
            total += clone.milli
            order.append(clone)
    node_order = list(range(len(nodes().cpu)))
    generator.shuffle(node_order)
    return order, node_order


def mix(workload: Sequence[Request], covered: float = 1) -> dict[Request, float]:
    """The kinds of requests, memory left aside, and the share of each: what policies know of the workload.

    `covered`: only the most frequent ones that make up this share of the pods. Kinds without GPUs are among
    them. The shares add up to 1.
    """
    counts = Counter(replace(request, memory=0) for request in workload)
    covered_counts: dict[Request, int] = {}
    for request, count in sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True):
        if sum(covered_counts.values()) >= covered * len(workload):
            break
        covered_counts[request] = count
    total = sum(covered_counts.values())
    return {request: count / total for request, count in covered_counts.items()}


def _request(row: dict[str, str]) -> Request:
    gpus = int(row["num_gpu"])
    models = sorted(set(row.get("gpu_spec", "").split("|")) - {""}) if gpus else ()
    return Request(
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        gpus,
        int(row["gpu_milli"]) if gpus else 0,
        tuple(models),
    )


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)
