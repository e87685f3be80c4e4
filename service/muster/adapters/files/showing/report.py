"""The answer of `muster place -o json`, field by field. docs/place.md explains each field.

`report` makes it, and docs/schemas/place-v1.json is generated from these types.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, get_args, get_type_hints

from muster.adapters.files.decide import GangOutcome, Outcomes
from muster.domain import decision
from muster.domain.alternatives import Alternatives
from muster.domain.clearing_words import ClearingJson, clearing_json
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.printable import printable
from muster.domain.reasons import cause_json
from muster.placement.model.objective import VALUES, values_of

VERSION: Literal[1] = 1
"""The version is raised when a field is removed or changes its meaning. Fields may be added without a new
version."""


class Scopes(TypedDict):
    """The scopes that the gang asks for, and where it lies."""

    required: str | None
    preferred: list[str]
    reached: str | None
    domain: str | None


class Crossing(TypedDict):
    """How many parts of a scope the gang touches."""

    scope: str
    parts: int


class RolePreference(TypedDict):
    """The first of its preferred scopes that holds a role, or several; null if none does."""

    preference: str
    reached: str | None


def _types_of_levels() -> Iterator[tuple[str, Any]]:
    """Yield each level's name in JSON, and its type: pairs are objects."""
    pairs = {"role_preferences": list[RolePreference], "crossings": list[Crossing], "costs": dict[str, int]}
    types = get_type_hints(decision.Objective) | pairs
    yield "members", int
    for row in VALUES:
        value = types[row.field]
        if row.optional:  # the key is left out where the value is None
            value = NotRequired[value if row.field in pairs else get_args(value)[0]]
        yield row.key or row.field, value


if TYPE_CHECKING:
    Objective = dict[str, Any]
else:
    Objective = TypedDict("Objective", dict(_types_of_levels()))  # noqa: UP013 — from the rows
    Objective.__doc__ = "The values of the objective's levels: docs/objective.md."


class Member(TypedDict):
    """A pending pod. `gpu_mem` is GiB by GPU, if it shares GPUs."""

    pod: str
    role: str | None
    node: str | None
    gpus: list[int]
    gpu_mem: NotRequired[dict[str, int]]


class Declined(TypedDict):
    """A method that was asked, and why it does not apply."""

    method: str
    reason: str


class Decided(TypedDict):
    """Which method decided a level of the objective."""

    level: str
    method: str
    declined: list[Declined]


class Gang(TypedDict):
    """What became of one pending gang."""

    namespace: str
    name: str
    dialect: str
    status: Literal["placed", "waiting", "unplaceable", "invalid"]
    priority: int
    needed: int
    present: int
    bound: int
    optimal: bool | None
    gap: float | None
    unproven: str | None
    truncated: bool | None
    scope: Scopes
    objective: Objective | None
    bandwidth_gb_per_s: float | None
    unknown_links: list[str]
    unknown_indices: list[str]
    members: list[Member]
    causes: list[dict[str, Any]]
    relaxations: list[str]
    clearing: ClearingJson | None
    message: str
    timings_ms: dict[str, float]
    decided: NotRequired[list[Decided] | None]
    alternatives: NotRequired[Alternatives | None]


class Summary(TypedDict):
    """How many gangs have each status."""

    placed: int
    waiting: int
    unplaceable: int
    invalid: int


class PlaceReport(TypedDict):
    """Where pending gangs would go, or why they can't."""

    version: Literal[1]
    kind: Literal["place"]
    summary: Summary
    gangs: list[Gang]
    skipped: dict[str, int]
    notes: list[str]


# --- the answer ----------------------------------------------------------------------------------


def as_json(
    decided: Outcomes,
    skipped: Mapping[str, int],
    notes: tuple[str, ...],
    alternatives: Mapping[str, Alternatives] | None = None,
) -> str:
    """Return the whole answer, one field in each line, as `report` makes it."""
    body = report(decided, skipped, notes, alternatives)
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False, default=asdict) + "\n"


def report(
    decided: Outcomes,
    skipped: Mapping[str, int],
    notes: tuple[str, ...],
    alternatives: Mapping[str, Alternatives] | None = None,
) -> PlaceReport:
    """Return the answer as data, as docs/place.md describes it.

    With `alternatives`, by the gangs' keys, the answer also says how each level was decided.
    """
    counts = Counter[str](outcome.status for outcome in decided.outcomes)
    gangs = [_gang(outcome) for outcome in decided.outcomes]
    if alternatives is not None:
        for gang, outcome in zip(gangs, decided.outcomes, strict=True):
            gang["decided"] = _methods_by_level(outcome.plan)
            gang["alternatives"] = alternatives.get(outcome.group.gang.key) if outcome.plan else None
    return {
        "version": VERSION,
        "kind": "place",
        "summary": {
            "placed": counts["placed"],
            "waiting": counts["waiting"],
            "unplaceable": counts["unplaceable"],
            "invalid": counts["invalid"],
        },
        "gangs": gangs,
        "skipped": dict(skipped),
        "notes": list(notes),
    }


def _gang(outcome: GangOutcome) -> Gang:
    group, request, plan = outcome.group, outcome.request, outcome.plan
    decision = outcome.decision
    return {
        "namespace": group.gang.namespace,
        "name": group.gang.name,
        "dialect": group.gang.dialect,
        "status": outcome.status.value,
        "priority": request.priority,
        "needed": group.needed,
        "present": group.present,
        "bound": len(group.bound),
        "optimal": plan.optimal if plan else None,
        "gap": plan.gap if plan else None,
        "unproven": plan.unproven if plan else None,
        "truncated": plan.truncated if plan else None,
        "scope": {
            "required": request.required_scope,
            "preferred": list(request.preferred_scopes),
            "reached": plan.scope_reached if plan else None,
            "domain": (plan.domain or None) if plan else None,
        },
        "objective": _objective(plan) if plan else None,
        "bandwidth_gb_per_s": plan.objective.weakest_link_gb_per_s if plan else None,
        "unknown_links": list(plan.unknown_links) if plan else [],
        "unknown_indices": list(plan.unknown_indices) if plan else [],
        "members": _members(outcome),
        "causes": [cause_json(cause) for cause in outcome.causes],
        "relaxations": _relaxations(decision),
        "clearing": _clearing_of(decision),
        "message": outcome.message,
        "timings_ms": {phase: round(seconds * 1000, 3) for phase, seconds in outcome.seconds.items()},
    }


def _methods_by_level(plan: Placed | None) -> list[Decided] | None:
    """Return which method decided each level, and why others declined; null if nothing was placed."""
    if plan is None:
        return None
    return [
        {
            "level": step.level,
            "method": step.method,
            "declined": [{"method": method, "reason": reason} for method, reason in step.declined],
        }
        for step in plan.steps
    ]


def _relaxations(decision: Decision | None) -> list[str]:
    relaxations = decision.relaxations if isinstance(decision, Unplaceable) else ()
    return [printable(str(relaxation)) for relaxation in relaxations]


def _clearing_of(decision: Decision | None) -> ClearingJson | None:
    answer = decision.clearing if isinstance(decision, Unplaceable) else None
    return clearing_json(answer) if answer is not None else None


def _objective(plan: Placed) -> Objective:
    """Return the value of each level that the gang has. Pairs become objects."""
    values = {row.key or row.field: value for row, value in values_of(plan.objective)}
    values["crossings"] = [Crossing(scope=scope, parts=parts) for scope, parts in values["crossings"]]
    if "role_preferences" in values:
        reached = values["role_preferences"]
        values["role_preferences"] = [
            RolePreference(preference=name, reached=scope) for name, scope in reached
        ]
    if "costs" in values:
        values["costs"] = dict(values["costs"])
    return {"members": len(plan.members), **values}


def _members(outcome: GangOutcome) -> list[Member]:
    """Return the gang's unbound pods, role by role. Pods without a place have no node."""
    places = {member.uid: member for member in outcome.plan.members} if outcome.plan else {}
    members = []
    for role in outcome.request.roles:
        for member in role.members:
            place = places.get(member.uid)
            shown: Member = {
                "pod": member.name,
                "role": role.name or None,
                "node": place.node if place else None,
                "gpus": list(place.gpus) if place else [],
            }
            if place is not None and place.units:  # of each of its GPUs, in units of aliyun.com/gpu-mem (GiB)
                shown["gpu_mem"] = {str(gpu): place.units for gpu in place.gpus}
            members.append(shown)
    return members
