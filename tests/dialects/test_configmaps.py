"""ConfigMaps: what device plugins publish of a node, and where the policies are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local_cluster.places import TOPOLOGIES
from local_cluster.topology import load_topology
from muster.dialects.nodes import nodes
from muster.dialects.nodes.configmaps import NodeFact, PolicyText, read
from muster.dialects.nodes.matrices import Matrix
from muster.dialects.settings import DialectSettings
from muster.domain.snapshot import NodeState
from muster.domain.topology import GpuTopology, Link
from tests.dialects.objects import as_json, config_map, full_matrix, node_object

LABELS = {"ack.node.gpu.schedule": "topology", "nodename": "n"}
PAIR = [["X", "NV2"], ["NV2", "X"]]


def fact_of(name: str = "n-topology", **data: object) -> NodeFact:
    """What is read of a device plugin's ConfigMap; values that are no text become JSON."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}
    fact = read(config_map(name, texts, LABELS))
    assert isinstance(fact, NodeFact)
    return fact


def unhealthy(text: str | None) -> NodeFact:
    fact = read(config_map("unhealthy-gpu-n", None if text is None else {"gpus": text}))
    assert isinstance(fact, NodeFact)
    return fact


# --- which ConfigMap it is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "namespace", "labels"),
    [
        ("kube-root-ca.crt", "kube-system", {}),
        ("n-topology", "default", LABELS),
        ("n-topology", "kube-system", {"nodename": "n"}),
        ("n-topology", "kube-system", {"ack.node.gpu.schedule": "topology"}),
        ("n-topology", "kube-system", {**LABELS, "ack.node.gpu.schedule": "share"}),
        ("unhealthy-gpu-", "kube-system", {}),
        ("unhealthy-gpu-n", "default", {}),
        ("kai-scheduler-config", "kube-system", {}),
        ("kai-scheduler-config", "kai-scheduler", {}),
    ],
)
def test_most_config_maps_are_none_of_ours(name: str, namespace: str, labels: dict[str, str]) -> None:
    assert read(config_map(name, {"gpus": "0"}, labels, namespace)) is None


def test_where_the_policies_are() -> None:
    at: dict[str, Any] = {"name": "kai-scheduler-config", "namespace": "muster-system"}
    assert read(config_map(data={"config.yaml": "x"}, **at)) == PolicyText("x")
    assert read(config_map(data={"other.yaml": "x"}, **at)) == PolicyText("")
    assert read(config_map(data=None, **at)) == PolicyText("")
    moved = DialectSettings(policies_namespace="a", policies_name="b", policies_key="c")
    assert read(config_map("b", {"c": "x"}, namespace="a"), moved) == PolicyText("x")


# --- the node's topology ---------------------------------------------------------------------------


def test_a_matrix_with_all_that_it_may_have() -> None:
    fact = fact_of(
        devices={"0": "Healthy", "1": "Unhealthy"}, linkType=PAIR, bandwidth=[[0, 52.4], [47.6, 0]]
    )
    link = Link("NV2", 48.0)  # the slower way, in whole GB/s
    matrix = Matrix({(0, 1): link})
    assert fact == NodeFact("n", "ConfigMap kube-system/n-topology", True, matrix, 0b10, ())


@pytest.mark.parametrize("itself", ["X", "", "Self", "N/A", None])
def test_the_diagonal_may_say_anything(itself: str | None) -> None:
    assert fact_of(linkType=[[itself, "NV2"], ["NV2", itself]]) == fact_of(linkType=PAIR)


def test_words_do_for_abbreviations() -> None:
    words = [["X", "Two NVLinks"], ["Two NVLinks", "X"]]
    assert fact_of(linkType=words) == fact_of(linkType=PAIR)


def test_a_real_matrix_is_read_as_it_was_printed() -> None:
    printed = load_topology("v100-8x-hybrid-cube-mesh")
    fact = fact_of(linkType=[list(row) for row in printed.links])
    assert fact.problems == ()
    assert fact.matrix is not None
    topology, problems = fact.matrix.of_node(8)
    assert problems == ()
    for i, row in enumerate(printed.links):
        assert [link.kind if link else "X" for link in topology.links[i]] == list(row)


@pytest.mark.parametrize("name", ["dgx2-16x-v100-nvswitch", "mi300-class-8x-xgmi"])
def test_what_a_tool_printed_may_stand_there_as_it_is(name: str) -> None:
    fact = fact_of(linkType=(TOPOLOGIES / f"{name}.txt").read_text())
    rows = fact_of(linkType=[list(row) for row in load_topology(name).links])
    assert fact == rows
    assert fact.problems == ()


BAD_LINKS: dict[str, tuple[object, str]] = {
    "no JSON": ("[[", "it is no JSON"),
    "very deep": ("[" * 30_000, "it is no JSON"),
    "far too long": (" " * 2_000_000, "more than 32,768 characters"),
    "a number": ("3", "it is no JSON object and no JSON list of lists"),
    "a list": (["NV2"], "it is no JSON object and no JSON list of lists"),
}


@pytest.mark.parametrize(("links", "says"), BAD_LINKS.values(), ids=BAD_LINKS.keys())
def test_a_bad_matrix_is_not_used(links: object, says: str) -> None:
    fact = fact_of(linkType=links)
    assert (fact.has_matrix, fact.matrix) == (True, None)
    (problem,) = fact.problems
    assert problem.startswith("ConfigMap kube-system/n-topology: linkType: ")
    assert says in problem
    node = nodes.read(
        node_object({"aliyun.com/gpu": 2}, {"nvidia.com/nvswitch.present": "true"}), facts=[fact]
    )
    assert node.topology == GpuTopology.unknown(2)  # not from labels either
    assert problem in node.problems


SLIPS: dict[str, tuple[object, str, str]] = {
    "not square": ([["X", "NV2"], ["NV2"]], "NV2", "row 1 has 1 entries of 2"),
    "one row": ([["X", "NV2"]], "NV2", "row 0 has 2 entries of 1"),
    "an unknown link": ([["X", "NV99"], ["NV99", "X"]], "", "the link 'NV99' of GPUs 0 and 1 is unknown"),
    "no text": ([["X", 2], [2, "X"]], "", "the link '2' of GPUs 0 and 1 is unknown"),
    "both ways differ": ([["X", "NV2"], ["SYS", "X"]], "SYS", "GPUs 0 and 1 are joined in two ways"),
    "of too many GPUs": ([["X", "NV1"], *[["NV1"]] * 256], "NV1", "it is of 257 GPUs"),
}


@pytest.mark.parametrize(("links", "kind", "says"), SLIPS.values(), ids=SLIPS.keys())
def test_a_slip_leaves_the_other_links(links: object, kind: str, says: str) -> None:
    fact = fact_of(linkType=links)
    assert fact.matrix is not None
    link = fact.matrix.links[0, 1]
    assert (link.kind if link else "") == kind
    assert fact.problems[0].startswith(f"ConfigMap kube-system/n-topology: linkType: {says}")


NO_NUMBER = "GPUs 0 and 1 have no positive number of GB/s both ways"
BAD_BANDWIDTH: dict[str, tuple[object, str]] = {
    "no JSON": ("fast", "it is no JSON"),
    "a number": ("3", "expected a JSON list of lists"),
    "of another size": ([[0]], NO_NUMBER),
    "nothing": ([[0, 0], [0, 0]], NO_NUMBER),
    "negative": ([[0, -1], [1, 0]], NO_NUMBER),
    "text": ([[0, "48"], ["48", 0]], NO_NUMBER),
    "a truth": ([[0, True], [True, 0]], NO_NUMBER),
    "not finite": ("[[0, Infinity], [NaN, 0]]", NO_NUMBER),
    "beyond all": ([[0, 10**400], [1, 0]], NO_NUMBER),
}


@pytest.mark.parametrize(("bandwidth", "says"), BAD_BANDWIDTH.values(), ids=BAD_BANDWIDTH.keys())
def test_bad_bandwidths_leave_the_modelled_ones(bandwidth: object, says: str) -> None:
    fact = fact_of(linkType=PAIR, bandwidth=bandwidth)
    assert fact.matrix == fact_of(linkType=PAIR).matrix
    (problem,) = fact.problems
    assert says in problem
    assert "; modelled bandwidths are used" in problem


def test_a_bad_bandwidth_leaves_the_others() -> None:
    three = [["X", "NV2", "NV2"], ["NV2", "X", "NV2"], ["NV2", "NV2", "X"]]
    fact = fact_of(linkType=three, bandwidth=[[0, 40, 41], [None, 0, 42], ["x", 42]])
    assert fact.matrix is not None
    speeds = {pair: link.gb_per_s for pair, link in fact.matrix.links.items() if link}
    assert speeds == {(0, 1): 50.0, (0, 2): 50.0, (1, 2): 42.0}
    assert f"{NO_NUMBER} (and 1 pairs more)" in fact.problems[0]


BAD_DEVICES: dict[str, tuple[object, str]] = {
    "no JSON": ("0", "expected a JSON object"),
    "a list": (["Healthy"], "expected a JSON object"),
    "no index": ({"GPU-1": "Healthy"}, "'GPU-1': 'Healthy' is no state of a GPU"),
    "an index far away": ({"999": "Unhealthy"}, "'999'"),
    "no state": ({"0": None}, "'0': 'None'"),
}


@pytest.mark.parametrize(("devices", "says"), BAD_DEVICES.values(), ids=BAD_DEVICES.keys())
def test_bad_devices_count_as_healthy_and_leave_the_matrix(devices: object, says: str) -> None:
    fact = fact_of(devices=devices, linkType=PAIR)
    assert fact.unhealthy == 0
    assert fact.matrix is not None
    assert says in fact.problems[0]


# --- unhealthy GPUs --------------------------------------------------------------------------------

GPUS: dict[str, tuple[str | None, int, bool]] = {
    "two": ("0,2", 0b101, True),
    "with blanks": (" 0, 2 ,", 0b101, True),
    "one twice": ("3,3", 0b1000, True),
    "none": ("", 0, True),
    "no data": (None, 0, True),
    "a word": ("0,two", 0b1, False),
    "negative": ("-1,1", 0b10, False),
    "far away": ("1,1000000", 0b10, False),
}


@pytest.mark.parametrize(("text", "mask", "well"), GPUS.values(), ids=GPUS.keys())
def test_which_gpus_are_unhealthy(text: str | None, mask: int, well: bool) -> None:
    fact = unhealthy(text)
    assert (fact.node, fact.unhealthy) == ("n", mask)
    assert (fact.problems == ()) == well
    assert all(problem.startswith("ConfigMap kube-system/unhealthy-gpu-n: ") for problem in fact.problems)


def test_a_config_map_of_unhealthy_gpus_without_their_key_is_a_problem() -> None:
    fact = read(config_map("unhealthy-gpu-n", {"gpu": "0,2"}))
    assert isinstance(fact, NodeFact)
    assert 'expected the key gpus, as in gpus: "0,2"' in fact.problems[0]


def test_a_gpu_that_is_said_to_be_broken_is_believed_whatever_stands_beside() -> None:
    fact = fact_of(devices={"1": "Unhealthy", "GPU-2": "Healthy", "0": None})
    assert fact.unhealthy == 0b10
    assert fact.problems == (
        "ConfigMap kube-system/n-topology: devices: 'GPU-2': 'Healthy' is no state of a GPU, expected as in "
        '{"0":"Healthy"}: the others are used',
    )


# --- joined with the node --------------------------------------------------------------------------

SWITCHED = {"nvidia.com/nvswitch.present": "true"}
JOINED: dict[str, tuple[list[NodeFact], str, str]] = {
    # what: facts, the link between GPUs 0 and 1 of the node (which has NV6 by its labels), a problem
    "nothing": ([], "NV6", ""),
    "a matrix": ([fact_of(linkType=PAIR)], "NV2", ""),
    "no matrix": ([fact_of(devices={"0": "Healthy"})], "NV6", ""),
    "one of another size": (
        [fact_of(linkType=[["X"]])], "", "1 pairs are missing, GPUs 0 and 1 the first of them",
    ),
    "two of them": (
        [fact_of("z", linkType=[["X", "SYS"], ["SYS", "X"]]), fact_of("a", linkType=PAIR)],
        "NV2", "ConfigMap kube-system/z speaks of the node too: ConfigMap kube-system/a is used",
    ),
    "against the labels": (
        [fact_of(linkType=[["X", "SYS"], ["SYS", "X"]])], "SYS", "is true, but the matrix has",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "kind", "says"), JOINED.values(), ids=JOINED.keys())
def test_the_matrix_of_a_config_map_comes_before_labels(facts: list[NodeFact], kind: str, says: str) -> None:
    node = nodes.read(node_object({"nvidia.com/gpu": 2}, SWITCHED), facts=facts)
    link = node.topology.link(0, 1)
    assert (link.kind if link else "") == kind
    assert (says in "; ".join(node.problems)) if says else node.problems == ()


def test_the_annotation_comes_before_config_maps() -> None:
    obj = node_object({"nvidia.com/gpu": 2}, matrix=as_json(full_matrix(2)))
    measured = fact_of(linkType=PAIR, bandwidth=[[0, 30], [30, 0]])
    assert nodes.read(obj, facts=[measured]) == nodes.read(obj)
    node = nodes.read(obj, facts=[fact_of(linkType=[["X", "NV4"], ["NV4", "X"]])])
    assert node.topology == nodes.read(obj).topology
    assert node.problems == (
        "ConfigMap kube-system/n-topology has another matrix than GPU_TOPOLOGY, which is used",
    )


def test_nothing_is_planned_on_unhealthy_gpus() -> None:
    facts: list[NodeFact] = [unhealthy("0,9"), fact_of(devices={"2": "Unhealthy", "3": "healthy"})]
    node = nodes.read(node_object({"aliyun.com/gpu-count": 4, "aliyun.com/gpu-mem": 64}), facts=facts)
    assert node.unhealthy == 0b101
    assert node.problems == ("ConfigMap kube-system/unhealthy-gpu-n names GPU 9, and the node has 4",)
    state = NodeState.of(node, ())
    assert (state.free_gpus, state.free_memory) == (0b1010, (0, 16, 0, 16))


def test_a_broken_gpu_leaves_the_others_their_size() -> None:
    """The device plugin takes it out of allocatable, and the ConfigMap says which one it is."""
    capacity = {"aliyun.com/gpu-count": 4, "aliyun.com/gpu-mem": 64}
    allocatable = {"aliyun.com/gpu-count": 3, "aliyun.com/gpu-mem": 48}
    node = nodes.read(node_object(allocatable, capacity=capacity), facts=[unhealthy("1")])
    assert node.problems == ()
    assert NodeState.of(node, ()).free_memory == (16, 0, 16, 16)


def test_a_node_without_gpus_is_told_nothing_of_them() -> None:
    node = nodes.read(node_object(), facts=[fact_of(linkType=PAIR), unhealthy("0,x")])
    assert (node.topology.gpu_count, node.unhealthy, node.problems) == (0, 0, ())


def test_a_matrix_of_more_gpus_than_nodes_have_is_read() -> None:
    assert fact_of(linkType=[["PIX"] * 62] * 62).problems == ()
