"""Whatever stands in a field: a decision or a line that says what is wrong, never anything else."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from muster.domain.constraints import PER_SCOPE
from tests.files.manifests import Object, controller, node, place, pod, template

TERMS = [{"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}]
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}}}

TOPOLOGY_REQUESTS = {
    "group": "w",
    "min-member": "2",
    "role": "r",
    "scope": "rack",
    "role-scope": "node",
    "preferred-scopes": "nvlink-domain,node",
    "segment-size": "4,2",
    "segment-scope": "rack,node",
    "rank": "1",
    **{kind.annotation: "rack=4,node=2" for kind in PER_SCOPE},
}
WITH_TOPOLOGY = template()
WITH_TOPOLOGY["metadata"]["annotations"] = {
    f"gpu.topology/{key}": text for key, text in TOPOLOGY_REQUESTS.items()
}

VALID: list[Object] = [
    node("a", 8, spec={"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": False}),
    node("b", 4, labels={"gpu.topology/nvlink-domain": "d"}),
    pod("p", "g", 2, affinity=AFFINITY, tolerations=[{"key": "k", "operator": "Exists"}], priority=1),
    pod("q", "g", 2, initContainers=[{"name": "i", "resources": {"limits": {"cpu": "1"}}}]),
    pod("r", nodeName="a", gpus=2),
    controller("Job", "batch/v1", "j", parallelism=2, completions=2, template=template("h", 2)),
    controller("StatefulSet", "apps/v1", "s", replicas=2, template=template("k", 2)),
    controller("Job", "batch/v1", "w", parallelism=3, template=WITH_TOPOLOGY),
    controller(
        "PyTorchJob",
        "kubeflow.org/v1",
        "t",
        pytorchReplicaSpecs={"Master": {"template": template("m", 1)}},
        runPolicy={"suspend": False},
    ),
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "c"}, "value": 1},
]

ODD: list[Any] = [
    *(None, 1, -1, 0, 1.5, True, 10**30, "x", "", "1e999", "\x1b[31m", "9" * 100, "Ki"),
    *([], {}, [1], {"a": 1}, {"a": None}, [None], [[]], [{}], {"": ""}, "2026-01-01T00:00:00Z"),
]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from paths(item, (*path, key))


@pytest.mark.parametrize("seed", range(60))
def test_any_value_anywhere(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    documents = copy.deepcopy(VALID)
    for _ in range(chance.choice([1, 1, 2, 4])):
        *before, last = chance.choice([path for path in paths(documents) if path])
        place_in: Any = documents
        for key in before:
            place_in = place_in[key]
        place_in[last] = copy.deepcopy(chance.choice(ODD))
    file = tmp_path / "odd.json"
    file.write_text("\n".join(json.dumps(document) for document in documents))
    for output in ("json", "svg", "table"):
        result = place(str(file), "-o", output)
        assert result.exit_code in {0, 2, 3}, result.output
        if result.exit_code == 2:
            assert (result.stdout, result.stderr.count("\n")) == ("", 1)
            assert result.stderr.startswith(f"{file}: document ")
        elif output == "json":
            json.loads(result.stdout)
        elif output == "svg":
            ElementTree.fromstring(result.stdout)
