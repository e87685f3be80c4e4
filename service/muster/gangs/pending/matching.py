"""In-tree answers about devices → bit masks of the GPUs that pods may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from muster.domain.node import Node
from muster.gangs.messages.calls import InTreeAnswer

Matching = tuple[dict[str, int], ...]
"""Node → mask of GPUs, for each subrequest."""


def matching(answers: Iterable[InTreeAnswer], nodes: Mapping[str, Node]) -> Matching:
    """Return node → mask of the GPUs that the pods of all these answers may have, for each subrequest.

    Other nodes than those that answers name are left out. An answer with fewer subrequests counts with its
    last one. A device that no slice offers any more is no GPU.
    """
    answers = tuple(answers)
    ranks = max((len(answer.devices) for answer in answers), default=0)
    return tuple(_of_rank(answers, rank, nodes) for rank in range(max(1, ranks)))


def _of_rank(answers: Sequence[InTreeAnswer], rank: int, nodes: Mapping[str, Node]) -> dict[str, int]:
    by_answer = [answer.devices[: rank + 1][-1] if answer.devices else {} for answer in answers]
    found: dict[str, int] = {}
    for name in dict.fromkeys(name for devices in by_answer for name in devices):
        node = nodes.get(name)
        if node is not None:
            found[name] = -1
            for devices in by_answer:
                found[name] &= _mask(node, devices.get(name))
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
