"""The links between the GPUs of one node, and the NVLink islands that they form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

NVLINK_GB_PER_S = 25.0
"""Modelled bandwidth of one NVLink, one direction, GB/s: NV2 is 50, NV12 is 300, NV18 is 450."""

LINK_GB_PER_S: Mapping[str, float] = MappingProxyType(
    {
        "XGMI": 64.0,
        "PSB": 15.0,
        "PIX": 14.0,
        "PXB": 13.0,
        "PHB": 12.0,
        "NODE": 11.0,
        "PCIE": 10.5,
        "SYS": 10.0,
    }
)
"""Modelled bandwidths, GB/s. Of the PCIe kinds only the order counts. PCIE is a PCIe path of unknown kind, so
it counts as little more than the slowest kind."""

_COUNTS = (
    "Single", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve",
    "Thirteen", "Fourteen", "Fifteen", "Sixteen", "Seventeen", "Eighteen",
)  # fmt: skip
LINK_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "SYS": "Cross CPU socket",
        "NODE": "Same CPU socket",
        "PHB": "Host PCI bridge",
        "PXB": "Multiple PCI switches",
        "PIX": "Single PCI switch",
        "PSB": "Same board",
        **{f"NV{n}": f"{word} NVLink{'' if n == 1 else 's'}" for n, word in enumerate(_COUNTS, start=1)},
    }
)
"""Kind of a link → its words in the original device plugin. The plugin stops at NV4, this table at NV18."""

FABRIC_KINDS = re.compile(r"NV([1-9]|1[0-8])$|XGMI$")
"""Kinds of links that form an nvlink-domain: GPUs that such links connect, directly or through others, are in
one."""


@dataclass(frozen=True, slots=True)
class Link:
    """One link between two GPUs: `kind` as nvidia-smi or rocm-smi abbreviates it, and its modelled GB/s."""

    kind: str
    gb_per_s: float

    @classmethod
    def of_kind(cls, kind: str) -> Link:
        """Return the link that an abbreviation stands for ("NV2", "PIX", "XGMI" …).

        Raises:
            ValueError: the abbreviation is unknown.
        """
        if kind in LINK_GB_PER_S:
            return cls(kind, LINK_GB_PER_S[kind])
        if FABRIC_KINDS.match(kind):
            return cls(kind, NVLINK_GB_PER_S * int(kind[2:]))
        raise ValueError(f"unknown link kind {kind!r}")

    @property
    def is_fabric(self) -> bool:
        """Return whether the link is NVLink or xGMI, and not PCIe."""
        return FABRIC_KINDS.match(self.kind) is not None


@dataclass(frozen=True)
class GpuTopology:
    """The link matrix of one node's GPUs. Equal matrices are equal values, and share their GPU sets.

    Invariant: `links[i][j]` is `links[j][i]`, and None if i == j or if the link is not known. `groups` are
    bit masks of the parts that members may not span, if these are not the NVLink domains. () means the NVLink
    domains.
    """

    links: tuple[tuple[Link | None, ...], ...]
    groups: tuple[int, ...] = ()

    @classmethod
    def unknown(cls, gpu_count: int) -> GpuTopology:
        """Return GPUs without any known link."""
        return cls(((None,) * gpu_count,) * gpu_count)

    @classmethod
    def of_islands(cls, gpu_count: int, island_size: int, inner_link: Link, outer_link: Link) -> GpuTopology:
        """Return GPUs in consecutive islands of `island_size`: `inner_link` inside an island, `outer_link`
        between islands."""
        return cls(
            tuple(
                tuple(
                    None if i == j else inner_link if i // island_size == j // island_size else outer_link
                    for j in range(gpu_count)
                )
                for i in range(gpu_count)
            )
        )

    @property
    def gpu_count(self) -> int:
        """Return the number of GPUs."""
        return len(self.links)

    @cached_property
    def is_known(self) -> bool:
        """Return whether any link is known."""
        return any(link is not None for row in self.links for link in row)

    @cached_property
    def _hash(self) -> int:
        return hash((self.links, self.groups))

    def __hash__(self) -> int:
        return self._hash

    def link(self, a: int, b: int) -> Link | None:
        """Return the link between GPUs `a` and `b`; None if it is not known."""
        return self.links[a][b]

    @cached_property
    def islands(self) -> tuple[int, ...]:
        """Return the NVLink domains inside the node as bit masks, by lowest GPU: connected components of the
        fabric links. A GPU without a fabric link is an island of its own."""
        masks: list[int] = []
        unvisited = (1 << self.gpu_count) - 1
        while unvisited:
            island, grown = 0, unvisited & -unvisited
            while grown != island:
                island = grown
                for gpu in bits(island):
                    for peer, link in enumerate(self.links[gpu]):
                        if link is not None and link.is_fabric:
                            grown |= 1 << peer
            masks.append(island)
            unvisited &= ~island
        return tuple(masks)

    @property
    def domains(self) -> tuple[int, ...]:
        """Return the parts of the node that members may not span, as bit masks, by lowest GPU."""
        return self.groups or self.islands

    @cached_property
    def has_fabric(self) -> bool:
        """Return whether NVLink or xGMI joins any two GPUs."""
        return any(link is not None and link.is_fabric for row in self.links for link in row)


def bits(mask: int) -> Iterator[int]:
    """Yield the indices of the bits set in `mask`, rising."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(indices: tuple[int, ...] | list[int] | range) -> int:
    """Return the bit mask with exactly these bits."""
    mask = 0
    for index in indices:
        mask |= 1 << index
    return mask
