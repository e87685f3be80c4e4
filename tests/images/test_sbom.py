"""The lists of what the images hold, and whether they can be built for another architecture."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from checks.sbom import DOCKERFILE, REPOSITORY, left_out, of_shim
from local_cluster.build import binary
from local_cluster.toolchain import find_go


@pytest.mark.go
@pytest.mark.slow
def test_the_modules_of_the_shim_have_checksums_and_licences(tmp_path: Path) -> None:
    """Every module that Go names of the binary is there, and so is what its replacement says."""
    go = find_go()
    info = [str(go), "version", "-m", str(binary("shim"))]
    lines = subprocess.run(info, capture_output=True, text=True, check=True).stdout.splitlines()
    modules = {fields[1] for fields in map(str.split, lines) if fields[:1] == ["dep"]}
    components = json.loads(of_shim(tmp_path).read_text())["components"]
    assert {component["name"] for component in components} == modules
    assert "k8s.io/kubernetes" in modules
    for component in components:
        assert [checksum["alg"] for checksum in component["hashes"]] == ["SHA-256"], component["name"]
        assert component["evidence"]["licenses"], component["name"]


def test_what_the_images_leave_out_is_read_from_the_dockerfile() -> None:
    text = DOCKERFILE.read_text()
    assert left_out(text, "service") == ["--no-install-package=pandas"]
    assert "--no-install-package=ortools" in left_out(text, "node-agent")
    with pytest.raises(ValueError, match="other-environment"):
        left_out(text, "other")


@cache
def _packages() -> list[dict[str, Any]]:
    """Return the packages of uv.lock. One name may stand there twice, for two versions of Python."""
    packages: list[dict[str, Any]] = tomllib.loads((REPOSITORY / "uv.lock").read_text())["package"]
    return packages


def _of_the_service() -> list[str]:
    """Return the names of the packages that the image of the service holds."""
    names, visited = ["muster"], {"pandas"}
    while names:
        if (name := names.pop()) not in visited:
            visited.add(name)
            needs = [package.get("dependencies", ()) for package in _packages() if package["name"] == name]
            names += [package["name"] for listed in needs for package in listed]
    return sorted(visited - {"pandas", "muster"})


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_there_is_a_wheel_of_every_package_for_both_architectures(machine: str) -> None:
    fits = re.compile(rf"-any\.whl|(cp311-cp311|abi3)-manylinux\w*_{machine}|-cp311-manylinux.*_{machine}")
    have = {
        package["name"]
        for package in _packages()
        if any(fits.search(wheel["url"].rpartition("/")[2]) for wheel in package.get("wheels", ()))
    }
    assert "ortools" in have
    assert [name for name in _of_the_service() if name not in have] == []
