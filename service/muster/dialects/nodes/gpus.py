"""Which GPUs a node serves, by its labels and annotations.

label ack.node.gpu.schedule: default | topology | share | cgpu | disabled    what the GPUs serve
capacity aliyun.com/gpu-count: 4     GPUs that share their memory; allocatable if the capacity has none
capacity aliyun.com/gpu-mem: 64      GiB of all of them; less is allocatable if a GPU is broken
annotation gpu.topology/gpu-mem: "16,16,8,24"    GiB of each, if they differ
label ack.node.gpu.placement: binpack | spread   which of these GPUs memory is taken from

The setting `nri_nodes` is the label of nodes where NVIDIA's NRI plugin gives GPUs by annotations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.dialects.reading import SHOWN, natural
from muster.dialects.settings import ALIYUN_GPU, Settings
from muster.domain.allocation import FOLLOWED_RESOURCE, MAX_BYTES, MAX_GPUS

DEFAULT, TOPOLOGY, DISABLED = "default", "topology", "disabled"
SHARING = ("share", "cgpu")
"""Without isolation of memory, and with it: the planner makes no difference."""
OFFERED = (TOPOLOGY, *SHARING)
"""With these a node agent offers the GPUs itself."""
BINPACK, SPREAD = "binpack", "spread"

_KIND = "nvidia.com/gpu"
"""The kind of CDI devices in the specification that NVIDIA's toolkit writes."""
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def served(
    offered: frozenset[str], labels: Mapping[str, str], settings: Settings
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Which of the GPU resources in a node's allocatable may be planned there, and what is wrong.

    A mode serves one kind alone. Without the label all of them; an unknown mode counts as no label and is a
    problem.
    """
    mode = labels.get(settings.ack_node_mode)
    if mode is None:
        return offered, ()
    if mode == DEFAULT:
        return offered - {ALIYUN_GPU, settings.gpu_memory}, ()
    if mode == TOPOLOGY:
        return offered & {ALIYUN_GPU}, ()
    if mode in SHARING:
        return offered & {settings.gpu_memory}, ()
    if mode == DISABLED:
        return frozenset(), ()
    problem = (
        f"the label {settings.ack_node_mode} is {mode!r}; known are default, topology, share, cgpu and "
        f"disabled: it is read as no label"
    )
    return offered, (problem,)


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
    share, remainder = divmod(gpu_mem, gpu_count)
    text = annotations.get(settings.memory_by_gpu)
    if text is not None:
        by_gpu = _listed(text)
        if len(by_gpu) == gpu_count and sum(by_gpu) == gpu_mem:
            return by_gpu, ()
        problems.append(
            f"{settings.memory_by_gpu} is {text[:SHOWN]!r}, expected GiB of each of {gpu_count} GPUs, "
            f"{gpu_mem} in all, as in {_example(gpu_mem, gpu_count)!r}: an even split is used"
        )
    if remainder:
        problems.append(
            f"{gpu_mem} GiB on {gpu_count} GPUs are not the same on each: {share} on each are used; the "
            f"annotation {settings.memory_by_gpu} can say more"
        )
    return ((share,) * gpu_count if share else ()), tuple(problems)


def missing(units: int, by_gpu: tuple[int, ...], unhealthy: int, settings: Settings) -> list[str]:
    """Return what is wrong if allocatable has `units` less than capacity. Unhealthy GPUs account for their
    own. Other broken GPUs are unknown, so only kube-scheduler's sum of units keeps pods away from them."""
    broken = sum(units for gpu, units in enumerate(by_gpu) if unhealthy >> gpu & 1)
    if not by_gpu or units <= broken:
        return []
    return [
        f"allocatable has {units} {settings.gpu_memory} less than capacity, {broken} of them on GPUs that "
        "are known to be unhealthy: which others are broken is not said"
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


def _listed(text: str) -> tuple[int, ...]:
    """Return the numbers in a list; () if one of them is none."""
    if len(text) > MAX_GPUS * 12:
        return ()
    numbers = tuple(natural(part.strip()) for part in text.split(","))
    return tuple(number for number in numbers if number is not None) if None not in numbers else ()


def _example(gpu_mem: int, gpu_count: int) -> str:
    share, remainder = divmod(gpu_mem, gpu_count)
    return ",".join(str(share + (gpu < remainder)) for gpu in range(min(gpu_count, 8)))


def cdi_devices(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    gpu_count: int,
    served: frozenset[str],
    settings: Settings,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a node's CDI devices by GPU, and why they can't be used.

    Where the label asks for nothing there are neither.
    """
    key, _, value = settings.nri_nodes.partition("=")
    if not key or labels.get(key) != value:
        return (), ()
    asks = f"the label {settings.nri_nodes} asks for annotations of NVIDIA's NRI plugin"
    if FOLLOWED_RESOURCE not in served:
        return (), (f"{asks}, which are written for {FOLLOWED_RESOURCE} alone: the node offers none",)
    uuids = [uuid.strip() for uuid in annotations.get(settings.gpu_uuids, "")[:MAX_BYTES].split(",")]
    if len(set(uuids)) != gpu_count or len(uuids) != gpu_count or not all(map(_UUID.fullmatch, uuids)):
        expected = f"the annotation {settings.gpu_uuids} with {gpu_count} different uuids, as in GPU-1,GPU-2"
        return (), (f"{asks}, which need {expected}: none are written",)
    return tuple(f"{_KIND}={uuid}" for uuid in uuids), ()
