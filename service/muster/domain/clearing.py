"""Running pods as possible victims, and the victims with whose end a gang fits.

A unit is the pods that start and end together: a gang, or a pod without a gang. Victims are units that lose
pods. A clearing is the cheapest victims, and the gang's plan on what they leave.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain

from muster.domain.decision import Placed
from muster.domain.node import Usage
from muster.domain.request import GangId, Request

CLOCK_SKEW_S = 60.0
"""A pod that started up to this many seconds in the future started now: clocks differ."""

OLDEST_S = 366 * 86_400.0
"""Older pods count as this old, so that losses stay small numbers."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """What a node has given away: to a pod, or to a promise.

    `unit` is a key of `Occupancy.units`. An occupant of no unit stays. `started` and `saved` are seconds
    since the epoch: the pod's start, and its last checkpoint (0 if none is known). `budget` is the only
    disruption budget that covers the pod, "" for none. `ends` is the time at which the pod ends anyway, 0 for
    a pod that is not being deleted.
    """

    usage: Usage
    name: str
    unit: str = ""
    started: float = 0.0
    saved: float = 0.0
    subgroup: str = ""
    rank: int | None = None
    budget: str = ""
    ends: float = 0.0


@dataclass(frozen=True, slots=True)
class Unit:
    """A gang, or a pod without a gang.

    The unit runs on with `min_members` members. If fewer would stay, all of them end. `min_by_subgroup` are
    the minimums of its subgroups (`Occupant.subgroup`). `protected` is the reason, as a clause, why no pod of
    the unit may be a victim; "" if there is none. Until the time `protected_until` none may be a victim
    either, in seconds since the epoch. `checkpoint_s` is the interval of its checkpoints.
    """

    name: str
    priority: int
    min_members: int
    min_by_subgroup: Mapping[str, int] = field(default_factory=dict, hash=False)
    protected: str = ""
    checkpoint_s: float = math.inf
    protected_until: float = 0.0


@dataclass(frozen=True)
class Occupancy:
    """All that the nodes of a snapshot have given away.

    For a node with a possible victim, `by_node` has every usage that the snapshot counts there. `budgets` has
    the number of disruptions that each budget allows now. `now` is in seconds since the epoch. A restart
    costs each GPU `restart_s`. A pod that is still there `linger_s` after its end counts as staying.
    """

    by_node: Mapping[str, Sequence[Occupant]]
    units: Mapping[str, Unit]
    now: float
    budgets: Mapping[str, int] = field(default_factory=dict)
    restart_s: float = 600.0
    linger_s: float = 60.0

    @classmethod
    def of(
        cls,
        occupants: Iterable[Occupant],
        units: Mapping[str, Unit],
        now: float,
        budgets: Mapping[str, int] | None = None,
    ) -> Occupancy:
        """Return the occupancy with these occupants, of any nodes."""
        by_node: dict[str, list[Occupant]] = {}
        for occupant in occupants:
            by_node.setdefault(occupant.usage.node, []).append(occupant)
        return cls(by_node, units, now, budgets or {})

    @cached_property
    def occupants(self) -> tuple[Occupant, ...]:
        """The occupants of all nodes."""
        return tuple(chain.from_iterable(self.by_node.values()))


@dataclass(frozen=True, slots=True)
class ClearQuestion:
    """The question which victims let a gang start.

    `request` is for the members that must start, and no more: no pod is a victim for the sake of optional
    members. `priority` is the lowest priority among these members. Only units of a lower priority may be
    victims.
    """

    request: Request
    occupancy: Occupancy
    priority: int

    @property
    def gang(self) -> GangId:
        """Return the gang of the question."""
        return self.request.gang


@dataclass(frozen=True, slots=True)
class Victim:
    """A unit that loses these pods, in the order of their names. `ends`: it loses all of its pods.

    `name` is that of the unit. The unit has `members` running pods, and the oldest has run for `ran_s`
    seconds. `loss` is in GPU-minutes.
    """

    unit: str
    name: str
    priority: int
    pods: tuple[Occupant, ...]
    ends: bool
    loss: int
    members: int
    ran_s: float

    @property
    def gpus(self) -> int:
        """Return how many GPUs these pods hold, whole or in part."""
        return sum(pod.usage.gpus.bit_count() + pod.usage.unindexed_gpus for pod in self.pods)


@dataclass(frozen=True, slots=True)
class Clearing:
    """The victims of the least loss, and the verified plan on what they leave.

    `priority` is the highest of a victim, None without a victim. The loss of all victims is in GPU-minutes.
    `going` are the pods on the planned nodes that end anyway: the plan may need their end too.

    If `proven`, no other victims are better. Victims are compared by the highest priority, then by the loss,
    then by the number of units. Without a proof, the least loss may be smaller by the share `gap`. If the gap
    is None too, victims of a lower priority may be enough.
    """

    gang: GangId
    victims: tuple[Victim, ...]
    going: tuple[Occupant, ...]
    plan: Placed
    proven: bool = True
    gap: float | None = None

    @property
    def priority(self) -> int | None:
        """Return the highest priority of a victim; None without a victim."""
        return max((victim.priority for victim in self.victims), default=None)

    @property
    def loss(self) -> int:
        """Return the loss of all victims in GPU-minutes."""
        return sum(victim.loss for victim in self.victims)


class BlockerKind(StrEnum):
    """Why what a `Blocker` names does not go."""

    PROTECTED = "protected"
    PRIORITY = "priority"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Blocker:
    """A unit in the gang's way that may not be a victim, or a disruption budget that allows too little.

    `name` is that of the unit or the budget. `pods` is how many pods of the unit are in the way, or how many
    pods covered by the budget would have to go. They hold `gpus` GPUs, whole or in part.
    """

    kind: BlockerKind
    name: str
    pods: int
    gpus: int
    priority: int = 0
    """The unit's priority."""
    clause: str = ""
    """Why no pod of the unit may be a victim, for PROTECTED."""
    allowed: int = 0
    """The number of disruptions that the budget allows, for BUDGET."""


@dataclass(frozen=True, slots=True)
class NoClearing:
    """No victims are known that would help the gang. `proven`: there are none.

    If `even_empty`, the gang would not fit even if all units ended. Else the gang would fit if the `blockers`
    went too: some of them, out of `blocker_count`. Without a proof none are named.
    """

    gang: GangId
    proven: bool
    even_empty: bool = False
    blockers: tuple[Blocker, ...] = ()
    blocker_count: int = 0
