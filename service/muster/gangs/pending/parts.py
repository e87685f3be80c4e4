"""Name the parts of roles that are split, because in-tree plugins answer differently for their members."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from muster.domain.constraints import Affinity, AntiAffinity, Constraint
from muster.domain.request import Role


def named(parts: Mapping[str, list[Role]]) -> dict[str, list[Role]]:
    """Name the parts: the role's own name if it is not split, else numbered names that no other role has."""
    taken = {name for name, found in parts.items() if len(found) == 1}
    by_name = {}
    for name, found in parts.items():
        if len(found) == 1:
            by_name[name] = found
            continue
        free = (made for n in itertools.count(1) if (made := f"{name or 'role'}-{n}") not in taken)
        by_name[name] = [replace(part, name=next(free)) for part in found]
        taken |= {part.name for part in by_name[name]}
    return by_name


def renamed(constraint: Constraint, names: Mapping[str, tuple[str, ...]]) -> Constraint:
    """Return the constraint for all parts of its roles."""
    roles = all_of(constraint.roles, names)
    if isinstance(constraint, AntiAffinity | Affinity):
        return replace(constraint, roles=roles, others=all_of(constraint.others, names))
    return replace(constraint, roles=roles, counted=all_of(constraint.counted, names))


def all_of(roles: frozenset[str], names: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the names of all parts of these roles."""
    return frozenset(part for role in roles for part in names.get(role, (role,)))
