"""The condition PodGroupInitiallyScheduled of Kubernetes' own PodGroups.

    the minimum of the PodGroup is bound     True, Scheduled
    the planner refused the gang             False, Unschedulable: the sentence of the gang
    the gang is ill-formed                   False, SchedulerError: the sentence of the gang
    otherwise                                unchanged

True is never taken back, as with kube-scheduler. The minimum of a PodGroup with the policy basic is one pod.
If such a PodGroup makes no gang, it gets only True, because each of its pods says by itself why it waits. A
PodGroup without pods of ours gets no condition.
"""

from __future__ import annotations

from collections.abc import Collection

from muster.domain.pod import Pod
from muster.domain.podgroup import SCHEDULED, Condition, GroupStatus, PodGroup
from muster.domain.printable import printable
from muster.gangs.messages.instructions import Outcome
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import Phase

_MESSAGE_LIMIT = 1024
"""Characters of the message."""


def scheduled_condition(
    group: PodGroup, pods: Collection[Pod], shown: GroupStatus | None, written: GroupStatus | None
) -> Condition | None:
    """Return the condition with status True; None if the PodGroup must not show True yet.

    `pods` are the pods of its gangs. Pods that ended count too, because they were bound. `shown` is what the
    object shows, and `written` what this service wrote last.
    """
    for condition in (shown, written):
        if isinstance(condition, Condition) and condition.status:
            return condition
    if group.begun or sum(bool(pod.node) for pod in pods) >= (group.min_member or 1):
        return Condition(SCHEDULED, True, "Scheduled")
    return None


def waiting_condition(gang: Gang | None, shown: GroupStatus | None) -> Condition | None:
    """Return the condition of a PodGroup whose minimum is not bound; None if it need not show one.

    `gang` is the oldest gang that does not run, and `shown` is what the object shows.
    """
    shown_condition = shown if isinstance(shown, Condition) else None
    if gang is None or not (reason := _reason_of(gang)):
        return shown_condition
    since = shown_condition.since if shown_condition is not None else ""
    return Condition(SCHEDULED, False, reason, printable(gang.reason, _MESSAGE_LIMIT), since)


def was_refused(gang: Gang) -> bool:
    """Return whether the planner refused the gang. A refused gang may be in PLANNING, when the planner is
    asked again."""
    refused = gang.verdict is not None and gang.verdict.outcome is Outcome.REFUSED
    return gang.phase is Phase.UNPLACEABLE or (gang.phase is Phase.PLANNING and refused)


def _reason_of(gang: Gang) -> str:
    """Return the word for why the gang has not started; "" if nothing was decided about the gang."""
    if gang.phase is Phase.INVALID:
        return "SchedulerError"
    return "Unschedulable" if was_refused(gang) else ""
