"""`make oracle`: random pods on random clusters, the stock scheduler and Muster.

Exit status: 0 when Muster placed all that the stock scheduler placed and nothing else, 1 when not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from e2e.chaos.strangers import StockScheduler
from e2e.client import Client
from e2e.oracle.trial import Trial
from local_cluster.cluster import LocalCluster
from local_cluster.stack import Stack

NAMESPACE = "oracle"


def main(arguments: list[str] | None = None) -> int:
    """Parse the options, run, print the figures; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m e2e.oracle", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first cluster (default 1)")
    parser.add_argument("--clusters", type=int, default=50, help="random clusters (default 50)")
    parser.add_argument("--pods", type=int, default=40, help="pods on each (default 40)")
    parser.add_argument(
        "--within", type=float, default=10.0, metavar="S", help="time for Muster (default 10)"
    )
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="muster-oracle-"))
    credentials = folder / "credentials"
    credentials.mkdir(mode=0o700)
    with LocalCluster(folder / "cluster") as cluster, Stack(cluster, folder / "stack"):
        client = Client.of(cluster.kubeconfig, credentials)
        client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        trial = Trial(client, NAMESPACE, within_s=options.within)
        with StockScheduler(cluster, folder):
            for seed in range(options.seed, options.seed + options.clusters):
                trial.run(seed, options.pods)
                disagreement_count = len(trial.tally.disagreements)
                print(
                    f"cluster {seed}: {trial.tally.pods} pods, {disagreement_count} disagreements",
                    file=sys.stderr,
                )
    print(trial.tally.text())
    return 1 if trial.tally.disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
