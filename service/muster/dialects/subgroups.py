"""KAI's subgroups: roles of a PodGroup with counts and topology constraints of their own, in a tree.

Pods name a leaf, by the label kai.scheduler/subgroup-name. What a subgroup requires holds for all its leaves
together, so it is what the planner can be asked for where it has one leaf (then it is that role's scope) or
all of them (then the gang's). Anything else is refused. A leaf's `preferredTopologyLevel` is not read:
members are kept close together anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.dialects.fields import Fields
from muster.dialects.reading import A_NAME, LABEL_KEY, NAME_PATTERN, OBJECT_NAME
from muster.domain.levels import Level
from muster.domain.pod import Wishes
from muster.domain.request import Scope

Topologies = Mapping[str, tuple[str, ...]]
"""KAI's Topology objects: name → the node labels of its levels, widest first."""

MAX_SUBGROUPS = 256
_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A `topologyConstraint`, as scopes; None where it says nothing."""

    required: str | None = None
    preferred: str | None = None

    @classmethod
    def read(cls, owner: Fields, levels: tuple[Level, ...], topologies: Topologies | None) -> Constraint:
        """The constraint of a PodGroup's spec or of a subgroup."""
        fields = owner.part("topologyConstraint")
        name = fields.matching("topology", OBJECT_NAME, "the name of a Topology")
        known = None if topologies is None or name is None else topologies.get(name)
        if topologies is not None and name is not None and known is None:
            there = ", ".join(sorted(topologies)[:8]) or "none is there"
            fields.bad("topology", name, f"a Topology of the cluster: {there}")

        def scope(level: str) -> str | None:
            label = fields.matching(level, LABEL_KEY, "a node label, of a level of the Topology")
            if label is not None and known is not None and label not in known:
                fields.bad(level, label, f"a level of Topology {name}: {', '.join(known)}")
            return None if label is None else _scope(label, levels)

        return cls(scope("requiredTopologyLevel"), scope("preferredTopologyLevel"))


@dataclass(frozen=True, slots=True)
class Tree:
    """What the subgroups of a PodGroup say: scopes of the whole gang; wishes and `role_min` of each leaf."""

    required: str | None = None
    preferred: str | None = None
    role_wishes: Mapping[str, Wishes] = field(default_factory=dict)
    role_min: Mapping[str, int] = field(default_factory=dict)

    @property
    def min_member(self) -> int:
        """Of all leaves together, 0 where there are none."""
        return sum(self.role_min.values())


@dataclass(frozen=True, slots=True)
class _Subgroup:
    fields: Fields
    parent: str | None
    constraint: Constraint


def read(spec: Fields, levels: tuple[Level, ...], topologies: Topologies | None) -> Tree:
    """The subgroups of a PodGroup's spec."""
    groups: dict[str, _Subgroup] = {}
    for item in spec.listed("subGroups", MAX_SUBGROUPS):
        name = item.matching("name", NAME_PATTERN, A_NAME, needed=True)
        if name is not None and name in groups:
            item.bad("name", name, "each subgroup once")
        elif name is not None:
            constraint = Constraint.read(item, levels, topologies)
            groups[name] = _Subgroup(item, item.text("parent"), constraint)
    if not groups or not _is_tree(groups):
        return Tree()
    parents = {group.parent for group in groups.values()}
    leaves = {name: _ancestry(name, groups) for name in groups if name not in parents}
    _all_needed(spec, groups)
    scopes: dict[str, str] = {}
    whole, preferred = None, None
    for name, group in groups.items():
        below = [leaf for leaf, line in leaves.items() if name in line]
        if len(below) == len(leaves):
            preferred = group.constraint.preferred or preferred
        required = group.constraint.required
        if required is None:
            continue
        if len(below) == 1 and scopes.get(below[0], required) == required:
            scopes[below[0]] = required
        elif len(below) == len(leaves) > 1 and whole in (None, required):
            whole = required
        else:
            expected = "a level for one subgroup without others below it, or for all of them"
            group.fields.bad("topologyConstraint.requiredTopologyLevel", required, expected)
    return Tree(
        required=whole,
        preferred=preferred,
        role_wishes={leaf: Wishes(role=leaf, role_scope=scopes.get(leaf)) for leaf in sorted(leaves)},
        role_min={leaf: groups[leaf].fields.positive("minMember") or 1 for leaf in sorted(leaves)},
    )


def _is_tree(groups: Mapping[str, _Subgroup]) -> bool:
    """Whether every parent is there and none is its own ancestor; says so where not."""
    for name, group in groups.items():
        if group.parent is not None and group.parent not in groups:
            group.fields.bad("parent", group.parent, "the name of another subgroup")
            return False
        if len(_ancestry(name, groups)) > len(groups):
            group.fields.bad("parent", group.parent, "no circle of subgroups")
            return False
    return True


def _ancestry(name: str, groups: Mapping[str, _Subgroup]) -> list[str]:
    """The subgroup, its parent, that one's parent …; longer than `groups` where they go round."""
    line = [name]
    while (parent := groups[line[-1]].parent) in groups and len(line) <= len(groups):
        assert parent is not None
        line.append(parent)
    return line


def _all_needed(spec: Fields, groups: Mapping[str, _Subgroup]) -> None:
    """`minSubGroup` asks for fewer subgroups than there are: the planner knows members alone."""
    for name, owner in ((None, spec), *((name, group.fields) for name, group in groups.items())):
        wanted = owner.positive("minSubGroup")
        below = sum(group.parent == name for group in groups.values())
        if wanted is not None and wanted < below:
            owner.bad("minSubGroup", wanted, f"all {below} subgroups: fewer of them are not planned")


def _scope(label: str, levels: tuple[Level, ...]) -> str:
    """The word for the scope that this label alone gives, else the label itself."""
    if label == _HOSTNAME:
        return Scope.NODE.value
    return next((level.scope for level in levels if level.labels == (label,)), label)
