"""The ACK dialect: pod labels name a gang and its size, a node label says what its GPUs serve.

gpu-topology: <gang's name, within its namespace>    gpu-topology-replica: "<all its pods>"
ack.node.gpu.schedule: default | topology | share | cgpu | disabled
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.dialects.objects import Metadata
from muster.dialects.reading import Reading, positive
from muster.dialects.settings import Settings
from muster.domain.causes.ill_formed import BadValue
from muster.domain.pod import GangClaim

NAME = "ack"

ALIYUN_GPU = "aliyun.com/gpu"
DEFAULT, TOPOLOGY, DISABLED = "default", "topology", "disabled"
SHARING = ("share", "cgpu")
"""Without isolation of memory, and with it: the planner makes no difference."""
OFFERED = (TOPOLOGY, *SHARING)
"""With these a node agent offers the GPUs itself."""

_COUNT_EXPECTED = 'the number of all replicas, masters and workers together: "1", "2", …'


def claim(where: str, meta: Metadata, settings: Settings) -> Reading:
    """Return the gang that a pod's labels name. `where` is the pod, as kind/namespace/name."""
    labels = meta.labels or {}
    name, replicas = labels.get(settings.ack_name), labels.get(settings.ack_replicas)
    if name is None and replicas is None:
        return Reading()
    causes = []
    if not name:
        expected = f"the gang's name: {settings.ack_replicas} alone says no gang"
        causes.append(BadValue(where, settings.ack_name, name or "", expected))
    count = positive(replicas)
    if count is None:
        causes.append(BadValue(where, settings.ack_replicas, replicas or "", _COUNT_EXPECTED))
    if not name:
        return Reading(causes=tuple(causes))
    named = GangClaim(NAME, name, min_member=count, replicas=count, count_key=settings.ack_replicas)
    return Reading(named, tuple(causes))


def served(
    offered: frozenset[str], labels: Mapping[str, str], settings: Settings
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Which of the GPU resources in a node's allocatable may be planned there, and what is wrong.

    A mode serves one kind alone. Without the label all of them; an unknown mode counts as no label and is a
    problem.
    """
    mode = labels.get(settings.ack_node_mode)
    if mode is None:
        return offered, ()
    if mode == DEFAULT:
        return offered - {ALIYUN_GPU, settings.gpu_memory}, ()
    if mode == TOPOLOGY:
        return offered & {ALIYUN_GPU}, ()
    if mode in SHARING:
        return offered & {settings.gpu_memory}, ()
    if mode == DISABLED:
        return frozenset(), ()
    problem = (
        f"the label {settings.ack_node_mode} is {mode!r}; known are default, topology, share, cgpu and "
        f"disabled: it is read as no label"
    )
    return offered, (problem,)
