"""The gpushare (cGPU) dialect: memory of shared GPUs.

On pods   resource aliyun.com/gpu-mem: 3          GiB, summed over the containers
          label aliyun.com/gpu-count: "2"         of this many GPUs of one node, evenly
On nodes  capacity aliyun.com/gpu-count: 4        GPUs that share; allocatable where that is not there
          capacity aliyun.com/gpu-mem: 64         GiB of all of them; less is allocatable where one is broken
          annotation gpu.topology/gpu-mem: "16,16,8,24"   GiB of each, where they differ
          label ack.node.gpu.placement: binpack | spread
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.dialects.pods.requests import Asked
from muster.dialects.reading import positive
from muster.dialects.settings import Settings
from muster.domain.allocation import MAX_GPUS
from muster.domain.causes.ill_formed import BadValue
from muster.domain.request import Slice

BINPACK, SPREAD = "binpack", "spread"

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Shared:
    """What a pod asks of shared GPUs; `container_units` are GiB on each of the slice's GPUs, container by
    container (see `Asked.container_memory`)."""

    slice: Slice | None = None
    container_units: tuple[tuple[str, int], ...] = ()
    causes: tuple[BadValue, ...] = ()


def of_pod(where: str, labels: Mapping[str, str], asked: Asked, settings: Settings) -> Shared:
    """Return the slice that a pod asks for.

    Where it can't be told evenly it is rounded up: such a pod is never planned, but it may be bound already,
    and then counts.

    A pod of whole GPUs has none: it takes them whole, whatever else it says.
    """
    bad = _Causes(where)
    memory, label = settings.gpu_memory, settings.shared_gpus
    if asked.shared_gpus:
        bad.add(f"resource {label}", str(asked.shared_gpus), f"none: it is a label of pods, beside {memory}")
    if not asked.gpu_memory:
        if label in labels and not any(cause.field.endswith(memory) for cause in asked.causes):
            bad.add(f"label {label}", labels[label], f"none: no container asks for {memory}")
        return Shared(causes=bad.causes)
    if asked.gpus:
        said = f"{asked.gpu_resource}: {asked.gpus}, {memory}: {asked.gpu_memory}"
        bad.add("resources", said, "whole GPUs or memory of shared ones, not both in a pod")
        return Shared(causes=bad.causes)
    gpus = 1
    if label in labels:
        gpus = positive(labels[label]) or 0
        if not 0 < gpus <= MAX_GPUS:
            bad.add(f"label {label}", labels[label], f"GPUs of one node: 1 to {MAX_GPUS}")
            gpus = 1
    _check_even(asked, gpus, bad, settings)
    shares = tuple((name, -(-amount // gpus)) for name, amount in asked.container_memory)
    return Shared(Slice(-(-asked.gpu_memory // gpus), gpus, memory), shares, bad.causes)


def _check_even(asked: Asked, gpus: int, bad: _Causes, settings: Settings) -> None:
    expected = f"GiB that {gpus} GPUs (label {settings.shared_gpus}) share evenly"
    if asked.gpu_memory % gpus:
        bad.add(settings.gpu_memory, str(asked.gpu_memory), expected)
        return
    for name, amount in asked.container_memory:
        if amount % gpus:
            bad.add(f"{name}: {settings.gpu_memory}", str(amount), f"{expected}, in each container")


class _Causes:
    """Gathers what is ill-formed in one pod."""

    def __init__(self, where: str) -> None:
        self.causes: tuple[BadValue, ...] = ()
        self._where = where

    def add(self, field: str, value: str, expected: str) -> None:
        self.causes += (BadValue(self._where, field, value[:_SHOWN], expected),)
