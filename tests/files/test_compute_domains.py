"""`muster place` on gangs whose claims are channels of a ComputeDomain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.device_manifests import (
    CHANNEL_CLASS,
    CHANNELS,
    Case,
    allocated,
    channel,
    domain,
    job,
    running,
    tray,
)
from tests.files.manifests import decisions, write

DATA = Path(__file__).parent / "data"
ASSUMED = "each node with GPUs counts as having one channel"

FOUR = [tray("a1", "a.17"), tray("a2", "a.17"), tray("b1", "b.17"), tray("b2", "b.17")]
"""Two racks of two trays each. (dra-driver-nvidia-gpu#377)"""
THREE = [tray(f"a{at}", "a.1") for at in range(3)]
CASES = {
    "one clique, though more would fit": Case(
        [*FOUR, domain(), job(2, 2, "nccl-channel")], "a1 a2", note=ASSUMED
    ),
    "two racks, where one is too small": Case(
        [*FOUR, domain(), job(4, 2, "nccl-channel")],
        "a1 a2 b1 b2",
        says="no preferred scope holds the members of the C",
    ),
    "two racks, where one clique is asked for": Case(
        [*FOUR, domain(), job(4, 2, "nccl-channel", scope="nvlink-domain")],
        status="unplaceable",
        says="a.17, holds 2",
    ),
    "each ComputeDomain has a clique": Case(
        [*FOUR, domain(), domain("other"), job(2, 4, "nccl-channel"), job(2, 4, "other-channel", name="u")],
        "a1 a2 b1 b2",
    ),
    "one fabric, where each clique is too small": Case(
        [
            tray("t0", "b.1"),
            tray("t1", "a.1"),
            tray("t2", "a.2"),
            tray("t3", "a.2"),
            domain(),
            job(3, 4, "nccl-channel"),
        ],
        "t1 t2 t3",
    ),
    "a node has one channel": Case(
        [*THREE[:2], domain(), job(3, 1, "nccl-channel")],
        status="unplaceable",
        says=f"{CHANNEL_CLASS} in all: 2 of 3 fit",
    ),
    "a channel that a running pod has": Case(
        [*THREE, domain(), running("r", "a1", "nccl-channel"), job(2, 1, "nccl-channel")], "a0 a2"
    ),
    "channels that slices offer": Case(
        [*THREE, channel("a1"), channel("a2"), domain(), job(2, 1, "nccl-channel")],
        "a1 a2",
        quiet=("ResourceSlice",),
    ),
    "a channel that a claim holds": Case(
        [
            *THREE,
            *(channel(f"a{at}") for at in range(3)),
            domain(),
            allocated("held", "a1", CHANNELS, "channel-0"),
            running(
                "r", "a1", "nccl-channel", resourceClaimStatuses=[{"name": "c0", "resourceClaimName": "held"}]
            ),
            job(2, 1, "nccl-channel"),
        ],
        "a0 a2",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_members_of_a_compute_domain_lie_together(case: Case, tmp_path: Path) -> None:
    case.check(decisions(write(tmp_path, *case.objects)))


def test_the_example_of_nvidia_gets_one_clique() -> None:
    answer = decisions(str(DATA / "compute-domain.yaml"))
    (gang,) = answer["gangs"]
    assert gang["status"] == "placed"
    assert {m["node"] for m in gang["members"] if m["role"] == "worker"} == {"t2", "t3"}
    assert "proven optimal" in gang["message"]
    assert not answer["skipped"]
