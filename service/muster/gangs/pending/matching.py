"""In-tree answers about devices → bit masks of the GPUs that pods may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from muster.domain.node import Device, Node
from muster.domain.topology import mask_of
from muster.gangs.messages.calls import InTreeAnswer

Matching = tuple[dict[str, int], ...]
"""Node → mask of GPUs, for each subrequest."""

_MOST_NODES = 1 << 15
"""Nodes whose names of devices are remembered."""


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


def _mask(node: Node, allowed: frozenset[str] | None) -> int:
    if allowed is None:
        return (1 << node.topology.gpu_count) - 1 & ~node.tainted
    known = _known.get(node.name)
    if known is None or known[0] is not node.devices:
        if len(_known) >= _MOST_NODES:
            _known.clear()
        known = _known[node.name] = (node.devices, _names(node))
    return _among(known[1], allowed)


def _names(node: Node) -> tuple[str, ...]:
    """Return the devices' names as answers have them, "" for a GPU without a device."""
    names = []
    for device in node.devices:
        pool = "" if device is None or device.pool == node.name else f"{device.pool}/"
        names.append("" if device is None else f"{device.driver}/{pool}{device.name}")
    return tuple(names)


@lru_cache(maxsize=1 << 12)
def _among(names: tuple[str, ...], allowed: frozenset[str]) -> int:
    """Return the mask of the GPUs with an allowed name. Nodes of a cluster are much alike in these."""
    return mask_of([number for number, name in enumerate(names) if name in allowed])


_known: dict[str, tuple[tuple[Device | None, ...], tuple[str, ...]]] = {}
"""Node → its devices, and their names: a request with eight subrequests asks for them on all nodes."""
