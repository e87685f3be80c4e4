"""Roles cut into blocks: members that the planner counts as alike, and what binds them.

A role without segments is one block. Otherwise its whole segments are one, and a segment that is shorter, or
has members running already, is taken apart: its missing members are blocks of their own that lie together, in
the part where the running ones are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.domain.request import Member, Request, Role, Running, Segment
from muster.placement.cluster.fabric import natural


@dataclass(frozen=True, slots=True)
class Together:
    """These blocks, by index, lie in one part of the scope, and so do the running members."""

    scope: str
    blocks: tuple[int, ...]
    running: tuple[Running, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocks:
    """`roles`: one a block, with the role's name and the block's members, and only the segments that still
    bind it. `together`: what binds several, or to running members."""

    roles: tuple[Role, ...]
    together: tuple[Together, ...]


@dataclass(slots=True)
class _Cut:
    roles: list[Role] = field(default_factory=list)
    together: list[Together] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A member in its place by rank: to be placed, running, or left out of the plan."""

    member: Member
    running: Running | None = None
    left_out: bool = False

    @property
    def new(self) -> bool:
        return self.running is None and not self.left_out


def blocks_of(request: Request, kept: Mapping[str, int] | None = None) -> Blocks:
    """The blocks of a request, role after role. A role without members keeps an empty block.

    `kept`: how many members of each role are to be placed, the first by rank; by default all.
    """
    cut = _Cut()
    for role in request.roles:
        running = [one for one in request.running if one.role == role.name]
        first = len(cut.roles)
        count = len(role.members) if kept is None else kept[role.name]
        if not role.segments and count == len(role.members):
            cut.roles.append(role)
        elif not role.segments:
            cut.roles.append(replace(role, members=tuple(sorted(role.members, key=rank_key)[:count])))
        else:
            members = sorted(role.members, key=rank_key)
            every = [_Ranked(member, left_out=i >= count) for i, member in enumerate(members)]
            every += [_Ranked(one.member, one) for one in running]
            list(_divided(cut, role, sorted(every, key=lambda one: rank_key(one.member)), role.segments))
        if role.required_scope:
            cut.together.append(
                Together(role.required_scope, tuple(range(first, len(cut.roles))), tuple(running))
            )
    return Blocks(tuple(cut.roles), tuple(cut.together))


def rank_key(member: Member) -> tuple[object, ...]:
    """By rank, those without one last, by natural order of names (worker-2 before worker-10)."""
    return (member.rank is None, member.rank or 0, natural(member.name), member.uid)


def _divided(
    cut: _Cut, role: Role, ranked: Sequence[_Ranked], segments: tuple[Segment, ...]
) -> Iterator[int]:
    """Append the blocks of these members; yields their indices."""
    if not segments:
        yield from _block(cut, role, [one.member for one in ranked if one.new], ())
        return
    size, scope = segments[0].size, segments[0].scope
    chunks = [ranked[at : at + size] for at in range(0, len(ranked), size)]
    whole = [len(chunk) == size and all(one.new for one in chunk) for chunk in chunks]
    together = [
        one.member for chunk, all_of_it in zip(chunks, whole, strict=True) if all_of_it for one in chunk
    ]
    yield from _block(cut, role, together, segments)
    for chunk, all_of_it in zip(chunks, whole, strict=True):
        if not all_of_it:
            blocks = tuple(_divided(cut, role, chunk, segments[1:]))
            running = tuple(one.running for one in chunk if one.running is not None)
            if blocks:
                cut.together.append(Together(scope, blocks, running))
            yield from blocks


def _block(cut: _Cut, role: Role, members: list[Member], segments: tuple[Segment, ...]) -> Iterator[int]:
    if members:
        cut.roles.append(replace(role, members=tuple(members), segments=segments))
        yield len(cut.roles) - 1
