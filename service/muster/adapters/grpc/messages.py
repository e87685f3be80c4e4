"""Translate between messages of the wire and the types of `gangs`. Nothing is decided here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from betterproto2 import Message

from muster.adapters.grpc import reflection
from muster.adapters.grpc.generated.muster.v1 import (
    BindingFate,
    FilterRequest,
    FilterResponse,
    InTreeQuestion,
    Outcome,
    PermitRequest,
    PermitResponse,
    PlanRef,
    ReportInTreeResponse,
    ReserveRequest,
    ReserveResponse,
    ScoreRequest,
    ScoreResponse,
    UnreserveRequest,
    UnreserveResponse,
    Verdict,
    WatchResponse,
)
from muster.domain.printable import printable
from muster.domain.sentences import MAX_CHARACTERS
from muster.gangs.messages import calls, instructions

OUTCOMES = {
    instructions.Outcome.PLANNED: Outcome.PLANNED,
    instructions.Outcome.REFUSED: Outcome.REFUSED,
    instructions.Outcome.WITHDRAWN: Outcome.WITHDRAWN,
}
MEMBERS_OF_A_PART = 4096
"""Largest number of members in one response. A longer verdict or question is sent in parts of at most 1.3 MB.
"""
FATES = {
    BindingFate.NEVER_SENT: calls.BindingFate.NEVER_SENT,
    BindingFate.REFUSED: calls.BindingFate.REFUSED,
    BindingFate.UNKNOWN: calls.BindingFate.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Method:
    """The functions that read a call of the shim and write its answer.

    `call` raises ValueError or IndexError for a malformed request.
    """

    parse: Callable[[bytes], Any]
    call: Callable[[Any], calls.Call[Any]]
    response: Callable[[Any], Message]


def _plan(plan: PlanRef | None) -> calls.PlanRef:
    """Return the plan that a call names.

    Raises:
        ValueError: the call names no plan.
    """
    if plan is None or not plan.gang:
        raise ValueError("the call names no plan")
    return calls.PlanRef(plan.epoch, plan.gang, plan.generation)


def _unreserve(request: UnreserveRequest) -> calls.Unreserve:
    """Return the report of Unreserve. A Binding of unknown fate may have succeeded."""
    return calls.Unreserve(
        time.monotonic(),
        _plan(request.plan),
        member=request.member,
        node=request.node,
        fate=FATES.get(request.fate, calls.BindingFate.UNKNOWN),
        plugin=request.plugin,
        message=request.message,
        uid=request.uid,
    )


def verdict(push: instructions.PushVerdict, traceparent: str = "") -> Verdict:
    """Return the verdict as a message. `traceparent`: the parent of the shim's spans."""
    return Verdict(
        gang=push.gang,
        generation=push.generation,
        outcome=OUTCOMES[push.outcome],
        namespace=push.namespace,
        names=[name for name, _ in push.members],
        uids=[uid for _, uid in push.members],
        required=push.required,
        reason=printable(push.reason, MAX_CHARACTERS),
        traceparent=traceparent,
    )


def in_tree_question(ask: instructions.AskInTree) -> InTreeQuestion:
    """Return the in-tree question as a message."""
    return InTreeQuestion(
        gang=ask.gang,
        question=ask.question,
        namespace=ask.namespace,
        names=[name for name, _ in ask.pods],
        uids=[uid for _, uid in ask.pods],
    )


def parts(response: WatchResponse) -> Iterator[WatchResponse]:
    """Yield the response in parts of `MEMBERS_OF_A_PART` members. Most responses have one part."""
    message = response.verdict if response.verdict is not None else response.in_tree_question
    members = 0 if message is None else len(message.names)
    if message is None or members <= MEMBERS_OF_A_PART:
        yield response
        return
    for begin in range(0, members, MEMBERS_OF_A_PART):
        end = begin + MEMBERS_OF_A_PART
        part = replace(message, names=message.names[begin:end], uids=message.uids[begin:end])
        if isinstance(part, Verdict):
            yield WatchResponse(verdict=part, more=end < members)
        else:
            yield WatchResponse(in_tree_question=part, more=end < members)


def _in_tree_report(report: Any) -> calls.InTreeReport:
    """Return the shim's report. `report` is a ReportInTreeRequest of `reflection.message_class`.

    Raises:
        IndexError: an index points at nothing.
        ValueError: the report names no gang, or a column does not have one byte for each node.
    """
    about = _plan(PlanRef(epoch=report.epoch, gang=report.gang))
    nodes = tuple(report.nodes)

    def column(values_by_number: tuple[Any, ...]) -> Callable[[bytes], dict[str, Any]]:
        """Return a function that reads a column: one byte for each node, the number of the node's value. 0
        means no value."""

        @cache
        def read(numbers: bytes) -> dict[str, Any]:
            pairs = zip(nodes, numbers, strict=True) if numbers else ()
            return {node: values_by_number[number - 1] for node, number in pairs if number}

        return read

    amounts = column(tuple(range(1, 256)))
    refused = column(tuple(map(_reason_of, report.refusals)))
    devices = column(tuple(frozenset(device_set.names) for device_set in report.device_sets))
    groups_of_sets = tuple(tuple(_groups(device_set)) for device_set in report.device_sets)
    all_groups = column(groups_of_sets)

    @cache
    def groups(numbers: bytes) -> dict[str, tuple[calls.AgreeingGroup, ...]]:
        return {node: node_groups for node, node_groups in all_groups(numbers).items() if node_groups}

    def answer(pods_answer: Any) -> tuple[tuple[int, ...], calls.InTreeAnswer]:
        return tuple(pods_answer.pods), calls.InTreeAnswer(
            refused=refused(pods_answer.refused),
            room=amounts(pods_answer.room),
            everywhere=_reason_of(pods_answer.everywhere) if pods_answer.HasField("everywhere") else "",
            missing_claims=tuple(pods_answer.missing_claims),
            more_missing_claims=pods_answer.more_missing_claims,
            scores=amounts(pods_answer.scores),
            devices=tuple(map(devices, (pods_answer.devices, *pods_answer.more_devices)))
            if pods_answer.devices
            else (),
            groups=tuple(map(groups, (pods_answer.devices, *pods_answer.more_devices)))
            if any(groups_of_sets)
            else (),
        )

    answers = tuple(map(answer, report.answers))
    return calls.InTreeReport(
        time.monotonic(), about.epoch, about.gang, report.question, answers, report.part, report.more
    )


def _groups(device_set: Any) -> Iterator[calls.AgreeingGroup]:
    for group in device_set.groups:
        yield calls.AgreeingGroup(frozenset(device_set.names[index] for index in group.devices), group.most)


def _reason_of(refusal: Any) -> str:
    return f"{refusal.plugin}: {refusal.reason}" if refusal.plugin else refusal.reason


def _filter_response(answer: calls.FilterAnswer) -> FilterResponse:
    """Return the answer as a message: each node once, and candidates as indices of nodes."""
    index: dict[str, int] = {}
    offsets, candidates = [0], list[int]()
    for nodes in answer.candidates:
        candidates.extend(index.setdefault(node, len(index)) for node in nodes)
        offsets.append(len(candidates))
    if not answer.candidates:
        offsets = []
    devices = [device for member_devices in answer.devices for device in member_devices]
    return FilterResponse(
        nodes=list(index),
        offsets=offsets,
        candidates=candidates,
        reason=answer.reason,
        devices=devices,
        device_counts=[len(member_devices) for member_devices in answer.devices] if devices else [],
        subrequests=list(answer.subrequests) if devices and any(answer.subrequests) else [],
        device_memory=list(answer.memory),
    )


def _permit_response(answer: calls.PermitAnswer) -> PermitResponse:
    """Return the answer as a message: each key once, in order of first use. Values follow member by member,
    "" for a missing value."""
    keys = list(dict.fromkeys(key for member in answer.annotations for key in member))
    values = [member.get(key, "") for member in answer.annotations for key in keys]
    return PermitResponse(
        allowed=answer.allowed,
        reason=answer.reason,
        annotation_keys=keys,
        annotation_values=values,
        bind_within_ms=max(1, int(answer.bind_within_s * 1000)) if answer.allowed else 0,
    )


METHODS: Mapping[str, Method] = {
    "Filter": Method(
        FilterRequest.parse,
        lambda request: calls.Filter(time.monotonic(), _plan(request.plan)),
        _filter_response,
    ),
    "Score": Method(
        ScoreRequest.parse,
        lambda request: calls.Score(time.monotonic(), _plan(request.plan)),
        # The order is that of Filter's candidates.
        lambda answer: ScoreResponse(scores=[score for scores in answer.scores for score in scores]),
    ),
    "Reserve": Method(
        ReserveRequest.parse,
        lambda request: calls.Reserve(time.monotonic(), _plan(request.plan), request.member, request.node),
        lambda answer: ReserveResponse(claimed=answer.claimed, reason=answer.reason),
    ),
    "Permit": Method(
        PermitRequest.parse,
        lambda request: calls.Permit(time.monotonic(), _plan(request.plan), time.time_ns()),
        _permit_response,
    ),
    "Unreserve": Method(UnreserveRequest.parse, _unreserve, lambda _: UnreserveResponse()),
    "ReportInTree": Method(
        lambda data: reflection.message_class("ReportInTreeRequest").FromString(data),
        _in_tree_report,
        lambda _: ReportInTreeResponse(),
    ),
}
"""Name of the method → the shim's call."""
