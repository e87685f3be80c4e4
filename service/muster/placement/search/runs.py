"""Work with runs of equal codes in a sorted column: the nodes of one region, or of one domain."""

from __future__ import annotations

import numpy as np

from muster.placement.cluster.columns import Ints


def place_in_run(codes: Ints) -> Ints:
    """Return the position of each entry among those of its code, from 0.

    Equal codes must be adjacent, and none may be negative.
    """
    begins = np.flatnonzero(np.diff(codes, prepend=-1))
    return np.arange(len(codes)) - np.repeat(begins, np.diff([*begins, len(codes)]))
