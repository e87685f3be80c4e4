"""Every query of every dashboard returns data from a real Prometheus that scrapes service and scheduler.

Once it stores histograms as classic ones, and once as native ones: a query that knows one form alone is empty
on half of all clusters.
"""

from __future__ import annotations

import itertools
import math
import re
from functools import partial
from pathlib import Path

from e2e import objects
from e2e.scene import Scene
from local_cluster.patience import Guard
from local_cluster.prometheus import Prometheus
from local_cluster.stack import Stack
from tests.dashboards.panels import Target, queries_of_variables, targets
from tests.local_cluster.cluster_waiting import eventually


def test_no_query_is_empty_and_none_fails(stack: Stack, scene: Scene, tmp_path: Path) -> None:
    scene.node(objects.node("a"))
    _gangs_come_and_go(scene, "gang-1")  # so that each series is there before its rate is asked for
    with (
        Prometheus(tmp_path / "classic", stack) as classic,
        Prometheus(tmp_path / "native", stack, native=True) as native,
    ):
        for prometheus in (classic, native):
            eventually(partial(_scraped, prometheus), "both processes are scraped")
        _gangs(scene, "stays")
        guard = Guard()
        for attempt in itertools.count(2):
            _gangs_come_and_go(scene, f"gang-{attempt}")  # between two scrapes, or there is no rate
            empty = [*_empty(classic), *_empty(native)]
            if not empty or guard.over:
                break
        assert empty == []
        shim = "muster_shim_unary_seconds"
        for prometheus, stored in ((classic, [True, False]), (native, [False, True])):
            assert [bool(prometheus.query(f"count({name})")) for name in (f"{shim}_bucket", shim)] == stored
        waits = f'sum(muster_namespace_gangs{{gang_namespace="{scene.name}",phase="unplaceable"}}) == 1'
        eventually(
            lambda: classic.query(waits),
            "Prometheus sees the gang that waits",
        )


def _scraped(prometheus: Prometheus) -> bool:
    """Whether both the service and the scheduler answer."""
    return len(prometheus.query("up == 1")) == 2


def _gangs_come_and_go(scene: Scene, name: str) -> None:
    """One gang is placed, and one waits."""
    pods = _gangs(scene, name)
    scene.delete(*pods)


def _gangs(scene: Scene, name: str) -> list[str]:
    """Create a gang that is placed and one that waits; return the pods of both."""
    placed_pods = scene.create(
        *(objects.pod(f"{name}-{rank}", gang=objects.ack(name, 2)) for rank in range(2))
    )
    scene.runs(placed_pods)
    large = scene.create(objects.pod(f"{name}-large", gpus=9, gang=objects.ack(f"{name}-large", 1)))
    scene.event("TopologyUnplaceable", large[0])
    return [*placed_pods, *large]


def _empty(prometheus: Prometheus) -> list[str]:
    """Return the queries without a value. NaN is none: a quantile of nothing."""
    empty_panels = [
        target.name for target in targets() if target.is_promql and not _has_value(prometheus, target)
    ]
    for name, query in queries_of_variables().items():
        metric, label = re.findall(r"\w+", query)[1:]
        if not prometheus.get(f"label/{label}/values", **{"match[]": metric}):
            empty_panels.append(name)
    return empty_panels


def _has_value(prometheus: Prometheus, target: Target) -> bool:
    return any(not math.isnan(value) for _, value in prometheus.query(target.expr))
