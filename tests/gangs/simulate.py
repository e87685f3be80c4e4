"""A long seeded run of the model: `python -m tests.gangs.simulate --seed 1 --sequences 100000`.

Each sequence has a seed of its own, so that one that breaks something is run again alone:
`--seed 1 --first 4711 --sequences 1`. Prints one line of JSON; exits with 1 where anything was broken.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from unittest.mock import patch

from muster.gangs.lifecycle import arrivals, deferral, recovery, refusals
from tests.gangs.model import Cluster
from tests.gangs.native_watch import LEAVES, NATIVE
from tests.gangs.stage import Chooser

T = TypeVar("T")
FEW_TIMERS, MANY_TIMERS = 2, recovery.MAX_TIMERS_PER_TICK
FEW_PODS, MANY_PODS = 2, (deferral.MANY, deferral.REGROUP_EVERY_S)
ACTIONS: Mapping[Callable[[Cluster, Chooser], None], int] = {
    Cluster.create_all: 6,
    Cluster.as_it_should: 12,
    Cluster.create_one: 4,
    Cluster.create_again: 2,
    Cluster.create_wave: 2,
    Cluster.create_tree: 2,
    Cluster.pod_group_seen: 2,
    Cluster.pod_group_gone: 1,
    Cluster.native_group_seen: 2,
    Cluster.native_group_gone: 1,
    Cluster.tree_made: 1,
    Cluster.tree_group_seen: 1,
    Cluster.tree_group_gone: 1,
    Cluster.native_groups_refused: 1,
    Cluster.native_groups_served: 3,
    Cluster.native_pods_read: 2,
    Cluster.policies_seen: 1,
    Cluster.delete: 3,
    Cluster.finish: 2,
    Cluster.lose_member: 3,
    Cluster.lose_after_success: 2,
    Cluster.make_again: 2,
    Cluster.rename: 1,
    Cluster.relabel: 1,
    Cluster.node_seen: 2,
    Cluster.node_gone: 2,
    Cluster.others_bind: 3,
    Cluster.evict: 2,
    Cluster.kubelet: 3,
    Cluster.solve: 5,
    Cluster.planner_fails: 1,
    Cluster.runs_out_of_time: 2,
    Cluster.victims_found: 4,
    Cluster.wait: 6,
    Cluster.pause: 1,
    Cluster.cut: 1,
    Cluster.goes_on: 1,
    Cluster.reserve: 4,
    Cluster.permit: 4,
    Cluster.permit_too_late: 1,
    Cluster.land: 4,
    Cluster.binding_fails: 4,
    Cluster.give_back: 2,
    Cluster.in_tree_plugins_answer: 4,
    Cluster.restart_service: 1,
    Cluster.restart_shim: 1,
    Cluster.disconnect: 1,
}
"""What can happen → how often, in proportion."""

NATIVE_ACTIONS = (
    Cluster.native_group_seen, Cluster.native_group_gone, Cluster.native_groups_served,
    Cluster.native_pods_read,
)  # fmt: skip
NATIVE_NAMES = (NATIVE, NATIVE, NATIVE, "g", "")
TREE_ACTIONS = (
    Cluster.create_tree, Cluster.create_tree, Cluster.tree_made, Cluster.tree_made, Cluster.tree_group_seen,
    Cluster.tree_group_gone, Cluster.native_pods_read, Cluster.native_groups_served,
)  # fmt: skip
TREE_NAMES = (*LEAVES, "g", "")
"""In every third sequence these gangs alone are made, and these actions come four times more often. So for
the PodGroup without a parent, and for trees."""
SHOWN = 10
"""Broken sequences that are printed in full."""


class Dice:
    """Choices of a seeded generator."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def of(self, values: Sequence[T]) -> T:
        return values[int(self._random.random() * len(values))]


def sequence(seed: int, number: int, steps: int) -> tuple[Counter[str], str]:
    """One sequence: the transitions that it saw, and what it broke, "" for nothing.

    In every second one, a Tick leaves timers to the next, as in a cluster of thousands of gangs. In others,
    gangs are not regrouped for each change, as if they had many pods. In others, what concerns all gangs is
    done for one of them with each input.
    """
    at_once = (1, None)[number // 4 % 2]
    timers, (pods, every_s) = (
        (FEW_TIMERS, MANY_TIMERS)[number % 2],
        ((FEW_PODS, 0.1), MANY_PODS)[number // 2 % 2],
    )
    with (
        patch.object(recovery, "MAX_TIMERS_PER_TICK", timers),
        patch.object(deferral, "MANY", pods),
        patch.object(deferral, "REGROUP_EVERY_S", every_s),
        patch.object(arrivals, "REGROUPED_AT_ONCE", at_once or arrivals.REGROUPED_AT_ONCE),
        patch.object(recovery, "TOLD_AT_ONCE", at_once or recovery.TOLD_AT_ONCE),
        patch.object(refusals, "_WOKEN_AT_ONCE", at_once or refusals._WOKEN_AT_ONCE),
    ):
        return _sequence(seed, number, steps)


def _sequence(seed: int, number: int, steps: int) -> tuple[Counter[str], str]:
    dice, cluster = Dice(f"{seed}/{number}"), Cluster()
    actions = [action for action, times in ACTIONS.items() for _ in range(times)]
    if number % 3 == 0:
        cluster.names = NATIVE_NAMES
        actions += 4 * NATIVE_ACTIONS
    elif number % 3 == 1:
        cluster.names = TREE_NAMES
        actions += 4 * TREE_ACTIONS
    done: list[str] = []
    phases: Counter[str] = Counter()
    try:
        for step in range(steps):
            if number % 3 == 1 and step == steps // 2:
                done.append("come_to_rest")
                cluster.come_to_rest()  # so that many a tree runs while its groups change
            action = dice.of(actions)
            done.append(action.__name__)
            action(cluster, dice)
            cluster.check()
            phases.update(str(gang.phase) for gang in cluster.world.coordinator.state.gangs.values())
        done.append("come_to_rest")
        cluster.come_to_rest()
    except Exception as problem:  # noqa: BLE001 - whatever ends a sequence is what is looked for
        return phases, f"{number}: {type(problem).__name__}: {problem} after {' '.join(done)}"
    phases["evictions"] = len(cluster.world.evictions)
    return phases, ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence")
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=25, help="actions in a sequence")
    options = parser.parse_args(arguments)
    phase_counts: Counter[str] = Counter()
    broken: list[str] = []
    began = time.monotonic()
    for number in range(options.first, options.first + options.sequences):
        phases, problem = sequence(options.seed, number, options.steps)
        phase_counts += phases
        if problem:
            broken.append(problem)
            print(problem, file=sys.stderr)
        if number % 1000 == 999:
            print(f"{number + 1 - options.first} sequences, {len(broken)} broken", file=sys.stderr)
    report = {
        "seed": options.seed,
        "sequences": options.sequences,
        "steps": options.steps,
        "seconds": round(time.monotonic() - began, 1),
        "seen": dict(sorted(phase_counts.items())),
        "broken": len(broken),
        "first_broken": broken[:SHOWN],
    }
    print(json.dumps(report, indent=1))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
