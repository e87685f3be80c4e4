"""Settings of the lifecycle: mostly how long gangs are given, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Partial(StrEnum):
    """What is done with the bound members of a gang whose other members find no place."""

    EVICT = "evict"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds, unless the text says otherwise."""

    recheck_s: float = 1.0
    """Pause after the cluster changed under two answers in a row."""
    waiting_s: float = 3.0
    """How long a gang may be incomplete before an event says so: its pods appear one after another."""
    plan_s: float = 60.0
    """From a plan to its Permit."""
    bind_s: float = 20.0
    """From Permit, or from a new session that reports the Binding as under way, to each member seen bound."""
    session_s: float = 10.0
    """The same for a Binding of unknown fate, or one that a new session does not report.

    The client that sent such a Binding no longer waits for it.
    """
    exclusion_first_s: float = 1.0
    """How long a node that an in-tree plugin refused is left out, unless it changes first.

    Four times as long after each further refusal, up to `exclusion_s`.
    """
    exclusion_s: float = 300.0
    backoff_s: float = 1.0
    """Pause after a withdrawal. It doubles with each withdrawal in a row, up to `backoff_max_s`."""
    backoff_max_s: float = 30.0
    prompt_retries: int = 3
    """How many withdrawals in a row are retried at once, if something was learnt."""
    partial_s: float = 30.0
    """How long a gang may be partially bound before `partial` is applied.

    It is longer than `bind_s`, so that a lost Binding can be made again.
    """
    partial: Partial = Partial.EVICT
    """Whether the bound members of such a gang are evicted or stay."""
    lost_s: float = 20.0
    """How long the place of a member is kept that a running gang lost and needs.

    A Job's controller makes a new pod up to 10 seconds after one has failed.
    """
    member_s: float = 0.02
    """`plan_s` and `bind_s` are at least this long for each member; `partial_s` grows by as much."""
    device_s: float = 0.1
    """`bind_s` is longer by this for each member with devices of a DRA driver. Four writes come before its
    Binding: the claim, its finalizer, its allocation, and the pod's status."""
    settle_s: float = 0.5
    """A gang that states how many members it needs, but not how many will come, is planned this long after
    its last pod."""
    settle_most_s: float = 3.0
    """The same after its first pod, at the latest."""
    extras_s: float = 300.0
    """How much younger members count in the queue that their gang can do without.

    So long they may wait for gangs that came later and lack members which they need.
    """
    numbers_s: float = 60.0
    """How soon a refusal is published again if only its numbers have changed."""
    backfill_after_s: float = 600.0
    """How long the oldest waiting gang waits before its best domain is reserved for it."""
    backfill_s: float = 600.0
    """How long that reservation lasts at most."""
    backfill_share: float = 0.75
    """Largest part of all GPUs that the reserved nodes may have (or one node)."""
    status_s: float = 1.0
    """From a change to the status of its PodGroup, and between two writes of it."""
    patience_s: float = 2.0
    """How long a decision may last while other gangs wait for the planner; see `planner_share`."""
    pause_max_s: float = 600.0
    """Longest pause of a gang after a decision about it was ended."""
    ahead: int = 768
    """If this many members are planned and not permitted, no more gangs are planned.

    It is 1.5 times what the shim lets through at once (`maxInFlight`), so that the next members wait there.
    One namespace counts for half at most, and from then on none of its gangs is planned.
    """
    answers_s: float = 3.0
    """How long a gang waits for the answers of in-tree plugins; then it is planned without them."""
    alternates: int = 8
    """Number of nodes that each member gets in addition to its planned one."""

    def plan_for(self, members: int) -> float:
        """Return `plan_s` for a gang with this many members."""
        return max(self.plan_s, self.member_s * members)

    def bind_for(self, members: int, with_devices: int = 0) -> float:
        """Return `bind_s` for a gang with this many members, `with_devices` of them with devices."""
        return max(self.bind_s, self.member_s * members) + self.device_s * with_devices

    def partial_for(self, members: int) -> float:
        """Return `partial_s` for a gang with this many members, extended as `bind_for` extends `bind_s`."""
        return self.partial_s + self.bind_for(members) - self.bind_s

    def settled(self, arrived: tuple[float, float]) -> float:
        """Return when to stop waiting for more pods.

        `arrived`: when the first and the last pod came.
        """
        return min(arrived[1] + self.settle_s, arrived[0] + self.settle_most_s)

    def backoff(self, attempts: int) -> float:
        """Return the pause after this many withdrawals in a row."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(attempts - 1, 30))

    def pause(self, last_s: float, took_s: float) -> float:
        """Return the pause of a gang after a decision about it was ended.

        `last_s`: the pause before. `took_s`: how long the decision took.
        """
        return min(self.pause_max_s, 2 * max(self.backoff_s, last_s, took_s))

    def exclusion(self, refusals: int) -> float:
        """Return how long to leave out a node after this many refusals.

        Short at first: the scheduler's cache may only lag behind ours, and still count a pod that is gone.
        """
        return min(self.exclusion_s, self.exclusion_first_s * 4.0 ** min(refusals - 1, 15))
