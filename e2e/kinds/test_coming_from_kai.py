"""A KAI user moves a job as docs/coming-from.md says: by the page's commands.

The manifests are those of KAI's own docs, read from KAI-Scheduler's Go module (v0.12.0, Apache License 2.0).
Only schedulerName changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e import objects
from e2e.arena import Arena
from e2e.kinds.jobs import Jobs
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.modules import folder
from local_cluster.patience import HANG_S
from tests.manifests.rendering import REPOSITORY

PAGE = REPOSITORY / "docs" / "coming-from.md"
STEPS = "### The way there, and back"
ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
NODES = {"a": ("z1", "r1"), "b": ("z1", "r1"), "c": ("z1", "r2"), "d": ("z2", "r3"), "e": ("z2", "r3")}
"""As the example of KAI's docs: one GPU in each node. Three are free in zone z1 alone."""


def node(name: str) -> Object:
    zone, rack = NODES[name]
    body = objects.node(name, gpus=0, labels={ZONE: zone, RACK: rack})
    for part in body["status"].values():
        part["nvidia.com/gpu"] = "1"
    return body


def published(path: str) -> str:
    return (folder("kai") / "docs" / path).read_text()


def with_a_topology() -> str:
    """Return the Job that KAI's page on topologies shows, with a pod template in the place of its comment."""
    page = published("topology/README.md")
    (job,) = (block for block in page.split("```yaml\n") if "name: distributed-training" in block)
    head, _, _ = job.partition("```")
    _, _, template = published("batch/batch-job.yaml").partition("  template:\n")
    return head.replace("  # ... job specification requiring 1 GPU per pod\n", f"  template:\n{template}\n")


@dataclass(frozen=True)
class Case:
    """A manifest → its gang, how many must start, and its members. `nodes` is "" if any will do."""

    text: str
    gang: str
    dialect: str
    needed: int
    members: list[str]
    nodes: str = ""


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    cases = {
        "Job": lambda: Case(published("batch/batch-job.yaml"), "batch-job", "Job", 1, ["batch-job"] * 2),
        "PyTorchJob": lambda: Case(
            published("batch/pytorch-job.yaml"),
            "pytorch-dist-mnist-nccl",
            "PyTorchJob",
            3,
            [
                "master pytorch-dist-mnist-nccl-master-0",
                *(f"worker pytorch-dist-mnist-nccl-worker-{index}" for index in range(2)),
            ],
        ),
        "Job with a topology": lambda: Case(
            with_a_topology(), "distributed-training", "Job", 3, ["distributed-training"] * 3, "abc"
        ),
    }
    return cases[request.param]()


@pytest.fixture
def topology(scene: Scene) -> Iterator[None]:
    """KAI's Topology of the cluster, which the job with a topology names."""
    path = "/apis/kai.scheduler/v1alpha1/topologies"
    levels = [{"nodeLabel": label} for label in (ZONE, RACK, "kubernetes.io/hostname")]
    body = {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": "cluster-topology"},
    }
    scene.client.post(path, body | {"spec": {"levels": levels}})
    yield
    scene.client.delete(f"{path}/cluster-topology")


class User:
    """Types the page's commands in a folder. What kubectl would do is done by the test, which needs none."""

    def __init__(self, at: Path, scene: Scene, jobs: Jobs, kubeconfig: Path) -> None:
        self._at, self._scene, self._jobs = at, scene, jobs
        program = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        wide = {"COLUMNS": "120"}  # a narrow table breaks names, and pytest-xdist sets 80
        self._environment = os.environ | wide | {"KUBECONFIG": str(kubeconfig), "PATH": program}

    def types(self, line: str) -> str:
        """Return what the command prints."""
        match line.split():
            case ["kubectl", "apply", "-f", file]:
                self.apply(file)
            case ["kubectl", "delete", "-f", file]:
                self._jobs.remove(self._read(file))
            case ["kubectl", "get", "events", *_]:
                self._scene.event("TopologyPlaced")
            case ["muster" | "sed", *_]:
                done = subprocess.run(
                    ["bash", "-c", line],
                    cwd=self._at,
                    env=self._environment,
                    capture_output=True,
                    text=True,
                    timeout=HANG_S,
                    check=False,
                )
                assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
                return done.stdout
            case _:
                raise AssertionError(f"the page has a command that this test does not know: {line}")
        return ""

    def apply(self, file: str) -> None:
        owner = self._jobs.submit(self._read(file))
        if owner["kind"] == "PyTorchJob":
            self._jobs.operate(owner)

    def _read(self, file: str) -> Object:
        body: Object = yaml.safe_load((self._at / file).read_text())
        return body


def commands() -> list[str]:
    _, _, section = PAGE.read_text().partition(STEPS)
    block, _, _ = section.partition("```console\n")[2].partition("```")
    return [line.partition("  #")[0].strip() for line in block.splitlines()]


@pytest.mark.usefixtures("topology")
@pytest.mark.parametrize("case", ["Job", "PyTorchJob", "Job with a topology"], indirect=True)
def test_a_job_moves_as_the_page_says(
    case: Case, scene: Scene, jobs: Jobs, arena: Arena, tmp_path: Path
) -> None:
    assert arena.cluster is not None
    assert arena.stack is not None
    for name in NODES:
        scene.node(node(name))
    (tmp_path / "job.yaml").write_text(case.text)
    user = User(tmp_path, scene, jobs, arena.cluster.kubeconfig)
    user.apply("job.yaml")  # as it was with KAI

    outputs = [user.types(line) for line in commands()]

    changed = set((tmp_path / "moved.yaml").read_text().splitlines()) ^ set(case.text.splitlines())
    assert {line.strip() for line in changed} == {
        f"schedulerName: {name}" for name in ("kai-scheduler", "muster")
    }
    assert any(case.gang in text and "placed" in text for text in outputs), outputs
    jobs.run({case.gang: case.members})
    count = len(case.members)
    assert jobs.gangs() == {case.gang: (case.dialect, count, case.needed, count)}
    (gang,) = [
        gang
        for gang in json.loads(arena.stack.service_get("/gangs"))["gangs"]
        if gang["namespace"] == scene.name
    ]
    assert gang["queue"] == "default-queue"
    nodes = "".join(sorted(pod.node.rpartition("-")[2] for pod in scene.pods().values()))
    assert case.nodes in ("", nodes)
