"""`make up` as a process: it says when all is ready, a gang is placed on it, and nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.client import Client
from e2e.objects import ack, pod
from e2e.record import NODES, PODS, Record
from local_cluster.patience import HANG_S

pytestmark = pytest.mark.cluster
LINE = re.compile(r"^export KUBECONFIG=(.+)$")
OPTIONS = ["--nodes", "3", "--gpus", "4", "--rack", "2", "--gpu", "v100", "--resource", "aliyun.com/gpu"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for all temporary files of the command; its short name keeps the socket's path short."""
    folder = Path(tempfile.mkdtemp(prefix="up-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def started(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The command once it is ready, and the KUBECONFIG that it names."""
    command = [sys.executable, "-m", "local_cluster.up", *OPTIONS]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            matches = (match for line in process.stdout if (match := LINE.match(line)))
            yield process, Path(shlex.split(next(matches)[1])[0])
        except BaseException:
            process.kill()
            raise


def left_behind(temporary: Path) -> dict[int, str]:
    """PID → command of each process that the command started, by the folder in its environment."""
    mark = f"TMPDIR={temporary}\0".encode()
    commands = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes() + b"\0":
                commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    return commands


def seats(record: Record) -> list[str] | None:
    """The nodes of the two pods, once both are bound."""
    nodes = [body["spec"].get("nodeName") for body in record.live(PODS)]
    return nodes if len(nodes) == 2 and all(nodes) else None


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_gang_is_placed_and_nothing_is_left(temporary: Path, tmp_path: Path, how: signal.Signals) -> None:
    with started(temporary) as (up, kubeconfig):
        client = Client.of(kubeconfig, tmp_path)
        with Record(client, [PODS, NODES]) as record:
            racks = [node["metadata"]["labels"]["topology.kubernetes.io/rack"] for node in record.live(NODES)]
            assert sorted(racks) == ["rack-0", "rack-0", "rack-1"]
            for name in ("one", "two"):
                body = pod(name, gpus=3, gang=ack("gang", 2))
                assert client.create("/api/v1/namespaces/default/pods", body)
            bound = record.until(lambda: seats(record), "both pods are bound")
            assert set(bound) == {"v100-0-0", "v100-0-1"}, "in one rack, as the nearest that fits"
        assert len(left_behind(temporary)) >= 7, "four of the cluster, two of Muster, and the command"
        up.send_signal(how)
        assert up.wait(HANG_S) == 0, up.stderr and up.stderr.read()
    assert left_behind(temporary) == {}
    assert list(temporary.iterdir()) == []


def test_it_ends_when_a_process_of_it_does(temporary: Path) -> None:
    with started(temporary) as (up, _):
        (kwok,) = [pid for pid, command in left_behind(temporary).items() if "/kwok " in command]
        os.kill(kwok, signal.SIGKILL)  # the API server would wait 10 s for an etcd that is gone
        assert up.wait(HANG_S) == 1
        assert up.stderr
        errors = up.stderr.read()
    assert "error: kwok ended by itself" in errors
    assert f"logs: {temporary}" in errors
    assert left_behind(temporary) == {}
