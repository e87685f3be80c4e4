"""Describe kubeflow's jobs: PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob, and both versions of MPIJob.

Each has a map of replica types (Master, Worker, PS …), and these are the roles. The fields are those of
kubeflow/training-operator v1 and of kubeflow/mpi-operator v2beta1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from muster.dialects.gangs.ranks import REPLICA_INDEX, REPLICA_TYPE, REPLICA_TYPES
from muster.dialects.kinds.description import (
    MAX_ROLES,
    Described,
    JobObject,
    JobPod,
    JobRole,
    Kind,
    NewPod,
    check_pod_count,
    container,
    controller_of,
    letters,
    why_idle,
)
from muster.dialects.objects import Container, Metadata
from muster.dialects.reading import Fields

GROUP = "kubeflow.org"
JOB_NAME = "training.kubeflow.org/job-name"
JOB_ROLE = "training.kubeflow.org/job-role"
OPERATOR = "training.kubeflow.org/operator-name"
MPI_OPERATOR = "mpi-operator"

REPLICA_SPECS: Mapping[str, str] = MappingProxyType(
    {
        "PyTorchJob": "pytorchReplicaSpecs",
        "TFJob": "tfReplicaSpecs",
        "XGBoostJob": "xgbReplicaSpecs",
        "PaddleJob": "paddleReplicaSpecs",
        "JAXJob": "jaxReplicaSpecs",
        "MPIJob": "mpiReplicaSpecs",
    }
)
"""Maps a kind to the field of its replica types."""
_FIELDS = (
    "elasticPolicy", "launcherCreationPolicy", "minAvailable", "minReplicas", "runLauncherAsWorker",
    "runPolicy", "schedulingPolicy",
)  # fmt: skip
_LAUNCHER, _MASTER = "launcher", "Master"
_FIRST: Mapping[tuple[str, str], Container] = MappingProxyType(
    {
        ("PyTorchJob", "worker"): container("init-pytorch", "50m", "10Mi"),
        ("MPIJob", _LAUNCHER): container("kubectl-delivery", "100m", "512Mi"),
    }
)
"""The init containers that the training operator adds, by kind and role. Workers wait for a master only if
the job has one.
"""


def describe(owner: JobObject) -> Described:
    """Describe a job. All pods of all replica types start together, unless the job sets a smaller number."""
    field = REPLICA_SPECS[owner.kind]
    types = owner.spec.part(field)
    if not types.names():
        owner.spec.bad(field, "", "replica types with a pod template each")
    if len(types.names()) > MAX_ROLES:
        owner.spec.bad(field, f"{len(types.names())} replica types", f"at most {MAX_ROLES}")
    roles = [_role(owner, types, field, name) for name in sorted(types.names(), key=_order)[:MAX_ROLES]]
    policy = owner.spec.part("runPolicy")
    least = policy.part("schedulingPolicy").positive("minAvailable")
    if least is None:
        least = owner.spec.part("elasticPolicy").positive("minReplicas")
    if least is not None:
        roles = _divide(least, roles)
    return Described(tuple(roles), idle=why_idle(owner, policy.raw("suspend")))


def _role(owner: JobObject, types: Fields, field: str, name: str) -> JobRole:
    spec, kind = types.part(name), name.lower()
    replicas = spec.natural("replicas")
    count = check_pod_count(spec, "replicas", 1 if replicas is None else replicas)
    late = kind == _LAUNCHER and owner.spec.text("launcherCreationPolicy") == "WaitForWorkersReady"
    return JobRole(
        kind,
        count,
        count,
        spec.raw("template"),
        f"spec.{field}.{name}.template",
        _mpi_pod_maker(owner, kind) if owner.api_version.endswith("v2beta1") else _pod_maker(owner, kind),
        later=count if late else 0,
    )


def _divide(least: int, roles: list[JobRole]) -> list[JobRole]:
    """Divide the number that must start among the roles, in their order.

    The workers come last, so they may have the smallest share. A launcher that comes later has no share.
    """
    shared_roles = []
    for role in roles:
        share = role.min_members if role.follows else min(role.min_members, least)
        least -= 0 if role.follows else share
        shared_roles.append(replace(role, min_members=share))
    return shared_roles


def _order(name: str) -> tuple[int, str]:
    kind = name.lower()
    return (REPLICA_TYPES.index(kind) if kind in REPLICA_TYPES else len(REPLICA_TYPES) - 2, name)


def _pod_maker(owner: JobObject, kind: str) -> Callable[[int, int], NewPod]:
    first = _FIRST.get((owner.kind, kind))
    if owner.kind == "PyTorchJob" and owner.spec.part(REPLICA_SPECS[owner.kind]).raw(_MASTER) is None:
        first = None

    def pod(_: int, number: int) -> NewPod:
        labels = {
            OPERATOR: f"{owner.kind.lower()}-controller",
            JOB_NAME: owner.name,
            REPLICA_TYPE: kind,
            REPLICA_INDEX: str(number),
        }
        is_launcher = owner.kind == "MPIJob" and kind == _LAUNCHER
        name = f"{owner.name}-{kind}" + ("" if is_launcher else f"-{number}")
        return NewPod(name, labels, init_containers=(first,) if first is not None else ())

    return pod


def _mpi_pod_maker(owner: JobObject, kind: str) -> Callable[[int, int], NewPod]:
    """Return a function that makes a pod of mpi-operator. The operator makes the workers itself, and a Job
    for the launcher."""
    padded = 1 if owner.spec.raw("runLauncherAsWorker") is True else 0

    def pod(_: int, number: int) -> NewPod:
        labels = {OPERATOR: MPI_OPERATOR, JOB_NAME: owner.name, JOB_ROLE: kind}
        if kind != _LAUNCHER:
            return NewPod(f"{owner.name}-{kind}-{number}", {**labels, REPLICA_INDEX: str(number + padded)})
        if padded:
            labels[REPLICA_INDEX] = "0"
        job = f"{owner.name}-{_LAUNCHER}"
        return NewPod(f"{job}-{letters(number)}", labels, controller=("Job", job))

    return pod


def member(meta: Metadata) -> JobPod | None:
    """Return the place of a pod in its job. Its role is the replica type."""
    group, kind, name = controller_of(meta)
    labels = meta.labels or {}
    role = labels.get(REPLICA_TYPE) or labels.get(JOB_ROLE) or ""
    if group == GROUP and kind in REPLICA_SPECS:
        return JobPod(kind, name, name, role.lower())
    by_mpi_operator = labels.get(OPERATOR) == MPI_OPERATOR and (group, kind) == ("batch", "Job")
    if by_mpi_operator and (job := labels.get(JOB_NAME, "")) and name == f"{job}-{_LAUNCHER}":
        return JobPod("MPIJob", job, job, role.lower())
    return None


def _kind(kind: str, versions: tuple[str, ...] = ("v1",)) -> Kind:
    def member_of_kind(meta: Metadata) -> JobPod | None:
        place = member(meta)
        return place if place is not None and place.kind == kind else None

    return Kind(
        GROUP,
        versions,
        kind,
        f"{kind.lower()}s",
        describe,
        member_of_kind,
        label=JOB_NAME,
        fields=_FIELDS,
        maps=(REPLICA_SPECS[kind],),
    )


KINDS = tuple(_kind(kind, ("v2beta1", "v1") if kind == "MPIJob" else ("v1",)) for kind in REPLICA_SPECS)
