"""What pods take of a node adds up, one after another or together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.node import Resources, Usage
from muster.gangs.capacity import ledger as module
from muster.gangs.capacity.ledger import Ledger
from tests.gangs.world import node

NODES = [replace(node(f"n{number}", 4), gpu_memory=(8,) * 4) for number in range(2)]
GPUS = [(0, 0, 0), (0, 2, 0), (1, 0, 0), (3, 0, 0), (3, 0, 4), (0, 1, 4)]
"""GPUs, GPUs with unknown indices, units of memory."""

usages = st.builds(
    lambda uid, on, cpu, others, gpus: Usage(uid, on, Resources(cpu, 2 * cpu, 1, others), *gpus),
    st.sampled_from("abcd"),
    st.sampled_from(["n0", "n1", "gone"]),
    st.sampled_from([0, 1, 5]),
    st.sampled_from([(), (("x", 1),), (("x", 2), ("y", 1))]),
    st.sampled_from(GPUS),
)


def known(*usages: Usage) -> Ledger:
    ledger = Ledger()
    for ledger_node in NODES:
        ledger.set_node(ledger_node)
    for usage in usages:
        ledger.bind(usage.pod_uid, usage)
    return ledger


@given(st.lists(st.tuples(usages, st.booleans(), st.booleans()), max_size=20))
def test_what_comes_one_by_one_is_what_comes_together(steps: list[tuple[Usage, bool, bool]]) -> None:
    ledger, bound = known(), dict[str, Usage]()
    for usage, ends, looks in steps:
        ledger.bind(usage.pod_uid, None if ends else usage)
        bound.pop(usage.pod_uid, None)
        if not ends:
            bound[usage.pod_uid] = usage
        if looks:
            fresh = known(*bound.values())
            assert ledger.snapshot() == fresh.snapshot()
            assert ledger.snapshot_after_all_ended((), ()) == fresh.snapshot_after_all_ended((), ())
            assert Counter(ledger.whole_gpus()) == Counter(fresh.whole_gpus())


def test_a_node_with_many_pods_is_not_summed_up_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user, or a kubelet, may have thousands of pods on one node."""
    ledger = known()
    ledger.snapshot()
    monkeypatch.setattr(module, "_state", None)
    for number in range(100):
        ledger.bind(f"u{number}", Usage(f"u{number}", "n0", Resources(1), unindexed_gpus=number % 2))
        ledger.snapshot()
    for number in range(100):
        ledger.bind(f"u{number}", None)
    assert ledger.snapshot().nodes["n0"].free == NODES[0].allocatable
