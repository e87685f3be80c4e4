"""CPU workers on the only node with GPUs, after SkyPilot's PR 5357 and Ray's issue 18579."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.manifests import decisions, spots

CLUSTER = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: c1}
  status: {allocatable: {cpu: '96', memory: 1Ti, pods: '110'}}
- apiVersion: v1
  kind: Node
  metadata: {name: c2}
  status: {allocatable: {cpu: '96', memory: 1Ti, pods: '110'}}
- apiVersion: v1
  kind: Node
  metadata: {name: g1}
  status: {allocatable: {cpu: '96', memory: 1Ti, pods: '110', nvidia.com/gpu: '8'}}
"""
RAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: rcLABELS}
spec:
  headGroupSpec:
    template: {spec: {schedulerName: muster, containers: [{name: head, resources: {requests: {cpu: "4"}}}]}}
  workerGroupSpecs:
  - groupName: cpu
    replicas: 10
    template: {spec: {schedulerName: muster, containers: [{name: w, resources: {requests: {cpu: "8"}}}]}}
"""
GPU_WORKER = """\
  - groupName: gpu
    replicas: 1
    template:
      spec:
        schedulerName: muster
        containers: [{name: w, resources: {requests: {cpu: "8"}, limits: {nvidia.com/gpu: 1}}}]
"""
LATER = """
---
apiVersion: v1
kind: Pod
metadata: {name: later}
spec:
  schedulerName: muster
  containers: [{name: c, resources: {requests: {cpu: "32"}, limits: {nvidia.com/gpu: 7}}}]
"""


@pytest.mark.parametrize("workers", [GPU_WORKER, ""], ids=["beside a GPU worker", "alone"])
@pytest.mark.parametrize("labels", [", labels: {kai.scheduler/queue: default}", ""], ids=["a gang", "pods"])
def test_cpu_workers_leave_the_gpus_to_a_later_job(tmp_path: Path, workers: str, labels: str) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "ray.yaml").write_text(RAY.replace("LABELS", labels) + workers + LATER)
    answer = decisions("-f", str(tmp_path / "cluster.yaml"), "-f", str(tmp_path / "ray.yaml"))
    at = {pod: place for gang in answer["gangs"] for pod, place in spots(gang).items()}
    assert {place for pod, place in at.items() if "cpu-worker" in pod} <= {"c1:", "c2:"}
    assert at["later"].startswith("g1:")
    assert all(gang["optimal"] for gang in answer["gangs"])
