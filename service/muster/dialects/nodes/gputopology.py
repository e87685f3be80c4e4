"""The gputopology dialect: lone GPU pods, and the words for links in a node's annotation GPU_TOPOLOGY."""

from __future__ import annotations

from muster.domain.pod import GangClaim
from muster.domain.topology import LINK_GB_PER_S, Link

NAME = "gputopology"

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
    "soc": "SYS",
    **{f"{word} nvlink{'s' * (count > 1)}": f"NV{count}" for count, word in enumerate(_COUNTS, start=1)},
}
"""Words of the original device plugin (in lower case) → the abbreviation. It stops at NV4, we at NV18.
Old drivers print SOC for SYS."""
_KINDS = (*LINK_GB_PER_S, *(f"NV{count}" for count in range(1, len(_COUNTS) + 1)))
_KIND_OF = {**{kind.lower(): kind for kind in _KINDS}, **_WORDS}
_LINKS = {word: Link.of_kind(kind) for word, kind in _KIND_OF.items()}
_LONGEST = 80
"""Of a link's word, in characters. None of them is half as long."""


def link_of(text: str) -> Link | None:
    """Return the link of an abbreviation ("NV2", "nv2") or of words ("Two NVLinks"); None for others."""
    return _LINKS.get(" ".join(text.lower().split())) if len(text) <= _LONGEST else None


def lone(name: str) -> GangClaim:
    """Return the claim of a pod that names no gang: a gang of one."""
    return GangClaim(NAME, name, min_member=1, replicas=1, lone=True)
