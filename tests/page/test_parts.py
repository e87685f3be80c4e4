"""The pure parts of the page: layout, cells, the order of gangs, the log of changes, the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.adapters.page.board import Log
from muster.adapters.page.detail import MAX_STEPS, History
from muster.adapters.page.layout import (
    FIRST_GANG,
    MAX_RESTING,
    Cell,
    Group,
    NodeStatus,
    Numbers,
    arrange,
    cells_of,
    islands_of,
    node_status,
)
from muster.adapters.page.rows import MAX_REASON, MAX_ROWS, rows, with_positions
from muster.domain.node import Node, Resources, Usage
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology
from muster.domain.words import natural_key
from muster.gangs.messages.instructions import Moved
from muster.gangs.record.gang import GangView, QueueOrder
from muster.gangs.record.phases import Phase
from muster.gangs.reporting.places import PodGpus
from tests.gangs.world import node
from tests.placement.drawings import cluster, islands

ISLANDS = {
    "one island": (islands([4]), "AAAA"),
    "two islands": (islands([2, 2]), "AABB"),
    "no fabric": (islands([4], "PIX"), ""),
    "unknown": (GpuTopology.unknown(4), ""),
}


@pytest.mark.parametrize(("topology", "letters"), ISLANDS.values(), ids=ISLANDS.keys())
def test_gpus_of_one_nvlink_domain_have_one_letter(topology: GpuTopology, letters: str) -> None:
    assert islands_of(topology) == letters


def drawn(groups: Sequence[Group]) -> list[str]:
    return [f"{'/'.join(group.path)}: {' '.join(box.name for box in group.boxes)}" for group in groups]


LAYOUTS = {
    "racks in zones": (
        "zone z2 rack r1: c[8]\nzone z1 rack r10: b[8]\nzone z1 rack r2: a[8]",
        ("zone", "rack"),
        ["z1/r2: a", "z1/r10: b", "z2/r1 of zone z2: c"],
    ),
    "no labels at all": (": b[8] a[8]", (), [": a b"]),
    "a node without a rack comes last": ("rack r1: b[8]\n: a[8]", ("rack",), ["r1: b", ": a"]),
    "a node without GPUs is no place": ("rack r1: a[8] b[0]", ("rack",), ["r1: a"]),
    "names are sorted as people count": ("rack r: n10[2] n9[2]", ("rack",), ["r: n9 n10"]),
    "trays of one NVLink domain stand together": (
        "rack r: a[4, clique y] b[4] c[4, clique x] d[4, clique y]",
        ("rack",),
        ["r: c a d b"],
    ),
}


@pytest.mark.parametrize(("drawing", "scopes", "expected"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_nodes_stand_in_their_racks(drawing: str, scopes: tuple[str, ...], expected: list[str]) -> None:
    layout = arrange(cluster(drawing), "model")
    assert layout.scopes == scopes
    assert [line.replace(" of zone z2", "") for line in drawn(layout.groups)] == [
        line.replace(" of zone z2", "") for line in expected
    ]


def test_each_gpu_has_one_cell() -> None:
    layout = arrange(cluster("rack r: a[4] b[8]\nrack s: c[2]"), "model")
    assert (layout.names, layout.first_cell) == (("a", "b", "c"), (0, 4, 12, 14))


def test_names_from_labels_are_printable() -> None:
    evil = node("a", 1, {"topology.kubernetes.io/rack": "r\u202e1", "model": "<b>\n"})
    layout = arrange(Snapshot.of([evil], []), "model")
    assert layout.groups[0].path == ("r\\u202e1",)
    assert layout.groups[0].boxes[0].model == "<b>\\n"


@given(st.text(alphabet="ab-", max_size=4), st.lists(st.integers(0, 2000)), st.text(alphabet="ab019-"))
def test_numbers_in_names_count_as_numbers(prefix: str, numbers: list[int], unnumbered: str) -> None:
    names = [f"{prefix}{number}" for number in numbers]
    assert [name for name in sorted([*names, unnumbered], key=natural_key) if name != unnumbered] == [
        f"{prefix}{number}" for number in sorted(numbers) if f"{prefix}{number}" != unnumbered
    ]


def taken(gang: str, gpus: int, unindexed: int = 0, units: int = 0, reserved: bool = False) -> PodGpus:
    return PodGpus(gang, "p", "a", gpus, unindexed, units, reserved)


def usage(taken_gpus: PodGpus) -> Usage:
    return Usage(taken_gpus.gang, "a", Resources(), taken_gpus.gpus, taken_gpus.unindexed, taken_gpus.units)


G = FIRST_GANG
CELLS = {
    "free": ([], 0, [0, 0, 0, 0]),
    "bound, reserved, and of no gang": (
        [taken("g", 0b1), taken("h", 0b10, reserved=True), taken("", 0b100)],
        0,
        [G, G + 3, Cell.OTHERS, 0],
    ),
    "one gang, bound and reserved": ([taken("g", 0b1), taken("g", 0b10, reserved=True)], 0, [G, G + 1, 0, 0]),
    "unhealthy, and unhealthy in use": ([taken("g", 0b1)], 0b11, [G, Cell.UNHEALTHY, 0, 0]),
    "slices of one gang": ([taken("g", 0b1, units=2), taken("g", 0b1, units=3)], 0, [G, 0, 0, 0]),
    "slices of two gangs": (
        [taken("g", 0b1, units=2), taken("h", 0b1, units=3)],
        0,
        [Cell.SHARED, 0, 0, 0],
    ),
    "indices that are not known": (
        [taken("g", 0b1000), taken("", 0, unindexed=2)],
        0,
        [0, Cell.UNKNOWN, Cell.UNKNOWN, G],
    ),
}


@pytest.mark.parametrize(("pods", "unhealthy", "expected"), CELLS.values(), ids=CELLS.keys())
def test_a_cell_says_who_has_the_gpu(pods: list[PodGpus], unhealthy: int, expected: list[int]) -> None:
    facts = replace(node("a", 4), unhealthy=unhealthy, gpu_memory=(16,) * 4)
    state = NodeState.of(facts, map(usage, pods))
    assert cells_of(state, pods, Numbers()) == expected


def test_numbers_stay_small_and_rest_before_they_are_given_again() -> None:
    numbers, last = Numbers(), dict[int, int]()
    for at in range(2_000):
        number = numbers.of(f"g{at}")
        assert number < G + 2 * (MAX_RESTING + 2)
        assert at - last.get(number, -9_999) > MAX_RESTING
        last[number] = at
        numbers.keep_only([])


def test_a_number_is_not_given_to_the_next_gang() -> None:
    numbers = Numbers()
    assert [numbers.of("g"), numbers.of("h"), numbers.of("g")] == [G, G + 2, G]
    numbers.keep_only(["h"])
    assert dict(numbers.items()) == {"h": G + 2}
    assert numbers.of("g") == G + 4


NODES: dict[str, tuple[Node, NodeStatus]] = {
    "open": (node("a"), NodeStatus.OPEN),
    "cordoned": (node("a", unschedulable=True), NodeStatus.CORDONED),
    "not ready": (node("a", ready=False, unschedulable=True), NodeStatus.NOT_READY),
}


@pytest.mark.parametrize(("facts", "expected"), NODES.values(), ids=NODES.keys())
def test_a_node_that_takes_no_pods_is_marked(facts: Node, expected: NodeStatus) -> None:
    assert node_status(NodeState.of(facts, [])) is expected
    assert node_status(None) is NodeStatus.GONE


def seen(
    name: str,
    phase: Phase = Phase.PLANNING,
    *,
    priority: int = 0,
    created: float = 100.0,
    is_partial: bool = False,
    reason: str = "",
) -> GangView:
    order = QueueOrder.of(is_covered=False, priority=priority, has_precedence=is_partial, created=created)
    return GangView(
        f"ns/x/{name}", "ns", name, "x", phase, 1, 2, 0, 2, priority, created, reason, None, order
    )


def test_gangs_in_line_have_positions_and_others_none() -> None:
    views = [
        seen("runs", Phase.RUNNING),
        seen("old", created=50.0),
        seen("misses-a-pod", Phase.COLLECTING, priority=9),
        seen("important", Phase.UNPLACEABLE, created=300.0, priority=5),
        seen("partial", Phase.WITHDRAWN, created=400.0, is_partial=True),
    ]
    positions = {view.name: view.position for view in with_positions(views)}
    assert positions == {"important": 1, "partial": 2, "old": 3, "runs": None, "misses-a-pod": None}


def test_gangs_stand_in_the_order_of_the_planner() -> None:
    views = [
        seen("runs", Phase.RUNNING),
        seen("young", created=200.0),
        seen("misses-a-pod", Phase.COLLECTING, priority=9),
        seen("old", Phase.UNPLACEABLE, created=50.0),
        seen("important", created=300.0, priority=5),
        seen("partial", Phase.WITHDRAWN, created=400.0, is_partial=True),
        seen("starts", Phase.PERMITTED),
    ]
    gang_rows, phases = rows(views)
    waiting = ["important", "partial", "old", "young"]
    assert [row.name for row in gang_rows] == [*waiting, "misses-a-pod", "starts", "runs"]
    assert [row.order[0] for row in gang_rows] == [0] * 4 + [1, 2, 3]
    assert phases["planning"] == 2


def test_a_long_reason_is_cut_in_the_list() -> None:
    ((row,), _) = rows([seen("waits", Phase.UNPLACEABLE, reason="long " * 100)])
    assert len(row.reason) == MAX_REASON


def test_the_list_is_bounded_and_keeps_those_that_wait() -> None:
    many = [seen(f"r{at}", Phase.RUNNING) for at in range(MAX_ROWS + 5)]
    gang_rows, phases = rows([*many, seen("waits")])
    assert (len(gang_rows), gang_rows[0].name, phases["running"]) == (MAX_ROWS, "waits", MAX_ROWS + 5)


@given(st.lists(st.one_of(st.binary(max_size=9), st.none()), max_size=40), st.integers(0, 40))
def test_a_browser_gets_all_later_changes_or_begins_anew(changes: list[bytes | None], at: int) -> None:
    log = Log(most_bytes=30, most_changes=5)
    ids, bodies = [log.id], [b"begin"]
    for change in changes:
        if change is None:
            log.clear()
        else:
            log.add(change)
        ids.append(log.id)
        bodies.append(change or b"")
    at = min(at, len(ids) - 1)
    position = log.position(ids[at])
    missed = changes[at:]
    if position is not None:
        assert position == at
        assert None not in missed
        assert [log.change_after(position + generation) for generation in range(len(missed))] == missed
        assert log.change_after(log.generation) is None
    fits = len(missed) <= 5 and None not in missed and sum(map(len, filter(None, missed))) <= 30
    assert (position is not None) == fits


@pytest.mark.parametrize("id_", ["", "x", "x-1", "-1", "0-0", "{log}-", "{log}-9", "{log}--1", "{log}-١"])
def test_an_id_of_another_process_begins_anew(id_: str) -> None:
    log = Log()
    log.add(b"x")
    assert log.position(id_.format(log=log.id.partition("-")[0])) is None


def test_a_timeline_keeps_the_last_steps_and_forgets_gangs_that_are_gone() -> None:
    history = History(wall=lambda: 1000.0, clock=lambda: 50.0)
    for at in range(MAX_STEPS + 3):
        history.note_move(Moved(float(at), "g", "g", "ns", "planning", f"step {at}"))
    steps = history.of("g")
    assert (len(steps), steps[0].why, steps[-1].at) == (MAX_STEPS, "step 3", 1000.0 - 50 + MAX_STEPS + 2)
    history.note_move(Moved(99.0, "g", "g", "ns", "finished", "gone"))
    assert (history.of("g"), len(history)) == ((), 0)
