"""Run helm, in the version of local_cluster/go/helm/go.mod (docs/decisions/0006 says why)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from local_cluster.build import binary
from tests.manifests.rendering import REPOSITORY, Manifest

CHART = REPOSITORY / "charts" / "muster"
NAMESPACE = "muster-system"


class HelmError(Exception):
    """helm ended with an error; the message is what it printed."""


def helm(*arguments: str, home: Path | None = None) -> str:
    """Return what helm prints. `home` holds its caches and settings, so that those of the user do not count.

    Raises:
        HelmError: if helm refuses the chart, the values or the command.
    """
    home = home or Path("no-home")
    homes = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    answer = subprocess.run(
        [str(binary("helm")), *arguments],
        env=os.environ | homes,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        raise HelmError(f"{answer.stderr}{answer.stdout}".strip())
    return answer.stdout


def template(values: dict[str, Any] | None = None, namespace: str = NAMESPACE) -> list[Manifest]:
    """Return the objects that `helm install` would create with these values."""
    text = helm("template", "muster", str(CHART), "--namespace", namespace, *given(values))
    return [document for document in yaml.safe_load_all(text) if document]


def given(values: dict[str, Any] | None) -> list[str]:
    """Return the options that give these values to helm."""
    return [f"--set-json={key}={json.dumps(value)}" for key, value in (values or {}).items()]
