"""Find which part of a scope comes nearest to holding the members, if none holds them."""

from __future__ import annotations

import numpy as np

from muster.domain.causes.out_of_place import DomainTooSmall, IndicesUnknown, NoSuchDomain
from muster.domain.levels import preset_with, scope_meant
from muster.domain.reasons import Cause
from muster.domain.request import Role, Scope
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.columns import Bools, Columns
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import World
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.counterfactual import CPU, GPU, free_of
from muster.placement.explain.running import existing, where_they_run


def domain_cause(conflict: Conflict, scope: str) -> Cause:
    """Return the cause that no part of the gang's required scope holds these roles."""
    cause = _nearest(conflict, conflict.seen(), scope)
    if isinstance(cause, NoSuchDomain):  # Parts on nodes that refuse the role may come nearer, and say more.
        return _nearest(conflict, conflict.seen(refusals_told=True), scope)
    return cause


def no_such(conflict: Conflict, scope: str, role: Role | None = None) -> NoSuchDomain | IndicesUnknown | None:
    """Return the cause if no node lies in any part of the scope; with a role, no node that admits the role.

    Refusals that are not part of the conflict are ignored. Inside nodes it is the cause if no part can be
    promised on any node with GPUs.
    """
    if scope in INSIDE:
        return _guessed(conflict.seen(), scope, role)
    if scope == Scope.NODE:
        return None
    world = conflict.seen(refusals_told=True)
    has = world.view.topology.index(scope) >= 0
    if (has & world.admitted[role.name] if role else has).any():
        return None
    return _nowhere(world.view, scope, role.name if role else "")


def _guessed(world: World, scope: str, role: Role | None) -> IndicesUnknown | None:
    admitted = _admitted(world) if role is None else world.admitted[role.name]
    with_gpus = admitted & (world.view.gpu_total > 0)
    if not with_gpus.any() or (with_gpus & _promised(world.view, scope)).any():
        return None
    return IndicesUnknown(scope, int(with_gpus.sum()), role.name if role else "")


def _promised(view: Columns, scope: str) -> Bools:
    """Return [row] bool: whether parts of a scope inside the node can be kept. It is known then which GPUs
    are taken."""
    return view.promised if scope == Scope.NVLINK_DOMAIN else np.asarray(view.unindexed == 0)


def is_nowhere(view: Columns, scope: str) -> bool:
    """Return whether no node of the cluster carries a label of the scope.

    Then a wider scope is no advice: a label is missing, or the scope is misspelt.
    """
    return scope not in (*INSIDE, Scope.NODE) and not view.topology.domains(scope).names


def _nowhere(view: Columns, scope: str, role: str) -> NoSuchDomain:
    if not is_nowhere(view, scope):
        return NoSuchDomain(scope, role)
    labels = next((level.labels for level in view.levels if level.scope == scope), (scope,))
    scopes = {*Scope, *(level.scope for level in view.levels)}
    of_nodes = {key for state in view.states for key, name in state.node.labels.items() if name}
    preset = preset_with(scope, of_nodes)
    meant = "" if any(preset) else scope_meant(scope, scopes, of_nodes)
    return NoSuchDomain(scope, role, labels, meant, *preset)


def _nearest(conflict: Conflict, world: World, scope: str) -> Cause:
    found = conflict.oracle.most(world)
    role, stays = conflict.part_of_gang, existing(conflict)
    if stays:
        best = where_they_run(conflict, scope, stays)
    else:
        best = found.part if found.members else _most_free(world, scope)
    if best or stays:
        linked = scope != Scope.NVLINK_DOMAIN or not best or _has_nvlink(world.view, best)
        fit = found.members if found.proven else None
        known = linked or world.view.states[world.view.row[_node_of(best)]].node.topology.known
        return DomainTooSmall(scope, best, fit, world.wanted, linked, conflict.even_empty, role, known)
    guessed = _admitted(world) & ~_promised(world.view, scope)
    if scope in INSIDE and guessed.any():
        return IndicesUnknown(scope, int(guessed.sum()))
    return _nowhere(world.view, scope, role)


def _most_free(world: World, scope: str) -> str:
    """Where no part holds a member: the one with most GPUs free, or most cpu; "" where there is none."""
    view, admitted = world.view, _admitted(world)
    sliced = any(role.slice for role in world.request.roles)
    whole = GPU if any(role.gpus for role in world.request.roles) else CPU
    free = np.maximum(0, free_of(view, GPU_MEMORY if sliced else whole))
    if scope in INSIDE:
        rows = np.flatnonzero(admitted & _promised(view, scope))
        return _most_free_inside(view, scope, rows.tolist(), sliced)
    part = view.topology.domains(scope)
    rows = np.flatnonzero(admitted & (part.codes >= 0))
    if not len(rows):
        return ""
    return part.names[int(np.bincount(part.codes[rows], free[rows] + 1.0).argmax())]


def _most_free_inside(view: Columns, scope: str, rows: list[int], sliced: bool) -> str:
    """Return the part inside a node with most free GPUs, or most free memory.

    Equal nodes are looked at once. The nodes of a wide domain are not added up.
    """
    best, name, seen = -1, "", set[tuple[int, ...]]()
    for row in rows:
        free = view.gpu_memory[:, row].tolist() if sliced else [*np.binary_repr(view.free_gpus[row])[::-1]]
        kind = (int(view.shape[row]), *map(int, free))
        if kind in seen:
            continue
        seen.add(kind)
        for part, mask in view.topology.parts(row, scope):
            inside = sum(amount for gpu, amount in enumerate(kind[1:]) if mask >> gpu & 1)
            if inside > best:
                best, name = inside, part
    return name


def _admitted(world: World) -> Bools:
    rows: Bools = np.logical_or.reduce(
        [world.admitted[role.name] for role in world.request.roles if role.members]
    )
    return rows


def _node_of(domain: str) -> str:
    """Return the node whose part the domain is."""
    return domain.rpartition("/")[0]


def _has_nvlink(view: Columns, domain: str) -> bool:
    """Return whether the domain is more than one GPU without NVLink."""
    row = view.row.get(_node_of(domain))
    if row is None:
        return True  # a label names the domain
    if view.topology.in_wide[row]:
        return True
    return all(mask.bit_count() > 1 for name, mask in view.topology.nvlink_domains(row) if name == domain)
