"""One gang, step by step: what each thing that can happen does in each phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate
from tests.gangs.world import World, foreign, node, pod, stand

PAIR = (pod("p0"), pod("p1"))


@dataclass(frozen=True)
class Case:
    """`do` happens to a world with nodes a and b in which the gang g of two stands at `at`."""

    at: str
    do: Callable[[World], object]
    phase: str
    held: int = 0
    verdicts: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


def then(*steps: Callable[[World], object]) -> Callable[[World], None]:
    """These, one after another."""

    def do(world: World) -> None:
        for step in steps:
            step(world)

    return do


def cordon(world: World) -> None:
    world.send(inputs.NodeSeen(world.now, node(world.home(0), unschedulable=True)))


CASES = {
    "a member comes": Case("collecting", lambda w: w.see(PAIR[1]), "planned", 2, ("planned",)),
    "an incomplete gang says so once": Case(
        "collecting", then(lambda w: w.wait(10), lambda w: w.wait(100)), "collecting", events=("Waiting",)
    ),
    "its only pod goes": Case("collecting", lambda w: w.gone("p0"), "none"),
    "a gated member is not there yet": Case(
        "collecting", lambda w: w.see(replace(PAIR[1], gated=True)), "collecting"
    ),
    "a finished member does not count": Case(
        "collecting", lambda w: w.see(replace(PAIR[1], finished=True)), "collecting"
    ),
    "a third live pod of two": Case(
        "planned",
        lambda w: w.see(pod("p2")),
        "invalid",
        0,
        ("withdrawn", "refused"),
        ("Withdrawn", "Invalid"),
    ),
    "counts that disagree, then agree": Case("invalid", lambda w: w.see(PAIR[1]), "planned", 2, ("planned",)),
    "an ill-formed member goes": Case("invalid", lambda w: w.gone("p1"), "collecting", 0, ("withdrawn",)),
    "what comes free is tried": Case("unplaceable", lambda w: w.gone("f"), "planned", 2, ("planned",)),
    "a new node is tried": Case(
        "unplaceable", lambda w: w.send(inputs.NodeSeen(w.now, node("c"))), "planned", 2, ("planned",)
    ),
    "time alone changes nothing": Case("unplaceable", lambda w: w.wait(599), "unplaceable"),
    "another cause is a new condition and a new event": Case(
        "unplaceable",
        then(lambda w: w.see(foreign("f2", "b")), lambda w: w.send(inputs.NodeGone(w.now, "a"))),
        "unplaceable",
        0,
        ("refused",),
        ("Unplaceable",),
    ),
    "a planned member goes": Case(
        "planned", lambda w: w.gone("p1"), "collecting", 0, ("withdrawn",), ("Withdrawn",)
    ),
    "a planned member terminates": Case(
        "reserving",
        lambda w: w.see(replace(PAIR[1], terminating=True)),
        "collecting",
        0,
        ("withdrawn",),
        ("Withdrawn",),
    ),
    "a planned member is bound by others": Case(
        "planned",
        lambda w: w.see(replace(PAIR[1], node="b")),
        "planned",
        1,
        ("withdrawn", "planned"),
        ("Withdrawn",),
    ),
    "a label is edited": Case(
        "planned", lambda w: w.see(pod("p1", gang="h")), "collecting", 0, ("withdrawn",), ("Withdrawn",)
    ),
    "a new priority": Case(
        "planned",
        lambda w: w.see(pod("p1", priority=7)),
        "planned",
        2,
        ("withdrawn", "planned"),
        ("Withdrawn",),
    ),
    "a planned pod's status changes": Case(
        "planned", lambda w: w.see(replace(PAIR[1], created=5.0)), "planned", 2
    ),
    "its node is cordoned": Case("planned", cordon, "planned", 2, ("withdrawn", "planned"), ("Withdrawn",)),
    "its node goes while members wait": Case(
        "reserving",
        lambda w: w.send(inputs.NodeGone(w.now, w.home(0))),
        "planned",
        2,
        ("withdrawn", "planned"),
        ("Withdrawn",),
    ),
    "another node goes": Case(
        "planned", lambda w: w.send(inputs.NodeGone(w.now, "b" if w.home(0) == "a" else "a")), "planned", 2
    ),
    "others fill its node": Case(
        "planned",
        lambda w: w.see(foreign("f", w.home(0), gpus=3)),
        "planned",
        2,
        ("withdrawn", "planned"),
        ("Withdrawn",),
    ),
    "the first member reserves": Case("planned", lambda w: w.reserve(), "reserving", 2),
    "no member comes": Case("planned", lambda w: w.wait(60), "withdrawn", 0, ("withdrawn",), ("Withdrawn",)),
    "members wait in vain": Case(
        "reserving", lambda w: w.wait(60), "withdrawn", 0, ("withdrawn",), ("Withdrawn",)
    ),
    "after the pause it is planned again": Case("withdrawn", lambda w: w.wait(1), "planned", 2, ("planned",)),
    "a change ends the pause": Case(
        "withdrawn", lambda w: w.see(pod("p1", priority=1)), "planned", 2, ("planned",)
    ),
    "a plugin refuses the node": Case(
        "planned",
        lambda w: w.unreserve(0, BindingFate.NEVER_SENT, "VolumeBinding", "no disk"),
        "planned",
        2,
        ("withdrawn", "planned"),
        ("Withdrawn",),
    ),
    "a member is given back": Case(
        "reserving",
        lambda w: w.unreserve(1, BindingFate.NEVER_SENT),
        "withdrawn",
        0,
        ("withdrawn",),
        ("Withdrawn",),
    ),
    "the last member asks": Case("reserving", lambda w: w.permit(), "permitted", 2, events=("Placed",)),
    "all are bound": Case("permitted", lambda w: w.bind(w.permit()), "running"),
    "one is bound": Case("permitted", lambda w: w.bind(w.permit(), [1]), "permitted", 1),
    "none is bound in time": Case(
        "permitted", lambda w: w.wait(20), "withdrawn", 0, ("withdrawn",), ("Withdrawn",)
    ),
    "one is bound, the other is not in time": Case(
        "permitted",
        then(lambda w: w.bind(w.permit(), [0]), lambda w: w.wait(22)),
        "planned",
        1,
        ("withdrawn", "planned"),
        ("Withdrawn",),
    ),
    "all Bindings are refused": Case(
        "permitted",
        then(lambda w: w.unreserve(1, BindingFate.REFUSED), lambda w: w.unreserve(0, BindingFate.REFUSED)),
        "withdrawn",
        0,
        ("withdrawn",),
        ("Withdrawn",),
    ),
    "one Binding is refused, the other on its way": Case(
        "permitted", lambda w: w.unreserve(1, BindingFate.REFUSED), "permitted", 2
    ),
    "a Binding of unknown fate keeps its place": Case(
        "permitted", then(lambda w: w.wait(15), lambda w: w.unreserve(1, BindingFate.UNKNOWN)), "permitted", 2
    ),
    "a permitted member goes, the other is bound": Case(
        "permitted", then(lambda w: w.gone("p1"), lambda w: w.bind(w.permit(), [0])), "running", 1
    ),
    "a node goes under Bindings on their way": Case(
        "permitted", lambda w: w.send(inputs.NodeGone(w.now, w.home(0))), "permitted", 2
    ),
    "running pods run": Case("running", lambda w: w.see(replace(w.pods["p0"], running=True)), "running"),
    "a replacement is planned alone": Case(
        "running", then(lambda w: w.gone("p0"), lambda w: w.see(pod("p9"))), "planned", 1, ("planned",)
    ),
    "the pods of a running gang go": Case("running", lambda w: w.gone("p0", "p1"), "none"),
    "the session ends": Case(
        "planned", lambda w: w.send(inputs.SessionClosed(w.now, w.epoch)), "planning", 0
    ),
    "an older session ends": Case("planned", lambda w: w.send(inputs.SessionClosed(w.now, 0)), "planned", 2),
    "a new session": Case("reserving", lambda w: w.connect(), "planned", 2, ("planned",)),
    "a new session after Permit": Case("permitted", lambda w: w.connect(), "permitted", 2),
    "a new session receives refusals": Case(
        "unplaceable", lambda w: w.connect(), "unplaceable", 0, ("refused",)
    ),
    "a new session receives verdicts on ill-formed pods": Case(
        "invalid", lambda w: w.connect(), "invalid", 0, ("refused",)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_happens(case: Case) -> None:
    world = stand(case.at)
    before_verdicts, before_events = len(world.verdicts), len(world.events)
    case.do(world)
    assert world.phase() == case.phase
    assert len(world.held()) == case.held
    assert tuple(world.outcomes()[before_verdicts:]) == case.verdicts
    assert tuple(world.reasons()[before_events:]) == case.events


def test_a_gang_ends_with_its_pods_though_they_stay_as_finished_ones() -> None:
    world = stand("running")
    for uid in ("p0", "p1"):
        world.see(replace(world.pods[uid], finished=True, succeeded=True))
    assert world.phase() == "none"
    world = stand("collecting")
    world.see(pod("p1"), pod("p2", of=4))
    for uid in ("p0", "p1", "p2"):
        world.see(replace(world.pods[uid], finished=True))
    assert world.phase() == "none"
