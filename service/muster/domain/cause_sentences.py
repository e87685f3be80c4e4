"""A clause for each cause: no capital, no full stop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from muster.domain import reasons
from muster.domain.constraints import PerScopeCause
from muster.domain.request import Scope
from muster.domain.words import (
    LISTED,
    amount,
    and_more,
    counted,
    if_empty,
    number,
    of_role,
    plural,
    plural_verb,
    quoted,
    so_many_fit,
    such_pods,
    the_role,
)


def clauses(causes: tuple[reasons.Cause, ...]) -> Iterator[str]:
    """Yield a clause for each cause; one for two causes if the second says what the first is about."""
    left = list(causes)
    while left:
        cause, *left = left
        both = _both(cause, left[0]) if left else None
        if both is not None:
            left = left[1:]
        yield both or cause_sentence(cause)


def _both(cause: reasons.Cause, then: reasons.Cause) -> str | None:
    match cause, then:
        case (
            reasons.DomainTooSmall(scope, best, fit, needed, even_empty=even_empty, role=role)
            | reasons.RoleScope(role, scope, best, fit, needed, even_empty),
            reasons.RunningElsewhere(_, part, running),
        ) if then.scope == scope and part == best and (fit is None or fit < needed):
            if not part:
                return f"{cause_sentence(replace(cause, even_empty=False))}; {cause_sentence(then)}"
            runs = f"{counted('member', running)} {plural_verb('run', running)}"
            room = so_many_fit(fit, needed) if fit and not even_empty else ""
            return f"{scope} {part}, where {runs}, has no room for {needed} more{of_role(role)}{room}"
        case reasons.SegmentsTooLarge(), reasons.RunningElsewhere(scope, part, running) if part:
            run = plural_verb("run", running)
            runs = f"{counted('member', running)} of one segment {run} {_in(scope, part)}"
            it = "it" if running == 1 else "them"
            return f"{cause_sentence(cause)}; {runs}, and the rest must join {it}"
        case PerScopeCause(scope), reasons.NoSuchDomain(other) if scope == other:
            return f"{cause_sentence(cause)}; no node lies in any {scope}, so each counts as one"
    return None


def cause_sentence(cause: reasons.Cause) -> str:  # noqa: PLR0911, PLR0912 — one cause, one sentence
    """One cause as a clause: no capital, no full stop."""
    match cause:
        case reasons.BadValue(where, field, value, expected, pods):
            return f"{such_pods(where, pods)}: {field} is {quoted(value)}, expected {expected}"
        case reasons.MembersDisagree(field, values):
            said = ", ".join(f"{quoted(value)} (pod {pod})" for value, pod in values[:LISTED])
            return f"pods of one gang disagree on {field}: {said}{and_more(len(values))}"
        case reasons.TooManyMembers(live, replicas):
            return f"the gang has {live} live pods, more than its {replicas} replicas"
        case reasons.ForgedAllocation(pod, key, pods):
            who = such_pods(f"pod {pod}", pods)
            return f"{who} came with the annotation {key}, which only the scheduler may write"
        case reasons.DialectsDisagree(pod, first, second, pods):
            who, names = such_pods(f"pod {pod}", pods), "names" if pods == 1 else "name"
            return f"{who} {names} two different gangs or counts: {first} and {second}"
        case reasons.MembersMissing(present, needed, role):
            missing = max(0, needed - present)
            members = f"{plural('member', missing)}{f' of role {role}' if role else ''}"
            return f"waiting for {missing} more {members}: {present} of {needed} are here"
        case reasons.PodGroupMissing(name):
            return f"PodGroup {name} does not exist yet; its pods wait for it"
        case reasons.JobMissing(job):
            return f"{job} is not there; its pods wait for it, since it says how many they are"
        case reasons.ClaimsMissing(claims, further):
            count = len(claims) + further
            listed, verb = ", ".join(claims[:LISTED]), "does" if count == 1 else "do"
            return f"{plural('PersistentVolumeClaim', count)} {listed}{and_more(count)} {verb} not exist"
        case reasons.RefusedEverywhere(role, by):
            return f"no node admits {the_role(role)}: {by}"
        case reasons.MemberTooLarge(role, resource, needed, node, largest, anywhere):
            which = f"the largest node{'' if anywhere else ' that admits it'}, {node},"
            asks = f"a member{of_role(role)} asks for {amount(resource, needed)}"
            asks += " on one GPU" if resource == reasons.GPU_MEMORY else ""
            return f"{asks}, and {which} has {amount(resource, largest)}"
        case (
            reasons.ClusterTooSmall() | reasons.NotEnoughFree() | reasons.FreeInPieces() | reasons.FreeApart()
        ):
            return _short_of(cause)
        case reasons.NodesExcluded(role, by, nodes):
            not_admit = f"{'does' if nodes == 1 else 'do'} not admit"
            return f"{counted('node', nodes)} {not_admit} {the_role(role)}: {by}"
        case reasons.NotSupported(rule, scope, attribute) if attribute:
            return f"{rule} {scope} is not supported together with matchAttribute {attribute}"
        case reasons.NotSupported(rule, scope):
            return f"{rule} {scope} is not supported where members share GPUs"
        case reasons.SubgroupsNeeded(needed, subgroups, roles):
            needs = f"the gang needs {needed} of its {subgroups} subgroups, and no others fit either"
            return f"{needs}: this is about {', '.join(roles[:LISTED])}{and_more(len(roles))}"
        case reasons.NotDecided(truncated):
            by = "wall clock" if truncated else "its budget"
            return f"the search was ended by {by} before it found a plan or a proof that there is none"
        case reasons.ConstraintCause():
            return str(cause)
        case reasons.PlannerDefect(error):
            report = "please report it with the input (`muster capture` writes it from a cluster)"
            return f"not decided: the planner has a defect; {report}: {error}"
        case reasons.TookTooLong() | reasons.TookTooMuchMemory() | reasons.TooManyRoles():
            return _too_much(cause)
    return _out_of_place(cause)


def _too_much(cause: reasons.TookTooLong | reasons.TookTooMuchMemory | reasons.TooManyRoles) -> str:
    """Return the clause of a gang that asks more of the planner than one gang may have."""
    match cause:
        case reasons.TookTooLong(seconds, others_wait):
            why = "because other gangs waited" if others_wait else "the limit for one gang"
            return f"not decided: the planner was ended after {seconds:.1f} s, {why}"
        case reasons.TookTooMuchMemory(limit_mib):
            limit = f"{limit_mib} MiB of memory, the limit for one gang"
            return f"not decided: the planner was ended because it needed more than {limit}"
        case reasons.TooManyRoles(roles, most):
            way_out = "give pods that do the same work equal requests, node selectors and tolerations"
            return f"its pods are of {roles} different roles, and a gang may have {most}: {way_out}"


def _short_of(cause: reasons.ShortOf) -> str:
    """There is not enough, or it is not where it would be of use."""
    several = ", " in cause.role
    role, verb = the_role(cause.role), "need" if several else "needs"
    members, fit = (
        counted("member", cause.members_needed),
        so_many_fit(cause.members_fit, cause.members_needed),
    )
    if isinstance(cause, reasons.FreeApart):
        amounts = " and ".join(amount(*each) for each in cause.resources)
        there = "there" if cause.even_empty else "free"
        names = {resource for resource, _ in cause.resources}
        same = "at once" if reasons.GPU_MEMORY in names and len(names) > 1 else "on the same nodes"
        apart = f"{role} {verb} room for {members}; {amounts} are {there}, but not {same}"
        return f"{apart}{fit}{if_empty(cause.even_empty and bool(fit))}"
    asked = f"{role} {verb} {amount(cause.resource, cause.needed)} for {members}"
    match cause:
        case reasons.NotEnoughFree(_, what, free):
            return f"{asked}, and {_are_free(what, free)}{fit}"
        case reasons.FreeInPieces(_, what, free):
            return f"{asked}; {_are_free(what, free)}, but {_pieces(cause)}{fit}"
        case reasons.ClusterTooSmall(_, what, total):
            nodes = "all nodes" if cause.anywhere else f"the nodes that admit {'them' if several else 'it'}"
            have = f"{nodes} have {amount(what, total)} in all"
            if not cause.largest_node:
                return f"{asked}, and there are no nodes"
            fit += if_empty(bool(fit))
            if total < cause.needed:
                return f"{asked}, and {have}{fit}"
            return f"{asked}; {have}, but {_pieces(cause)}{fit}"


def _pieces(cause: reasons.ClusterTooSmall | reasons.FreeInPieces) -> str:
    largest = number(cause.resource, cause.largest)
    piece = "GPU" if cause.resource == reasons.GPU_MEMORY else "node"
    return f"in pieces too small, at most {largest} on one {piece} ({cause.largest_node})"


def _out_of_place(  # noqa: PLR0911 — one cause, one sentence
    cause: reasons.DomainTooSmall
    | reasons.NoSuchDomain
    | reasons.IndicesUnknown
    | reasons.RoleScope
    | reasons.SegmentsTooLarge
    | reasons.RunningElsewhere,
) -> str:
    """There may be enough, but not where members may lie."""
    match cause:
        case reasons.DomainTooSmall(scope, best, fit, needed, has_nvlink, even_empty, role):
            why = "" if has_nvlink else "; its node has no NVLink"
            who = f"{_all(needed)}{of_role(role)}"
            return f"no one {scope} holds {who}{if_empty(even_empty)}{_best(best, fit)}{why}"
        case reasons.NoSuchDomain(scope, role, labels, meant) if labels:
            which = f"label {labels[0]}" if len(labels) == 1 else f"labels {' or '.join(labels)}"
            hint = f"; did you mean {meant}?" if meant else ""
            return f"no node carries the {which}, which scope {scope}{of_role(role)} needs{hint}"
        case reasons.NoSuchDomain(scope, role):
            return f"{the_role(role)} must lie in one {scope}, and no node that admits it lies in any"
        case reasons.IndicesUnknown(scope, nodes, role):
            where, whom = counted("node", nodes), f" to {the_role(role)}" if role else ""
            return f"no one {scope} can be promised{whom}: on {where}, pods have GPUs and do not say which"
        case reasons.RoleScope(role, scope, best, fit, needed, even_empty):
            if fit is None or fit < needed:
                who = f"{_all(needed)}{of_role(role)}"
                return f"no one {scope} holds {who}{if_empty(even_empty)}{_best(best, fit)}"
            must = f"{_all(needed)}{of_role(role)} must lie in one {scope}"
            return f"{must}, and no one holds them beside the other roles"
        case reasons.SegmentsTooLarge(role, segments, fit, needed, even_empty):
            by = ", each of ".join(f"{size} in one {scope}" for size, scope in segments)
            must = f"members of {the_role(role)} must lie by segments of {by}"
            return f"{must}{so_many_fit(fit, needed, even_empty)}"
        case reasons.RunningElsewhere(scope, part, running):
            runs = f"{counted('member', running)} {plural_verb('run', running)} already"
            it, one = ("it", "any") if running == 1 else ("them", "one")
            if part:
                return f"{runs} {_in(scope, part)}, and the others must join {it}"
            if scope in (Scope.GPU, Scope.NVLINK_DOMAIN):
                return f"{runs}, nobody knows in which one {scope}, and the others must join {it}"
            return f"{runs}, and not in {one} {scope}, where the others must join {it}"


def _best(best: str, fit: int | None) -> str:
    return "" if fit is None or not best else f": the best, {best}, holds {fit}"


def _in(scope: str, part: str) -> str:
    return f"{'on' if scope in (Scope.NODE, Scope.GPU) else 'in'} {scope} {part}"


def _are_free(resource: str, free: int) -> str:
    return f"{amount(resource, free)} {'is' if free == 1 else 'are'} free"


def _all(count: int) -> str:
    return f"all {count} members" if count > 1 else "the one member"
