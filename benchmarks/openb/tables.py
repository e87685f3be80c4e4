"""The outcomes for people: a table of policies, and what one gains over another seed by seed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from benchmarks.openb.policies import PUBLISHED_AS, Name
from benchmarks.openb.published import LOADS, Spread, published
from benchmarks.openb.runs import Outcome
from benchmarks.openb.trace import LISTS

NOTHING = "-"


def by_policy(outcomes: Sequence[Outcome], load: int) -> Table:
    """Unallocated GPUs at one load, mean ± standard deviation over the seeds: as published, and ours."""
    names, workloads = _order(outcomes)
    table = _table("list", "", *names)
    for workload in workloads:
        theirs = [
            str(published(workload, PUBLISHED_AS[name], load)) if name in PUBLISHED_AS else NOTHING
            for name in names
        ]
        table.add_row(workload, "published", *theirs)
        ours = [_spread(outcomes, workload, name, load) for name in names]
        table.add_row("", "here", *(str(spread) if spread else NOTHING for spread in ours))
    return table


def by_load(outcomes: Sequence[Outcome]) -> Table:
    """The mean at every load: what a policy gives up before the cluster is full."""
    names, workloads = _order(outcomes)
    table = _table("list", "policy", *(f"{load} %" for load in LOADS))
    for workload in workloads:
        for name in names:
            spreads = [_spread(outcomes, workload, name, load) for load in LOADS]
            table.add_row(
                workload, name, *(f"{spread.mean:.2f}" if spread else NOTHING for spread in spreads)
            )
    return table


def gains(outcomes: Sequence[Outcome], load: int, policy: Name, compared_policy: Name) -> Table:
    """On equal seeds: how much less `policy` leaves unallocated than the other one, and how often."""
    table = _table(
        "list",
        "seeds",
        f"{compared_policy} - {policy}",
        f"{policy} less",
        "in deviations of " + compared_policy,
    )
    _, workloads = _order(outcomes)
    for workload in workloads:
        mine_by_seed, other_by_seed = (
            _by_seed(outcomes, workload, name, load) for name in (policy, compared_policy)
        )
        seeds = sorted(mine_by_seed.keys() & other_by_seed.keys())
        if not seeds:
            continue
        differences = [other_by_seed[seed] - mine_by_seed[seed] for seed in seeds]
        gain, deviation = Spread.of(differences), Spread.of(list(other_by_seed.values())).deviation
        less = sum(difference > 0 for difference in differences)
        deviations = f"{gain.mean / deviation:.1f}" if deviation else NOTHING
        table.add_row(workload, str(len(seeds)), str(gain), f"{less} of {len(seeds)}", deviations)
    return table


def _order(outcomes: Sequence[Outcome]) -> tuple[list[Name], list[str]]:
    """Policies and lists that there are, in the order of their definition."""
    policies = {outcome.task.policy for outcome in outcomes}
    workloads = {outcome.task.workload for outcome in outcomes}
    return [name for name in Name if name in policies], [name for name in LISTS if name in workloads]


def _by_seed(outcomes: Sequence[Outcome], workload: str, name: Name, load: int) -> dict[int, float]:
    return {
        outcome.task.seed: outcome.unallocated[load]
        for outcome in outcomes
        if (outcome.task.workload, outcome.task.policy) == (workload, name)
    }


def _spread(outcomes: Sequence[Outcome], workload: str, name: Name, load: int) -> Spread | None:
    values = list(_by_seed(outcomes, workload, name, load).values())
    return Spread.of(values) if values else None


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < 2 else "right", no_wrap=True)
    return table
