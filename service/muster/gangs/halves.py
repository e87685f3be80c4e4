"""Half a gang: the first Bindings of a gang are under way, some of its members are bound, and fewer than it
needs, or too few of a role. Bindings are not atomic: a refused one, a crash or a deleted pod can leave it so.

A gang that was whole once is no half: what dies of it is replaced, and its others run on.
"""

from __future__ import annotations

import math

from muster.gangs.gang import Gang
from muster.gangs.roster import Group


def is_half(gang: Gang) -> bool:
    """Whether the gang is half now."""
    return not gang.whole and bool(gang.group.bound) and not gang.group.enough_bound


def was_split(group: Group) -> bool:
    """Whether a gang that is seen for the first time was split by a crash, as far as its pods tell: we have
    placed some of it, and as many members as it lacks were there before the first of them began to run. A
    replacement came later, and of an elastic gang fewer may have been left. A pod that has not begun
    (`started` is 0) was bound just now; the times are whole seconds."""
    if group.enough_bound or not any(pod.allocation is not None for pod in group.bound):
        return False
    began = min(pod.started or math.inf for pod in group.bound)
    lacks = max(1, group.needed - len(group.bound))
    return sum(pod.created <= began for pod in group.unbound) >= lacks
