"""Tables of what nodes have room for, compared with a look at each packing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.placement.gang.packings import packing_table
from muster.placement.gpus.slices import MemberAsk

ASKS = st.one_of(
    st.builds(MemberAsk, st.just(1), st.integers(1, 6)),
    st.builds(MemberAsk, st.just(2), st.integers(1, 5)),
    st.builds(MemberAsk, st.integers(0, 3)),
)
Gpu = tuple[int, bool]
"""The units left of a GPU, and whether a member may take it whole."""


def table(lines: int, columns: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    line = st.lists(values, min_size=columns, max_size=columns)
    return st.lists(line, min_size=lines, max_size=lines).map(np.array)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_a_table_has_room_for_what_fits_mix_by_mix(data: st.DataObject) -> None:
    more_asks = data.draw(st.lists(ASKS, max_size=3))
    asks = (data.draw(ASKS.filter(lambda ask: ask.units > 0)), *more_asks)
    kinds, gpus = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    units = data.draw(table(gpus, kinds, st.sampled_from([0, 3, 5, 8, 8, 12])))
    whole = data.draw(table(gpus, kinds, st.booleans()))
    caps = data.draw(table(len(asks), kinds, st.integers(0, 4)))
    amounts = data.draw(table(2, len(asks), st.integers(0, 3)))
    free = data.draw(table(2, kinds, st.integers(0, 15)))
    with mock.patch("muster.placement.gang.packings.MAX_PACKING_STEPS", 1 << 40):  # some draws are too large
        packings_table = packing_table(asks, caps, amounts, free, units, whole)
    assert packings_table is not None
    largest = packings_table.maximal_by_kind()
    for kind in range(kinds):
        packings = tuple(
            packing
            for packing in product(*(range(cap + 1) for cap in caps[:, kind].tolist()))
            if (amounts @ np.array(packing) <= free[:, kind]).all()
        )
        of_kind = tuple(zip(units[:, kind].tolist(), whole[:, kind].tolist(), strict=True))
        fit = [packing for packing in packings if _fits(asks, packing, of_kind)]
        assert packings_table.all_of_kind(kind).tolist() == sorted(
            list(packing) for packing in fit if any(packing)
        )
        assert sorted(largest[kind].tolist()) == sorted(
            list(packing)
            for packing in fit
            if any(packing) and not any(_is_below(packing, larger) for larger in fit)
        )


def _fits(asks: Sequence[MemberAsk], packing: Sequence[int], gpus: tuple[Gpu, ...]) -> bool:
    """Return whether some choice of GPUs for each member in turn holds them all."""
    members = [ask for ask, count in zip(asks, packing, strict=True) for _ in range(count)]
    return _place(sorted(members, key=lambda ask: -ask.units), gpus)


def _place(members: list[MemberAsk], gpus: tuple[Gpu, ...]) -> bool:
    if not members:
        return True
    ask, *other_asks = members
    for gpu_indices in {
        tuple(sorted(gpus[i] for i in at)): at for at in combinations(range(len(gpus)), ask.gpus)
    }.values():
        if all(gpus[i][0] >= ask.units if ask.units else gpus[i][1] for i in gpu_indices):
            after = [
                (free_units - ask.units, False)
                if i in gpu_indices and ask.units
                else (0, False)
                if i in gpu_indices
                else (free_units, free)
                for i, (free_units, free) in enumerate(gpus)
            ]
            if _place(other_asks, tuple(sorted(after))):
                return True
    return False


def _is_below(packing: tuple[int, ...], larger: tuple[int, ...]) -> bool:
    return packing != larger and all(a <= b for a, b in zip(packing, larger, strict=True))
