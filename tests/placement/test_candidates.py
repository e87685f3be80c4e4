"""Which nodes admit a role, as kube-scheduler's filters decide, and who refused the others."""

from __future__ import annotations

import pytest

from muster.domain.node import Node, Resources, Taint
from muster.domain.request import NodeRules, Role, SelectorTerm, Toleration
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology
from muster.placement.cluster.candidates import admits, is_tolerated, matches, refusal
from muster.placement.cluster.columns import columns_of

NODE = Node("a", Resources(), GpuTopology.unknown(8), frozenset({"g"}), {"pool": "p", "count": "8"})


@pytest.mark.parametrize(
    ("term", "holds"),
    [
        (SelectorTerm("pool", "In", ("p", "q")), True),
        (SelectorTerm("pool", "In", ("q",)), False),
        (SelectorTerm("none", "In", ("q",)), False),
        (SelectorTerm("pool", "NotIn", ("p",)), False),
        (SelectorTerm("none", "NotIn", ("p",)), True),
        (SelectorTerm("pool", "Exists"), True),
        (SelectorTerm("none", "Exists"), False),
        (SelectorTerm("pool", "DoesNotExist"), False),
        (SelectorTerm("none", "DoesNotExist"), True),
        (SelectorTerm("count", "Gt", ("7",)), True),
        (SelectorTerm("count", "Gt", ("8",)), False),
        (SelectorTerm("count", "Lt", ("9",)), True),
        (SelectorTerm("pool", "Gt", ("1",)), False),
        (SelectorTerm("count", "Gt", ("x",)), False),
        (SelectorTerm("count", "Gt", ("--5",)), False),
        (SelectorTerm("count", "Gt", ("-5",)), True),
        (SelectorTerm("count", "Gt", ("٣",)), False),
        (SelectorTerm("count", "Lt", ("9" * 5000,)), False),
        (SelectorTerm("count", "Lt", ()), False),
        (SelectorTerm("metadata.name", "In", ("a",)), True),
        (SelectorTerm("metadata.name", "In", ("b",)), False),
        (SelectorTerm("pool", "Like", ("p",)), False),
    ],
)
def test_terms(term: SelectorTerm, holds: bool) -> None:
    assert matches(term, NODE) is holds


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("k", "Equal", "v", "NoSchedule"), True),
        (Toleration("k", "Equal", "v"), True),
        (Toleration("k", "", "v"), True),
        (Toleration("k", "Equal", "other"), False),
        (Toleration("k", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Equal", "v"), False),
        (Toleration("k", "Exists", "", "NoExecute"), False),
    ],
)
def test_tolerations(toleration: Toleration, covers: bool) -> None:
    assert is_tolerated(Taint("k", "v", "NoSchedule"), (toleration,)) is covers


def role(gpus: int = 1, **rules: object) -> Role:
    return Role("w", (), Resources(), gpus, "g" if gpus else "", NodeRules(**rules))  # type: ignore[arg-type]


def node_with(**changes: object) -> Node:
    facts = {field: getattr(NODE, field) for field in Node.__dataclass_fields__} | changes
    return Node(**facts)


@pytest.mark.parametrize(
    ("node", "role_asked", "by"),
    [
        (NODE, role(), None),
        (node_with(gpu_resources=frozenset()), role(), "no g"),
        (node_with(gpu_resources=frozenset()), role(0), None),
        (node_with(ready=False), role(), "not ready"),
        (node_with(unschedulable=True), role(), "cordoned"),
        (node_with(unschedulable=True), role(tolerations=(Toleration("", "Exists"),)), None),
        (node_with(taints=(Taint("k", "v", "NoSchedule"),)), role(), "taint k=v:NoSchedule"),
        (node_with(taints=(Taint("k", "", "PreferNoSchedule"),)), role(), None),
        (NODE, role(required=(SelectorTerm("pool", "In", ("q",)),)), "selector pool=q"),
        (
            NODE,
            role(any_of=((SelectorTerm("pool", "In", ("q",)),), (SelectorTerm("count", "Exists"),))),
            None,
        ),
        (NODE, role(any_of=((SelectorTerm("pool", "In", ("q", "r")),),)), "affinity pool in (q, r)"),
        (NODE, role(any_of=((),)), "affinity "),
    ],
)
def test_refusals(node: Node, role_asked: Role, by: str | None) -> None:
    assert refusal(node, role_asked) == by


def test_a_role_is_kept_off_nodes_that_plugins_refuse() -> None:
    nodes = [node_with(name="a"), node_with(name="b", ready=False), node_with(name="c")]
    excluded = {"w": {"c": "VolumeBinding"}, "x": {"a": "other"}}
    assert admits(columns_of(Snapshot.of(nodes, ())), role(), excluded).tolist() == [True, False, False]
