"""The gputopology dialect: a node's link matrix in its annotation GPU_TOPOLOGY, and lone GPU pods.

The annotation is JSON, a key `GPU_<ABBR>_<i>_<j>` with i < j for each pair of GPUs, its value the words:
`{"GPU_NV1_0_1": "Single NVLink", "GPU_SYS_0_2": "Cross CPU socket", …}`. The abbreviation is believed first,
the words where it is unknown (the original writes "N-A" for what it does not know).
"""

from __future__ import annotations

import json
import re
from itertools import combinations

from muster.domain.pod import GangClaim
from muster.domain.topology import GpuTopology, Link

NAME = "gputopology"

MAX_BYTES = 256 * 1024
"""All annotations of an object together may have this many bytes in the API."""

_KEY = re.compile(r"GPU_(?P<kind>.+)_(?P<i>[0-9]{1,4})_(?P<j>[0-9]{1,4})")
# fmt: off
_COUNTS = (
    "single", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
)
# fmt: on
_WORDS = {
    "cross cpu socket": "SYS",
    "same cpu socket": "NODE",
    "host pci bridge": "PHB",
    "multiple pci switches": "PXB",
    "single pci switch": "PIX",
    "same board": "PSB",
    **{f"{word} nvlink{'s' * (count > 1)}": f"NV{count}" for count, word in enumerate(_COUNTS, start=1)},
}
"""Words of the original device plugin (in lower case) → the abbreviation. It stops at NV4, we at NV18."""


class _Unreadable(ValueError):
    """Its text says what is wrong with the annotation."""


def matrix(text: str, gpu_count: int, key: str = "GPU_TOPOLOGY") -> tuple[GpuTopology, tuple[str, ...]]:
    """Return the topology of a node with `gpu_count` GPUs; unknown, with a sentence that says why, if
    unreadable."""
    try:
        links = _links(text, gpu_count)
    except _Unreadable as error:
        return GpuTopology.unknown(gpu_count), (f"{key}: {error}; the node is used without topology",)
    rows = tuple(
        tuple(None if i == j else links[min(i, j), max(i, j)] for j in range(gpu_count))
        for i in range(gpu_count)
    )
    return GpuTopology(rows), ()


def link_of(text: str) -> Link | None:
    """Return the link that an abbreviation ("NV2") or its words ("Two NVLinks") stand for, or None."""
    try:
        return Link.of_kind(_WORDS.get(" ".join(text.lower().split()), text))
    except ValueError:
        return None


def lone(name: str) -> GangClaim:
    """Return the claim of a pod that names no gang: a gang of one."""
    return GangClaim(NAME, name, min_member=1, replicas=1, lone=True)


def _links(text: str, gpu_count: int) -> dict[tuple[int, int], Link]:
    links: dict[tuple[int, int], Link] = {}
    for key, words in _pairs(text):
        match = _KEY.fullmatch(key)
        if match is None:
            raise _Unreadable(f"the key {key[:80]!r} is not GPU_<ABBR>_<i>_<j>")
        i, j = int(match["i"]), int(match["j"])
        if i >= j:
            raise _Unreadable(
                f"the key {key[:80]!r} names GPUs {i} and {j}, and the first must be the smaller"
            )
        if j >= gpu_count:
            raise _Unreadable(f"the key {key[:80]!r} names GPU {j}, and the node has {gpu_count}")
        if (i, j) in links:
            raise _Unreadable(f"GPUs {i} and {j} are given twice")
        links[i, j] = _link(match["kind"], words)
    missing = [pair for pair in combinations(range(gpu_count), 2) if pair not in links]
    if missing:
        i, j = missing[0]
        raise _Unreadable(f"{len(missing)} pairs are missing, GPUs {i} and {j} the first of them")
    return links


def _pairs(text: str) -> list[tuple[str, object]]:
    """Return the object's members, in order and with double keys, which a dict would hide."""
    if len(text) > MAX_BYTES:
        raise _Unreadable(f"it has {len(text)} characters, more than an annotation can have")
    try:
        value = json.loads(text, object_pairs_hook=_Members)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"it is no JSON ({str(error)[:80]})") from error
    if not isinstance(value, _Members):
        raise _Unreadable("it is no JSON object")
    return value


class _Members(list[tuple[str, object]]):
    """A JSON object as the list of its members."""


def _link(kind: str, words: object) -> Link:
    link = link_of(kind) or (link_of(words) if isinstance(words, str) else None)
    if link is None:
        raise _Unreadable(f"the link {kind[:40]!r}, {str(words)[:80]!r}, is unknown")
    return link
