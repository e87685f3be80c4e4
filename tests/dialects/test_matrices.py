"""Matrices as people have them: what tools print, and JSON; whole, torn and damaged."""

from __future__ import annotations

import contextlib
import json
import random
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from local_cluster.topology import load_topology
from muster.dialects.nodes import nodes
from muster.dialects.nodes.bounds import MAX_TEXT
from muster.dialects.nodes.matrices import Matrix, Unreadable, is_table, read, topology
from muster.domain.topology import LINK_GB_PER_S, LINK_WORDS, GpuTopology, Link
from tests.dialects.objects import as_json, full_matrix, node_object

MATRICES = Path(__file__).parent / "matrices"
TOPOLOGIES = Path(__file__).parents[2] / "local_cluster" / "topologies"
KINDS = (*LINK_GB_PER_S, *(f"NV{count}" for count in range(1, 19)))


def kinds_of(matrix: Matrix | GpuTopology) -> dict[tuple[int, int], str]:
    """The abbreviation of each known link by pair."""
    if isinstance(matrix, GpuTopology):
        pairs = combinations(range(matrix.gpu_count), 2)
        return {pair: link.kind for pair in pairs if (link := matrix.link(*pair))}
    return {pair: link.kind for pair, link in matrix.links.items() if link}


def table(*rows: str) -> str:
    """A printed table: rows of cells for GPU0, GPU1 …"""
    header = " ".join(f"GPU{gpu}" for gpu in range(len(rows[0].split())))
    return "\n".join((f"   {header}", *(f"GPU{gpu} {row}" for gpu, row in enumerate(rows))))


# --- real ones -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in TOPOLOGIES.glob("*.txt")))
def test_every_printed_matrix_that_we_have_is_read_as_it_was_printed(name: str) -> None:
    whole = load_topology(name)
    links, _, problems = topology((TOPOLOGIES / f"{name}.txt").read_text(), whole.gpu_count, "k")
    assert problems == ()
    assert kinds_of(links) == {(i, j): whole.links[i][j] for i, j in combinations(range(whole.gpu_count), 2)}


def islands_of(kind: str, between: str, *islands: range) -> dict[tuple[int, int], str]:
    gpus = sorted(gpu for island in islands for gpu in island)
    return {
        (i, j): kind if any(i in island and j in island for island in islands) else between
        for i, j in combinations(gpus, 2)
    }


V100 = kinds_of(read((TOPOLOGIES / "v100-8x-gputopology-document.txt").read_text()))
PRINTED = {
    "rocm-8x-two-hives": (8, islands_of("XGMI", "PCIE", range(4), range(4, 8))),
    "rocm-2x-mi100-pcie": (2, {(0, 1): "PCIE"}),
    "nvidia-4x-soc": (4, islands_of("PHB", "SYS", range(2), range(2, 4))),
    "nvidia-2x-underlined": (2, {(0, 1): "NV12"}),
    "nvidia-2x-5090": (2, {(0, 1): "PHB"}),
    "nvidia-8x-v100-with-prompt": (8, V100),
    "nvidia-8x-h100-topo-mp": (8, islands_of("NODE", "SYS", range(4), range(4, 8))),
    "nvidia-8x-a100-bridged-pairs": (
        8,
        islands_of("NODE", "SYS", range(4), range(4, 8)) | {(gpu, gpu + 1): "NV12" for gpu in range(0, 8, 2)},
    ),
    "nvidia-8x-b200-one-pair-off": (
        8,
        islands_of("NV18", "SYS", range(8))
        | {(min(2, gpu), max(2, gpu)): "NODE" if gpu < 4 else "SYS" for gpu in (0, 1, 3, 4, 5, 6, 7)},
    ),
    "nvidia-4x-gb200": (4, islands_of("NV18", "SYS", range(4))),
    "amd-smi-4x": (4, islands_of("XGMI", "PCIE", range(4))),
}  # fmt: skip


@pytest.mark.parametrize(("name", "gpus", "kinds"), [(name, *expected) for name, expected in PRINTED.items()])
def test_what_tools_print_with_all_that_stands_around_it(
    name: str, gpus: int, kinds: dict[tuple[int, int], str]
) -> None:
    links, _, problems = topology((MATRICES / f"{name}.txt").read_text(), gpus, "k")
    assert (kinds_of(links), problems) == (kinds, ())
    assert len(kinds) == gpus * (gpus - 1) // 2


RAILS: dict[str, tuple[int, ...]] = {
    "hgx-h100-8x-nvswitch": (0, 1, 2, 3, 4, 5, 6, 7),  # NIC3, 4 and 6 are next to no GPU
    "v100-8x-hybrid-cube-mesh": (0, 0, 1, 1, 2, 2, 3, 3),
    "nvidia-4x-gb200": (),
    "nvidia-2x-underlined": (),
}


@pytest.mark.parametrize("name", RAILS)
def test_gpus_lie_on_the_rails_of_the_network_cards_next_to_them(name: str) -> None:
    text = next(path for path in EVERY if path.stem == name).read_text()
    assert topology(text, len(RAILS[name]) or 2, "k")[1] == RAILS[name]


@pytest.mark.parametrize(
    ("gpus", "cards", "rails"),
    [
        (2, 2, (0, 1, 2, 3, 4, 5, 6, 7)),  # a DGX A100
        (2, 4, (0, 1, 2, 3, 4, 5, 6, 7)),
        (2, 1, (0, 0, 1, 1, 2, 2, 3, 3)),
        (4, 2, (0, 0, 1, 1, 2, 2, 3, 3)),
        (4, 1, (0, 0, 0, 0, 1, 1, 1, 1)),
        (4, 4, (0, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_gpus_below_one_switch_share_its_cards_evenly(gpus: int, cards: int, rails: tuple[int, ...]) -> None:
    """`gpus` and `cards` are their numbers below each switch. Columns of cards may stand in any order."""
    columns = [*range(8 // gpus * cards)][::-1]
    header = [f"GPU{gpu}" for gpu in range(8)] + [f"mlx5_{card}" for card in columns]
    rows = [
        [f"GPU{gpu}", *("X" if gpu == peer else "NV12" for peer in range(8))]
        + ["PXB" if card // cards == gpu // gpus else "SYS" for card in columns]
        for gpu in range(8)
    ]
    assert topology("\n".join(map("\t".join, [header, *rows])), 8, "k")[1] == rails


EVERY = sorted([*MATRICES.glob("*.txt"), *TOPOLOGIES.glob("*.txt")])


@pytest.mark.parametrize("path", EVERY, ids=[path.stem for path in EVERY])
@pytest.mark.parametrize("tabs", [True, False])
def test_lines_that_a_terminal_has_wrapped_give_no_wrong_link(path: Path, tabs: bool) -> None:
    """The text is refused, or each link that it still gives is the right one."""
    text = path.read_text()
    whole = kinds_of(read(text))
    lines = [line.expandtabs() if tabs else line for line in text.splitlines()]
    for width in range(12, max(map(len, lines)) + 1, 3):
        wrapped = [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]
        with contextlib.suppress(Unreadable):
            assert kinds_of(read("\n".join(wrapped))).items() <= whole.items(), width


def test_a_wrapped_table_is_refused_with_what_to_do() -> None:
    lines = (MATRICES / "nvidia-8x-b200-one-pair-off.txt").read_text().expandtabs().splitlines()
    text = "\n".join(line[at : at + 60] for line in lines for at in range(0, max(1, len(line)), 60))
    links, _, problems = topology(text, 8, "k")
    assert not links.is_known
    assert problems == (
        "k: its rows do not fit its header, as if a terminal had wrapped the lines: write the table into a "
        "file; the node is used without topology",
    )


def test_the_first_rows_of_a_matrix_say_what_they_say() -> None:
    links, _, problems = topology((MATRICES / "nvidia-8x-nv18-in-a-comment.txt").read_text(), 8, "k")
    assert set(kinds_of(links).values()) == {"NV18"}
    assert len(kinds_of(links)) == 13
    assert problems == ("k: 15 pairs are missing, GPUs 2 and 3 the first of them: they count as unknown",)


def test_pcie_is_a_kind_of_its_own() -> None:
    link = Link.of_kind("PCIE")
    assert (link.kind, link.is_fabric) == ("PCIE", False)
    assert Link.of_kind("SYS").gb_per_s < link.gb_per_s < Link.of_kind("NODE").gb_per_s


# --- each place where a matrix may stand -----------------------------------------------------------


def test_a_table_in_the_annotation() -> None:
    text = (MATRICES / "nvidia-2x-underlined.txt").read_text()
    node = nodes.read(node_object({"nvidia.com/gpu": 2}, matrix=text))
    assert (kinds_of(node.topology), node.problems) == ({(0, 1): "NV12"}, ())


# --- what people write by hand ---------------------------------------------------------------------

SLIPS: dict[str, tuple[str, int, dict[tuple[int, int], str], tuple[str, ...]]] = {
    # name: text, GPUs, links that are known, problems
    "lower case": (table("x nv2", "nv2 x"), 2, {(0, 1): "NV2"}, ()),
    "words in a list": ('[["X", " two  NVLinks "]]', 2, {(0, 1): "NV2"},
                        ("k: row 0 has 2 entries of 1: those that are there are read",)),
    "N/A": (table("X N/A NV2", "N/A X PIX", "NV2 PIX X"), 3, {(0, 2): "NV2", (1, 2): "PIX"},
            ("k: the link 'N/A' of GPUs 0 and 1 is unknown: the pair counts as unknown",)),
    "one way only N/A": (table("X NV2", "N/A X"), 2, {},
                         ("k: the link 'N/A' of GPUs 0 and 1 is unknown: the pair counts as unknown",)),
    "both ways differ": (table("X NV2 SYS", "NV1 X SYS", "PIX SYS X"), 3,
                         {(0, 1): "NV1", (0, 2): "SYS", (1, 2): "SYS"},
                         ("k: GPUs 0 and 1 are joined in two ways (and 1 more): the weaker counts",)),
    "a network card in between": ("GPU0 NIC0 GPU1\nGPU0 X PIX NV2\nNIC0 PIX X SYS\nGPU1 NV2 SYS X", 2,
                                  {(0, 1): "NV2"}, ()),
    "a torn row": (table("X NV1 NV2", "NV1", "NV2 NV4 X"), 3,
                   {(0, 1): "NV1", (0, 2): "NV2", (1, 2): "NV4"}, ()),
    "GPUs that the node has not": (table("X NV1 NV2", "NV1 X NV4", "NV2 NV4 X"), 2, {(0, 1): "NV1"},
                                   ("k: it names GPU 2, and the node has 2: that is left out",)),
    "two nodes in one text": (table("X SYS", "SYS X") + "\n" + table("X NV1 NV1", "NV1 X NV1"), 3,
                              {(0, 1): "NV1", (0, 2): "NV1", (1, 2): "NV1"},
                              ("k: it has several tables of links: the one with most links is read",)),
    "pairs the other way round": ('{"gpu_nv2_1_0": ""}', 2, {(0, 1): "NV2"}, ()),
    "a pair twice": ('{"GPU_NV2_0_1": "", "GPU_SYS_1_0": ""}', 2, {(0, 1): "SYS"},
                     ("k: GPUs 0 and 1 are joined in two ways: the weaker counts",)),
    "the same key twice": ('{"GPU_NV2_0_1": "", "GPU_NV2_0_1": ""}', 2, {(0, 1): "NV2"}, ()),
    "other keys": (as_json({**full_matrix(2), "NODE": "x", "GPU_NV1_1_1": ""}), 2, {(0, 1): "NV2"},
                   ("k: the key 'NODE' is not GPU_<ABBR>_<i>_<j> (and 1 more): it is left out",)),
    "words that are no words": ('{"GPU_N-A_0_1": {"a": 1}, "GPU_PIX_0_2": 3}', 3, {(0, 2): "PIX"},
                                ("k: the link 'N-A', \"[('a', 1)]\", of GPUs 0 and 1 is unknown: "
                                 "the pair counts as unknown",
                                 "k: 1 pairs are missing, GPUs 1 and 2 the first of them: "
                                 "they count as unknown")),
    "one GPU": ("GPU0 CPU Affinity\nGPU0 X 0-15", 1, {}, ()),
}  # fmt: skip


@pytest.mark.parametrize(("text", "gpus", "kinds", "problems"), SLIPS.values(), ids=SLIPS)
def test_a_slip_changes_its_own_pair_and_is_reported(
    text: str, gpus: int, kinds: dict[tuple[int, int], str], problems: tuple[str, ...]
) -> None:
    links, _, sentences = topology(text, gpus, "k")
    assert kinds_of(links) == kinds
    assert sentences == problems


NONE = {
    "nothing": "",
    "words": "no such command",
    "a number": "3",
    "a list of words": '["NV2"]',
    "very deep": "[" * 100_000,
    "torn JSON": '{"GPU_NV1_0_1": "Sing',
    "far too long": " " * (MAX_TEXT + 1),
    "a table of numbers": table("0 15", "15 0"),
    "a header alone": "GPU0 GPU1 GPU2",
}


@pytest.mark.parametrize("text", NONE.values(), ids=NONE)
def test_what_is_no_matrix_is_none(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)
    links, _, (problem,) = topology(text, 3, "k")
    assert links == GpuTopology.unknown(3)
    assert problem.endswith("; the node is used without topology")
    assert len(problem) < 300


HOSTILE = {
    "many GPUs in a header": " ".join(f"GPU{gpu}" for gpu in range(9999)) + "\nGPU0 " + "NV1 " * 9999,
    "many tables": "GPU0 GPU1\nGPU0 X NV1\n" * 40_000,
    "many bad keys": as_json({f"GPU_{'_' * (number % 50)}_x{number}": "" for number in range(20_000)}),
    "many bad words": table(*(" ".join(f"w{i}.{j}" for j in range(60)) for i in range(60))) + "\nGPU0 X NV1",
    "many rows": json.dumps([["NV1"]] * 100_000),
    "control characters": table("X \x07\x07", "\x9b31m X", ""),
    "a long word": table(f"X {'N' * 900_000}", "NV1 X"),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_read_in_bounds(text: str) -> None:
    links, _, problems = topology(text, 4, "k")
    assert links.gpu_count == 4
    assert len(problems) <= 4
    assert all(len(problem) < 300 and problem.isprintable() for problem in problems)


# --- random ones -----------------------------------------------------------------------------------

Links = dict[tuple[int, int], str]


def draw(seed: int) -> tuple[random.Random, int, Links]:
    rng = random.Random(seed)
    gpus = rng.choice((2, 2, 3, 4, 8, 16))
    few = rng.sample(KINDS, rng.randint(1, 5))
    return rng, gpus, {pair: rng.choice(few) for pair in combinations(range(gpus), 2)}


def cells_of(gpus: int, links: Links, itself: str) -> list[list[str]]:
    return [[itself if i == j else links[min(i, j), max(i, j)] for j in range(gpus)] for i in range(gpus)]


def nvidia(gpus: int, cells: list[list[str]], rng: random.Random) -> str:
    cards = [f"NIC{card}" for card in range(rng.randint(0, 3))]
    far = [rng.choice(("SYS", "PIX")) for _ in cards]
    gap = rng.choice(("\t", "    "))
    heads = [f"GPU{gpu}" for gpu in range(gpus)]
    lines = [["", *heads, *cards, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]]
    lines += [[head, *row, *far, "0-31", "0", "", "N/A"] for head, row in zip(heads, cells, strict=True)]
    lines += [[card, *far[:1] * gpus, *far] for card in cards]
    legend = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    return "\n".join(gap.join(line) for line in lines) + "\n" + legend


def rocm(gpus: int, cells: list[list[str]], rng: random.Random) -> str:
    heads = [f"GPU{gpu}" for gpu in range(gpus)]

    def part(title: str, rows: list[list[str]]) -> str:
        lines = ["       " + "".join(head.ljust(13) for head in heads)]
        lines += [
            head.ljust(7) + "".join(cell.ljust(13) for cell in row)
            for head, row in zip(heads, rows, strict=True)
        ]
        return "\n".join([f" {title} ".center(80, "="), *lines, ""])

    weight = str(rng.randint(1, 99))
    weights = [["0" if i == j else weight for j in range(gpus)] for i in range(gpus)]
    numa = "\n".join(f"GPU[{gpu}]\t\t: (Topology) Numa Node: 0" for gpu in range(gpus))
    return "\n".join(
        (part("Weight between two GPUs", weights), part("Link Type between two GPUs", cells), numa)
    )


def written(gpus: int, links: Links, rng: random.Random) -> dict[str, str]:
    """The same links in every form."""
    rows = cells_of(gpus, links, "X")
    return {
        "pairs": json.dumps({f"GPU_{kind}_{i}_{j}": "" for (i, j), kind in links.items()}),
        "rows": json.dumps(rows),
        "nvidia-smi": nvidia(gpus, [[cell.center(3) for cell in row] for row in rows], rng),
        "rocm-smi": rocm(gpus, cells_of(gpus, links, "0"), rng),
    }


@given(st.integers(0, 2**32))
def test_a_matrix_reads_back_as_it_was_written(seed: int) -> None:
    rng, gpus, links = draw(seed)
    for text in written(gpus, links, rng).values():
        spelt = rng.choice((str, str.lower, lambda plain: plain.replace("\n", "\r\n")))(text)
        read_back, _, problems = topology(spelt, gpus, "k")
        assert (kinds_of(read_back), problems) == (links, ())


LINK_NAMES = {word.lower() for word in (*LINK_GB_PER_S, *LINK_WORDS, *LINK_WORDS.values(), "soc")}


def is_no_link(text: str) -> bool:
    """Return whether this word names no link. A link in place of another is no damage that can be seen."""
    return "".join(text.split()).lower() not in LINK_NAMES


@given(st.integers(0, 2**32), st.text(alphabet=st.characters(codec="utf-8"), max_size=8).filter(is_no_link))
@example(431, "")  # a row with the name of another GPU in place of a link
def test_damage_stays_in_its_own_pairs(seed: int, junk: str) -> None:
    """Cells become other words, or rows are torn off: pairs that neither touches read as before."""
    rng, gpus, links = draw(seed)
    junk = "".join(junk.split()) or "?"
    cells = cells_of(gpus, links, "X")
    hurt = set()
    for _ in range(rng.randint(1, 4)):
        i, j = rng.sample(range(gpus), 2)
        cells[i][j] = rng.choice((junk, "N/A", "NV99", "X", f"GPU{rng.randrange(gpus)}"))
        hurt.add((min(i, j), max(i, j)))
    torn = rng.randrange(gpus + 1)
    torn_pairs = {pair for pair in links if pair[0] >= torn}  # neither of its rows is there any more
    if rng.random() < 0.5:
        text = "\n".join(nvidia(gpus, cells, rng).splitlines()[: torn + 1])
    else:
        text = json.dumps([row if i < torn else [] for i, row in enumerate(cells)])
    whole_pairs = {pair: kind for pair, kind in links.items() if pair not in hurt | torn_pairs}
    read_back, _, problems = topology(text, gpus, "k")
    assert whole_pairs.items() <= kinds_of(read_back).items()
    assert all(kinds_of(read_back).get(pair) in (None, links[pair]) for pair in hurt)
    assert problems or not torn_pairs


@given(st.integers(0, 2**32))
def test_any_damage_at_all_is_read_without_an_exception(seed: int) -> None:
    rng, gpus, links = draw(seed)
    for text in written(gpus, links, rng).values():
        letters = list(text)
        for _ in range(rng.randint(1, 30)):
            at = rng.randrange(len(letters) + 1)
            letters[at : at + rng.randint(0, 9)] = rng.choice(
                ("", "\n", "\t", "GPU1 ", "X", "[", "\x1b[4m", "#")
            )
        damaged, _, problems = topology("".join(letters), gpus, "k")
        assert damaged.gpu_count == gpus
        assert all(len(problem) < 300 for problem in problems)
        is_table("".join(letters))
