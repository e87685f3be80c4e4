"""Describe JobSets (kubernetes-sigs/jobset): replicated Jobs under one name. A TrainJob makes a JobSet."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from muster.dialects.gangs import kai
from muster.dialects.gangs.ranks import COMPLETION_INDEX, JOB_GLOBAL_INDEX
from muster.dialects.kinds.batch import JOB_NAMES, at_once
from muster.dialects.kinds.description import (
    MAX_ROLES,
    Described,
    JobObject,
    JobPod,
    JobRole,
    Kind,
    NewPod,
    check_pod_count,
    controller_of,
    letters,
    why_idle,
)
from muster.dialects.objects import Metadata, PodToleration
from muster.dialects.reading import Fields

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
BY_NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
JOB_KEY = "jobset.sigs.k8s.io/job-key"
PRIORITY = "jobset.sigs.k8s.io/priority"
_NODE_OF_JOB = "alpha.jobset.sigs.k8s.io/namespaced-job"
_TAINT = PodToleration("alpha.jobset.sigs.k8s.io/no-schedule", "Exists", effect="NoSchedule")


def describe(owner: JobObject) -> Described:
    """Describe a JobSet. Each replicated Job is a role, and all pods of all roles must start together.

    If a replicated Job starts after another (`startupPolicy`, `dependsOn`), its pods come later. If each Job
    has a topology domain of its own, its other pods come when its first pod has a node.
    """
    spec, roles, earlier_jobs = owner.spec, list[JobRole](), 0
    late_jobs = set[str]()
    """Replicated Jobs that start when other Jobs have completed, or that start with such a Job."""
    in_order = spec.part("startupPolicy").text("startupPolicyOrder") == "InOrder"
    for number, item in enumerate(spec.objects_in("replicatedJobs", MAX_ROLES)):
        replicas = item.natural("replicas")
        jobs = 1 if replicas is None else replicas
        role = _role(owner, number, item, jobs, earlier_jobs)
        waits_for = {
            dependency.text("name"): dependency.text("status")
            for dependency in item.objects_in("dependsOn", MAX_ROLES)
        }
        if (in_order and number) or waits_for:
            is_late = any(status == "Complete" or name in late_jobs for name, status in waits_for.items())
            late_jobs |= {role.name} if is_late else set()
            role = replace(role, later=role.count, runs_with_first=not is_late)
        roles.append(role)
        earlier_jobs += jobs
    if not roles:
        spec.bad("replicatedJobs", "", "replicated Jobs with a template each")
    kai.check_min_subgroups(spec, owner.meta, len(roles))
    return Described(tuple(roles), idle=why_idle(owner, spec.raw("suspend")))


def _role(owner: JobObject, number: int, item: Fields, jobs: int, earlier_jobs: int) -> JobRole:
    name = item.text("name", required=True) or ""
    template = item.part("template")
    spec = template.part("spec")
    pods_of_job, _ = at_once(spec)
    keys = kai.annotations_of(template.part("metadata"))
    count = check_pod_count(item, "replicas", jobs * pods_of_job)
    first = kai.min_member(template.part("metadata"), keys, pods_of_job) or pods_of_job
    least = jobs * first
    path = f"spec.replicatedJobs[{number}].template.spec.template"
    placement = _placement(owner, keys)
    pod = _pod_maker(owner, name, pods_of_job, earlier_jobs, placement)
    unit = pods_of_job if jobs > 1 else 0
    exclusive = is_exclusive(placement)
    later = max(0, count - jobs) if exclusive else 0
    return JobRole(
        name,
        count,
        min(least, count - later),
        spec.raw("template"),
        path,
        pod,
        later,
        unit=unit,
        keys=keys,
        min_of_replica=first if jobs > 1 and first < pods_of_job else 0,
        exclusive=exclusive,
        unit_label=JOB_INDEX if exclusive else "",
    )


def _placement(owner: JobObject, job_annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations of a replicated Job's pods that give each Job a domain.

    The annotations may be on the JobSet or on the Job's template.
    """
    set_annotations = owner.meta.annotations or {}
    annotations = {**(set_annotations if EXCLUSIVE in set_annotations else {}), **job_annotations}
    return {key: annotations[key] for key in (EXCLUSIVE, BY_NODE_SELECTOR) if key in annotations}


def is_exclusive(annotations: Mapping[str, str]) -> bool:
    """Return whether each Job has a domain of its own, which its first pod chooses.

    With the node selector, the user has chosen the domains by labels of nodes, and all pods come at once.
    """
    return EXCLUSIVE in annotations and BY_NODE_SELECTOR not in annotations


def _pod_maker(
    owner: JobObject, role: str, pods_of_job: int, earlier_jobs: int, placement: Mapping[str, str]
) -> Callable[[int, int], NewPod]:
    by_node_selector = EXCLUSIVE in placement and BY_NODE_SELECTOR in placement

    def pod(_: int, number: int) -> NewPod:
        job, index = divmod(number, pods_of_job)
        name = f"{owner.name}-{role}-{job}"
        labels = {
            JOBSET_NAME: owner.name,
            REPLICATED_JOB: role,
            JOB_INDEX: str(job),
            JOB_GLOBAL_INDEX: str(earlier_jobs + job),
            JOB_KEY: hashlib.sha1(f"{owner.meta.namespace}/{name}".encode()).hexdigest(),
            COMPLETION_INDEX: str(index),
        }
        return NewPod(
            f"{name}-{index}-{letters(number)}",
            {**labels, **dict.fromkeys(JOB_NAMES, name)},
            {**labels, **placement},
            ("Job", name),
            node_selector={_NODE_OF_JOB: f"{owner.meta.namespace}_{name}"} if by_node_selector else {},
            tolerations=(_TAINT,) if by_node_selector else (),
        )

    return pod


def member(meta: Metadata) -> JobPod | None:
    """Return the JobSet of a pod that a Job made, and the replicated Job as its role."""
    labels = meta.labels or {}
    name, (group, kind, _) = labels.get(JOBSET_NAME), controller_of(meta)
    if not name or (group, kind) != ("batch", "Job"):
        return None
    return JobPod("JobSet", name, name, labels.get(REPLICATED_JOB, ""))


JOB_SET = Kind(
    "jobset.x-k8s.io",
    ("v1alpha2",),
    "JobSet",
    "jobsets",
    describe,
    member,
    made_by=("TrainJob",),
    label=JOBSET_NAME,
    fields=("dependsOn", "replicatedJobs", "startupPolicy", "startupPolicyOrder"),
    keys=(EXCLUSIVE, BY_NODE_SELECTOR),
)
