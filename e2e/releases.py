"""The programs of another release: a revision of this repository, unpacked and built next to this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from local_cluster.stack import Programs
from tests.manifests.rendering import REPOSITORY

BUILT_WITHIN_S = 900.0


def programs_of(revision: str, folder: Path) -> Programs:
    """Return shim and service of a revision. The packages are those that are installed now.

    Raises:
        CalledProcessError: git does not know the revision, or its shim can't be built.
    """
    folder.mkdir(parents=True)
    archive = folder / "archive.tar"
    subprocess.run(["git", "archive", f"--output={archive}", revision], cwd=REPOSITORY, check=True)
    subprocess.run(["tar", "--extract", f"--file={archive}"], cwd=folder, check=True)
    built = subprocess.run(
        [sys.executable, "-m", "local_cluster.build", "shim"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=BUILT_WITHIN_S,
        check=True,
    )
    configuration = folder / "scheduler-config" / "scheduler.yaml"
    service = (sys.executable, "-m", "muster.cli")
    shim = Path(built.stdout.split()[-1])
    return Programs(shim, configuration, service, {"PYTHONPATH": str(folder / "service")})
