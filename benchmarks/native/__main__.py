"""Measure the time from the first pod of a gang to its last Binding, in pairs. `make native` runs it.

Both schedulers run on one cluster, and get the same objects but for spec.schedulerName. The one that is not
measured reads the same changes and does nothing. It is not stopped meanwhile: it would lose its lease and its
watches in a long trial.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Annotated

from benchmarks import options
from benchmarks.native import sides
from benchmarks.native.sides import COLUMNS, Column
from benchmarks.throughput.paired import alternating, estimate, ratios
from benchmarks.throughput.sides import Muster
from benchmarks.throughput.site import NAMESPACE, POLL_EVERY_S, Site
from local_cluster.api import Api, Object
from local_cluster.cluster import LocalCluster
from local_cluster.examples.objects import collection
from local_cluster.nodes import shape_nodes
from local_cluster.shape import NodeGroup, Shape
from muster.command_line import Option, run_command

BOUND_S = 120.0
SIDES = (Muster.name, sides.NATIVE)


def main(
    only: Annotated[str, Option(help=f"Of {', '.join(COLUMNS)}; all if empty.")] = "",
    rounds: Annotated[int, Option(min=1, help="Pairs of trials of each column.")] = 15,
    folder: Annotated[Path | None, Option(help="Where the cluster and all logs go.")] = None,
) -> None:
    """Time from the first pod to the last Binding, with Muster and with native gang scheduling.

    rack   16 pods in a rack
    large  512 pods in a zone
    many   100 gangs of 16 in racks, all at once, until 90 of them are bound
    tree   8 groups of 4 in racks, in one zone

    Both sides get the same PodGroups. The cluster has 200 nodes of eight GPUs, in two zones of five racks.
    """
    names = options.chosen(only, COLUMNS, "--only")
    with ExitStack() as stack:
        place = stack.enter_context(options.folder(folder, "muster-native-"))
        gates = LocalCluster(place / "cluster", native=True)
        cluster = stack.enter_context(gates)
        site = Site(cluster, place)
        site.add(nodes())
        muster, native = Muster(cluster, place / "muster"), sides.Native(cluster, place / "native")
        stack.callback(muster.stop)
        muster.stack.start()
        stack.callback(native.process.stop)
        native.start()
        for name in names:
            _measure(site, COLUMNS[name], rounds)


def nodes() -> list[Object]:
    """Nodes of eight GPUs behind an NVSwitch: two zones of five racks of 20."""
    gpu_nodes = NodeGroup(
        name="gpu-{index:04}",
        zones=2,
        racks=5,
        count=20,
        zone="z{zone}",
        rack="r{rack:03}",
        topology="hgx-h100-8x-nvswitch",
        publish="labels",
        resources=("aliyun.com/gpu",),
        schedule="topology",
        cpu="192",
        memory="2Ti",
    )
    return shape_nodes(Shape((gpu_nodes,)), "benchmarks.native")


def _measure(site: Site, column: Column, rounds: int) -> None:
    """Measure one column in pairs, after one trial of each side that is not counted. Print it."""
    for side in SIDES:
        _trial(site, side, column)
    took: dict[str, list[float]] = {side: [] for side in SIDES}
    for order in alternating(rounds, SIDES):
        for side in order:
            took[side].append(_trial(site, side, column))
    print(column.title)
    for side, values in took.items():
        print(
            f"{side:>7}: median {estimate(values).median:.3f} s, from {min(values):.3f} to {max(values):.3f}"
        )
    ratio = ratios(*(took[side] for side in SIDES))
    interval = f"in [{ratio.low:.2f}, {ratio.high:.2f}] with {ratio.coverage:.0%}"
    print(f"muster / native: {ratio.median:.2f}, {interval}, {ratio.n} pairs", flush=True)


def _trial(site: Site, side: str, column: Column) -> float:
    """Return the seconds from the first pod to the last Binding of as many gangs as the column waits for."""
    for group in column.groups:
        site.cluster.api.post(_path(group), group)
    members = [_of_scheduler(pod, side) for pod in column.pods]
    with site.watch() as binds:
        began = time.monotonic()
        site.create(members)
        binds.wait(len(members), BOUND_S)
        took = bound_after(column, binds.at) - began
    if column.gangs == 1 and len(domains := site.domains(column.key)) != 1:
        raise RuntimeError(f"{column.title}, {side}: it is in {', '.join(sorted(domains))}, not in one")
    site.clear()
    _delete_groups(site.cluster.api, column.groups)
    return took


def _delete_groups(api: Api, groups: Sequence[Object]) -> None:
    """Delete groups that have no pods, and wait until their finalizers let them go."""
    for group in groups:
        api.delete(f"{_path(group)}/{group['metadata']['name']}")
    for path in {_path(group) for group in groups}:
        while api.get(path)["items"]:
            time.sleep(POLL_EVERY_S)


def _path(group: Object) -> str:
    return collection({**group, "metadata": {**group["metadata"], "namespace": NAMESPACE}})


def _of_scheduler(pod: Object, scheduler: str) -> Object:
    copy = deepcopy(pod)
    copy["spec"]["schedulerName"] = scheduler
    return copy


def bound_after(column: Column, bound_at: Mapping[str, float]) -> float:
    """Return when the share of the gangs had all their pods bound."""
    ends: dict[str, float] = {}
    for pod in column.pods:
        gang = pod["spec"]["schedulingGroup"]["podGroupName"] if column.gangs > 1 else ""
        ends[gang] = max(ends.get(gang, 0.0), bound_at[pod["metadata"]["name"]])
    return sorted(ends.values())[math.ceil(column.share * column.gangs) - 1]


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.native"))
