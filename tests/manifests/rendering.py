"""kustomize, as a Go tool of the version in kustomize/go.mod (docs/decisions/0006 says why)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from local_cluster.toolchain import find_go, go_environment

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEDULER_CONFIG = REPOSITORY / "scheduler-config"
_MODULE = Path(__file__).resolve().parent / "kustomize"

Manifest = dict[str, Any]


def render(folder: Path) -> list[Manifest]:
    """The objects that `kubectl apply -k folder` would apply, in its order."""
    go = find_go()
    answer = subprocess.run(
        [str(go), "tool", "kustomize", "build", str(folder.absolute())],
        cwd=_MODULE,
        env=go_environment(go),
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        raise RuntimeError(f"kustomize build {folder}: {answer.stderr.strip()}")
    return [document for document in yaml.load_all(answer.stdout, yaml.CSafeLoader) if document]


def one(objects: list[Manifest], kind: str, name: str) -> Manifest:
    """The object of that kind and name; of a generated ConfigMap, the name before the hash."""
    of_kind = {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}
    if name in of_kind:
        return of_kind[name]
    hashed = [item for full, item in of_kind.items() if full.startswith(f"{name}-")]
    if len(hashed) != 1:
        raise LookupError(f"{kind} {name} is not one of {sorted(of_kind)}")
    return hashed[0]
