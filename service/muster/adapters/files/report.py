"""Write decisions as JSON: versioned, as docs/place.md describes it, with null instead of
infinite numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from muster.adapters.files.decide import Decided, Outcome, Status
from muster.domain.decision import Decision, MemberPlacement, Placed, Unplaceable
from muster.domain.printable import printable
from muster.domain.reasons import Cause, in_bytes
from muster.domain.sentences import relaxation_sentence

VERSION = 1
"""It is raised when a field is removed or changes its meaning. Fields may be added without that."""

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def as_json(
    decided: Decided, skipped: Mapping[str, int], notes: tuple[str, ...], explain: bool = False
) -> str:
    """Return the whole answer, one field in each line; with `explain`, also how each level was decided."""
    body = report(decided, skipped, notes, explain)
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def report(
    decided: Decided, skipped: Mapping[str, int], notes: tuple[str, ...], explain: bool = False
) -> dict[str, Any]:
    """Return the answer as data, as docs/place.md describes it."""
    counts = {status.value: 0 for status in Status}
    for outcome in decided.outcomes:
        counts[outcome.status.value] += 1
    return {
        "version": VERSION,
        "summary": counts,
        "gangs": [
            _gang(outcome) | (_explained(outcome.placed) if explain else {}) for outcome in decided.outcomes
        ],
        "skipped": dict(skipped),
        "notes": list(notes),
    }


def _gang(outcome: Outcome) -> dict[str, Any]:
    group, request, placed = outcome.group, outcome.request, outcome.placed
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
        "optimal": placed.optimal if placed else None,
        "gap": placed.gap if placed else None,
        "unproven": placed.unproven if placed else None,
        "truncated": placed.truncated if placed else None,
        "scope": {
            "required": request.required_scope,
            "preferred": list(request.preferred_scopes),
            "reached": placed.scope_reached if placed else None,
            "domain": (placed.domain or None) if placed else None,
        },
        "objective": _objective(placed) if placed else None,
        "bandwidth_gb_per_s": placed.objective.weakest_link_gb_per_s if placed else None,
        "unknown_links": list(placed.unknown_links) if placed else [],
        "members": _members(outcome),
        "causes": [cause_json(cause) for cause in outcome.causes],
        "relaxations": _relaxations(decision),
        "message": outcome.message,
        "timings_ms": {phase: round(seconds * 1000, 3) for phase, seconds in outcome.seconds.items()},
    }


def _explained(placed: Placed | None) -> dict[str, Any]:
    """Return which method decided each level, and why others declined; null if nothing was placed."""
    if placed is None:
        return {"decided": None}
    return {
        "decided": [
            {
                "level": step.level,
                "method": step.method,
                "declined": [{"method": method, "reason": reason} for method, reason in step.declined],
            }
            for step in placed.steps
        ]
    }


def _relaxations(decision: Decision | None) -> list[str]:
    relaxations = decision.relaxations if isinstance(decision, Unplaceable) else ()
    return [printable(relaxation_sentence(relaxation)) for relaxation in relaxations]


def _objective(placed: Placed) -> dict[str, Any]:
    levels = placed.objective.by_name()
    levels["crossings"] = [{"scope": scope, "parts": parts} for scope, parts in placed.objective.crossings]
    levels["damage_gpu_thousandths"] = levels.pop("damage")
    return {"members": len(placed.members), **levels}


def _members(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the gang's unbound pods, role by role. Pods without a place have no node."""
    places = {member.uid: member for member in outcome.placed.members} if outcome.placed else {}
    members = []
    for role in outcome.request.roles:
        for member in role.members:
            place = places.get(member.uid)
            members.append(
                {
                    "pod": member.name,
                    "role": role.name or None,
                    "node": place.node if place else None,
                    "gpus": list(place.gpus) if place else [],
                    **_memory(place),
                }
            )
    return members


def _memory(place: MemberPlacement | None) -> dict[str, Any]:
    """Return what a slice takes of each of its GPUs, in units of aliyun.com/gpu-mem (GiB)."""
    if place is None or not place.units:
        return {}
    return {"gpu_mem": {str(gpu): place.units for gpu in place.gpus}}


def _unit(resource: str) -> str:
    if resource == "cpu":
        return "cpu_milli"
    return "bytes" if in_bytes(resource) else "count"


def _listed(value: object) -> object:
    return [_listed(each) for each in value] if isinstance(value, tuple) else value


def cause_json(cause: Cause) -> dict[str, Any]:
    """Return a cause with its type and its fields.

    `unit` is the unit of its numbers of a resource, and `units` the units of those of several resources.
    """
    body: dict[str, Any] = {"type": _HUMP.sub("-", type(cause).__name__).lower()}
    for field in fields(cause):
        value = getattr(cause, field.name)
        body[field.name] = _listed(value)
    if "resource" in body:
        body["unit"] = _unit(body["resource"])
    if "resources" in body:
        body["units"] = [_unit(resource) for resource, _ in body["resources"]]
    return body
