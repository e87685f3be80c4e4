"""The one place where decisions and causes become English, cause first, at most 900 characters.

Each sentence is one line without control characters (`printable`), whatever users wrote into its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from muster.domain.cause_sentences import clauses
from muster.domain.causes.ill_formed import BadValue
from muster.domain.decision import Invalid, Placed, Unplaceable
from muster.domain.node import Device
from muster.domain.printable import printable
from muster.domain.reasons import Cause
from muster.domain.relaxations import (
    ConstraintRelaxation,
    DropSelector,
    FewerMembers,
    MoreFree,
    Relaxation,
    SmallerSegments,
    Tolerate,
    Uncordon,
    WiderScope,
)
from muster.domain.request import Request, Scope
from muster.domain.topology import LINK_GB_PER_S, NVLINK_GB_PER_S, bits
from muster.domain.words import (
    LISTED,
    WHO_TELLS,
    and_more,
    counted,
    for_role,
    listed,
    number,
    plural,
    plural_verb,
)

MAX_CHARACTERS = 900
"""An event's note may have 1,024 bytes; what comes around the sentence needs room too."""

_LISTED_NODES = 3
_FASTEST_NVLINKS = 18


def sentence(said: Placed | Unplaceable | Invalid | Iterable[Cause]) -> str:
    """Return what was decided, or what the causes say."""
    if isinstance(said, Placed):
        return placed_sentence(said)
    causes = said.causes if isinstance(said, (Unplaceable, Invalid)) else tuple(said)
    text = "; ".join(clauses(causes)) or "no cause is known"
    relaxations = said.relaxations if isinstance(said, Unplaceable) else ()
    if relaxations:
        text += f". It would help: {'; or '.join(map(relaxation_sentence, relaxations))}"
    return _cut(text if causes and isinstance(causes[0], BadValue) else text[0].upper() + text[1:])


def relaxation_sentence(relaxation: Relaxation) -> str:  # noqa: PLR0911 — one relaxation, one sentence
    """Return what would help, as a noun phrase: no capital, no full stop."""
    match relaxation:
        case MoreFree(resource, amount, nodes):
            return _more_free(resource, amount, nodes)
        case Uncordon(nodes):
            return f"to uncordon {_named(nodes)}"
        case Tolerate(role, taint, nodes):
            return f"a toleration of taint {taint}{for_role(role)} ({_more_nodes(nodes)})"
        case DropSelector(role, selector, nodes):
            return f"no {selector}{for_role(role)} ({_more_nodes(nodes)})"
        case WiderScope(scope, wider, part, needed, role):
            new = f"scope {wider}" if wider else "no required scope"
            where = f" in {part}" if part else ""
            return f"{new} instead of {scope}{for_role(role)} ({needed} of {needed} fit{where})"
        case SmallerSegments(role, sizes):
            if not sizes:
                return f"no segments{for_role(role)}"
            by = ", each of ".join(f"{size} in one {scope}" for size, scope in sizes)
            return f"segments of {by}{for_role(role)}"
        case ConstraintRelaxation():
            return str(relaxation)
        case FewerMembers(min_member, before):
            return f"to start with {counted('member', min_member)} instead of {before}"


def _named(nodes: Sequence[str]) -> str:
    """Return "node a", "nodes a and b", "6 nodes: a, b, c, d and 2 more"."""
    if len(nodes) > _LISTED_NODES:
        return f"{len(nodes)} nodes: {listed(nodes)}"
    return f"{plural('node', len(nodes))} {' and '.join(nodes)}"


def _more_free(resource: str, amount: int, nodes: tuple[tuple[str, int], ...]) -> str:
    what = plural("GPU", amount) if "/" in resource else resource
    if len(nodes) > _LISTED_NODES:
        least, most = (pick(freed for _, freed in nodes) for pick in (min, max))
        share = number(resource, least) + (f" to {number(resource, most)}" if most > least else "")
        return f"{number(resource, amount)} more free {what} in all, {share} on each of {len(nodes)} nodes"
    first, *rest = nodes
    what = plural("GPU", first[1]) if "/" in resource else resource
    listed = [f"{number(resource, first[1])} more free {what} on {first[0]}"]
    return " and ".join([*listed, *(f"{number(resource, n)} on {node}" for node, n in rest)])


def placed_sentence(placed: Placed, request: Request | None = None, not_exact: Sequence[str] = ()) -> str:
    """Where it goes: "2 of 2 members on node a: GPUs 0,3 (NV2, 50 GB/s modelled), proven optimal".

    Members that run already count: "3 of 4 members: 2 run already, 1 more on node a: …".
    `not_exact`: nodes where containers may get other GPUs than these.
    """
    there, new = len(request.running) if request else 0, len(placed.members)
    of = f"{there + new} of {there + (request.size if request else new)} members"
    if there:
        of += f": {there} {plural_verb('run', there)} already, {new} more"
    gpus: dict[str, Counter[int]] = {}
    for member in placed.members:
        gpus.setdefault(member.node, Counter()).update(dict.fromkeys(member.gpus, member.units))
    members = Counter(member.node for member in placed.members)
    if len(gpus) == 1:
        ((node, indices),) = gpus.items()
        where = f"on node {node}{': ' + _gpus(indices) if indices else ''}"
    else:
        inside = f" in {placed.domain}" if placed.domain else ""
        shares = [
            f"{node} ×{members[node]}{' ' + _gpus(indices) if indices else ''}"
            for node, indices in gpus.items()
        ]
        where = f"on {len(gpus)} nodes{inside}: {'; '.join(shares[:LISTED])}{and_more(len(shares))}"
    waiting = request.size - len(placed.members) if request else 0
    wait = f"; {waiting} {plural_verb('wait', waiting)}" if waiting else ""
    more = placed.coming
    come, fit = plural_verb("come", more), plural_verb("fit", more)
    later = f"; {more} {plural('member', more)} that {come} later {fit} too" if more else ""
    missed = request.preferred_scopes if request and not placed.objective.preferred_reached else ()
    missed_scopes = _missed(placed, "preferred_scope", f"them ({', '.join(missed)})") if missed else ""
    missed_roles = [name for name, reached in placed.objective.role_preferences if reached is None]
    miss = missed_scopes + (_missed(placed, "role_preferences", listed(missed_roles)) if missed_roles else "")
    other = f"; containers on {listed(not_exact)} may get other GPUs" if not_exact else ""
    unknown = "".join(f"; {doubt}" for doubt in doubts(placed))
    return _cut(f"{of} {where}{_link(placed)}, {_proof(placed)}{unknown}{other}{wait}{later}{miss}")


def as_far_as(placed: Placed) -> str:
    """Return what the proof of a plan depends on and is not known everywhere; "" if all is known."""
    nodes_of = {"links": placed.unknown_links, "taken GPUs": placed.unknown_indices}
    facts = [what for what, nodes in nodes_of.items() if nodes]
    return f" as far as {' and '.join(facts)} are known" if facts else ""


def doubts(placed: Placed) -> tuple[str, ...]:
    """Return what is not known about the nodes of a plan, one clause for each kind of doubt."""
    clauses = (
        (placed.unknown_links, f"no links are known, so the choice of GPUs there is arbitrary: {WHO_TELLS}"),
        (
            placed.unknown_indices,
            "it is not known which GPUs other pods have: the chosen ones may be among them",
        ),
    )
    return tuple(
        printable(f"on {f'node {nodes[0]}' if len(nodes) == 1 else f'{len(nodes)} nodes'} {clause}")
        for nodes, clause in clauses
        if nodes
    )


def unhealthy_sentence(gpus: int, pods: Sequence[str]) -> str:
    """Pods, as namespace/name, that run on unhealthy GPUs of a node; `gpus` is the bit mask of these."""
    which = f"{plural('GPU', gpus.bit_count())} {','.join(map(str, bits(gpus)))}"
    are, there = ("is", "it") if gpus.bit_count() == 1 else ("are", "them")
    run = plural_verb("run", len(pods))
    return _cut(f"{which} {are} unhealthy, and on {there} {run} {listed(pods)}")


def differing_devices_sentence(missing: Iterable[Device], held: Iterable[Device]) -> str:
    """Say that the claims of a pod hold devices that are not planned; `missing` are planned and not held."""
    others, planned = (listed(sorted(map(str, devices))) for devices in (held, missing))
    what = f"{others} in place of {planned}" if planned else f"{others} besides the planned devices"
    return _cut(f"its claims hold {what}: Muster counts what they hold")


def differing_sentence(planned: int, found: int) -> str:
    """Say that containers of a pod have other GPUs than the planned ones; both are bit masks."""
    which = f"the containers have {plural('GPU', found.bit_count())} {','.join(map(str, bits(found)))}"
    instead = f"{','.join(map(str, bits(planned)))} planned" if planned else "no plan"
    return _cut(f"{which} of their node, with {instead}: Muster counts what they have")


def _more_nodes(count: int) -> str:
    return f"{count} more {plural('node', count)}"


def _gpus(units: Mapping[int, int]) -> str:
    """Return indices, with the units of those that are shared."""
    listed = (f"{gpu} ({taken} GiB)" if taken else str(gpu) for gpu, taken in sorted(units.items()))
    return f"{plural('GPU', len(units))} {','.join(listed)}"


def _link(placed: Placed) -> str:
    gb_per_s = placed.objective.weakest_link_gb_per_s
    if gb_per_s is None or not any(member.gpus for member in placed.members):
        return ""
    one = placed.scope_reached in (Scope.GPU, Scope.NVLINK_DOMAIN, Scope.NODE)
    nvlinks = gb_per_s / NVLINK_GB_PER_S
    kinds = {value: kind for kind, value in LINK_GB_PER_S.items()}
    if nvlinks.is_integer() and 1 <= nvlinks <= _FASTEST_NVLINKS:
        kind = f"NV{int(nvlinks)}, "
    else:
        kind = f"{kinds[gb_per_s]}, " if gb_per_s in kinds else ""
    return f" ({kind}{gb_per_s:g} GB/s modelled{'' if one else ' inside the nodes'})"


def _missed(placed: Placed, level: str, whom: str) -> str:
    """Return that no preferred scope holds them, or that this was not decided."""
    if placed.unproven == level:
        return f"; it was not decided whether a preferred scope holds {whom}"
    return f"; no preferred scope holds {whom}"


def _proof(placed: Placed) -> str:
    if placed.optimal:
        return f"proven optimal{as_far_as(placed)}"
    if placed.truncated:
        return "not proven optimal: the time limit cut the search short"
    level = f" in {placed.unproven.replace('_', ' ')}" if placed.unproven else ""
    if placed.gap is None or placed.gap >= 1:
        return f"not proven optimal{level}"
    return f"not proven optimal{level}: gap {100 * placed.gap:.3g} %"


def _cut(text: str) -> str:
    return printable(text, MAX_CHARACTERS)
