"""The files of examples/, and how their objects come to the API server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from local_cluster.api import Api, Object
from local_cluster.demo.observer import PODS
from local_cluster.places import SOURCE

EXAMPLES = SOURCE.parent / "examples"
SHAPE = Path(__file__).resolve().parent / "cluster.yaml"
PATHS = {"Pod": PODS, "Job": "/apis/batch/v1/namespaces/default/jobs"}

BY_HAND = "bound-by-hand"
"""Scheduler name of pods that the demo binds itself: no scheduler listens to it."""


def load(example: str, keep: Callable[[Object], bool] = lambda _: True) -> list[Object]:
    """The objects of a file in examples/, those to keep."""
    documents: list[Any] = list(yaml.safe_load_all((EXAMPLES / example).read_text()))
    return [document for document in documents if keep(document)]


def create(api: Api, objects: list[Object]) -> None:
    """Create these objects on the cluster, in order."""
    for body in objects:
        api.post(PATHS[body["kind"]], body)


def take_by_hand(api: Api, node: str, gpus: list[int]) -> str:
    """A running pod that holds exactly these GPUs of the node: bound here, with its allocation, as a
    scheduler would. The pod's name."""
    name = f"busy-{node}"
    container = {
        "name": "busy",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"limits": {"aliyun.com/gpu": len(gpus)}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": BY_HAND, "containers": [container]},
    }
    allocation = {"version": 1, "containers": {"busy": gpus}, "gpus": gpus, "indices": "planned"}
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": name,
            "annotations": {
                "gpu.topology/allocation": json.dumps(allocation),
                "ALIYUN_COM_GPU_GROUP": ",".join(map(str, gpus)),
            },
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    api.post(PODS, pod)
    api.post(f"{PODS}/{name}/binding", binding)
    return name
