"""Jobs whose controllers make some pods when others have a node, as a cluster shows them: `muster place`.

The rules of the first pods are those that the webhook of JobSet adds (kubernetes-sigs/jobset,
pkg/webhooks/pod_mutating_webhook.go).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.manifests import Object, decisions, node, spec, spots, write

RACK = "topology.kubernetes.io/rack"
JOB_KEY = "jobset.sigs.k8s.io/job-key"
NODES = [node(f"{rack}{number}", gpus=1, rack=rack) for rack in ("r1", "r2") for number in range(3)]


def job_set(jobs: int, pods: int) -> Object:
    job = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "template": {"spec": spec()},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": "js",
            "uid": "js",
            "labels": {"kai.scheduler/queue": "team"},
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": RACK},
        },
        "spec": {"replicatedJobs": [{"name": "w", "replicas": jobs, "template": {"spec": job}}]},
    }


def term(*requirements: Object) -> Object:
    selector = {"matchExpressions": [{"key": JOB_KEY, **requirement} for requirement in requirements]}
    affinity_term = {"topologyKey": RACK, "namespaceSelector": {}, "labelSelector": selector}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [affinity_term]}


def member(job: int, index: int, node_name: str = "", rack: str = "", numbered: bool = True) -> Object:
    """Return a pod: bound to a node, or with the node selector of followers, or a leader with its rules."""
    key, name = f"key-{job}", f"js-w-{job}"
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "js",
        "jobset.sigs.k8s.io/replicatedjob-name": "w",
        "jobset.sigs.k8s.io/job-index": str(job),
        JOB_KEY: key,
        "batch.kubernetes.io/job-completion-index": str(index),
        **({"jobset.sigs.k8s.io/job-global-index": str(job)} if numbered else {}),
    }
    more: Object = {"nodeName": node_name} if node_name else {}
    if rack:
        more["nodeSelector"] = {RACK: rack}
    elif index == 0:
        apart = term({"operator": "Exists"}, {"operator": "NotIn", "values": [key]})
        more["affinity"] = {
            "podAffinity": term({"operator": "In", "values": [key]}),
            "podAntiAffinity": apart,
        }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{index}",
            "uid": f"{name}-{index}",
            "labels": labels,
            "annotations": labels,
            "ownerReferences": [owner],
        },
        "spec": spec(**more),
    }


def placed(tmp_path: Path, *objects: Object) -> dict[str, str]:
    (gang,) = decisions(write(tmp_path, *objects))["gangs"]
    return {name: spot.partition(":")[0] for name, spot in spots(gang).items()}


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "of an old JobSet"])
def test_leaders_take_racks_that_hold_their_followers(tmp_path: Path, numbered: bool) -> None:
    leaders = [member(job, 0, numbered=numbered) for job in range(2)]
    node_of = placed(tmp_path, node("x", gpus=1, rack="r0"), *NODES, job_set(2, 3), *leaders)
    assert sorted(name[:2] for name in node_of.values()) == ["r1", "r2"]


def test_followers_go_to_the_racks_of_their_leaders(tmp_path: Path) -> None:
    leaders = [member(0, 0, "r10"), member(1, 0, "r20")]
    followers = [member(job, index, rack=f"r{job + 1}") for job in range(2) for index in (1, 2)]
    node_of = placed(tmp_path, *NODES, job_set(2, 3), *leaders, *followers)
    assert {name: place[:2] for name, place in node_of.items()} == {
        f"js-w-{job}-{index}": f"r{job + 1}" for job in range(2) for index in (1, 2)
    }


def test_a_leader_that_is_made_again_needs_no_room_for_those_that_run(tmp_path: Path) -> None:
    running = [member(0, 1, "r11"), member(0, 2, "r12")]
    assert placed(tmp_path, *NODES, job_set(1, 3), member(0, 0), *running) == {"js-w-0-0": "r10"}
