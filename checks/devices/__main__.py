"""Compare what the node agent says of this machine's GPUs with NVIDIA's own tools, and print a table.

    python -m checks.devices        `make device-check`

It needs no network and no cluster: the kubelet and the API server are fakes. Exit status: 0 if all that was
compared is the same, and where there is no GPU; 1 if something differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing

from checks.devices import publisher, smi
from checks.devices.smi import Card, NoGpuError, Smi
from checks.devices.table import DIFFERS, UNKNOWN, Row, printed, rows_of

NEVER = (
    "a GPU that fails or vanishes",
    "GPUs in MIG mode",
    "a kubelet, and containers with the GPUs",
    "a second endpoint beside NVIDIA's device plugin",
)
"""What it tries on no machine."""


def main(ask: Smi = smi.run) -> int:
    """Print the table, and return the exit status."""
    try:
        cards = smi.cards(ask)
    except NoGpuError as why:
        print(f"no NVIDIA GPU here, so nothing is checked: {why}")
        return 0
    rows = list[Row]()
    try:
        for row in all_rows(cards, ask):
            rows.append(row)
    except KeyboardInterrupt:
        rows.append(Row("what comes after this", UNKNOWN, "time was up"))
    print("\n".join(printed(rows)))
    lacking = [row.what for row in rows if row.ended == UNKNOWN]
    print(f"\nnot checked here: {', '.join(lacking) or 'nothing'}")
    print(f"never checked by this command: {'; '.join(NEVER)}")
    wrong = [row.what for row in rows if row.ended == DIFFERS]
    if wrong:
        print(
            f"differs: {', '.join(wrong)}. nvidia-smi topo -m says:\n{_topology_text(ask)}", file=sys.stderr
        )
    return 1 if wrong else 0


def all_rows(cards: list[Card], ask: Smi) -> Iterator[Row]:
    """Yield the rows of each part. One that can't go on says so in a row."""
    yield from rows_of("order of nvidia-smi", lambda: publisher.read_cards(cards))
    yield from rows_of("facts of the agent", lambda: publisher.of_driver(cards, ask))
    yield from rows_of("device plugin", _protocol)
    yield from rows_of("agent at rest", _footprint)


def _protocol() -> Iterator[Row]:
    from checks.devices import protocol  # noqa: PLC0415 - its packages may be missing

    with closing(publisher.opened()) as source:
        yield from protocol.spoken(source)


def _footprint() -> Iterator[Row]:
    from checks.devices import footprint  # noqa: PLC0415

    publisher.opened().close()
    yield from footprint.measured("nvml")


def _topology_text(ask: Smi) -> str:
    try:
        return smi.STYLE.sub("", ask("topo", "-m"))
    except NoGpuError as why:
        return str(why)


if __name__ == "__main__":
    sys.exit(main())
