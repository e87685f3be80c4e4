"""Members that come later go near those that run, after volcano#1755 and ray's PR 48212: by `muster place`.

The pods that run are written by hand: without a creation time, tolerations, and the numbers of their GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.files.manifests import GPU, Object, decisions, node, nodes_of, write

SCOPE, PREFERRED = "gpu.topology/role-scope", "gpu.topology/role-preferred-scopes"
BY_TWO = {"gpu.topology/segment-size": "2", "gpu.topology/segment-scope": "rack"}
RACKS = [*(node(f"a{i}", 8, "ra") for i in range(3)), *(node(f"b{i}", 8, "rb") for i in range(6))]


def member(number: int, role: str, at: str = "", **annotations: str) -> Object:
    keys = {
        "gpu.topology/group": "g",
        "gpu.topology/min-member": "1",
        "gpu.topology/role": role,
        "gpu.topology/rank": str(number),
    }
    return _pod(f"{role}-{number}", at, {"annotations": keys | annotations})


def _pod(name: str, at: str, meta: dict[str, Any]) -> Object:
    spec: Object = {"schedulerName": "muster", **({"nodeName": at} if at else {})}
    spec["containers"] = [{"name": "c", "resources": {"limits": {GPU: 8}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": spec}


@pytest.mark.parametrize(
    ("running", "waiting", "expected"),
    [
        pytest.param(
            [member(i, "w", f"a{i}", **{SCOPE: "rack"}) for i in range(2)],
            [member(i, "w", **{SCOPE: "rack"}) for i in range(2, 5)],
            {"w-2": "a2", "w-3": None, "w-4": None},
            id="in the rack of their role",
        ),
        pytest.param(
            [member(i, "w", f"b{i}", **BY_TWO) for i in range(3)],
            [member(3, "w", **BY_TWO)],
            {"w-3": "b3"},
            id="in the rack of their segment",
        ),
        pytest.param(
            [member(i, "w", f"b{i}", **{PREFERRED: "rack"}) for i in range(2)],
            [member(2, "w", **{PREFERRED: "rack"})],
            {"w-2": "b2"},
            id="in the rack that their role prefers",
        ),
        pytest.param(
            [member(0, "master", "b0")],
            [member(i, "w") for i in range(2)],
            {"w-0": "b1", "w-1": "b2"},
            id="near another role, all of which runs",
        ),
    ],
)
def test_later_members_follow_those_that_run(
    tmp_path: Path, running: list[Object], waiting: list[Object], expected: dict[str, str | None]
) -> None:
    answer = decisions("-f", write(tmp_path, *RACKS, *running, *waiting))
    assert nodes_of(answer) == expected
    assert {member_shown["role"] for member_shown in answer["gangs"][0]["members"]} == {"w"}
    assert answer["gangs"][0]["optimal"]


def cluster_of_replicas(hosts: int, replicas: int) -> Object:
    spec = {"schedulerName": "muster", "containers": [{"name": "c", "resources": {"limits": {GPU: 8}}}]}
    group = {"groupName": "tp", "replicas": replicas, "minReplicas": 1, "numOfHosts": hosts}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "s", "uid": "u", "labels": {"kai.scheduler/queue": "q"}},
        "spec": {
            "headGroupSpec": {"template": {"spec": spec}},
            "workerGroupSpecs": [{**group, "template": {"spec": spec}}],
        },
    }


def ray(name: str, at: str = "") -> Object:
    """A pod of the cluster: `head`, or a replica and a host such as `1.0`."""
    labels = {"ray.io/cluster": "s", "ray.io/group": "headgroup", "ray.io/node-type": "head"}
    if name != "head":
        replica, host = name.split(".")
        labels |= {"ray.io/group": "tp", "ray.io/node-type": "worker"}
        labels |= {"ray.io/worker-group-replica-index": replica, "ray.io/replica-host-index": host}
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "s", "uid": "u", "controller": True}
    return _pod(f"s-{name}", at, {"labels": labels, "ownerReferences": [owner]})


@pytest.mark.parametrize(
    ("hosts", "running", "waiting", "free", "placed_pods"),
    [
        pytest.param(2, "0.0 0.1 1.0", "1.1 2.0 2.1", 2, "1.1", id="a host comes back, the rest is half"),
        pytest.param(2, "0.0 0.1 1.0", "1.1 2.0 2.1", 3, "1.1 2.0 2.1", id="a host and a replica"),
        pytest.param(2, "0.0 0.1 2.0", "1.0 1.1 2.1", 1, "2.1", id="a host of the last replica comes first"),
        pytest.param(2, "0.0 1.0", "0.1 1.1", 1, "0.1", id="hosts come back one by one"),
        pytest.param(4, "0.0 0.1", "0.2 0.3 1.0 1.1 1.2 1.3", 4, "0.2 0.3", id="two hosts of four"),
        pytest.param(2, "0.0 0.1", "1.0 2.0 2.1", 3, "2.0 2.1", id="a replica lacks a pod"),
        pytest.param(2, "0.0 0.1", "1.0 2.0 3.0 3.1", 4, "3.0 3.1", id="two replicas lack a pod"),
        pytest.param(2, "0.0 0.1", "1.0 2.0", 4, "", id="two halves are no replica"),
        pytest.param(2, "", "1.0 2.0", 4, "", id="two halves do not start a cluster"),
        pytest.param(2, "", "1.0 2.0 2.1", 4, "2.0 2.1", id="a whole replica starts a cluster"),
    ],
)
def test_no_half_of_a_replica_starts(
    tmp_path: Path, hosts: int, running: str, waiting: str, free: int, placed_pods: str
) -> None:
    running_pods = ["head", *running.split()]
    nodes = [node(f"n{i}", 8) for i in range(len(running_pods) + free)]
    pods = [ray(name, f"n{i}") for i, name in enumerate(running_pods)] + [
        ray(name) for name in waiting.split()
    ]
    answer = decisions("-f", write(tmp_path, *nodes, cluster_of_replicas(hosts, 4), *pods))
    assert {name for name, at in nodes_of(answer).items() if at} == {
        f"s-{name}" for name in placed_pods.split()
    }
    if not placed_pods:
        lack = {
            "type": "members-missing",
            "present": 2,
            "needed": 3,
            "role": "tp",
            "stateful_set": "",
            "stated_by": "",
        }
        assert answer["gangs"][0]["causes"] == [lack]


@pytest.mark.parametrize(
    ("waiting", "differing"),
    [
        pytest.param("1.0 2.0", "0.1", id="a pod that runs"),
        pytest.param("1.1 2.0", "0.1 1.1", id="a pod that waits"),
    ],
)
def test_no_half_of_a_replica_starts_though_pods_of_its_group_differ(
    tmp_path: Path, waiting: str, differing: str
) -> None:
    running_pods = ["head", "0.0", "0.1"]
    pods = [ray(name, f"n{i}") for i, name in enumerate(running_pods)] + [
        ray(name) for name in waiting.split()
    ]
    for manifest in pods:
        if manifest["metadata"]["name"].removeprefix("s-") in differing.split():
            manifest["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    nodes = [node(f"n{i}", 8) for i in range(8)]
    answer = decisions("-f", write(tmp_path, *nodes, cluster_of_replicas(2, 4), *pods))
    assert not any(nodes_of(answer).values())


def test_ranks_that_tell_no_replica_keep_no_whole_replica_back(tmp_path: Path) -> None:
    pods = [ray("head", "n0"), *(ray(name) for name in ("0.0", "0.1", "1.0", "1.1"))]
    for manifest in pods[1:]:
        manifest["metadata"]["annotations"] = {"gpu.topology/rank": "0"}
    nodes = [node(f"n{i}", 8) for i in range(6)]
    answer = decisions("-f", write(tmp_path, *nodes, cluster_of_replicas(2, 2), *pods))
    assert sum(map(bool, nodes_of(answer).values())) == 4
