"""Print answers: tables for people, JSON and YAML for programs. Names from a cluster are never markup."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, TextIO

from muster.domain.printable import printable
from muster.domain.words import counted_noun, list_names, nearest, whole_units

Row = Mapping[str, Any]
ENDS = ("running", "unplaceable", "invalid", "withdrawn", "given up")
"""Phases that end an attempt. The gang stays in them until something changes."""


def dump(value: object, output: str, stdout: TextIO) -> None:
    """Print for programs."""
    if output == "yaml":
        import yaml

        yaml.safe_dump(value, stdout, sort_keys=False, allow_unicode=True)
    else:
        stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_columns(head: Sequence[str], rows: Iterable[Sequence[object]], stdout: TextIO) -> None:
    """Print rows in columns, as kubectl does."""
    cells = [list(head), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        line = "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        stdout.write(line.rstrip() + "\n")


def status(answer: Row, stdout: TextIO) -> None:
    """Print the service's notes, then a row for each gang."""
    if not answer["ready"]:
        stdout.write("The service has not seen the whole cluster yet.\n")
    print_paragraphs([[f"note: {note}" for note in answer.get("notes", ())]], stdout)
    if answer["gangs"]:
        gangs(answer["gangs"], stdout)
    else:
        stdout.write("no gangs\n")


def why(gangs: Sequence[Row], stdout: TextIO) -> None:
    """Print the causes that block each of these gangs, and changes that would help."""
    print_paragraphs(map(causes_and_helps, gangs), stdout)


def print_paragraphs(texts: Iterable[Iterable[str]], stdout: TextIO) -> None:
    """Print lines, with an empty line between two paragraphs."""
    for index, lines in enumerate(texts):
        if index:
            stdout.write("\n")
        for line in lines:
            stdout.write(printable(line) + "\n")


def causes_and_helps(gang: Row) -> Iterator[str]:
    """Yield the causes that block a gang, and changes that would help, line by line."""
    members = f"{_members_here(gang['present'], gang['needed'])}, {gang['bound']} bound"
    yield f"{gang['namespace']}/{gang['name']} is {gang['phase']}: {members}, {_age(gang['created'])} old"
    causes = gang.get("causes", ())
    for cause in causes:
        yield f"  {cause['kind']}: {cause['says']}"
    if not causes and gang["reason"]:
        yield f"  {gang['reason']}"
    if (clearing := gang.get("clearing")) and (says := clearing["says"]):
        yield f"  {says[:1].upper()}{says[1:]}."
    tried = [f"{text[:1].upper()}{text[1:]}. (tried: the gang fits then)" for text in gang.get("helps", ())]
    general = [cause["helps"] for cause in causes]
    for text in dict.fromkeys([*tried, *general]):
        yield f"  It would help: {text}"


def _members_here(present: int, needed: int) -> str:
    """Return how many members are here. `needed` is 0 if their number is not known."""
    if present <= needed:
        return f"{present} of {needed} members here"
    members_here = f"{counted_noun('member', present)} here"
    return f"{members_here}, {needed} needed" if needed else members_here


def gangs(rows: Sequence[Row], stdout: TextIO) -> None:
    """Print a row for each gang: gangs in line first, in their order, then other gangs that wait."""
    ordered = sorted(rows, key=_list_order)
    head = (
        *("NAMESPACE", "GANG", "PHASE", "POSITION", "AGE", "SEEN", "BOUND"),
        *("GPUS", "NODES", "PRIORITY", "WHY"),
    )
    cells = (
        (
            gang["namespace"],
            gang["name"],
            gang["phase"],
            gang.get("position") or "",
            _age(gang["created"]),
            f"{gang['present']}/{gang['needed']}",
            gang["bound"],
            _gpus(gang),
            len(gang["nodes"]) if "nodes" in gang else "",
            gang["priority"],
            gang["reason"],
        )
        for gang in ordered
    )
    print_columns(head, cells, stdout)


def _list_order(gang: Row) -> tuple[bool, float, float]:
    """Return the sort key of a gang in the list: gangs in line first, then other gangs that wait, then the
    rest."""
    return gang["phase"] == "running", gang.get("position") or math.inf, gang["created"]


def _gpus(gang: Row) -> str:
    """Return the number of GPUs that a gang has, and that it requests; "" if an older service does not report
    them."""
    if "gpus_bound" not in gang:
        return ""
    return f"{gang['gpus_bound']}/{gang['gpus_bound'] + gang['gpus_waiting']}"


def _age(created: float) -> str:
    age, unit = whole_units(max(0.0, time.time() - created) if created else 0)
    return f"{age}{unit[0]}"


def free_by_domain(nodes: Iterable[Row], scope: str, gpus: int) -> list[dict[str, Any]]:
    """Return the domains of a scope with their free GPUs, the freest first.

    With `gpus`, only domains with that many free GPUs. `fit` is how many such gangs of one-GPU members fit
    there, if cpu and memory suffice.
    """
    by_domain: dict[tuple[str, str], dict[str, Any]] = {}
    for node in nodes:
        for domain, count, free in _domains_of_node(node, scope) if node["takes_pods"] else ():
            new = {
                "domain": domain,
                "model": node["model"],
                "nodes": 0,
                "gpus": 0,
                "free": 0,
                "most_on_a_node": 0,
            }
            row = by_domain.setdefault((domain, node["model"]), new)
            row["nodes"] += 1
            row["gpus"] += count
            row["free"] += free
            row["most_on_a_node"] = max(row["most_on_a_node"], free)
    fitting = (entry for entry in by_domain.values() if entry["free"] >= gpus)
    with_fit = [entry | ({"fit": entry["free"] // gpus} if gpus else {}) for entry in fitting]
    return sorted(with_fit, key=lambda row: (-row["free"], row["domain"], row["model"]))


def _domains_of_node(node: Row, scope: str) -> Iterator[tuple[str, int, int]]:
    """Yield the domains of the scope in which the node lies, or that lie in it: name, GPUs, free GPUs."""
    domain = {"cluster": "cluster", "node": node["name"]}.get(scope) or node["domains"].get(scope, "")
    if domain:
        yield domain, node["gpus"], node["free"]
    elif scope == "nvlink-domain":
        for island in node.get("islands", ()):
            yield island["name"], island["gpus"], island["free"]


def unknown_scope_error(scope: str, scopes: Sequence[str]) -> str:
    """Return an error for an unknown scope."""
    meant = nearest(scope, scopes)
    hint = f"Did you mean {meant}? " if meant else ""
    return f"no scope is named {scope}. {hint}Known are: {', '.join(scopes)}"


def free_domains(rows: Sequence[Row], scope: str, gpus: int, stdout: TextIO) -> None:
    """Print the domains with free GPUs."""
    if not rows:
        request = f"{gpus} free GPUs" if gpus else "GPUs"
        stdout.write(f"no {scope} has {request}\n")
        return
    head = [
        scope.upper(),
        "MODEL",
        "NODES",
        "FREE",
        "OF",
        "MOST ON A NODE",
        *(["GANGS THAT FIT"] if gpus else []),
    ]
    names = ("domain", "model", "nodes", "free", "gpus", "most_on_a_node", *(("fit",) if gpus else ()))
    print_columns(head, ([row[name] for name in names] for row in rows), stdout)


def nodes(rows: Sequence[Row], stdout: TextIO) -> None:
    """Print a row for each node with GPUs."""
    scopes = list(dict.fromkeys(scope for node in rows for scope in node["domains"]))
    cells = (
        [
            node["name"],
            node["model"],
            node["free"],
            node["gpus"],
            "yes" if node["takes_pods"] else "no",
            *(node["domains"].get(scope, "") for scope in scopes),
            list_names([_owner(owner) for owner in node.get("owners", ())]),
        ]
        for node in rows
    )
    heads = ["NODE", "MODEL", "FREE", "GPUS", "TAKES PODS", *(scope.upper() for scope in scopes), "OWNERS"]
    print_columns(heads, cells, stdout)


def _owner(owner: Row) -> str:
    gang = f"{owner['namespace']}/{owner['gang']}" if owner["gang"] else "other pods"
    return f"{gang}: {owner['gpus']}"


def explain(gangs: Sequence[Row], stdout: TextIO) -> None:
    """Print what blocks each gang, or by which method and against which alternatives it was placed."""
    print_paragraphs(
        (
            chain(causes_and_helps(explanations["gang"]), _decision_lines(explanations))
            for explanations in gangs
        ),
        stdout,
    )


def _decision_lines(explanation: Row) -> Iterator[str]:
    plan = explanation["plan"]
    if plan is not None:
        proof = (
            f"proven best{plan.get('as_far_as', '')}" if plan["optimal"] else f"not proven best: {_gap(plan)}"
        )
        yield f"  Placed in {plan['domain'] or 'the cluster'}, {proof}"
        yield from (f"  Not known: {doubt}" for doubt in plan.get("doubts", ()))
        yield "  Levels of the objective, the first one counts most:"
        width = max((len(name) for name, _ in plan["levels"]), default=0)
        for name, value in plan["levels"]:
            yield f"    {name.ljust(width)}  {value}"
        if plan["steps"]:
            yield "  Decided by these exact methods:"
        for step in plan["steps"]:
            declined = "; ".join(f"{method} did not apply: {why}" for method, why in step["declined"])
            yield f"    {step['level']}: {step['method']}" + (f" ({declined})" if declined else "")
    elif explanation["gang"]["bound"]:
        yield "  How it was placed is not known: this service has not planned it."
    for refusal in explanation["refused"]:
        place = f"node {refusal['node']}, by {refusal['plugin']}"
        yield f"  Refused after it was planned: {place}: {refusal['message']}"
    if explanation["refused_left_out"]:
        yield f"  … and {explanation['refused_left_out']} more nodes"
    if explanation["gang"]["bound"] or plan is not None:
        yield from _alternatives_lines(explanation.get("alternatives"))


def _alternatives_lines(alternatives: Row | None) -> Iterator[str]:
    """Yield where else the gang could go. An older service does not say."""
    if alternatives is None:
        return
    if alternatives["why_not"]:
        yield f"  Alternatives are not known: {alternatives['why_not']}"
        return
    yield f"  Alternatives to {alternatives['domain']}, the best first. {alternatives['note']}"
    for alternative in alternatives["tried"]:
        yield f"    {alternative['domain']}: {alternative['says']}"
    if not alternatives["tried"]:
        yield "    none was found"
    if alternatives["others"]:
        yield f"    … {alternatives['others']}"


def _gap(plan: Row) -> str:
    if plan["gap"] is None:
        return "no bound is known"
    return f"at most {100 * plan['gap']:.1f} % from the best in {plan['unproven']}"


def trace(gangs: Sequence[Row], stdout: TextIO) -> None:
    """Print the phases of each gang as a tree of attempts, and the way to its trace."""
    print_paragraphs(map(_timeline_lines, gangs), stdout)


def _timeline_lines(explanation: Row) -> Iterator[str]:
    gang, steps = explanation["gang"], explanation["timeline"]
    yield f"{gang['namespace']}/{gang['name']} is {gang['phase']}"
    for trace in _traces(explanation):
        when = f"  {_clock(trace['began'])}  {trace['outcome'] or 'under way'}" if "began" in trace else ""
        yield f"  trace {trace['id']}{when}" + (f"  {trace['link']}" if trace["link"] else "")
    if explanation["timeline_cut"]:
        yield "  … earlier steps are forgotten"
    elif gang["created"] and gang["created"] < explanation["known_since"]:
        age = _seconds(max(0.0, time.time() - explanation["known_since"]))
        yield f"  … this service began {age} ago, and the gang is older"
    for number, attempt in enumerate(attempts(steps), 1):
        last = attempt[-1][0]
        outcome = last["phase"] if last["phase"] in ENDS else "under way"
        took = sum(seconds for step, seconds in attempt if step["phase"] not in ENDS)
        yield f"  attempt {number}: {outcome}, {_clock(attempt[0][0]['at'])}, {_seconds(took)}"
        for step, seconds in attempt:
            yield f"    {step['phase']:<12} {_seconds(seconds):>12}  {step['why']}"


def _traces(explanation: Row) -> Sequence[Row]:
    """Return the traces of its attempts, the newest first. An older service gives only the newest."""
    last = explanation["trace"]
    return explanation.get("traces") or ([last] if last["id"] else [])


def attempts(steps: Sequence[Row], now: float | None = None) -> list[list[tuple[Row, float]]]:
    """Return the steps of each attempt, with how long each lasted in seconds."""
    now = time.time() if now is None else now
    ends = [step["at"] for _, step in pairwise(steps)] + [max(now, steps[-1]["at"])] if steps else []
    attempts_so_far: list[list[tuple[Row, float]]] = []
    for step, end in zip(steps, ends, strict=True):
        if not attempts_so_far or attempts_so_far[-1][-1][0]["phase"] in ENDS:
            attempts_so_far.append([])
        attempts_so_far[-1].append((step, end - step["at"]))
    return attempts_so_far


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _clock(timestamp: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(timestamp))
