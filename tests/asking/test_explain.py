"""`explain` and `trace`: what a gang's plan and its timeline look like in a terminal."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from muster.adapters.asking import show
from muster.adapters.page import detail
from muster.adapters.page.detail import PhaseStep
from muster.domain.alternatives import Alternatives, not_known
from muster.placement.alternatives import alternatives as of_planner
from tests.gangs.world import World, foreign, node, pod

TRACE = {"id": "3c878011acb847fa32d7767cde5de41b", "link": "https://traces.example/3c87"}


def explained(world: World, *steps: PhaseStep, trace: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """What the service says of its one gang, as a client reads it."""
    (key,) = world.coordinator.keys()
    details = world.coordinator.details(key)
    assert details is not None
    shown = detail.describe(details, world.coordinator.snapshot(), steps, known_since=0.0)
    read: dict[str, Any] = json.loads(json.dumps(shown))
    return [{**read, "trace": trace or {"id": "", "link": ""}}]


def printed(printer: Any, explanations: list[dict[str, Any]]) -> list[str]:
    out = io.StringIO()
    printer(explanations, out)
    return out.getvalue().splitlines()


def test_a_plan_is_explained_level_by_level_with_the_methods_that_decided() -> None:
    world = World().start(node("a", 8), node("b", 8))
    world.see(*(pod(f"p{rank}", of=4, gpus=2) for rank in range(4)))
    lines = printed(show.explain, explained(world))
    assert lines[0].startswith("ns/g is planned: 4 of 4 members here, 0 bound")
    assert lines[1].startswith("  Placed in nvlink-domain ")
    assert lines[1].endswith(", proven best")
    methods = lines.index("  Decided by these exact methods:")
    (explanation,) = explained(world)
    levels = [line.split(maxsplit=1) for line in lines[3:methods]]
    assert levels == explanation["plan"]["levels"]
    assert ["crossings", "node: 1, nvlink-domain: 1"] in levels
    assert ["preferred_reached", "–"] in levels  # no scope is preferred
    steps = [f"    {step['level']}: {step['method']}" for step in explanation["plan"]["steps"]]
    assert lines[methods + 1 :] == steps
    assert "    nodes: single-node" in steps


def alternatives(world: World) -> Alternatives:
    """Where else its one gang could go, as the planner's process finds it."""
    (key,) = world.coordinator.keys()
    question = world.coordinator.alternatives(key)
    if isinstance(question, str):
        return not_known(question)
    return of_planner(question.snapshot, question.request)


def test_a_plan_is_compared_with_what_else_there_is() -> None:
    racks = [node(name, 4, {"topology.kubernetes.io/rack": rack}) for name, rack in RACKS.items()]
    world = World().start(*racks)
    world.see(foreign("f", "f", gpus=3), *(pod(f"p{rank}", of=8) for rank in range(8)))
    shown_alternatives = asdict(alternatives(world))
    explanations = [{**explanation, "alternatives": shown_alternatives} for explanation in explained(world)]
    lines = printed(show.explain, explanations)
    first = next(at for at, line in enumerate(lines) if line.startswith("  Alternatives"))
    assert lines[first:] == [
        "  Alternatives to rack r1, the best first. "
        "Computed against the cluster as it is now, without the gang itself.",
        "    rack r2: as good at each level",
        "    rack r3: only 5 of 8 members fit; 5 GPUs are free there, at most 4 on one node",
    ]
    explanations[0]["alternatives"]["others"] = "3 more racks were not tried"
    assert printed(show.explain, explanations)[-1] == "    … 3 more racks were not tried"
    explanations[0]["alternatives"] = asdict(not_known("Too many ask."))
    assert printed(show.explain, explanations)[-1] == "  Alternatives are not known: Too many ask."


RACKS = {"a": "r1", "b": "r1", "c": "r2", "d": "r2", "e": "r3", "f": "r3"}


def test_other_namespaces_are_not_named() -> None:
    world = World().start(node("a", 4), node("b", 4))
    foreign_pods = [replace(foreign(f"secret-{on}", on, gpus=3), namespace="secret") for on in "ab"]
    world.see(*foreign_pods, pod("p0", of=1))
    assert "secret" not in str(alternatives(world))


def test_a_gang_that_waits_is_explained_by_what_blocks_it() -> None:
    world = World().start(node("a", 2))
    world.see(foreign("f", "a", gpus=2), pod("p0", of=1))
    lines = printed(show.explain, explained(world))
    assert any("It would help" in line for line in lines)
    assert not any("Placed" in line for line in lines)


def test_names_from_the_cluster_are_text() -> None:
    (explanation,) = explained(planned())
    explanation["refused"] = [{"node": "a\x1b[31m", "plugin": "P", "message": "no"}]
    assert r"node a\x1b[31m, by P: no" in printed(show.explain, [explanation])[-1]


def planned() -> World:
    world = World().start(node("a", 8))
    world.see(pod("p0", of=1))
    return world


STEPS = (
    PhaseStep(100.0, "collecting", "members are missing"),
    PhaseStep(103.0, "planning", "all are there"),
    PhaseStep(103.05, "planned", "placed"),
    PhaseStep(103.5, "withdrawn", "a node changed"),
    PhaseStep(104.5, "planning", "all are there"),
    PhaseStep(105.0, "running", "all are bound"),
)


def test_a_timeline_is_a_tree_of_attempts() -> None:
    lines = printed(show.trace, explained(planned(), *STEPS, trace=TRACE))
    assert lines[1] == f"  trace {TRACE['id']}  {TRACE['link']}"
    heads = [line.split(", ") for line in lines if line.startswith("  attempt")]
    assert [(head[0], head[2]) for head in heads] == [
        ("  attempt 1: withdrawn", "3.5 s"),
        ("  attempt 2: running", "500.0 ms"),
    ]
    assert [line.split()[0] for line in lines if line.startswith("    ")] == [step.phase for step in STEPS]
    assert "    planning          50.0 ms  all are there" in lines


def test_the_traces_of_all_attempts_are_listed_the_newest_first() -> None:
    (explanation,) = explained(planned(), *STEPS, trace=TRACE)
    explanation["traces"] = [
        {"id": TRACE["id"], "link": TRACE["link"], "began": 103.5, "outcome": ""},
        {"id": "00", "link": "", "began": 100.0, "outcome": "withdrawn\x1b"},
    ]
    lines = [line for line in printed(show.trace, [explanation]) if line.startswith("  trace")]
    assert lines[0].startswith(f"  trace {TRACE['id']}  ")
    assert lines[0].endswith(f"under way  {TRACE['link']}")
    assert lines[1].endswith(r"withdrawn\x1b")


@pytest.mark.parametrize("steps", [(), STEPS[:1]])
def test_a_timeline_may_have_no_end(steps: tuple[PhaseStep, ...]) -> None:
    lines = printed(show.trace, explained(planned(), *steps))
    assert sum(line.startswith("  attempt") for line in lines) == len(steps)
    assert not any("trace" in line for line in lines), "an unknown trace is not named"


def test_the_last_phase_of_an_attempt_lasts_until_the_next_one() -> None:
    steps = [{"at": step.at, "phase": step.phase, "why": ""} for step in STEPS]
    first, second = show.attempts(steps, now=110.0)
    assert [seconds for _, seconds in first] == pytest.approx([3.0, 0.05, 0.45, 1.0])
    assert [seconds for _, seconds in second] == pytest.approx([0.5, 5.0])


def test_a_plan_beside_gpus_that_nobody_knows_says_so() -> None:
    world = World().start(node("a", 8))
    world.see(foreign("other", "a"), pod("p0", of=2), pod("p1", of=2))
    lines = printed(show.explain, explained(world))
    assert lines[1].endswith(", proven best as far as taken GPUs are known")
    doubt = "it is not known which GPUs other pods have: the chosen ones may be among them"
    assert lines[2] == f"  Not known: on node a {doubt}"
    for member in range(2):
        world.reserve(member)
    (answer,) = {
        text
        for annotations in world.permit().annotations
        for name, text in annotations.items()
        if "decision" in name
    }
    assert json.loads(answer)["unknown_indices"] == ["a"]
    assert any(doubt in event.message for event in world.events)
