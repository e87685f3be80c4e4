"""What a check says."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How bad a finding is. Only an error changes the exit status."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. `remedy` says what to do, and is empty if there is nothing to do."""

    check: str
    level: Level
    message: str
    remedy: str = ""
