"""How the demo looks: a heading for each scene, a picture, and the few lines that belong to it.

At most 100 columns; nothing is said by colour alone.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from local_cluster.demo.claims import Claim
from local_cluster.demo.facts import HeldGang, Outcome, PendingGang, PlacedGang, Seat
from local_cluster.traces import Trace
from muster.adapters.drawing import NodePicture, draw_node, draw_strips

WIDTH = 100
INDENT = 2
BAR = 24


class Show:
    """The screen. With `quiet`, only progress is told."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._scenes = 0
        self._advised = False

    # --- progress ---------------------------------------------------------------------------------

    def done(self, step: str, took_s: float) -> None:
        """Print a step with the seconds that it took."""
        line = Text.assemble(("  ✓ ", "green"), step.ljust(60), (f"{took_s:5.1f} s", "dim"))
        self._console.print(line)

    # --- scenes -----------------------------------------------------------------------------------

    def scene(self, title: str, example: str, story: str) -> None:
        """Print the heading of a new scene, what happens in it and its example."""
        self._scenes += 1
        heading = f"── {self._scenes}  {title} "
        self._print(Text("\n" + heading.ljust(WIDTH, "─"), "bold"))
        self._print(Text(textwrap.fill(story, WIDTH - 2 * INDENT)), indent=INDENT)
        self._print(Text(example, "dim"), indent=INDENT)
        self._print(Text())

    def part(self, title: str) -> None:
        """Begin a part of the story; its scenes are counted from 1."""
        self._scenes = 0
        self._print(Text(f"\n{title}", "bold"))

    def lines(self, text: str) -> None:
        """Show lines as they are, already as wide as the screen."""
        if not self._quiet:
            self._console.print(Text(text.rstrip()), soft_wrap=True)

    def node(self, picture: NodePicture) -> None:
        """Draw a node with its links and pods."""
        self._print(draw_node(picture), indent=INDENT)

    def strips(self, pictures: Iterable[NodePicture]) -> None:
        """Draw one line for each node."""
        self._print(draw_strips(pictures), indent=INDENT)

    def holders(self, rows: Sequence[tuple[str, Seat]]) -> None:
        """(letter, seat): who holds what."""
        table = Table.grid(padding=(0, 3))
        last = ""
        for letter, seat in rows:
            table.add_row(
                Text(letter if letter != last else "", "bold"),
                seat.pod,
                seat.node,
                gpu_phrase(seat.gpus),
            )
            last = letter
        self._print(Text())
        self._print(table, indent=INDENT)

    def compare(self, gang: PlacedGang) -> None:
        """Show what the gang got, and what first-fit would have got."""
        ours, theirs = gang.muster, gang.first_fit
        columns = [Column(no_wrap=True) for _ in range(5)]
        widest = max(ours.bandwidth_gb_per_s or 0.0, theirs.bandwidth_gb_per_s or 0.0)
        table = Table.grid(*columns, padding=(0, 3))
        for name, outcome, style in (("Muster", ours, "bold green"), ("first-fit", theirs, "")):
            speed = outcome.bandwidth_gb_per_s
            table.add_row(
                Text(name, style),
                Text(spots(outcome), style),
                Text(outcome.link or "no NVLink", style),
                Text(f"{speed:g} GB/s" if speed else "–", style, justify="right"),
                Text("█" * round(BAR * (speed or 0.0) / widest) if widest else "", style),
            )
        self._print(Text())
        self._print(table, indent=INDENT)
        if ours.bandwidth_gb_per_s == theirs.bandwidth_gb_per_s:
            self.note("first-fit is as wide here: the lowest free GPUs happen to be such a set")
        self.note(f"bound {gang.placed_ms:.0f} ms after its last pod was created")
        if any(seat.advisory for seat in ours.seats) and not self._advised:
            self._advised = True
            self.note("the nodes are exact and the indices are advice: no node agent is ready there")

    def held(self, gang: HeldGang) -> None:
        """Show a gang that is incomplete and holds nothing."""
        table = Table.grid(padding=(0, 3))
        table.add_row("pods", f"{gang.present} of {gang.needed} there, {gang.bound} bound")
        table.add_row("GPUs", f"{gang.free_gpu_count_while_held} free, as before")
        table.add_row("event", Text(gang.event, "yellow"))
        self._print(table, indent=INDENT)
        self._print(Text())

    def pending(self, gang: PendingGang) -> None:
        """Show a gang that does not fit, and the condition that says why."""
        table = Table.grid(padding=(0, 3))
        table.add_row("pods", f"{gang.members - gang.bound} of {gang.members} pending, {gang.bound} bound")
        table.add_row("GPUs", f"{gang.free_gpu_count_after} free, as before")
        reason = f"PodScheduled=False {gang.condition_reason}\n{gang.condition}"
        table.add_row("condition", Text(reason, "yellow"))
        reason, _, why = gang.event.partition(": ")
        same = why.rstrip(".") in gang.condition
        table.add_row("event", Text(f"{reason}, in the same words" if same else gang.event, "yellow"))
        table.add_row(
            "first-fit",
            f"would have bound {gang.first_fit_would_bind_pods} of the {gang.members} pods; "
            "they hold their GPUs and wait for the others",
        )
        self._print(Text())
        self._print(table, indent=INDENT)

    def model(self) -> None:
        """How bandwidths are to be read; said once."""
        self._print(Text())
        self.note(
            "first-fit: one pod at a time, on the first node with room, on its lowest free GPUs. "
            "Bandwidths are modelled, 25 GB/s for each NVLink; a gang's is that of the weakest link on the "
            "best ring over its GPUs."
        )

    def rows(self, rows: Iterable[Sequence[str | Text]]) -> None:
        """Cells in columns."""
        table = Table.grid(padding=(0, 3))
        for row in rows:
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
        self._print(table, indent=INDENT)

    def trace(self, trace: Trace) -> None:
        """Print all spans of a trace as a tree, with their times."""
        tree = trace.tree()
        self.rows([f"{'  ' * depth}{span.process}: {span.name}", f"{span.ms:.1f} ms"] for depth, span in tree)

    def gap(self) -> None:
        """Print an empty line."""
        self._print(Text())

    def say_next(self, text: str) -> None:
        """Say what happens next."""
        self._print(Text(text), indent=INDENT)
        self._print(Text())

    def note(self, text: str) -> None:
        """Print a remark."""
        self._print(Text(textwrap.fill(text, WIDTH - 2 * INDENT), "dim"), indent=INDENT)

    # --- the end ----------------------------------------------------------------------------------

    def claims(self, claims: Sequence[Claim]) -> None:
        """Print each claim, whether it holds, and the evidence."""
        self._print(Text("\n" + "── Checked against the API server ".ljust(WIDTH, "─"), "bold"))
        for claim in claims:
            mark = Text("✓ ", "bold green") if claim.holds else Text("✗ ", "bold red")
            self._print(mark.append(claim.text, "default" if claim.holds else "bold red"), indent=INDENT)
            self._print(Text(claim.evidence, "dim"), indent=INDENT + 2)

    def verdict(self, claims: Sequence[Claim], took_s: float) -> None:
        """Print how many claims hold."""
        failed = sum(not claim.holds for claim in claims)
        text = f"{len(claims) - failed} of {len(claims)} claims hold; {took_s:.1f} s in all."
        self._print(Text("\n" + text, "bold red" if failed else "bold green"), indent=INDENT)

    def say(self, text: str, style: str = "") -> None:
        """A line for the person at the terminal, also when quiet."""
        self._console.print(Text(text, style), soft_wrap=True)

    def _print(self, renderable: Text | Table, indent: int = 0) -> None:
        """Line by line, so that no blanks stand at the ends."""
        if self._quiet:
            return
        options = self._console.options.update(width=WIDTH - indent)
        for segments in self._console.render_lines(renderable, options, pad=False):
            line = Text.assemble(" " * indent, *((segment.text, segment.style or "") for segment in segments))
            line.rstrip()
            self._console.print(line, no_wrap=True, overflow="ignore")


def spots(outcome: Outcome) -> str:
    """ "v100-1 GPUs 0 3", node after node."""
    return "; ".join(f"{node} {gpu_phrase(gpus)}" for node, gpus in outcome.gpus.items())


def gpu_phrase(gpus: Sequence[int]) -> str:
    """Return the GPUs as words: `GPU 3`, `GPUs 0 1`."""
    return f"GPU{'s' if len(gpus) > 1 else ''} {' '.join(map(str, gpus))}"


def sentence(message: str) -> str:
    """A condition's message without the blanks at its ends."""
    return re.sub(r"\s+", " ", message).strip()
