"""Render all that the manifests can make: the chart with every option, kustomize with every component."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.manifests.comparing import made
from tests.manifests.helm import template
from tests.manifests.rendering import SCHEDULER_CONFIG, Manifest

EVERY_OPTION: dict[str, Any] = {
    "podGroups.crd": True,
    "page.tokens": True,
    "nodeAgent.enabled": True,
    "metrics.serviceMonitor.enabled": True,
    "metrics.dashboards.enabled": True,
    "draGuard.drivers": ["gpu.nvidia.com"],
    "networkPolicy.enabled": True,
    "metrics.alerts.enabled": True,
    "policies": {"topologyAwareScheduling": {"levels": [{"name": "row", "label": "example.com/row"}]}},
    "service.settings": {"log": {"level": "debug"}},
}
"""Values with which the chart makes all of its objects."""


def components() -> list[str]:
    """Return the folders of scheduler-config/ that are components which the base does not include."""
    base = yaml.safe_load((SCHEDULER_CONFIG / "kustomization.yaml").read_text())
    files = sorted(SCHEDULER_CONFIG.glob("*/kustomization.yaml"))
    folders = [file.parent.name for file in files if yaml.safe_load(file.read_text())["kind"] == "Component"]
    return [name for name in folders if name not in base["components"]]


def everything(folder: Path) -> list[Manifest]:
    """Return the objects of the chart with every option, and of an overlay with every component."""
    return template(EVERY_OPTION) + made(folder, *components())
