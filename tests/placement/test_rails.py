"""Network rails: the GPUs of a gang on several nodes lie on as few as the levels above allow there."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from muster.domain.decision import Placed
from muster.domain.snapshot import Snapshot
from muster.placement import rails
from muster.placement.cluster.columns import columns_of
from muster.placement.place import place
from tests.placement.drawings import cluster, gang
from tests.placement.naive_rails import assert_fewest

# the cluster, the rails of its nodes if these are published, the gang; how many rails, and the GPUs by node
CASES: dict[str, tuple[str, dict[str, tuple[int, ...]], str, int | None, dict[str, str]]] = {
    "the same indices on boards of eight": (
        ": a[8, free 0011 0000] b[8, free 0111 0000]",
        {},
        "4 x 1 GPU",
        2,
        {"a": "23", "b": "23"},
    ),
    "a rail that is the lowest of no node": (
        ": a[8, free 1010 0000] b[8, free 0110 0000] c[8, free 0111 0000]",
        {},
        "3 x 1 GPU, max node=1",
        1,
        {"a": "2", "b": "2", "c": "2"},
    ),
    "of two sets the lower one": (
        ": a[8, free 0101 0000] b[8, free 1101 0000]",
        {},
        "2 x 1 GPU, max node=1",
        1,
        {"a": "1", "b": "1"},
    ),
    "whole nodes": (": a[8] b[8]", {}, "2 x 8 GPU", 8, {"a": "01234567", "b": "01234567"}),
    "a whole node and half of one, for the damage": (
        ": a[8] b[8]",
        {},
        "12 x 1 GPU",
        8,
        {"a": "01234567", "b": "0123"},
    ),
    "a gang on one node": (": a[8] b[8]", {}, "4 x 1 GPU", None, {"a": "0123"}),
    "nodes without rails": (
        ": a[4, free 0110] b[4, free 1100]",
        {},
        "4 x 1 GPU",
        None,
        {"a": "12", "b": "01"},
    ),
    "a node without rails beside one with rails": (
        ": a[4, free 0110] b[8, free 1111 0000]",
        {},
        "4 x 1 GPU, max node=2",
        2,
        {"a": "12", "b": "01"},
    ),
    "network cards in another order": (
        ": a[4, free 1100] b[4, free 0111]",
        {"a": (3, 2, 1, 0), "b": (0, 1, 2, 3)},
        "4 x 1 GPU",
        2,
        {"a": "01", "b": "23"},
    ),
    "two GPUs on one card": (
        ": a[4, free 1110] b[4, free 0111]",
        {"a": (0, 1, 1, 2), "b": (0, 0, 1, 1)},
        "4 x 1 GPU, max node=2",
        1,
        {"a": "12", "b": "23"},
    ),
    "members without GPUs on another node": (
        ": a[8, free 0110 0000, cpu 4] b[8, free 1110 0000, cpu 4] c[0, cpu 8]",
        {},
        "4 x 1 GPU 2 cpu + 2 x 0 GPU 1 cpu",
        2,
        {"a": "12", "b": "12", "c": ""},
    ),
    "links inside the nodes come first": (
        ": a[8 = 4+4, free 1100 1000] b[8 = 4+4, free 0100 1100]",
        {},
        "4 x 1 GPU",
        4,
        {"a": "01", "b": "45"},
    ),
    "beside GPUs of unknown index": (
        ": a[8, free 0110 0000] b[8, unindexed 1]",
        {},
        "4 x 1 GPU, max node=2",
        2,
        {"a": "12", "b": "12"},
    ),
    "with those of running members": (
        ": a[8, free 1101 1111] b[8, free 1101 1111]",
        {},
        "1 x 1 GPU, max node=1, running w-8@a/2",
        2,
        {"b": "0"},
    ),
    "on that of a running member": (
        ": a[8, free 1101 1111] b[8]",
        {},
        "1 x 1 GPU, max node=1, running w-8@a/2",
        1,
        {"b": "2"},
    ),
    "members that share GPUs": (
        ": a[2, mem 8 8] b[2, mem 8 8]",
        {"a": (0, 1), "b": (1, 0)},
        "2 x 4 GiB, max node=1",
        None,
        {"a": "0", "b": "0"},
    ),
}


def with_rails(snapshot: Snapshot, published: dict[str, tuple[int, ...]]) -> Snapshot:
    """The cluster where these nodes say on which rails their GPUs lie."""
    states = dict(snapshot.nodes)
    for name, of_node in published.items():
        states[name] = replace(states[name], node=replace(states[name].node, rails=of_node))
    return replace(snapshot, nodes=states)


def by_node(decision: Placed) -> dict[str, str]:
    gpus: dict[str, list[int]] = {}
    for member in decision.members:
        gpus.setdefault(member.node, []).extend(member.gpus)
    return {node: "".join(map(str, sorted(indices))) for node, indices in gpus.items()}


@pytest.mark.parametrize(("nodes", "published", "gang_text", "number", "gpus"), CASES.values(), ids=CASES)
def test_rails(
    nodes: str,
    published: dict[str, tuple[int, ...]],
    gang_text: str,
    number: int | None,
    gpus: dict[str, str],
) -> None:
    decision = place(with_rails(cluster(nodes), published), gang(gang_text))
    assert isinstance(decision, Placed)
    assert (decision.objective.rails, by_node(decision), decision.optimal) == (number, gpus, True)
    assert ("rails" in {step.level for step in decision.steps}) == (number is not None)


def test_rails_count_on_nodes_of_at_most_eight_gpus() -> None:
    snapshot = cluster(": a[16] b[16]")
    decision = place(with_rails(snapshot, dict.fromkeys("ab", (0, 1) * 8)), gang("2 x 4 GPU, max node=1"))
    assert isinstance(decision, Placed)
    assert decision.objective.rails is None


def test_nodes_with_unlike_rails_are_of_one_shape() -> None:
    """So that they share all tables."""
    snapshot = with_rails(cluster(": a[4] b[4] c[8]"), {"a": (3, 2, 1, 0), "b": (0, 1, 1, 2)})
    columns = columns_of(snapshot)
    assert len(columns.shapes) == 2
    assert columns.rails.T.tolist() == [
        [8, 4, 2, 1, 0, 0, 0, 0],
        [1, 2, 2, 4, 0, 0, 0, 0],
        [1, 2, 4, 8, 16, 32, 64, 128],
    ]


NO_CHOICE = {
    "on one node": (": a[8] b[8]", "4 x 1 GPU"),
    "without GPUs": (": a[8, cpu 2] b[8, cpu 2]", "4 x 0 GPU 1 cpu"),
    "whole nodes": (": a[8] b[8]", "2 x 8 GPU"),
    "all rails are needed": (": a[8] b[8]", "12 x 1 GPU"),
    "large nodes": (": a[62] b[62]", "3 x 31 GPU"),
    "members that share GPUs": (
        ": a[8, mem 8 8 8 8 8 8 8 8] b[8, mem 8 8 8 8 8 8 8 8]",
        "2 x 4 GiB, max node=1",
    ),
}


@pytest.mark.parametrize(("nodes", "gang_text"), NO_CHOICE.values(), ids=NO_CHOICE)
def test_where_there_is_no_choice_none_is_made(
    monkeypatch: pytest.MonkeyPatch, nodes: str, gang_text: str
) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("choices are counted")

    monkeypatch.setattr(rails, "_gpu_choices", fail)
    assert isinstance(place(cluster(nodes), gang(gang_text)), Placed)


@pytest.mark.parametrize("number", range(40))
def test_fewest_on_boards_of_eight(number: int) -> None:
    drawn = random.Random(number)
    snapshot = cluster(": " + " ".join(f"n{node}[{_board(drawn)}]" for node in range(4)))
    if drawn.random() < 0.3:
        cards = {name: tuple(drawn.choices(range(8), k=8)) for name in snapshot.nodes}
        snapshot = with_rails(snapshot, cards)
    roles = " + ".join(f"{drawn.randint(2, 6)} x {size} GPU" for size in drawn.choice(((1,), (2,), (1, 3))))
    request = gang(f"{roles}{drawn.choice(('', ', max node=2', ', max node=3'))}, min 1")
    decision = place(snapshot, request)
    if isinstance(decision, Placed):
        assert_fewest(snapshot, request, decision)


def _board(drawn: random.Random) -> str:
    """A board of eight with some of its GPUs free."""
    free = "".join(drawn.choices("01", (1, 2), k=8))
    return f"8{drawn.choice((' = 4+4', ' pcie', '', ''))}, free {free[:4]} {free[4:]}"
