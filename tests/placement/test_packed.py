"""Tables of what nodes have room for, compared with a look at each packing."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.placement.gang.packings import packed
from muster.placement.gpus.slices import Ask, Gpu, fitting

ASKS = st.one_of(
    st.builds(Ask, st.just(1), st.integers(1, 6)),
    st.builds(Ask, st.just(2), st.integers(1, 5)),
    st.builds(Ask, st.integers(0, 3)),
)


def table(lines: int, columns: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    line = st.lists(values, min_size=columns, max_size=columns)
    return st.lists(line, min_size=lines, max_size=lines).map(np.array)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_a_table_has_room_for_what_fits_mix_by_mix(data: st.DataObject) -> None:
    more_asks = data.draw(st.lists(ASKS, max_size=3))
    asks = (Ask(1, data.draw(st.integers(1, 6))), *more_asks)
    kinds, gpus = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    units = data.draw(table(gpus, kinds, st.sampled_from([0, 3, 5, 8, 8, 12])))
    whole = data.draw(table(gpus, kinds, st.booleans()))
    caps = data.draw(table(len(asks), kinds, st.integers(0, 4)))
    amounts = data.draw(table(2, len(asks), st.integers(0, 3)))
    free = data.draw(table(2, kinds, st.integers(0, 15)))
    packings_table = packed(asks, caps, amounts, free, units, whole)
    if packings_table is None:  # no member asks for one slice alone
        assert not any(cap.any() for ask, cap in zip(asks, caps, strict=True) if ask.units and ask.gpus == 1)
        return
    largest = packings_table.largest()
    for kind in range(kinds):
        packings = tuple(
            packing
            for packing in product(*(range(cap + 1) for cap in caps[:, kind].tolist()))
            if (amounts @ np.array(packing) <= free[:, kind]).all()
        )
        of_kind = zip(units[:, kind].tolist(), whole[:, kind].tolist(), strict=True)
        fit, _ = fitting(asks, packings, tuple(Gpu(*gpu) for gpu in of_kind))
        assert packings_table.every(kind).tolist() == sorted(list(packing) for packing in fit if any(packing))
        assert sorted(largest[kind].tolist()) == sorted(
            list(packing)
            for packing in fit
            if any(packing) and not any(_below(packing, larger) for larger in fit)
        )


def _below(packing: tuple[int, ...], larger: tuple[int, ...]) -> bool:
    return packing != larger and all(a <= b for a, b in zip(packing, larger, strict=True))
