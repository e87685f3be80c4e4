"""Tell who has the GPUs that a refused gang lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from muster.domain.causes.out_of_place import DomainTooSmall, RoleScope, within
from muster.domain.causes.too_little import RoomTaken
from muster.domain.decision import Unplaceable
from muster.domain.pod import Pod
from muster.gangs.capacity.ledger import Ledger

NOBODY = ("", "")


def with_holders(refused: Unplaceable, priority: int, ledger: Ledger, pods: Mapping[str, Pod]) -> Unplaceable:
    """Return the refusal with a further cause: who has the GPUs where the gang nearly fits.

    `pods`: by UID, those that claim a gang. `priority` is that of the refused gang.
    """
    own = (refused.gang.namespace, refused.gang.name)
    gpus: dict[tuple[str, str], int] = {}
    priorities: dict[tuple[str, str], int] = {}
    for node in refused.contested:
        for uid, usage in ledger.on_node(node).items():
            pod = pods.get(uid)
            gang = NOBODY
            if pod is not None and pod.claim is not None:
                gang = pod.namespace, pod.claim.name
                if gang not in priorities or priorities[gang] < pod.priority:
                    priorities[gang] = pod.priority
            if not usage.units:
                gpus[gang] = gpus.get(gang, 0) + usage.gpus.bit_count() + usage.unindexed_gpus
    gpus.pop(own, 0)
    without_gang = gpus.pop(NOBODY, 0)
    held = {gang: count for gang, count in gpus.items() if count}
    lower = [count for gang, count in held.items() if priorities[gang] < priority]
    if not held and not without_gang:
        return refused
    others = len(held) - len(lower), sum(held.values()) - sum(lower)
    cause = RoomTaken(_where(refused), len(lower), sum(lower), *others, without_gang)
    return replace(refused, causes=(*refused.causes, cause))


def _where(refused: Unplaceable) -> str:
    for cause in refused.causes:
        if isinstance(cause, DomainTooSmall | RoleScope) and cause.best:
            return within(cause.scope, cause.best)
    return "on nodes that admit it"
