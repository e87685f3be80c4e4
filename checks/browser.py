"""Install Chromium for the tests of the page, where this machine lets us, and say so where it does not.

    python -m checks.browser        `make browser`

It is installed by apt-get, as root: on Debian, and in containers of it. Whatever goes wrong, the exit status
is 0: without a browser its tests are skipped, or fail if MUSTER_BROWSER demands one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

from benchmarks.page.browser import INSTALL, NAMES

LIMIT_S = 300.0
"""For the lists of packages, and again for the packages. A network that drops packets would take hours."""
Run = Callable[[Sequence[str]], None]


class CantInstall(Exception):
    """The text says why not."""


def main(run: Run | None = None) -> int:
    """Install it if it is missing, and return 0."""
    if any(map(shutil.which, NAMES)):
        return 0
    try:
        _install(run or _run)
    except CantInstall as why:
        print(f"no browser, so the tests of the page are skipped: {why}. As root on Debian: {INSTALL}")
        print(f"Elsewhere put {' or '.join(NAMES)} on PATH.")
    return 0


def _install(run: Run) -> None:
    """Install the package.

    Raises:
        CantInstall: this machine does not let us, or it failed.
    """
    if shutil.which("apt-get") is None:
        raise CantInstall("there is no apt-get")
    if os.geteuid() != 0:
        raise CantInstall("apt-get needs root")
    print(f"no browser for the tests of the page: {INSTALL}", flush=True)
    run(["apt-get", "update", "-qq"])
    run([*INSTALL.split(), "-y", "-qq"])
    if not any(map(shutil.which, NAMES)):
        raise CantInstall("apt-get installed no browser")


def _run(command: Sequence[str]) -> None:
    """Run a command without output.

    Raises:
        CantInstall: it failed, or took too long.
    """
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except subprocess.TimeoutExpired:
        raise CantInstall(f"{command[0]} {command[1]} took more than {LIMIT_S:g} s") from None
    except subprocess.CalledProcessError as failed:
        last = (failed.stderr.strip() or "no reason given").splitlines()[-1]
        raise CantInstall(f"{command[0]} {command[1]}: {last}") from None


if __name__ == "__main__":
    sys.exit(main())
