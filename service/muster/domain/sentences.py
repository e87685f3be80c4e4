"""The one place where decisions and causes become English, cause first, at most 900 characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from muster.domain.decision import Invalid, Placed, Unplaceable
from muster.domain.reasons import (
    BadValue,
    Cause,
    DialectsDisagree,
    DomainTooSmall,
    ForgedAllocation,
    MembersDisagree,
    MembersMissing,
    MemberTooLarge,
    NodesExcluded,
    NotDecided,
    NotEnoughFree,
    TooManyMembers,
)
from muster.domain.request import Request
from muster.domain.topology import LINK_GB_PER_S, NVLINK_GB_PER_S

MAX_CHARACTERS = 900
"""An event's note may have 1,024 bytes; what comes around the sentence needs room too."""

_LISTED = 4
_FASTEST_NVLINKS = 18


def sentence(said: Placed | Unplaceable | Invalid | Iterable[Cause]) -> str:
    """What was decided, or what the causes say."""
    if isinstance(said, Placed):
        return placed_sentence(said)
    causes = said.causes if isinstance(said, (Unplaceable, Invalid)) else tuple(said)
    text = "; ".join(cause_sentence(cause) for cause in causes) or "no cause is known"
    relaxations = said.relaxations if isinstance(said, Unplaceable) else ()
    if relaxations:
        text += f". It would help: {'; '.join(relaxations)}"
    return _cut(text if causes and isinstance(causes[0], BadValue) else text[0].upper() + text[1:])


def cause_sentence(cause: Cause) -> str:  # noqa: PLR0911 — one cause, one sentence
    """One cause as a clause: no capital, no full stop."""
    match cause:
        case BadValue(where, field, value, expected):
            return f"{where}: {field} is {_quoted(value)}, expected {expected}"
        case MembersDisagree(field, values):
            said = ", ".join(f"{_quoted(value)} (pod {pod})" for value, pod in values[:_LISTED])
            return f"pods of one gang disagree on {field}: {said}{_and_more(len(values))}"
        case TooManyMembers(live, replicas):
            return f"the gang has {live} live pods, more than its {replicas} replicas"
        case ForgedAllocation(pod, key):
            return f"pod {pod} came with the annotation {key}, which only the scheduler may write"
        case DialectsDisagree(pod, first, second):
            return f"pod {pod} names two different gangs or counts: {first} and {second}"
        case MembersMissing(present, needed):
            missing = max(0, needed - present)
            return f"waiting for {missing} more {_plural('member', missing)}: {present} of {needed} are here"
        case MemberTooLarge(role, resource, needed, node, largest):
            return (
                f"a member{_of_role(role)} asks for {_amount(resource, needed)}, "
                f"and the largest node that admits it, {node}, has {_amount(resource, largest)}"
            )
        case NotEnoughFree():
            return _not_enough(cause)
        case DomainTooSmall(scope, best, fit, needed, has_nvlink):
            if not best:
                return (
                    f"all {needed} members must lie in one {scope}, and none is known that has room for one"
                )
            why = "" if has_nvlink else "; its node has no NVLink"
            return f"no one {scope} holds all {needed} members: the best, {best}, holds {fit}{why}"
        case NodesExcluded(role, by, nodes):
            verb = "does" if nodes == 1 else "do"
            return f"{nodes} {_plural('node', nodes)} {verb} not admit {_the_role(role)}: {by}"
        case NotDecided(truncated):
            by = "wall clock" if truncated else "its budget"
            return f"the search was ended by {by} before it found a plan or a proof that there is none"


def placed_sentence(placed: Placed, request: Request | None = None) -> str:
    """Where it goes: "2 of 2 members on node a: GPUs 0,3 (NV2, 50 GB/s modelled), proven optimal"."""
    of = f"{len(placed.members)} of {request.size if request else len(placed.members)} members"
    gpus: dict[str, list[int]] = {}
    for member in placed.members:
        gpus.setdefault(member.node, []).extend(member.gpus)
    members = Counter(member.node for member in placed.members)
    if len(gpus) == 1:
        ((node, indices),) = gpus.items()
        where = f"on node {node}{': ' + _gpus(indices) if indices else ''}"
    else:
        inside = f" in {placed.domain}" if placed.domain else ""
        listed = [
            f"{node} ×{members[node]}{' ' + _gpus(indices) if indices else ''}"
            for node, indices in gpus.items()
        ]
        where = f"on {len(gpus)} nodes{inside}: {'; '.join(listed[:_LISTED])}{_and_more(len(listed))}"
    return _cut(f"{of} {where}{_link(placed.objective.weakest_link_gb_per_s)}, {_proof(placed)}")


def _not_enough(cause: NotEnoughFree) -> str:
    several = ", " in cause.role
    role, verb = _the_role(cause.role), "need" if several else "needs"
    asked = f"{role} {verb} {_amount(cause.resource, cause.needed)} for {_members(cause.members_needed)}"
    fits = "fit" if cause.members_fit > 1 else "fits"
    fit = f"{cause.members_fit or 'none'} of {cause.members_needed} {fits}"
    if cause.free >= cause.needed:
        fit = f"only {fit}" if cause.members_fit else fit
        return f"{asked}; {_amount(cause.resource, cause.free)} are free, but scattered: {fit}"
    return f"{asked}, and {_amount(cause.resource, cause.free)} are free: {fit}"


def _the_role(role: str) -> str:
    """A gang of one role, which nobody named, has "" for its name."""
    return f"{'roles' if ', ' in role else 'role'} {role}" if role else "the gang"


def _of_role(role: str) -> str:
    return f" of role {role}" if role else ""


def _members(count: int) -> str:
    return f"{count} {_plural('member', count)}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _amount(resource: str, amount: int) -> str:
    """cpu comes in thousandths of a core, memory in bytes."""
    if resource == "cpu":
        return f"{amount / 1000:g} cpu"
    if resource == "memory":
        return f"{amount / 2**30:.4g} GiB of memory"
    return f"{amount} {resource}"


def _quoted(value: str) -> str:
    return f'"{value[:60]}…"' if len(value) > 60 else f'"{value}"'


def _and_more(count: int) -> str:
    return f" and {count - _LISTED} more" if count > _LISTED else ""


def _gpus(indices: list[int]) -> str:
    return f"{_plural('GPU', len(indices))} {','.join(map(str, sorted(indices)))}"


def _link(gb_per_s: float | None) -> str:
    if gb_per_s is None:
        return ""
    nvlinks = gb_per_s / NVLINK_GB_PER_S
    kinds = {value: kind for kind, value in LINK_GB_PER_S.items()}
    if nvlinks.is_integer() and 1 <= nvlinks <= _FASTEST_NVLINKS:
        kind = f"NV{int(nvlinks)}, "
    else:
        kind = f"{kinds[gb_per_s]}, " if gb_per_s in kinds else ""
    return f" ({kind}{gb_per_s:g} GB/s modelled)"


def _proof(placed: Placed) -> str:
    if placed.optimal:
        return "proven optimal"
    if placed.truncated:
        return "not proven optimal: the time limit cut the search short"
    if placed.gap is None or placed.gap > 1:
        return "not proven optimal"
    return f"not proven optimal: gap {100 * placed.gap:.3g} %"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
