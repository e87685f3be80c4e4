"""KAI's subgroups: roles of a PodGroup with counts and topology constraints of their own, in a tree.

Pods name a leaf, by the label kai.scheduler/subgroup-name. A required level of a subgroup holds for all its
leaves together. If the subgroup has one leaf, it is the scope of that role. If it has all leaves, it is the
scope of the gang, and otherwise a `Subgroup` of the request. If several required levels apply to one leaf, or
to all leaves, the narrowest one counts. A preferred level is likewise that of a role, of the gang, or a
`RolePreference`. A preferred level is left out if a required level implies it. If no domain of the level
holds the pods, the next wider level of the Topology is preferred, as in KAI.

The fields are those of NVIDIA/KAI-Scheduler, pkg/apis/scheduling/v2alpha2/podgroup_types.go. Their meaning is
in its docs/developer/designs/hierarchical-podgroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, dropwhile, takewhile

from muster.dialects.reading import A_NAME, LABEL_KEY, NAME_PATTERN, OBJECT_NAME, Fields
from muster.domain.constraints import Subgroup
from muster.domain.levels import FabricLevel
from muster.domain.pod import TopologyRequest
from muster.domain.quorums import Leaf, Quorum, members_of
from muster.domain.request import RolePreference, Scope
from muster.domain.words import counted_noun

MAX_SUBGROUPS = 256
MAX_DEPTH = 16
"""Largest depth of a tree in which not all subgroups must start, because its readers recurse once for each
level."""
HOSTNAME = "kubernetes.io/hostname"
_WORDS = frozenset(scope.value for scope in Scope)
_CONSTRAINT = ("topology", "requiredTopologyLevel", "preferredTopologyLevel")
_REQUIRED = f"topologyConstraint.{_CONSTRAINT[1]}"


@dataclass(frozen=True, slots=True)
class KaiTopology:
    """A Topology object of KAI: the node labels of its levels, widest first, and alias → node label."""

    labels: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def label(self, level: str) -> str | None:
        """Return the node label of a level, which is named by label or alias; None if there is no such
        level."""
        return level if level in self.labels else self.aliases.get(level)

    def __str__(self) -> str:
        """Return the levels as users may write them."""
        alias = {label: f" (or {alias})" for alias, label in self.aliases.items()}
        return ", ".join(f"{label}{alias.get(label, '')}" for label in self.labels)


Topologies = Mapping[str, KaiTopology]
"""KAI's Topology objects by name."""


@dataclass(frozen=True, slots=True)
class SubgroupConstraint:
    """A `topologyConstraint`, as scopes."""

    required: str | None = None
    preferred: tuple[str, ...] = ()
    """The preferred level, then the wider levels of the Topology up to the required one."""

    @classmethod
    def read(
        cls, owner: Fields, levels: tuple[FabricLevel, ...], topologies: Topologies | None
    ) -> SubgroupConstraint:
        """Return the constraint in `topologyConstraint` of a PodGroup's spec or of a subgroup."""
        fields = owner.part("topologyConstraint")
        fields.note_misspelt(*_CONSTRAINT)
        return cls.of(fields, _CONSTRAINT, levels, topologies)

    @classmethod
    def of(
        cls,
        fields: Fields,
        keys: tuple[str, str, str],
        levels: tuple[FabricLevel, ...],
        topologies: Topologies | None,
    ) -> SubgroupConstraint:
        """Return the constraint in these fields. `keys` name the Topology, the required level and the
        preferred level."""
        topology_key, required, preferred = keys
        name = fields.text_matching(topology_key, OBJECT_NAME, "the name of a Topology")
        topology = None if topologies is None or name is None else topologies.get(name)
        if topologies is not None and name is not None and topology is None:
            known_topologies = ", ".join(sorted(topologies)[:8]) or "none is there"
            fields.bad(topology_key, name, f"a Topology of the cluster: {known_topologies}")

        def scope(level: str) -> str | None:
            label = fields.text_matching(level, LABEL_KEY, "a node label, of a level of the Topology")
            if label is not None and topology is not None:
                node_label = topology.label(label)
                if node_label is None:
                    fields.bad(level, label, f"a level of Topology {name}: {topology}")
                label = node_label or label
            return None if label is None else scope_of_label(fields, level, label, levels)

        required_scope, preferred_scope = scope(required), scope(preferred)
        narrow_first = (
            _scope(label, levels)
            for label in reversed(topology.labels if topology else ())
            if not _is_another_scope(label, levels)
        )
        wider = takewhile(
            lambda item: item != required_scope,
            dropwhile(lambda item: item != preferred_scope, narrow_first),
        )
        return cls(required_scope, tuple(wider) or (() if preferred_scope is None else (preferred_scope,)))


@dataclass(frozen=True, slots=True)
class Tree:
    """The constraints and minimums of a PodGroup and its subgroups."""

    required: str | None = None
    """Required scope of the whole gang."""
    preferred: tuple[str, ...] = ()
    """Preferred scopes of the whole gang, the narrowest first."""
    role_topology_requests: Mapping[str, TopologyRequest] = field(default_factory=dict)
    """Leaf → its own constraints."""
    role_min: Mapping[str, int] = field(default_factory=dict)
    """Leaf → number of members that must start."""
    shared_scopes: tuple[Subgroup, ...] = ()
    """Required levels for several leaves together."""
    preferences: tuple[RolePreference, ...] = ()
    """Preferred levels for several leaves together."""
    quorum: Quorum | None = None
    """The number of subgroups that start, if not all must. Then `role_min` is empty."""

    @property
    def min_member(self) -> int:
        """Return how many members of all leaves must start together; 0 without leaves."""
        leaves = self.quorum.fewest_members() if self.quorum is not None else None
        return sum(self.role_min.values()) if leaves is None else members_of(leaves)


@dataclass(frozen=True, slots=True)
class Nesting:
    """Orders of scopes, widest first: each domain of a scope lies in a domain of each scope before it."""

    orders: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, levels: tuple[FabricLevel, ...], topologies: Topologies | None) -> Nesting:
        """Return the levels of the cluster, and the levels of each of KAI's Topologies."""
        scopes = (
            tuple(_scope(label, levels) for label in topology.labels if not _is_another_scope(label, levels))
            for topology in (topologies or {}).values()
        )
        return cls((tuple(level.scope for level in levels), *scopes))

    def is_inside(self, inner: str, outer: str) -> bool:
        """Return whether each domain of `inner` lies in one domain of `outer`, or both are the same scope.

        If two orders contradict each other, the answer is False. A node lies in one domain of each level, and
        no level lies inside a node, whatever an order says.
        """
        if inner == outer:
            return True
        if Scope.NODE in (inner, outer):
            return inner == Scope.NODE and outer not in (Scope.GPU, Scope.NVLINK_DOMAIN)
        shared_orders = [order for order in self.orders if inner in order and outer in order]
        return bool(shared_orders) and all(order.index(outer) < order.index(inner) for order in shared_orders)

    def narrowest_of(self, scopes: Iterable[tuple[Fields, str | None]]) -> str | None:
        """Return the narrowest of these required scopes. Each comes with the fields that state the scope. A
        scope neither inside nor around the narrowest scope before it gets a cause."""
        narrowest: str | None = None
        for fields, scope in scopes:
            if scope is None:
                continue
            if narrowest is None or self.is_inside(scope, narrowest):
                narrowest = scope
            elif not self.is_inside(narrowest, scope):
                fields.bad(_REQUIRED, scope, f"a level inside or around {narrowest}, which is required too")
        return narrowest

    def narrow_first(self, scopes: Iterable[str]) -> tuple[str, ...]:
        """Return each scope once, narrower scopes before the scopes that contain them."""
        ordered: list[str] = []
        for scope in scopes:
            if scope not in ordered:
                wider_indices = (i for i, wider in enumerate(ordered) if self.is_inside(scope, wider))
                ordered.insert(next(wider_indices, len(ordered)), scope)
        return tuple(ordered)


@dataclass(frozen=True, slots=True)
class _Subgroup:
    fields: Fields
    parent: str | None
    constraint: SubgroupConstraint


def read(spec: Fields, levels: tuple[FabricLevel, ...], topologies: Topologies | None) -> Tree:
    """Return the topology constraint and the subgroups of a PodGroup's spec."""
    groups: dict[str, _Subgroup] = {}
    root = SubgroupConstraint.read(spec, levels, topologies)
    for item in spec.objects_in("subGroups", MAX_SUBGROUPS):
        item.note_misspelt("name", "parent", "minMember", "minSubGroup", "topologyConstraint")
        name = item.text_matching("name", NAME_PATTERN, A_NAME, required=True)
        if name is not None and name in groups:
            item.bad("name", name, "each subgroup once")
        elif name is not None:
            constraint = SubgroupConstraint.read(item, levels, topologies)
            groups[name] = _Subgroup(item, item.text("parent"), constraint)
    if not _is_tree(groups):
        return Tree()
    quorum = _read_quorum(None, spec, groups)
    tree = _TreeReader(Nesting.of(levels, topologies), spec, root, groups, _leaves_by_group(groups)).tree()
    if quorum.needs_all:
        return replace(
            tree, role_min={role: leaf.min_members for leaf in quorum.leaves() for role in leaf.roles}
        )
    deepest = max(groups, key=lambda name: len(_ancestry(name, groups)))
    if len(_ancestry(deepest, groups)) > MAX_DEPTH:
        expected = f"at most {MAX_DEPTH} subgroups in each other, where minSubGroup is below their number"
        groups[deepest].fields.bad("parent", groups[deepest].parent, expected)
        return Tree()
    return replace(tree, quorum=quorum)


@dataclass(frozen=True, slots=True)
class _TreeReader:
    """Reads the constraints of the tree. `leaves`: subgroup → the leaves at or below it."""

    nesting: Nesting
    spec: Fields
    root: SubgroupConstraint
    groups: Mapping[str, _Subgroup]
    leaves: Mapping[str, frozenset[str]]

    def tree(self) -> Tree:
        all_leaves = frozenset().union(*self.leaves.values())
        groups_of_all = [group for name, group in self.groups.items() if self.leaves[name] == all_leaves]
        required = self.nesting.narrowest_of(
            (
                (self.spec, self.root.required),
                *((group.fields, group.constraint.required) for group in groups_of_all),
            )
        )
        return Tree(
            required=required,
            preferred=self.nesting.narrow_first(
                chain(self.root.preferred, *(group.constraint.preferred for group in groups_of_all))
            ),
            role_topology_requests={
                leaf: self._topology_request(leaf, all_leaves, required) for leaf in sorted(all_leaves)
            },
            shared_scopes=tuple(self._shared_scopes(all_leaves, required)),
            preferences=tuple(self._preferences(all_leaves, required)),
        )

    def _topology_request(
        self, leaf: str, all_leaves: frozenset[str], required: str | None
    ) -> TopologyRequest:
        """Return the constraints of the subgroups that have only this leaf.

        Without other leaves, these constraints are the whole gang's, and the role has no constraints of its
        own.
        """
        own_groups = [
            group for name, group in self.groups.items() if self.leaves[name] == {leaf} != all_leaves
        ]
        scope = self.nesting.narrowest_of((group.fields, group.constraint.required) for group in own_groups)
        scopes = self.nesting.narrow_first(
            chain.from_iterable(group.constraint.preferred for group in own_groups)
        )
        preferred = tuple(level for level in scopes if not self._is_implied(level, (required, scope)))
        return TopologyRequest(leaf, role_scope=scope, role_preferred=preferred)

    def _shared_scopes(self, all_leaves: frozenset[str], required: str | None) -> Iterator[Subgroup]:
        """Yield the required levels of several leaves together, unless the gang's own level implies them."""
        for name, group in self.groups.items():
            scope, leaves = group.constraint.required, self.leaves[name]
            if scope is None or not 1 < len(leaves) < len(all_leaves):
                continue
            if not self._is_implied(scope, (required,)):
                yield Subgroup(f"the level of subgroup {name}", scope, leaves)

    def _preferences(self, all_leaves: frozenset[str], required: str | None) -> Iterator[RolePreference]:
        """Yield the preferred levels for several leaves together, unless a required level implies them."""
        for name, group in self.groups.items():
            leaves, required_levels = self.leaves[name], (required, group.constraint.required)
            scopes = tuple(
                level for level in group.constraint.preferred if not self._is_implied(level, required_levels)
            )
            if scopes and 1 < len(leaves) < len(all_leaves):
                yield RolePreference(f"subgroup {name}", scopes, leaves)

    def _is_implied(self, scope: str, required: Sequence[str | None]) -> bool:
        return any(level is not None and self.nesting.is_inside(level, scope) for level in required)


def _is_tree(groups: Mapping[str, _Subgroup]) -> bool:
    """Return whether every parent exists and no subgroup is its own ancestor. If not, note a problem."""
    for name, group in groups.items():
        if group.parent is not None and group.parent not in groups:
            group.fields.bad("parent", group.parent, "the name of another subgroup")
            return False
        if len(_ancestry(name, groups)) > len(groups):
            group.fields.bad("parent", group.parent, "no circle of subgroups")
            return False
    return True


def _ancestry(name: str, groups: Mapping[str, _Subgroup]) -> list[str]:
    """Return the subgroup and its ancestors. The list is longer than `groups` if the parents form a
    circle."""
    ancestry = [name]
    while (parent := groups[ancestry[-1]].parent) in groups and len(ancestry) <= len(groups):
        assert parent is not None
        ancestry.append(parent)
    return ancestry


def _leaves_by_group(groups: Mapping[str, _Subgroup]) -> dict[str, frozenset[str]]:
    """Return the leaves at or below each subgroup."""
    leaves_of: dict[str, set[str]] = {name: set() for name in groups}
    parents = {group.parent for group in groups.values()}
    for leaf in groups.keys() - parents:
        for name in _ancestry(leaf, groups):
            leaves_of[name].add(leaf)
    return {name: frozenset(leaves) for name, leaves in leaves_of.items()}


def _min_members(leaf: _Subgroup) -> int:
    least = leaf.fields.natural("minMember")
    return 1 if least is None else least


def _read_quorum(name: str | None, owner: Fields, groups: Mapping[str, _Subgroup]) -> Quorum:
    """Return the quorum below a subgroup, or of the whole tree if `name` is None. By default all parts must
    start."""
    parts: list[Quorum | Leaf] = []
    for part, group in groups.items():
        if group.parent != name:
            continue
        subquorum = _read_quorum(part, group.fields, groups)
        parts.append(subquorum if subquorum.parts else Leaf(frozenset((part,)), _min_members(group)))
    least = owner.natural("minSubGroup")
    if least is not None and not min(1, len(parts)) <= least <= len(parts):
        numbers = f"a number from 1 to {len(parts)}" if parts else "not given"
        owner.bad(
            "minSubGroup", least, f"{numbers}: {counted_noun('subgroup', len(parts))} lie directly below"
        )
        least = None
    return Quorum(len(parts) if least is None else least, tuple(parts))


def scope_of_label(fields: Fields, field: str, label: str, levels: tuple[FabricLevel, ...]) -> str:
    """Return the scope that a field states as a node label. Add a cause if the label is the word for another
    scope."""
    if _is_another_scope(label, levels):
        fields.bad(field, label, f"another node label: {label} is a word for a scope of its own here")
    return _scope(label, levels)


def _scope(label: str, levels: tuple[FabricLevel, ...]) -> str:
    """Return the word for the scope that this label alone defines; else the label itself."""
    if label == HOSTNAME:
        return Scope.NODE.value
    return next((level.scope for level in levels if level.labels == (label,)), label)


def _is_another_scope(label: str, levels: tuple[FabricLevel, ...]) -> bool:
    """Return whether a label is spelt like the word for a scope that other labels define."""
    labels_of_word = [level.labels for level in levels if level.scope == label]
    is_word = bool(labels_of_word) or label in _WORDS
    return is_word and not any(label in labels for labels in labels_of_word)
