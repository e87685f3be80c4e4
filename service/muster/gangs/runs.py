"""Which owners' pods are one gang: the runs under one name.

Owners are taken in the order of their oldest pods, and join one run until its count is reached; the next
owner opens another run. So two Jobs of one gang (master and workers) are one, also when one of them has
succeeded, and a second run under the same name is not mixed with the first, also when that has lost a pod.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.domain.pod import Pod

Run = dict[str, list[Pod]]
"""The pods of a gang, by owner."""


@dataclass(slots=True)
class _Open:
    """The run that owners join now, and what of its pods decides who may: an owner costs its own pods."""

    pods: Run
    count: int
    have: int = 0
    youngest: float = -math.inf
    """When the first pod of its latest owner was created."""
    done: float = math.inf
    """When the first pod began of an owner of which all have succeeded."""
    began: float = math.inf

    def takes(self, pods: list[Pod]) -> bool:
        """Whether an owner's pods may be of it. Where all of one owner have succeeded, the oldest pods of the
        others were there before the first of them began."""
        return self.have < self.count and _born(pods) < self.done and self.youngest < _all_done_since(pods)

    def join(self, owner: str, pods: list[Pod]) -> None:
        """They are of it."""
        self.pods[owner] = pods
        self.have += len(pods)
        self.youngest = max(self.youngest, _born(pods))
        self.done = min(self.done, _all_done_since(pods))
        self.began = min(self.began, _began(pods))


def deal(by_owner: Mapping[str, list[Pod]], born: Mapping[str, float]) -> list[Run]:
    """The runs of one name, oldest first. `born`: when the oldest pod of each owner was created, also where
    that one is gone."""
    runs: list[_Open] = []
    left = sum(map(len, by_owner.values()))
    for owner in sorted(by_owner, key=lambda owner: (born[owner], owner)):
        pods, last = by_owner[owner], runs[-1] if runs else None
        if last is None or not last.takes(pods) or (left >= last.count and born[owner] > last.began):
            runs.append(_Open({}, max(map(_count, pods))))
        runs[-1].join(owner, pods)
        left -= len(pods)
    return [run.pods for run in runs]


def is_doubtful(run: Run, born: Mapping[str, float]) -> bool:
    """Whether one of the owners came when the others ran: it replaces what the gang has lost, or its pods are
    the first of another run."""
    return max(born[owner] for owner in run) > min(map(_began, run.values()))


def _began(pods: Iterable[Pod]) -> float:
    """When the first of them began to run. No gang begins before all are there: an owner that came later
    replaces something, or is of another run."""
    return min((pod.started for pod in pods if pod.started), default=math.inf)


def _born(pods: Iterable[Pod]) -> float:
    return min(pod.created for pod in pods)


def _all_done_since(pods: Iterable[Pod]) -> float:
    """When the first of them began to run, where all have succeeded; else never."""
    return math.inf if any(pod.present for pod in pods) else min(pod.started for pod in pods)


def _count(pod: Pod) -> int:
    claim = pod.claim
    assert claim is not None
    return claim.replicas or claim.min_member or 0
