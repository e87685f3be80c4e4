"""The number of subgroups of a gang that must start, as a tree: KAI's minSubGroup, Kubernetes' minGroupCount.

A `Leaf` is a subgroup without subgroups: it starts with at least `min_members` members, or gets none. A
`Quorum` is a subgroup with parts, or the whole gang: it starts if at least `min_parts` of its parts start. If
a part does not start, no subgroup below it gets a member. A gang whose roles have minimums is a quorum of
these roles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

CountByRole = Mapping[str, int]
"""Role → number of members; 0 for roles that are not in it."""

MembersByLeaf = tuple[tuple["Leaf", int], ...]
"""The leaves that start, each with its number of members."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Members of the named roles that start together: `min_members` or more, or none.

    `unit` members in a row are one replica, which is of use only as a whole. `begun` members of a replica are
    present already. The first `back` members return to replicas that run, and need not wait for others. At
    most `max_members` members can start, because the other members belong to incomplete replicas; -1 means
    that all can.
    """

    roles: frozenset[str]
    min_members: int
    unit: int = 1
    begun: int = 0
    back: int = 0
    max_members: int = -1

    def count_in(self, counts: CountByRole) -> int:
        """Return how many of these members belong to the leaf."""
        return sum(counts.get(role, 0) for role in self.roles)

    def limit(self, members: int) -> int:
        """Return the largest number of these waiting members that can start."""
        return members if self.max_members < 0 else min(members, self.max_members)

    def left_over(self, members: int) -> int:
        """Return how many of these members are left over after whole replicas."""
        return 0 if members <= self.back else (members + self.begun) % self.unit

    def starts(self, members: int) -> bool:
        """Return whether this number of members is enough, and makes whole replicas."""
        return self.min_members <= members == self.limit(members) and not self.left_over(members)

    def next_startable(self, members: int) -> int:
        """Return the smallest number, from `members` on, that is enough and makes whole replicas."""
        members = max(members, self.min_members)
        return members + -self.left_over(members) % self.unit

    def largest_startable(self, members: int) -> int:
        """Return the largest number, up to `members`, with which the leaf starts; 0 without such a number."""
        members = self.limit(members)
        startable = members - self.left_over(members)
        return startable if startable >= max(1, self.min_members) else 0

    def without_members(self, present: CountByRole) -> Leaf:
        """Return the leaf that still must come when these members are there."""
        members = self.count_in(present)
        return replace(
            self,
            min_members=max(0, self.min_members - members),
            begun=(self.begun + members) % self.unit,
            back=max(0, self.back - members),
            max_members=max(0, self.max_members - members) if self.max_members >= 0 else -1,
        )


@dataclass(frozen=True, slots=True)
class Quorum:
    """At least `min_parts` of the parts start. With `only`, exactly `min_parts` parts get members."""

    min_parts: int
    parts: tuple[Quorum | Leaf, ...]
    only: bool = False

    def leaves(self) -> Iterator[Leaf]:
        """Yield all leaves, in their order."""
        for part in self.parts:
            yield from (part,) if isinstance(part, Leaf) else part.leaves()

    def map_leaves(self, change: Callable[[Leaf], Leaf]) -> Quorum:
        """Return the tree with changed leaves."""
        parts = (change(part) if isinstance(part, Leaf) else part.map_leaves(change) for part in self.parts)
        return Quorum(self.min_parts, tuple(parts), self.only)

    def without_members(self, present: CountByRole) -> Quorum:
        """Return the tree that still must come when these members are there."""
        return self.map_leaves(lambda leaf: leaf.without_members(present))

    def with_exact_minimum(self) -> Quorum:
        """Return the tree in which exactly the minimum of subgroups gets members."""
        parts = (part if isinstance(part, Leaf) else part.with_exact_minimum() for part in self.parts)
        return Quorum(self.min_parts, tuple(parts), only=True)

    @property
    def needs_all(self) -> bool:
        """Return whether all leaves must start."""
        return self.min_parts == len(self.parts) and all(
            isinstance(part, Leaf) or part.needs_all for part in self.parts
        )

    @property
    def leaves_no_choice(self) -> bool:
        """Return whether each role must start: all parts are leaves, and all parts are needed."""
        return self.min_parts == len(self.parts) and all(isinstance(part, Leaf) for part in self.parts)

    def starts(self, counts: CountByRole) -> bool:
        """Return whether the gang starts with exactly these members."""
        return _starts(self, counts) and _is_whole(self, counts)

    def fewest_members(
        self, waiting: CountByRole | None = None, *, some: bool = False
    ) -> MembersByLeaf | None:
        """Return the leaves that start the gang with the fewest members. Of equal choices, earlier leaves
        come first.

        Return None if too few members are `waiting`, where None stands for any number. With `some`, at least
        one member is included, even if the gang needs none.
        """
        return _fewest(self, waiting, some)


QuorumPart = Quorum | Leaf


def _starts(part: QuorumPart, counts: CountByRole) -> bool:
    if isinstance(part, Leaf):
        return part.starts(part.count_in(counts))
    return sum(_starts(child, counts) for child in part.parts) >= part.min_parts


def _is_whole(part: QuorumPart, counts: CountByRole) -> bool:
    """Return whether members lie only in subgroups that start, together with all subgroups around them."""
    if isinstance(part, Leaf):
        return True
    begun = [child for child in part.parts if not _is_empty(child, counts)]
    if part.only and len(begun) > part.min_parts:
        return False
    return all(_starts(child, counts) and _is_whole(child, counts) for child in begun)


def _is_empty(part: QuorumPart, counts: CountByRole) -> bool:
    leaves = (part,) if isinstance(part, Leaf) else part.leaves()
    return not any(leaf.count_in(counts) for leaf in leaves)


def _fewest(part: QuorumPart, waiting: CountByRole | None, at_least_one: bool) -> MembersByLeaf | None:
    if isinstance(part, Leaf):
        count = part.next_startable(int(at_least_one))
        return ((part, count),) if waiting is None or count <= part.limit(part.count_in(waiting)) else None
    options = [
        (i, leaves) for i, child in enumerate(part.parts) if (leaves := _fewest(child, waiting, False))
    ]
    options.sort(key=lambda option: members_of(option[1]))
    if len(options) < part.min_parts:
        return None
    first = _leaves_in_order(options[: part.min_parts])
    if not at_least_one or members_of(first):
        return first
    # Here all parts of the minimum start without members. So the part that needs the fewest gets members, and
    # the other parts still start without.
    with_one = [
        (i, leaves) for i, child in enumerate(part.parts) if (leaves := _fewest(child, waiting, True))
    ]
    if not with_one:
        return None
    fewest = min(with_one, key=lambda option: members_of(option[1]))
    other_options = [option for option in options if option[0] != fewest[0]]
    return _leaves_in_order([*other_options[: part.min_parts - 1], fewest])


def _leaves_in_order(options: list[tuple[int, MembersByLeaf]]) -> MembersByLeaf:
    return tuple(leaf for _, leaves in sorted(options, key=lambda option: option[0]) for leaf in leaves)


def of_roles(leaves: Iterable[tuple[Leaf, int]], waiting: CountByRole) -> dict[str, int]:
    """Return the members of these leaves by role. The members of a leaf go to the roles that come first."""
    counts = dict.fromkeys(waiting, 0)
    for leaf, count in leaves:
        for role in (role for role in waiting if role in leaf.roles):
            counts[role] = min(waiting[role], count - leaf.count_in(counts))
    return counts


def members_of(leaves: MembersByLeaf) -> int:
    """Return the number of members with which these leaves start."""
    return sum(count for _, count in leaves)
