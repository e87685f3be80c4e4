"""The replays of one call: every list, policy and seed asked for, on several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product

from benchmarks.openb import planner, trace
from benchmarks.openb.policies import Name, policy
from benchmarks.openb.published import LOADS
from benchmarks.openb.replay import replay


@dataclass(frozen=True, slots=True)
class Task:
    """One replay."""

    workload: str
    policy: Name
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Its unallocated GPUs, percent of the cluster's, at each of `LOADS`."""

    task: Task
    unallocated: dict[int, float]


def tasks(workloads: Sequence[str], policies: Sequence[Name], seeds: Sequence[int]) -> list[Task]:
    """Seed by seed, so that a run that is cut short has all policies for the seeds it got to."""
    return [Task(workload, name, seed) for seed, workload, name in product(seeds, workloads, policies)]


def run(task: Task) -> Outcome:
    """Replay it."""
    nodes, workload = trace.nodes(), trace.pods(task.workload)
    order, node_order = trace.arrivals(workload, nodes.gpu_milli, task.seed)
    nodes = nodes.reordered(node_order)
    if task.policy is Name.MUSTER:
        done = planner.replay(nodes, order, trace.mix(workload))
    else:
        done = replay(nodes, order, policy(task.policy, workload, nodes.models, task.seed))
    return Outcome(task, {load: done.unallocated(load) for load in LOADS})


def run_all(todo: Sequence[Task], processes: int) -> Iterator[Outcome]:
    """Each as it is done."""
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(run, task) for task in todo]):
            yield future.result()
