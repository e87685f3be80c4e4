"""Find what is left of Muster on a cluster: objects of each kind that its manifests or its replicas make."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.manifests.everything import everything

AT_RUN_TIME = (("", "Pod"), ("coordination.k8s.io", "Lease"), ("resource.k8s.io", "DeviceTaintRule"))
"""API group and kind of what no manifest has: what replicas and users make while Muster runs."""
LABEL = "app.kubernetes.io/part-of=muster"

Kubectl = Callable[..., str]
"""Run kubectl with these arguments, and return what it prints."""


def kinds() -> set[tuple[str, str]]:
    """Return group and kind of all that Muster's manifests can make, and of what comes at run time."""
    with tempfile.TemporaryDirectory() as folder:
        manifests = everything(Path(folder))
    return {(_group(item["apiVersion"]), item["kind"]) for item in manifests} | {*AT_RUN_TIME}


def _group(version: str) -> str:
    return version.rpartition("/")[0]


def resources(kubectl: Kubectl, kinds_listed: set[tuple[str, str]]) -> list[str]:
    """Return the names by which kubectl knows these kinds, as far as the API server serves them."""
    names = set()
    for line in kubectl("api-resources", "--verbs=list", "--no-headers").splitlines():
        plural, *_, version, _, kind = line.split()
        if (group := _group(version), kind) in kinds_listed:
            names.add(f"{plural}.{group}" if group else plural)
    return sorted(names)


def left(kubectl: Kubectl) -> list[str]:
    """Return the objects of these kinds that have Muster's name in their own, or its label."""
    arguments = ("get", ",".join(resources(kubectl, kinds())), "--all-namespaces", "--output=name")
    names = {line for line in kubectl(*arguments).splitlines() if "muster" in line}
    return sorted(names | {*kubectl(*arguments, f"--selector={LABEL}").splitlines()})
