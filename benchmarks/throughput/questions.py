"""What is asked: each question is a few kinds of trials, run in turn, and ratios of what they gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.throughput import pods
from benchmarks.throughput.binds import NotBoundInTime
from benchmarks.throughput.paired import Estimate, alternating, estimate
from benchmarks.throughput.sides import Side
from benchmarks.throughput.site import Site
from benchmarks.throughput.trials import Trial, arrival, backlog
from local_cluster.api import Object
from local_cluster.processes import ProcessError
from local_cluster.stack import StackError

GANG = 8
"""Members of a gang, one GPU each."""
OTHERS = "other"
"""How the names of pods that are not ours begin."""

Kind = Callable[[str], Trial]
"""Runs one trial; its pods' names begin with the argument."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of `quantity` (higher is better for rates, lower for times), one kind of trial over another."""

    over: tuple[str, str]
    quantity: Callable[[Trial], float]
    name: str
    goal: str


@dataclass(frozen=True, slots=True)
class Question:
    """`kinds` by name, in the order of the first round; the order turns round from round to round."""

    name: str
    kinds: Mapping[str, Kind]
    ratios: tuple[Ratio, ...]


@dataclass(slots=True)
class Answer:
    """`rounds` that are complete, each with one trial of every kind; `failures` say why others are not."""

    question: Question
    rounds: list[dict[str, Trial]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def values(self, kind: str, quantity: Callable[[Trial], float]) -> list[float]:
        """Return the quantity of one kind of trial, round by round."""
        return [quantity(trials[kind]) for trials in self.rounds]

    def ratio(self, ratio: Ratio) -> Estimate | None:
        """Return the ratio; None if no round is complete."""
        ours, theirs = (self.values(kind, ratio.quantity) for kind in ratio.over)
        return estimate([a / b for a, b in zip(ours, theirs, strict=True)]) if ours else None


def ask(question: Question, rounds: int, report: Callable[[str, Trial, bool], None]) -> Answer:
    """Run all rounds, after one that is not counted: first trials find cold caches. A round in which a trial
    fails is left out whole, for pairs must stay pairs."""
    answer = Answer(question)
    for number, order in enumerate(alternating(rounds + 1, list(question.kinds))):
        trials: dict[str, Trial] = {}
        for kind in order:
            try:
                trials[kind] = question.kinds[kind](f"{question.name}{number:02}")
            except (NotBoundInTime, StackError, ProcessError) as problem:
                answer.failures.append(f"round {number}, {kind}: {problem}")
                break
            report(kind, trials[kind], number > 0)
        else:
            if number:
                answer.rounds.append(trials)
    return answer


def first(name: str, side: Side) -> list[Object]:
    """A gang to warm up with."""
    return pods.gangs(f"{name}-first", 1, GANG, side.name)


def gangs(site: Site, muster: Side, stock: Side, count: int) -> Question:
    """Gangs of eight with Muster, the same pods without a gang in a stock profile."""
    return Question(
        "gangs",
        {
            "muster": lambda name: backlog(
                site, muster, pods.gangs(name, count, GANG, muster.name), first(name, muster)
            ),
            "stock": lambda name: backlog(site, stock, pods.singles(name, count, GANG, stock.name), ()),
        },
        (
            Ratio(("muster", "stock"), lambda trial: trial.per_s, "pods bound per second", "≥ 1.0"),
            Ratio(
                ("muster", "stock"), lambda trial: trial.scheduling_ms, "scheduler and service, CPU a pod", ""
            ),
        ),
    )


def traces(site: Site, muster: Side, traced: Side, count: int) -> Question:
    """Gangs of eight, with and without a trace of each. The collector runs on the same machine."""

    def placed(side: Side) -> Kind:
        return lambda name: backlog(site, side, pods.gangs(name, count, GANG, side.name), first(name, side))

    over = ("traced", "untraced")
    return Question(
        "traces",
        {"traced": placed(traced), "untraced": placed(muster)},
        (
            Ratio(over, lambda trial: trial.per_s, "pods bound per second", "≥ 0.95"),
            Ratio(over, lambda trial: trial.scheduling_ms, "scheduler and service, CPU a pod", ""),
        ),
    )


def bystanders(site: Site, muster: Side, stock: Side, count: int, gangs_beside: int) -> Question:
    """Pods that ask for no GPU: through Muster's scheduler with nothing else to do, and while it places
    gangs; both in a pair with a stock profile that places the same pods."""

    def is_other(name: str) -> bool:
        return name.startswith(OTHERS)

    def alone(side: Side) -> Kind:
        def run(name: str) -> Trial:
            other_pods = pods.others(f"{OTHERS}-{name}", count, side.name)
            return backlog(site, side, other_pods, first(name, side))

        return run

    def beside(side: Side, gpu: Callable[[str, int, int, str], list[Object]]) -> Kind:
        def run(name: str) -> Trial:
            other_pods = pods.others(f"{OTHERS}-{name}", count, side.name)
            mixed = pods.mixed(other_pods, gpu(name, gangs_beside, GANG, side.name))
            return backlog(site, side, mixed, first(name, side), is_other)

        return run

    return Question(
        "bystanders",
        {
            "muster alone": alone(muster),
            "stock alone": alone(stock),
            "muster beside gangs": beside(muster, pods.gangs),
            "stock beside singles": beside(stock, pods.singles),
        },
        (
            Ratio(("muster alone", "stock alone"), lambda t: t.per_s, "no gang about", "≥ 0.97"),
            Ratio(
                ("muster beside gangs", "stock beside singles"),
                lambda t: t.per_s,
                "while gangs are placed",
                "≥ 0.97",
            ),
        ),
    )


def large(site: Site, muster: Side, stock: Side, members: int) -> Question:
    """One gang, from the creation of its first pod to its last binding; the scheduler runs and is warm."""
    return Question(
        "large",
        {
            "muster": lambda name: arrival(
                site,
                muster,
                pods.gangs(name, 1, members, muster.name),
                first(name, muster),
            ),
            "stock": lambda name: arrival(
                site,
                stock,
                pods.singles(name, 1, members, stock.name),
                pods.singles(f"{name}-first", 1, GANG, stock.name),
            ),
        },
        (
            Ratio(
                ("muster", "stock"), lambda trial: trial.seconds, "first pod created to last bound", "≤ 1.2"
            ),
        ),
    )


def failures(answers: Iterable[Answer]) -> Sequence[str]:
    """Of all questions."""
    return [f"{answer.question.name}: {failure}" for answer in answers for failure in answer.failures]
