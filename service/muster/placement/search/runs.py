"""Runs of equal codes in a sorted column: the nodes of one region, one rack."""

from __future__ import annotations

import numpy as np

from muster.placement.cluster.columns import Ints


def place_in_run(codes: Ints) -> Ints:
    """Where each entry stands among those of its code, from 0. Equal codes, none negative, lie together."""
    begins = np.flatnonzero(np.diff(codes, prepend=-1))
    return np.arange(len(codes)) - np.repeat(begins, np.diff([*begins, len(codes)]))
