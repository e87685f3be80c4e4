"""Kubernetes quantities, read exactly: `500m`, `1.5Gi`, `2e3`, `4`.

The grammar is that of k8s.io/apimachinery/pkg/api/resource: a signed decimal number, then a suffix or an
exponent. Suffixes are binary (Ki … Ei) or decimal (n, u, m, k, M, G, T, P, E). As there, amounts beyond an
int64 are capped, and amounts that must be whole are rounded up.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

Quantity = str | int | float
"""The decoded form of a quantity: most are strings, but hand-written manifests have plain numbers."""

LARGEST = 2**63 - 1
MAX_AMOUNT = 2**46
"""Largest amount of memory (in bytes: 64 TiB), or of another counted resource, of one pod or node. Real
amounts are smaller, and the planner can add a hundred thousand such amounts in an int64."""
MAX_THOUSANDTHS = 2**42
"""Largest amount of cpu of one pod or node, in thousandths. The planner also multiplies it by thousands of
GPUs."""
BILLION = 10**9
_MAX_LENGTH = 64

_PATTERN = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,9}))?"
)
_WHOLE = re.compile(r"([0-9]+)([KMGTPE]i|[numkMGTPE])?")
"""Most quantities: these need no fraction."""
_SCALES = {
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)},
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", start=1)},
}
_BILLIONTHS: dict[str | None, int] = {suffix: int(BILLION * scale) for suffix, scale in _SCALES.items()}
_BILLIONTHS[None] = BILLION


def parse(value: Quantity) -> Fraction | None:
    """Return the value as `billionths` reads it; None if it is no quantity."""
    amount = billionths(value)
    return Fraction(amount, BILLION) if amount is not None else None


def billionths(value: Quantity) -> int | None:
    """Return the value in billionths, rounded up as in the API server and capped at an int64's range.

    Return None if it is no quantity.
    """
    if isinstance(value, str) and len(value) > _MAX_LENGTH:
        return None  # and not cached: users could fill the memory with long texts
    return _billionths(value)


@lru_cache(maxsize=4096, typed=True)
def _billionths(value: Quantity) -> int | None:
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, int):
        return _cap(value * BILLION)
    text = value if isinstance(value, str) else repr(value)
    if (whole_match := _WHOLE.fullmatch(text)) is not None:
        return _cap(int(whole_match[1]) * _BILLIONTHS[whole_match[2]])
    match = _PATTERN.fullmatch(text) if text.isascii() else None
    if match is None:
        return None
    number = Fraction(match["number"].rstrip("."))
    if match["suffix"]:
        number *= _SCALES[match["suffix"]]
    elif match["exponent"]:
        # A quantity of 64 characters is past the cap, or below any billionth, long before this bound.
        number *= Fraction(10) ** max(-2 * _MAX_LENGTH, min(2 * _MAX_LENGTH, int(match["exponent"])))
    return _cap(math.ceil((-number if match["sign"] == "-" else number) * BILLION))


def _cap(amount: int) -> int:
    return max(-LARGEST * BILLION, min(LARGEST * BILLION, amount))


def milli(value: Fraction) -> int:
    """Return the thousandths, rounded up, at most MAX_THOUSANDTHS."""
    return min(MAX_THOUSANDTHS, math.ceil(value * 1000))
