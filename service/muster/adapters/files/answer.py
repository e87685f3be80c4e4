"""The answer of `muster place -o json`, field by field: docs/place.md says what each means.

`report` makes it, and docs/schemas/place-v1.json is generated from these types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, get_args, get_type_hints

from muster.domain import decision
from muster.domain.alternatives import AlternativesView
from muster.placement.model.objective import VALUES

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
    message: str
    timings_ms: dict[str, float]
    decided: NotRequired[list[Decided] | None]
    alternatives: NotRequired[AlternativesView | None]


class Summary(TypedDict):
    """How many gangs have each status."""

    placed: int
    waiting: int
    unplaceable: int
    invalid: int


class Answer(TypedDict):
    """Where pending gangs would go, or why they can't."""

    version: Literal[1]
    kind: Literal["place"]
    summary: Summary
    gangs: list[Gang]
    skipped: dict[str, int]
    notes: list[str]
