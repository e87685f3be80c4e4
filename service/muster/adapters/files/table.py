"""Show decisions in a terminal: one row for each gang, then the touched nodes. It is
readable without colour.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.adapters.drawing import NodePicture, draw_node, draw_strips
from muster.adapters.files import pictures
from muster.adapters.files.decide import Decided, Outcome, Status
from muster.domain.printable import printable
from muster.domain.words import listed
from muster.placement.cluster.fabric import natural

DRAWN = 6
"""Up to this number of nodes, each is drawn with its links. More nodes are drawn as strips."""
STRIPS = 64
"""The most strips. More nodes are counted."""

_STYLES = {
    Status.PLACED: "bold green",
    Status.WAITING: "yellow",
    Status.UNPLACEABLE: "bold red",
    Status.INVALID: "bold red",
}


def show(console: Console, decided: Decided, made_up: Sequence[str] = ()) -> None:
    """Print all decisions, then the touched nodes. `made_up` are the objects whose names are made up."""
    if not decided.outcomes:
        console.print("No gang is pending: there is nothing to place.")
        return
    holdings = pictures.holdings(decided)
    console.print(_gangs(decided, holdings))
    if made_up:
        console.print(Text(printable(f"made-up names, for generateName: {listed(made_up)}"), "dim"))
    nodes = sorted((name for name, gpus in holdings.holders.items() if gpus), key=natural)
    if nodes:
        console.print()
        console.print(_nodes(decided, holdings, nodes), no_wrap=True, overflow="ignore", crop=False)


def _gangs(decided: Decided, holdings: pictures.Holdings) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("GANG", overflow="fold")
    table.add_column("STATUS", no_wrap=True)
    table.add_column("PODS", no_wrap=True, justify="right")
    table.add_column("DECISION", overflow="fold")
    for outcome in decided.outcomes:
        table.add_row(
            Text(holdings.letters.get(pictures.key_of(outcome), "")),
            Text(printable(str(outcome.group.gang))),
            Text(outcome.status.value, _STYLES[outcome.status]),
            _pods(outcome),
            Text(printable(outcome.message)),
        )
    return table


def _pods(outcome: Outcome) -> str:
    """Return how many pods are placed or bound, and how many are needed; or how many are present, if that is
    more."""
    placed_count = len(outcome.placed.members) if outcome.placed else 0
    bound = len(outcome.group.bound)
    return f"{placed_count + bound}/{max(outcome.group.needed, outcome.group.present)}"


def _more_marks(shown: list[NodePicture]) -> str:
    """Return what other marks mean. They occur only if memory is shared."""
    letters = {mark.letter for picture in shown for mark in picture.marks.values()}
    meanings = {pictures.PARTLY: "its memory in part", pictures.SHARED: "several of the gangs"}
    return "".join(f"   {letter}: {text}" for letter, text in meanings.items() if letter in letters)


def _nodes(decided: Decided, holdings: pictures.Holdings, nodes: list[str]) -> RenderableType:
    shown = [pictures.picture(decided.after.nodes[name], holdings) for name in nodes[:STRIPS]]
    legend = Text(f"letters: the gangs above   {pictures.TAKEN}: taken before{_more_marks(shown)}", "dim")
    if len(nodes) <= DRAWN:
        parts: list[RenderableType] = [part for p in shown for part in (draw_node(p), Text())]
    else:
        parts = [draw_strips(shown)]
        if len(nodes) > STRIPS:
            parts.append(Text(f"and {len(nodes) - STRIPS} nodes more"))
    return Group(*parts, legend)
