"""Golden drawings: one file for all, tests/demo/__snapshots__; `pytest --snapshot-update` writes it anew."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension

from local_cluster.places import TOPOLOGIES
from muster.adapters.drawing import Mark, NodePicture, draw_node, draw_strips, draws_exactly, find_cube_mesh
from muster.domain.topology import GpuTopology, Link
from tests.demo.samples import DOCUMENT, topology

NAMES = sorted(path.stem for path in TOPOLOGIES.glob("*.txt"))
MARKS = {0: Mark("A", is_chosen=True), 3: Mark("A", is_chosen=True), 2: Mark("x")}
WIDTH = 100


def plain(drawn: Text) -> str:
    """As it comes out of a pipe."""
    out = io.StringIO()
    Console(file=out, width=WIDTH, no_color=True).print(drawn)
    return out.getvalue()


@pytest.fixture
def drawing(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(AmberSnapshotExtension)


@pytest.mark.parametrize("name", NAMES)
def test_node(name: str, drawing: SnapshotAssertion) -> None:
    drawn = draw_node(NodePicture("node-1", topology(name), MARKS))
    assert plain(drawn) == drawing
    assert max(len(line) for line in plain(drawn).splitlines()) <= WIDTH - 2


def test_chosen_gpus_one_above_the_other_name_their_link(drawing: SnapshotAssertion) -> None:
    marks = {1: Mark("A", is_chosen=True), 7: Mark("A", is_chosen=True), 2: Mark("B"), 4: Mark("B")}
    assert plain(draw_node(NodePicture("node-1", topology(DOCUMENT), marks))) == drawing


ODD = {
    "no GPU": GpuTopology.unknown(0),
    "one GPU": GpuTopology.unknown(1),
    "links not known": GpuTopology.unknown(4),
    "too many for brackets": GpuTopology.of_islands(36, 36, Link.of_kind("NV18"), Link.of_kind("SYS")),
    "a chain, which does not nest": GpuTopology(
        tuple(
            tuple(None if a == b else Link.of_kind("NV2" if abs(a - b) == 1 else "SYS") for b in range(4))
            for a in range(4)
        )
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_node(case: str, drawing: SnapshotAssertion) -> None:
    assert plain(draw_node(NodePicture("node-1", ODD[case], unindexed_gpus=1))) == drawing


def test_a_machine_is_named() -> None:
    drawn = draw_node(NodePicture("node-1", GpuTopology.unknown(2), machine="ecs.sccgn6.24xlarge"))
    assert plain(drawn).splitlines()[0] == "node-1   ecs.sccgn6.24xlarge, 2 GPUs, 2 free"


def test_strips(drawing: SnapshotAssertion) -> None:
    pictures = [
        NodePicture("v100-1", topology(DOCUMENT), MARKS),
        NodePicture("a100-pcie-with-a-long-name", topology("a100-pcie-4x-bridged-pairs"), unindexed_gpus=1),
    ]
    assert plain(draw_strips(pictures)) == drawing


@pytest.mark.parametrize("name", NAMES)
def test_every_known_topology_is_drawn_exactly(name: str) -> None:
    """Either a cube mesh, or brackets that say all there is to say."""
    links = topology(name)
    assert find_cube_mesh(links) is not None or draws_exactly(links)
    assert (find_cube_mesh(links) is not None) == name.startswith("v100")
