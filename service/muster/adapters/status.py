"""The answer of `muster status --json`: docs/schemas/status-v1.json is generated from these types."""

from __future__ import annotations

from typing import Literal, TypedDict

from muster.gangs.record.gang import GangView

VERSION: Literal[1] = 1
"""It is raised when a field is removed or changes its meaning. Fields may be added without that."""


class Status(TypedDict):
    """The gangs of a running service. `ready`: whether it has seen the whole cluster."""

    version: Literal[1]
    kind: Literal["status"]
    ready: bool
    gangs: list[GangView]
    notes: list[str]
