"""Trees of CompositePodGroups and PodGroups of Kubernetes' own API → the gangs that they make.

A tree is one gang, whose name is that of its root. Each PodGroup is a role of this gang:

    group in the tree               in the gang
    PodGroup                        a leaf of the quorum: minCount members, or 1 with the policy basic
    CompositePodGroup               a part of the quorum: minGroupCount of its groups, or 1 with basic
    key of the root                 the required scope of the gang
    key of any other group          a required scope of all roles below it together

All these scopes hold at the same time. A CompositePodGroup at the top that is basic and has no key constrains
nothing, so each group below it is a root. A PodGroup whose ancestors form a circle, or are too many, is a
gang of its own, and is refused. A tree starts as soon as enough of its groups are there, because no field
states how many will come. A group may end, and be deleted while the others run. So once a PodGroup has
started, the CompositePodGroups around it wait for no more groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from dataclasses import field as field_of
from itertools import islice

from muster.dialects.gangs import own
from muster.dialects.gangs.native import PARENT
from muster.dialects.reading import MAX_CAUSES
from muster.domain.causes.ill_formed import BadValue
from muster.domain.causes.not_planned import GroupsMissing
from muster.domain.constraints import Subgroup
from muster.domain.pod import COMPOSITE, KUBERNETES, TopologyRequest
from muster.domain.podgroup import Condition, PodGroup, PodGroupKey
from muster.domain.quorums import Leaf, Quorum, members_of
from muster.domain.request import RolePreference

MAX_DEPTH = 4
"""Number of groups from a root to a PodGroup, both counted, as in Kubernetes (WorkloadMaxTreeDepth)."""
MAX_GROUPS = 256
"""Largest number of groups below a root. The planner takes fewer PodGroups, of those that have pods."""


class Forest:
    """The groups of a cluster by their keys, with their parents and children."""

    def __init__(self, groups: Iterable[PodGroup] = ()) -> None:
        self._groups: dict[PodGroupKey, PodGroup] = {}
        self._children: dict[PodGroupKey, dict[PodGroupKey, None]] = {}
        """Key of a parent, which may not exist → keys of its groups."""
        for group in groups:
            self.put(group.key, group)

    def get(self, key: PodGroupKey) -> PodGroup | None:
        """Return the group as its object states it; None if it does not exist."""
        return self._groups.get(key)

    def put(self, key: PodGroupKey, group: PodGroup | None) -> None:
        """Set the facts of a group; None if it is gone."""
        old_group = self._groups.pop(key, None)
        if old_group is not None and old_group.parent:
            parent = _parent_key(old_group)
            del self._children[parent][key]
            if not self._children[parent]:
                del self._children[parent]
        if group is not None:
            self._groups[key] = group
            if group.parent:
                self._children.setdefault(_parent_key(group), {})[key] = None

    def ancestry(self, key: PodGroupKey) -> list[PodGroup]:
        """Return the group and its ancestors, at most one more than a tree may have.

        A group that does not exist has no facts and no parent. The last group occurs twice if the parents
        form a circle.
        """
        groups = [self._group_or_stub(key)]
        while groups[-1].parent and len(groups) <= MAX_DEPTH:
            parent = self._group_or_stub(_parent_key(groups[-1]))
            is_circle = any(group.key == parent.key for group in groups)
            groups.append(parent)
            if is_circle:
                break
        return groups

    def _group_or_stub(self, key: PodGroupKey) -> PodGroup:
        group = self._groups.get(key)
        return group if group is not None else PodGroup(key[0], key[1], key[2])

    def root_of(self, key: PodGroupKey) -> PodGroup:
        """Return the root of a group's tree. Its key is that of the gang in which a PodGroup's pods are.

        If an ancestor does not exist, it is the root. If the ancestors can't be followed, the group is its
        own root, with the cause.
        """
        groups = self.ancestry(key)
        if (cause := _bad_ancestry(groups)) is not None:
            return replace(groups[0], makes_gang=True, causes=(*groups[0].causes, cause))
        while len(groups) > 1 and not groups[-1].makes_gang:
            groups.pop()
        return groups[-1]

    def groups_of_tree(self, key: PodGroupKey) -> list[PodGroupKey]:
        """Return this group and all groups below it."""
        return [key, *self._groups_below(key)]

    def pod_groups_below(self, key: PodGroupKey) -> Iterator[PodGroupKey]:
        """Yield the PodGroups of a tree or of a part of it; `key` itself if it is a PodGroup."""
        groups = self._groups_below(key) if key[1] == COMPOSITE else (key,)
        yield from (group for group in groups if group[1] == KUBERNETES)

    def _groups_below(self, key: PodGroupKey) -> Iterator[PodGroupKey]:
        later, seen = [key], {key}
        while later:
            for child in self._children.get(later.pop(), ()):
                if child not in seen:
                    yield child
                    later.append(child)
                    seen.add(child)

    def gang(self, key: PodGroupKey) -> PodGroup | None:
        """Return the facts of the gang with this key; None if a group of this key makes none."""
        root = self.root_of(key)
        if key not in self._groups or root.key != key or not root.makes_gang:
            return None
        return root if key[1] == KUBERNETES else self._gang_of_tree(root)

    def _gang_of_tree(self, root: PodGroup) -> PodGroup:
        if len(list(islice(self._groups_below(root.key), MAX_GROUPS + 1))) > MAX_GROUPS:
            field, count = "number of groups below it", f"more than {MAX_GROUPS}"
            cause = BadValue(_where(root), field, count, f"at most {MAX_GROUPS}")
            return replace(root, causes=(*root.causes, cause), count_field="")
        tree = _Tree()
        quorum = self._read_quorum(root, len(self.ancestry(root.key)), tree)
        causes = [*root.causes, *tree.causes]
        for group in tree.groups:
            causes += [*group.causes, *_differences(group, root)]
        role_min: dict[str, int] = {}
        if quorum.needs_all:
            role_min = {role: leaf.min_members for leaf in quorum.leaves() for role in leaf.roles}
        return replace(
            root,
            min_member=members_of(quorum.fewest_members() or ()) or 1,
            size=sum(leaf.size or leaf.min_member or 1 for leaf in tree.leaves),
            role_topology_requests={
                leaf.name: TopologyRequest(leaf.name, segments=leaf.topology_request.segments)
                for leaf in tree.leaves
            },
            role_min=role_min,
            quorum=None if role_min else quorum,
            subgroups=tuple(tree.subgroups),
            role_preferences=tuple(tree.preferences),
            causes=tuple(causes[:MAX_CAUSES]),
            count_field="",  # its number is one of groups
            pod_groups=tuple(tree.leaves),
            missing=tree.missing.get(root.key),
        )

    def _read_quorum(self, group: PodGroup, depth: int, tree: _Tree) -> Quorum:
        """Return the quorum of a CompositePodGroup, and note in `tree` what is below it."""
        parts: list[Quorum | Leaf] = []
        startable, number_before = 0, len(tree.leaves)
        missing: GroupsMissing | None = None
        for key in sorted(self._children.get(group.key, ())):
            child = self._groups[key]
            tree.groups.append(child)
            if key[1] == KUBERNETES:
                tree.leaves.append(child)
                tree.add_scopes(child, frozenset((child.name,)))
                parts.append(Leaf(frozenset((child.name,)), child.min_member or 1))
                startable += 1
                continue
            if depth + 1 >= MAX_DEPTH:
                tree.causes.append(_too_deep(child))
                continue
            first = len(tree.leaves)
            parts.append(self._read_quorum(child, depth + 1, tree))
            tree.add_scopes(child, frozenset(leaf.name for leaf in tree.leaves[first:]))
            missing = missing or tree.missing.get(key)
            startable += key not in tree.missing
        needed = group.min_member or 1
        if startable < needed and any(map(_has_started, tree.leaves[number_before:])):
            needed = startable
        elif startable < needed:
            stated = GroupsMissing(group.title, startable, needed) if group.count_field else None
            tree.missing[group.key] = missing or stated
        return Quorum(needed, tuple(parts))


@dataclass(slots=True)
class _Tree:
    """What is below the root of a tree."""

    groups: list[PodGroup] = field_of(default_factory=list)
    leaves: list[PodGroup] = field_of(default_factory=list)
    """The PodGroups among `groups`."""
    subgroups: list[Subgroup] = field_of(default_factory=list)
    preferences: list[RolePreference] = field_of(default_factory=list)
    causes: list[BadValue] = field_of(default_factory=list)
    missing: dict[PodGroupKey, GroupsMissing | None] = field_of(default_factory=dict)
    """CompositePodGroup with too few groups to start → the groups that must come before. None if the group
    is basic and has no PodGroups below it: then the group around it says how many it needs."""

    def add_scopes(self, group: PodGroup, roles: frozenset[str]) -> None:
        """Add the scopes of a group for the roles below it."""
        request, title = group.topology_request, f"{group.kind} {group.name}"
        if request.required_scope is not None and roles:
            name = f"spec.schedulingConstraints of {title}"
            self.subgroups.append(Subgroup(name, request.required_scope, roles))
        if request.preferred_scopes and roles:
            self.preferences.append(RolePreference(title, request.preferred_scopes, roles))


def _has_started(pod_group: PodGroup) -> bool:
    """Return whether the minimum of the PodGroup was bound once, by the condition that its object shows."""
    return isinstance(pod_group.status, Condition) and pod_group.status.status


def _differences(group: PodGroup, root: PodGroup) -> Iterator[BadValue]:
    """Yield a cause for each value of a group that must be that of the root, or that only a root may have."""
    where = _where(group)
    if None not in (group.priority, root.priority) and group.priority != root.priority:
        expected = (
            f"{root.priority}, as {root.title} has it: set one priorityClassName in all groups of a tree"
        )
        yield BadValue(where, "spec.priority", str(group.priority), expected)
    if group.workload != root.workload and group.workload and root.workload:
        expected = f"{root.workload}, as {root.title} has it"
        yield BadValue(where, "spec.workloadRef.workloadName", group.workload, expected)
    for limit in group.topology_request.per_scope:
        expected = f"none: the limit is for a whole gang, which is {root.title}. Set it on all pods"
        text = f"{limit.scope}={limit.members}"
        yield BadValue(where, f"annotation {own.PREFIX}{limit.annotation}", text, expected)


def _bad_ancestry(groups: list[PodGroup]) -> BadValue | None:
    """Return the cause if the ancestry of a PodGroup is a circle or too long."""
    keys = [group.key for group in groups]
    if (last := keys.index(keys[-1])) < len(keys) - 1:
        circle = groups[last:-1]
        first = min(circle, key=lambda group: group.name)
        names = " → ".join(group.name for group in groups[last:])
        return BadValue(_where(first), f"spec.{PARENT}", first.parent, f"no circle of groups: {names}")
    return _too_deep(groups[0]) if len(groups) > MAX_DEPTH else None


def _too_deep(group: PodGroup) -> BadValue:
    limit = f"a group whose tree has at most {MAX_DEPTH} levels, of which the last is for PodGroups"
    return BadValue(_where(group), f"spec.{PARENT}", group.parent, limit)


def _where(group: PodGroup) -> str:
    return f"{group.dialect.lower()}/{group.namespace}/{group.name}"


def _parent_key(group: PodGroup) -> PodGroupKey:
    return (group.namespace, COMPOSITE, group.parent)
