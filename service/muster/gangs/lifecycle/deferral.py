"""When a gang is regrouped (its pods are grouped anew) after a change of one of its pods.

If each change had the whole gang regrouped, each pod of a gang of thousands would cost tens of
milliseconds. Decision 0064 says why groups are not kept up to date instead. `PodHandler` asks three
questions in order:

1. Does the change concern one gang alone? If not, all gangs of the name are regrouped now.
2. `when_to_regroup`: can this wait, because the change leaves the gang in its phase, or begins a series?
3. `gangs_to_regroup_later`: if the gangs are regrouped now, have they many pods and were they just regrouped?
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from muster.domain.pod import Pod
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import Phase

_MAY_LEAVE = (Phase.COLLECTING, Phase.INVALID, Phase.PLANNING, Phase.UNPLACEABLE)
"""Phases in which the departure of a member voids no plan."""
_MAY_WAIT = (*_MAY_LEAVE, Phase.RUNNING)
"""Phases in which a gang of many pods is regrouped later."""
REGROUPED_AFTER_SERIES = (
    Phase.COLLECTING,
    Phase.RUNNING,
    Phase.UNPLACEABLE,
    Phase.INVALID,
    Phase.WITHDRAWN,
)
"""Phases in which pods that come one after another are grouped together, after the last of them. In other
phases such pods are grouped when the phase ends."""
MANY = 64
"""With this number of pods or more, the gangs of a name are not regrouped for each change. That would
take 5 to 20 µs per pod."""
REGROUP_EVERY_S = 0.0005
"""Seconds until such gangs are regrouped again, for each pod: 2 s for a gang of 4,000 pods."""
REGROUP_JOB_EVERY_S = 0.002
"""If the pods of a Job name more than `MANY` gangs, seconds until they are regrouped, for each gang."""


class Regroup(Enum):
    """When a gang is regrouped after a change."""

    NOW = auto()
    """Now; later if the gang has many pods and was just regrouped."""
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
    """Number of present pods that have the gang's name. If pods of other gangs have the name too, only pods
    of this gang's owners count."""

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

        `owned`: only if one of the gang's owners owns the pod. `same_claim`: only if the pod is well-formed,
        and another member states the same about the gang.
        """
        return (
            self.after is not None
            and self.after.present
            and not self.after.node
            and (not owned or self.after.owner in gang.group.owners)
            and (not same_claim or (not self.after.causes and self.after.claim in gang.group.claims))
        )


def when_to_regroup(gang: Gang, change: Change) -> Regroup:
    """Return when to regroup the gang.

    The first case that matches decides:

    - The gang awaits several Bindings, and one of them has bound the pod: `AFTER_BINDINGS`.
    - The gang lacks members, and a succeeded pod is gone: `AFTER_SERIES`. The waiting pods may be
      replacements now.
    - The gang lacks members before and after the change, and the pod waits or is gone: `WHEN_READ`.
    - The gang runs without waiting members. The pod has a node or is gone; others are present: `WHEN_READ`.
    - The gang's size is open, or the gang is ill-formed. The pod comes, or leaves before it has a node, and
      more pods may follow: `AFTER_SERIES`.
    - Otherwise: `NOW`.

    A partially bound gang, and a gang that was given up, are not regrouped after a series.
    """
    group, pod = gang.group, change.after
    awaited = gang.awaited_bindings
    if pod is not None and pod.node and pod.uid in awaited and len(awaited) > 1:
        return Regroup.AFTER_BINDINGS
    lacks_members = group.present < group.needed or group.waits_for is not None  # the first takes less time
    if gang.phase is Phase.COLLECTING and lacks_members:
        if change.before is not None and change.before.succeeded:
            return Regroup.AFTER_SERIES
        # While nothing runs, the owner does not matter: owners are assigned when enough are there.
        may_stay = pod is None or change.waits_in(gang, owned=bool(group.bound))
        return Regroup.WHEN_READ if 0 < change.present < group.needed and may_stay else Regroup.NOW
    if gang.phase is Phase.RUNNING and not group.unbound and (pod is None or pod.node):
        return Regroup.WHEN_READ if change.present else Regroup.NOW
    if not _expects_more(gang, change.present):
        return Regroup.NOW
    if change.before is not None and change.before.present:
        is_in_series = gang.phase in _MAY_LEAVE and change.is_departure
    else:
        is_in_series = change.waits_in(gang, same_claim=gang.phase is not Phase.INVALID)
    return Regroup.AFTER_SERIES if is_in_series else Regroup.NOW


def gangs_to_regroup_later(gangs: Collection[Gang], owners: set[str]) -> list[Gang]:
    """Return the gangs of a name that are regrouped later; [] if all gangs are regrouped now.

    `owners` are the owners of the pod that changed. If one of their gangs holds a plan or is partially bound,
    all gangs are regrouped now.
    """
    later = [gang for gang in gangs if gang.phase in _MAY_WAIT and not gang.is_partially_bound]
    return [] if any(owners & gang.group.owners for gang in gangs if gang not in later) else later


def _expects_more(gang: Gang, present: int) -> bool:
    """Return whether other pods are likely to follow these `present` pods.

    Other pods may follow if the gang's size is open, or if the gang stays ill-formed whatever comes.
    """
    group = gang.group
    if gang.phase is Phase.GIVEN_UP or gang.is_partially_bound:
        return False
    is_open = gang.phase is Phase.INVALID or (group.elastic and group.waits_for is None)
    return is_open and (present != group.size or group.ambiguous)
