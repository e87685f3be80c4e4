"""Cut roles into blocks of members that the planner counts as alike.

A role without segments is one block. Otherwise all its full segments are one block. A segment that is
shorter, or that has running members, is split off: its missing members are blocks of their own. These blocks
must lie together, in the part of the running members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from muster.domain.request import Member, Request, Role, RunningMember, Segment
from muster.domain.words import natural_key


@dataclass(frozen=True, slots=True)
class Together:
    """Blocks, by index, that must lie in one part of the scope, with the running members `running`."""

    scope: str
    blocks: tuple[int, ...]
    running: tuple[RunningMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a request.

    `roles` has one role for each block: with the role's name, the block's members, and the segments that
    still bind them. `together` lists the blocks that must lie in one part.
    """

    roles: tuple[Role, ...]
    together: tuple[Together, ...]


@dataclass(slots=True)
class _Cut:
    roles: list[Role] = field(default_factory=list)
    together: list[Together] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A member in its order by rank: to be placed, running, or left out of the plan."""

    member: Member
    running: RunningMember | None = None
    left_out: bool = False

    @property
    def is_new(self) -> bool:
        return self.running is None and not self.left_out


def blocks_of(request: Request, counts: Mapping[str, int] | None = None) -> Blocks:
    """Return the blocks of a request, role after role. A role without members keeps an empty block.

    `counts` is how many members of each role are to be placed, the first by rank. None means all.
    """
    cut = _Cut()
    for role in request.roles:
        running = [bound for bound in request.running if bound.role == role.name]
        first = len(cut.roles)
        count = len(role.members) if counts is None else counts[role.name]
        if not role.segments and count == len(role.members):
            cut.roles.append(role)
        elif not role.segments:
            cut.roles.append(first_by_rank(role, count))
        else:
            members = sorted(role.members, key=rank_key)
            ranked_members = [_Ranked(member, left_out=i >= count) for i, member in enumerate(members)]
            ranked_members += [_Ranked(bound.member, bound) for bound in running]
            ranked_members.sort(key=lambda entry: rank_key(entry.member))
            _append_blocks(cut, role, ranked_members, role.segments)
        if role.required_scope:
            cut.together.append(
                Together(role.required_scope, tuple(range(first, len(cut.roles))), tuple(running))
            )
    return Blocks(tuple(cut.roles), tuple(cut.together))


def rank_key(member: Member) -> tuple[object, ...]:
    """Return the member's sort key by rank."""
    return key_by_rank(member.rank, member.name, member.uid)


def key_by_rank(rank: int | None, name: str, uid: str) -> tuple[object, ...]:
    """Return a sort key by rank. Pods without a rank come last, in the natural order of their names."""
    return (rank is None, rank or 0, natural_key(name), uid)


def first_by_rank(role: Role, count: int) -> Role:
    """Return the role with `count` of its members, the first by rank."""
    return replace(role, members=tuple(sorted(role.members, key=rank_key)[:count]))


def _append_blocks(
    cut: _Cut, role: Role, ranked: Sequence[_Ranked], segments: tuple[Segment, ...]
) -> tuple[int, ...]:
    """Append the blocks of these members, and return the indices of the blocks."""
    if not segments:
        return _append_block(cut, role, [entry.member for entry in ranked if entry.is_new], ())
    size, scope = segments[0].size, segments[0].scope
    full_chunks, other_chunks = list[Sequence[_Ranked]](), list[Sequence[_Ranked]]()
    for begin in range(0, len(ranked), size):
        chunk = ranked[begin : begin + size]
        is_full = len(chunk) == size and all(entry.is_new for entry in chunk)
        (full_chunks if is_full else other_chunks).append(chunk)
    members = [entry.member for chunk in full_chunks for entry in chunk]
    indices = _append_block(cut, role, members, segments)
    for chunk in other_chunks:
        blocks = _append_blocks(cut, role, chunk, segments[1:])
        running = tuple(entry.running for entry in chunk if entry.running is not None)
        if blocks:
            cut.together.append(Together(scope, blocks, running))
        indices += blocks
    return indices


def _append_block(
    cut: _Cut, role: Role, members: list[Member], segments: tuple[Segment, ...]
) -> tuple[int, ...]:
    if not members:
        return ()
    cut.roles.append(replace(role, members=tuple(members), segments=segments))
    return (len(cut.roles) - 1,)


MAX_TRIES = 64
"""The most numbers of members that are tried for one answer."""


def ways_to_cut(request: Request) -> Iterator[Mapping[str, int]]:
    """Yield member counts by role, the largest first. The problems with these counts together cover every
    way to leave members out.

    The last members by rank are left out: a role keeps full segments, and perhaps a shorter last segment. A
    problem covers all plans with fewer full segments or a shorter last segment too. So only a longer last
    segment needs another count. All this holds only if no segment has running members.
    """
    names = [role.name for role in request.roles]
    for counts in product(*map(_counts_to_try, request.roles)):
        yield dict(zip(names, counts, strict=True))


def _counts_to_try(role: Role) -> list[int]:
    """Return the member counts to try: all members, and the counts one member short of a full segment."""
    count = len(role.members)
    shorter = {(count + 1) // segment.size * segment.size - 1 for segment in role.segments}
    return sorted({count, *(cut for cut in shorter if cut >= 0)}, reverse=True)


def has_begun_segment(request: Request) -> bool:
    """Return whether running members may have begun a segment.

    Then the members that are left out need not be the last of the segment.
    """
    segmented = {role.name for role in request.roles if role.segments}
    return any(running.role in segmented for running in request.running)


def fewer_fit(request: Request) -> bool:
    """Return whether in each plan some member can be left out without breaking the request's constraints."""
    return all(constraint.fewer_fit for constraint in (*request.constraints, *request.per_scope))


def ways_to_divide(total: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the ways to divide `total` members among roles of these sizes, earlier roles first."""
    if not sizes:
        yield ()
        return
    first, *later_sizes = sizes
    for count in range(min(first, total), max(0, total - sum(later_sizes)) - 1, -1):
        for later_counts in ways_to_divide(total - count, tuple(later_sizes)):
            yield (count, *later_counts)
