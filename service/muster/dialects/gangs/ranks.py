"""A pod's rank among the pods of its gang, by the number that its controller gave it. Only the order of ranks
matters.

If a controller makes groups of pods (LeaderWorkerSet, JobSet, replica types of a PyTorchJob), the groups come
one after another. So a segment holds members of one group as far as possible.
"""

from __future__ import annotations

from collections.abc import Mapping

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

ORDERS = (
    # Before the ordinal, because leaders and the workers of each group are different StatefulSets.
    (GROUP_INDEX, WORKER_INDEX),
    (JOB_GLOBAL_INDEX, COMPLETION_INDEX),
    ("", COMPLETION_INDEX),
    (REPLICA_TYPE, REPLICA_INDEX),
    (RAY_REPLICA, RAY_HOST),
    ("", POD_INDEX),
)
"""Annotations or labels with the number of a pod's group, and with its number in the group. The first pair
that can be read counts.

They are in the reference pages of labels of Kubernetes, LeaderWorkerSet, JobSet and the training operator,
and in KubeRay's constants."""
KEYS = tuple(dict.fromkeys(key for pair in ORDERS for key in pair if key))
_RANK_KEYS = frozenset(KEYS)

REPLICA_TYPES = ("launcher", "master", "chief", "ps", "evaluator", "worker")
"""Kubeflow's replica types, in the order in which KAI numbers them
(docs/developer/designs/segmented-subgroups of NVIDIA/KAI-Scheduler, "Workload to Index Computation")."""


def rank_of(meta: Metadata) -> int | None:
    """Return the number that the pod's controller gave it, else the number at the end of its name.

    Return None if there is neither. A name that ends at random has no number.
    """
    labels, annotations = meta.labels or {}, meta.annotations or {}
    if not (_RANK_KEYS.isdisjoint(labels) and _RANK_KEYS.isdisjoint(annotations)):
        values = {**annotations, **labels}
        for group_key, key in ORDERS:
            if (rank := _rank(values, group_key, key)) is not None:
                return rank
    return _rank_in_name(meta)


def _rank(values: Mapping[str, str], group_key: str, key: str) -> int | None:
    index = natural(values.get(key))
    group = natural(values.get(group_key)) if group_key else 0
    if group_key == REPLICA_TYPE:
        kind = values.get(REPLICA_TYPE, "").lower()
        group = REPLICA_TYPES.index(kind) if kind in REPLICA_TYPES else 0
    return None if group is None or index is None else group * GROUP + index


def _rank_in_name(meta: Metadata) -> int | None:
    _, dash, end = meta.name.rpartition("-")
    return natural(end) if dash and not meta.generate_name else None
