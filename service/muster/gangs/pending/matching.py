"""In-tree answers about devices → bit masks of the GPUs that pods may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.domain.node import Node
from muster.gangs.messages.calls import InTreeAnswer


def matching(answers: Iterable[InTreeAnswer], nodes: Mapping[str, Node]) -> dict[str, int]:
    """Return node → mask of the GPUs that the pods of all these answers may have.

    Other nodes than those that answers name are left out. A device that no slice offers any more is no GPU.
    """
    answers = tuple(answers)
    found: dict[str, int] = {}
    for name in dict.fromkeys(name for answer in answers for name in answer.devices):
        node = nodes.get(name)
        if node is not None:
            found[name] = -1
            for answer in answers:
                found[name] &= _mask(node, answer.devices.get(name))
    return found


def _mask(node: Node, names: frozenset[str] | None) -> int:
    if names is None:
        return (1 << node.topology.gpu_count) - 1 & ~node.tainted
    mask = 0
    for number, device in enumerate(node.devices):
        if device is not None:
            pool = "" if device.pool == node.name else f"{device.pool}/"
            if f"{device.driver}/{pool}{device.name}" in names:
                mask |= 1 << number
    return mask
