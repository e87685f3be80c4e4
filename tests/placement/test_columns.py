"""Columns say what the snapshot says, from whatever columns they were made; so does `admits`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.levels import DEFAULT_LEVELS, FabricLevel, Naming, part_of
from muster.domain.node import Node, Resources, Taint, Usage
from muster.domain.request import NodeRules, Role, SelectorTerm, Toleration
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology
from muster.domain.words import natural_key
from muster.placement.cluster import columns as module
from muster.placement.cluster.candidates import admits, refusal
from muster.placement.cluster.columns import LARGEST, NO_COLUMNS, Columns, columns_after, columns_of
from muster.placement.cluster.topology import place_of
from tests.placement.drawings import islands
from tests.placement.naive_parts import label

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True)

NAMES = ["a", "n-1", "n-2", "n-10", "n-9", "7"]
KEYS = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/rack",
    "pool",
    "gpu.topology/nvlink-domain",
    "nvidia.com/gpu.clique",
]
SCOPES = ["zone", "rack", *KEYS, "none"]
LEVELS = [
    DEFAULT_LEVELS,
    (FabricLevel("rack", ("pool", "topology.kubernetes.io/rack")),),
    (FabricLevel("zone", ("pool",)), *DEFAULT_LEVELS[1:]),
]

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["", "x", "r2", "r10", "5"]))
taints = st.lists(st.sampled_from([Taint("k", "v", "NoSchedule"), Taint("k", "", "PreferNoSchedule")])).map(
    lambda drawn_pair: tuple(drawn_pair[:2])
)
topologies = st.sampled_from([GpuTopology.unknown(4), islands([2, 2]), islands([4]), GpuTopology.unknown(0)])
nodes = st.builds(
    Node,
    st.sampled_from(NAMES),
    st.builds(Resources, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    topologies,
    st.sampled_from([frozenset(), frozenset({"g"})]),
    labels,
    taints,
    unschedulable=st.booleans(),
    ready=st.booleans(),
)
usages = st.builds(
    Usage,
    st.just("uid"),
    st.sampled_from(NAMES),
    st.builds(Resources, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    st.integers(0, 15),
    st.sampled_from([0, 0, 1, 5]),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """Snapshots that share the states that no change in between was about."""
    snapshots = [Snapshot.of(draw(st.lists(nodes, unique_by=lambda node: node.name)), ())]
    for _ in range(draw(st.integers(0, 6))):
        snapshot = snapshots[-1]
        states = dict(snapshot.nodes)
        match draw(st.sampled_from(["usage", "node", "remove", "levels", "same", "reorder"])):
            case "usage":
                snapshot = snapshot.with_usages([draw(usages)])
            case "node":
                node = draw(nodes)
                states[node.name] = NodeState.of(node, ())
                snapshot = replace(snapshot, nodes=dict(sorted(states.items())))
            case "remove":
                states.pop(draw(st.sampled_from(NAMES)), None)
                snapshot = replace(snapshot, nodes=states)
            case "levels":
                levels, unique = draw(st.sampled_from(LEVELS)), draw(st.sampled_from([(), ("rack",)]))
                snapshot = Snapshot(snapshot.nodes, levels, naming=Naming(unique))
            case "same":
                snapshot = replace(snapshot, nodes={name: replace(state) for name, state in states.items()})
            case "reorder":
                snapshot = replace(snapshot, nodes=dict(draw(st.permutations(list(states.items())))))
        snapshots.append(snapshot)
    return snapshots


def contents(columns: Columns) -> Iterator[tuple[str, object]]:
    """All that columns say, as plain values."""
    for field in Columns.__dataclass_fields__:
        value = getattr(columns, field)
        if not field.startswith("_") and field not in ("nodes", "snapshot"):
            yield field, value.tolist() if isinstance(value, np.ndarray) else list(value)
    yield (
        "numbers",
        (columns.amounts.tolist(), columns.totals.tolist(), columns.names, dict(columns.row), columns.levels),
    )
    yield "places", [columns.place(row) for row in range(len(columns.names))]
    for scope in SCOPES:
        for parts in (columns.part(scope), columns.label_names(scope), columns.label(scope)):
            yield scope, (parts.codes.tolist(), parts.names, dict(parts.index))


def says(columns: Columns, snapshot: Snapshot) -> None:
    """Each row says what its node does."""
    assert columns.names == tuple(sorted(snapshot.nodes, key=natural_key))
    for row, name in enumerate(columns.names):
        state, place = snapshot.nodes[name], place_of(snapshot.nodes[name])
        node = state.node
        assert columns.row[name] == row
        assert columns.states[row] == state
        assert columns.place(row) == place
        free = (columns.free_gpus[row], columns.free_count[row], columns.unindexed[row])
        assert free == (state.free_gpus, state.free_gpu_count, state.unindexed_gpus)
        assert Resources(columns.cpu[row], columns.memory[row], columns.pods[row]) == state.free
        assert (columns.gpu_total[row], columns.cpu_total[row]) == (
            node.topology.gpu_count,
            node.allocatable.cpu_milli,
        )
        assert (columns.shapes[columns.shape[row]], columns.promised[row]) == (place.shape, place.promised)
        shares = (bool(node.gpu_memory), node.memory_resources)
        facts_told = (node.partitions, node.missing_gpus, node.offers_parts)
        profile = (node.gpu_resources, node.ready, node.unschedulable, node.taints, *shares, *facts_told)
        assert tuple(columns.gpu_memory[: len(node.gpu_memory), row]) == state.free_memory
        assert not columns.gpu_memory[len(node.gpu_memory) :, row].any()
        assert columns.profiles[columns.profile[row]] == profile
        assert (("", *columns.wide_names)[columns.wide_codes[row] + 1]) == place.wide_domain
        for scope in SCOPES:
            domain_names, values = columns.label_names(scope), columns.label(scope)
            assert ("", *domain_names.names)[domain_names.codes[row] + 1] == part_of(
                node, scope, snapshot.levels
            )
            assert (None, *values.names)[values.codes[row] + 1] == node.labels.get(scope)
        for scope in (*SCOPES, "nvlink-domain"):
            part = columns.part(scope)
            assert ("", *part.names)[part.codes[row] + 1] == label(snapshot, state, scope)


@SETTINGS
@given(histories(), st.data())
def test_a_view_is_a_function_of_the_snapshot(history: list[Snapshot], data: st.DataObject) -> None:
    with patch.object(module, "CHUNK", 2):
        columns = NO_COLUMNS
        for snapshot in history:
            columns = columns_after(columns, snapshot)
            fresh = columns_after(NO_COLUMNS, snapshot)
            if data.draw(st.booleans()):  # else nothing is read yet that the next columns could carry on
                assert dict(contents(columns)) == dict(contents(fresh))
        says(columns, history[-1])
        for parts in (columns.part("rack"), columns.label("pool"), columns.nodes):
            assert list(parts.names) == sorted(parts.names, key=natural_key)
            assert set(parts.codes.tolist()) - {-1} == set(range(len(parts.names)))


def cluster(size: int) -> Snapshot:
    some_nodes = [
        Node(f"n-{i}", Resources(8, 8), islands([4]), frozenset({"g"}), {"pool": str(i % 3)})
        for i in range(size)
    ]
    return Snapshot.of(some_nodes, ())


def test_one_snapshot_has_one_view_and_what_stays_is_shared() -> None:
    before = cluster(600)
    first = columns_of(before)
    pool = first.part("pool")
    after = before.with_usages([Usage("uid", "n-300", Resources(3), gpus=1)])
    second = columns_of(after)
    assert columns_of(after) is second
    assert second.free_count[second.row["n-300"]] == 3
    assert first.free_count[first.row["n-300"]] == 4
    assert second.part("pool") is pool
    assert second.shape is first.shape
    assert second.place(0) is first.place(0)


def test_no_column_can_be_changed() -> None:
    columns = columns_of(cluster(3).with_usages([Usage("uid", "n-1", Resources(3), gpus=1)]))
    for array in (
        columns.free_gpus,
        columns.gpu_total,
        columns.promised,
        columns.shape,
        columns.part("pool").codes,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_amounts_are_cut_off() -> None:
    node = Node("a", Resources(10**30, 5), GpuTopology.unknown(2))
    columns = columns_of(Snapshot.of([node], [Usage("uid", "a", Resources(0, 10**30), gpus=0b11)]))
    assert (columns.cpu[0], columns.cpu_total[0], columns.memory[0]) == (LARGEST, LARGEST, -LARGEST)


def test_threads_may_ask_at_once() -> None:
    first = cluster(300)
    snapshots = [first, first.with_usages([Usage("uid", "n-7", Resources(3), gpus=1)]), cluster(299)] * 20

    def right(snapshot: Snapshot) -> bool:
        columns = columns_of(snapshot)
        return columns.snapshot is snapshot and all(
            columns.place(row).state is snapshot.nodes[name]
            and columns.free_gpus[row] == columns.states[row].free_gpus
            for row, name in enumerate(columns.names)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, snapshots))


terms = st.builds(
    SelectorTerm,
    st.sampled_from(["metadata.name", "none", *KEYS]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like"]),
    st.lists(st.sampled_from(["", "x", "r2", "5", "6", "n-1", "a"]), max_size=2).map(tuple),
)
rules = st.builds(
    NodeRules,
    st.lists(terms, max_size=2).map(tuple),
    st.lists(st.lists(terms, max_size=2).map(tuple), max_size=2).map(tuple),
    st.sampled_from([(), (Toleration("k", "Equal", "v"),), (Toleration("", "Exists"),)]),
)
roles = st.builds(
    Role,
    st.just("w"),
    st.just(()),
    st.just(Resources()),
    st.sampled_from([0, 1]),
    st.just("g"),
    rules,
)
excluded = st.dictionaries(
    st.sampled_from("wx"),
    st.dictionaries(st.sampled_from([*NAMES, "gone"]), st.sampled_from(["Plugin", ""])),
)


@SETTINGS
@given(histories(), st.lists(roles, min_size=1, max_size=3), excluded)
def test_admits_is_refusal_of_every_node(
    history: list[Snapshot], roles_asked: list[Role], by_plugin: dict[str, dict[str, str]]
) -> None:
    for snapshot in history:
        columns = columns_of(snapshot)
        for role in roles_asked:
            by = {
                name: by_plugin.get(role.name, {}).get(name) or refusal(state.node, role)
                for name, state in snapshot.nodes.items()
            }
            admitted = admits(columns, role, by_plugin)
            assert admitted.tolist() == [by[name] is None for name in columns.names]
