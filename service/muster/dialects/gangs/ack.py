"""The ACK dialect: pod labels name a gang and its size.

gpu-topology: <gang's name, within its namespace>    gpu-topology-replica: "<all its pods>"
"""

from __future__ import annotations

from muster.dialects.objects import Metadata
from muster.dialects.reading import Reading, positive
from muster.dialects.settings import Settings
from muster.domain.causes.ill_formed import BadValue
from muster.domain.pod import GangClaim

NAME = "ack"


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
    gang = GangClaim(NAME, name, min_member=count, replicas=count, count_key=settings.ack_replicas)
    return Reading(gang, tuple(causes))
