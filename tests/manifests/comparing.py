"""Compare what kustomize and helm make: the same objects, but for what each tool adds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from tests.manifests.rendering import SCHEDULER_CONFIG, Manifest, render

LABELS = {
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/instance",
    "helm.sh/chart",
}
CHECKSUM = "checksum/configuration"


def comparable(objects: list[Manifest]) -> dict[str, Manifest]:
    """Return the objects by kind, namespace and name, without what only one of the two tools adds."""
    by_name = {}
    for item in json.loads(json.dumps(objects)):
        metadata = item["metadata"]
        labels = {key: value for key, value in metadata.pop("labels", {}).items() if key not in LABELS}
        if labels:
            metadata["labels"] = labels
        if item["kind"] == "ConfigMap":
            metadata["name"] = "-".join(metadata["name"].split("-")[:2])
            item["data"] = {key: yaml.safe_load(text) for key, text in item["data"].items()}
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]
            pod["metadata"]["annotations"].pop(CHECKSUM, None)
            pod["metadata"]["labels"] = {"app.kubernetes.io/name": "muster"}
            for volume in pod["spec"]["volumes"]:
                if "configMap" in volume:
                    volume["configMap"]["name"] = "muster-scheduler"
        by_name[f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}"] = item
    return by_name


def overlay(folder: Path, *components: str, patches: list[Any] | None = None) -> dict[str, Manifest]:
    """Return what can be compared of scheduler-config/ with these of its components and patches."""
    return comparable(made(folder, *components, patches=patches))


def made(folder: Path, *components: str, patches: list[Any] | None = None) -> list[Manifest]:
    """Return the objects of scheduler-config/ with these of its components and patches."""
    folder = folder / "overlay"
    folder.mkdir()
    base = os.path.relpath(SCHEDULER_CONFIG, folder)
    files = {
        "resources": [base],
        "components": [f"{base}/{name}" for name in components],
        "patches": patches or [],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(files))
    return render(folder)
