"""Which domain a node lies in, and that no other code of the planner works it out."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

import muster.placement
from muster.domain.levels import Hierarchy, Naming, domains_of
from muster.placement.cluster.columns import columns_of
from muster.placement.cluster.topology import Topology
from muster.placement.verify.parts import Labels, describes
from tests.placement.drawings import RACK, ZONE, cluster

NODES = """
zone z1 rack r1: a[8] b[8 = 4+4]
zone z2 rack r1: c[8]
zone z2: d[8 pcie]
"""

INDICES = {
    "zone": [0, 0, 1, 1],
    "rack": [0, 0, 1, -1],
    "node": [0, 1, 2, 3],
    "nvlink-domain": [-1, -1, -1, -1],
}


def topology() -> Topology:
    return columns_of(cluster(NODES)).topology


@pytest.mark.parametrize(("scope", "expected"), INDICES.items())
def test_which_domain_each_node_lies_in(scope: str, expected: list[int]) -> None:
    assert topology().index(scope).tolist() == expected


ROW, NVLINK = "example.com/row", "gpu.topology/nvlink-domain"


class Paths(NamedTuple):
    """A cluster, and the domain of each of its nodes."""

    cluster: str
    domains: list[str]
    scope: str = "rack"
    naming: Naming = Naming()


PATHS = {
    "one name in two zones": Paths(
        "zone a rack r1: m[8]\n zone b rack r1: n[8]", ["r1 of zone a", "r1 of zone b"]
    ),
    "a name in one zone alone": Paths(
        "zone a rack r1: m[8]\n zone a rack r1: n[8]\n zone b rack r2: o[8]", ["r1", "r1", "r2"]
    ),
    "no zones": Paths("rack r1: m[8]\n rack r1: n[8]", ["r1", "r1"]),
    "a node without a zone, beside its siblings": Paths(
        "zone a rack r1: m[8]\n rack r1: n[8]\n zone b rack r2: o[8]", ["r1", "r1", "r2"]
    ),
    "a node without a zone, in a rack of either": Paths(
        "zone a rack r1: m[8]\n zone b rack r1: n[8]\n rack r1: o[8] p[8]",
        ["r1 of zone a", "r1 of zone b", "r1 of no zone", "r1 of no zone"],
    ),
    "an NVLink domain of two racks": Paths(
        f"{NVLINK} d1 rack r1: m[8]\n {NVLINK} d1 rack r2: n[8]",
        ["d1 of rack r1", "d1 of rack r2"],
        "nvlink-domain",
    ),
    "an NVLink domain in racks of one name": Paths(
        f"{NVLINK} d1 zone a rack r1: m[8]\n {NVLINK} d1 zone b rack r1: n[8]",
        ["d1 of zone a", "d1 of zone b"],
        "nvlink-domain",
    ),
    "an NVLink domain of which one rack says the zone": Paths(
        f"{NVLINK} d1 zone a rack r1: m[8]\n {NVLINK} d1 rack r1: n[8]\n {NVLINK} d1 zone b rack r2: o[8]",
        ["d1 of rack r1", "d1 of rack r1", "d1 of rack r2"],
        "nvlink-domain",
    ),
    "labels that nowhere contradict each other": Paths(
        f"{NVLINK} d1 rack r1: m[8]\n {NVLINK} d1 zone a: n[8]", ["d1", "d1"], "nvlink-domain"
    ),
    "three of one name take two words": Paths(
        f"{NVLINK} d zone a rack r: m[8]\n {NVLINK} d zone b rack r: n[8]\n {NVLINK} d zone a rack s: o[8]",
        ["d of rack r of zone a", "d of rack r of zone b", "d of rack s of zone a"],
        "nvlink-domain",
    ),
    "a clique over two racks is one": Paths(
        "rack r1: m[8, clique u.1]\n rack r2: n[8, clique u.1]", ["u.1", "u.1"], "nvlink-domain"
    ),
    "names that are said to be unique": Paths(
        "zone a rack r1: m[8]\n zone b rack r1: n[8]", ["r1", "r1"], naming=Naming(("rack",))
    ),
    "a unique name ends the path of those inside it": Paths(
        f"{NVLINK} d zone a rack r1: m[8]\n {NVLINK} d zone b rack r1: n[8]\n"
        f" {NVLINK} d zone b rack r2: o[8]",
        ["d of rack r1", "d of rack r1", "d of rack r2"],
        "nvlink-domain",
        Naming(("rack",)),
    ),
    "a label of a level, by its key": Paths(
        "zone a rack r1: m[8]\n zone b rack r1: n[8]",
        ["r1 of zone a", "r1 of zone b"],
        "topology.kubernetes.io/rack",
    ),
    "a label of no level": Paths("zone a: m[8, pool=p]\n zone b: n[8, pool=p]", ["p", "p"], "pool"),
    "a label of a tree": Paths(
        f"{ROW} a: m[8, pool=p]\n {ROW} b: n[8, pool=p]",
        [f"p of {ROW} a", f"p of {ROW} b"],
        "pool",
        Naming(trees=((ROW, "pool"),)),
    ),
    "a rack of a tree": Paths(
        f"{ROW} a rack r1: m[8]\n {ROW} b rack r1: n[8]",
        [f"r1 of {ROW} a", f"r1 of {ROW} b"],
        naming=Naming(trees=((ROW, "topology.kubernetes.io/rack"),)),
    ),
    "a tree that contradicts the levels": Paths(
        "zone a rack r1: m[8]\n zone a rack r2: n[8]",
        ["a", "a"],
        "zone",
        Naming(trees=(("topology.kubernetes.io/rack", "topology.kubernetes.io/zone"),)),
    ),
    "trees that contradict each other": Paths(
        f"{ROW} a: m[8, pool=p]\n {ROW} b: n[8, pool=p]",
        [f"p of {ROW} a", f"p of {ROW} b"],
        "pool",
        Naming(trees=((ROW, "pool"), ("pool", ROW))),
    ),
}


@pytest.mark.parametrize("case", PATHS.values(), ids=PATHS.keys())
def test_a_domain_is_a_path(case: Paths) -> None:
    snapshot = replace(cluster(case.cluster), naming=case.naming)
    columns = columns_of(snapshot)
    hierarchy = Hierarchy.of(case.scope, snapshot.levels, case.naming)
    nodes = [state.node for state in snapshot.nodes.values()]
    assert [columns.topology.part(row, case.scope) for row in range(len(nodes))] == case.domains
    assert [*domains_of(nodes, hierarchy).values()] == case.domains, "one by one, as in columns"
    judged = [*Labels(snapshot).parts(case.scope, nodes).values()]
    pairs = combinations(zip(judged, case.domains, strict=True), 2)
    assert all((a == b) == (c == d) for (a, c), (b, d) in pairs), "the verifier, by itself"
    assert all(map(describes, case.domains, judged))


def test_many_parents_of_one_name_take_little_time() -> None:
    """A thousand racks of one name, each with a node that lacks its zone: no pair is compared."""
    hierarchy = Hierarchy.of("nvlink-domain", (ZONE, RACK))
    paths = [("d", f"r{i}", zone) for i in range(20_000) for zone in (f"z{i}", "")]
    names = hierarchy.names(paths)
    assert len(set(names.values())) == 20_000
    assert names["d", "r7", ""] == names["d", "r7", "z7"] == "d of rack r7"


def test_a_node_without_the_label_may_be_a_domain_of_its_own() -> None:
    assert topology().index_or_own("rack").tolist() == [0, 0, 1, 5]


def test_only_scopes_that_some_node_has_are_counted() -> None:
    assert topology().scopes == ("zone", "rack")
    assert topology().counted_scopes(gpus=False) == ("zone", "rack", "node")
    assert columns_of(cluster(": a[8]")).topology.counted_scopes(gpus=True) == ("node", "nvlink-domain")


def test_nodes_that_are_one_nvlink_domain() -> None:
    assert topology().domains_of_whole_nodes().tolist() == [0, -1, 2, -1]


def test_where_a_gang_with_a_required_scope_could_lie() -> None:
    assert topology().regions(None).tolist() == [0, 0, 0, 0]
    assert topology().regions("rack").tolist() == [0, 0, 1, -1]
    assert topology().regions("nvlink-domain").tolist() == [0, 1, 2, 3]


def test_no_other_code_of_the_planner_reads_the_labels_of_domains() -> None:
    """`verify` shares no code with the planner, and reads them itself."""
    root = Path(muster.placement.__file__).parent
    reads = re.compile(
        r"\bpart_of\b|DOMAIN_LABELS|\bwide_names\b|columns\.wide_codes\b|columns\.(part|label_names)\("
    )
    files = (path for path in root.rglob("*.py") if path.parent.name not in ("verify", "cluster"))
    assert not [path.name for path in files if reads.search(path.read_text())]
