"""Settings of the lifecycle. `muster config` prints what is said of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Gt, Le


class Partial(StrEnum):
    """What is done with the bound members of a gang whose other members find no place."""

    EVICT = "evict"
    KEEP = "keep"


Seconds = Annotated[float, Gt(0)]
AnySeconds = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(0)]


@dataclass(frozen=True, slots=True)
class Settings:
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
    """The same for a Binding of unknown fate, or one that a new session's shim does not know: the client that
    sent it no longer waits."""
    exclusion_first_s: Seconds = 1.0
    """How long a node that an in-tree plugin refused is left out, once the others have been tried and unless
    it changes; 4 times as long each time."""
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
    """What is done then with its bound members; `keep`: the rest waits."""
    lost_s: Seconds = 20.0
    """How long the place of a member is kept that a running gang lost and needs. A Job's controller makes a
    new pod up to 10 seconds after one has failed."""
    member_s: AnySeconds = 0.02
    """plan_s and bind_s are at least this long for each member; partial_s grows like bind_s."""
    device_s: AnySeconds = 0.1
    """bind_s is longer by this for each member with devices of a DRA driver. Four writes come before its
    Binding: the claim, its finalizer, its allocation, and the pod's status."""
    settle_s: AnySeconds = 0.5
    """After its last pod came, a gang with no fixed number of pods waits so long for more."""
    settle_most_s: AnySeconds = 3.0
    """So long after the first one, at most."""
    extras_s: AnySeconds = 300.0
    """How much younger members count that their gang can do without: what other gangs need comes first for so
    long."""
    numbers_s: Seconds = 60.0
    """How soon pods are told again why nothing fits, where only the numbers in it changed."""
    backfill_after_s: Seconds = 600.0
    """After how long what comes free in the best domain is reserved for the oldest gang."""
    backfill_s: Seconds = 600.0
    """How long it is reserved, at most."""
    backfill_share: Annotated[float, Gt(0), Le(1)] = 0.75
    """Share of the cluster's GPUs that it covers, at most (or one node)."""
    status_s: Seconds = 1.0
    """From a change to the status of its PodGroup; as long between two of them."""
    patience_s: Seconds = 2.0
    """How long one decision may last while other gangs wait for the planner."""
    pause_max_s: Seconds = 600.0
    """Longest pause of a gang after the planner was stopped while it decided about it."""
    ahead: Annotated[int, Ge(1)] = 768
    """With this many members planned, not permitted, only partially bound gangs are planned. Half of it for
    one namespace. It is 1.5 times what the shim lets through at once (`maxInFlight`)."""
    answers_s: Seconds = 3.0
    """How long a gang waits for in-tree plugins to say which nodes they refuse it or prefer."""
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
