"""Settings of the lifecycle. `muster config` prints the text below each setting."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Gt, Le


class Partial(StrEnum):
    """The fate of the bound members of a gang whose other members find no place."""

    EVICT = "evict"
    KEEP = "keep"


class Preempt(StrEnum):
    """Whether a refusal names gangs of lower priority whose end would make room. None is evicted."""

    OFF = "off"
    EXPLAIN = "explain"


Seconds = Annotated[float, Gt(0)]
AnySeconds = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(0)]


@dataclass(frozen=True, slots=True)
class GangSettings:
    """How long each phase of a gang may last: in seconds, unless the text says otherwise."""

    recheck_s: Seconds = 1.0
    """Pause after the cluster changed under two answers in a row."""
    waiting_s: Seconds = 3.0
    """How long a gang may be incomplete before an event says so: its pods appear one after another."""
    plan_s: Seconds = 60.0
    """From a plan to its Permit, at most."""
    bind_s: Seconds = 20.0
    """From Permit, or from a new session that reports the Binding as under way, to each member seen bound."""
    session_s: Seconds = 10.0
    """The same for a Binding of unknown fate, or that a new session's shim does not know: the client that
    sent it no longer waits."""
    exclusion_first_s: Seconds = 1.0
    """How long a node that an in-tree plugin refused is left out, after the other nodes have been tried,
    unless it changes; 4 times as long each time."""
    exclusion_s: Seconds = 300.0
    """How long such a node is left out at most, however often it refused."""
    backoff_s: Seconds = 1.0
    """Pause after a withdrawal; doubles with each in a row."""
    backoff_max_s: Seconds = 30.0
    """Longest such pause."""
    prompt_retries: Count = 3
    """Withdrawals in a row that are tried again at once, if something was learnt."""
    partial_s: Seconds = 30.0
    """How long a gang may be partially bound, at most: longer than bind_s, so that a lost Binding can be made
    again."""
    partial: Partial = Partial.EVICT
    """Whether its bound members are then evicted. With `keep` they run on, and the other members wait."""
    lost_s: Seconds = 20.0
    """How long a running gang keeps the place of a lost member that it needs. A Job's controller makes a new
    pod up to 10 seconds after a pod has failed."""
    member_s: AnySeconds = 0.02
    """plan_s and bind_s are at least this long for each member; partial_s grows like bind_s."""
    device_s: AnySeconds = 0.1
    """bind_s is longer by this for each member with devices of a DRA driver, because four writes come before
    its Binding: the claim, its finalizer, its allocation, and the pod's status."""
    settle_s: AnySeconds = 0.5
    """How long a gang with no fixed number of pods waits for more, after its last pod came."""
    settle_most_s: AnySeconds = 3.0
    """Longest such wait, after its first pod came."""
    extras_s: AnySeconds = 300.0
    """How much younger a gang counts that waits only for optional members. For this time, required members of
    other gangs come first."""
    numbers_s: Seconds = 60.0
    """Shortest time between two refusals of a gang that differ only in their numbers."""
    backfill_after_s: Seconds = 600.0
    """How long a gang waits before capacity that comes free in its best domain is reserved for it."""
    backfill_s: Seconds = 600.0
    """Longest such reservation."""
    backfill_share: Annotated[float, Gt(0), Le(1)] = 0.75
    """Largest share of the cluster's GPUs that it covers (or one node)."""
    status_s: Seconds = 1.0
    """From a change to the status of its PodGroup, and the least time between two statuses."""
    patience_s: Seconds = 2.0
    """How long one decision may last while other gangs wait for the planner."""
    pause_max_s: Seconds = 600.0
    """Longest pause of a gang after the planner was stopped while it decided about it."""
    ahead: Annotated[int, Ge(1)] = 768
    """While this many members are planned and not permitted, only partially bound gangs are planned. For one
    namespace the limit is half of it. The default is 1.5 times the shim's `maxInFlight`."""
    answers_s: Seconds = 3.0
    """How long a gang waits for in-tree plugins to say which nodes they refuse it or prefer."""
    preempt: Preempt = Preempt.EXPLAIN
    """Whether a refusal names the gangs of lower priority whose end would make room. None is evicted."""
    victims_s: Seconds = 0.05
    """How long a refusal waits, at most, until these gangs are known."""
    alternates: Count = 8
    """Nodes that each member may use instead of its planned one."""

    def plan_for(self, members: int) -> float:
        """Return `plan_s` for a gang with this many members."""
        return max(self.plan_s, self.member_s * members)

    def bind_for(self, members: int, with_devices: int = 0) -> float:
        """Return `bind_s` for a gang with this many members, `with_devices` of them with devices."""
        return max(self.bind_s, self.member_s * members) + self.device_s * with_devices

    def partial_for(self, members: int) -> float:
        """Return `partial_s` for a gang with this many members, extended as `bind_for` extends `bind_s`."""
        return self.partial_s + self.bind_for(members) - self.bind_s

    def settle_until(self, change_window: tuple[float, float]) -> float:
        """Return until when to wait for more pods. `change_window` as in `Gang`."""
        return min(change_window[1] + self.settle_s, change_window[0] + self.settle_most_s)

    def backoff(self, attempts: int) -> float:
        """Return the pause after this many withdrawals in a row."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(attempts - 1, 30))

    def pause(self, last_s: float, took_s: float) -> float:
        """Return the pause of a gang after a decision about the gang was ended.

        `last_s`: the gang's previous pause. `took_s`: how long the decision took.
        """
        return min(self.pause_max_s, 2 * max(self.backoff_s, last_s, took_s))

    def exclusion(self, refusals: int) -> float:
        """Return how long to leave out a node after this many refusals.

        The time is short at first, because kube-scheduler's cache may only be late: it may still count a pod
        that is gone.
        """
        return min(self.exclusion_s, self.exclusion_first_s * 4.0 ** min(refusals - 1, 15))
