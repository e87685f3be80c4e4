"""The cgroups of a real node: made before its kubelet starts, and removed when all its processes are gone.

Version 1 has a tree for each controller, version 2 has one for all; a machine may have both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from local_cluster.processes import ProcessError

MOUNTS = Path("/proc/self/mounts")
NEEDED = ("cpu", "cpuset", "memory", "pids")
"""Controllers without which a kubelet does not start."""
POLL_EVERY_S = 0.05
CPUSET = ("cpuset.cpus", "cpuset.mems")


def trees(mounts: str) -> list[Path]:
    """Return the roots of the cgroup trees in a mount table (pure)."""
    mount_points = [line.split()[1:3] for line in mounts.splitlines()]
    return [Path(path) for path, kind in mount_points if kind in ("cgroup", "cgroup2")]


def why_not() -> str:
    """Return what the kubelet would miss in the cgroups of this machine; "" when it misses nothing."""
    controllers: set[str] = set()
    for tree in trees(MOUNTS.read_text()):
        controllers |= _controllers(tree)
        if not os.access(tree, os.W_OK):
            return f"{tree} can't be written"
    missing = [name for name in NEEDED if name not in controllers]
    return f"the cgroup controllers {', '.join(missing)} are missing" if missing else ""


def make(name: str) -> None:
    """Make the cgroup in each tree, with what the kubelet needs in it."""
    for tree in trees(MOUNTS.read_text()):
        switch = tree / "cgroup.subtree_control"
        if switch.is_file():
            controllers = _controllers(tree).intersection(NEEDED) - set(switch.read_text().split())
            switch.write_text(" ".join(f"+{controller}" for controller in sorted(controllers)))
        (tree / name).mkdir(exist_ok=True)
        if not switch.is_file() and (tree / CPUSET[0]).is_file():
            for file in CPUSET:  # a new cgroup of version 1 has no processors
                (tree / name / file).write_text((tree / file).read_text())


def _controllers(tree: Path) -> set[str]:
    """Version 2 lists them in a file; in version 1 the folder has their names."""
    listed = tree / "cgroup.controllers"
    return set(listed.read_text().split()) if listed.is_file() else set(tree.name.split(","))


def named(prefix: str) -> set[str]:
    """Return the names of the topmost cgroups that begin so."""
    return {path.name for tree in trees(MOUNTS.read_text()) for path in tree.glob(f"{prefix}*")}


def remove(name: str, within_s: float) -> None:
    """Remove the cgroup and those in it, in each tree.

    A process that has just ended is counted for a moment, so it is tried until the time is over.

    Raises:
        ProcessError: one still has processes.
    """
    until = time.monotonic() + within_s
    folders = list(_inner_first(name))
    while folders:
        folders = [folder for folder in folders if not _removed(folder)]
        if folders and time.monotonic() > until:
            raise ProcessError(f"cgroup {folders[0]} can't be removed: a process is still in it")
        if folders:
            time.sleep(POLL_EVERY_S)


def _inner_first(name: str) -> Iterator[Path]:
    for tree in trees(MOUNTS.read_text()):
        for folder, _, _ in os.walk(tree / name, topdown=False):
            yield Path(folder)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
