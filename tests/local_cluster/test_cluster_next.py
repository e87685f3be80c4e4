"""What `muster cluster up` says to do next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from local_cluster import cli
from local_cluster.cluster import LocalCluster


@pytest.mark.parametrize("nodes", [0, 5])
def test_up_names_what_the_cluster_lacks(
    nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ready(_: Any) -> list[str]:
        return ["n"] * nodes

    monkeypatch.setattr(cli, "ready_nodes", ready)
    monkeypatch.setattr(LocalCluster, "api", None)
    cli._print_next(LocalCluster(tmp_path))
    first, *comments = capsys.readouterr().out.splitlines()
    assert first.startswith("export KUBECONFIG=")
    assert all(line.startswith("# ") for line in comments), "a shell can read all of it"
    assert ("--shape" in "".join(comments)) == (nodes == 0)
    assert "make up" in comments[-1]
