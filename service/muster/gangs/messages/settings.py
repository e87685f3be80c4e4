"""How long gangs are given, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Partial(StrEnum):
    """What is done with the bound members of a gang of which the others find no place."""

    EVICT = "evict"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds.

    `waiting_s`: how long a gang may be incomplete before an event says so (pods of one gang appear one
    after another). `plan_s`: from a plan to its Permit. `bind_s`: from Permit, and from a new session that
    reports it as under way, to each member seen bound. `session_s`: the same for a Binding of unknown
    fate, and for what a new session does not report: whoever sent it waits for it no more.
    `exclusion_first_s`: how long a node that an in-tree plugin refused is left out, unless it changes
    first; four times as long with each further refusal, up to `exclusion_s`. `backoff_s` doubles up to
    `backoff_max_s` with each withdrawal in a row. `prompt_retries`: so many withdrawals in a row are
    tried again at once, where something was learnt. `recheck_s`: the pause after two answers in a row
    that the cluster overtook.

    `partial_s`: how long a gang may be bound in part before `partial` is done: its bound members evicted,
    or kept; longer than `bind_s`, so that a Binding that was lost can be made again. `member_s`: `plan_s`
    and `bind_s` are at least so long for each member, and `partial_s` is as much longer. `settle_s`: a
    gang that says how many it needs but not how many there will be is planned so long after its last pod
    came, and `settle_most_s` after the first at the latest. `numbers_s`: how soon a refusal is told again
    because only its numbers have changed. `status_s`: from a change to the status of its PodGroup, and
    between two of them. `earmark_after_s`: how long the oldest waiting gang has waited when what comes
    free in its best domain is kept for it, for `earmark_s` at most, on nodes with at most `earmark_share`
    of all GPUs (or on one node).
    """

    recheck_s: float = 1.0
    waiting_s: float = 3.0
    plan_s: float = 60.0
    bind_s: float = 20.0
    session_s: float = 10.0
    exclusion_first_s: float = 1.0
    exclusion_s: float = 300.0
    backoff_s: float = 1.0
    backoff_max_s: float = 30.0
    prompt_retries: int = 3
    partial_s: float = 30.0
    partial: Partial = Partial.EVICT
    member_s: float = 0.02
    settle_s: float = 0.5
    settle_most_s: float = 3.0
    numbers_s: float = 60.0
    earmark_after_s: float = 600.0
    earmark_s: float = 600.0
    earmark_share: float = 0.75
    status_s: float = 1.0
    patience_s: float = 2.0
    """How long a decision may last while other gangs wait for the planner; see `turns`."""
    pause_max_s: float = 600.0
    """Longest pause of a gang about which the planner was ended."""
    ahead: int = 768
    """Members that are planned and not permitted, with which no more gangs are planned: half as many again as
    the shim lets through at once (`maxInFlight`), so that the next ones stand at its door."""
    answers_s: float = 3.0
    """How long a gang waits for the answers of in-tree plugins; then it is planned without them."""
    alternates: int = 8
    """Nodes of which each member is told beside its planned one."""

    def plan_for(self, members: int) -> float:
        """`plan_s` for a gang of this size."""
        return max(self.plan_s, self.member_s * members)

    def bind_for(self, members: int) -> float:
        """`bind_s` for a gang of this size."""
        return max(self.bind_s, self.member_s * members)

    def partial_for(self, members: int) -> float:
        """`partial_s` for a gang of this size: as much longer as its Bindings may take longer."""
        return self.partial_s + self.bind_for(members) - self.bind_s

    def settled(self, arrived: tuple[float, float]) -> float:
        """When no more pods are waited for, of which the first and the last came at these times."""
        return min(arrived[1] + self.settle_s, arrived[0] + self.settle_most_s)

    def backoff(self, attempts: int) -> float:
        """The pause after this many withdrawals in a row."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(attempts - 1, 30))

    def pause(self, last_s: float, took_s: float) -> float:
        """The pause of a gang about which the planner was ended after so long, after a pause of `last_s`."""
        return min(self.pause_max_s, 2 * max(self.backoff_s, last_s, took_s))

    def exclusion(self, refusals: int) -> float:
        """How long a node is left out that has refused a role so often.

        Short at first: the scheduler's cache may only lag behind ours, and still count a pod that is gone.
        """
        return min(self.exclusion_s, self.exclusion_first_s * 4.0 ** min(refusals - 1, 15))
