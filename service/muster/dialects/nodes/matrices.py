"""Read the links of a node's GPUs, in any of the common forms.

    {"GPU_NV1_0_1": "Single NVLink", …}      pairs, as the gputopology device plugin writes them
    [["X", "NV2"], ["NV2", "X"]]             rows, as newer ACK device plugins write them
    GPU0 GPU1 … / GPU0  X  NV2 …             tables, as nvidia-smi topo -m and rocm-smi --showtopo print them
    0000:05:00.0 … / 0000:05:00.0 SELF …     tables of amd-smi topology: GPUs are numbered in their order

An entry for one pair never changes another pair. An unknown word makes its pair unknown. If two entries give
different links for one pair, the weaker link counts. Each kind of problem is reported in one sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from muster.dialects.nodes.bounds import MAX_TEXT
from muster.domain.allocation import MAX_GPUS
from muster.domain.topology import LINK_GB_PER_S, LINK_WORDS, GpuTopology, Link

MAX_COLUMNS = 4 * MAX_GPUS
"""Largest number of columns of a table. GPUs come first, then network cards and affinities."""

_SHOWN = 40
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""A terminal's colours: `nvidia-smi` underlines the header, also in a file."""
_ADDRESS = re.compile(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
"""How amd-smi names a GPU: its PCIe address."""
_GPU = re.compile(r"GPU([0-9]{1,4})", re.IGNORECASE)
_KEY = re.compile(r"GPU_(?P<kind>.+)_(?P<i>[0-9]{1,4})_(?P<j>[0-9]{1,4})", re.IGNORECASE)

_NIC = re.compile(r"NIC[0-9]+|mlx[0-9a-z_]+", re.IGNORECASE)
_SAME_ROOT = ("PIX", "PXB")
"""The links between a GPU and a network card below the same PCIe root, the nearest first."""

_COLUMN = re.compile(r"GPU[0-9]{1,4}|NIC[0-9]+|mlx[0-9a-z_]+|CPU|NUMA|Affinity", re.IGNORECASE)
"""The name of a column."""

_KIND_OF = {
    **{kind.lower(): kind for kind in (*LINK_GB_PER_S, *LINK_WORDS)},
    **{words.lower(): kind for kind, words in LINK_WORDS.items()},
    "soc": "SYS",
}
"""The word for a link, in lower case → its kind. Old drivers print SOC for SYS."""
_LINKS = {word: Link.of_kind(kind) for word, kind in _KIND_OF.items()}
_LONGEST = 80
"""Largest number of characters of a link's word. Real words have less than half."""

Pair = tuple[int, int]
LinkEntry = tuple[int, int, str, str]
"""GPU, GPU, the word for their link, and the words next to it ("" without such words)."""


class Unreadable(ValueError):
    """Its text says why the whole text is no matrix."""


@dataclass(slots=True)
class _Problems:
    """Problems by their kind. The first of a kind is named, and the others are counted."""

    examples: dict[str, str] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    def add(self, problem: str, consequence: str) -> None:
        self.examples.setdefault(consequence, problem)
        self.count[consequence] = self.count.get(consequence, 0) + 1

    def sentences(self) -> tuple[str, ...]:
        return tuple(
            f"{problem}{self._and_more(consequence)}: {consequence}"
            for consequence, problem in self.examples.items()
        )

    def _and_more(self, consequence: str) -> str:
        return f" (and {further_count} more)" if (further_count := self.count[consequence] - 1) else ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Links by pair of GPUs, the smaller index first; None for a pair with an unknown word.

    `cards` has by GPU the names of the nearest network cards at its PCIe root, in order.
    """

    links: Mapping[Pair, Link | None]
    problems: tuple[str, ...] = ()
    cards: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def of_node(self, gpu_count: int) -> tuple[GpuTopology, tuple[str, ...]]:
        """Return the links of a node with `gpu_count` GPUs, and sentences about GPUs that only the matrix or
        the node has."""
        problems = list[str]()
        missing = [pair for pair in combinations(range(gpu_count), 2) if pair not in self.links]
        if missing:
            i, j = missing[0]
            problems.append(
                f"{len(missing)} pairs are missing, GPUs {i} and {j} the first of them: they count as unknown"
            )
        if highest_gpu := max((j for _, j in self.links if j >= gpu_count), default=None):
            problems.append(f"it names GPU {highest_gpu}, and the node has {gpu_count}: that is left out")
        rows = tuple(
            tuple(None if i == j else self.links.get((min(i, j), max(i, j))) for j in range(gpu_count))
            for i in range(gpu_count)
        )
        return GpuTopology(rows), tuple(problems)

    def rails(self, gpu_count: int) -> tuple[int, ...]:
        """Return the rail of each GPU: its network card's number among the cards that GPUs use.

        GPUs that are equally near to several cards get them in order, evenly: two GPUs and two cards below
        one PCIe switch are two rails. If a GPU has no card, nothing is known.
        """
        cards = [self.cards.get(gpu, ()) for gpu in range(gpu_count)]
        if () in cards:
            return ()
        places = [
            cards[:gpu].count(near_cards) * len(near_cards) // cards.count(near_cards)
            for gpu, near_cards in enumerate(cards)
        ]
        card_by_gpu = [near_cards[place] for near_cards, place in zip(cards, places, strict=True)]
        order = sorted(set(card_by_gpu), key=_by_number)
        return tuple(map(order.index, card_by_gpu))


def _by_number(card: str) -> tuple[int, str]:
    return len(card), card  # NIC2 before NIC10


def topology(text: str, gpu_count: int, key: str) -> tuple[GpuTopology, tuple[int, ...], tuple[str, ...]]:
    """Return the topology and rails of a node with `gpu_count` GPUs, and sentences about unreadable parts.

    Topology and rails are unknown if the text is no matrix. The sentences begin with `key`, the text's place.
    """
    try:
        matrix = read(text)
    except Unreadable as error:
        return GpuTopology.unknown(gpu_count), (), (f"{key}: {error}; the node is used without topology",)
    node_topology, problems = matrix.of_node(gpu_count)
    sentences = tuple(f"{key}: {problem}" for problem in matrix.problems + problems)
    return node_topology, matrix.rails(gpu_count), sentences


def read(text: str) -> Matrix:
    """Return the link of each pair of GPUs by the text.

    Raises:
        Unreadable: the text has none of the three forms, or is far too long.
    """
    if len(text) > MAX_TEXT:
        raise Unreadable(f"it has more than {MAX_TEXT:,} characters")
    problems = _Problems()
    if not is_table(text):
        return Matrix(_links(_of_json(text, problems), problems), problems.sentences())
    table = _of_tables(text, problems)
    return Matrix(_links(table.cells(), problems), problems.sentences(), table.cards())


def is_table(text: str) -> bool:
    """Return whether a line of the text is the header of a printed matrix."""
    return any(_is_header(cells) for _, cells in _lines(text[:MAX_TEXT]))


def _links(entries: Iterable[LinkEntry], problems: _Problems) -> dict[Pair, Link | None]:
    links: dict[Pair, Link | None] = {}
    for i, j, word, second_word in entries:
        pair = (min(i, j), max(i, j))
        shown = " and ".join(map(str, pair))
        link = link_of(word) or link_of(second_word)
        if link is None and links.get(pair, pair) is not None:
            other_word = f", {second_word[:_SHOWN]!r}," if second_word else ""
            problems.add(
                f"the link {word[:_SHOWN]!r}{other_word} of GPUs {shown} is unknown",
                "the pair counts as unknown",
            )
        elif links.get(pair, link) not in (link, None):
            problems.add(f"GPUs {shown} are joined in two ways", "the weaker counts")
        links[pair] = min(link, links.get(pair, link), key=_strength)
    return links


def _strength(link: Link | None) -> tuple[float, str]:
    return (link.gb_per_s, link.kind) if link else (0.0, "")


def link_of(text: str) -> Link | None:
    """Return the link of an abbreviation ("NV2", "nv2") or of words ("Two NVLinks"); None for other texts."""
    return _LINKS.get(" ".join(text.lower().split())) if len(text) <= _LONGEST else None


# --- JSON ------------------------------------------------------------------------------------------


_NO_TABLE = "no table as nvidia-smi topo -m, rocm-smi --showtopo or amd-smi topology prints it"
_WRAPPED = (
    "its rows do not fit its header, as if a terminal had wrapped the lines: write the table into a file"
)


class _Members(list[tuple[str, object]]):
    """A JSON object as the list of its members. A dict would hide duplicate keys."""


def _of_json(text: str, problems: _Problems) -> Iterator[LinkEntry]:
    try:
        value = json.loads(text, object_pairs_hook=_Members)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is no JSON ({str(error)[:80]}), and {_NO_TABLE}") from error
    if isinstance(value, _Members):
        return _of_pairs(value, problems)
    if isinstance(value, list) and all(type(row) is list for row in value):
        return _of_rows(value, problems)
    raise Unreadable(f"it is no JSON object and no JSON list of lists, and {_NO_TABLE}")


def _of_pairs(members: _Members, problems: _Problems) -> Iterator[LinkEntry]:
    for key, words in members:
        match = _KEY.fullmatch(key.strip())
        i, j = (int(match["i"]), int(match["j"])) if match else (0, 0)
        if match is None or i == j or max(i, j) >= MAX_GPUS:
            problems.add(f"the key {key[:80]!r} is not GPU_<ABBR>_<i>_<j>", "it is left out")
        else:
            yield i, j, match["kind"], words if isinstance(words, str) else str(words)[:_SHOWN]


def _of_rows(rows: list[list[object]], problems: _Problems) -> Iterator[LinkEntry]:
    if len(rows) > MAX_GPUS:
        problems.add(f"it is of {len(rows)} GPUs", f"the first {MAX_GPUS} are read")
    for i, row in enumerate(rows[:MAX_GPUS]):
        if len(row) != len(rows):
            problems.add(f"row {i} has {len(row)} entries of {len(rows)}", "those that are there are read")
        for j, word in enumerate(row[:MAX_GPUS]):
            if i != j:
                yield i, j, word if isinstance(word, str) else str(word)[:_SHOWN], ""


# --- tables as the tools print them ----------------------------------------------------------------


@dataclass(slots=True)
class _Table:
    """One table: the GPU of each column (-1 for a network card), and the lines of its rows by GPU.

    `names` are the names of all columns.
    """

    columns: list[int]
    names: list[str] = field(default_factory=list)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    may_continue: bool = False
    """Whether the last row may continue in the next line."""

    def cells(self) -> Iterator[LinkEntry]:
        for i, cells in self.rows:
            for j, word in zip(self.columns, cells, strict=False):
                if 0 <= j < MAX_GPUS and i != j and i < MAX_GPUS:
                    yield i, j, word, ""

    def cards(self) -> dict[int, tuple[str, ...]]:
        """Return by GPU the names of the nearest network cards at its PCIe root."""
        nearest = {}
        for kind in reversed(_SAME_ROOT):  # so that nearer cards replace those farther away
            for gpu, cells in self.rows:
                by_card = zip(cells, self.names, strict=False)
                near_cards = [name for word, name in by_card if word == kind and _NIC.fullmatch(name)]
                if near_cards:
                    nearest[gpu] = tuple(sorted(near_cards, key=_by_number))
        return nearest

    def take(self, head: int, cells: list[str]) -> None:
        """Take in a line after the header. `head` is the GPU at its beginning; -1 if there is none.

        Raises:
            Unreadable: an earlier line was wrapped. The header continues if columns are named before the
                first row. A row continues if it has nothing after its links, and no row comes next.
        """
        names = 0 if _has_links(cells) else sum(_COLUMN.fullmatch(cell) is not None for cell in cells)
        if (self.may_continue and head >= 0) or (len(self.columns) > 1 and not self.rows and names > 1):
            raise Unreadable(_WRAPPED)
        if head >= 0:
            self.rows.append((head, cells[1:]))
        elif self.rows and not _COLUMN.fullmatch(cells[0]):
            self.may_continue = len(self.rows[-1][1]) <= len(self.columns)

    def fits(self) -> bool:
        """Return whether no row has a link in the column of its own GPU, which must have an X."""
        own_columns = ((self.columns.index(i), cells) for i, cells in self.rows if i in self.columns)
        return not any(
            column < len(cells) and link_of(cells[column]) is not None for column, cells in own_columns
        )

    def count_links(self) -> int:
        """Return the number of cells that are links. rocm-smi also prints weights and hops, which are
        numbers."""
        return sum(link_of(word) is not None for _, _, word, _ in self.cells())


def _of_tables(text: str, problems: _Problems) -> _Table:
    tables = list[_Table]()
    for head, cells in _lines(text):
        if _is_header(cells):
            if tables:
                tables[-1].take(-1, cells)
            last = max(index for index, cell in enumerate(cells) if _GPU.fullmatch(cell))
            tables.append(_Table([_gpu_index(cell) for cell in cells[: last + 1]], cells))
        elif tables:
            tables[-1].take(head, cells)
    if not all(table.fits() for table in tables):
        raise Unreadable(_WRAPPED)
    link_counts = [table.count_links() for table in tables]
    if not any(link_counts) and any(len(table.columns) > 1 for table in tables):
        raise Unreadable("its tables have no links that are known")
    if sum(map(bool, link_counts)) > 1:
        problems.add("it has several tables of links", "the one with most links is read")
    return tables[link_counts.index(max(link_counts))]


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the GPU at the beginning of each line (-1 if there is none), and the line's words. A `#` before
    them is skipped.

    GPUs that a line names by address get numbers in the order of their lines.
    """
    by_address = dict[str, str]()
    for line in _STYLE.sub("", text).splitlines():
        cells = line.lstrip("# \t").split(maxsplit=MAX_COLUMNS)[:MAX_COLUMNS]
        if cells and all(map(_ADDRESS.fullmatch, cells)):
            for cell in cells:
                by_address.setdefault(cell.lower(), f"GPU{len(by_address)}")
        if by_address:
            cells = [by_address.get(cell.lower(), cell) for cell in cells]
        if cells:
            yield _gpu_index(cells[0]), cells


def _gpu_index(cell: str) -> int:
    match = _GPU.fullmatch(cell)
    return int(match[1]) if match else -1


def _has_links(cells: list[str]) -> bool:
    return any(cell.upper() == "X" or link_of(cell) is not None for cell in cells)


def _is_header(cells: list[str]) -> bool:
    """Return whether a line is a header: it names GPUs and has no link. A row has at least its X.

    A header with only one GPU is recognized by the word Affinity.
    """
    gpus = sum(_gpu_index(cell) >= 0 for cell in cells)
    return not _has_links(cells) and (gpus > 1 or (gpus == 1 and "AFFINITY" in map(str.upper, cells)))
