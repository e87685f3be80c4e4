"""Where users see which nodes are not exact: in the note of `muster status`, and node by node."""

from __future__ import annotations

import pytest

from muster.adapters.status import nodes_of
from muster.adapters.telemetry.room import Room
from muster.domain import exactness
from muster.domain.node import HandsOut, Node
from muster.domain.snapshot import Snapshot
from tests.adapters.test_room import MODEL
from tests.gangs.world import node


@pytest.mark.parametrize(
    ("case", "exact"),
    [
        (node("a", hands_out=HandsOut.OWN_CHOICE), False),
        (node("a", hands_out=HandsOut.READS_ANNOTATIONS), False),
        (node("a", hands_out=HandsOut.AGENT_AWAY), False),
        (node("a", hands_out=HandsOut.SECOND_ENDPOINT), True),
        (node("a", hands_out=HandsOut.AGENT), True),
        (node("a", hands_out=HandsOut.DRA), True),
        (node("a", hands_out=HandsOut.NRI), True),
        (node("a", 1, hands_out=HandsOut.OWN_CHOICE), True),
        (node("a", gpu_resources=frozenset(), hands_out=HandsOut.OWN_CHOICE), True),
    ],
)
def test_nodes_say_whether_their_gpus_are_exact(case: Node, exact: bool) -> None:
    snapshot = Snapshot.of([case], ())
    (shown,) = nodes_of(snapshot, MODEL, Room(MODEL).domains(snapshot))["nodes"]
    assert (shown.exact, shown.why) == (exact, "" if exact else case.hands_out)


SENTENCE = "nodes with GPUs containers may get other GPUs than planned: the device plugin chooses on"
HELP = "(docs/devices.md says how to get the planned ones)"


def test_one_note_names_the_nodes_whose_gpus_are_not_exact() -> None:
    without_gpus, several = node("cpu", 0), [node(f"n{number:02}") for number in range(12)]
    assert exactness.notes([*several, without_gpus]) == [
        f"on 12 of 12 {SENTENCE} n00, n01 and 10 more {HELP}"
    ]
    different = [
        node("n0"),
        node("n1", hands_out=HandsOut.AGENT_AWAY),
        node("n2", hands_out=HandsOut.READS_ANNOTATIONS),
        node("n3"),
        node("n4", hands_out=HandsOut.SECOND_ENDPOINT),
    ]
    assert exactness.notes(different) == [
        f"on 4 of 5 {SENTENCE} n0, n3; the device plugin may swap those of equal pods on n2; "
        f"no node agent is ready on n1 {HELP}"
    ]
    assert exactness.notes(different[4:]) == []
