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
from muster.dialects.reading import natural, positive
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


def memory_by_gpu(
    gpu_mem: int, gpu_count: int, annotations: Mapping[str, str], settings: Settings
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """GiB of each GPU of a node with `gpu_mem` in all, () where that is nothing; and what is wrong."""
    if not gpu_mem:
        return (), ()
    if not gpu_count:
        return (), (
            f"allocatable has {gpu_mem} {settings.gpu_memory}, but neither {settings.shared_gpus} nor the "
            f"label {settings.gpu_count} says of how many GPUs: nothing of it is served",
        )
    problems: list[str] = []
    each, rest = divmod(gpu_mem, gpu_count)
    text = annotations.get(settings.memory_by_gpu)
    if text is not None:
        by_gpu = _listed(text)
        if len(by_gpu) == gpu_count and sum(by_gpu) == gpu_mem:
            return by_gpu, ()
        problems.append(
            f"{settings.memory_by_gpu} is {text[:_SHOWN]!r}, expected GiB of each of {gpu_count} GPUs, "
            f"{gpu_mem} in all, as in {_example(gpu_mem, gpu_count)!r}: an even split is used"
        )
    if rest:
        problems.append(
            f"{gpu_mem} GiB on {gpu_count} GPUs are not the same on each: {each} on each are used; the "
            f"annotation {settings.memory_by_gpu} can say more"
        )
    return ((each,) * gpu_count if each else ()), tuple(problems)


def missing(units: int, by_gpu: tuple[int, ...], unhealthy: int, settings: Settings) -> list[str]:
    """Return what is wrong if allocatable has `units` less than capacity. Unhealthy GPUs account for their
    own. Other broken GPUs are unknown, so only kube-scheduler's sum of units keeps pods away from them."""
    known = sum(units for gpu, units in enumerate(by_gpu) if unhealthy >> gpu & 1)
    if not by_gpu or units <= known:
        return []
    return [
        f"allocatable has {units} {settings.gpu_memory} less than capacity, {known} of them on GPUs that are "
        f"known to be unhealthy: which others are broken is not said"
    ]


def spreads(labels: Mapping[str, str], settings: Settings) -> tuple[bool, tuple[str, ...]]:
    """Whether a node's slices go to the GPU with most left instead of least, and what is wrong."""
    placement = labels.get(settings.ack_node_placement, BINPACK)
    if placement in (BINPACK, SPREAD):
        return placement == SPREAD, ()
    return False, (
        f"the label {settings.ack_node_placement} is {placement!r}; known are {BINPACK} and {SPREAD}: it is "
        f"read as {BINPACK}",
    )


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


def _listed(text: str) -> tuple[int, ...]:
    """Return the numbers in a list; () if one of them is none."""
    if len(text) > MAX_GPUS * 12:
        return ()
    numbers = tuple(natural(part.strip()) for part in text.split(","))
    return tuple(number for number in numbers if number is not None) if None not in numbers else ()


def _example(gpu_mem: int, gpu_count: int) -> str:
    each, rest = divmod(gpu_mem, gpu_count)
    return ",".join(str(each + (gpu < rest)) for gpu in range(min(gpu_count, 8)))
