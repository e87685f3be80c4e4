"""The one place where decisions and causes become English, cause first, at most 900 characters.

Each sentence is one line without control characters (`printable`), whatever users wrote into its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from muster.domain.decision import Invalid, Placed, Unplaceable
from muster.domain.printable import printable
from muster.domain.reasons import (
    GPU_MEMORY,
    AffinityUnsatisfied,
    AntiAffinityLimits,
    BadValue,
    Cause,
    ClaimsMissing,
    ClusterTooSmall,
    DialectsDisagree,
    DomainTooSmall,
    ForgedAllocation,
    FreeApart,
    FreeInPieces,
    IndicesUnknown,
    MembersDisagree,
    MembersMissing,
    MemberTooLarge,
    NodesExcluded,
    NoSuchDomain,
    NotDecided,
    NotEnoughFree,
    NotSupported,
    PlannerDefect,
    PodGroupMissing,
    RefusedEverywhere,
    RoleScope,
    RoomTooSmall,
    RunningElsewhere,
    SegmentsTooLarge,
    SkewTooLarge,
    TooFewParts,
    TookTooLong,
    TookTooMuchMemory,
    TooManyMembers,
    TooManyRoles,
    in_bytes,
)
from muster.domain.relaxations import (
    DropConstraint,
    DropSelector,
    FewerMembers,
    MoreFree,
    MorePerPart,
    Relaxation,
    SmallerSegments,
    Tolerate,
    Uncordon,
    WiderScope,
)
from muster.domain.request import Request, Scope
from muster.domain.topology import LINK_GB_PER_S, NVLINK_GB_PER_S, bits

MAX_CHARACTERS = 900
"""An event's note may have 1,024 bytes; what comes around the sentence needs room too."""

_LISTED = 4
_LISTED_NODES = 3
_FASTEST_NVLINKS = 18


def sentence(said: Placed | Unplaceable | Invalid | Iterable[Cause]) -> str:
    """What was decided, or what the causes say."""
    if isinstance(said, Placed):
        return placed_sentence(said)
    causes = said.causes if isinstance(said, (Unplaceable, Invalid)) else tuple(said)
    text = "; ".join(_clauses(causes)) or "no cause is known"
    relaxations = said.relaxations if isinstance(said, Unplaceable) else ()
    if relaxations:
        text += f". It would help: {'; or '.join(map(relaxation_sentence, relaxations))}"
    return _cut(text if causes and isinstance(causes[0], BadValue) else text[0].upper() + text[1:])


def _clauses(causes: tuple[Cause, ...]) -> Iterator[str]:
    """A clause a cause; one of two where the second says what the first is about."""
    left = list(causes)
    while left:
        cause, *left = left
        both = _both(cause, left[0]) if left else None
        if both is not None:
            left = left[1:]
        yield both or cause_sentence(cause)


def _both(cause: Cause, then: Cause) -> str | None:
    match cause, then:
        case (
            DomainTooSmall(scope, best, fit, needed, even_empty=even_empty, role=role)
            | RoleScope(role, scope, best, fit, needed, even_empty),
            RunningElsewhere(_, part, running),
        ) if then.scope == scope and part == best and (fit is None or fit < needed):
            if not part:
                return f"{cause_sentence(replace(cause, even_empty=False))}; {cause_sentence(then)}"
            runs = f"{_members(running)} {_plural_verb('run', running)}"
            room = _fit(fit, needed) if fit and not even_empty else ""
            return f"{scope} {part}, where {runs}, has no room for {needed} more{_of_role(role)}{room}"
        case SegmentsTooLarge(), RunningElsewhere(scope, part, running) if part:
            runs = f"{_members(running)} of one segment {_plural_verb('run', running)} {_in(scope, part)}"
            it = "it" if running == 1 else "them"
            return f"{cause_sentence(cause)}; {runs}, and the rest must join {it}"
        case TooFewParts(scope), NoSuchDomain(other) if scope == other:
            return f"{cause_sentence(cause)}; no node lies in any {scope}, so each counts as one"
    return None


def cause_sentence(cause: Cause) -> str:  # noqa: PLR0911, PLR0912 — one cause, one sentence
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
        case MembersMissing(present, needed, role):
            missing = max(0, needed - present)
            members = f"{_plural('member', missing)}{f' of role {role}' if role else ''}"
            return f"waiting for {missing} more {members}: {present} of {needed} are here"
        case PodGroupMissing(name):
            return f"PodGroup {name} does not exist yet; its pods wait for it"
        case ClaimsMissing(claims):
            listed = ", ".join(claims[:_LISTED])
            more = f" and {len(claims) - _LISTED} more" if len(claims) > _LISTED else ""
            verb = "does" if len(claims) == 1 else "do"
            return f"{_plural('PersistentVolumeClaim', len(claims))} {listed}{more} {verb} not exist"
        case RefusedEverywhere(role, by):
            return f"no node admits {_the_role(role)}: {by}"
        case MemberTooLarge(role, resource, needed, node, largest, anywhere):
            which = f"the largest node{'' if anywhere else ' that admits it'}, {node},"
            asks = f"a member{_of_role(role)} asks for {_amount(resource, needed)}"
            on_one = " on one GPU" if resource == GPU_MEMORY else ""
            return f"{asks}{on_one}, and {which} has {_amount(resource, largest)}"
        case ClusterTooSmall() | NotEnoughFree() | FreeInPieces() | FreeApart():
            return _short_of(cause)
        case NodesExcluded(role, by, nodes):
            verb = "does" if nodes == 1 else "do"
            return f"{nodes} {_plural('node', nodes)} {verb} not admit {_the_role(role)}: {by}"
        case NotSupported(rule, scope):
            return f"{rule} {scope} is not supported where members share GPUs"
        case NotDecided(truncated):
            by = "wall clock" if truncated else "its budget"
            return f"the search was ended by {by} before it found a plan or a proof that there is none"
        case AntiAffinityLimits() | AffinityUnsatisfied() | SkewTooLarge() | RoomTooSmall():
            return _constrained(cause)
        case PlannerDefect(error):
            report = "please report it with the input (`muster capture` writes it from a cluster)"
            return f"not decided: the planner has a defect; {report}: {error}"
        case TookTooLong() | TookTooMuchMemory() | TooManyRoles():
            return _too_much(cause)
    return _out_of_place(cause)


def _constrained(cause: AntiAffinityLimits | AffinityUnsatisfied | SkewTooLarge | RoomTooSmall) -> str:
    """A constraint between pods forbids it, or the room of nodes."""
    so = f"{_fit(cause.members_fit, cause.members_needed)}{_empty(cause.even_empty)}"
    match cause:
        case AntiAffinityLimits(name, key):
            return f"by {name}, no member may share one {key} with a pod that it keeps apart{so}"
        case AffinityUnsatisfied(name, key):
            return f"by {name}, members may lie only in one {key} with a pod that it names{so}"
        case SkewTooLarge(name, key, skew):
            return (
                f"by {name}, one {key} may have {skew} more {_plural('pod', skew)} than another at most{so}"
            )
        case RoomTooSmall(role, room, members):
            of = f"{members}{_of_role(role)}" if role else f"{members}"
            return f"nodes can attach the volumes of {room} {_plural('member', room)}, of {of}, at most{so}"


def _too_much(cause: TookTooLong | TookTooMuchMemory | TooManyRoles) -> str:
    """The gang asks more of the planner than one gang may have."""
    match cause:
        case TookTooLong(seconds, others_wait):
            why = "because other gangs waited" if others_wait else "the limit for one gang"
            return f"not decided: the planner was ended after {seconds:.1f} s, {why}"
        case TookTooMuchMemory(limit_mib):
            limit = f"{limit_mib} MiB of memory, the limit for one gang"
            return f"not decided: the planner was ended because it needed more than {limit}"
        case TooManyRoles(roles, most):
            way_out = "give pods that do the same work equal requests, node selectors and tolerations"
            return f"its pods are of {roles} different roles, and a gang may have {most}: {way_out}"


def _short_of(cause: ClusterTooSmall | NotEnoughFree | FreeInPieces | FreeApart) -> str:
    """There is not enough, or it is not where it would be of use."""
    several = ", " in cause.role
    role, verb = _the_role(cause.role), "need" if several else "needs"
    members, fit = _members(cause.members_needed), _fit(cause.members_fit, cause.members_needed)
    if isinstance(cause, FreeApart):
        amounts = " and ".join(_amount(*each) for each in cause.resources)
        there = "there" if cause.even_empty else "free"
        names = {resource for resource, _ in cause.resources}
        same = "at once" if GPU_MEMORY in names and len(names) > 1 else "on the same nodes"
        apart = f"{role} {verb} room for {members}; {amounts} are {there}, but not {same}"
        return f"{apart}{fit}{_empty(cause.even_empty and bool(fit))}"
    asked = f"{role} {verb} {_amount(cause.resource, cause.needed)} for {members}"
    match cause:
        case NotEnoughFree(_, what, free):
            return f"{asked}, and {_are_free(what, free)}{fit}"
        case FreeInPieces(_, what, free):
            return f"{asked}; {_are_free(what, free)}, but {_pieces(cause)}{fit}"
        case ClusterTooSmall(_, what, total):
            nodes = "all nodes" if cause.anywhere else f"the nodes that admit {'them' if several else 'it'}"
            have = f"{nodes} have {_amount(what, total)} in all"
            if not cause.largest_node:
                return f"{asked}, and there are no nodes"
            fit += _empty(bool(fit))
            if total < cause.needed:
                return f"{asked}, and {have}{fit}"
            return f"{asked}; {have}, but {_pieces(cause)}{fit}"


def _pieces(cause: ClusterTooSmall | FreeInPieces) -> str:
    largest = _number(cause.resource, cause.largest)
    piece = "GPU" if cause.resource == GPU_MEMORY else "node"
    return f"in pieces too small, at most {largest} on one {piece} ({cause.largest_node})"


def _out_of_place(  # noqa: PLR0911 — one cause, one sentence
    cause: DomainTooSmall
    | NoSuchDomain
    | IndicesUnknown
    | RoleScope
    | SegmentsTooLarge
    | TooFewParts
    | RunningElsewhere,
) -> str:
    """There may be enough, but not where members may lie."""
    match cause:
        case DomainTooSmall(scope, best, fit, needed, has_nvlink, even_empty, role):
            why = "" if has_nvlink else "; its node has no NVLink"
            who = f"{_all(needed)}{_of_role(role)}"
            return f"no one {scope} holds {who}{_empty(even_empty)}{_best(best, fit)}{why}"
        case NoSuchDomain(scope, role):
            return f"{_the_role(role)} must lie in one {scope}, and no node that admits it lies in any"
        case IndicesUnknown(scope, nodes):
            where = f"{nodes} {_plural('node', nodes)}"
            return f"no one {scope} can be promised: on {where}, pods have GPUs and do not say which"
        case RoleScope(role, scope, best, fit, needed, even_empty):
            if fit is None or fit < needed:
                who = f"{_all(needed)}{_of_role(role)}"
                return f"no one {scope} holds {who}{_empty(even_empty)}{_best(best, fit)}"
            must = f"{_all(needed)}{_of_role(role)} must lie in one {scope}"
            return f"{must}, and no one holds them beside the other roles"
        case SegmentsTooLarge(role, segments, fit, needed, even_empty):
            by = ", each of ".join(f"{size} in one {scope}" for size, scope in segments)
            must = f"members of {_the_role(role)} must lie by segments of {by}"
            return f"{must}{_fit(fit, needed)}{_empty(even_empty)}"
        case TooFewParts(scope, each, fit, needed, even_empty, running):
            counted = f", {running} that {_plural_verb('run', running)} already counted" if running else ""
            must = f"at most {_members(each)} may lie in one {scope}{counted}"
            return f"{must}{_fit(fit, needed)}{_empty(even_empty)}"
        case RunningElsewhere(scope, part, running):
            runs = f"{_members(running)} {_plural_verb('run', running)} already"
            it, one = ("it", "any") if running == 1 else ("them", "one")
            if part:
                return f"{runs} {_in(scope, part)}, and the others must join {it}"
            if scope in (Scope.GPU, Scope.NVLINK_DOMAIN):
                return f"{runs}, nobody knows in which one {scope}, and the others must join {it}"
            return f"{runs}, and not in {one} {scope}, where the others must join {it}"


def relaxation_sentence(relaxation: Relaxation) -> str:  # noqa: PLR0911 — one relaxation, one sentence
    """What would help, as a noun phrase: no capital, no full stop."""
    match relaxation:
        case MoreFree(resource, amount, nodes):
            return _more_free(resource, amount, nodes)
        case Uncordon(nodes):
            return f"to uncordon {nodes} {_plural('node', nodes)}"
        case Tolerate(role, taint, nodes):
            return f"a toleration of taint {taint}{_for_role(role)} ({_more_nodes(nodes)})"
        case DropSelector(role, selector, nodes):
            return f"no {selector}{_for_role(role)} ({_more_nodes(nodes)})"
        case WiderScope(scope, wider, part, needed, role):
            new = f"scope {wider}" if wider else "no required scope"
            where = f" in {part}" if part else ""
            return f"{new} instead of {scope}{_for_role(role)} ({needed} of {needed} fit{where})"
        case SmallerSegments(role, sizes):
            if not sizes:
                return f"no segments{_for_role(role)}"
            by = ", each of ".join(f"{size} in one {scope}" for size, scope in sizes)
            return f"segments of {by}{_for_role(role)}"
        case MorePerPart(scope, members, before):
            return f"up to {_members(members)} in one {scope} instead of {before}"
        case DropConstraint(constraint):
            return f"to drop {constraint}"
        case FewerMembers(min_member, before):
            return f"to start with {_members(min_member)} instead of {before}"


def _more_free(resource: str, amount: int, nodes: tuple[tuple[str, int], ...]) -> str:
    what = _plural("GPU", amount) if "/" in resource else resource
    if len(nodes) > _LISTED_NODES:
        return f"{_number(resource, amount)} more free {what} on {len(nodes)} nodes"
    first, *rest = nodes
    what = _plural("GPU", first[1]) if "/" in resource else resource
    listed = [f"{_number(resource, first[1])} more free {what} on {first[0]}"]
    return " and ".join([*listed, *(f"{_number(resource, n)} on {node}" for node, n in rest)])


def placed_sentence(placed: Placed, request: Request | None = None) -> str:
    """Where it goes: "2 of 2 members on node a: GPUs 0,3 (NV2, 50 GB/s modelled), proven optimal"."""
    of = f"{len(placed.members)} of {request.size if request else len(placed.members)} members"
    gpus: dict[str, Counter[int]] = {}
    for member in placed.members:
        gpus.setdefault(member.node, Counter()).update(dict.fromkeys(member.gpus, member.units))
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
    waiting = request.size - len(placed.members) if request else 0
    wait = f"; {waiting} {_plural_verb('wait', waiting)}" if waiting else ""
    missed = request.preferred_scopes if request and not placed.objective.preferred_reached else ()
    miss = f"; no preferred scope holds them ({', '.join(missed)})" if missed else ""
    return _cut(f"{of} {where}{_link(placed)}, {_proof(placed)}{wait}{miss}")


def unhealthy_sentence(gpus: int, pods: Sequence[str]) -> str:
    """Pods, as namespace/name, that run on unhealthy GPUs of a node; `gpus` is the bit mask of these."""
    which = f"{_plural('GPU', gpus.bit_count())} {','.join(map(str, bits(gpus)))}"
    are, there = ("is", "it") if gpus.bit_count() == 1 else ("are", "them")
    listed = f"{', '.join(pods[:_LISTED])}{_and_more(len(pods))}"
    return _cut(f"{which} {are} unhealthy, and on {there} {_plural_verb('run', len(pods))} {listed}")


def _the_role(role: str) -> str:
    """A gang of one unnamed role has "" as the role's name."""
    return f"{'roles' if ', ' in role else 'role'} {role}" if role else "the gang"


def _of_role(role: str) -> str:
    return f" of role {role}" if role else ""


def _for_role(role: str) -> str:
    return f" for role {role}" if role else ""


def _more_nodes(count: int) -> str:
    return f"{count} more {_plural('node', count)}"


def _empty(even_empty: bool) -> str:
    return ", even if nothing else ran" if even_empty else ""


def _fit(fit: int | None, needed: int) -> str:
    """A clause that follows what they need; nothing where it is not known."""
    return "" if fit is None else f": {fit or 'none'} of {needed} {'fit' if fit > 1 else 'fits'}"


def _best(best: str, fit: int | None) -> str:
    return "" if fit is None or not best else f": the best, {best}, holds {fit}"


def _in(scope: str, part: str) -> str:
    return f"{'on' if scope in (Scope.NODE, Scope.GPU) else 'in'} {scope} {part}"


def _members(count: int) -> str:
    return f"{count} {_plural('member', count)}"


def _all(count: int) -> str:
    return f"all {count} members" if count > 1 else "the one member"


def _are_free(resource: str, amount: int) -> str:
    return f"{_amount(resource, amount)} {'is' if amount == 1 else 'are'} free"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _plural_verb(verb: str, count: int) -> str:
    return f"{verb}s" if count == 1 else verb


def _amount(resource: str, amount: int) -> str:
    """An amount with its unit."""
    of = "of " if resource == GPU_MEMORY or in_bytes(resource) else ""
    name = resource.replace("GPUs of", "GPU of", 1) if amount == 1 else resource
    return f"{_number(resource, amount)} {of}{name}"


def _number(resource: str, amount: int) -> str:
    """cpu comes in thousandths of a core, memory in bytes."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if in_bytes(resource):
        return f"{amount / 2**30:.4g} GiB"
    if resource == GPU_MEMORY:
        return f"{amount} GiB"
    return str(amount)


def _quoted(value: str) -> str:
    return f'"{value[:60]}…"' if len(value) > 60 else f'"{value}"'


def _and_more(count: int) -> str:
    return f" and {count - _LISTED} more" if count > _LISTED else ""


def _gpus(units: Mapping[int, int]) -> str:
    """Indices, with the units of those that are shared."""
    listed = (f"{gpu} ({taken} GiB)" if taken else str(gpu) for gpu, taken in sorted(units.items()))
    return f"{_plural('GPU', len(units))} {','.join(listed)}"


def _link(placed: Placed) -> str:
    gb_per_s = placed.objective.weakest_link_gb_per_s
    if gb_per_s is None:
        return ""
    one = placed.scope_reached in (Scope.GPU, Scope.NVLINK_DOMAIN, Scope.NODE)
    nvlinks = gb_per_s / NVLINK_GB_PER_S
    kinds = {value: kind for kind, value in LINK_GB_PER_S.items()}
    if nvlinks.is_integer() and 1 <= nvlinks <= _FASTEST_NVLINKS:
        kind = f"NV{int(nvlinks)}, "
    else:
        kind = f"{kinds[gb_per_s]}, " if gb_per_s in kinds else ""
    return f" ({kind}{gb_per_s:g} GB/s modelled{'' if one else ' inside the nodes'})"


def _proof(placed: Placed) -> str:
    if placed.optimal:
        return "proven optimal"
    if placed.truncated:
        return "not proven optimal: the time limit cut the search short"
    level = f" in {placed.unproven.replace('_', ' ')}" if placed.unproven else ""
    if placed.gap is None or placed.gap >= 1:
        return f"not proven optimal{level}"
    return f"not proven optimal{level}: gap {100 * placed.gap:.3g} %"


def _cut(text: str) -> str:
    return printable(text, MAX_CHARACTERS)
