"""A plugin of pytest: hide the modules that the service's image lacks.  pytest -p tests.images.left_out …"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LEFT_OUT = REPOSITORY / "service/image/left-out.txt"
DOCKERFILE = REPOSITORY / "service/Dockerfile"


def modules() -> list[str]:
    """Patterns of the names of modules that the service's image lacks."""
    service = next(line for line in DOCKERFILE.read_text().splitlines() if line.startswith("ENV LEFT_OUT="))
    packages = re.findall(r"--no-install-package=([\w-]+)", service)
    paths = [line for line in LEFT_OUT.read_text().splitlines() if line and not line.startswith("#")]
    return [*packages, *(path.replace("/", r"\.").replace("*", r"\w*") for path in paths)]


class Absent(MetaPathFinder):
    """Find nothing, loudly, for a module that the image lacks."""

    def __init__(self) -> None:
        self._names = re.compile(rf"({'|'.join(modules())})(\.|$)")

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        """Raise ImportError for a module that the image lacks; leave others to the next finder."""
        if self._names.match(fullname):
            raise ModuleNotFoundError(f"the image has no {fullname}", name=fullname)


def pytest_configure() -> None:
    """Hide them, before the first test module is imported."""
    loaded = [name for name in sys.modules if Absent()._names.match(name)]
    assert not loaded, f"loaded before it could be hidden: {loaded}"
    sys.meta_path.insert(0, Absent())
