"""The answer of `muster place -o json`, field by field: docs/place.md says what each means.

`report` makes it, and docs/schemas/place-v1.json is generated from these types.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from muster.domain.alternatives import AlternativesView

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


class Objective(TypedDict):
    """The values of the objective's levels: docs/objective.md."""

    members: int
    preferred_reached: str | None
    role_preferences: NotRequired[list[RolePreference]]
    crossings: list[Crossing]
    unusable_gpus: NotRequired[int]
    costs: NotRequired[dict[str, int]]
    weakest_link_gb_per_s: float | None
    ring_gb_per_s: float
    socket_distance: int
    damage_gpu_thousandths: int
    best_fit: int
    preference_penalty: NotRequired[int]


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
