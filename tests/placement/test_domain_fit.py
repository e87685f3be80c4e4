"""Best fit above the node: gangs open nodes where gangs of whole nodes miss them least."""

from __future__ import annotations

import pytest

from muster.domain.decision import Placed
from muster.domain.node import Resources, Usage
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.domain.topology import mask_of
from muster.placement.place import place
from tests.placement.drawings import cluster, gang

FOUR_AND_ONE = """
rack r0: a[8] b[8] c[8] d[8]
rack r1: e[8] f[8, free 0000 0000] g[8, free 0000 0000] h[8, free 0000 0000]
"""


def place_whole(snapshot: Snapshot, request: Request) -> Placed:
    decision = place(snapshot, request)
    assert isinstance(decision, Placed)
    assert decision.optimal
    return decision


def test_a_node_is_opened_in_the_tightest_rack_and_the_next_gang_fits() -> None:
    snapshot = cluster(FOUR_AND_ONE)
    first = place_whole(snapshot, gang("1 x 8 GPU"))
    assert [member.node for member in first.members] == ["e"]
    usages = [Usage(m.uid, m.node, Resources(), mask_of(m.gpus)) for m in first.members]
    assert len(place_whole(snapshot.with_usages(usages), gang("4 x 8 GPU, scope rack")).members) == 4


@pytest.mark.parametrize(
    ("drawn", "gang_text", "nodes"),
    [
        ("zone z1: a[8] b[8]\nzone z2: c[8] d[8, free 0000 0000]", "1 x 8 GPU", ["c"]),
        ("rack r1: a[8] b[8]\n: c[8]", "1 x 8 GPU", ["c"]),
        ("rack r1: a[8] b[8]\nrack r2: c[8] d[8, cordoned]", "1 x 8 GPU", ["c"]),
        ("rack r1: a[4, clique x] b[4, clique x] c[4, clique y]", "1 x 4 GPU", ["c"]),
        (
            "rack r1: a[8] b[8] c[8]\nrack r2: d[8] e[8] f[8, free 0000 0000]",
            "2 x 8 GPU, scope rack",
            ["d", "e"],
        ),
        (
            "rack r0: a[8] b[8] c[8] d[8]\nrack r1: e[8]",
            "1 x 8 GPU, scope rack",
            ["e"],
        ),  # after a random cluster
        ("zone z0: a[8] b[8] c[8] d[8, cordoned]\nzone z1: e[8] f[8]", "1 x 8 GPU", ["e"]),
    ],
    ids=[
        "zones",
        "a node in no rack",
        "a cordoned node",
        "a clique of one node",
        "a gang in one rack",
        "a rack of one node",
        "a small zone",
    ],
)
def test_the_domain_with_the_fewest_free_nodes_is_opened(
    drawn: str, gang_text: str, nodes: list[str]
) -> None:
    assert sorted({member.node for member in place_whole(cluster(drawn), gang(gang_text)).members}) == nodes


def test_the_value_counts_what_is_left_and_what_is_opened() -> None:
    objective = place_whole(cluster(FOUR_AND_ONE), gang("1 x 6 GPU")).objective
    assert objective.best_fit == 2 + 8 + 4  # two of eight GPUs, all cpu, one of four nodes
