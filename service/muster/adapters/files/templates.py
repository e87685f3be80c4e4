"""Create the pods that controllers would create: Jobs, StatefulSets, Deployments, PyTorchJobs and similar
ones.

Names are those of the controllers if they are fixed (StatefulSet, indexed Job, kubeflow). If a controller
ends a name at random, the end here is made of letters that count up. So the same file gives the same names,
and no end is read as a rank.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from muster.adapters.files import shapes
from muster.adapters.files.shapes import Condition, Job, PodManifest, Template, TrainingJob, Workload
from muster.adapters.files.sources import Document
from muster.dialects.objects import Metadata, OwnerReference
from muster.dialects.pods import TEMPLATE_HASH

MAX_PODS = 200_000
"""The most pods that one object may stand for. The largest cluster that Kubernetes supports has 150,000."""

_LETTERS = "bcdfghjklmnpqrstvwxz"
"""The letters among the characters of random names (k8s.io/apimachinery/pkg/util/rand)."""
_INDEX = "batch.kubernetes.io/job-completion-index"
_REPLICA_SPECS = re.compile(r"[a-z]+ReplicaSpecs")

ORDERED = "OrderedReady"
"""A StatefulSet's default policy: the next pod is created when the one before it runs."""


@dataclass(frozen=True, slots=True)
class Made:
    """A controller's pods, or `why_none`. `ordered` is whether each is created only when the one before it
    runs.
    """

    pods: tuple[PodManifest, ...] = ()
    why_none: str = ""
    ordered: bool = False


def expand(document: Document) -> Made | None:
    """Return the pods that an object stands for; None if its kind creates no pods that are read.

    Raises:
        Malformed: A field is wrong. The message names it.
    """
    maker = MAKERS.get((document.group, document.kind))
    return maker(document) if maker is not None else None


def uid_of(kind: str, namespace: str, name: str) -> str:
    """Return a UID for an object that has none, the same in every run."""
    return str(uuid.uuid5(_NAMESPACE, f"{kind}/{namespace}/{name}"))


_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://gpu.topology/files")


def letters(number: int, width: int = 5) -> str:
    """Return a number as letters: bbbbb, bbbbc, bbbbd …"""
    text = ""
    for _ in range(width):
        number, digit = divmod(number, len(_LETTERS))
        text = _LETTERS[digit] + text
    return text


# --- the controllers -------------------------------------------------------------------------------


def _job(document: Document) -> Made:
    job = shapes.convert(document, Job)
    shapes.check_named(document, job.metadata)
    spec, done = job.spec, job.status.succeeded or 0
    check_template(document, spec.template, "spec.template")
    if spec.suspend:
        return Made(why_none="it is suspended")
    if _over(job.status.conditions):
        return Made(why_none="it has finished")
    parallelism = 1 if spec.parallelism is None else spec.parallelism
    wanted = parallelism if spec.completions is None else min(parallelism, max(0, spec.completions - done))
    indexed = spec.completion_mode == "Indexed"
    names = (
        (f"{i}-{letters(i)}" if indexed else letters(i), {_INDEX: str(i)} if indexed else {})
        for i in range(_bounded(document, "spec.parallelism", wanted))
    )
    labels = {"job-name": job.metadata.name, "batch.kubernetes.io/job-name": job.metadata.name}
    owner = _owner(document, job.metadata)
    return Made(
        tuple(
            _pod(f"{job.metadata.name}-{end}", spec.template, owner, labels, annotations)
            for end, annotations in names
        )
    )


def _replicas(document: Document) -> Made:
    """Return the pods of a Deployment, ReplicaSet or ReplicationController: equal pods with random names."""
    workload, count = _workload(document)
    stem = workload.metadata.name
    owner = _owner(document, workload.metadata)
    labels: dict[str, str] = {}
    if document.kind == "Deployment":
        # Its pods' owner is a ReplicaSet, named by a hash of the template.
        digest = hashlib.sha256(repr(workload.spec.template).encode()).digest()
        labels[TEMPLATE_HASH] = letters(int.from_bytes(digest[:8]), 9)
        stem = f"{stem}-{labels[TEMPLATE_HASH]}"
        owner = _Owner("ReplicaSet", stem, owner.namespace, uid_of("ReplicaSet", owner.namespace, stem))
    return Made(
        tuple(_pod(f"{stem}-{letters(i)}", workload.spec.template, owner, labels) for i in range(count))
    )


def _stateful_set(document: Document) -> Made:
    workload, count = _workload(document)
    spec, owner = workload.spec, _owner(document, workload.metadata)
    start = (spec.ordinals.start if spec.ordinals else None) or 0
    pods = (_pod(f"{owner.name}-{i}", spec.template, owner) for i in range(start, start + count))
    return Made(tuple(pods), ordered=count > 1 and (spec.pod_management_policy or ORDERED) == ORDERED)


def _training_job(document: Document) -> Made:
    """Return the pods of a kubeflow.org job: `<job>-<type>-<i>` for each type (Master,
    Worker, PS, Chief …).
    """
    job = shapes.convert(document, TrainingJob)
    shapes.check_named(document, job.metadata)
    fields = sorted(field for field in job.spec if _REPLICA_SPECS.fullmatch(field))
    if not fields:
        expected = "pytorchReplicaSpecs" if document.kind == "PyTorchJob" else "…ReplicaSpecs"
        raise document.malformed(f"spec.{expected}: expected, but not given")
    policy = shapes.convert(document, shapes.RunPolicy, job.spec.get("runPolicy") or {}, "spec.runPolicy")
    pods: list[PodManifest] = []
    owner = _owner(document, job.metadata)
    for field in fields:
        under = f"spec.{field}"
        specs = shapes.convert(document, dict[str, shapes.ReplicaSpec], job.spec[field], under)
        for kind, replica in specs.items():
            check_template(document, replica.template, f"{under}.{kind}.template")
            count = 1 if replica.replicas is None else replica.replicas
            count = _bounded(document, f"{under}.{kind}.replicas", count)
            for i in range(count):
                labels = {
                    "training.kubeflow.org/job-name": owner.name,
                    "training.kubeflow.org/replica-type": kind.lower(),
                    "training.kubeflow.org/replica-index": str(i),
                }
                pods.append(_pod(f"{owner.name}-{kind.lower()}-{i}", replica.template, owner, labels))
    if policy.suspend:
        return Made(why_none="it is suspended")
    if _over(job.status.conditions):
        return Made(why_none="it has finished")
    return Made(tuple(pods))


Maker = Callable[[Document], Made]

MAKERS: Mapping[tuple[str, str], Maker] = MappingProxyType(
    {
        ("batch", "Job"): _job,
        ("apps", "Deployment"): _replicas,
        ("apps", "ReplicaSet"): _replicas,
        ("", "ReplicationController"): _replicas,
        ("apps", "StatefulSet"): _stateful_set,
        **{
            ("kubeflow.org", f"{framework}Job"): _training_job
            for framework in ("PyTorch", "TF", "XGBoost", "Paddle", "JAX")
        },
    }
)
"""(API group, kind) → what it would create. Other kinds are skipped: Volcano's Job is not that of batch."""


# --- what they share -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Owner:
    kind: str
    name: str
    namespace: str
    uid: str


def _owner(document: Document, meta: Metadata) -> _Owner:
    namespace = meta.namespace or "default"
    return _Owner(
        document.kind, meta.name, namespace, meta.uid or uid_of(document.kind, namespace, meta.name)
    )


def _workload(document: Document) -> tuple[Workload, int]:
    workload = shapes.convert(document, Workload)
    shapes.check_named(document, workload.metadata)
    check_template(document, workload.spec.template, "spec.template")
    replicas = 1 if workload.spec.replicas is None else workload.spec.replicas
    return workload, _bounded(document, "spec.replicas", replicas)


def _bounded(document: Document, field: str, count: int) -> int:
    if count > MAX_PODS:
        raise document.malformed(f"{field}: expected at most {MAX_PODS:,}, got {count}")
    return count


def check_template(document: Document, template: Template, under: str) -> None:
    """Raise Malformed if the API server would refuse pods of this template; `under` is its field."""
    shapes.check_metadata(document, template.metadata, f"{under}.metadata")
    shapes.check_spec(document, template.spec, f"{under}.spec")


def _over(conditions: list[Condition] | None) -> bool:
    ends = ("Complete", "Failed", "Succeeded")
    return any(c.type in ends and c.status == "True" for c in conditions or ())


def _pod(
    name: str,
    template: Template,
    owner: _Owner,
    labels: Mapping[str, str] = MappingProxyType({}),
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> PodManifest:
    return PodManifest(
        metadata=shapes.Named(
            name=name,
            namespace=owner.namespace,
            labels={**(template.metadata.labels or {}), **labels},
            annotations={**(template.metadata.annotations or {}), **annotations},
            owner_references=[
                OwnerReference(uid=owner.uid, kind=owner.kind, name=owner.name, controller=True)
            ],
        ),
        spec=template.spec,
    )
