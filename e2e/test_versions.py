"""Older control planes: the API server of 1.37 serves the API of an older release, and no more.

What the scheduler of 1.37 needs besides is switched off as `muster preflight` says. Without that the shim
ends at its start: it would wait for a resource that is not served, and bind nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e import objects
from e2e.client import Client
from e2e.scene import Scene
from local_cluster.cluster import LocalCluster
from local_cluster.patience import HANG_S
from local_cluster.stack import Stack, StackError

MUSTER = Path(sys.executable).with_name("muster")


def remedy(kubeconfig: Path) -> str:
    """Return what preflight says about resources that are not served."""
    argv = [str(MUSTER), "preflight", "--kubeconfig", str(kubeconfig), "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=False)
    (finding,) = [
        finding_shown
        for finding_shown in json.loads(done.stdout)["findings"]
        if finding_shown["check"] == "api"
    ]
    assert finding["level"] == "error"
    return str(finding["remedy"])


@pytest.mark.cluster
@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
def test_a_gang_runs_once_the_gates_are_off_that_preflight_names(version: str, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", api_flags=[f"--emulated-version={version}"]) as cluster:
        gates = re.findall(r"\w+=false", remedy(cluster.kubeconfig))
        assert gates
        (credentials := tmp_path / "credentials").mkdir(mode=0o700)
        client = Client.of(cluster.kubeconfig, credentials)
        with pytest.raises(StackError, match=f"Add {','.join(gates)} to --feature-gates"):
            Stack(cluster, tmp_path / "too new").start()
        with Stack(cluster, tmp_path / "stack", feature_gates=gates), Scene(client) as scene:
            scene.node(objects.node("a"))
            gang = objects.ack("g", 2)
            scene.runs(scene.create(*(objects.pod(f"w-{rank}", gang=gang) for rank in range(2))))
            scene.audit()
