"""A pod's place among its like, by which controllers number their pods: only the order is meant.

If a controller makes groups of pods (LeaderWorkerSet, JobSet, replica types of a PyTorchJob), one group comes
after another. So a segment holds members of one group as far as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.dialects.objects import Metadata
from muster.dialects.reading import natural
from muster.domain.pod import GROUP

POD_INDEX = "apps.kubernetes.io/pod-index"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOB_GLOBAL_INDEX = "jobset.sigs.k8s.io/job-global-index"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
REPLICA_TYPE = "training.kubeflow.org/replica-type"
RAY_REPLICA = "ray.io/worker-group-replica-index"
RAY_HOST = "ray.io/replica-host-index"

KEYS = (
    POD_INDEX, COMPLETION_INDEX, JOB_GLOBAL_INDEX, GROUP_INDEX, WORKER_INDEX, REPLICA_INDEX, REPLICA_TYPE,
    RAY_REPLICA, RAY_HOST,
)  # fmt: skip
_KNOWN = frozenset(KEYS)

REPLICA_TYPES = ("launcher", "master", "chief", "ps", "evaluator", "worker")
"""Kubeflow's, in the order in which KAI numbers them (docs/developer/designs/segmented-subgroups of
NVIDIA/KAI-Scheduler, "Workload to Index Computation")."""


def read(meta: Metadata) -> int | None:
    """Return what the pod's controller numbered it, else the number at the end of its name, unless the name
    ends at random; None for neither. The first that can be read counts.
    """
    labels, annotations = meta.labels or {}, meta.annotations or {}
    if not (_KNOWN.isdisjoint(labels) and _KNOWN.isdisjoint(annotations)):
        values = {**annotations, **labels}
        for order in ORDERS:
            if (rank := order(values)) is not None:
                return rank
    return _of_name(meta)


def _one(key: str) -> Callable[[Mapping[str, str]], int | None]:
    return lambda values: natural(values.get(key))


def _grouped(group_key: str, key: str) -> Callable[[Mapping[str, str]], int | None]:
    def rank(values: Mapping[str, str]) -> int | None:
        group, index = natural(values.get(group_key)), natural(values.get(key))
        return None if group is None or index is None else group * GROUP + index

    return rank


def _replica(values: Mapping[str, str]) -> int | None:
    index, kind = natural(values.get(REPLICA_INDEX)), values.get(REPLICA_TYPE, "").lower()
    if index is None or kind not in REPLICA_TYPES:
        return index
    return REPLICA_TYPES.index(kind) * GROUP + index


ORDERS: tuple[Callable[[Mapping[str, str]], int | None], ...] = (
    # Before the ordinal: leaders are one StatefulSet, and the workers of each group another.
    _grouped(GROUP_INDEX, WORKER_INDEX),
    _grouped(JOB_GLOBAL_INDEX, COMPLETION_INDEX),
    _one(COMPLETION_INDEX),
    _replica,
    _grouped(RAY_REPLICA, RAY_HOST),
    _one(POD_INDEX),
)
"""Annotations and labels together → the rank, the first that speaks wins. The keys are in the reference pages
of labels of Kubernetes, LeaderWorkerSet, JobSet and the training operator, and in KubeRay's constants."""


def _of_name(meta: Metadata) -> int | None:
    _, dash, end = meta.name.rpartition("-")
    return natural(end) if dash and not meta.generate_name else None
