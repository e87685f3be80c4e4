"""Whether this machine can have real nodes, tried out rather than guessed from its name."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache

from local_cluster.real import cgroups, packages

PROGRAMS = {
    "unshare": "util-linux",
    "mount": "util-linux",
    "pivot_root": "util-linux",
    "ip": "iproute2",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
"""Program → the Debian package that has it."""

TRIAL = ("mount -t tmpfs tmpfs /tmp", "ip link add name one type veth peer name two")
PATIENCE_S = 60


@cache
def why_not() -> str:
    """Return why there can be no real nodes here, as a part of a sentence; "" where there can."""
    if platform.system() != "Linux":
        return "they need Linux"
    if os.geteuid() != 0:
        return "they need root (namespaces, mounts, cgroups)"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        owners = sorted({PROGRAMS[name] for name in missing})
        return f"{', '.join(missing)} is not on PATH (Debian: {' '.join(owners)})"
    return _namespaces() or cgroups.why_not() or packages.why_not()


def _namespaces() -> str:
    """Mount something and make a link in namespaces that are gone at once."""
    command = ["unshare", "--mount", "--propagation=private", "--net", "--pid", "--uts", "--fork"]
    try:
        tried = subprocess.run(
            [*command, "sh", "-ec", "; ".join(TRIAL)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"making namespaces took more than {PATIENCE_S} s"
    if tried.returncode == 0:
        return ""
    lines = tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"]
    return f"this machine does not allow namespaces, mounts and links: {lines[-1]}"
