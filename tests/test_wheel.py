"""What `pip install muster` brings: the service alone, with the packages that it imports."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from local_cluster.patience import HANG_S

ROOT = Path(__file__).parents[1]
BROUGHT_ALONG = {"protobuf"}
"""Declared for its version alone: `google` has modules of several packages."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])))


def test_it_has_the_service_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    version = importlib.metadata.version("muster")
    assert {name.split("/")[0] for name in names} == {"muster", f"muster-{version}.dist-info"}
    for path in (ROOT / "service" / "muster").rglob("*.*"):
        if "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT / "service")) in names


def test_it_requires_what_it_imports_and_nothing_else(wheel: Path) -> None:
    metadata = importlib.metadata.PathDistribution(zipfile.Path(wheel, _dist_info(wheel)))
    required = {re.split(r"[^\w.-]", line)[0] for line in metadata.requires or ()}
    of_module = importlib.metadata.packages_distributions()
    imported = {name.split(".")[0] for name in _imports(wheel)} - sys.stdlib_module_names - {"muster"}
    providers = {module: {_normal(name) for name in of_module.get(module, ())} for module in imported}
    assert {module for module, names in providers.items() if not names & required} == {"local_cluster"}
    assert required - BROUGHT_ALONG <= set().union(*providers.values())


def test_without_a_checkout_it_places_gangs_and_has_no_test_cluster(wheel: Path) -> None:
    example = str(ROOT / "examples" / "clusters" / "two-racks.yaml")
    gang = str(ROOT / "examples" / "features" / "one-rack.yaml")
    result = _muster(wheel, "place", "-f", example, "-f", gang)
    assert result.returncode == 0, result.stderr
    cluster = _muster(wheel, "cluster", "up")
    assert cluster.returncode == 1
    assert "`muster cluster` is not installed here" in cluster.stderr
    assert "Traceback" not in cluster.stderr


def test_the_image_is_built_without_the_test_cluster() -> None:
    assert "local_cluster" not in (ROOT / "service" / "Dockerfile").read_text()


def _muster(wheel: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `muster` of the wheel. -S leaves out the .pth files, and with them the checkout."""
    path = f"{wheel}:{sysconfig.get_path('purelib')}"
    code = "from muster.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        cwd=wheel.parent,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def _dist_info(wheel: Path) -> str:
    return f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/"


def _imports(wheel: Path) -> set[str]:
    """Return the modules that the wheel's code imports, also inside functions."""
    modules = set[str]()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".py"):
                continue
            for node in ast.walk(ast.parse(archive.read(name))):
                if isinstance(node, ast.Import):
                    modules.update(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    modules.add(node.module)
    return modules


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
