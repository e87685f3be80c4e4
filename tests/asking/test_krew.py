"""The plugin for krew: its manifest keeps krew's rules, and its archive runs on a bare Python."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from checks import krew
from local_cluster.patience import HANG_S

OPERATORS = {"In", "NotIn", "Exists", "DoesNotExist"}
OS = {"linux", "darwin", "windows"}


@pytest.fixture(scope="module")
def packed() -> bytes:
    return krew.archive()


@pytest.fixture(scope="module")
def manifest(packed: bytes) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(krew.manifest(packed))
    return read


@pytest.fixture(scope="module")
def installed(packed: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which krew unpacks the archive."""
    folder = tmp_path_factory.mktemp("plugin")
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_the_manifest_keeps_the_rules_of_krew(manifest: dict[str, Any]) -> None:
    """What `krew` checks before it installs: the package internal/index/validation of its sources."""
    assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest["kind"] == "Plugin"
    assert manifest["metadata"] == {"name": krew.MANIFEST.stem}
    assert re.fullmatch(r"[\w-]+", manifest["metadata"]["name"])
    spec = manifest["spec"]
    assert spec.keys() <= {"version", "shortDescription", "description", "caveats", "homepage", "platforms"}
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert spec["shortDescription"]
    assert "\n" not in spec["shortDescription"]
    assert spec["platforms"]
    for platform in spec["platforms"]:
        assert platform.keys() == {"uri", "sha256", "bin", "files", "selector"}
        assert platform["uri"].startswith("https://")
        assert re.fullmatch(r"[a-f0-9]{64}", platform["sha256"])
        assert platform["files"]
        assert all(file.keys() == {"from", "to"} and all(file.values()) for file in platform["files"])
        assert platform["selector"].keys() == {"matchExpressions"}
        for expression in platform["selector"]["matchExpressions"]:
            assert expression["key"] in ("os", "arch")
            assert expression["operator"] in OPERATORS
            assert set(expression["values"]) <= OS


def test_the_manifest_is_of_its_archive(manifest: dict[str, Any], packed: bytes, installed: Path) -> None:
    (platform,) = manifest["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(packed).hexdigest()
    assert {file["from"] for file in platform["files"]} == {path.name for path in installed.iterdir()}
    assert os.access(installed / platform["bin"], os.X_OK)
    name = manifest["metadata"]["name"].replace("-", "_")
    assert platform["bin"] == f"kubectl-{name}", "kubectl finds the plugin by this name"
    assert krew.archive() == packed, "the same code gives the same bytes"


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program without any package but those of Python itself."""
    bare = [sys.executable, "-I", "-S", str(installed / krew.PROGRAM)]
    return subprocess.run([*bare, *arguments], capture_output=True, text=True, check=False, timeout=HANG_S)


@pytest.mark.parametrize("command", ["why", "explain", "trace", "gangs", "free", "nodes"])
def test_the_program_runs_on_a_bare_python(installed: Path, command: str) -> None:
    about = run(installed, command, "--help")
    assert about.returncode == 0, about.stderr
    name = ("g",) if command in ("why", "explain", "trace") else ()
    result = run(installed, command, *name, "--url", "http://127.0.0.1:1")
    assert result.returncode == 1
    assert "the service at http://127.0.0.1:1 does not answer" in result.stderr
    assert "Traceback" not in result.stderr


def test_what_it_can_not_do_is_said(installed: Path, nodes: str) -> None:
    for arguments in (("gangs", "--no-service"), ("nodes", "--url", nodes, "-o", "yaml")):
        result = run(installed, *arguments)
        assert result.returncode == 1
        assert "needs Muster's whole package" in result.stderr
        assert "Traceback" not in result.stderr


def test_it_prints_what_the_service_says(installed: Path, nodes: str) -> None:
    shown = run(installed, "nodes", "--url", nodes)
    assert (shown.returncode, shown.stdout.split()[:2]) == (0, ["NODE", "MODEL"]), shown.stderr
    assert run(installed, "nodes", "--url", nodes, "-o", "json").stdout == "[]\n"


@pytest.fixture
def nodes() -> Iterator[str]:
    """The address of a service without nodes."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"nodes": []}')

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
