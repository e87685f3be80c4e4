"""Programs of real nodes that need a C compiler to build: taken from Debian packages, into the cache.

apt verifies them by the distribution's signatures. They are unpacked and not installed: nothing on the
machine changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from local_cluster.places import cache_root

PACKAGES = ("runc", "containernetworking-plugins", "busybox-static")
CNI = "usr/lib/cni"
FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")
"""Where programs are in packages: releases differ."""
CANDIDATE = re.compile(r"^(\S+):\n(?:  .*\n)*?  Candidate: (\S+)$", re.MULTILINE)
PATIENCE_S = 120


class PackagesError(RuntimeError):
    """The packages could not be fetched. The text has what apt or dpkg said."""


def candidates(policy: str) -> dict[str, str]:
    """Package → the version that apt would install, from the output of `apt-cache policy` (pure)."""
    return {name: version for name, version in CANDIDATE.findall(policy) if version != "(none)"}


@cache
def _versions() -> dict[str, str]:
    answer = subprocess.run(
        ["apt-cache", "policy", *PACKAGES],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    return candidates(answer.stdout)


def why_not() -> str:
    """Return which packages apt does not know; "" when it knows all."""
    missing = [name for name in PACKAGES if name not in _versions()]
    return f"apt does not know {', '.join(missing)}: run apt-get update" if missing else ""


def unpacked() -> Path:
    """The folder with the unpacked packages, fetched first when the cache does not have these versions."""
    listed = " ".join(f"{name}={_versions()[name]}" for name in PACKAGES)
    folder = cache_root() / "bin" / f"debian-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(listed.split(), folder)
    return folder


def program(name: str) -> Path:
    """Return the path of a program of the packages."""
    folder = unpacked()
    for place in FOLDERS:
        if (file := folder / place / name).is_file():
            return file
    raise PackagesError(f"{folder} has no program {name}: its package has changed")


def _fetch(packages: list[str], folder: Path) -> None:
    """Unpack next to its place, and move it there when all went well."""
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _run(["apt-get", "download", "-qq", *packages], partial)
        for package in list(partial.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), "."], partial)
            package.unlink()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run(command: list[str], folder: Path) -> None:
    answer = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if answer.returncode != 0:
        tail = "\n".join(answer.stderr.strip().splitlines()[-8:])
        raise PackagesError(f"{' '.join(command)} failed (exit {answer.returncode}):\n{tail}")
