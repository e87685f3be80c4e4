"""Turn decisions and causes into English. The cause comes first, and a sentence has at most 900 characters.

Each sentence is one line without control characters (`printable`), whatever users wrote into its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from muster.domain.causes.ill_formed import BadValue
from muster.domain.causes.out_of_place import (
    DomainTooSmall,
    NoSuchDomain,
    RoleScope,
    RunningElsewhere,
    SegmentsTooLarge,
    place_in_words,
)
from muster.domain.clearing_words import clearing_clause
from muster.domain.constraints import TooFewParts
from muster.domain.decision import Invalid, Placed, Unplaceable
from muster.domain.node import Device
from muster.domain.printable import printable
from muster.domain.reasons import Cause, Relaxation
from muster.domain.request import Request, Scope
from muster.domain.topology import LINK_GB_PER_S, NVLINK_GB_PER_S, bits
from muster.domain.words import (
    LISTED,
    WHO_TELLS,
    and_more,
    counted_noun,
    list_names,
    of_role,
    plural,
    plural_verb,
    so_many_fit,
)

MAX_CHARACTERS = 900
"""An event's note may have 1,024 bytes, and the text around the sentence needs some of these."""

_FASTEST_NVLINKS = 18


def sentence(decision: Placed | Unplaceable | Invalid | Iterable[Cause]) -> str:
    """Return the decision, or the causes, as a sentence."""
    if isinstance(decision, Placed):
        return placed_sentence(decision)
    if isinstance(decision, Unplaceable):
        clause = clearing_clause(decision.clearing) if decision.clearing is not None else ""
        return refusal_sentence(decision.causes, decision.relaxations, clause)
    return refusal_sentence(decision.causes if isinstance(decision, Invalid) else tuple(decision))


def refusal_sentence(
    causes: tuple[Cause, ...], relaxations: Sequence[Relaxation] = (), victims: str = ""
) -> str:
    """Return the causes as a sentence, with a clause about victims, and changes that would help."""
    text = "; ".join(_clauses(causes)) or "no cause is known"
    if victims:
        text += f". {victims[0].upper()}{victims[1:]}"
    if relaxations:
        text += f". It would help: {'; or '.join(map(str, relaxations))}"
    return _cut(text if causes and isinstance(causes[0], BadValue) else text[0].upper() + text[1:])


def _clauses(causes: tuple[Cause, ...]) -> Iterator[str]:
    """Yield a clause for each cause. Two causes get one clause if the second completes the first."""
    later = list(causes)
    while later:
        cause, *later = later
        joined_clause = _join_clauses(cause, later[0]) if later else None
        if joined_clause is not None:
            later = later[1:]
        yield joined_clause or str(cause)


def _join_clauses(cause: Cause, next_cause: Cause) -> str | None:
    match cause, next_cause:
        case (
            DomainTooSmall(scope, domain, fit, members_needed, even_empty=even_empty, role=role)
            | RoleScope(role, scope, domain, fit, members_needed, even_empty),
            RunningElsewhere(_, part, running),
        ) if next_cause.scope == scope and part == domain and (fit is None or fit < members_needed):
            if not part:
                return f"{replace(cause, even_empty=False)}; {next_cause}"
            runs = f"{counted_noun('member', running)} {plural_verb('run', running)}"
            room = so_many_fit(fit, members_needed) if fit and not even_empty else ""
            return f"{scope} {part}, where {runs}, has no room for {members_needed} more{of_role(role)}{room}"
        case SegmentsTooLarge(), RunningElsewhere(scope, part, running) if part:
            run = plural_verb("run", running)
            runs = f"{counted_noun('member', running)} of one segment {run} {place_in_words(scope, part)}"
            pronoun = "it" if running == 1 else "them"
            return f"{cause}; {runs}, and the rest must join {pronoun}"
        case TooFewParts(scope), NoSuchDomain(missing) if scope == missing:
            return f"{cause}; no node lies in any {scope}, so each counts as one"
    return None


def placed_sentence(plan: Placed, request: Request | None = None, not_exact: Sequence[str] = ()) -> str:
    """Return where the gang goes: "2 of 2 members on node a: GPUs 0,3 (NV2, 50 GB/s modelled), proven
    optimal".

    Members that run already count: "3 of 4 members: 2 run already, 1 more on node a: …". `not_exact`: nodes
    where containers may get other GPUs than planned.
    """
    running, new = len(request.running) if request else 0, len(plan.members)
    subject = f"{running + new} of {running + (request.size if request else new)} members"
    if running:
        subject += f": {running} {plural_verb('run', running)} already, {new} more"
    unknown = "".join(f"; {doubt}" for doubt in doubts(plan))
    gpus: dict[str, Counter[int]] = {}
    for member in plan.members:
        gpus.setdefault(member.node, Counter()).update(dict.fromkeys(member.gpus, member.units))
    members = Counter(member.node for member in plan.members)
    if len(gpus) == 1:
        ((node, indices),) = gpus.items()
        place = f"on node {node}{': ' + _gpus(indices) if indices else ''}"
    else:
        in_domain = f" in {plan.domain}" if plan.domain else ""
        shares = [
            f"{node} ×{members[node]}{' ' + _gpus(indices) if indices else ''}"
            for node, indices in gpus.items()
        ]
        place = f"on {len(gpus)} nodes{in_domain}: {'; '.join(shares[:LISTED])}{and_more(len(shares))}"
    waiting = request.size - len(plan.members) if request else 0
    wait = f"; {waiting} {plural_verb('wait', waiting)}" if waiting else ""
    coming = plan.coming
    come, fit = plural_verb("come", coming), plural_verb("fit", coming)
    later = f"; {coming} {plural('member', coming)} that {come} later {fit} too" if coming else ""
    missed = request.preferred_scopes if request and not plan.objective.preferred_reached else ()
    missed_scopes = _missed_clause(plan, "preferred_scope", f"them ({', '.join(missed)})") if missed else ""
    missed_roles = [name for name, reached in plan.objective.role_preferences if reached is None]
    if missed_roles:
        missed_scopes += _missed_clause(plan, "role_preferences", list_names(missed_roles))
    inexactness = f"; containers on {list_names(not_exact)} may get other GPUs" if not_exact else ""
    proof = f"{_proof_clause(plan)}{unknown}"
    return _cut(f"{subject} {place}{_link_clause(plan)}, {proof}{inexactness}{wait}{later}{missed_scopes}")


def as_far_as(plan: Placed) -> str:
    """Return a clause about the unknown facts on which a plan's proof depends; "" if all facts are known."""
    nodes_of = {"links": plan.unknown_links, "taken GPUs": plan.unknown_indices}
    facts = [fact for fact, nodes in nodes_of.items() if nodes]
    return f" as far as {' and '.join(facts)} are known" if facts else ""


def doubts(plan: Placed) -> tuple[str, ...]:
    """Return the unknown facts about the nodes of a plan, one clause for each kind."""
    clauses = (
        (plan.unknown_links, f"no links are known, so the choice of GPUs there is arbitrary: {WHO_TELLS}"),
        (
            plan.unknown_indices,
            "it is not known which GPUs other pods have: the chosen ones may be among them",
        ),
    )
    return tuple(
        printable(f"on {f'node {nodes[0]}' if len(nodes) == 1 else f'{len(nodes)} nodes'} {clause}")
        for nodes, clause in clauses
        if nodes
    )


def unhealthy_sentence(gpus: int, pods: Sequence[str]) -> str:
    """Return a sentence: these pods (namespace/name) run on unhealthy GPUs of a node, the bit mask `gpus`."""
    gpu_list = f"{plural('GPU', gpus.bit_count())} {','.join(map(str, bits(gpus)))}"
    are, pronoun = ("is", "it") if gpus.bit_count() == 1 else ("are", "them")
    run = plural_verb("run", len(pods))
    return _cut(f"{gpu_list} {are} unhealthy, and on {pronoun} {run} {list_names(pods)}")


def differing_devices_sentence(missing: Iterable[Device], held_devices: Iterable[Device]) -> str:
    """Return a sentence: a pod's claims hold devices that are not planned. `missing` are planned devices that
    the claims do not hold."""
    held_names, planned = (list_names(sorted(map(str, devices))) for devices in (held_devices, missing))
    difference = (
        f"{held_names} in place of {planned}" if planned else f"{held_names} besides the planned devices"
    )
    return _cut(f"its claims hold {difference}: Muster counts what they hold")


def differing_gpus_sentence(planned: int, actual: int) -> str:
    """Return a sentence: containers of a pod have other GPUs than planned. Both arguments are bit masks."""
    subject = f"the containers have {plural('GPU', actual.bit_count())} {','.join(map(str, bits(actual)))}"
    instead = f"{','.join(map(str, bits(planned)))} planned" if planned else "no plan"
    return _cut(f"{subject} of their node, with {instead}: Muster counts what they have")


def _gpus(units: Mapping[int, int]) -> str:
    """Return the indices of GPUs, with units if the GPUs are shared."""
    gpu_texts = (f"{gpu} ({gib} GiB)" if gib else str(gpu) for gpu, gib in sorted(units.items()))
    return f"{plural('GPU', len(units))} {','.join(gpu_texts)}"


def _link_clause(plan: Placed) -> str:
    gb_per_s = plan.objective.weakest_link_gb_per_s
    if gb_per_s is None or not any(member.gpus for member in plan.members):
        return ""
    in_one_domain = plan.scope_reached in (Scope.GPU, Scope.NVLINK_DOMAIN, Scope.NODE)
    nvlinks = gb_per_s / NVLINK_GB_PER_S
    kinds = {value: kind for kind, value in LINK_GB_PER_S.items()}
    if nvlinks.is_integer() and 1 <= nvlinks <= _FASTEST_NVLINKS:
        kind = f"NV{int(nvlinks)}, "
    else:
        kind = f"{kinds[gb_per_s]}, " if gb_per_s in kinds else ""
    return f" ({kind}{gb_per_s:g} GB/s modelled{'' if in_one_domain else ' inside the nodes'})"


def _missed_clause(plan: Placed, level: str, whom: str) -> str:
    """Return the clause that no preferred scope holds `whom`, or that this was not decided."""
    if plan.unproven == level:
        return f"; it was not decided whether a preferred scope holds {whom}"
    return f"; no preferred scope holds {whom}"


def _proof_clause(plan: Placed) -> str:
    if plan.optimal:
        return f"proven optimal{as_far_as(plan)}"
    if plan.truncated:
        return "not proven optimal: the time limit cut the search short"
    level = f" in {plan.unproven.replace('_', ' ')}" if plan.unproven else ""
    if plan.gap is None or plan.gap >= 1:
        return f"not proven optimal{level}"
    return f"not proven optimal{level}: gap {100 * plan.gap:.3g} %"


def _cut(text: str) -> str:
    return printable(text, MAX_CHARACTERS)
