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

from muster.dialects.nodes.bounds import NodeKeys
from muster.dialects.reading import SHOWN, natural
from muster.dialects.settings import ALIYUN_GPU
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


def served(node: NodeKeys, offered: frozenset[str]) -> frozenset[str]:
    """Return which of the GPU resources in a node's allocatable may be planned there.

    A mode serves one kind alone. Without the label, or with an unknown mode, all of them are served.
    """
    key = node.settings.ack_node_mode
    mode = node.labels.get(key)
    if mode == DEFAULT:
        return offered - {ALIYUN_GPU, node.settings.gpu_memory}
    if mode == TOPOLOGY:
        return offered & {ALIYUN_GPU}
    if mode in SHARING:
        return offered & {node.settings.gpu_memory}
    if mode == DISABLED:
        return frozenset()
    if mode is not None:
        node.problems.append(
            f"the label {key} is {mode!r}; known are default, topology, share, cgpu and disabled: it is read "
            "as no label"
        )
    return offered


def memory_by_gpu(node: NodeKeys, gpu_mem: int, gpu_count: int) -> tuple[int, ...]:
    """Return the GiB of each GPU of a node with `gpu_mem` in all, () if that is nothing."""
    settings = node.settings
    if not gpu_mem:
        return ()
    if not gpu_count:
        node.problems.append(
            f"allocatable has {gpu_mem} {settings.gpu_memory}, but neither {settings.shared_gpus} nor the "
            f"label {settings.gpu_count} says of how many GPUs: nothing of it is served"
        )
        return ()
    share, remainder = divmod(gpu_mem, gpu_count)
    text = node.annotations.get(settings.memory_by_gpu)
    if text is not None:
        by_gpu = _listed(text)
        if len(by_gpu) == gpu_count and sum(by_gpu) == gpu_mem:
            return by_gpu
        example = ",".join(str(share + (gpu < remainder)) for gpu in range(min(gpu_count, 8)))
        node.problems.append(
            f"{settings.memory_by_gpu} is {text[:SHOWN]!r}, expected GiB of each of {gpu_count} GPUs, "
            f"{gpu_mem} in all, as in {example!r}: an even split is used"
        )
    if remainder:
        node.problems.append(
            f"{gpu_mem} GiB on {gpu_count} GPUs are not the same on each: {share} on each are used; the "
            f"annotation {settings.memory_by_gpu} can say more"
        )
    return (share,) * gpu_count if share else ()


def note_missing(node: NodeKeys, units: int, by_gpu: tuple[int, ...], unhealthy: int) -> None:
    """Note a problem if allocatable has `units` less than capacity. Unhealthy GPUs account for their own.

    Other broken GPUs are unknown, so only kube-scheduler's sum of units keeps pods away from them.
    """
    broken = sum(units for gpu, units in enumerate(by_gpu) if unhealthy >> gpu & 1)
    if by_gpu and units > broken:
        node.problems.append(
            f"allocatable has {units} {node.settings.gpu_memory} less than capacity, {broken} of them on "
            "GPUs that are known to be unhealthy: which others are broken is not said"
        )


def spreads(node: NodeKeys) -> bool:
    """Return whether a node's slices go to the GPU with most left instead of least."""
    placement = node.labels.get(node.settings.ack_node_placement, BINPACK)
    if placement not in (BINPACK, SPREAD):
        label = f"the label {node.settings.ack_node_placement} is {placement!r}"
        node.problems.append(f"{label}; known are {BINPACK} and {SPREAD}: it is read as {BINPACK}")
    return placement == SPREAD


def cdi_devices(node: NodeKeys, gpu_count: int, resources: frozenset[str]) -> tuple[str, ...]:
    """Return the names of a node's CDI devices by GPU, () if the label `nri_nodes` asks for none."""
    label, uuids_key = node.settings.nri_nodes, node.settings.gpu_uuids
    key, _, value = label.partition("=")
    if not key or node.labels.get(key) != value:
        return ()
    asks = f"the label {label} asks for annotations of NVIDIA's NRI plugin"
    if FOLLOWED_RESOURCE not in resources:
        node.problems.append(f"{asks}, which are written for {FOLLOWED_RESOURCE} alone: the node offers none")
        return ()
    uuids = [uuid.strip() for uuid in node.annotations.get(uuids_key, "")[:MAX_BYTES].split(",")]
    if len(set(uuids)) != gpu_count or len(uuids) != gpu_count or not all(map(_UUID.fullmatch, uuids)):
        expected = f"the annotation {uuids_key} with {gpu_count} different uuids, as in GPU-1,GPU-2"
        node.problems.append(f"{asks}, which need {expected}: none are written")
        return ()
    return tuple(f"{_KIND}={uuid}" for uuid in uuids)


def mask_of_list(text: str, gpu_count: int) -> tuple[int, list[str]]:
    """Return the bit mask of the GPUs in a list as "0,2", and the parts that name no GPU below the count."""
    mask, slips = 0, list[str]()
    for part in map(str.strip, text.split(",")):
        gpu = natural(part)
        if gpu is not None and gpu < gpu_count:
            mask |= 1 << gpu
        elif part:
            slips.append(part)
    return mask, slips


def _listed(text: str) -> tuple[int, ...]:
    """Return the numbers in a list; () if one of them is none."""
    if len(text) > MAX_GPUS * 12:
        return ()
    numbers = tuple(natural(part.strip()) for part in text.split(","))
    return tuple(number for number in numbers if number is not None) if None not in numbers else ()
