"""The dialect of coscheduling (kubernetes-sigs/scheduler-plugins): a pod's label names its PodGroup.

scheduling.x-k8s.io/pod-group: <PodGroup, in the pod's namespace>
pod-group.scheduling.sigs.k8s.io: <the same, before the API group was renamed>
"""

from __future__ import annotations

from muster.dialects.objects import Metadata
from muster.dialects.reading import AN_OBJECT_NAME, OBJECT_NAME, Reading, agreed
from muster.dialects.settings import Settings
from muster.domain.causes.ill_formed import BadValue
from muster.domain.pod import GangClaim

NAME = "coscheduling"

GROUP = "scheduling.x-k8s.io/pod-group"
OLD_GROUP = "pod-group.scheduling.sigs.k8s.io"
GANG_KEYS = (GROUP, OLD_GROUP)
"""Labels that make a pod one of a gang."""


def claim(where: str, meta: Metadata, settings: Settings) -> Reading:
    """Return the PodGroup that the pod `where` (kind/namespace/name) names."""
    labels = meta.labels or {}
    return agreed(meta.name, (_named(where, key, labels[key]) for key in GANG_KEYS if key in labels))


def _named(where: str, key: str, name: str) -> Reading:
    if not OBJECT_NAME.fullmatch(name):
        expected = f"the name of a PodGroup in the pod's namespace: {AN_OBJECT_NAME}"
        return Reading(causes=(BadValue(where, key, name[:80], expected),))
    return Reading(GangClaim(NAME, name, by_object=True))
