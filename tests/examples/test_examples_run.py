"""`make example` itself, on a real cluster: it shows the outcome, and leaves nothing running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "local_cluster.examples", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.mark.cluster
def test_examples_are_applied_and_their_outcome_shown(tmp_path: Path) -> None:
    """Whole GPUs, labels that disagree, a PodGroup that waits, a slice."""
    names = ("pytorchjob-pods", "labels-that-disagree", "multi-node-tas-as-given", "cgpu-test")
    done = run(*names, "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    shown = " ".join(done.stdout.split())  # however its lines break
    for text in (
        "pytorch-dist-nccl-master-0", "NV2, 50 GB/s", "2 of 2 run", "0 of 2 run, TopologyInvalid",
        "1 of 2 are here", "Collecting", "GPU 0: 3 GiB", "3/16 0/16",
    ):  # fmt: skip
        assert text in shown
    assert LocalCluster(tmp_path / "documents" / "cluster").running() == {}


def test_without_a_name_all_are_listed() -> None:
    done = run()
    assert done.returncode == 0
    assert "ack/pytorchjob-pods\n" in done.stdout
    assert "two one-GPU pods of one job" in done.stdout


def test_a_name_that_is_none() -> None:
    done = run("one-rak")
    assert (done.returncode, done.stdout) == (2, "")
    assert "features/one-rack" in done.stderr
