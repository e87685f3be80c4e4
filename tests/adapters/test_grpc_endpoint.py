"""The socket's file: private, exclusive, and recovered after any kind of end."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster.patience import HANG_S
from muster.adapters.grpc.endpoint import Endpoint, SocketError

CLAIM_AND_HANG = """
import socket, sys, time
from pathlib import Path
from muster.adapters.grpc.endpoint import Endpoint
endpoint = Endpoint(Path(sys.argv[1]))
endpoint.claim()
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(endpoint.path))
print(endpoint.next_epoch(), flush=True)
time.sleep(60)
"""


def test_the_folder_is_private_and_so_is_the_socket(short_folder: Path) -> None:
    endpoint = Endpoint(short_folder / "run" / "s")
    endpoint.claim()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(endpoint.path))
        endpoint.protect()
        assert stat.S_IMODE(endpoint.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(endpoint.path.parent.stat().st_mode) == 0o700
    endpoint.release()
    assert not endpoint.path.exists()


def test_a_killed_services_socket_is_taken_over_and_epochs_go_on(short_folder: Path) -> None:
    path = short_folder / "s"
    service = subprocess.Popen(
        [sys.executable, "-c", CLAIM_AND_HANG, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert service.stdout is not None
    epoch = int(service.stdout.readline())
    with pytest.raises(SocketError, match="another service runs"):
        Endpoint(path).claim()
    service.send_signal(signal.SIGKILL)
    service.wait(timeout=HANG_S)
    assert path.is_socket()
    endpoint = Endpoint(path)
    endpoint.claim()
    assert not path.exists()
    assert endpoint.next_epoch() > epoch
    endpoint.release()


def test_epochs_rise_even_if_the_clock_was_set_back(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint(short_folder / "s")
    endpoint.claim()
    first = endpoint.next_epoch()
    endpoint.release()
    monkeypatch.setattr("time.time_ns", lambda: 1)
    endpoint.claim()
    assert [endpoint.next_epoch(), endpoint.next_epoch()] == [first + 1, first + 2]
    endpoint.release()


def test_a_file_that_is_no_socket_is_not_removed(short_folder: Path) -> None:
    (short_folder / "s").write_text("mine")
    with pytest.raises(SocketError, match="no socket"):
        Endpoint(short_folder / "s").claim()
    assert (short_folder / "s").read_text() == "mine"


def test_a_folder_that_others_may_write_to_is_refused_with_a_way_out(short_folder: Path) -> None:
    short_folder.chmod(0o777)
    with pytest.raises(SocketError, match=r"use a folder of its own.*/muster/muster\.sock"):
        Endpoint(short_folder / "s").claim()


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SocketError, match="107 bytes"):
        Endpoint(tmp_path / ("x" * 100)).claim()


def test_a_path_that_can_not_be_made_is_refused(short_folder: Path) -> None:
    (short_folder / "file").write_text("")
    with pytest.raises(SocketError, match="can't make the socket's folder"):
        Endpoint(short_folder / "file" / "s").claim()
