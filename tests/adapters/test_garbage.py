"""Full collections look at what is new, and everything is as before afterwards."""

from __future__ import annotations

import gc

from muster.adapters.garbage import short_collections


def test_a_full_collection_does_not_look_at_survivors_of_the_one_before() -> None:
    callbacks = list(gc.callbacks)
    with short_collections():
        old = [[number] for number in range(10_000)]
        gc.collect()
        assert gc.get_freeze_count() >= len(old)
        assert len(gc.get_objects(generation=2)) < len(old)
    assert gc.callbacks == callbacks
    assert gc.get_freeze_count() == 0
