"""`make fuzz`: hostile objects on a local cluster for some minutes; a report as JSON.

Exit status: 0 when the service outlived them all, 1 when not, 2 when the run itself failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from e2e.fuzz import texts
from e2e.fuzz.runner import Failed, Fuzz
from local_cluster.api import ApiError, ApiUnreachable
from local_cluster.build import BuildError
from local_cluster.cluster import ClusterError, LocalCluster
from local_cluster.processes import ProcessError
from local_cluster.stack import Stack, StackError

FAILURES = (ApiError, ApiUnreachable, BuildError, ClusterError, ProcessError)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--restarts", type=int, default=3)
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="muster-fuzz-"))
    print(f"seed {options.seed}; logs: {folder}", file=sys.stderr)
    try:
        native_cluster = LocalCluster(folder / "cluster", native=True)
        with native_cluster as cluster, Stack(cluster, folder / "stack") as stack:
            fuzz = Fuzz(cluster, stack, options.seed)
            fuzz.prepare(texts.DEEPEST)
            until = time.monotonic() + 60 * options.minutes
            try:
                fuzz.go(lambda: time.monotonic() < until, options.restarts)
            except (Failed, StackError) as problem:
                print(fuzz.report.json())
                print(f"error: {problem}", file=sys.stderr)
                return 1
            print(fuzz.report.json())
            return 0
    except FAILURES as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
