"""Nodes where NVIDIA's NRI plugin gives GPUs by annotations. `nri_nodes` of the settings is their label."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.dialects.settings import Settings
from muster.domain.allocation import FOLLOWED_RESOURCE, MAX_BYTES

_KIND = "nvidia.com/gpu"
"""The kind of CDI devices in the specification that NVIDIA's toolkit writes."""
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def devices(
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
    uuids = [each.strip() for each in annotations.get(settings.gpu_uuids, "")[:MAX_BYTES].split(",")]
    if len(set(uuids)) != gpu_count or len(uuids) != gpu_count or not all(map(_UUID.fullmatch, uuids)):
        expected = f"the annotation {settings.gpu_uuids} with {gpu_count} different uuids, as in GPU-1,GPU-2"
        return (), (f"{asks}, which need {expected}: none are written",)
    return tuple(f"{_KIND}={uuid}" for uuid in uuids), ()
