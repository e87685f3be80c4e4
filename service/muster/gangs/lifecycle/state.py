"""The state of all gangs of a cluster, and the moves between their phases."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable

from muster.domain.clearing import Occupant
from muster.domain.pod import Pod
from muster.domain.request import Role
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.membership.group import Group, NameKey
from muster.gangs.membership.roster import Roster
from muster.gangs.messages.instructions import Lane
from muster.gangs.messages.settings import GangSettings
from muster.gangs.pending import planner_share
from muster.gangs.pending.in_tree import InTree
from muster.gangs.pending.occupants import Occupants
from muster.gangs.pending.planner_share import PlannerShare
from muster.gangs.pending.reservations import Backfill, Retained
from muster.gangs.pending.scheduling_queue import SchedulingQueue, namespace_of
from muster.gangs.pending.victims import Victims
from muster.gangs.record.gang import Gang, PlannerQuestion, QueueOrder, Timer, Timers
from muster.gangs.record.phases import InPhase, Phase, Planned, Planning, Trigger, Unplaceable
from muster.gangs.reporting.publisher import Publisher
from muster.placement.cluster.candidates import Excluded

_WAITING = (Phase.PLANNING, Phase.UNPLACEABLE, Phase.WITHDRAWN)
"""Phases in which a refused gang still waits."""


class State:
    """Hold all gangs, the capacity that they hold, and the instructions for the adapters.

    The other modules of this folder are functions on the state. Only one thread may use it.
    """

    def __init__(self, settings: GangSettings, wall_clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.wall_clock = wall_clock
        """Returns seconds since the Unix epoch, as the times of pods."""
        self.roster = Roster()
        self.ledger = Ledger()
        self.gangs: dict[str, Gang] = {}
        self.now = 0.0
        """Time of the input or call that is being handled, in seconds of the inputs' clock."""
        self.epoch: int | None = None
        self.synced = False
        self.interrupted: dict[str, float] = {}
        """Resource whose watch is interrupted → since when."""
        self.members_regrouped = 0
        """Number of members that were regrouped for the input that is being handled."""
        self.open_questions: dict[Lane, PlannerQuestion] = {}
        """The open question of each planner."""
        self.numbers = itertools.count(1)
        """Generations: numbers of plans and refusals, over all gangs."""
        self.timers = Timers(self.gangs, lambda: self.now, self.interrupted)
        self.publisher = Publisher(settings, self.timers, self.numbers, lambda: self.active)
        self.queue = SchedulingQueue(self.ledger)
        self.to_regroup: dict[NameKey, None] = {}
        """Names whose gangs are to be regrouped. All names are when the cluster is known, and when its
        policies change."""
        self.to_tell: dict[str, None] = {}
        """Keys of gangs that a new shim does not know yet."""
        self.short_of_room: dict[str, float] = {}
        """Key of each gang that was refused a full node since the last unbound pod went → when."""
        self.unbound_gone_at = -math.inf
        """When the last unbound pod went. The scheduler may have more room on full nodes since then."""
        self.to_wake: dict[str, None] = {}
        """Keys of refused gangs that a change may help, and that are not queued again yet."""
        self.retained = Retained(self.gangs, self.ledger)
        self.shares = {
            Lane.FOREGROUND: PlannerShare(planner_share.FOREGROUND),
            Lane.BACKGROUND: PlannerShare(planner_share.BACKGROUND),
        }
        self.backfill = Backfill(settings, self.ledger, lambda: self.now)
        self.occupants = Occupants(self.ledger, self.roster.pods, self.gangs, lambda: self.now)
        self.victims = Victims(lambda unit: unit in self.gangs or unit in self.ledger.bound)
        self.in_tree = InTree(self.ledger.nodes)
        self.planned_members: dict[str, int] = {}
        """Key of each gang that is planned and not permitted yet → number of its members."""
        self.orphans: dict[str, float] = {}
        """Bindings that may be under way and that no permitted gang awaits: pod UID → when to give the
        Binding up."""

    @property
    def active(self) -> bool:
        """Return whether instructions are sent: the cluster is known and a shim is connected."""
        return self.synced and self.epoch is not None

    @property
    def catches_up(self) -> bool:
        """Return whether a change concerns many gangs, and some of them were not updated yet.

        Each input updates some of them. No gang is planned before all were updated, so that the first in
        order is planned first.
        """
        return self.synced and bool(self.to_regroup or self.to_tell or self.to_wake)

    @property
    def background_ends_at(self) -> float | None:
        """Return when to end the background decision because other gangs wait; None if no gang waits.

        Gangs that wait for the foreground planner count too: during a background decision, that planner plans
        no gang of a lower priority.
        """
        foreground_waits = (
            self.queue.count_waiting(Lane.FOREGROUND) and Lane.FOREGROUND not in self.open_questions
        )
        if foreground_waits or self.queue.count_waiting(Lane.BACKGROUND):
            return self.shares[Lane.BACKGROUND].ends_at
        return None

    def check_ahead_limit(self) -> tuple[bool, frozenset[str]]:
        """Return whether `settings.ahead` members are planned and not permitted: then no more are planned.

        Also return the namespaces with half of this number or more: no more gangs of these namespaces are
        planned. Each namespace counts for half at most, so that no namespace alone holds up the others.
        """
        half = -(-self.settings.ahead // 2)
        members: Counter[str] = Counter()
        for key, number in self.planned_members.items():
            members[namespace_of(key)] += number
        namespaces = frozenset(namespace for namespace, number in members.items() if number >= half)
        return sum(min(number, half) for number in members.values()) >= self.settings.ahead, namespaces

    def regroup_if_stale(self, gang: Gang) -> Group:
        """Regroup the gang if it is stale, and return the group.

        If `try_regroup` can't, return the old group, and set a timer that regroups all gangs of the name.
        """
        if self.try_regroup(gang) is None:
            self.timers.start(gang, self.now, Timer.REGROUP)
        return gang.group

    def try_regroup(self, gang: Gang) -> Group | None:
        """Regroup the gang if it is stale, and return the group.

        Return None if some of the gang's pods now belong to another gang, or if a gang of its name is not
        known yet. The gang then stays stale: to regroup this gang alone would leave these pods without a
        gang.
        """
        if gang.stale:
            # The key alone is not enough, because a key does not show pods without an owner.
            groups = {(group.gang.key, group.owners): group for group in self.roster.groups(gang.name)}
            same = groups.get((gang.key, gang.group.owners))
            if same is None or any(key not in self.gangs for key, _ in groups):
                return None
            if any(
                (pod := self.roster.pods.get(uid)) is not None and pod.present
                for uid in gang.group.uids - same.uids
            ):
                return None
            self.set_group(gang, same)
            self.members_regrouped += same.present
            if gang.phase is Phase.COLLECTING and same.waits_for is not None:
                # The gang is not stale any more, so no timer has its reason computed again.
                gang.reason = sentence((same.waits_for,))
        return gang.group

    def set_group(self, gang: Gang, group: Group) -> None:
        """Set the gang's members as they are now."""
        gang.group, gang.stale, gang.newly_bound_count = group, False, 0
        self.occupants.note(gang)

    def regroup_soon(self, gang: Gang) -> None:
        """Have the gangs of the name regrouped soon, because more pods may come and go."""
        self.timers.start(gang, self.now + self.settings.settle_s, Timer.REGROUP)

    def transition(self, gang: Gang, trigger: Trigger, new_phase: InPhase) -> None:
        """Move the gang to its next phase, and drop the timers of the phase before.

        Raises:
            ImpossibleTransitionError: the trigger does not lead there from the gang's phase.
        """
        gang.enter(trigger, new_phase)
        self.occupants.note(gang)
        self.publisher.note_move(gang, trigger)
        self.roster.changed_pod_groups.add(gang.name[:3])
        gang.timers.pop(Timer.PHASE, None)
        if not gang.stale:  # a stale gang needs its timer, or it would not be regrouped
            gang.timers.pop(Timer.REGROUP, None)
        elif isinstance(new_phase, Unplaceable):  # no input may come that has the gang regrouped
            self.regroup_soon(gang)
        gang.timers.pop(Timer.IN_TREE, None)
        if isinstance(new_phase, Planned):
            self.planned_members[gang.key] = len(new_phase.plan.order)
        else:
            self.planned_members.pop(gang.key, None)
        self.queue.remove(gang)
        if gang.phase not in _WAITING:
            self.backfill.remove(gang)

    def enqueue(self, gang: Gang) -> None:
        """Queue the gang for a planner, with a new generation."""
        gang.generation = next(self.numbers)
        self.enqueue_again(gang)

    def enqueue_again(self, gang: Gang, lane: Lane | None = None) -> None:
        """Queue the gang with its present generation. Without `lane`, slow gangs wait for the background
        planner, and others for the foreground planner."""
        lane = lane or (Lane.BACKGROUND if gang.slow else Lane.FOREGROUND)
        self.queue.add_waiting(gang, lane, self.queue_order(gang))

    def queue_order(self, gang: Gang) -> QueueOrder:
        """Return the gang's sort key in the queue."""
        return gang.queue_order(self.retained.covers(gang), self.settings.extras_s)

    def replan(self, gang: Gang, trigger: Trigger) -> None:
        """Queue a refused gang again, or a gang whose answer was outdated."""
        self.transition(gang, trigger, Planning(overtaken=trigger is Trigger.OUTDATED))
        self.enqueue(gang)

    def void(self, gang: Gang, trigger: Trigger, new_phase: InPhase, why: str, silent: bool = False) -> None:
        """Drop the gang's plan. Unless `silent`, the shim gets a verdict and holds the pods again."""
        self.transition(gang, trigger, new_phase)
        gang.reason = why
        if not silent:
            self.publisher.withdraw_verdict(gang)

    def snapshot_for(self, gang: Gang) -> Snapshot:
        """Return the cluster as this gang may use it.

        Capacity that the gang itself holds counts as free. So do devices that claims of its unbound members
        hold, if the gang can leave out no member. Capacity that is retained or reserved for other gangs
        counts as taken.
        """
        own_uids = self._own_uids(gang)
        snapshot = self.ledger.snapshot_without(own_uids) if own_uids else self.ledger.snapshot()
        return self.backfill.snapshot_for(gang, snapshot)

    def occupants_for(self, gang: Gang) -> dict[str, tuple[Occupant, ...]]:
        """Return what `snapshot_for` counts as taken, by node."""
        own_uids = self._own_uids(gang)
        hidden = self.backfill.hidden_usages(gang, self.ledger.snapshot_without(own_uids))
        return self.occupants.seen_by(own_uids, hidden)

    def _own_uids(self, gang: Gang) -> set[str]:
        """Return the UIDs of members whose places, or devices, are free for the gang itself."""
        own_uids = gang.retained_uids | gang.reserved_uids
        if gang.group.fewest_needed >= gang.group.present:
            # No member can be left out, so the shim frees the devices that each member has from an earlier
            # plan.
            claimants = self.ledger.device_claims.consumers
            own_uids |= {pod.uid for pod in gang.group.unbound if pod.uid in claimants}
        return own_uids

    def excluded_nodes(self, gang: Gang, roles: Iterable[Role], pods: Iterable[Pod]) -> Excluded:
        """Return role → node → the plugin that refuses the pair, from in-tree answers and exclusions."""
        roles = tuple(roles)
        nodes_by_role = self.in_tree.answers(gang.key).excluded_nodes(roles)
        for role, nodes in gang.exclusions.by_role(roles, pods).items():
            nodes_by_role[role] = {**nodes_by_role.get(role, {}), **nodes}
        return nodes_by_role
