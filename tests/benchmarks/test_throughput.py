"""The pure parts of `make throughput`: what pairs say, what is read of metrics, which pods there are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.throughput import pods, prometheus, questions
from benchmarks.throughput.binds import NotBoundInTime
from benchmarks.throughput.flood import partial
from benchmarks.throughput.paired import alternating, estimate
from benchmarks.throughput.questions import Answer, Kind, Question, Ratio
from benchmarks.throughput.report import ratio_records, spread
from benchmarks.throughput.sides import stock
from benchmarks.throughput.site import nodes
from benchmarks.throughput.trials import Trial

MEDIAN_INTERVALS = [
    # n, which of the sorted values, coverage: 1 - 2 P(Binomial(n, 1/2) <= which); 95 % where one has it
    (1, 0, 0.0),
    (5, 0, 0.9375),
    (6, 0, 0.96875),
    (9, 1, 0.9609375),
    (10, 1, 0.978515625),
]


@pytest.mark.parametrize(("n", "at", "coverage"), MEDIAN_INTERVALS)
def test_the_interval_of_a_median_is_that_of_the_order_statistics(n: int, at: int, coverage: float) -> None:
    interval = estimate([float(value) for value in reversed(range(n))])
    assert (interval.low, interval.high, interval.n) == (at, n - 1 - at, n)
    assert interval.coverage == pytest.approx(coverage)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40))
def test_an_interval_holds_its_median(values: list[float]) -> None:
    interval = estimate(values)
    assert min(values) <= interval.low <= interval.median <= interval.high <= max(values)


def test_there_is_no_median_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        estimate([])


@given(st.integers(1, 30), st.permutations(["a", "b", "c"]))
def test_each_side_is_as_often_first_as_last(rounds: int, sides: list[str]) -> None:
    orders = alternating(2 * rounds, sides)
    assert len(orders) == 2 * rounds
    assert all(sorted(order) == sorted(sides) for order in orders)
    firsts, lasts = Counter(order[0] for order in orders), Counter(order[-1] for order in orders)
    assert firsts == lasts


METRICS = """\
# HELP muster_gangs Gangs by phase.
# TYPE muster_gangs gauge
muster_gangs{phase="running"} 3.0
muster_gangs{phase="unplaceable"} 2.0
call_seconds_sum{method="Permit",code="OK"} 0.5
call_seconds_sum{method="Permit",code="ABORTED"} 0.25
call_seconds_count{method="Permit",code="OK"} 2
call_seconds_count{method="Permit",code="ABORTED"} 1
call_seconds_count{method="Reserve",code="OK"} 0
inbox 7
apiserver_request_total{code="201",resource="pods",subresource="binding",verb="POST"} 5
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 2
apiserver_request_total{code="200",resource="pods",subresource="",verb="WATCH"} 9
"""


def test_samples_are_read_with_their_labels() -> None:
    assert prometheus.by_label(METRICS, "muster_gangs", "phase") == {"running": 3, "unplaceable": 2}
    assert ("inbox", {}, 7.0) in prometheus.samples(METRICS)


def test_a_mean_is_over_all_samples_of_a_label_and_leaves_out_what_never_happened() -> None:
    assert prometheus.means_ms(METRICS, "call_seconds", "method") == {"Permit": 250.0}


def test_only_writes_are_counted() -> None:
    assert prometheus.writes(METRICS) == {"POST pods/binding 201": 5, "POST pods 201": 2}


def test_gangs_and_singles_are_the_same_pods_but_for_the_gang() -> None:
    gangs, singles = pods.gangs("x", 3, 8, "muster"), pods.singles("x", 3, 8, "stock")
    assert len(gangs) == len({pod["metadata"]["name"] for pod in gangs}) == 24
    assert [*Counter(pod["metadata"]["labels"]["gpu-topology"] for pod in gangs).values()] == [8, 8, 8]
    for gang, single in zip(gangs, singles, strict=True):
        assert not single["metadata"]["labels"]
        assert gang["spec"] | {"schedulerName": "stock"} == single["spec"]
        assert gang["metadata"]["name"] == single["metadata"]["name"]


@given(st.integers(1, 30), st.integers(1, 30))
def test_mixed_pods_are_spread_evenly_each_in_its_order(size_of_a: int, size_of_b: int) -> None:
    a, b = pods.others("a", size_of_a, "s"), pods.others("b", size_of_b, "s")
    mixed = pods.mixed(a, b)
    assert [pod for pod in mixed if pod in a] == a
    assert [pod for pod in mixed if pod in b] == b
    for at in range(len(mixed)):
        count_of_a = sum(pod in a for pod in mixed[: at + 1])
        assert abs(count_of_a - (at + 1) * size_of_a / (size_of_a + size_of_b)) <= 1 + size_of_a / (
            size_of_a + size_of_b
        )


def test_fewer_nodes_are_the_first_of_more() -> None:
    few, many = nodes(30), nodes(50)
    assert (len(few), len(many)) == (30, 50)
    assert few == many[:30]
    assert {node["status"]["allocatable"]["aliyun.com/gpu"] for node in many} == {"8"}


def test_the_stock_profile_has_the_same_limits_and_no_plugin_of_ours() -> None:
    ours = {
        "clientConnection": {"qps": 500, "burst": 1000},
        "profiles": [{"schedulerName": "muster", "pluginConfig": [{"name": "Muster"}]}],
    }
    assert stock(ours) == ours | {"profiles": [{"schedulerName": "stock"}]}


def trial(side: str, seconds: float) -> Trial:
    return Trial(side, 100, seconds, 100, cpu_s={"scheduler": 0.2, "service": 0.1}, writes={})


def answers(*seconds: float | None) -> Kind:
    """Takes so long in one trial after the other; None fails."""
    later = list(seconds)

    def run(name: str) -> Trial:
        took = later.pop(0)
        if took is None:
            raise NotBoundInTime(f"{name} was not bound")
        return trial("x", took)

    return run


def asked(a: Kind, b: Kind, rounds: int) -> tuple[Answer, list[bool]]:
    counted_rounds: list[bool] = []
    ratio = Ratio(("a", "b"), lambda trial: trial.seconds, "time", "≤ 1.2")
    question = Question("q", {"a": a, "b": b}, (ratio,))
    return questions.ask(
        question, rounds, lambda _kind, _trial, counted: counted_rounds.append(counted)
    ), counted_rounds


def test_the_first_round_is_not_counted() -> None:
    answer, counted_rounds = asked(answers(99, 2, 6), answers(1, 1, 2), rounds=2)
    assert answer.values("a", lambda trial: trial.seconds) == [2, 6]
    assert counted_rounds == [False, False, True, True, True, True]
    ratio = answer.ratio(answer.question.ratios[0])
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == (2.5, 2, 3)


def test_a_round_with_a_trial_that_failed_is_left_out_whole_and_told() -> None:
    answer, _ = asked(answers(1, None, 4), answers(1, 1, 2), rounds=2)
    assert len(answer.rounds) == 1
    assert [record["estimate"]["median"] for record in ratio_records(answer)] == [2]
    assert questions.failures([answer]) == ["q: round 1, a: q01 was not bound"]


def test_nothing_measured_is_no_number() -> None:
    answer, _ = asked(answers(1, None), answers(1, 1), rounds=1)
    assert [record["estimate"] for record in ratio_records(answer)] == [None]


def test_what_scheduling_costs_is_both_processes() -> None:
    assert trial("muster", 2).scheduling_ms == pytest.approx(3)
    assert trial("muster", 2).per_s == pytest.approx(50)


def test_a_spread_goes_by_the_nearest_rank() -> None:
    assert spread(range(1, 201)) == {"p50": 100.5, "p99": 198, "max": 200}
    assert spread([]) is None


def test_a_gang_is_bound_in_part_when_some_members_are_missing() -> None:
    names = [pod["metadata"]["name"] for pod in pods.gangs("x", 3, questions.GANG, "muster")]
    assert partial(names) == 0
    assert partial([]) == 0
    assert partial(names[: questions.GANG + 1]) == 1
