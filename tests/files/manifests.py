"""Manifests for these tests, as users write them, and the command on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from muster.cli import main
from muster.placement.limits import PHASES
from tests.command import Result, invoke

Object = dict[str, Any]

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
DEMO = Path(__file__).parent / "data" / "demo-cluster.json"
"""Captured by `muster capture` from the demo's cluster: GPUs 0, 3 and 6 of v100-2 and v100-3 are taken."""

GPU = "nvidia.com/gpu"


def node(name: str, gpus: int = 4, rack: str = "r1", **more: Any) -> Object:
    """A node whose GPUs one switch joins."""
    labels = {
        "kubernetes.io/hostname": name[:63],
        "topology.kubernetes.io/rack": rack,
        "nvidia.com/nvswitch.present": "true",
        "nvidia.com/nvlink.version": "4",
    }
    allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | more.pop("labels", {})},
        "status": {"allocatable": allocatable},
        **more,
    }


def spec(gpus: int = 1, **more: Any) -> Object:
    containers = [{"name": "main", "image": "secret/image", "resources": {"limits": {GPU: gpus}}}]
    return {"schedulerName": "muster", "containers": containers, **more}


def pod(name: str, gang: str = "", of: int = 0, gpus: int = 1, **more: Any) -> Object:
    """A pod; `more` goes into its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels(gang, of)},
        "spec": spec(gpus, **more),
    }


def gang(name: str, of: int, gpus: int = 1, **more: Any) -> list[Object]:
    return [pod(f"{name}-{i}", name, of, gpus, **more) for i in range(of)]


def labels(gang: str, of: int) -> dict[str, str]:
    return {"gpu-topology": gang, "gpu-topology-replica": str(of)} if gang else {}


def template(gang: str = "", of: int = 0, gpus: int = 1) -> Object:
    return {"metadata": {"labels": labels(gang, of)}, "spec": spec(gpus)}


def controller(kind: str, version: str, name: str, /, **fields: Any) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": fields}


def write(folder: Path, *objects: Object, name: str = "all.yaml") -> str:
    """A file of several documents."""
    path = folder / name
    path.write_text(yaml.safe_dump_all(objects, sort_keys=False))
    return str(path)


def place(*arguments: str, stdin: str | None = None) -> Result:
    return invoke(main, "place", *arguments, stdin=stdin)


def decisions(*arguments: str, stdin: str | None = None) -> Object:
    """What `-o json` says, timings left out."""
    result = place(*arguments, "-o", "json", stdin=stdin)
    assert result.exit_code in {0, 3, 4}, result.output
    read: Object = json.loads(result.stdout)
    for gang_shown in read["gangs"]:
        assert set(gang_shown.pop("timings_ms")) <= {"place", *PHASES}
    return read


def spots(gang_shown: Object) -> dict[str, str]:
    """pod → "node:0,1" of one gang."""
    return {
        m["pod"]: f"{m['node']}:{','.join(map(str, m['gpus']))}" for m in gang_shown["members"] if m["node"]
    }


def nodes_of(answer: Object) -> dict[str, str | None]:
    """pod → node, of all gangs."""
    return {member["pod"]: member["node"] for gang in answer["gangs"] for member in gang["members"]}
