"""The server over a real unix socket, with a real client, and gangs that a test scripts."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from local_cluster.patience import HANG_S
from muster.adapters.grpc import messages, reflection
from muster.adapters.grpc.endpoint import Endpoint
from muster.adapters.grpc.generated.muster import v1
from muster.adapters.grpc.server import MESSAGE_LIMIT, GangServer, Session, SessionEnd
from muster.adapters.telemetry.metrics import Metrics
from muster.gangs.messages import calls, instructions

BACKLOG = 5_000
PART = messages.MEMBERS_OF_A_PART
PLAN = v1.PlanRef(epoch=3, gang="default/ack/g", generation=7)


class Scripted:
    """Gangs that answer what the test put into `answers`; an exception in it is raised."""

    def __init__(self) -> None:
        self.answers: dict[type[calls.Call[Any]], Any] = {}
        self.asked: list[Any] = []
        self.began = time.monotonic()
        self.ready = asyncio.Event()
        self.ready.set()
        self.session: Session | None = None
        self.in_flight: Sequence[Any] = ()
        self.closed_sessions: asyncio.Queue[Session] = asyncio.Queue()

    def answer(self, call: calls.Call[Any]) -> Any:
        assert self.began <= call.now <= time.monotonic()
        self.asked.append(call)
        answer = self.answers[type(call)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def wait_for_sync(self) -> None:
        await self.ready.wait()

    async def open_session(self, session: Session, in_flight: Sequence[Any]) -> None:
        if self.session is not None:
            self.session.end(SessionEnd.REPLACED)
        self.session, self.in_flight = session, in_flight

    async def close_session(self, session: Session) -> None:
        self.closed_sessions.put_nowait(session)


class Shim:
    """A client of the service, as the Go plugin is one."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def watch(
        self, session: str = "s", in_flight: Sequence[v1.InFlightBinding] = (), answers_in_tree: bool = False
    ) -> Any:
        call = self.channel.unary_stream("/muster.v1.GangService/Watch", bytes, v1.WatchResponse.parse)
        request = v1.WatchRequest(session=session, in_flight=list(in_flight), answers_in_tree=answers_in_tree)
        return call(request, timeout=HANG_S)

    async def call(self, method: str, request: Any, response: Any) -> Any:
        call = self.channel.unary_unary(f"/muster.v1.GangService/{method}", bytes, response.parse)
        return await call(request, timeout=HANG_S)


def refusal(gang: str, **fields: Any) -> v1.WatchResponse:
    return v1.WatchResponse(verdict=v1.Verdict(gang=gang, outcome=v1.Outcome.REFUSED, **fields))


def joined(parts: Sequence[v1.WatchResponse]) -> v1.WatchResponse:
    """Join parts as the shim does: protobuf appends lists, and takes the last of each other field."""
    response = reflection.message_class("WatchResponse")()
    for part in parts:
        response.more = False
        response.MergeFromString(bytes(part))
    return v1.WatchResponse.parse(response.SerializeToString())


async def whole(stream: Any) -> v1.WatchResponse:
    """Read one response with all its parts."""
    parts = [await stream.read()]
    while parts[-1].more:
        parts.append(await stream.read())
    return joined(parts)


class Bench:
    def __init__(self, gangs: Scripted, server: GangServer, metrics: Metrics, shim: Shim) -> None:
        self.gangs, self.server, self.metrics, self.shim = gangs, server, metrics, shim


@pytest.fixture
async def bench(short_folder: Path) -> AsyncIterator[Bench]:
    gangs, metrics = Scripted(), Metrics()
    endpoint = Endpoint(short_folder / "run" / "s")
    server = GangServer(gangs, endpoint, metrics)
    await server.start()
    options = [("grpc.max_receive_message_length", MESSAGE_LIMIT)]
    async with grpc.aio.insecure_channel(endpoint.address, options=options) as channel:
        yield Bench(gangs, server, metrics, Shim(channel))
    await server.stop()


# --- the calls -----------------------------------------------------------------------------------------


def test_each_call_of_the_contract_has_its_message() -> None:
    service = reflection.pool().FindServiceByName("muster.v1.GangService")
    assert {method.name for method in service.methods} == {"Watch", *messages.METHODS}


async def test_filter_lays_candidates_out_flat(bench: Bench) -> None:
    bench.gangs.answers[calls.Filter] = calls.FilterAnswer((("b", "a"), ("c",), ("a", "c")))
    answer = await bench.shim.call("Filter", v1.FilterRequest(plan=PLAN), v1.FilterResponse)
    members = [
        [answer.nodes[index] for index in answer.candidates[begin:end]]
        for begin, end in zip(answer.offsets, answer.offsets[1:], strict=False)
    ]
    assert members == [["b", "a"], ["c"], ["a", "c"]]
    assert len(answer.offsets) == 4
    assert bench.gangs.asked == [calls.Filter(ANY, calls.PlanRef(3, "default/ack/g", 7))]


async def test_the_log_line_of_a_call_that_failed_carries_the_id_of_the_gangs_trace(bench: Bench) -> None:
    bench.gangs.answers[calls.Filter] = RuntimeError("oops")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    call = bench.shim.channel.unary_unary("/muster.v1.GangService/Filter", bytes, v1.FilterResponse.parse)
    metadata = (("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"),)
    with capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError):
        await call(v1.FilterRequest(plan=PLAN), timeout=HANG_S, metadata=metadata)
    assert [(line["event"], line["trace_id"], line["gang"]) for line in lines] == [
        ("call failed", trace_id, "default/ack/g")
    ]


async def test_filter_of_a_refused_gang_has_a_reason_and_no_nodes(bench: Bench) -> None:
    bench.gangs.answers[calls.Filter] = calls.FilterAnswer(reason="needs 4 GPUs")
    answer = await bench.shim.call("Filter", v1.FilterRequest(plan=PLAN), v1.FilterResponse)
    assert answer == v1.FilterResponse(reason="needs 4 GPUs")


@pytest.mark.parametrize(("numbers", "sent"), [((0, 2), [0, 2]), ((0, 0), []), ((), [])])
async def test_filter_names_devices_and_subrequests_member_by_member(
    bench: Bench, numbers: tuple[int, ...], sent: list[int]
) -> None:
    bench.gangs.answers[calls.Filter] = calls.FilterAnswer(
        (("a",), ("b",)), devices=(("gpu/a/d0",), ("gpu/b/d1", "gpu/b/d0")), subrequests=numbers
    )
    answer = await bench.shim.call("Filter", v1.FilterRequest(plan=PLAN), v1.FilterResponse)
    assert (answer.devices, answer.device_counts) == (["gpu/a/d0", "gpu/b/d1", "gpu/b/d0"], [1, 2])
    assert answer.subrequests == sent


async def test_score_is_parallel_to_the_candidates(bench: Bench) -> None:
    bench.gangs.answers[calls.Score] = calls.ScoreAnswer(((100, 60), (100,)))
    answer = await bench.shim.call("Score", v1.ScoreRequest(plan=PLAN), v1.ScoreResponse)
    assert answer.scores == [100, 60, 100]


async def test_reserve_names_member_and_node(bench: Bench) -> None:
    bench.gangs.answers[calls.Reserve] = calls.ReserveAnswer(False, "node b is full")
    request = v1.ReserveRequest(plan=PLAN, member=1, node="b")
    answer = await bench.shim.call("Reserve", request, v1.ReserveResponse)
    assert (answer.claimed, answer.reason) == (False, "node b is full")
    assert (bench.gangs.asked[0].member, bench.gangs.asked[0].node) == (1, "b")


async def test_permit_lays_annotations_out_member_by_member(bench: Bench) -> None:
    bench.gangs.answers[calls.Permit] = calls.PermitAnswer(
        True, annotations=({"x": "1", "y": "2"}, {}, {"y": "3", "z": "4"})
    )
    answer = await bench.shim.call("Permit", v1.PermitRequest(plan=PLAN), v1.PermitResponse)
    assert answer.annotation_keys == ["x", "y", "z"]
    assert answer.annotation_values == ["1", "2", "", "", "", "", "", "3", "4"]
    assert abs(bench.gangs.asked[0].wall_ns - time.time_ns()) < 1e10


@pytest.mark.parametrize(
    ("fate", "means"),
    [
        (v1.BindingFate.NEVER_SENT, calls.BindingFate.NEVER_SENT),
        (v1.BindingFate.REFUSED, calls.BindingFate.REFUSED),
        (v1.BindingFate.UNKNOWN, calls.BindingFate.UNKNOWN),
        (v1.BindingFate.UNSPECIFIED, calls.BindingFate.UNKNOWN),
        (v1.BindingFate(99), calls.BindingFate.UNKNOWN),
    ],
)
async def test_unreserve_takes_an_unknown_fate_for_the_careful_one(
    bench: Bench, fate: v1.BindingFate, means: calls.BindingFate
) -> None:
    bench.gangs.answers[calls.Unreserve] = None
    request = v1.UnreserveRequest(plan=PLAN, member=2, node="b", fate=fate, plugin="NodePorts", message="m")
    await bench.shim.call("Unreserve", request, v1.UnreserveResponse)
    about = calls.PlanRef(3, "default/ack/g", 7)
    assert bench.gangs.asked == [calls.Unreserve(ANY, about, 2, "b", means, "NodePorts", "m")]


REFUSALS = {
    "a stale plan": (calls.StaleError("epoch 3 is over"), "FAILED_PRECONDITION", "epoch 3 is over"),
    "a member beyond the gang": (IndexError("member 9 of 2"), "INVALID_ARGUMENT", "member 9 of 2"),
    "arguments without sense": (ValueError("no node"), "INVALID_ARGUMENT", "no node"),
    "a defect": (RuntimeError("oops"), "INTERNAL", "oops"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_errors_have_a_code_and_a_sentence(bench: Bench, case: str) -> None:
    error, code, text = REFUSALS[case]
    bench.gangs.answers[calls.Permit] = error
    with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
        await bench.shim.call("Permit", v1.PermitRequest(plan=PLAN), v1.PermitResponse)
    assert caught.value.code().name == code
    assert bench.metrics.value("muster_call_seconds_count", method="Permit", code=code) == 1


def in_tree_report() -> v1.ReportInTreeRequest:
    first = v1.InTreeAnswer(
        pods=[0, 2],
        refused=b"\2\0\1",
        room=b"\0\3\0",
        scores=b"\7\144\0",
        devices=b"\0\1\2",
        more_devices=[b"\2\0\0"],
    )
    everywhere = v1.InTreeRefusal(plugin="VolumeBinding", reason="unbound")
    second = v1.InTreeAnswer(pods=[1], everywhere=everywhere, missing_claims=["data"], more_missing_claims=7)
    return v1.ReportInTreeRequest(
        epoch=3,
        gang="default/ack/g",
        question=9,
        nodes=["a", "b", "c"],
        refusals=[v1.InTreeRefusal(plugin="VolumeZone", reason="zone"), v1.InTreeRefusal(reason="full")],
        answers=[first, second],
        device_sets=[v1.InTreeDevices(names=["gpu/d0"]), v1.InTreeDevices(names=["gpu/d0", "gpu/p/d1"])],
        part=2,
        more=True,
    )


async def test_an_in_tree_report_names_nodes_plugins_and_reasons(bench: Bench) -> None:
    bench.gangs.answers[calls.InTreeReport] = None
    await bench.shim.call("ReportInTree", in_tree_report(), v1.ReportInTreeResponse)
    first = calls.InTreeAnswer({"a": "full", "c": "VolumeZone: zone"}, {"b": 3})
    sets = {"b": frozenset({"gpu/d0"}), "c": frozenset({"gpu/d0", "gpu/p/d1"})}
    first = dataclasses.replace(first, devices=(sets, {"a": frozenset({"gpu/d0", "gpu/p/d1"})}))
    second = calls.InTreeAnswer(
        everywhere="VolumeBinding: unbound", missing_claims=("data",), more_missing_claims=7
    )
    report = calls.InTreeReport(ANY, 3, "default/ack/g", 9, (((0, 2), first), ((1,), second)), 2, True)
    assert bench.gangs.asked == [report]
    assert [answer.scores for _, answer in bench.gangs.asked[0].answers] == [{"b": 100, "a": 7}, {}]


async def test_an_in_tree_report_has_groups_that_are_enough_for_few_pods(bench: Bench) -> None:
    bench.gangs.answers[calls.InTreeReport] = None
    report = in_tree_report()
    names = ["gpu/d0", "gpu/d1", "gpu/d2", "gpu/d3"]
    groups = [v1.InTreeGroup(devices=[0, 1], most=1), v1.InTreeGroup(devices=[3], most=2)]
    report.device_sets[1] = v1.InTreeDevices(names=names, groups=groups)
    await bench.shim.call("ReportInTree", report, v1.ReportInTreeResponse)
    few = (
        calls.AgreeingGroup(frozenset({"gpu/d0", "gpu/d1"}), 1),
        calls.AgreeingGroup(frozenset({"gpu/d3"}), 2),
    )
    groups = [answer.groups for _, answer in bench.gangs.asked[0].answers]
    assert groups == [({"c": few}, {"a": few}), ({},)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"refused": b"\1"},
        {"refused": b"\0\0\3"},
        {"refused": b"\0\0\0\0"},
        {"room": b"\1\1"},
        {"scores": b"\1\1\1\1"},
        {"devices": b"\1\1"},
        {"more_devices": [b"\3\0\0"]},
    ],
)
async def test_an_in_tree_report_that_points_at_nothing_is_refused(
    bench: Bench, wrong: dict[str, Any]
) -> None:
    report = in_tree_report()
    report.answers[0] = dataclasses.replace(report.answers[0], **wrong)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.shim.call("ReportInTree", report, v1.ReportInTreeResponse)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_in_tree_report_with_a_group_of_no_device_is_refused(bench: Bench) -> None:
    report = in_tree_report()
    report.device_sets[0].groups = [v1.InTreeGroup(devices=[1], most=1)]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.shim.call("ReportInTree", report, v1.ReportInTreeResponse)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_in_tree_report_that_is_late_is_stale(bench: Bench) -> None:
    bench.gangs.answers[calls.InTreeReport] = calls.StaleError("question 9 is not the current one")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.shim.call("ReportInTree", in_tree_report(), v1.ReportInTreeResponse)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("plan", [None, v1.PlanRef(epoch=1)])
async def test_a_call_without_a_plan_is_refused(bench: Bench, plan: v1.PlanRef | None) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="names no plan") as caught:
        await bench.shim.call("Filter", v1.FilterRequest(plan=plan), v1.FilterResponse)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_gang_of_thousands_fits_in_a_message(bench: Bench) -> None:
    nodes = tuple(f"node-{number:05}" for number in range(100))
    bench.gangs.answers[calls.Filter] = calls.FilterAnswer((nodes,) * 2048)
    answer = await bench.shim.call("Filter", v1.FilterRequest(plan=PLAN), v1.FilterResponse)
    assert len(answer.candidates) == 204_800


# --- sessions ------------------------------------------------------------------------------------------


async def test_a_session_begins_with_its_epoch_and_then_gets_verdicts(bench: Bench) -> None:
    binding = v1.InFlightBinding(namespace="n", name="p", uid="u", node="a", annotations={"k": "v"})
    stream = bench.shim.watch(in_flight=[binding])
    opened = await stream.read()
    assert bench.gangs.session is not None
    assert opened.session_opened.epoch == bench.gangs.session.epoch > 0
    assert [
        v1.InFlightBinding.parse(in_flight.SerializeToString()) for in_flight in bench.gangs.in_flight
    ] == [binding]
    verdict = v1.Verdict(gang="g", generation=2, outcome=v1.Outcome.PLANNED, names=["p"], uids=["u"])
    bench.gangs.session.push(v1.WatchResponse(verdict=verdict))
    assert (await stream.read()).verdict == verdict


async def test_a_session_knows_whether_its_shim_answers_questions_and_hands_them_on(bench: Bench) -> None:
    stream = bench.shim.watch(answers_in_tree=True)
    await stream.read()
    assert bench.gangs.session is not None
    assert bench.gangs.session.answers_in_tree
    ask = instructions.AskInTree("ns/ack/g", 3, "ns", (("a", "u-a"), ("b", "u-b")))
    bench.gangs.session.push(v1.WatchResponse(in_tree_question=messages.in_tree_question(ask)))
    question = v1.InTreeQuestion("ns/ack/g", 3, "ns", ["a", "b"], ["u-a", "u-b"])
    assert (await stream.read()).in_tree_question == question


async def test_no_session_before_the_cluster_has_been_seen(bench: Bench) -> None:
    bench.gangs.ready.clear()
    stream = bench.shim.watch()
    reading = asyncio.ensure_future(stream.read())
    await asyncio.wait({reading}, timeout=0.1)
    assert not reading.done()
    bench.gangs.ready.set()
    assert (await reading).session_opened is not None


async def test_a_new_session_ends_the_one_before_with_a_higher_epoch(bench: Bench) -> None:
    first = bench.shim.watch("first")
    epoch = (await first.read()).session_opened.epoch
    second = bench.shim.watch("second")
    assert (await second.read()).session_opened.epoch > epoch
    with pytest.raises(grpc.aio.AioRpcError, match=f"session {epoch} ended: replaced") as caught:
        await first.read()
    assert caught.value.code() is grpc.StatusCode.ABORTED
    closed = await asyncio.wait_for(bench.gangs.closed_sessions.get(), HANG_S)
    assert (closed.epoch, closed.cause) == (epoch, SessionEnd.REPLACED)


async def test_a_shim_that_leaves_closes_its_session(bench: Bench) -> None:
    stream = bench.shim.watch()
    await stream.read()
    stream.cancel()
    closed = await asyncio.wait_for(bench.gangs.closed_sessions.get(), HANG_S)
    assert closed.cause is SessionEnd.SHIM_LEFT


async def test_a_shim_that_does_not_read_loses_its_session_and_nobody_waits(short_folder: Path) -> None:
    gangs, metrics, endpoint = Scripted(), Metrics(), Endpoint(short_folder / "run" / "s")
    server = GangServer(gangs, endpoint, metrics, stalled_s=0.1)
    await server.start()
    async with grpc.aio.insecure_channel(endpoint.address) as channel:
        stream = Shim(channel).watch()
        await stream.read()
        session = gangs.session
        assert session is not None
        for number in range(100):  # more than the transport's window
            assert session.push(refusal(f"g{number}", reason="x" * 1_000_000)) or session.cause
        assert await asyncio.wait_for(gangs.closed_sessions.get(), HANG_S) is session
        assert session.cause is SessionEnd.SLOW
        assert metrics.value("muster_sessions_total", cause="slow") == 1
    await server.stop()


async def test_a_session_lives_with_any_number_of_refused_gangs(bench: Bench) -> None:
    stream = bench.shim.watch()
    await stream.read()
    session = bench.gangs.session
    assert session is not None
    for number in range(BACKLOG):
        assert session.push(refusal(f"g{number}"))
    gangs = [(await stream.read()).verdict.gang for _ in range(BACKLOG)]
    assert gangs == [f"g{number}" for number in range(BACKLOG)]
    assert session.cause is None


@pytest.mark.parametrize("kind", ["verdict", "in_tree_question"])
async def test_what_a_session_says_of_a_gang_may_exceed_the_limit_of_a_message(
    bench: Bench, kind: str
) -> None:
    """From a review: the verdict of 57,100 pods with long names ended each session of the shim."""
    stream = bench.shim.watch()
    await stream.read()
    session = bench.gangs.session
    assert session is not None
    names = [f"{'x' * 247}{number:06}" for number in range(57_100)]
    uids = [f"00000000-0000-0000-0000-{number:012}" for number in range(57_100)]
    response = refusal("huge", names=names, uids=uids)
    if kind == "in_tree_question":
        question = v1.InTreeQuestion("huge", 3, "ns", names, uids)
        response = v1.WatchResponse(in_tree_question=question)
    assert len(bytes(response)) > MESSAGE_LIMIT
    session.push(response)
    session.push(refusal("other"))
    assert await whole(stream) == response
    assert (await stream.read()).verdict.gang == "other"


@pytest.mark.parametrize("members", [0, 1, PART - 1, PART, PART + 1, 3 * PART])
def test_parts_are_bounded_and_make_up_the_whole(members: int) -> None:
    names = [f"p{number}" for number in range(members)]
    verdict = refusal("g", names=names, uids=names, reason="nothing fits")
    parts = list(messages.parts(verdict))
    assert all(part.verdict is not None and len(part.verdict.names) <= PART for part in parts)
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    assert joined(parts) == verdict
    assert len(parts) == max(1, -(-members // PART))


async def test_of_each_gang_only_the_last_verdict_waits() -> None:
    session = Session(epoch=1)
    opened = v1.WatchResponse(session_opened=v1.SessionOpened(epoch=1))
    assert session.push(opened)
    for generation in range(10):
        for gang in ("a", "b"):
            verdict = v1.Verdict(gang=gang, generation=generation)
            assert session.push(v1.WatchResponse(verdict=verdict))
    assert not session.ended.is_set()
    assert await session.next_response() == opened
    responses = [await session.next_response() for _ in range(2)]
    assert [(r.verdict.gang, r.verdict.generation) for r in responses if r and r.verdict] == [
        ("a", 9),
        ("b", 9),
    ]


# --- health, reflection, the socket --------------------------------------------------------------------


async def test_health_follows_the_sync(bench: Bench) -> None:
    health = health_pb2_grpc.HealthStub(bench.shim.channel)
    for service in ("", "muster.v1.GangService"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    await bench.server.report_serving()
    for service in ("", "muster.v1.GangService"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_knows_the_contract(bench: Bench) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(bench.shim.channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="muster.v1.GangService"),
    ]
    listed, file = [answer async for answer in stub.ServerReflectionInfo(iter(requests))]
    assert "muster.v1.GangService" in {service.name for service in listed.list_services_response.service}
    assert file.file_descriptor_response.file_descriptor_proto


def test_descriptors_and_generated_messages_are_of_the_same_contract() -> None:
    pool = reflection.pool()
    file = pool.FindFileByName("muster/v1/gang_service.proto")
    for name, message in file.message_types_by_name.items():
        generated = dataclasses.fields(getattr(v1, name))
        assert {field.name for field in message.fields} == {field.name for field in generated}, name
