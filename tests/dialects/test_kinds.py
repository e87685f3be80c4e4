"""What each kind of job says of its gang, and which pods belong to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from muster.dialects.jobs.families import JobGangs, job_gangs
from muster.dialects.jobs.pruned import prune
from muster.dialects.kinds.description import JobPod
from muster.dialects.kinds.table import KINDS, member, modes_of
from muster.dialects.objects import CustomObject, Metadata, OwnerReference
from muster.dialects.pods import bounds
from muster.dialects.settings import DEFAULTS, DialectSettings, Mode
from muster.domain.causes.ill_formed import BadValue
from muster.domain.levels import DEFAULT_LEVELS
from muster.domain.request import Segment

Object = dict[str, Any]

RACK = "topology.kubernetes.io/rack"
REQUIRED = {"kai.scheduler/topology-required-placement": RACK}


def template(gpus: int = 1, **meta: Object) -> Object:
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    containers = [{"name": "c", "resources": resources}]
    return {"metadata": meta, "spec": {"schedulerName": "muster", "containers": containers}}


T, NO_GPU = template(), template(0)


def job(parallelism: int = 4, completions: int | None = 4, **spec: object) -> Object:
    counts = {"parallelism": parallelism} | ({} if completions is None else {"completions": completions})
    return {"template": T, **counts, **spec}


def replicated_job(name: str, replicas: int, pods: int, **more: object) -> Object:
    return {"name": name, "replicas": replicas, "template": {"spec": job(pods, pods)}, **more}


def lws(size: int = 4, **spec: object) -> Object:
    groups = {"size": size, "workerTemplate": spec.pop("worker", T)}
    return {"replicas": 3, "leaderWorkerTemplate": groups, **spec}


def torch(workers: int, **spec: object) -> Object:
    types = {"Worker": {"replicas": workers, "template": T}, "Master": {"replicas": 1, "template": T}}
    return {"pytorchReplicaSpecs": types, **spec}


def ray(**group: object) -> Object:
    workers = {"groupName": "gpus", "template": T, **group}
    return {"headGroupSpec": {"template": NO_GPU}, "workerGroupSpecs": [workers]}


def mpi(**spec: object) -> Object:
    types = {"Launcher": {"template": NO_GPU}, "Worker": {"replicas": 2, "template": T}}
    return {"mpiReplicaSpecs": types, **spec}


def read(
    kind: str,
    spec: Object,
    settings: DialectSettings = DEFAULTS,
    made_by: Metadata | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> JobGangs:
    described = KINDS[kind]
    meta = Metadata(name="x", namespace="default", uid="u", labels=labels, annotations=annotations)
    obj = CustomObject(f"{described.group}/{described.versions[0]}", meta, spec)
    result = job_gangs(described, obj, settings, DEFAULT_LEVELS, None, made_by)
    assert job_gangs(described, prune(described, obj), settings, DEFAULT_LEVELS, None, made_by) == result
    return result


@dataclass(frozen=True)
class Case:
    """An object → the pods of one gang that come at once, those that must start together, and their roles."""

    kind: str
    spec: Object
    size: int
    least: int
    roles: dict[str, int] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    later: dict[str, int] = field(default_factory=dict)


CASES = {
    "an indexed Job needs all": Case("Job", job(completionMode="Indexed"), 4, 4),
    "a Job of independent pods starts with what fits": Case("Job", job(), 4, 1),
    "a Job that asks for a topology needs all": Case("Job", job(), 4, 4, annotations=REQUIRED),
    "a Job with more completions than pods is a queue of work":
        Case("Job", job(2, 8, completionMode="Indexed"), 2, 1),
    "a Job without completions too": Case("Job", job(3, None), 3, 1),
    "no more pods than completions": Case("Job", job(9, 2, completionMode="Indexed"), 2, 2),
    "KAI's count of a Job": Case("Job", job(6, 6), 6, 2, annotations={"kai.scheduler/batch-min-member": "2"}),
    "a JobSet's replicated Jobs are roles":
        Case("JobSet", {"replicatedJobs": [replicated_job("driver", 1, 1), replicated_job("workers", 2, 4)]},
             9, 9, {"driver": 1, "workers": 8}),
    "in order: the later ones come late":
        Case("JobSet", {"replicatedJobs": [replicated_job("driver", 1, 1), replicated_job("workers", 2, 4)],
                        "startupPolicy": {"startupPolicyOrder": "InOrder"}},
             1, 1, {"driver": 1, "workers": 0}, later={"workers": 8}),
    "so do those that depend on others":
        Case("JobSet", {"replicatedJobs": [replicated_job("node", 1, 2),
                                           replicated_job("launcher", 1, 1, dependsOn=[{"name": "node"}])]},
             2, 2, {"node": 2, "launcher": 0}, later={"launcher": 1}),
    "each Job has a domain of its own, so its first pod comes alone":
        Case("JobSet", {"replicatedJobs": [replicated_job("workers", 2, 4)]}, 2, 2,
             annotations={"alpha.jobset.sigs.k8s.io/exclusive-topology": RACK}),
    "it has one, and all pods come at once":
        Case("JobSet", {"replicatedJobs": [replicated_job("workers", 2, 4)]}, 8, 8,
             annotations={"alpha.jobset.sigs.k8s.io/exclusive-topology": RACK,
                          "alpha.jobset.sigs.k8s.io/node-selector": "true"}),
    "each group of a LeaderWorkerSet": Case("LeaderWorkerSet", lws(), 4, 4, {"leader": 1, "worker": 3}),
    "a leader alone": Case("LeaderWorkerSet", lws(1), 1, 1),
    "each group has a domain of its own, so its leader comes alone":
        Case("LeaderWorkerSet", lws(), 1, 1, {"leader": 1, "worker": 0},
             annotations={"leaderworkerset.sigs.k8s.io/exclusive-topology": RACK}, later={"worker": 3}),
    "workers after a leader that is ready":
        Case("LeaderWorkerSet", lws(startupPolicy="LeaderReady"), 1, 1, {"leader": 1, "worker": 0},
             later={"worker": 3}),
    "a PyTorchJob": Case("PyTorchJob", torch(3), 4, 4, {"master": 1, "worker": 3}),
    "an elastic PyTorchJob":
        Case("PyTorchJob", torch(3, elasticPolicy={"minReplicas": 2}), 4, 2, {"master": 1, "worker": 1}),
    "the scheduling policy of kubeflow":
        Case("PyTorchJob", torch(3, runPolicy={"schedulingPolicy": {"minAvailable": 3}}),
             4, 3, {"master": 1, "worker": 2}),
    "a TFJob":
        Case("TFJob", {"tfReplicaSpecs": {"PS": {"replicas": 2, "template": T}, "Worker": {"template": T}}},
             3, 3, {"ps": 2, "worker": 1}),
    "an MPIJob": Case("MPIJob", mpi(), 3, 3, {"launcher": 1, "worker": 2}),
    "an MPIJob whose launcher waits":
        Case("MPIJob", mpi(launcherCreationPolicy="WaitForWorkersReady"), 2, 2, {"launcher": 0, "worker": 2},
             later={"launcher": 1}),
    "a RayCluster": Case("RayCluster", ray(replicas=3), 4, 4, {"headgroup": 1, "gpus": 3}),
    "of which some must be there":
        Case("RayCluster", ray(replicas=3, minReplicas=1), 4, 2, {"headgroup": 1, "gpus": 1}),
    "with several hosts for each replica":
        Case("RayCluster", ray(replicas=2, numOfHosts=4), 9, 9, {"headgroup": 1, "gpus": 8}),
    "not more than the most":
        Case("RayCluster", ray(replicas=5, maxReplicas=3), 4, 4, {"headgroup": 1, "gpus": 3}),
    "no number of hosts is one host": Case("RayCluster", ray(replicas=2, numOfHosts=0), 3, 3,
                                           {"headgroup": 1, "gpus": 2}),
    "a group that is suspended": Case("RayCluster", ray(replicas=3, suspend=True), 1, 1),
    "a parallel StatefulSet":
        Case("StatefulSet", {"replicas": 3, "podManagementPolicy": "Parallel", "template": T}, 3, 3),
    "one after another": Case("StatefulSet", {"replicas": 3, "template": T}, 3, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_counts_and_roles(name: str) -> None:
    case = CASES[name]
    group = read(case.kind, case.spec, annotations=case.annotations).group
    assert group.causes == ()
    assert (group.size, group.min_member, group.role_min) == (case.size, case.least, case.roles)
    assert group.role_later == case.later


ONE_EACH = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "topology.kubernetes.io/rack"}
LATER: dict[str, tuple[str, Object, Object, dict[str, int]]] = {
    # name: kind, spec, annotations, role → its members, of roles with members that come later
    "a leader first": ("LeaderWorkerSet", {**lws(4), "startupPolicy": "LeaderReady"}, {}, {"worker": 3}),
    "all at once": ("LeaderWorkerSet", lws(4), {}, {}),
    "in order": (
        "JobSet",
        {
            "replicatedJobs": [replicated_job("a", 1, 2), replicated_job("b", 2, 2)],
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
        },
        {},
        {"b": 4},
    ),
    "when the others have completed": (
        "JobSet",
        {
            "replicatedJobs": [
                replicated_job("a", 1, 2),
                {**replicated_job("b", 1, 2), "dependsOn": [{"name": "a", "status": "Complete"}]},
            ]
        },
        {},
        {},
    ),
    "after those that come when the others have completed": (
        "JobSet",
        {
            "replicatedJobs": [
                replicated_job("a", 1, 2),
                {**replicated_job("b", 1, 2), "dependsOn": [{"name": "a", "status": "Complete"}]},
                {**replicated_job("c", 1, 2), "dependsOn": [{"name": "b", "status": "Ready"}]},
            ]
        },
        {},
        {},
    ),
    "too many": ("LeaderWorkerSet", {**lws(300), "startupPolicy": "LeaderReady"}, {}, {}),
    "each Job in a rack of its own": (
        "JobSet",
        {"replicatedJobs": [replicated_job("a", 2, 3)]},
        ONE_EACH,
        {"a": 6},
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_members_that_come_later(name: str) -> None:
    kind, spec, annotations, expected = LATER[name]
    group = read(kind, spec, annotations=annotations).group
    assert {template.role: len(template.ranks) for template in group.follower_templates} == expected
    assert all(template.pod.gpus == 1 for template in group.follower_templates)
    assert (
        group.topology_request.required_scope,
        group.role_topology_requests.get("a", group.topology_request).segments,
    ) == (None, ())


def test_units_with_a_domain_of_their_own_have_a_leader_each() -> None:
    (jobs,) = read(
        "JobSet", {"replicatedJobs": [replicated_job("a", 2, 3)]}, annotations=ONE_EACH
    ).group.follower_templates
    assert (jobs.exclusive, jobs.unit, jobs.unit_label) == (True, 3, "jobset.sigs.k8s.io/job-index")
    assert "jobset.sigs.k8s.io/job-index" in jobs.shared_labels
    key = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    (groups,) = read("LeaderWorkerSet", lws(2), annotations={key: "rack"}).group.follower_templates
    assert (groups.exclusive, groups.unit_label) == (True, "")
    assert "leaderworkerset.sigs.k8s.io/group-index" in groups.shared_labels


def template_of(role: Object) -> Object:
    """Return the pod template of a replicated Job."""
    spec: Object = role["template"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("change", [{"resourceClaims": [{"name": "gpu"}]}, {"schedulerName": "other"}])
def test_members_that_come_later_and_can_not_be_read_are_left_out(change: Object) -> None:
    second = replicated_job("b", 1, 2)
    template_of(second).update(change)
    spec = {
        "replicatedJobs": [replicated_job("a", 1, 2), second],
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
    }
    assert read("JobSet", spec).group.follower_templates == ()


def test_kai_asks_for_placement_on_the_object_and_on_its_parts() -> None:
    annotations = {**REQUIRED, "kai.scheduler/topology-preferred-placement": "kubernetes.io/hostname"}
    job = read("PyTorchJob", torch(3), annotations=annotations, labels={"kai.scheduler/queue": "team"})
    assert (job.group.topology_request.required_scope, job.group.topology_request.preferred_scopes) == (
        "rack",
        ("node",),
    )
    assert (job.group.queue, job.by_key) == ("team", True)

    part = replicated_job("workers", 2, 4)
    part["template"]["metadata"] = {"annotations": REQUIRED}
    parts = read("JobSet", {"replicatedJobs": [part, replicated_job("driver", 1, 1)]}).group
    assert parts.role_topology_requests["workers"].segments == (Segment(4, "rack"),)  # each Job in one rack
    assert parts.role_topology_requests["driver"].role_scope is None

    group = {"replicas": 2, "template": template(1, annotations=REQUIRED)}
    assert read("RayCluster", ray(**group)).group.role_topology_requests["gpus"].role_scope == "rack"


SEGMENTS = {
    "kai.scheduler/segment-size": "3",
    "kai.scheduler/segment-topology-required-placement": "kubernetes.io/hostname",
}


def test_kai_segments_are_those_of_the_role() -> None:
    worker = template(1, annotations=SEGMENTS)
    group = read("LeaderWorkerSet", lws(7, worker=worker)).group
    assert group.role_topology_requests["worker"].segments == (Segment(3, "node"),)
    assert group.causes == ()
    uneven = read("LeaderWorkerSet", lws(6, worker=worker)).group
    assert [(cause.field, cause.value) for cause in uneven.causes] == [  # type: ignore[attr-defined]
        ("annotation kai.scheduler/segment-size", "3")
    ]


def types(count: int) -> Object:
    return {"pytorchReplicaSpecs": {f"Type{number}": {"template": T} for number in range(count)}}


def test_a_job_with_too_many_types_of_pods_is_refused_by_name() -> None:
    assert read("PyTorchJob", types(64)).group.causes == ()
    (cause,) = read("PyTorchJob", types(65)).group.causes
    assert cause == BadValue(
        "pytorchjob/default/x", "spec.pytorchReplicaSpecs", "65 replica types", "at most 64"
    )


def test_of_a_very_large_job_nothing_is_kept_but_a_sentence() -> None:
    described = KINDS["PyTorchJob"]
    small = prune(described, CustomObject("kubeflow.org/v1", Metadata(name="x"), types(10_000)))
    assert small.spec == "an object with more than 8,000 values"
    group = job_gangs(described, small, DEFAULTS, DEFAULT_LEVELS, None).group
    assert BadValue("pytorchjob//x", "spec", small.spec, "an object") in group.causes


def test_of_very_many_labels_the_known_ones_and_the_first_are_kept() -> None:
    labels = {f"kai.scheduler/{number}": "" for number in range(20_001)} | {"kai.scheduler/queue": "q"}
    small = prune(KINDS["Job"], CustomObject("batch/v1", Metadata(name="x", labels=labels), job()))
    assert small.metadata.labels is not None
    assert len(small.metadata.labels) <= bounds.MAX_KEYS + 2
    assert (small.metadata.labels["kai.scheduler/queue"], small.spec["parallelism"]) == ("q", 4)


BAD_KEYS = {
    "a label that is none": ("PyTorchJob", torch(1), {"kai.scheduler/topology-required-placement": "a b"}),
    "a word that is another scope": ("Job", job(), {"kai.scheduler/topology-required-placement": "rack"}),
    "a count that is none": ("Job", job(), {"kai.scheduler/batch-min-member": "many"}),
    "more than there are": ("Job", job(), {"kai.scheduler/batch-min-member": "5"}),
    "more replicated Jobs than there are": (
        "JobSet",
        {"replicatedJobs": [replicated_job("a", 1, 1), replicated_job("b", 1, 1)]},
        {"kai.scheduler/batch-min-member": "3"},
    ),
    "fewer replicated Jobs": (
        "JobSet",
        {"replicatedJobs": [replicated_job("a", 1, 1), replicated_job("b", 1, 1)]},
        {"kai.scheduler/batch-min-member": "1"},
    ),
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_what_kai_could_not_mean_is_a_cause_that_names_the_key(name: str) -> None:
    kind, spec, annotations = BAD_KEYS[name]
    (cause,) = read(kind, spec, annotations=annotations).group.causes
    assert (cause.where, cause.field) == (  # type: ignore[attr-defined]
        f"{kind.lower()}/default/x",
        f"annotation {next(iter(annotations))}",
    )


def test_a_part_of_a_job_may_prefer_a_level() -> None:
    part = template(1, annotations={"kai.scheduler/topology-preferred-placement": RACK})
    group = read("RayCluster", ray(replicas=1, template=part)).group
    assert (group.problems, group.role_topology_requests["gpus"].role_preferred) == ((), ("rack",))


def test_keys_without_effect_are_said() -> None:
    labels = {"priorityClassName": "high", "kai.scheduler/preemptibility": "never"}
    problem = " ".join(read("PyTorchJob", torch(1), labels=labels).group.problems)
    assert "label priorityClassName: high is not applied" in problem
    assert "label kai.scheduler/preemptibility is never" in problem
    part = template(1, annotations={"gpu-fraction": "0.5"})
    assert "gpu-fraction is not read" in read("Job", job(template=part)).group.problems[0]

    workers = replicated_job("workers", 2, 4)
    workers["template"]["metadata"] = {"annotations": {"kai.scheduler/topology-preferred-placement": RACK}}
    (problem,) = read("JobSet", {"replicatedJobs": [workers]}).group.problems
    assert (
        "topology-preferred-placement has no effect on a part that is replicated as a whole (workers)"
        in problem
    )
    part = template(1, annotations={"kai.scheduler/segment-topology-preferred-placement": RACK})
    (problem,) = read("LeaderWorkerSet", lws(worker=part)).group.problems
    assert (
        "segment-topology-preferred-placement has no effect: write kai.scheduler/segment-topology-req"
        in problem
    )


SLIPS = {
    "a constraint": (
        {"annotations": {"kai.scheduler/topology-required-placment": RACK}},
        "annotation kai.scheduler/topology-required-placment",
        "none: did you mean kai.scheduler/topology-required-placement?",
    ),
    "a queue": (
        {"labels": {"kai.scheduler/qeue": "team"}},
        "label kai.scheduler/qeue",
        "none: did you mean kai.scheduler/queue?",
    ),
    "a prefix": (
        {"labels": {"kai.schedular/queue": "team"}},
        "label kai.schedular/queue",
        "none: did you mean kai.scheduler/queue?",
    ),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_misspelt_key_of_kai_on_a_job_is_a_cause_and_the_job_a_gang(name: str) -> None:
    meta, cause_field, expected = SLIPS[name]
    result = read("Job", job(), **meta)  # type: ignore[arg-type]
    (cause,) = result.group.causes
    assert (result.by_key, cause.field, cause.expected) == (True, cause_field, expected)  # type: ignore[attr-defined]


def test_a_misspelt_key_of_kai_on_a_replicated_job_is_a_cause() -> None:
    workers = replicated_job("workers", 2, 4)
    workers["template"]["metadata"] = {"annotations": {"kai.scheduler/topology-required-placment": RACK}}
    (cause,) = read("JobSet", {"replicatedJobs": [workers]}).group.causes
    assert "did you mean kai.scheduler/topology-required-placement" in str(cause)


def test_a_slip_on_a_pod_template_is_said_of_its_pods_alone() -> None:
    """Its pods have it too."""
    part = template(1, annotations={"kai.scheduler/topology-required-placment": RACK})
    assert read("RayCluster", ray(replicas=1, template=part)).group.causes == ()


def test_keys_of_other_systems_are_no_slips() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "q", "app.kubernetes.io/name": "x", "kai.scheduler/new": "1"}
    group = read("Job", job(), labels=labels, annotations={"example.com/topology": "x"}).group
    assert (group.causes, group.problems) == ((), ())


def test_our_annotations_on_the_job_belong_on_its_pod_template() -> None:
    ours = {"gpu.topology/scope": "rack", "gpu.topology/scop": "rack"}
    result = read("Job", job(), annotations=ours)
    assert result.group.problems == (
        "gpu.topology/scop has no effect on the job: gpu.topology/scope belongs on the pod template",
        "gpu.topology/scope has no effect on the job: it belongs on the pod template",
    )
    assert (result.by_key, result.group.causes) == (False, ())


COUNT = {"kai.scheduler/batch-min-member": "2"}
MISPLACED = {
    "a level of a Ray group": (
        "RayCluster", ray(replicas=1, template=template(1, annotations=REQUIRED)), {}, "",
    ),
    "a level of a group's workers": (
        "LeaderWorkerSet", lws(worker=template(1, annotations=REQUIRED)), {},
        "topology-required-placement has no effect on the pod template: write it on the job",
    ),
    "a count of a Job": ("Job", job(), COUNT, ""),
    "a count of a Job's pods": (
        "Job", job(template=template(1, annotations=COUNT)), {},
        "batch-min-member has no effect on the pod template: write it on the job",
    ),
    "a count of a PyTorchJob": (
        "PyTorchJob", torch(3), COUNT, "batch-min-member has no effect: it counts in a Job or a JobSet",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISPLACED)
def test_keys_of_kai_in_another_place_are_said(name: str) -> None:
    kind, spec, annotations, problem = MISPLACED[name]
    problems = read(kind, spec, annotations=annotations).group.problems
    assert problems == ((f"annotation kai.scheduler/{problem}",) if problem else ())


def test_of_very_many_unknown_keys_only_some_are_compared() -> None:
    labels = {f"kai.schedular/{number}": "" for number in range(1000)}
    small = prune(KINDS["Job"], CustomObject("batch/v1", Metadata(name="x", labels=labels), job()))
    assert len(small.metadata.labels or {}) <= 64


MODES: dict[str, tuple[str, Object, Object, Mode, bool, bool]] = {
    "off": ("PyTorchJob", torch(1), {}, "off", False, False),
    "warn": ("PyTorchJob", torch(1), {}, "warn", False, True),
    "on": ("PyTorchJob", torch(1), {}, "on", True, False),
    "KAI's key, though off": ("PyTorchJob", torch(1), {"kai.scheduler/queue": "a"}, "off", True, False),
    "KAI is asked to skip it": (
        "PyTorchJob", torch(1), {"kai.scheduler/skip-podgrouper": "true"}, "on", False, False,
    ),
    "KAI's key on a StatefulSet, which KAI starts pod by pod": (
        "StatefulSet", {"replicas": 2, "podManagementPolicy": "Parallel", "template": T},
        {"kai.scheduler/queue": "a"}, "on", False, False,
    ),
    "one pod needs no warning": ("Job", job(1, 1), {}, "warn", False, False),
    "no GPUs, no warning": ("Job", job(template=NO_GPU), {}, "warn", False, False),
    "pods without GPUs, which the shim does not hold": ("Job", job(template=NO_GPU), {}, "on", False, False),
    "pods without GPUs that it holds": ("MPIJob", mpi(), {}, "on", True, False),
}  # fmt: skip


@pytest.mark.parametrize("name", MODES)
def test_the_setting(name: str) -> None:
    kind, spec, labels, mode, joined, warned = MODES[name]
    settings = DialectSettings(infer_gangs=(("default", mode),))
    result = read(kind, spec, settings, labels=labels)
    assert (result.is_gang(settings), result.is_warned_of(settings)) == (joined, warned)


def test_kais_key_may_stand_on_a_template_or_on_the_maker() -> None:
    queue = template(1, labels={"kai.scheduler/queue": "team"})
    result = read("Job", job(template=queue))
    assert (result.by_key, result.group.queue) == (True, "team")
    made_by = Metadata(name="r", labels={"kai.scheduler/queue": "team"}, annotations=REQUIRED)
    child = read("RayCluster", ray(replicas=2), made_by=made_by)
    assert (child.by_key, child.group.topology_request.required_scope) == (True, "rack")


def test_a_statefulset_is_a_gang_on_request_alone() -> None:
    assert DialectSettings(infer_gangs=modes_of(["on"])).infers("StatefulSet") == "off"
    assert DialectSettings(infer_gangs=modes_of(["StatefulSet=on"])).infers("StatefulSet") == "on"
    assert DialectSettings(infer_gangs=modes_of(["on", "Job=off"])).infers("Job") == "off"
    for text in ("Jobb=on", "yes", "Job="):
        with pytest.raises(ValueError, match="expected"):
            modes_of([text])


JOBSET = {"jobset.sigs.k8s.io/jobset-name": "x", "jobset.sigs.k8s.io/replicatedjob-name": "w"}
GROUP = {
    "leaderworkerset.sigs.k8s.io/name": "x",
    "leaderworkerset.sigs.k8s.io/group-index": "2",
    "leaderworkerset.sigs.k8s.io/worker-index": "0",
}
LAUNCHER = {
    "training.kubeflow.org/operator-name": "mpi-operator",
    "training.kubeflow.org/job-name": "x",
    "training.kubeflow.org/job-role": "launcher",
}
MEMBERS: dict[str, tuple[str, str, dict[str, str], JobPod | None]] = {
    "of a Job": ("batch/v1", "Job/x", {}, JobPod("Job", "x", "x")),
    "of Volcano's Job": ("batch.volcano.sh/v1alpha1", "Job/x", {}, None),
    "of a JobSet": ("batch/v1", "Job/x-w-0", JOBSET, JobPod("JobSet", "x", "x", "w")),
    "with a JobSet's label alone": ("apps/v1", "ReplicaSet/r", JOBSET, None),
    "of a LeaderWorkerSet": (
        "apps/v1", "StatefulSet/x", GROUP, JobPod("LeaderWorkerSet", "x", "x-2", "leader"),
    ),
    "of a StatefulSet": ("apps/v1", "StatefulSet/x", {}, JobPod("StatefulSet", "x", "x")),
    "of a PyTorchJob": (
        "kubeflow.org/v1", "PyTorchJob/x", {"training.kubeflow.org/replica-type": "worker"},
        JobPod("PyTorchJob", "x", "x", "worker"),
    ),
    "the launcher of mpi-operator": (
        "batch/v1", "Job/x-launcher", LAUNCHER, JobPod("MPIJob", "x", "x", "launcher"),
    ),
    "a Job that says it is one": ("batch/v1", "Job/other", LAUNCHER, JobPod("Job", "other", "other")),
    "of a RayCluster": (
        "ray.io/v1", "RayCluster/x", {"ray.io/group": "gpus"}, JobPod("RayCluster", "x", "x", "gpus"),
    ),
    "of a ReplicaSet": ("apps/v1", "ReplicaSet/x", {}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMBERS)
def test_the_place_of_a_pod(name: str) -> None:
    api_version, owner, labels, expected = MEMBERS[name]
    kind, _, by = owner.partition("/")
    owners = [OwnerReference(api_version, "u", kind, by, controller=True)]
    assert member(Metadata(name="p", labels=labels, owner_references=owners)) == expected


NOT_READ = {
    "RayService": ("ray.io/v1", "RayCluster/x", JobPod("RayCluster", "x", "x")),
    "Deployment": ("apps/v1", "ReplicaSet/x", None),
    "CronJob": ("batch/v1", "Job/x", JobPod("Job", "x", "x")),
    "Notebook": ("apps/v1", "StatefulSet/x", JobPod("StatefulSet", "x", "x")),
    "Spark (`spark-submit`)": ("v1", "Pod/driver", None),
    "SparkApplication": ("sparkoperator.k8s.io/v1beta2", "SparkApplication/x", None),
    "Knative Service": ("apps/v1", "ReplicaSet/x", None),
    "Grove's PodCliqueSet": ("grove.io/v1alpha1", "PodClique/x", None),
    "DynamoGraphDeployment": ("grove.io/v1alpha1", "PodClique/x", None),
    "Argo's Workflow": ("argoproj.io/v1alpha1", "Workflow/x", None),
    "AppWrapper": ("batch/v1", "Job/x", JobPod("Job", "x", "x")),
    "pod group of Kueue (`kueue.x-k8s.io/pod-group-name`)": ("", "", None),
}
"""A kind that is not read → the controller of its pods, and their place by it."""


@pytest.mark.parametrize("name", NOT_READ)
def test_the_pods_of_a_kind_that_is_not_read(name: str) -> None:
    api_version, owner, expected = NOT_READ[name]
    kind, _, by = owner.partition("/")
    owners = [OwnerReference(api_version, "u", kind, by, controller=True)] if kind else []
    assert member(Metadata(name="p", owner_references=owners)) == expected


def test_the_page_lists_the_kinds_that_are_not_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kinds.md").read_text()
    rows = page.partition("## Kinds that are not read")[2].partition("\n## ")[0]
    names = [line.split(" | ")[0].removeprefix("| ") for line in rows.splitlines() if line.startswith("| ")]
    assert names[2:] == list(NOT_READ)


def test_a_pod_without_an_owner_has_no_place() -> None:
    assert member(Metadata(name="p", labels={**JOBSET, **GROUP, **LAUNCHER})) is None


def test_what_is_not_read_is_not_kept() -> None:
    """Every string of a manifest that no description reads is gone, wherever it stands."""
    secret: Object = {"env": [{"name": "s3cret", "value": "s3cret"}], "s3cret": "s3cret", "image": "s3cret"}
    meta: Object = {"labels": {"s3cret": "x"}, "annotations": {"s3cret": "x", **REQUIRED}, **secret}
    container = {"name": "c", **secret, "resources": {"limits": {"nvidia.com/gpu": 1}, "claims": [secret]}}
    volumes = [{"name": "v", "secret": {"secretName": "s3cret"}}]
    pod: Object = {"containers": [container], "volumes": volumes, "serviceAccountName": "s3cret", **secret}
    of_pod = {"metadata": meta, "spec": pod}
    of_job = {"metadata": meta, "spec": {"parallelism": 2, "template": of_pod, **secret}}
    spec = {"replicatedJobs": [{"name": "w", "template": of_job, **secret}], "network": secret, **secret}
    obj = CustomObject(
        "v1", Metadata(name="x", annotations=meta["annotations"], labels={"a": "s3cret"}), spec
    )
    small = prune(KINDS["JobSet"], obj)
    assert "s3cret" not in str(small)
    assert small.metadata.annotations == REQUIRED
    assert small.spec["replicatedJobs"][0]["template"]["spec"] == {
        "parallelism": 2,
        "template": {
            "metadata": {"labels": {}, "annotations": REQUIRED},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}]},
        },
    }


@pytest.mark.parametrize("kind", KINDS)
def test_any_json_is_read(kind: str) -> None:
    odd: list[Any] = [None, 3, "x", [], [3], {"a": 1}, {"replicatedJobs": [None]}, {"replicas": 10**12}]
    for spec in odd:
        result = read(kind, spec)
        assert result.group.min_member
        assert len(result.group.causes) <= 8
