"""Refine a gang's request by in-tree answers: variants of roles, room, scores, GPUs and excluded nodes.

Everything here is computed from the request, the answers and the nodes alone; `in_tree` keeps the answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from muster.domain.causes.not_planned import ClaimsMissing, RefusedEverywhere
from muster.domain.node import Node
from muster.domain.reasons import Cause
from muster.domain.request import Member, Request, Role, Subrequest
from muster.domain.snapshot import Snapshot
from muster.gangs.messages.calls import InTreeAnswer
from muster.gangs.pending.answers import (
    NOTHING,
    SubrequestCache,
    limit_by_other_devices,
    name_variants,
    rename_roles,
    subrequests,
    too_many_lists,
    too_many_nodes,
    variants_of,
)
from muster.placement.cluster.candidates import refused_by_all


@dataclass(frozen=True, slots=True)
class GangAnswers:
    """In-tree answers for the pods of one gang, and their effects on its request."""

    nodes: Mapping[str, Node]
    """A live view of the cluster's nodes."""
    by_pod: Mapping[str, InTreeAnswer] = field(default_factory=dict)
    """Pod UID → answer."""
    shared_answers: Mapping[str, InTreeAnswer] = field(default_factory=dict)
    """Pod UID → an object that all pods with equal answers share, also across reports."""
    gpu_lists: int = 0
    """Number of lists of matching GPUs. Above `MAX_GPU_LISTS`, none is kept, and the gang is refused."""

    def renew(self, by_pod: Mapping[str, InTreeAnswer], gpu_lists: int = 0) -> GangAnswers:
        """Return the answers of a new report. Equal answers, new or old, become one object."""
        distinct = {
            id(answer): answer for answer in (NOTHING, *self.shared_answers.values(), *by_pod.values())
        }
        firsts = dict[InTreeAnswer, InTreeAnswer]()
        first_of = {number: firsts.setdefault(answer, answer) for number, answer in distinct.items()}
        shared_answers = {uid: first_of[id(answer)] for uid, answer in by_pod.items()}
        return GangAnswers(self.nodes, by_pod, shared_answers, gpu_lists)

    @property
    def stated_answers(self) -> dict[str, InTreeAnswer]:
        """Return `shared_answers` without the answers that refuse and limit nothing."""
        return {uid: answer for uid, answer in self.shared_answers.items() if answer is not NOTHING}

    def causes(self, gang: str, request: Request) -> tuple[Cause, ...]:
        """Return the causes if plugins refuse members on all nodes, and too few other members remain.

        Return () if enough members remain. `gang` is the gang's key.
        """
        if not self.by_pod:
            return ()
        roles = ((role, self._distinct_answers(role)) for role in request.roles)
        if (cause := too_many_lists(gang, self.gpu_lists, roles)) is not None:
            return (cause,)
        is_alone = _is_alone(request)
        by_variant = (
            answers for role in request.roles for answers in self._answers_by_variant(role, is_alone)
        )
        if (cause := too_many_nodes(gang, by_variant)) is not None:
            return (cause,)
        refused: dict[str, tuple[str, InTreeAnswer]] = {}
        for role in request.roles:
            for member in role.members:
                answer = self.by_pod.get(member.uid, NOTHING)
                if answer.everywhere or answer.missing_claims:
                    refused[member.uid] = (role.name, answer)
        if not refused or request.size - len(refused) >= request.min_member:
            return ()
        missing = sorted({claim for _, answer in refused.values() for claim in answer.missing_claims})
        unlisted_claims = max(answer.more_missing_claims for _, answer in refused.values())
        causes: list[Cause] = [ClaimsMissing(tuple(missing), unlisted_claims)] if missing else []
        everywhere = {(role, answer.everywhere) for role, answer in refused.values() if answer.everywhere}
        return (*causes, *(RefusedEverywhere(role, reason) for role, reason in sorted(everywhere)))

    def refine(self, request: Request) -> Request:
        """Return the request with variants of its roles, and with what the answers say about nodes.

        Running members of a split role count with its first variant. This changes no plan: such a role has
        neither segments nor a scope of its own, and constraints name all its variants.
        """
        if not self.by_pod:
            return request
        is_alone, cache = _is_alone(request), SubrequestCache()
        unnamed = {role.name: self._variants(role, is_alone, cache) for role in request.roles}
        variants = name_variants(unnamed)
        names = {
            role: tuple(variant.name for variant in role_variants) for role, role_variants in variants.items()
        }
        roles = [variant for role_variants in variants.values() for variant in role_variants]
        scope = request.required_scope
        if is_alone and len(roles) > 1:
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
                replace(group, roles=variants_of(group.roles, names)) for group in request.subgroups
            ),
            role_preferences=tuple(
                replace(preference, roles=variants_of(preference.roles, names))
                for preference in request.role_preferences
            ),
            quorum=request.quorum
            and request.quorum.map_leaves(lambda leaf: replace(leaf, roles=variants_of(leaf.roles, names))),
        )

    def excluded_nodes(self, roles: Iterable[Role]) -> dict[str, Mapping[str, str]]:
        """Return role → node → the plugin that refuses the pair, with its reason. `roles` are refined.

        Roles with one answer share one map of nodes, because a user may create thousands of roles.
        """
        if not self.by_pod:
            return {}

        @cache
        def refuse_everywhere(reason: str) -> Mapping[str, str]:
            return dict.fromkeys(self.nodes, reason)

        def refused_nodes(answer: InTreeAnswer) -> Mapping[str, str]:
            reason = answer.everywhere
            if answer.missing_claims and not reason:
                reason = str(ClaimsMissing(answer.missing_claims, answer.more_missing_claims))
            return refuse_everywhere(reason) if reason else answer.refused

        return {
            role.name: refused_by_all(map(refused_nodes, self._distinct_answers(role)))
            for role in roles
            if role.members
        }

    def subrequests_by_role(self, roles: Iterable[Role]) -> Mapping[str, tuple[Subrequest, ...]]:
        """Return role → the subrequests by which members may get GPUs now."""
        cache, nodes = SubrequestCache(), self.nodes
        return {role.name: subrequests(role, self._distinct_answers(role), nodes, cache) for role in roles}

    def with_gpu_limits(self, request: Request, snapshot: Snapshot) -> Request:
        """Return the refined request with only as many GPUs of each node as other devices agree with."""
        by_role = {role.name: self._distinct_answers(role) for role in request.roles}
        return limit_by_other_devices(request, by_role, snapshot)

    def _answers_by_variant(self, role: Role, is_alone: bool) -> list[list[InTreeAnswer]]:
        """Return the answers that count together, for each variant of the role."""
        answers = self._distinct_answers(role)
        return [answers] if _stays_whole(role, is_alone) else [[answer] for answer in answers]

    def _variants(self, role: Role, is_alone: bool, cache: SubrequestCache) -> list[Role]:
        """Return the role's members as one role for each answer.

        A role with segments is not split, because segments consist of consecutive members. If a role has a
        scope of its own, each variant would choose its own domain. So such a role is not split for different
        scores. For other differences such a role is split only if `is_alone`: the gang has no other role and
        no running members. Then its scope becomes the gang's scope, so that all variants share one domain. A
        role that is not split has its first member's scores, and the GPUs that all of its members may have.
        """
        answers = self._answers(role) if role.required_scope is None else self._identical_answers(role)
        by_answer: dict[int, tuple[InTreeAnswer, list[Member]]] = {}
        for member, answer in zip(role.members, answers, strict=True):
            by_answer.setdefault(id(answer), (answer, []))[1].append(member)
        if len(by_answer) > 1 and _stays_whole(role, is_alone):
            whole_role = replace(role, scores=answers[0].scores)
            return [self._with_devices(whole_role, self._distinct_answers(role), cache)]
        variants = list[Role]()
        for answer, members in by_answer.values():
            variant = replace(role, members=tuple(members), room=dict(answer.room), scores=answer.scores)
            variants.append(self._with_devices(variant, (answer,), cache))
        return variants

    def _with_devices(self, role: Role, answers: Iterable[InTreeAnswer], cache: SubrequestCache) -> Role:
        """Return the role with the GPUs that all these answers allow.

        Members without GPUs may be asked about GPUs too: those of a claim that another member holds.
        """
        if not (role.gpus or role.slice):
            return role
        choices = subrequests(role, answers, self.nodes, cache)
        if len(choices) == 1 and not role.gpu_counts:
            return replace(role, matching=choices[0].matching)
        return replace(role, subrequests=choices)

    def _answers(self, role: Role) -> list[InTreeAnswer]:
        return [self.by_pod.get(member.uid, NOTHING) for member in role.members]

    def _identical_answers(self, role: Role) -> list[InTreeAnswer]:
        """Return the answers of the role's members; equal answers are one object."""
        first_answers = dict[int, InTreeAnswer]()
        kinds = (id(self.shared_answers.get(member.uid, NOTHING)) for member in role.members)
        pairs = zip(kinds, self._answers(role), strict=True)
        return [first_answers.setdefault(kind, answer) for kind, answer in pairs]

    def _distinct_answers(self, role: Role) -> list[InTreeAnswer]:
        """Return the different answers for the role's members."""
        return list({id(answer): answer for answer in self._identical_answers(role)}.values())


def _is_alone(request: Request) -> bool:
    return len(request.roles) == 1 and not request.running


def _stays_whole(role: Role, is_alone: bool) -> bool:
    """Return whether the role is not split because of its segments or its scope, as `_variants` explains."""
    return bool(role.segments) or (role.required_scope is not None and not is_alone)
