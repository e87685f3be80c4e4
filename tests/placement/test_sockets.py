"""Of equal links the GPUs below one CPU socket and PCIe switch are taken: one node, several, and gangs."""

from __future__ import annotations

import pytest

from muster.domain.decision import Placed
from muster.placement.place import place
from muster.placement.verify import verify
from tests.placement.drawings import cluster, gang

CUBE = "v100-8x-gputopology-document"
"""Its sockets are 0 to 3 and 4 to 7; GPU 0 has two NVLinks to 3 and two to 6."""
ACROSS, INSIDE = "free 1000 0010", "free 1001 0000"

CASES: dict[str, tuple[str, str, dict[str, tuple[int, ...]], int]] = {
    # what: nodes, gang, GPUs by node, the socket distance
    "one node": (f": a[{CUBE}, free 1001 0010]", "1 x 2 GPU", {"a": (0, 3)}, 0),
    "two members on one node": (f": a[{CUBE}, free 1001 0010]", "2 x 1 GPU", {"a": (0, 3)}, 0),
    "the node that has such a set": (
        f": a[{CUBE}, {ACROSS}] b[{CUBE}, {INSIDE}]", "1 x 2 GPU", {"b": (0, 3)}, 0,
    ),
    "each node of a gang": (
        f": a[{CUBE}, free 1001 0010] b[{CUBE}, free 1001 0010]", "2 x 2 GPU 600 cpu",
        {"a": (0, 3), "b": (0, 3)}, 0,
    ),
    "two of three nodes": (
        f": a[{CUBE}, {ACROSS}] b[{CUBE}, {INSIDE}] c[{CUBE}, {INSIDE}]", "2 x 2 GPU",
        {"b": (0, 3), "c": (0, 3)}, 0,
    ),
    "several roles": (
        f": a[{CUBE}, {ACROSS}] b[{CUBE}, {INSIDE}] c[{CUBE}, {INSIDE}]",
        "1 x 2 GPU + 1 x 2 GPU 3 cpu", {"b": (0, 3), "c": (0, 3)}, 0,
    ),
    "segments over racks": (
        f"rack r1: a[{CUBE}, {ACROSS}] b[{CUBE}, {INSIDE}]\n"
        f"rack r2: c[{CUBE}, {INSIDE}] d[{CUBE}, {ACROSS}]",
        "2 x 2 GPU by 1 rack, max rack=1", {"b": (0, 3), "c": (0, 3)}, 0,
    ),
    "next to a running member": (
        f": a[{CUBE}, free 0001 0010]", "1 x 1 GPU, running w-9@a/0", {"a": (3,)}, 0,
    ),
    "not at the price of a link": (f": a[{CUBE}, free 1100 0010]", "1 x 2 GPU", {"a": (0, 6)}, 64 + 3),
    "not at the price of a node": (
        f": a[{CUBE}, {ACROSS}] b[{CUBE}, free 1000 0000] c[{CUBE}, free 1000 0000]", "2 x 1 GPU",
        {"a": (0, 6)}, 64 + 3,
    ),
    "with a policy": (
        f": a[{CUBE}, free 1001 0010]", "1 x 2 GPU, nvswitch prefer", {"a": (0, 3)}, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("drawn", "gang_text", "gpus", "distance"), CASES.values(), ids=CASES)
def test_one_socket_is_preferred(
    drawn: str, gang_text: str, gpus: dict[str, tuple[int, ...]], distance: int
) -> None:
    snapshot, request = cluster(drawn), gang(gang_text)
    plan = place(snapshot, request)
    assert isinstance(plan, Placed)
    gpus_by_node: dict[str, tuple[int, ...]] = {}
    for member in plan.members:
        gpus_by_node[member.node] = tuple(sorted((*gpus_by_node.get(member.node, ()), *member.gpus)))
    assert gpus_by_node == gpus
    assert (plan.objective.socket_distance, plan.optimal) == (distance, True)
    assert "sockets" in [step.level for step in plan.steps]
    assert verify(snapshot, request, plan) == ()
