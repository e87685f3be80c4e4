"""The gauges about capacity and phases: by hand on small clusters, bounded on large ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from muster.adapters.telemetry.metrics import Metrics, Phases
from muster.adapters.telemetry.room import MAX_MODELS, OTHERS, Room
from muster.domain.node import Node, Resources, Usage
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology, Link
from muster.gangs.messages.instructions import Moved

MODEL = "nvidia.com/gpu.product"
RACK = "topology.kubernetes.io/rack"


def node(name: str, rack: str = "", model: str = "H100", gpus: int = 8, island: int = 8) -> Node:
    link, across = Link.of_kind("NV2"), Link.of_kind("SYS")
    labels = {MODEL: model, **({RACK: rack} if rack else {})}
    resources = Resources(64_000, 1 << 36, 100)
    return Node(name, resources, GpuTopology.of_islands(gpus, island, link, across), frozenset(), labels)


def taken(on: str, gpus: int) -> Usage:
    return Usage(f"on {on}", on, Resources(), gpus=(1 << gpus) - 1)


def test_the_largest_gang_and_the_free_gpus_of_each_scope() -> None:
    nodes = [node("a", "r1"), node("b", "r1"), node("c", "r2"), node("d", "r2", "A100", island=4)]
    snapshot = Snapshot.of(nodes, [taken("a", 6), taken("c", 3), taken("d", 2)])
    figures = Room(MODEL).figures(snapshot)
    assert dict(figures.largest) == {
        ("cluster", "H100"): 15,
        ("cluster", "A100"): 6,
        ("rack", "H100"): 10,
        ("rack", "A100"): 6,
        ("node", "H100"): 8,
        ("node", "A100"): 6,
        ("nvlink-domain", "H100"): 8,
        ("nvlink-domain", "A100"): 4,
    }
    by_node = {labels[1]: gpus for labels, gpus in figures.free if labels[0] == "node"}
    assert by_node == {"2": 2, "4": 5 + 6, "8": 8}
    # of 2, 5 and 8 free GPUs, requests for 1, 2, 4 and 8 can't use 2 + 2, 5 and 0, each with a weight of 1/4
    assert dict(figures.fragmented)["H100",] == pytest.approx((0.5 * 2 + 0.25 * 5) / 15)


def test_nodes_that_take_no_pods_do_not_count() -> None:
    nodes = [node("a"), replace(node("b"), ready=False), replace(node("c"), unschedulable=True)]
    assert dict(Room(MODEL).figures(Snapshot.of(nodes, [])).largest)["cluster", "H100"] == 8


def test_figures_follow_the_cluster() -> None:
    room, nodes = Room(MODEL), [node("a", "r1"), node("b", "r2")]
    assert dict(room.figures(Snapshot.of(nodes, [])).largest)["rack", "H100"] == 8
    nodes[1] = node("b", "r1")
    assert dict(room.figures(Snapshot.of(nodes, [])).largest)["rack", "H100"] == 16
    assert dict(room.figures(Snapshot.of(nodes, [taken("a", 8)])).largest)["rack", "H100"] == 8


def test_labels_that_others_choose_have_few_and_printable_values() -> None:
    nodes = [node(f"n{i}", model=f"model\n{i}" + "x" * 100) for i in range(200)]
    figures = Room(MODEL).figures(Snapshot.of(nodes, []))
    models = {labels[1] for labels, _ in figures.largest}
    assert len(models) == MAX_MODELS + 1
    assert OTHERS in models
    assert all(len(model) <= 64 and model.isprintable() for model in models)


def test_a_node_whose_model_changes_for_ever_adds_few_series() -> None:
    room, models = Room(MODEL), set[str]()
    for number in range(200):
        nodes = [node("a"), node("b", model=f"model {number}")]
        models |= {labels[1] for labels, _ in room.figures(Snapshot.of(nodes, [])).largest}
    assert {"H100", OTHERS} <= models
    assert len(models) <= MAX_MODELS + 1


def move(at: float, phase: str, gang: str = "g", why: str = "why") -> Moved:
    return Moved(at, gang, gang, "default", phase, why)


def test_times_in_phases_and_withdrawals_are_counted() -> None:
    metrics = Metrics()
    phases = Phases(metrics)
    phases.note_move(move(1.0, "planning"), "")
    phases.note_move(move(2.0, "planning", "h"), "")
    assert phases.oldest(5.0) == [("planning", 4.0)]
    phases.note_move(move(4.0, "withdrawn", why="its deadline passed"), "")
    phases.note_move(move(6.0, "running"), "")
    assert metrics.value("muster_gang_phase_seconds_sum", phase="planning") == 3.0
    assert metrics.value("muster_gang_phase_seconds_sum", phase="withdrawn") == 2.0
    assert metrics.value("muster_withdrawals_total", cause="its deadline passed") == 1
    phases.note_move(move(7.0, "finished", "h"), "")
    assert phases.oldest(9.0) == []


def test_openmetrics_shows_the_trace_of_a_slow_decision() -> None:
    metrics = Metrics()
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    metrics.count_decision("placed", 0.3, (), ["single-node", "single-node"], 0.02, trace_id)
    metrics.count_decision("unplaceable", 0.1, ["DomainTooSmall"], (), None, "")
    plain, kind = metrics.text()
    assert kind.startswith("text/plain")
    assert trace_id.encode() not in plain
    families = {family.name for family in text_string_to_metric_families(plain.decode())}
    assert "muster_decision_seconds" in families
    opened, kind = metrics.text("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert f'# {{trace_id="{trace_id}"}} 0.3' in opened.decode()
    assert metrics.value("muster_decision_methods_total", method="single-node") == 1
    assert metrics.value("muster_decision_causes_total", cause="DomainTooSmall") == 1
