"""Misspelt fields get a note; words and forms that an API server refuses are bad input.

Siblings of what users wrote in volcano#2944 and in manifests of other schedulers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.adapters.files.reading.devices import as_v1
from tests.files.manifests import GPU, Object, controller, decisions, node, place, pod, spec, write

EXCLUSIVE, JOBSET = "exclusive-topology", "jobset.x-k8s.io/v1alpha2"
NODE_TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def term(operator: str, *values: str) -> Object:
    expression = {"key": "pool", "operator": operator, "values": list(values)}
    return required([{"matchExpressions": [expression]}])


def required(terms: list[Object]) -> Object:
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": rule}}


def container(**more: object) -> Object:
    return {"name": "main", "image": "x", **more}


NOTED: dict[str, tuple[Object, str]] = {
    # what is misspelt: the pod, what is said
    "a letter": (
        pod("p", nodeSelecter={"a": "b"}),
        "spec.nodeSelecter has no effect: did you mean nodeSelector?",
    ),
    "upper case": (pod("p", nodeselector={"a": "b"}), "did you mean nodeSelector?"),
    "singular": (pod("p", toleration=[]), "spec.toleration has no effect: did you mean tolerations?"),
    "of a container": (
        pod("p", containers=[container(resources={"limit": {GPU: 1}})]),
        "spec.containers[0].resources.limit has no effect: did you mean limits?",
    ),
    "cut off": (
        pod("p", affinity={"nodeAffinity": {"requiredDuringScheduling": {}}}),
        "has no effect: did you mean requiredDuringSchedulingIgnoredDuringExecution?",
    ),
    "around pods": (
        controller("Job", "batch/v1", "j", paralelism=2, template={"spec": spec(1)}),
        "Job default/j: spec.paralelism has no effect: did you mean parallelism?",
    ),
}


@pytest.mark.parametrize("case", NOTED)
def test_a_misspelt_field_is_noted(tmp_path: Path, case: str) -> None:
    manifest, says = NOTED[case]
    assert any(note.endswith(says) for note in decisions("-f", write(tmp_path, node("a"), manifest))["notes"])


def test_fields_that_are_not_read_are_no_slips(tmp_path: Path) -> None:
    probe = {"httpGet": {"path": "/", "port": 80}}
    main = container(
        command=["x"], env=[{"name": "A", "value": "b"}], livenessProbe=probe, restartPolicyRules=[],
        resources={"limits": {GPU: 1}, "requests": {}, "claims": []}, volumeMounts=[], workingDir="/",
    )  # fmt: skip
    manifest = pod(
        "p", containers=[main], hostNetwork=True, hostname="x", dnsPolicy="Default", securityContext={},
        serviceAccountName="x", nodeSelector={"nodeselector": "a", "limit": "b"}, enableServiceLinks=False,
    )  # fmt: skip
    notes = decisions("-f", write(tmp_path, node("a"), manifest))["notes"]
    assert [note for note in notes if "has no effect" in note] == []


def test_fields_of_jobs_that_are_like_others_are_no_slips(tmp_path: Path) -> None:
    """As in JobSet's coordinator.yaml, and in the training operator's imagenet.yaml."""
    job = {"name": "w", "template": {"spec": {"template": {"spec": spec(1)}}}}
    coordinator = {"replicatedJob": "w", "jobIndex": 0}
    job_set = controller("JobSet", JOBSET, "j", replicatedJobs=[job], coordinator=coordinator)
    elastic = {"minReplicas": 1, "metrics": [{"type": "Resource", "resource": {"name": "cpu"}}]}
    worker = {"Worker": {"replicas": 1, "template": {"spec": spec(1)}}}
    job = controller("PyTorchJob", "kubeflow.org/v1", "p", elasticPolicy=elastic, pytorchReplicaSpecs=worker)
    notes = decisions("-f", write(tmp_path, node("a"), job_set, job))["notes"]
    assert [note for note in notes if "has no effect" in note] == []


REFUSED: dict[str, tuple[Object, str]] = {
    # what is wrong: the object, what is said
    "an operator of nodes": (pod("p", **term("in", "h")), "operator: expected In, NotIn, Exists"),
    "In without values": (pod("p", **term("In")), "values: expected at least one value with operator In"),
    "Exists with values": (pod("p", **term("Exists", "h")), "values: expected none with operator Exists"),
    "Gt of two values": (pod("p", **term("Gt", "1", "2")), "values: expected one value with operator Gt"),
    "no term": (pod("p", **required([])), f"{NODE_TERMS}: expected at least one term"),
    "an operator of taints": (
        pod("p", tolerations=[{"key": "x", "operator": "exists"}]),
        'spec.tolerations[0].operator: expected Exists, Equal, Lt or Gt, got "exists"',
    ),
    "an effect": (
        pod("p", tolerations=[{"key": "x", "operator": "Exists", "effect": "noschedule"}]),
        "spec.tolerations[0].effect: expected NoSchedule, PreferNoSchedule or NoExecute",
    ),
    "Exists with a value": (
        pod("p", tolerations=[{"key": "x", "operator": "Exists", "value": "y"}]),
        "spec.tolerations[0].value: expected none with operator Exists",
    ),
    "a value without a key": (pod("p", tolerations=[{"value": "y"}]), "tolerations[0].key: expected one"),
    "a taint": (
        node("b", spec={"taints": [{"key": "x", "effect": "noschedule"}]}),
        "spec.taints[0].effect: expected NoSchedule",
    ),
    "a sidecar": (
        pod("p", initContainers=[container(restartPolicy="always")]),
        'spec.initContainers[0].restartPolicy: expected Always, OnFailure or Never, got "always"',
    ),
    "a spread": (
        pod("p", topologySpreadConstraints=[{"whenUnsatisfiable": "doNotSchedule"}]),
        "whenUnsatisfiable: expected DoNotSchedule or ScheduleAnyway",
    ),
    "a Job": (
        controller("Job", "batch/v1", "j", completionMode="indexed", template={"spec": spec(1)}),
        'spec.completionMode: expected Indexed or NonIndexed, got "indexed"',
    ),
    "a claim that the pod does not have": (
        pod("p", containers=[container(resources={"claims": [{"name": "gpus"}]})]),
        'spec.containers[0].resources.claims: expected a name of spec.resourceClaims, got "gpus"',
    ),
    "a list for the name of a claim": (
        pod("p", resourceClaims=[{"name": ["x"], "resourceClaimName": "c"}]),
        "spec.resourceClaims[0].name: expected string, got list",
    ),
    "a number for annotations": (
        controller("JobSet", JOBSET, "j", replicatedJobs=[]) | {"metadata": {"name": "j", "annotations": 5}},
        "metadata.annotations: expected object, got integer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_api_server_refuses_is_bad_input(tmp_path: Path, case: str) -> None:
    manifest, says = REFUSED[case]
    result = place("-f", write(tmp_path, node("a"), manifest))
    assert (result.exit_code, says in result.stderr.replace("\n", "")) == (2, True), result.stderr


def test_gt_of_a_word_matches_no_node_as_in_a_cluster(tmp_path: Path) -> None:
    (gang,) = decisions("-f", write(tmp_path, node("a"), pod("p", **term("Gt", "h"))))["gangs"]
    assert gang["status"] == "unplaceable"


def test_objects_that_aliases_name_again_and_again_are_looked_at_once(tmp_path: Path) -> None:
    value: Object = {"k": "v"}
    for _ in range(60):
        value = {"p": value, "q": value}
    answer = decisions("-f", write(tmp_path, node("a"), pod("p", x=value)))
    assert answer["summary"]["placed"] == 1


def test_what_a_cluster_has_stored_is_not_looked_at(tmp_path: Path) -> None:
    manifest = pod("p", tolerations=[{"key": "x", "operator": "Unknown"}], nodeSelecter={})
    manifest["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    answer = decisions("-f", write(tmp_path, node("a"), manifest))
    assert answer["summary"]["placed"] == 1
    assert answer["notes"] == []


def request(**fields: object) -> Object:
    return {"devices": {"requests": [{"name": "gpu", **fields}]}}


FLAT, NESTED = request(deviceClassName="c", count=8), request(exactly={"deviceClassName": "c"})
SOME = [{"name": "two", "deviceClassName": "c", "count": 2}]
BOTH = request(deviceClassName="c", firstAvailable=SOME)


def test_an_empty_class_beside_several_choices_is_none() -> None:
    value = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "spec": request(deviceClassName="", firstAvailable=SOME),
    }
    assert as_v1(value)["spec"] == request(firstAvailable=SOME)


@pytest.mark.parametrize(
    ("kind", "version", "fields", "says"),
    [
        (
            "ResourceClaimTemplate",
            "v1",
            {"spec": FLAT},
            "spec.spec.devices.requests[0]: expected one of exactly",
        ),
        ("ResourceClaim", "v1beta2", FLAT, "spec.devices.requests[0]: expected one of exactly"),
        ("ResourceClaim", "v1beta1", NESTED, "spec.devices.requests[0]: expected one of deviceClassName"),
        ("ResourceClaim", "v1beta1", BOTH, "spec.devices.requests[0]: expected one of deviceClassName"),
        ("ResourceClaimTemplate", "v1", NESTED, "spec.devices: expected in spec.spec"),
    ],
)
def test_a_claim_that_would_ask_for_nothing_is_bad_input(
    tmp_path: Path, kind: str, version: str, fields: Object, says: str
) -> None:
    manifest = controller(kind, f"resource.k8s.io/{version}", "c", **fields)
    result = place("-f", write(tmp_path, node("a"), manifest, pod("p")))
    assert (result.exit_code, says in result.stderr.replace("\n", "")) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("kind", "version", "place", "key", "says"),
    [
        ("JobSet", JOBSET, "annotations", f"jobset.sigs.k8s.io/{EXCLUSIVE}", "did you mean"),
        ("JobSet", JOBSET, "labels", f"alpha.jobset.sigs.k8s.io/{EXCLUSIVE}", "annotation"),
        (
            "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "annotations",
            f"leaderworkerset.x-k8s.io/{EXCLUSIVE}", "did you mean",
        ),
    ],
)  # fmt: skip
def test_a_misspelt_key_of_an_exclusive_topology_is_noted(
    tmp_path: Path, kind: str, version: str, place: str, key: str, says: str
) -> None:
    pods = {"template": {"spec": spec(1)}}
    jobs = [{"name": "w", "template": {"spec": {"parallelism": 1, "completions": 1, **pods}}}]
    worker = {"size": 1, "workerTemplate": {"spec": spec(1)}}
    manifest = controller(kind, version, "j", replicatedJobs=jobs, leaderWorkerTemplate=worker)
    manifest["metadata"][place] = {key: "rack"}
    notes = decisions("-f", write(tmp_path, node("a"), manifest))["notes"]
    assert any(f"{key} has no effect" in note and says in note for note in notes)


def test_an_annotation_of_kai_among_the_labels_of_a_job_is_refused(tmp_path: Path) -> None:
    manifest = controller("Job", "batch/v1", "j", template={"spec": spec(1)})
    manifest["metadata"]["labels"] = {"kai.scheduler/topology-required-placement": "rack"}
    (gang,) = decisions("-f", write(tmp_path, node("a"), manifest))["gangs"]
    assert gang["status"] == "invalid"
    assert "expected none: it is an annotation" in gang["message"]
