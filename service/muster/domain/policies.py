"""Policies of a cluster: named preferences with weights, the levels of its fabric, and typical requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from muster.domain.levels import DEFAULT_LEVELS, DEFAULT_NAMING, FabricLevel, Naming
from muster.domain.request import PolicyTerm, TypicalRequest


class PolicyTopology(StrEnum):
    """The subject of a policy."""

    NVLINK = "nvlink"
    NUMA = "numa"
    NVSWITCH = "nvswitch"


class Strategy(StrEnum):
    """The goal of a policy for its subject."""

    PACK = "pack"
    PREFER = "prefer"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Policy:
    """A preference that pods name. A policy with a larger weight is decided first."""

    name: str
    weight: int
    term: PolicyTerm


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies, and the settings of the cluster next to them.

    `levels` are those above the node, widest first. `naming` tells domains of one name apart. `typical` are
    the typical requests; () if none are given. If not `enabled`, policies have no effect.
    """

    enabled: bool = True
    policies: tuple[Policy, ...] = ()
    levels: tuple[FabricLevel, ...] = DEFAULT_LEVELS
    typical: tuple[TypicalRequest, ...] = ()
    naming: Naming = DEFAULT_NAMING

    def terms(self, names: tuple[str, ...]) -> tuple[PolicyTerm, ...]:
        """Return the terms of the policies with these names: each once, the largest weight first. Unknown
        names have no terms."""
        policies = [policy for policy in self.policies if self.enabled and policy.name in names]
        return tuple(dict.fromkeys(p.term for p in sorted(policies, key=lambda p: (-p.weight, p.name))))

    def names_without_policy(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names without a policy."""
        policy_names = {policy.name for policy in self.policies}
        return tuple(name for name in names if name not in policy_names)


DEFAULT_POLICIES = Policies()
