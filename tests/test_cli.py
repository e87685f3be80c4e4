"""The command line: help that teaches, errors without tracebacks, nothing slow imported for nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from local_cluster.patience import HANG_S
from muster.cli import main
from tests.command import invoke

SLOW = ("kubernetes", "grpc", "ortools", "aiohttp", "pydantic", "numpy", "opentelemetry", "local_cluster")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="muster-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def muster(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "muster.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )


@pytest.mark.parametrize("command", ["serve", "status", "config"])
def test_help_teaches_with_examples(command: str) -> None:
    result = invoke(main, command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"muster {command}" in result.output


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys, contextlib, muster.cli\n"
        "with contextlib.suppress(SystemExit): muster.cli.main(['--help'])\n"
        f"sys.exit(' '.join(name for name in {SLOW!r} if name in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.stderr == "\n" or result.returncode == 0, result.stderr


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version(argument: str) -> None:
    result = invoke(main, argument)
    assert result.exit_code == 0
    assert result.output.startswith("muster 0.")


def test_the_printed_configuration_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "muster.yaml"
    file.write_text(invoke(main, "config").output)
    result = invoke(main, "status", "-c", str(file), "--socket", str(tmp_path / "none"))
    assert "no service found" in result.output


BAD = {
    "a misspelt setting": (["serve", "-c", "{file}"], "sockett: x", 2, "there is no setting 'sockett'"),
    "a file that is not there": (["serve", "-c", "/nowhere.yaml"], "", 2, "/nowhere.yaml: can't be read"),
    "a bad flag": (["serve", "--log-level", "loud"], "", 2, "--log-level: input should be"),
    "no service": (
        ["status", "--socket", "/nowhere/s"],
        "",
        1,
        "no service found: /nowhere/s.http is not there",
    ),
    "nobody at the address": (["status", "--url", "http://127.0.0.1:1"], "", 1, "does not answer"),
    "no address": (["status", "--url", "file:///etc/passwd"], "", 1, "an address like http://"),
    "no kubeconfig there": (
        ["serve", "--kubeconfig", "{folder}/none", "--socket", "{folder}/run/s"],
        "",
        1,
        "/none: there is no such file",
    ),
    "no kubeconfig at all": (["capture"], "", 1, "no cluster: there is no kubeconfig, and this is no pod"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_are_one_sentence_and_no_traceback(short_folder: Path, case: str) -> None:
    arguments, text, code, message = BAD[case]
    file = short_folder / "muster.yaml"
    file.write_text(text)
    filled = [argument.format(file=file, folder=short_folder) for argument in arguments]
    process = muster(*filled, HOME=str(short_folder), KUBECONFIG="")
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == code, errors
    assert message in errors
    assert "Traceback" not in errors
    assert "Config not found" not in errors, "the library's own message comes before ours"


GANGS: dict[str, Any] = {
    "ready": True,
    "gangs": [
        {"namespace": "ml", "name": "train", "phase": "unplaceable", "present": 4, "needed": 4, "bound": 0}
        | {"reason": "needs 4 GPUs [in one node]", "created": 0, "priority": 7, "position": 1},
        {"namespace": "ml", "name": "serve", "phase": "running", "present": 3, "needed": 2, "bound": 3}
        | {"reason": "", "created": 0, "priority": 0},
    ],
}


@pytest.fixture
def service() -> Iterator[str]:
    """The address of something that answers /gangs like the service."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(GANGS).encode())

        def log_message(self, *_: object) -> None:
            """Not into the test's output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_status_shows_who_waits_and_why(service: str) -> None:
    lines = invoke(main, "status", "--url", service).output.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "NAMESPACE GANG PHASE POSITION AGE SEEN BOUND GPUS NODES PRIORITY WHY",
        "ml train unplaceable 1 0s 4/4 0 7 needs 4 GPUs [in one node]",
        "ml serve running 0s 3/2 3 0",
    ]


def test_status_shows_what_is_noted_of_the_cluster(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GANGS, "notes", ["rack: several domains [r1] have one name\x1b"])
    lines = invoke(main, "status", "--url", service).output.splitlines()
    assert lines[0] == "note: rack: several domains [r1] have one name\\x1b"
    assert lines[1].startswith("NAMESPACE")


def test_status_obeys_no_control_characters(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gang = {
        **GANGS["gangs"][0],
        "name": "a\x1b[2J\u202e",
        "reason": 'expected 2, is "\x1b]0;x\x07\nml/fake running"',
    }
    monkeypatch.setitem(GANGS, "gangs", [gang])
    output = invoke(main, "status", "--url", service).output
    assert not {"\x1b", "\x07", "\u202e"} & set(output)
    assert "a\\x1b[2J\\u202e" in output
    assert not any(line.startswith("ml/fake") for line in output.splitlines())


def test_status_as_json_is_what_the_service_says(service: str) -> None:
    assert json.loads(invoke(main, "status", "--url", service, "--json").output) == GANGS


def test_serve_ends_cleanly_on_sigterm_even_without_an_api_server(short_folder: Path) -> None:
    """The API server is away from the start: the service waits for it, shows that, and ends when told."""
    kubeconfig = short_folder / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, users: [{name: u, user: {token: t}}],"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " contexts: [{name: c, context: {cluster: c, user: u}}]}"
    )
    socket = short_folder / "run" / "s"
    process = muster(
        "serve", "--kubeconfig", str(kubeconfig), "--socket", str(socket), "--log-format", "json"
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "watch broke" in line:
            break
    assert "not seen the whole cluster yet" in invoke(main, "status", "--socket", str(socket)).output
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert not socket.exists()
    assert not socket.with_name("s.http").exists()
