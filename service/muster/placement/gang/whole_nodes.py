"""Price the opening of nodes by how much gangs that need whole nodes would miss them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Columns, Ints

LEAST_STEPS, MOST_STEPS = 16, 64
"""In how many steps the free nodes of a domain are counted. With more, nearly all nodes of wide domains would
differ."""


@lru_cache(maxsize=1)
def opening(view: Columns) -> Ints:
    """Return [row] int64: what it costs the best fit to open the node, that is to take the first of its GPUs.

    The cost is the number of nodes with GPUs in its domain that are wholly free, added over the scopes above
    the node. The largest domain of a scope counts as 16 nodes at least and as 64 at most. The others are
    scaled with it, and the number is rounded up. Gangs of whole nodes cannot use a node that is in use,
    closed to pods, or in no domain. So opening such a node costs nothing.
    """
    open_to_pods = np.array([p.ready and not p.unschedulable for p in view.profiles], bool)[view.profile]
    has_gpus = view.gpu_total > 0
    whole = np.flatnonzero(open_to_pods & has_gpus & (view.free_count == view.gpu_total))
    cost = np.zeros(len(has_gpus), np.int64)
    for scope in (*view.topology.scopes, Scope.NVLINK_DOMAIN):
        domains = view.topology.domains(scope)
        if len(whole) and domains.names:
            domain = 1 + domains.by_row  # 0 stands for no domain
            nodes = np.bincount(domain, has_gpus).astype(np.int64)
            free = np.bincount(domain[whole], minlength=len(nodes))
            free[0] = 0
            largest = max(1, int(nodes[1:].max()))
            cost[whole] += -(-min(MOST_STEPS, max(LEAST_STEPS, largest)) * free[domain[whole]] // largest)
    return cost
