"""When a gang is counted after a change of one of its pods.

Otherwise a gang of thousands would be counted again for each pod that comes, is bound or goes. Decision 0064
says why the counts are not kept up to date instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from muster.domain.pod import Pod
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import Phase

MAY_LEAVE = (Phase.COLLECTING, Phase.INVALID, Phase.PLANNING, Phase.UNPLACEABLE)
"""Phases in which the departure of a member voids no plan."""


class Count(Enum):
    """When a gang is counted after a change."""

    NOW = auto()
    """Now, or at a later time if the gang has many pods and was just counted."""
    AFTER_SERIES = auto()
    """After the last of the pods that come or go one after another."""
    AFTER_BINDINGS = auto()
    """After enough of the Bindings that the gang awaits."""
    WHEN_READ = auto()
    """When the gang's members are read: the change leaves the gang in its phase."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one pod."""

    before: Pod | None
    """The pod before the change; None if it was not known."""
    after: Pod | None
    """The pod after the change; None if it is gone."""
    present: int
    """Number of present pods that have the gang's name. If pods of other owners have it too, only pods of the
    gang's owners count."""

    @property
    def is_departure(self) -> bool:
        """Return whether a waiting member goes while other members stay."""
        return (
            self.present > 0
            and self.before is not None
            and self.before.present
            and not self.before.node
            and (self.after is None or not (self.after.present or self.after.node))
        )

    def waits_in(self, gang: Gang, owned: bool = True, same_claim: bool = True) -> bool:
        """Return whether the pod waits for a node and may be a member of the gang.

        `owned`: one of the gang's owners must own it. `same_claim`: it must ask for its gang the same as
        another member.
        """
        return (
            self.after is not None
            and self.after.present
            and not self.after.node
            and (not owned or self.after.owner in gang.group.owners)
            and (not same_claim or (not self.after.causes and self.after.claim in gang.group.claims))
        )


def when_to_count(gang: Gang, change: Change) -> Count:
    """Return when to count the gang.

    The first case that matches decides:

    - The gang awaits several Bindings. The pod is bound by one of them: `AFTER_BINDINGS`.
    - The gang collects and lacks members. The pod waits or is gone, and members stay missing: `WHEN_READ`.
    - The gang runs without waiting members. The pod has a node or is gone; others are present: `WHEN_READ`.
    - The gang's size is open, or the gang is ill-formed. The pod comes, or leaves before it has a node,
      and is not the last one that is expected: `AFTER_SERIES`.
    - Otherwise: `NOW`.

    A partially bound gang, and a gang that was given up, are not counted after a series.
    `PodHandler._try_defer_by_rate` says when `NOW` means at a later time.
    """
    group, after = gang.group, change.after
    if after is not None and after.node and after.uid in gang.awaited and len(gang.awaited) > 1:
        return Count.AFTER_BINDINGS
    if gang.phase is Phase.COLLECTING and group.waits_for is not None:
        # While nothing runs, the owner does not matter: owners are assigned when enough are there.
        may_stay = after is None or change.waits_in(gang, owned=bool(group.bound))
        return Count.WHEN_READ if 0 < change.present < group.needed and may_stay else Count.NOW
    if gang.phase is Phase.RUNNING and not group.unbound and (after is None or after.node):
        return Count.WHEN_READ if change.present else Count.NOW
    if not _expects_more(gang, change.present):
        return Count.NOW
    if change.before is not None and change.before.present:
        is_in_series = gang.phase in MAY_LEAVE and change.is_departure
    else:
        is_in_series = change.waits_in(gang, same_claim=gang.phase is not Phase.INVALID)
    return Count.AFTER_SERIES if is_in_series else Count.NOW


def _expects_more(gang: Gang, present: int) -> bool:
    """Return whether other pods are likely to follow these `present` pods.

    Other pods may follow if the gang's size is open, or if the gang stays ill-formed whatever comes.
    """
    group = gang.group
    if gang.phase is Phase.GIVEN_UP or gang.is_partially_bound:
        return False
    is_open = gang.phase is Phase.INVALID or (group.elastic and group.waits_for is None)
    return is_open and (present != group.size or group.ambiguous)
