"""The judge's domains are those of the whole cluster, though it is given the nodes of one plan alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.decision import Placed
from muster.domain.levels import DEFAULT_LEVELS, PRESETS, FabricLevel, Naming, domains_by_scope
from muster.domain.node import Node, Resources
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology
from muster.placement.place import place
from muster.placement.verify.parts import Labels, describes
from tests.placement.drawings import LABELS, RACK, RESOURCE, ZONE, cluster, gang

BLOCK = "example.com/block"
NVLINK = "gpu.topology/nvlink-domain"
LEVELS = (ZONE, FabricLevel("block", (BLOCK, "example.com/pod")), RACK)
ROW, SEAT = "example.com/row", "example.com/seat"
TREES = [
    (),
    ((LABELS["zone"], ROW, SEAT),),
    ((BLOCK, ROW, LABELS["rack"], SEAT),),
    ((BLOCK, SEAT), (ROW, SEAT)),
]
KEYS = [*LABELS.values(), BLOCK, "example.com/pod", ROW, SEAT, NVLINK, "nvidia.com/gpu.clique"]


@pytest.mark.parametrize(
    ("drawn", "gang_text", "domain"),
    [
        (  # node c has no rack label: r1 alone fits its zone
            f"zone z1 rack r1 {NVLINK} d: a[1]\n zone z2 rack r2 {NVLINK} d: b[1]\n zone z1 {NVLINK} d: c[2]",
            "2 x 1 GPU",
            "nvlink-domain d of rack r1",
        ),
        (
            f"zone z1 {BLOCK} b1 rack r: a[1]\n zone z2 {BLOCK} b2 rack r: b[1]\n zone z1 rack r: c[1] d[1]",
            "2 x 1 GPU, scope rack",
            "rack r of block b1",
        ),
        (
            f"zone z1 {BLOCK} b1 rack r: a[0]\n zone z2 {BLOCK} b2 rack r: b[0]\n zone z1 rack r: c[1] d[1]",
            "2 x 1 GPU within rack by 2 rack, max rack=2, prefer rack",
            "rack r of block b1",
        ),
        (
            f"zone z1 {BLOCK} b1 rack r: a[0]\n zone z2 {BLOCK} b2 rack r: b[0]\n rack r: c[1] d[1]",
            "2 x 1 GPU, scope rack",
            "rack r of no block",
        ),
    ],
    ids=["NVLink domain without rack", "rack without block", "with rules", "no home"],
)
def test_a_node_that_lacks_a_label_is_in_the_domain_that_fits(
    drawn: str, gang_text: str, domain: str
) -> None:
    """After random clusters: the judge looked at the nodes of the plan alone, and called it broken."""
    levels = LEVELS if BLOCK in drawn else DEFAULT_LEVELS
    decision = place(cluster(drawn, levels), gang(gang_text))
    assert isinstance(decision, Placed), sentence(decision)
    assert decision.domain == domain


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = []
    for i in range(draw(st.integers(1, 6))):
        labels = draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["1", "2"])))
        topology = GpuTopology.unknown(draw(st.integers(0, 2)))
        nodes.append(Node(f"n{i}", Resources(1000), topology, frozenset({RESOURCE}), labels))
    levels = draw(st.sampled_from([DEFAULT_LEVELS, LEVELS]))
    unique = draw(st.sampled_from([(), (), ("rack",), ("nvlink-domain", "block")]))
    return Snapshot.of(nodes, [], levels, naming=Naming(unique, draw(st.sampled_from(TREES))))


@given(snapshots(), st.data())
def test_any_nodes_of_the_cluster_lie_in_the_domains_that_all_nodes_tell(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    """Two nodes are in one part if they are in one domain, and the domain's name fits that part alone."""
    every = [state.node for state in snapshot.nodes.values()]
    sample = data.draw(st.lists(st.sampled_from(every), min_size=1, unique_by=lambda node: node.name))
    for scope, names in domains_by_scope(every, snapshot.levels, snapshot.naming).items():
        quick, parts = (Labels(snapshot).parts(scope, sample, in_words=words) for words in (False, True))
        for first in sample:
            for second in sample:
                same = names[first.name] == names[second.name]
                assert same == (quick[first.name] == quick[second.name])
                assert same == (parts[first.name] == parts[second.name])
                if names[first.name]:
                    assert describes(names[first.name], parts[second.name]) == same


@pytest.mark.parametrize("label", PRESETS["topograph"][-1].labels)
def test_an_accelerator_domain_of_topograph_over_two_racks_is_one(label: str) -> None:
    leaf = "network.topology.nvidia.com/leaf"
    nodes = [
        Node(name, Resources(), GpuTopology.unknown(4), labels={label: "nvl1", leaf: name}) for name in "ab"
    ]
    snapshot = Snapshot.of(nodes, [], PRESETS["topograph"])
    scope = PRESETS["topograph"][-1].scope
    names = domains_by_scope(nodes, snapshot.levels)[scope]
    assert len(set(names.values())) == 1
    assert len(set(Labels(snapshot).parts(scope, nodes, in_words=True).values())) == 1
