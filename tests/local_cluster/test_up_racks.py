"""`make up`: its nodes, which are racks of equal nodes; what is no cluster; and how it says to ask Muster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from local_cluster.nodes import RACK, shape_nodes
from local_cluster.up.__main__ import BAD_OPTIONS, Up, main
from local_cluster.up.racks import HARDWARE, BadRacks, Racks


@pytest.mark.parametrize(
    ("racks", "sizes"),
    [
        (Racks(), [8]),
        (Racks(nodes=40), [8] * 5),
        (Racks(nodes=9, rack=4), [4, 4, 1]),
        (Racks(nodes=3, rack=100), [3]),
        (Racks(nodes=36, rack=18, gpu="gb200"), [18, 18]),
    ],
)
def test_racks_are_filled_one_after_another(racks: Racks, sizes: list[int]) -> None:
    nodes = shape_nodes(racks.shape(), "test")
    counts = Counter(node["metadata"]["labels"][RACK] for node in nodes)
    assert [counts[f"rack-{number}"] for number in range(len(counts))] == sizes
    assert racks.count == len(sizes)
    assert len({node["metadata"]["name"] for node in nodes}) == racks.nodes


@pytest.mark.parametrize("gpu", HARDWARE)
@pytest.mark.parametrize("fewer", [False, True])
def test_each_kind_of_node_offers_its_gpus_and_publishes_links(gpu: str, fewer: bool) -> None:
    count = HARDWARE[gpu].gpus // (2 if fewer else 1)
    (node,) = shape_nodes(Racks(nodes=1, gpus=count if fewer else None, gpu=gpu).shape(), "test")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == str(count)
    meta = node["metadata"]
    assert "GPU_TOPOLOGY" in meta["annotations"] or "gpu.topology/nvlink-domain-size" in meta["labels"]


def test_a_node_of_one_gpu_has_no_links() -> None:
    (node,) = shape_nodes(Racks(nodes=1, gpus=1).shape(), "test")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1"


def test_the_nodes_of_a_gb200_rack_are_one_domain() -> None:
    nodes = shape_nodes(Racks(nodes=4, rack=2, gpu="gb200").shape(), "test")
    domains = [node["metadata"]["labels"]["gpu.topology/nvlink-domain"] for node in nodes]
    assert domains == ["nvl-0", "nvl-0", "nvl-1", "nvl-1"]


def test_nodes_for_aliyun_gpu_are_scheduled_by_topology() -> None:
    (node,) = shape_nodes(Racks(nodes=1, resource="aliyun.com/gpu").shape(), "test")
    assert node["metadata"]["labels"]["ack.node.gpu.schedule"] == "topology"


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        (["--nodes", "0"], "give a number from 1 to 5000"),
        (["--nodes", "5001"], "give a number from 1 to 5000"),
        (["--rack", "0"], "1 or more"),
        (["--gpus", "9"], "from 1 to 8, or a kind of node that has as many: GPU=dgx2"),
        (["--gpus", "0"], "from 1 to 8"),
        (["--shape", "/no/such/file"], "/no/such/file: cannot be read"),
    ],
)
def test_a_bad_option_names_the_way_out(
    capsys: pytest.CaptureFixture[str], options: list[str], way_out: str
) -> None:
    assert main(options) == BAD_OPTIONS
    assert way_out in capsys.readouterr().err


def test_bad_racks_are_an_error_of_their_own() -> None:
    with pytest.raises(BadRacks):
        Racks(gpus=17, gpu="dgx2")


def test_the_commands_at_the_end_name_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is a process and no pod, so `muster why` does not find its address by the lease."""
    stack = SimpleNamespace(socket=tmp_path / "muster.sock", service_url="http://127.0.0.1:8")
    sandbox = SimpleNamespace(cluster=SimpleNamespace(kubeconfig=tmp_path), real=0, stack=stack)
    monkeypatch.setattr("local_cluster.up.__main__.Sandbox", lambda *_, **__: sandbox)
    monkeypatch.setattr("local_cluster.up.__main__.Interrupts", lambda: None)
    lines = list(Up(tmp_path, [], "", "nvidia.com/gpu")._ready())
    assert f".venv/bin/muster status --socket {stack.socket}" in lines
    assert ".venv/bin/muster why GANG --url http://127.0.0.1:8" in lines
