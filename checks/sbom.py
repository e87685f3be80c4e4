"""Write what the images hold, as CycloneDX: make sbom

    python -m checks.sbom FOLDER

Of the Python images it lists the packages of uv.lock that service/Dockerfile installs; of the shim, the Go
modules that its binary names. Debian packages come with the base images and are not listed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from local_cluster.build import binary
from local_cluster.toolchain import find_go, go_environment

REPOSITORY = Path(__file__).resolve().parents[1]
UV = REPOSITORY / ".tools/uv/bin/uv"
DOCKERFILE = REPOSITORY / "service/Dockerfile"
VALIDATE = """\
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(str(problem) if problem else 0)
"""


def left_out(dockerfile: str, image: str) -> list[str]:
    """Return the options of uv that keep packages out of an image."""
    stage = re.search(rf"(?ms)^FROM build AS {image}-environment$.*?^ENV LEFT_OUT=\"([^\"]*)\"", dockerfile)
    if stage is None:
        raise ValueError(f"service/Dockerfile: the stage {image}-environment has no ENV LEFT_OUT")
    return stage[1].split()


def go_modules(build_info: str) -> list[dict[str, Any]]:
    """Return the components of what `go version -m` prints: the modules, with replacements put in."""
    found: list[tuple[str, str, str]] = []
    for fields in (line.split() for line in build_info.splitlines()):
        if fields[:1] == ["dep"]:
            found.append((fields[1], fields[2], fields[3] if len(fields) > 3 else ""))
        elif fields[:1] == ["=>"]:
            found[-1] = (fields[1], fields[2], fields[3] if len(fields) > 3 else "")
    return [_go_module(*module) for module in sorted(found)]


def _go_module(path: str, version: str, checksum: str) -> dict[str, Any]:
    purl = f"pkg:golang/{path}@{version}"
    component = {"type": "library", "bom-ref": purl, "name": path, "version": version, "purl": purl}
    if not checksum.startswith("h1:"):
        return component
    return component | {
        "hashes": [{"alg": "SHA-256", "content": base64.b64decode(checksum.removeprefix("h1:")).hex()}]
    }


def _uv(*arguments: str | Path, environment: Path | None = None) -> None:
    variables = os.environ | ({"UV_PROJECT_ENVIRONMENT": str(environment)} if environment else {})
    subprocess.run([str(UV), *map(str, arguments)], cwd=REPOSITORY, env=variables, check=True)


def of_python(image: str, folder: Path) -> Path:
    """Install the image's packages into a folder, and write down what is there."""
    environment, written = folder / f"{image}-environment", folder / f"muster-{image}.cdx.json"
    options = left_out(DOCKERFILE.read_text(), image)
    _uv("sync", "--quiet", "--frozen", "--no-dev", "--no-editable", *options, environment=environment)
    _uv(
        "run", "--quiet", "--frozen", "--isolated", "--only-group=sbom", "cyclonedx-py", "environment",
        environment / "bin/python", "--pyproject", "pyproject.toml", "--mc-type", "application",
        "--output-reproducible", "--output-file", written,
    )  # fmt: skip
    return written


def of_shim(folder: Path) -> Path:
    """Write down the Go modules of the shim."""
    go = find_go()
    info = subprocess.run(
        [str(go), "version", "-m", str(binary("shim"))],
        env=go_environment(go),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    content = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "muster-shim", "name": "muster-shim"}},
        "components": go_modules(info),
    }
    written = folder / "muster-shim.cdx.json"
    written.write_text(json.dumps(content, indent=2) + "\n")
    return written


def validate(written: Path) -> None:
    """Hold a file against CycloneDX' own schema; end the program if it does not fit."""
    _uv("run", "--quiet", "--frozen", "--isolated", "--only-group=sbom", "python", "-c", VALIDATE, written)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one file for each image, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="where the files go")
    folder = parser.parse_args(arguments).folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for written in (of_python("service", folder), of_python("node-agent", folder), of_shim(folder)):
            validate(written)
            print(f"{written}: {len(json.loads(written.read_text())['components'])} components")
    except subprocess.CalledProcessError as problem:
        print(
            f"error: {Path(problem.cmd[0]).name} failed (exit {problem.returncode}), see above",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
