"""The lists of what the images hold, and whether they can be built for another architecture."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from checks.sbom import DOCKERFILE, REPOSITORY, go_modules, left_out

BUILD_INFO = """\
/shim: go1.26.3
\tpath\tmuster.dev/shim
\tmod\tmuster.dev/shim\t(devel)\t
\tdep\tk8s.io/kubernetes\tv1.37.1\th1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=
\tdep\texample.com/old\tv1.0.0
\t=>\texample.com/new\tv2.0.0\th1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=
\tbuild\t-compiler=gc
"""


def test_the_modules_of_a_binary() -> None:
    """Replaced modules are named as what they are; `mod` and `build` are no modules that were fetched."""
    modules = go_modules(BUILD_INFO)
    assert [module["purl"] for module in modules] == [
        "pkg:golang/example.com/new@v2.0.0",
        "pkg:golang/k8s.io/kubernetes@v1.37.1",
    ]
    assert modules[1]["hashes"] == [{"alg": "SHA-256", "content": bytes(range(32)).hex()}]


def test_what_the_images_leave_out_is_read_from_the_dockerfile() -> None:
    text = DOCKERFILE.read_text()
    assert left_out(text, "service") == ["--no-install-package=pandas"]
    assert "--no-install-package=ortools" in left_out(text, "node-agent")
    with pytest.raises(ValueError, match="other-environment"):
        left_out(text, "other")


def _packages() -> list[dict[str, Any]]:
    """Return the packages of uv.lock. One name may stand there twice, for two versions of Python."""
    found: list[dict[str, Any]] = tomllib.loads((REPOSITORY / "uv.lock").read_text())["package"]
    return found


def _of_the_service() -> list[str]:
    """Return the names of the packages that the image of the service holds."""
    wanted, seen = ["muster"], {"pandas"}
    while wanted:
        if (name := wanted.pop()) not in seen:
            seen.add(name)
            needs = [package.get("dependencies", ()) for package in _packages() if package["name"] == name]
            wanted += [needed["name"] for listed in needs for needed in listed]
    return sorted(seen - {"pandas", "muster"})


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
