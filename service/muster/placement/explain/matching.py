"""Say that the gang might fit if its claims matched more GPUs. See `cluster.matching`."""

from __future__ import annotations

from dataclasses import replace

from muster.domain.causes.out_of_place import GpusNotMatching
from muster.domain.decision import Unplaceable
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.cluster.matching import differing, masks_of
from muster.placement.explain.assumptions import Assumptions
from muster.placement.explain.feasibility import Oracle
from muster.placement.gang.instance import instance_of
from muster.placement.limits import Budget, Limits


def with_matching(refused: Unplaceable, snapshot: Snapshot, request: Request, limits: Limits) -> Unplaceable:
    """Return the refusal, with the GPUs that do not count, if the gang might fit with them."""
    if (everything := _everything(request)) is not None:
        return replace(refused, causes=(*refused.causes, everything))
    masks = masks_of(snapshot, request)
    if not masks or (request.quorum is None and not _fits_with_all(snapshot, request, limits)):
        return refused
    narrowed = {}
    for name, mask in masks.items():
        node = snapshot.nodes[name].node
        every = (1 << node.topology.gpu_count) - 1
        if every & ~node.tainted & ~mask:  # else it has more than without the claims: taints are tolerated
            narrowed[name] = (mask.bit_count(), node.topology.gpu_count)
    matching, gpus = (sum(of[at] for of in narrowed.values()) for at in range(2))
    cause = GpusNotMatching(len(narrowed), matching, gpus, len(differing(snapshot, request, narrowed)))
    return replace(refused, causes=(*refused.causes, cause)) if narrowed else refused


def _everything(request: Request) -> GpusNotMatching | None:
    """Return that members take all matching GPUs of a node, with how many nodes have as many; None if not.

    The last number that was tried is the smallest.
    """
    for role in request.roles:
        if role.chosen is not None and role.chosen.every and role.members:
            nodes = sum(map(bool, role.matching.values()))
            gpus = nodes * role.gpus
            return GpusNotMatching(nodes, gpus, gpus, each=role.gpus) if nodes else None
    return None


def _fits_with_all(snapshot: Snapshot, request: Request, limits: Limits) -> bool:
    """Return whether the gang may fit if members may have any GPU."""
    roles = tuple(replace(role, matching={}) for role in request.roles)
    instance = instance_of(snapshot, replace(request, roles=roles), limits.excluded)
    assumptions = Assumptions(instance, limits.excluded)
    return Oracle(Budget(limits)).enough(assumptions.world(assumptions.all)) is not False
