"""Write the JSON schemas of what Muster prints for programs.

    python -m checks.schemas        write docs/schemas

A test fails if a file is not what the types of the code give.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from muster.adapters.schemas import schemas

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


def main() -> int:
    """Write the files, and return the exit status."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
    return 0


def texts() -> dict[str, str]:
    """Return the text of each file."""
    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()}


if __name__ == "__main__":
    sys.exit(main())
