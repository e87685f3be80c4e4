"""`make tracing-bench` binds each gang on both sides, and only the traced one makes spans."""

from __future__ import annotations

from benchmarks import tracing


async def test_both_sides_bind_all_and_one_makes_spans() -> None:
    nowhere = tracing.Nowhere()
    async with tracing.Service(nowhere).running(4) as service:
        for number in range(2):
            for side in tracing.SIDES:
                before = nowhere.spans
                rate, spent = await service.round(side, 3, number)
                assert rate > 0
                assert spent > 0
                assert service.bound == 3
                assert (nowhere.spans > before) is (side == "traced")


async def test_the_figures_are_of_pairs() -> None:
    figures = await tracing.measure(tracing.Sizes(4, 2, 3), tracing.Nowhere())
    assert figures["ratio_of_pairs"]["pairs"] == 3
    low, high = figures["ratio_of_pairs"]["interval"]
    assert low <= figures["ratio_of_pairs"]["median"] <= high
