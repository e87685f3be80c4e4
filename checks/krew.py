"""Make the plugin kubectl gpu-topology for krew: its archive, and the manifest that has the archive's digest.

    python -m checks.krew FOLDER

The archive has one program: the part of the package that asks a service, which needs Python and no other
package. The same code gives the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MANIFEST = REPOSITORY / "krew" / "gpu-topology.yaml"
PROGRAM = "kubectl-gpu_topology"
PACKAGE = REPOSITORY / "service" / "muster"
PARTS = (
    "__init__.py",
    "questions.py",
    "command_line.py",
    "adapters/__init__.py",
    "adapters/asking",
    "domain",
)
"""What the plugin imports of the package. The rest needs packages that krew does not install."""
MAIN = "from muster.questions import main\n\nmain()\n"
SHEBANG = b"#!/usr/bin/env python3\n"
BEGAN = (1980, 1, 1, 0, 0, 0)


def main() -> int:
    """Write both files, and return the exit status."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    packed = archive()
    (folder / "gpu-topology.tar.gz").write_bytes(packed)
    (folder / "gpu-topology.yaml").write_text(manifest(packed))
    print(
        f"kubectl krew install --manifest={folder}/gpu-topology.yaml --archive={folder}/gpu-topology.tar.gz"
    )
    return 0


def manifest(packed: bytes) -> str:
    """Return the manifest of an archive."""
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    head, _, text = MANIFEST.read_text().partition("apiVersion:")
    assert head.startswith("#")
    digest = hashlib.sha256(packed).hexdigest()
    return f"apiVersion:{text.replace('VERSION', version).replace('SHA256', digest)}"


def archive() -> bytes:
    """Return the archive of the program and the licence."""
    files = {PROGRAM: (program(), 0o755), "LICENSE": ((REPOSITORY / "LICENSE").read_bytes(), 0o644)}
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name, (body, mode) in files.items():
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(body), mode
            tar.addfile(about, io.BytesIO(body))
    return packed.getvalue()


def program() -> bytes:
    """Return one executable file that Python runs: a zip archive with a first line for the system."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted({"__main__.py": MAIN, **_modules()}.items()):
            archive.writestr(zipfile.ZipInfo(name, BEGAN), text, zipfile.ZIP_DEFLATED)
    return SHEBANG + file.getvalue()


def _modules() -> Mapping[str, str]:
    return {f"muster/{path.relative_to(PACKAGE).as_posix()}": path.read_text() for path in _paths()}


def _paths() -> Iterator[Path]:
    for part in PARTS:
        path = PACKAGE / part
        yield from sorted(path.rglob("*.py")) if path.is_dir() else (path,)


if __name__ == "__main__":
    sys.exit(main())
