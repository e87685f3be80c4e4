"""The service works without what its image leaves out: the same tests, with those modules hidden."""

from __future__ import annotations

import subprocess
import sys

import pytest

from local_cluster.patience import HANG_S
from tests.images.left_out import REPOSITORY, modules

SOLVES = "tests/placement/test_traps.py"
CONNECTS = "tests/adapters/test_kube_client.py"
PLACES = "tests/files/test_place.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("tests", [SOLVES, CONNECTS, PLACES])
def test_it_works_without_what_the_image_leaves_out(tests: str) -> None:
    done = _run("-m", "pytest", "-q", "-x", "-p", "tests.images.left_out", "-p", "no:cacheprovider", tests)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("module", ["pandas", "kubernetes.client.models.v1_pod", "numpy.f2py"])
def test_the_plugin_hides_modules(module: str) -> None:
    """The test above can fail."""
    code = f"from tests.images import left_out; left_out.pytest_configure(); import {module}.x"
    assert f"the image has no {module}" in _run("-c", code).stderr


def test_cp_sat_leaves_pandas_alone() -> None:
    """A program that imports Muster and pandas gets the real pandas."""
    code = (
        "import sys; from muster.placement.model.solver import cp_model; assert 'pandas' not in sys.modules; "
        "import pandas; assert pandas.Series([1, 2]).sum() == 3"
    )
    assert _run("-c", code).returncode == 0


def test_all_that_is_left_out_has_a_name() -> None:
    assert {"pandas", r"kubernetes\.client\.models\.[a-z]\w*", r"numpy\.\w*\.tests"} <= {*modules()}
