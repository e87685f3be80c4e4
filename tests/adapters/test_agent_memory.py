"""The memory of the node agent's process: what it does not import, and what it gives back."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from local_cluster.patience import HANG_S

NEVER = {
    *("aiohttp", "click", "google", "kubernetes", "numpy", "opentelemetry", "ortools", "prometheus_client"),
    *("rich", "structlog", "typer", "yaml", "muster.app", "muster.gangs", "muster.placement"),
}
IMPORTED = f"""
import sys
import muster.cli
import muster.adapters.agent.process, muster.adapters.agent.nvml
print(sorted({NEVER!r} & sys.modules.keys()), bool(sys.modules["pydantic"]))
"""
GIVEN_BACK = """
import re
from pathlib import Path
from muster import administration
from muster.adapters.agent import process as agent

def resident_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

blocks = [b"%d" % number * 256 for number in range(20_000)]
blocks = blocks[-1]  # the last one keeps the C library from shrinking its heap by itself
before = resident_mib()
agent.source_of = agent.ApiAccess.of_pod = agent.ApiServer = lambda *_: None
agent.serve = lambda *_: print(before - resident_mib())
administration.node_agent("n")
"""


def said(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
        env=environment,
    )
    return done.stdout.strip()


def test_it_imports_nothing_of_the_service_that_it_does_not_need() -> None:
    assert said(IMPORTED) == "[] False"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to give memory back")
def test_before_it_serves_it_gives_back_what_is_free() -> None:
    assert int(said(GIVEN_BACK)) > 10
