"""Measure the time from the first pod of a gang to its last Binding, in pairs. `make native` runs it.

Both schedulers run on one cluster. The one that is not measured is stopped by a signal meanwhile, so that
it costs the other one nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks import options
from benchmarks.native import sides
from benchmarks.throughput.paired import alternating, estimate, ratios
from benchmarks.throughput.sides import Muster
from benchmarks.throughput.site import Site
from local_cluster.api import Api, Object
from local_cluster.certificates import ClusterKeys
from local_cluster.cluster import LocalCluster
from local_cluster.components import HOST, NATIVE_API_FLAGS, NATIVE_GATES
from local_cluster.processes import Process
from muster.command_line import Option, run_command

BOUND_S = 60.0
REST_S = 0.3
"""After the other side goes on: it reads what it has missed."""


@dataclass(frozen=True)
class Side:
    """What one scheduler needs for a trial. `before` creates what a gang needs besides its pods."""

    processes: Sequence[Process]
    gang: Callable[[str, int], list[Object]]
    before: Callable[[str, int], object] = lambda _name, _size: None


def main(
    rounds: Annotated[int, Option(min=1, help="Pairs of trials.")] = 15,
    members: Annotated[int, Option(min=2, help="Members of the gang, of one GPU each.")] = 16,
    nodes: Annotated[int, Option(min=1, help="Nodes of eight GPUs, in racks of 20.")] = 40,
    folder: Annotated[Path | None, Option(help="Where the cluster and all logs go.")] = None,
) -> None:
    """Time from the first pod of a gang to its last Binding, with Muster and with native gang scheduling.

    The gang lies in one rack. Muster knows its full size (gpu.topology/size). The
    native one is a PodGroup of scheduling.k8s.io/v1beta1, with a topology constraint.
    """
    with ExitStack() as stack:
        place = stack.enter_context(_folder(folder))
        cluster = stack.enter_context(
            LocalCluster(place / "cluster", api_flags=NATIVE_API_FLAGS, feature_gates=NATIVE_GATES)
        )
        site = Site(cluster, place)
        site.grow(nodes)
        muster, native = Muster(cluster, place / "muster"), sides.Native(cluster, place / "native")
        stack.callback(muster.stop)
        muster.stack.start()
        stack.callback(native.process.stop)
        native.start(lambda port: _healthy(cluster, port))
        compared = {
            "muster": Side(tuple(muster.processes().values()), sides.muster_gang),
            "native": Side(
                (native.process,),
                sides.native_gang,
                lambda name, size: cluster.api.post(sides.POD_GROUPS, sides.pod_group(name, size)),
            ),
        }
        _trial(site, compared, "muster", "warm-up", members)
        _trial(site, compared, "native", "warm-up", members)
        took: dict[str, list[float]] = {"muster": [], "native": []}
        for number, order in enumerate(alternating(rounds, ("muster", "native"))):
            for side in order:
                took[side].append(_trial(site, compared, side, f"{side}-{number}", members))
    for side, values in took.items():
        print(
            f"{side:>7}: median {estimate(values).median:.3f} s, from {min(values):.3f} to {max(values):.3f}"
        )
    ratio = ratios(took["muster"], took["native"])
    interval = f"in [{ratio.low:.2f}, {ratio.high:.2f}] with {ratio.coverage:.0%}"
    pairs = f"{ratio.n} pairs of {members} pods on {nodes} nodes"
    print(f"muster / native: {ratio.median:.2f}, {interval}, {pairs}")


def _trial(site: Site, sides: dict[str, Side], name: str, gang: str, members: int) -> float:
    """Return the seconds from the first pod of a gang to its last Binding."""
    side, processes = (
        sides[name],
        [process for key in sides if key != name for process in sides[key].processes],
    )
    gang = f"{name}-{gang}"
    for process in processes:
        process.pause()
    try:
        side.before(gang, members)
        pods = side.gang(gang, members)
        with site.watch() as binds:
            began = time.monotonic()
            site.create(pods)
            binds.wait(members, BOUND_S)
            took = max(binds.at.values()) - began
        if len(racks := site.racks()) != 1:
            raise RuntimeError(f"{gang} is in the racks {', '.join(sorted(racks))}, and not in one")
        site.clear()
    finally:
        for process in processes:
            process.resume()
    time.sleep(REST_S)
    return took


def _healthy(cluster: LocalCluster, port: int) -> bool:
    keys = ClusterKeys.create(cluster.layout.pki)
    api = Api(f"https://{HOST}:{port}", str(keys.ca.pair.certificate), keys.admin)
    try:
        return api.send("GET", "/healthz").ok
    finally:
        api.close()


def _folder(path: Path | None) -> AbstractContextManager[Path]:
    return options.folder(path, "muster-native-")


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.native"))
