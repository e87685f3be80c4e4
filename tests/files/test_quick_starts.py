"""`muster place` on the manifest that each project publishes as its first example, unchanged.

The files are read from the projects' Go modules (`local_cluster.modules`). The trainer's module has its
runtimes alone, so its TrainJob is written here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from local_cluster.modules import folder
from tests.files.manifests import Object, decisions, node, write

pytestmark = pytest.mark.go


@dataclass(frozen=True)
class Case:
    """A file of a module → its gangs, and how many members of each role one gang has."""

    module: str
    path: str
    gangs: tuple[str, ...]
    roles: dict[str | None, int]
    scheduler: str = "default-scheduler"
    more: tuple[Object, ...] = field(default=())


KUBEFLOW = "training-operator"
TRAIN_JOB: Object = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "multi-node"},
    "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 3}},
}
CASES = {
    "JobSet": Case(
        "jobset-examples", "site/static/examples/simple/paralleljobs.yaml",
        ("paralleljobs",), {"workers": 4, "driver": 1},
    ),
    "LeaderWorkerSet": Case(
        "lws", "docs/examples/sample/lws.yaml",
        tuple(f"leaderworkerset-sample-{group}" for group in range(3)), {"leader": 1, "worker": 3},
    ),
    "LeaderWorkerSet with GPUs": Case(
        "lws", "docs/examples/vllm/GPU/lws.yaml", ("vllm-0", "vllm-1"), {"leader": 1, "worker": 1},
    ),
    "PyTorchJob": Case(
        KUBEFLOW, "examples/pytorch/simple.yaml", ("pytorch-simple",), {"master": 1, "worker": 1},
    ),
    "TFJob": Case(KUBEFLOW, "examples/tensorflow/simple.yaml", ("tfjob-simple",), {"worker": 2}),
    "XGBoostJob": Case(
        KUBEFLOW, "examples/xgboost/xgboostjob.yaml",
        ("xgboost-dist-iris-test-train",), {"master": 1, "worker": 2},
    ),
    "PaddleJob": Case(
        KUBEFLOW, "examples/paddlepaddle/simple-gpu.yaml", ("paddle-simple-gpu",), {"worker": 2},
    ),
    "JAXJob": Case(KUBEFLOW, "examples/jax/cpu-demo/demo.yaml", ("jaxjob-simple",), {"worker": 2}),
    "MPIJob v1": Case(
        KUBEFLOW, "examples/mpi/tensorflow-mnist.yaml", ("tensorflow-mnist",), {"launcher": 1, "worker": 2},
    ),
    "MPIJob v2beta1": Case(
        "mpi-operator", "examples/v2beta1/pi/pi.yaml", ("pi",), {"launcher": 1, "worker": 2},
    ),
    "RayCluster": Case(
        "kuberay", "config/samples/ray-cluster.sample.yaml",
        ("raycluster-kuberay",), {"headgroup": 1, "workergroup": 1},
    ),
    "RayJob": Case(
        "kuberay", "config/samples/ray-job.sample.yaml",
        ("rayjob-sample-bbbbb",), {"headgroup": 1, "small-group": 1},
    ),
    "RayCluster with KAI's queue": Case(
        "kuberay", "config/samples/ray-cluster.kai-scheduler.yaml",
        ("raycluster-sample",), {"headgroup": 1, "worker": 2},
    ),
    "TrainJob": Case(
        "trainer", "manifests/base/runtimes/torch_distributed.yaml", ("multi-node",), {"node": 3},
        more=(TRAIN_JOB,),
    ),
    "KAI's PyTorchJob": Case(
        "kai", "docs/batch/pytorch-job.yaml", ("pytorch-dist-mnist-nccl",), {"master": 1, "worker": 2},
        "kai-scheduler",
    ),
    "KAI's Job": Case("kai", "docs/batch/batch-job.yaml", ("batch-job",), {None: 2}, "kai-scheduler"),
}  # fmt: skip


def large(name: str) -> Object:
    """Return a node that has what a worker of vLLM asks for."""
    manifest = node(name, 8)
    manifest["status"]["allocatable"] |= {"cpu": "192", "memory": "2Ti", "ephemeral-storage": "4Ti"}
    return manifest


@pytest.mark.parametrize("name", CASES)
def test_the_published_example_is_one_gang(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    nodes = write(tmp_path, *(large(f"n{i}") for i in range(4)), *case.more)
    answer = decisions(
        nodes, "-f", str(folder(case.module) / case.path),
        "--infer-gangs", "on", "--scheduler-name", case.scheduler,
    )  # fmt: skip
    roles = {gang["name"]: Counter(member["role"] for member in gang["members"]) for gang in answer["gangs"]}
    assert roles == {gang: Counter(case.roles) for gang in case.gangs}
    assert {gang["status"] for gang in answer["gangs"]} == {"placed"}
