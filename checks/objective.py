"""Write the table of levels of docs/objective.md from the rows of the objective.

    python -m checks.objective        write it into the page

A test fails if the page has another table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from muster.placement.model.objective import OBJECTIVE, LevelRow

PAGE = Path(__file__).parents[1] / "docs" / "objective.md"
HEAD = "| | level | better | in the decision |\n| --- | --- | --- | --- |\n"


def main() -> int:
    """Write the table into the page, and return the exit status."""
    written = re.compile(f"{re.escape(HEAD)}(?:\\|.*\n)+")
    PAGE.write_text(written.sub(lambda match: table(OBJECTIVE), PAGE.read_text()))
    return 0


def table(rows: Sequence[LevelRow]) -> str:
    """Return the table of the levels."""
    lines = (
        f"| {row.number} | {row.title} | {row.better} | `{row.field}` |\n" for row in rows if row.in_decision
    )
    return HEAD + "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
