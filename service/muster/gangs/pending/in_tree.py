"""In-tree answers: which nodes kube-scheduler's own plugins refuse to a gang's pods, before it is planned.

The planner does not model volumes, resource claims and extenders. The shim asks the plugins about all nodes
(protos, InTreeQuestion). For pods that have preferences it also reports kube-scheduler's scores of the nodes.
This module decides when to ask about a gang, and stores the answers as long as the gang exists. It turns them
into roles, room, scores and excluded nodes. It makes no call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from muster.domain.causes.not_planned import ClaimsMissing, RefusedEverywhere
from muster.domain.node import Node
from muster.domain.pod import Pod
from muster.domain.reasons import Cause
from muster.domain.request import Member, Request, Role, Subrequest
from muster.domain.snapshot import Snapshot
from muster.gangs.messages.calls import InTreeAnswer, InTreeReport, StaleError
from muster.gangs.messages.instructions import AskInTree
from muster.gangs.pending.answers import (
    MOST_GPU_LISTS,
    NOTHING,
    SubrequestCache,
    limited,
    name_parts,
    parts_of,
    rename_roles,
    subrequests,
    too_many,
    too_many_nodes,
)
from muster.gangs.record.gang import Gang
from muster.placement.cluster.candidates import common

MODELLED = frozenset(
    {
        "NodeName",
        "NodeUnschedulable",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "PodTopologySpread",
        "InterPodAffinity",
    }
)
"""Plugins whose rules the planner knows: the shim does not ask them, so a question would not help."""


@dataclass(slots=True)
class _Record:
    """What was asked about one gang, and the answers."""

    number: int
    """Number of the current question; 0 if there is none."""
    uids: tuple[str, ...]
    """UIDs of the pods in the question."""
    until: float
    """When the gang is planned without answers, in seconds of the inputs' clock."""
    answered: bool = False
    answers: Mapping[str, InTreeAnswer] = field(default_factory=dict)
    """Pod UID → answer."""
    alike: Mapping[str, InTreeAnswer] = field(default_factory=dict)
    """Pod UID → the first answer, of this report or an earlier one, that equals the pod's."""
    version: int = 0
    """Rises when the answers change. `used` is the version that the planner was last asked with."""
    used: int = 0
    gpu_lists: int = 0
    """Lists of matching GPUs in the answers. More than `MOST_GPU_LISTS` are not kept, and refuse the gang."""
    parts: list[InTreeReport] = field(default_factory=list)
    """Parts of a report that is not complete yet."""

    def take(self, answers: Mapping[str, InTreeAnswer]) -> None:
        """Take in new answers by pod. What equals an answer before keeps that one in `alike`."""
        distinct = {id(answer): answer for answer in (NOTHING, *self.alike.values(), *answers.values())}
        firsts = dict[InTreeAnswer, InTreeAnswer]()
        first_of = {number: firsts.setdefault(answer, answer) for number, answer in distinct.items()}
        self.answers, self.answered = answers, True
        self.alike = {uid: first_of[id(answer)] for uid, answer in answers.items()}

    @property
    def stated(self) -> dict[str, InTreeAnswer]:
        """Return `alike` without the answers that state nothing."""
        return {uid: answer for uid, answer in self.alike.items() if answer is not NOTHING}


class InTree:
    """Questions and answers, by gang. `nodes` is a live view of the cluster's nodes."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._listening = False
        self._records: dict[str, _Record] = {}
        self._suspects: set[str] = set()
        self._numbers = itertools.count(1)

    def begin(self, answers_in_tree: bool) -> None:
        """Begin a session. `answers_in_tree`: its shim answers questions.

        If it does not, old answers are dropped, because they would never be renewed.
        """
        self._listening = answers_in_tree
        if not answers_in_tree:
            self._records.clear()

    def ask(self, gang: Gang, until: float) -> AskInTree | None:
        """Return the question to ask before the gang is planned.

        Return None if there is nothing to ask, or if all of it was asked before. `until`: when the gang is
        planned without answers, in seconds of the inputs' clock.
        """
        uids = self._concerned(gang)
        record = self._records.get(gang.key)
        if not self._listening or not uids or (record is not None and set(uids) <= set(record.uids)):
            return None
        if record is None:
            record = self._records[gang.key] = _Record(0, (), until)
        record.until = until
        return self._question(gang, record)

    def ask_again(self, gang: Gang) -> AskInTree | None:
        """Return the question for a gang that was asked about in an earlier session; None for others.

        Its old answers hold until the new ones come.
        """
        record = self._records.get(gang.key)
        if record is None or not self._listening or not self._concerned(gang):
            return None
        return self._question(gang, record)

    def awaits(self, gang: str) -> float:
        """Return until when the gang waits for answers; 0 if it does not."""
        record = self._records.get(gang)
        return 0.0 if record is None or record.answered or not self._listening else record.until

    def refused(self, gang: Gang, plugin: str) -> None:
        """Note that a plugin has refused a planned node.

        The shim is asked about all pods of the gang before its next plan, whatever they request. A question
        without an answer stays open. If each refusal asked anew, a slow answer would never count.
        """
        if plugin and plugin not in MODELLED:
            self._suspects.add(gang.key)
            if (record := self._records.get(gang.key)) is not None and record.answered:
                record.number, record.uids = 0, ()

    def know(self, gang: str, answers: Mapping[str, InTreeAnswer]) -> None:
        """Take answers that are known without a question, by UID of a pod."""
        record = self._records[gang] = _Record(0, tuple(answers), 0.0)
        record.take(answers)

    def take(self, report: InTreeReport) -> bool:
        """Take in a report. Return whether it changed what may fit.

        Scores alone do not change that. A first answer that refuses nothing does not either, unless a plugin
        has refused a planned node before.

        Raises:
            StaleError: the report answers no open question, or is a part out of order.
        """
        record = self._records.get(report.gang)
        if record is None or record.number != report.question:
            raise StaleError(f"gang {report.gang}: question {report.question} is not the current one")
        if report.part == 0:
            record.parts = []
        if report.part != len(record.parts):
            raise StaleError(f"gang {report.gang}: part {report.part} does not follow the one before")
        record.parts.append(report)
        if report.has_more:
            return False
        parts, record.parts = record.parts, []
        answers = {
            record.uids[pod]: answer for part in parts for pods, answer in part.answers for pod in pods
        }
        distinct = {id(answer): answer for answer in answers.values()}
        lists = sum(len(answer.devices) for answer in distinct.values())
        if lists > MOST_GPU_LISTS:
            bare = {number: replace(answer, devices=(), groups=()) for number, answer in distinct.items()}
            answers = {uid: bare[id(answer)] for uid, answer in answers.items()}
        more, record.gpu_lists = lists != record.gpu_lists, lists
        before, stated_before = record.alike, record.stated
        record.take(answers)
        suspect = report.gang in self._suspects
        changed = record.alike != before if suspect else record.stated != stated_before
        changed |= more and lists > MOST_GPU_LISTS
        record.version += changed
        return changed

    def forget(self, gang: Gang) -> AskInTree | None:
        """Forget everything about a gang. Return what takes its question back, if one was asked."""
        record = self._records.pop(gang.key, None)
        self._suspects.discard(gang.key)
        if record is None or not self._listening:
            return None
        return AskInTree(gang.key, next(self._numbers), gang.group.gang.namespace, ())

    def used(self, gang: str) -> None:
        """Note that the planner is asked with the answers as they are now."""
        if (record := self._records.get(gang)) is not None:
            record.used = record.version

    def outdated(self, gang: str) -> bool:
        """Return whether the answers have changed since the planner was asked."""
        record = self._records.get(gang)
        return record is not None and record.version != record.used

    def causes(self, gang: Gang, request: Request) -> tuple[Cause, ...]:
        """Return why the gang can't be placed on any node, as far as the plugins know.

        Return () if enough members are not affected.
        """
        record = self._records.get(gang.key)
        if record is None:
            return ()
        roles = ((role, _distinct(role, record)) for role in request.roles)
        if (cause := too_many(gang.key, record.gpu_lists, roles)) is not None:
            return (cause,)
        asking = (
            answers
            for role in request.roles
            for answers in self._together(role, record, _has_one_role(request))
        )
        if (cause := too_many_nodes(gang.key, asking)) is not None:
            return (cause,)
        blocked: dict[str, tuple[str, InTreeAnswer]] = {}
        for role in request.roles:
            for member in role.members:
                answer = record.answers.get(member.uid, NOTHING)
                if answer.everywhere or answer.missing_claims:
                    blocked[member.uid] = (role.name, answer)
        if not blocked or request.size - len(blocked) >= request.min_member:
            return ()
        missing = sorted({claim for _, answer in blocked.values() for claim in answer.missing_claims})
        more = max(answer.more_missing_claims for _, answer in blocked.values())
        causes: list[Cause] = [ClaimsMissing(tuple(missing), more)] if missing else []
        everywhere = {(role, answer.everywhere) for role, answer in blocked.values() if answer.everywhere}
        return (*causes, *(RefusedEverywhere(role, by) for role, by in sorted(everywhere)))

    def refine(self, gang: str, request: Request) -> Request:
        """Return the request with a role for each answer, and with what it says of the nodes.

        Running members of a role that is split count with its first part. That changes no plan: such a role
        has neither segments nor a scope of its own, and constraints name all its parts. Sentences about where
        members run may name that part.
        """
        record = self._records.get(gang)
        if record is None or not record.answers:
            return request
        alone, cache = _has_one_role(request), SubrequestCache()
        parts = {role.name: self._parts(role, record, alone, cache) for role in request.roles}
        by_name = name_parts(parts)
        names = {name: tuple(part.name for part in role_parts) for name, role_parts in by_name.items()}
        roles = [part for role_parts in by_name.values() for part in role_parts]
        scope = request.required_scope
        if alone and len(roles) > 1:
            scope = scope or request.roles[0].required_scope
        return replace(
            request,
            roles=tuple(roles),
            required_scope=scope,
            running=tuple(
                replace(member, role=names.get(member.role, (member.role,))[0]) for member in request.running
            ),
            constraints=tuple(rename_roles(constraint, names) for constraint in request.constraints),
            subgroups=tuple(
                replace(group, roles=parts_of(group.roles, names)) for group in request.subgroups
            ),
            role_preferences=tuple(
                replace(preference, roles=parts_of(preference.roles, names))
                for preference in request.role_preferences
            ),
            quorum=request.quorum
            and request.quorum.map_leaves(lambda leaf: replace(leaf, roles=parts_of(leaf.roles, names))),
        )

    def excluded(self, gang: str, roles: Iterable[Role]) -> dict[str, Mapping[str, str]]:
        """Return role → node → the plugin that refuses the pair, with its reason. `roles` are refined.

        The roles share one map of nodes for each answer: a user may create thousands of roles.
        """
        record = self._records.get(gang)
        if record is None or not record.answers:
            return {}

        @cache
        def refused(by: str) -> Mapping[str, str]:
            return dict.fromkeys(self._nodes, by)

        def of(answer: InTreeAnswer) -> Mapping[str, str]:
            by = answer.everywhere or (_missing(answer) if answer.missing_claims else "")
            return refused(by) if by else answer.refused

        return {role.name: common(map(of, _distinct(role, record))) for role in roles if role.members}

    def may_have(self, gang: str, roles: Iterable[Role]) -> Mapping[str, tuple[Subrequest, ...]]:
        """Return role → the GPUs that members may have now, for each subrequest."""
        pairs = ((role, self._by_role(gang, [role])) for role in roles)
        cache = SubrequestCache()
        return {role.name: subrequests(role, of[role.name], self._nodes, cache) for role, of in pairs if of}

    def limited(self, gang: str, request: Request, snapshot: Snapshot) -> Request:
        """Return a refined request: members may have no more GPUs than other devices agree with."""
        return limited(request, self._by_role(gang, request.roles), snapshot)

    # --- helpers ------------------------------------------------------------------------------------

    def _concerned(self, gang: Gang) -> tuple[str, ...]:
        suspect = gang.key in self._suspects
        return tuple(sorted(pod.uid for pod in gang.group.unbound if suspect or _concerns(pod)))

    def _question(self, gang: Gang, record: _Record) -> AskInTree:
        record.number, record.uids, record.answered = next(self._numbers), self._concerned(gang), False
        record.parts = []
        names = {pod.uid: pod.name for pod in gang.group.unbound}
        pods = tuple((names[uid], uid) for uid in record.uids)
        return AskInTree(gang.key, record.number, gang.group.gang.namespace, pods)

    def _by_role(self, gang: str, roles: Iterable[Role]) -> dict[str, list[InTreeAnswer]]:
        record = self._records.get(gang)
        return {} if record is None else {role.name: _distinct(role, record) for role in roles}

    def _together(self, role: Role, record: _Record, alone: bool) -> list[list[InTreeAnswer]]:
        """Return the answers that count together, for each part of the role."""
        answers = _distinct(role, record)
        return [answers] if _stays_whole(role, alone) else [[answer] for answer in answers]

    def _parts(self, role: Role, record: _Record, alone: bool, cache: SubrequestCache) -> list[Role]:
        """Return the role's members as one role for each answer.

        A role is not split if it has segments, because they consist of consecutive members. If it has a scope
        of its own, each part would choose its own domain, so it is not split for different scores. For other
        differences it is split only if it is `alone`: its scope then acts as the gang's. A role that is not
        split has its first member's scores, and the GPUs that all of its members may have.
        """
        answers = _answers(role, record) if role.required_scope is None else _alike(role, record)
        by_answer: dict[int, tuple[InTreeAnswer, list[Member]]] = {}
        for member, answer in zip(role.members, answers, strict=True):
            by_answer.setdefault(id(answer), (answer, []))[1].append(member)
        if len(by_answer) > 1 and _stays_whole(role, alone):
            whole = replace(role, scores=answers[0].scores)
            return [self._with_devices(whole, _distinct(role, record), cache)]
        parts = list[Role]()
        for answer, members in by_answer.values():
            part = replace(role, members=tuple(members), room=dict(answer.room), scores=answer.scores)
            parts.append(self._with_devices(part, (answer,), cache))
        return parts

    def _with_devices(self, role: Role, answers: Iterable[InTreeAnswer], cache: SubrequestCache) -> Role:
        """Return the role with the GPUs that all these answers allow."""
        choices = subrequests(role, answers, self._nodes, cache)
        if len(choices) == 1 and not role.gpu_counts:
            return replace(role, matching=choices[0].matching)
        return replace(role, subrequests=choices)


def _has_one_role(request: Request) -> bool:
    return len(request.roles) == 1 and not request.running


def _stays_whole(role: Role, alone: bool) -> bool:
    """Return whether the role is not split, because of its segments or its scope. See `_parts`."""
    return bool(role.segments) or (role.required_scope is not None and not alone)


def _concerns(pod: Pod) -> bool:
    """Return whether plugins may know something about the pod that the planner does not."""
    return pod.preferences or pod.device_claims or bool(pod.peers.volume_claims)


def _answers(role: Role, record: _Record) -> list[InTreeAnswer]:
    return [record.answers.get(member.uid, NOTHING) for member in role.members]


def _alike(role: Role, record: _Record) -> list[InTreeAnswer]:
    """Return the answers of the role's members, the first of the role in place of those that equal it."""
    first = dict[int, InTreeAnswer]()
    kinds = (id(record.alike.get(member.uid, NOTHING)) for member in role.members)
    pairs = zip(kinds, _answers(role, record), strict=True)
    return [first.setdefault(kind, answer) for kind, answer in pairs]


def _distinct(role: Role, record: _Record) -> list[InTreeAnswer]:
    """Return the first of each set of equal answers for the role's members."""
    return list({id(answer): answer for answer in _alike(role, record)}.values())


def _missing(answer: InTreeAnswer) -> str:
    return str(ClaimsMissing(answer.missing_claims, answer.more_missing_claims))
