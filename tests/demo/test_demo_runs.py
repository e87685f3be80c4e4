"""The demo itself, on a real cluster: it holds, says only JSON, and leaves nothing running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S

pytestmark = pytest.mark.cluster


def command(directory: Path) -> list[str]:
    return [sys.executable, "-u", "-m", "local_cluster.demo", "--json", "--dir", str(directory)]


def test_every_claim_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [*command(tmp_path), "--trace"], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["version"] == 1
    assert [claim["name"] for claim in document["claims"] if not claim["holds"]] == []
    assert document["claims"][-1]["name"] == "traces_whole"
    assert LocalCluster(tmp_path / "cluster").running() == {}


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    with subprocess.Popen(command(tmp_path), stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr
        # Once: a signal that falls into the writing of a line can make rich write the line again.
        next(line for line in demo.stderr if "control plane healthy" in line)
        assert set(LocalCluster(tmp_path / "cluster").running())
        demo.send_signal(signal.SIGINT)
        demo.stderr.read()
        assert demo.wait(timeout=HANG_S) == 130
    assert LocalCluster(tmp_path / "cluster").running() == {}
    assert not (tmp_path / "cluster" / "etcd").exists()
