"""Write what the images hold, as CycloneDX: make sbom

    python -m checks.sbom FOLDER

Of the Python images it lists the packages of uv.lock that service/Dockerfile installs; of the shim, the Go
modules that its binary names, by cyclonedx-gomod. Debian packages come with the base images and are not
listed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from local_cluster.build import binary
from local_cluster.toolchain import find_go, go_environment

REPOSITORY = Path(__file__).resolve().parents[1]
UV = REPOSITORY / ".tools/uv/bin/uv"
DOCKERFILE = REPOSITORY / "service/Dockerfile"
GO_TOOL = REPOSITORY / "shim/sbom"
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
    """Write down the Go modules that the shim's binary names, and the licences found in each.

    Without a version of the shim itself, the tool would leave out licences of other modules. It warns that no
    proxy has the shim.
    """
    go, written = find_go(), folder / "muster-shim.cdx.json"
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    options = (
        "-json",
        "-licenses",
        "-noserial",
        "-notimestamp",
        f"-version=v{version}",
        f"-output={written}",
    )
    subprocess.run(
        [str(go), "tool", "cyclonedx-gomod", "bin", *options, str(binary("shim"))],
        cwd=GO_TOOL,
        env=go_environment(go),
        check=True,
    )
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
