"""Which owners' pods are one gang: the runs under one name.

Owners are taken in the order of their oldest pods, and join one run until its count is reached; the next
owner opens another run. So two Jobs of one gang (master and workers) are one, also when one of them has
succeeded, and a second run under the same name is not mixed with the first, also when that has lost a pod.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from muster.domain.pod import Pod

Run = dict[str, list[Pod]]
"""The pods of a gang, by owner."""


def deal(by_owner: Mapping[str, list[Pod]], born: Mapping[str, float]) -> list[Run]:
    """The runs of one name, oldest first. `born`: when the oldest pod of each owner was created, also where
    that one is gone."""
    runs: list[Run] = []
    have, count, left = 0, 0, sum(map(len, by_owner.values()))
    for owner in sorted(by_owner, key=lambda owner: (born[owner], owner)):
        pods = by_owner[owner]
        if (
            not runs
            or have >= count
            or not all(_together(pods, others) for others in runs[-1].values())
            or (left >= count and born[owner] > _began(runs[-1]))
        ):
            runs.append({})
            have, count = 0, max(_count(pod) for pod in pods)
        runs[-1][owner] = pods
        have += len(pods)
        left -= len(pods)
    return runs


def is_doubtful(run: Run, born: Mapping[str, float]) -> bool:
    """Whether one of the owners came when the others ran: it replaces what the gang has lost, or its pods are
    the first of another run."""
    return max(born[owner] for owner in run) > _began(run)


def _began(run: Run) -> float:
    """When the first of its pods began to run. No gang begins before all are there: an owner that came later
    replaces something, or is of another run."""
    return min((pod.started for pods in run.values() for pod in pods if pod.started), default=math.inf)


def _together(pods: Iterable[Pod], others: Iterable[Pod]) -> bool:
    """Whether the pods of two owners may have been one gang. Where all of one have succeeded, the oldest of
    the other were there before the first of them began."""
    return _born(pods) < _all_done_since(others) and _born(others) < _all_done_since(pods)


def _born(pods: Iterable[Pod]) -> float:
    return min(pod.created for pod in pods)


def _all_done_since(pods: Iterable[Pod]) -> float:
    """When the first of them began to run, where all have succeeded; else never."""
    return math.inf if any(pod.present for pod in pods) else min(pod.started for pod in pods)


def _count(pod: Pod) -> int:
    claim = pod.claim
    assert claim is not None
    return claim.replicas or claim.min_member or 0
