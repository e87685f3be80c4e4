"""Best fit above the node: which free nodes gangs of whole nodes would miss least."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Columns, Ints

SIXTEENTHS = 16
"""Steps of a share: exact for racks of 16 nodes. Finer steps would tell nearly all nodes apart."""


@lru_cache(maxsize=1)
def opening(view: Columns) -> Ints:
    """Return by row what it costs the best fit to open the node: to take the first of its GPUs.

    It is the share of the nodes with GPUs in its domain that are wholly free, in sixteenths rounded up, added
    over the scopes above the node. Nodes that are in use, or closed to pods, cost nothing: gangs of whole
    nodes can't use them. Nor do nodes in no domain, which no such gang can have.
    """
    open_to_pods = np.array([p.ready and not p.unschedulable for p in view.profiles], bool)[view.profile]
    has_gpus = view.gpu_total > 0
    whole = np.flatnonzero(open_to_pods & has_gpus & (view.free_count == view.gpu_total))
    cost = np.zeros(len(has_gpus), np.int64)
    for scope in (*view.topology.scopes, Scope.NVLINK_DOMAIN):
        domains = view.topology.domains(scope)
        if len(whole) and domains.names:
            domain = 1 + domains.by_row  # none is the first
            nodes = np.bincount(domain, has_gpus).astype(np.int64)
            free = np.bincount(domain[whole], minlength=len(nodes))
            free[0] = 0
            cost[whole] += -(-SIXTEENTHS * free[domain[whole]] // nodes[domain[whole]])
    return cost
