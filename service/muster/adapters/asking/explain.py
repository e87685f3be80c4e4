"""Print how one gang was decided, and where its time went: `explain` and `trace`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, TextIO

from muster.adapters.asking import show

if TYPE_CHECKING:  # the plugin must start at once
    from muster.domain.alternatives import AlternativesView

Row = Mapping[str, Any]

ENDS = ("running", "unplaceable", "invalid", "withdrawn", "given up")
"""Phases that end an attempt. The gang stays in them until something changes."""


def explain(gangs: Sequence[Row], out: TextIO) -> None:
    """Print what blocks each gang, or by which method and against which alternatives it was placed."""
    show.paragraphs(
        (chain(show.blocking(explanations["gang"]), _decision(explanations)) for explanations in gangs), out
    )


def _decision(explanation: Row) -> Iterator[str]:
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
        yield from _alternatives(explanation.get("alternatives"))


def _alternatives(view: AlternativesView | None) -> Iterator[str]:
    """Yield where else the gang could go. An older service does not say."""
    if view is None:
        return
    if view["why_not"]:
        yield f"  Alternatives are not known: {view['why_not']}"
        return
    yield f"  Alternatives to {view['domain']}, the best first. {view['note']}"
    for alternative in view["tried"]:
        yield f"    {alternative['domain']}: {alternative['says']}"
    if not view["tried"]:
        yield "    none was found"
    if view["others"]:
        yield f"    … {view['others']}"


def _gap(plan: Row) -> str:
    if plan["gap"] is None:
        return "no bound is known"
    return f"at most {100 * plan['gap']:.1f} % from the best in {plan['unproven']}"


def trace(gangs: Sequence[Row], out: TextIO) -> None:
    """Print the phases of each gang as a tree of attempts, and the way to its trace."""
    show.paragraphs(map(_timeline, gangs), out)


def _timeline(explanation: Row) -> Iterator[str]:
    gang, steps = explanation["gang"], explanation["timeline"]
    yield f"{gang['namespace']}/{gang['name']} is {gang['phase']}"
    for trace in _traces(explanation):
        when = f"  {_clock(trace['began'])}  {trace['outcome'] or 'under way'}" if "began" in trace else ""
        yield f"  trace {trace['id']}{when}" + (f"  {trace['link']}" if trace["link"] else "")
    if explanation["timeline_cut"]:
        yield "  … earlier steps are forgotten"
    elif gang["created"] and gang["created"] < explanation["known_since"]:
        yield f"  … this service began {_ago(explanation['known_since'])} ago, and the gang is older"
    for number, attempt in enumerate(attempts(steps), 1):
        last = attempt[-1][0]
        outcome = last["phase"] if last["phase"] in ENDS else "under way"
        took = sum(seconds for step, seconds in attempt if step["phase"] not in ENDS)
        yield f"  attempt {number}: {outcome}, {_clock(attempt[0][0]['at'])}, {_seconds(took)}"
        for step, seconds in attempt:
            yield f"    {step['phase']:<12} {_seconds(seconds):>12}  {step['why']}"


def _traces(explanation: Row) -> Sequence[Row]:
    """Return the traces of its attempts, the newest first. An older service says the last one alone."""
    last = explanation["trace"]
    return explanation.get("traces") or ([last] if last["id"] else [])


def attempts(steps: Sequence[Row], now: float | None = None) -> list[list[tuple[Row, float]]]:
    """Return the steps of each attempt, with how long each lasted in seconds."""
    now = time.time() if now is None else now
    ends = [after["at"] for _, after in pairwise(steps)] + [max(now, steps[-1]["at"])] if steps else []
    attempts_so_far: list[list[tuple[Row, float]]] = []
    for step, end in zip(steps, ends, strict=True):
        if not attempts_so_far or attempts_so_far[-1][-1][0]["phase"] in ENDS:
            attempts_so_far.append([])
        attempts_so_far[-1].append((step, end - step["at"]))
    return attempts_so_far


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _ago(at: float) -> str:
    return _seconds(max(0.0, time.time() - at))
