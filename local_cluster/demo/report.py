"""The facts as JSON: versioned, fields that carry a unit end in it, no infinities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from local_cluster.demo.claims import Claim
from local_cluster.demo.facts import VERSION, Facts, PlacedGang


def report(facts: Facts, claims: Sequence[Claim], free: Mapping[str, tuple[int, ...]]) -> str:
    """`free`: node → GPUs that are free at the end."""
    document: dict[str, Any] = {
        "version": VERSION,
        "holds": all(claim.holds for claim in claims),
        "claims": [asdict(claim) for claim in claims],
        "placed": [_placed(gang) for gang in facts.placed.values()],
        "held": asdict(facts.held) if facts.held else None,
        "pending": asdict(facts.pending) if facts.pending else None,
        "pods": [asdict(seat) for seat in facts.seats],
        "free_gpus": dict(free),
        "timings": {f"{name}_ms": round(value, 1) for name, value in facts.timings_ms.items()},
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _placed(gang: PlacedGang) -> dict[str, Any]:
    return asdict(gang) | {"placed_ms": round(gang.placed_ms, 1)}
