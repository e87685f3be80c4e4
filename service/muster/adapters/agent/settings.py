"""What `muster node-agent` hands to the process that it becomes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Arguments:
    """Options of the command, checked."""

    node: str
    gpus: str
    library: str
    cdi: bool
    kubelet: str
    probe_port: int
    log_level: str

    def written(self) -> str:
        """Return them as one argument."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Arguments:
        """Return what `written` wrote."""
        return cls(**json.loads(text))
