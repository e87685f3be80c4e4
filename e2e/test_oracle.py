"""What the stock scheduler places, Muster places as well: a short form of `make oracle`."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.arena import Arena
from e2e.chaos.strangers import StockScheduler
from e2e.oracle.trial import Trial
from e2e.scene import Scene
from local_cluster.patience import HANG_S

PODS = 12


@pytest.mark.parametrize("seed", [2, 3, 7])
def test_muster_places_what_the_stock_scheduler_places(
    arena: Arena, scene: Scene, tmp_path: Path, seed: int
) -> None:
    if arena.cluster is None:
        pytest.skip("needs a cluster without other nodes, and the certificates to run a second scheduler")
    trial = Trial(arena.client, scene.name, within_s=HANG_S)
    with StockScheduler(arena.cluster, tmp_path):
        trial.run(seed, PODS)
    assert trial.tally.pods == PODS
    assert trial.tally.placed, "the drawn pods exercise nothing: the stock scheduler placed none"
    assert not trial.tally.disagreements, trial.tally.text()
