"""Clusters that come and go: side by side, restarted, crashed, and left by a parent that was killed."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from local_cluster.cli import main
from local_cluster.cluster import ClusterError, LocalCluster
from local_cluster.nodes import ready_nodes
from local_cluster.patience import HANG_S
from local_cluster.places import SOURCE
from local_cluster.recipes import COMPONENTS
from tests.command import invoke
from tests.local_cluster.cluster_waiting import eventually
from tests.local_cluster.killed_parent import killed_parent

pytestmark = pytest.mark.cluster

SMALL = SOURCE / "shapes" / "small.yaml"


def test_two_side_by_side_share_nothing(tmp_path: Path) -> None:
    clusters = [LocalCluster(tmp_path / name) for name in ("a", "b")]
    try:
        with ThreadPoolExecutor() as workers:
            list(workers.map(lambda cluster: cluster.up(), clusters))
        a, b = clusters
        assert not set(a.ports.values()) & set(b.ports.values())
        a.apply_shape(SMALL)
        assert len(ready_nodes(a.api)) == 3
        assert ready_nodes(b.api) == set()
        b.down()
        assert len(ready_nodes(a.api)) == 3
    finally:
        for cluster in clusters:
            cluster.down()
    assert [cluster.running() for cluster in clusters] == [{}, {}]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["logs"]


def test_restarts_keep_the_data(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c") as cluster:
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": "kept"}})
        cluster.apply_shape(SMALL)
        before = cluster.running()
        cluster.kill("kube-apiserver")
        assert set(cluster.running()) == {"etcd", "kube-controller-manager", "kwok"}
        cluster.start("kube-apiserver")
        assert cluster.running()["kube-apiserver"] != before["kube-apiserver"]
        assert cluster.api.find("/api/v1/namespaces/kept")

        cluster.stop("etcd")
        LocalCluster(cluster.directory).up()  # starts what is missing, and only that
        assert cluster.running()["etcd"] != before["etcd"]
        assert cluster.running()["kwok"] == before["kwok"]

        cluster.down(keep=True)
        assert cluster.running() == {}
        cluster.up()
        assert cluster.api.find("/api/v1/namespaces/kept")
        eventually(lambda: len(ready_nodes(cluster.api)) == 3, "the nodes are Ready again")


PARENT = """
import sys
from pathlib import Path
from local_cluster.cluster import LocalCluster
LocalCluster(Path(sys.argv[1])).up()
print("up", flush=True)
sys.stdin.read()
"""


def test_kill_9_of_the_parent_leaves_no_process(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    with killed_parent(PARENT, directory):
        cluster = LocalCluster(directory)
        processes = cluster.running()
        assert set(processes) == set(COMPONENTS)
    assert all(identity.wait_end(HANG_S) for identity in processes.values())
    assert cluster.running() == {}
    cluster.down()  # cleans up what the crash left
    assert [path.name for path in directory.iterdir()] == ["logs"]


def test_a_crash_at_start_shows_the_log_and_stops_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("local_cluster.components.SERVICE_CIDR", "not-a-network")
    cluster = LocalCluster(tmp_path / "c")
    with pytest.raises(ClusterError, match=r"kube-apiserver ended(.|\n)*service-cluster-ip-range"):
        cluster.up()
    assert cluster.running() == {}
    cluster.down()


def test_another_s_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    cluster = LocalCluster(tmp_path)
    with pytest.raises(ClusterError, match=r"is not empty and no cluster's \(thesis\.tex"):
        cluster.up()
    cluster.down()
    cluster.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_command_line(tmp_path: Path) -> None:
    options = ["--dir", str(tmp_path / "c")]
    up = invoke(main, "up", *options, "--shape", str(SMALL))
    assert up.exit_code == 0, up.output
    assert f"export KUBECONFIG={tmp_path}/c/kubeconfig" in up.output
    assert "3 nodes are Ready, 3 of them from the shape" in up.output

    status = json.loads(invoke(main, "status", *options, "--json").output)
    assert status["ready_nodes"] == 3
    kwok = status["components"]["kwok"]["pid"]
    os.kill(kwok, signal.SIGKILL)
    eventually(lambda: "kwok" not in LocalCluster(tmp_path / "c").running(), "kwok is gone")
    assert invoke(main, "status", *options).exit_code == 1

    assert invoke(main, "down", *options).exit_code == 0
    assert not (tmp_path / "c").exists()
    assert "there was no cluster" in invoke(main, "down", *options).output


def test_a_bad_shape_starts_nothing(tmp_path: Path) -> None:
    shape = tmp_path / "bad.yaml"
    shape.write_text("nodes: [{name: a, gpu: 8}]")
    up = invoke(main, "up", "--dir", str(tmp_path / "c"), "--shape", str(shape))
    assert up.exit_code == 1
    assert "unknown field `gpu`" in up.output
    assert not (tmp_path / "c").exists()
