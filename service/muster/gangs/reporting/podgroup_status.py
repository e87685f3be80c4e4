"""The status of PodGroup objects, written rarely: the phase of their gangs, or one condition.

Kubernetes' own PodGroups, in trees too, get the condition of `group_condition`. PodGroups of v2
get a whole status.

When a gang may have changed, the status of its PodGroup is computed after `status_s`, and written if it
differs. So a status is written at most once in that time, however many pods came or were bound. If only a
sentence changed, and no refusal was published since the last write, the status is written at most every
`numbers_s`. All phases of a gang that is
planned show as Planning until a member is bound. If the object shows another status than the last written
status, that status is written again: an older write arrived later, or a user edited the object. After a start
the statuses of thousands of PodGroups are due together, so each input writes a part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from muster.domain.causes.not_planned import MembersMissing
from muster.domain.pod import KUBERNETES, Pod
from muster.domain.podgroup import OURS, Condition, GroupStatus, PodGroup, PodGroupKey, PodGroupStatus
from muster.domain.sentences import sentence
from muster.gangs.membership.group import NameKey
from muster.gangs.membership.roster import Roster
from muster.gangs.messages.instructions import WriteStatus
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import Phase
from muster.gangs.reporting.group_condition import scheduled_condition, waiting_condition, was_refused
from muster.gangs.reporting.publisher import Publisher

WRITTEN_AT_ONCE = 512
"""Number of PodGroups and their pods whose statuses one input computes: about 5 ms. The next Tick goes on."""

_SHOWN_AS = {Phase.PLANNED: Phase.PLANNING, Phase.RESERVING: Phase.PLANNING, Phase.WITHDRAWN: Phase.PLANNING}


def phase_in_api(phase: Phase) -> str:
    """Return the API's word for a phase, such as GivenUp."""
    return _SHOWN_AS.get(phase, phase).value.title().replace(" ", "")


_BEGUN = frozenset(map(phase_in_api, (Phase.PERMITTED, Phase.RUNNING, Phase.GIVEN_UP, Phase.FINISHED)))


@dataclass(slots=True)
class _Written:
    """The last status written to a PodGroup object, and the status that the object last showed."""

    uid: str
    status: GroupStatus | None
    shown_status: GroupStatus | None
    written_at: float
    """When it was written, in seconds of the inputs' clock."""


class PodGroupStatuses:
    """Decide when the status of a PodGroup is written, and compute the status.

    `gangs_of` returns the gangs of a name, regrouped if they are stale.
    """

    def __init__(
        self,
        settings: GangSettings,
        roster: Roster,
        gangs_of: Callable[[NameKey], Iterable[Gang]],
        publisher: Publisher,
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._gangs_of = gangs_of
        self._publisher = publisher
        self._active = False
        self._due: dict[PodGroupKey, float] = {}
        self._written: dict[PodGroupKey, dict[PodGroupKey, _Written]] = {}
        """By the gang's key, then by the key of the object."""

    def write_due(self) -> None:
        """Note the PodGroups that the roster reports as changed, and write the statuses that are due.

        Without a shim nothing is written: another replica may have the shim, and writes.
        """
        keys, self._roster.changed_pod_groups = self._roster.changed_pod_groups, set()
        active = self._publisher.listening()
        if active and not self._active:
            keys = set(self._roster.pod_groups)
            self._written.clear()  # another replica may have written statuses meanwhile
        self._active = active
        for key in keys:
            self._note_change(key)
        if not active:
            self._due.clear()
        count = 0
        for key in [key for key, when in self._due.items() if when <= self._publisher.now]:
            if count >= WRITTEN_AT_ONCE:
                break
            count += self._write_if_changed(key)

    def see_status(self, group: PodGroup) -> None:
        """Take in the statuses that the gang's objects show now, perhaps older writes of this service."""
        written = self._written.get(group.key, {})
        for pod_group in group.objects if written else ():
            last = written.get(pod_group.key)
            if last is not None and last.uid == pod_group.uid and last.shown_status != pod_group.status:
                last.shown_status = pod_group.status
                self._note_change(group.key)

    def next_deadline(self) -> float | None:
        """Return when a status is due without an input, in seconds of the inputs' clock; None if no status is
        due."""
        return min(self._due.values(), default=None)

    def _note_change(self, key: PodGroupKey) -> None:
        """Have the status of a gang's objects computed after `status_s`."""
        group = self._roster.pod_groups.get(key)
        if group is None:
            self._written.pop(key, None)
        elif group.gets_status and (group.api_version == OURS or group.begun or self._has_pods(key)):
            due = self._publisher.now + self._settings.status_s
            self._due[key] = min(due, self._due.get(key, due))

    def _has_pods(self, key: PodGroupKey) -> bool:
        return bool(self._roster.pods_named((*key, "")))

    def _write_if_changed(self, key: PodGroupKey) -> int:
        """Compute the status of each object of a gang, and write those that differ from the last one. Return
        the number of the gang's objects and pods."""
        del self._due[key]
        group = self._roster.pod_groups.get(key)
        if group is None:
            return 1
        pods = self._roster.pods_named((*key, ""))
        pods_by_role = _by_role(pods) if group.pod_groups else {}
        old, now = self._written.get(key, {}), self._publisher.now
        written = self._written[key] = dict[PodGroupKey, _Written]()
        for pod_group in group.objects:
            last = old.get(pod_group.key)
            if last is None or last.uid != pod_group.uid:
                shown = pod_group.status
                last = _Written(pod_group.uid, shown, shown, now - self._settings.numbers_s)
            written[pod_group.key] = last
            own_pods = pods_by_role.get(pod_group.name, ()) if group.pod_groups else pods
            self._write(key, pod_group, self._compute(key, pod_group, own_pods, last), last)
        return len(group.objects) + len(pods)

    def _write(self, key: PodGroupKey, group: PodGroup, status: GroupStatus | None, last: _Written) -> None:
        """Write the status of one object of a gang if it differs from the last one."""
        if status is None or status == last.shown_status:
            return
        now, soon = self._publisher.now, last.written_at + self._settings.numbers_s
        if (
            last.shown_status is not None
            and now < soon
            and _without_text(status) == _without_text(last.shown_status)
            and all(gang.refused_at < last.written_at for gang in self._gangs_of((*key, "")))
        ):
            self._due[key] = min(soon, self._due.get(key, soon))
            return
        last.status, last.shown_status, last.written_at = status, status, now
        self._publisher.instruct(
            WriteStatus(group.namespace, group.name, group.uid, status, group.api_version, group.generation)
        )

    def _compute(
        self, key: PodGroupKey, group: PodGroup, pods: Collection[Pod], last: _Written
    ) -> GroupStatus | None:
        """Return the status that the PodGroup with these pods must show; None if it need not show one. `key`
        is that of the gang."""
        is_native = group.dialect == KUBERNETES
        if is_native and (condition := scheduled_condition(group, pods, last.shown_status, last.status)):
            return condition  # before its gangs are regrouped, which may take long
        gangs = sorted(self._gangs_of((*key, "")), key=lambda gang: (gang.group.since, gang.key))
        if is_native:
            waiting_gang = next((gang for gang in gangs if gang.phase is not Phase.RUNNING), None)
            return waiting_condition(waiting_gang if pods else None, last.shown_status)
        old_status = last.status if isinstance(last.status, PodGroupStatus) else None
        return _status_of(group, pods, gangs, old_status)


def _by_role(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """Return role → its pods. In a tree, the role of a pod is its PodGroup."""
    pods_by_role: dict[str, list[Pod]] = {}
    for pod in pods:
        pods_by_role.setdefault(pod.topology_request.role, []).append(pod)
    return pods_by_role


def _without_text(status: GroupStatus) -> GroupStatus:
    return replace(status, message="") if isinstance(status, Condition) else replace(status, reason="")


def _status_of(
    group: PodGroup, pods: Iterable[Pod], gangs: Sequence[Gang], last: PodGroupStatus | None = None
) -> PodGroupStatus:
    """Return the status of a PodGroup. It has several gangs if other owners use the name again.

    The numbers are over all gangs, which are sorted by age. Phase, domain and reason are those of the oldest
    gang that does not run yet, or else of the newest gang. `last` is the previous status: its domain stays
    while members are placed.
    """
    pods = list(pods)
    present_pods = [pod for pod in pods if pod.present]
    if not present_pods or not gangs:
        return _without_pods(group, bool(pods), last)
    gang = next((gang for gang in gangs if gang.phase is not Phase.RUNNING), gangs[-1])
    phase = Phase.UNPLACEABLE if was_refused(gang) else gang.phase
    awaited_uids = {uid for other_gang in gangs for uid in other_gang.awaited_bindings}
    placed_count = sum(bool(pod.node) or pod.uid in awaited_uids for pod in present_pods)
    domain = last.domain if last is not None and placed_count else ""
    if placed_count and gang.plan is not None:
        domain = gang.plan.placed.domain
    return PodGroupStatus(
        phase=phase_in_api(phase),
        needed=gang.group.needed,
        present=len(present_pods),
        placed=placed_count,
        running=sum(pod.running for pod in present_pods),
        domain=domain,
        reason="" if phase in (Phase.PERMITTED, Phase.RUNNING) else gang.reason,
    )


def _without_pods(group: PodGroup, ended: bool, last: PodGroupStatus | None) -> PodGroupStatus:
    """Return the status of a PodGroup without present pods. `ended`: it has succeeded pods."""
    min_member = group.min_member or 0
    if group.causes:
        return PodGroupStatus(phase_in_api(Phase.INVALID), min_member, reason=sentence(group.causes))
    if ended or (last is not None and last.phase in _BEGUN):
        return PodGroupStatus(phase_in_api(Phase.FINISHED), min_member)
    reason = sentence((MembersMissing(0, min_member),))
    return PodGroupStatus(phase_in_api(Phase.COLLECTING), min_member, reason=reason)
