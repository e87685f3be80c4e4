"""Tell which nodes are exact: their containers get the planned GPUs, and never other GPUs of the node."""

from __future__ import annotations

from collections.abc import Iterable

from muster.domain.allocation import FOLLOWED_RESOURCE, SECOND_RESOURCE, write_nri
from muster.domain.decision import MemberPlacement
from muster.domain.node import HandsOut, Node
from muster.domain.pod import Pod
from muster.domain.words import list_names

WHYS = (HandsOut.OWN_CHOICE, HandsOut.READS_ANNOTATIONS, HandsOut.AGENT_AWAY)
"""Reasons why a node's GPUs are not exact."""
_NAMED = 2
"""Number of nodes that a note names for each reason."""
_CLAUSES = {
    HandsOut.OWN_CHOICE: "the device plugin chooses on",
    HandsOut.READS_ANNOTATIONS: "the device plugin may swap those of equal pods on",
    HandsOut.AGENT_AWAY: "no node agent is ready on",
}


def is_exact(node: Node, pod: Pod, place: MemberPlacement) -> bool:
    """Return whether the member's containers get the planned GPUs of its node."""
    shared = bool(place.units)
    match node.hands_out:
        case HandsOut.DRA:
            return True
        case HandsOut.AGENT if shared or pod.gpu_resource == FOLLOWED_RESOURCE:
            return True
        case HandsOut.NRI if pod.gpu_resource == FOLLOWED_RESOURCE:
            # Without the annotations no component gives the containers GPUs, even if the pod takes all GPUs
            # of the node.
            return not place.gpus or bool(write_nri(node, pod, place))
        case HandsOut.SECOND_ENDPOINT if not shared and pod.gpu_resource == SECOND_RESOURCE:
            return True
    return not place.gpus or _takes_all_gpus(node, pod, place)


def not_exact(members: Iterable[tuple[Node, Pod, MemberPlacement]]) -> tuple[str, ...]:
    """Return the names of the nodes where members may get other GPUs than planned."""
    return tuple(sorted({node.name for node, pod, place in members if not is_exact(node, pod, place)}))


def why_not(node: Node) -> HandsOut | None:
    """Return the reason why the node's GPUs are not exact; None if they are exact, or if no GPUs are planned
    there. With one GPU there is no choice, so the GPU is exact."""
    plannable = bool(node.gpu_resources or node.gpu_memory) and node.topology.gpu_count > 1
    return node.hands_out if plannable and node.hands_out in WHYS else None


def nodes_by_why(nodes: Iterable[Node]) -> dict[HandsOut, list[str]]:
    """Return reason → names of the nodes whose GPUs are not exact for this reason."""
    names_by_why: dict[HandsOut, list[str]] = {why: [] for why in WHYS}
    for node in nodes:
        if (why := why_not(node)) is not None:
            names_by_why[why].append(node.name)
    return names_by_why


def notes(nodes: Iterable[Node]) -> list[str]:
    """Return one sentence about all nodes whose GPUs are not exact; no sentence if all are exact."""
    with_gpus = [node for node in nodes if node.topology.gpu_count]
    by_why = nodes_by_why(with_gpus)
    inexact = sum(map(len, by_why.values()))
    if not inexact:
        return []
    clauses = [
        f"{_CLAUSES[why]} {list_names(sorted(names), _NAMED)}" for why, names in by_why.items() if names
    ]
    return [
        f"on {inexact} of {len(with_gpus)} nodes with GPUs containers may get other GPUs than planned: "
        f"{'; '.join(clauses)} (docs/devices.md says how to get the planned ones)"
    ]


def _takes_all_gpus(node: Node, pod: Pod, place: MemberPlacement) -> bool:
    """Return whether the node has one GPU, or one container gets all its GPUs and all are healthy."""
    if node.topology.gpu_count == 1:
        return True
    units = [number for _, number in pod.container_gpus if number]
    in_one_container = len(units) == 1 and (bool(place.units) or units[0] == len(place.gpus))
    return in_one_container and not node.unhealthy and len(place.gpus) == node.topology.gpu_count
