"""Which domain a node lies in, and that no other code of the planner works it out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import muster.placement
from muster.placement.cluster.columns import columns
from muster.placement.cluster.topology import Topology
from tests.placement.drawings import cluster

NODES = """
zone z1 rack r1: a[8] b[8 = 4+4]
zone z2 rack r1: c[8]
zone z2: d[8 pcie]
"""

INDICES = {
    "zone": [0, 0, 1, 1],
    "rack": [0, 0, 0, -1],
    "node": [0, 1, 2, 3],
    "nvlink-domain": [-1, -1, -1, -1],
}


def topology() -> Topology:
    return columns(cluster(NODES)).topology


@pytest.mark.parametrize(("scope", "expected"), INDICES.items())
def test_equal_names_are_one_domain(scope: str, expected: list[int]) -> None:
    assert topology().index(scope).tolist() == expected


def test_a_node_without_the_label_may_be_a_domain_of_its_own() -> None:
    assert topology().index_or_own("rack").tolist() == [0, 0, 0, 4]


def test_only_scopes_that_some_node_has_are_counted() -> None:
    assert topology().scopes == ("zone", "rack")
    assert topology().crossed(gpus=False) == ("zone", "rack", "node")
    assert columns(cluster(": a[8]")).topology.crossed(gpus=True) == ("node", "nvlink-domain")


def test_nodes_that_are_one_nvlink_domain() -> None:
    assert topology().whole_nodes().tolist() == [0, -1, 2, -1]


def test_where_a_gang_with_a_required_scope_could_lie() -> None:
    assert topology().regions(None).tolist() == [0, 0, 0, 0]
    assert topology().regions("rack").tolist() == [0, 0, 0, -1]
    assert topology().regions("nvlink-domain").tolist() == [0, 1, 2, 3]


def test_no_other_code_of_the_planner_reads_the_labels_of_domains() -> None:
    """`verify` shares no code with the planner, and reads them itself."""
    root = Path(muster.placement.__file__).parent
    reads = re.compile(r"\bpart_of\b|DOMAIN_LABELS|\bwide_names\b|view\.wide\b|columns\.wide\b|view\.part\(")
    files = (path for path in root.rglob("*.py") if path.parent.name not in ("verify", "cluster"))
    assert not [path.name for path in files if reads.search(path.read_text())]
