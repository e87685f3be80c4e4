"""Run the Coordinator: pass inputs to it in order, carry its instructions out, and answer the shim's calls in
between.

Changes reach the Coordinator through one bounded inbox. Calls of the shim do not wait behind these changes.
They are answered between two inputs, on the same thread. So the Coordinator never handles two things at the
same time, and a call keeps its deadline in a burst of ten thousand pod changes. Sessions go through the
inbox, so that verdicts of an older input never reach a newer session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from muster.adapters.grpc import messages
from muster.adapters.grpc.generated.muster import v1
from muster.adapters.grpc.server import Session, SessionEnd
from muster.adapters.telemetry.attempts import Attempts
from muster.adapters.telemetry.metrics import Metrics, Phases
from muster.adapters.turns import SLICE_S, in_parts
from muster.domain.node import Usage
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages import calls
from muster.gangs.messages.inputs import Input, SessionClosed, SessionOpened, Tick
from muster.gangs.messages.instructions import AskInTree, Instruction, Moved, PushVerdict
from muster.gangs.reporting.places import Owner
from muster.gangs.reporting.tally import Tally

MAX_PER_CHUNK = 128
"""Number of nodes or gangs that are read for a client without a pause."""


class ControlLoop:
    """Passes inputs to the gangs, and carries out their instructions. `run` ends only by cancellation, or by
    a defect in the Coordinator. After a defect its state can't be trusted, and a restart rebuilds the state
    from the bound pods.

    Other classes may read `gangs`. Only this class changes it. `carry_out`: kind of instruction → the
    function that carries it out. This class carries out moves, and instructions for the shim. `on_move`
    gets each move of a gang. `on_lead` is called when this replica begins to lead.
    """

    def __init__(
        self,
        gangs: Coordinator,
        metrics: Metrics,
        attempts: Attempts,
        carry_out: Mapping[type[Any], Callable[[Any], None]],
        in_flight: Callable[[Iterable[tuple[str, str, dict[str, str]]]], tuple[Usage, ...]],
        inbox: int,
        *,
        on_move: Callable[[Moved], None] = lambda _: None,
        on_lead: Callable[[], None] = lambda: None,
    ) -> None:
        self.gangs = gangs
        self._metrics = metrics
        self._attempts = attempts
        self.carried_out_by: dict[type[Any], Callable[[Any], None]] = {
            **carry_out,
            PushVerdict: self._push,
            AskInTree: self._ask,
            Moved: self._note_move,
        }
        self.phases = Phases(metrics)
        self._on_move = on_move
        self._on_lead = on_lead
        self._in_flight = in_flight
        self._inbox: asyncio.Queue[Callable[[], None] | Input] = asyncio.Queue(inbox)
        self._synced = asyncio.Event()
        self._session: Session | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    # --- inputs --------------------------------------------------------------------------------------

    async def put(self, message: Input) -> None:
        """Queue an input. Wait while the inbox is full."""
        await self._inbox.put(message)

    async def run(self) -> None:
        """Handle inputs one at a time until cancelled. No other task changes the gangs."""
        while True:
            self._handle_item(await self._inbox.get())
            until = time.monotonic() + SLICE_S
            while not self._inbox.empty() and time.monotonic() < until:
                self._handle_item(self._inbox.get_nowait())
            self._metrics.inbox.set(self._inbox.qsize())
            self._arm_timer()
            await asyncio.sleep(0)

    async def sync(self, message: Input) -> None:
        """Queue `Synced`. Once it is handled, all gangs are known and sessions may begin."""
        await self._run_after_inbox(lambda: self._carry_out(self.gangs.handle(message)))
        while self.gangs.catches_up:
            await self._run_after_inbox(lambda: self._carry_out(self.gangs.handle(Tick(time.monotonic()))))
        self._synced.set()

    @property
    def is_synced(self) -> bool:
        """Return whether the cluster has been seen in full."""
        return self._synced.is_set()

    async def summary(self, namespace: str = "", name: str = "") -> list[Any]:
        """Return all gangs. The loop does other work in between. With a `name`, return only gangs with this
        name, or with a pod of this name."""
        views: list[Any] = []
        keys = self.gangs.keys_of(namespace, name) if name else self.gangs.keys()
        async for key in in_parts(keys):
            views += self.gangs.summary((key,))  # counts its members again if they have changed
        return views

    async def count(self) -> Tally:
        """Count all gangs as `tally` does. The loop does other work in between."""
        tally, keys = self.gangs.tally(()), self.gangs.keys()
        for begin in range(0, len(keys), MAX_PER_CHUNK):
            self.gangs.tally(keys[begin : begin + MAX_PER_CHUNK], tally)
            await asyncio.sleep(0)
        return tally

    async def owners(self, nodes: Sequence[str]) -> dict[str, tuple[Owner, ...]]:
        """Return the gangs that have the GPUs of these nodes. The loop does other work in between."""
        owners: dict[str, tuple[Owner, ...]] = {}
        for begin in range(0, len(nodes), MAX_PER_CHUNK):
            chunk = nodes[begin : begin + MAX_PER_CHUNK]
            owners.update(zip(chunk, self.gangs.owners(chunk), strict=True))
            await asyncio.sleep(0)
        return owners

    @property
    def leads(self) -> bool:
        """Return whether a shim is connected. Only the leader has a shim."""
        return self._session is not None

    def shut_down(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.end(SessionEnd.SHUTDOWN)
        if self._timer is not None:
            self._timer.cancel()

    def _handle_item(self, item: Callable[[], None] | Input) -> None:
        if callable(item):
            item()
        else:
            self._metrics.watch_lag.observe(max(0.0, time.monotonic() - item.now))
            self._carry_out(self.gangs.handle(item))

    async def _run_after_inbox(self, action: Callable[[], None]) -> None:
        """Call `action` after all inputs in the inbox. Return once `action` has returned."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def do() -> None:
            action()
            if not done.cancelled():
                done.set_result(None)

        await self._inbox.put(do)
        await done

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            self.carried_out_by[type(instruction)](instruction)

    def _note_move(self, move: Moved) -> None:
        self.phases.note_move(move, self._attempts.exported_trace_id(move.gang))
        self._attempts.note_move(move)
        self._on_move(move)

    def _push(self, verdict: PushVerdict) -> None:
        traceparent = self._attempts.traceparent(verdict.gang)
        response = v1.WatchResponse(verdict=messages.verdict(verdict, traceparent))
        delivered = self._session is not None and self._session.push(response)
        self._metrics.verdict(verdict.outcome.value, delivered=delivered)

    def _ask(self, question: AskInTree) -> None:
        self._attempts.note_question(question.gang, time.monotonic())
        if self._session is not None:
            self._session.push(v1.WatchResponse(in_tree_question=messages.in_tree_question(question)))

    def _arm_timer(self) -> None:
        """Set the only timer to the earliest deadline. The timer puts a Tick."""
        due = self.gangs.next_deadline()
        if self._timer is not None and (due is None or due != self._due):
            self._timer.cancel()
            self._timer = None
        if due is not None and self._timer is None:
            # the loop's clock is time.monotonic, that of the inputs
            self._timer = asyncio.get_running_loop().call_at(due, self._on_timer)
            self._due = due

    def _on_timer(self) -> None:
        self._timer = None
        if not self._inbox.full():  # when it is, the timer is armed again after what is in it
            self._inbox.put_nowait(Tick(time.monotonic()))

    # --- the shim (`grpc.server.GangCalls`) ----------------------------------------------------------

    async def wait_for_sync(self) -> None:
        """Return once the cluster has been seen in full."""
        await self._synced.wait()

    async def open_session(self, session: Session, in_flight: Sequence[Any]) -> None:
        """Make this session the current session, and end the earlier session."""

        def begin() -> None:
            if self._session is not None:
                self._session.end(SessionEnd.REPLACED)
            self._session = session
            bindings = ((binding.uid, binding.node, dict(binding.annotations)) for binding in in_flight)
            usages = self._in_flight(bindings)
            begun = SessionOpened(time.monotonic(), session.epoch, usages, session.answers_in_tree)
            self._carry_out(self.gangs.handle(begun))
            self._on_lead()

        await self._run_after_inbox(begin)

    async def close_session(self, session: Session) -> None:
        """End the session, unless another session has begun."""

        def finish() -> None:
            if self._session is session:
                self._session = None
                self._carry_out(self.gangs.handle(SessionClosed(time.monotonic(), session.epoch)))

        await self._inbox.put(finish)

    def answer(self, call: calls.Call[calls.CallAnswer]) -> calls.CallAnswer:
        """Answer a call, before the inputs in the inbox.

        Raises:
            calls.StaleError: the call names a plan or question that is not current.
        """
        if isinstance(call, calls.Filter):
            self._attempts.note_answer(call.plan.gang)
        answer, instructions = self.gangs.answer(call)
        self._carry_out(instructions)
        self._arm_timer()
        return answer
