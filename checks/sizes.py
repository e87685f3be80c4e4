"""Say which modules and functions of the service are too long to be read in one go.

    python -m checks.sizes            what is too long
    python -m checks.sizes --near     what has hardly any room left, too: a change may have to split it first

A module has at most 700 lines and a function at most 60, as CONTRIBUTING.md says. Generated code does not
count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SERVICE = Path(__file__).parents[1] / "service" / "muster"
OF_MODULE, OF_FUNCTION = 700, 60
NEAR = 0.95
"""Of these, where hardly any room is left."""


def main() -> int:
    """Print what is too long, and return the exit status."""
    near = NEAR if sys.argv[1:] == ["--near"] else 1.0
    problems = [problem for path in sorted(SERVICE.rglob("*.py")) for problem in too_long(path, near)]
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


def too_long(path: Path, near: float = 1.0) -> Iterator[str]:
    """Yield a sentence for the module, and for each of its functions, that has too many lines.

    `near` is the share of the limit above which lines are too many.
    """
    if "generated" in path.parts:
        return
    text = path.read_text()
    if (lines := len(text.splitlines())) > near * OF_MODULE:
        yield f"{path}: {lines} lines, at most {OF_MODULE}: split it by subject"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > near * OF_FUNCTION:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {OF_FUNCTION}"


if __name__ == "__main__":
    sys.exit(main())
