"""Draws pools whose devices share counters, for a comparison with kube-scheduler's own allocator.

python -m tests.dialects.drawn_counters > tests/dialects/counters.jsonl
UPDATE=1 go -C shim test ./internal/devices -run TestCounterAnswers
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "counters.jsonl"
NUMBER = 150
SEED = 20
AMOUNTS = ("0", "1", "2", "3", "500m", "1Ki")


def case(draw: random.Random) -> dict[str, Any]:
    """A pool in one slice of devices and one of counters, what is allocated of it, and what is wanted in
    turn. `Without` has the wanted devices that can't be had."""
    sets = [
        {
            "name": f"s{at}",
            "counters": {
                name: {"value": draw.choice(("2", "4", "1500m", "2Ki"))}
                for name in "ab"[: draw.randint(1, 2)]
            },
        }
        for at in range(draw.randint(1, 3))
    ]
    devices = [
        {
            "name": f"d{at}",
            "attributes": {"name": {"string": f"d{at}"}},
            "consumesCounters": [
                {
                    "counterSet": counter_set["name"],
                    "counters": {
                        name: {"value": draw.choice(AMOUNTS)}
                        for name in draw.sample(
                            sorted(counter_set["counters"]), draw.randint(1, len(counter_set["counters"]))
                        )
                    },
                }
                for counter_set in draw.sample(sets, draw.randint(0, min(2, len(sets))))
            ],
        }
        for at in range(draw.randint(2, 6))
    ]
    names = [device["name"] for device in devices]
    draw.shuffle(names)
    cut = draw.randint(0, len(names) // 2)
    return {
        "Sets": sets,
        "Devices": devices,
        "Allocated": names[:cut],
        "Wanted": names[cut:],
        "Without": list[str](),
    }


if __name__ == "__main__":
    source = random.Random(SEED)
    for _ in range(NUMBER):
        print(json.dumps(case(source)))
