"""Count the Go names that are pronouns or participles, as `checks.names` does for Python.

    python -m checks.go_names         whether the Go code is clean
    python -m checks.go_names shim    where these folders have such names

Variables, parameters, results, fields, constants, types and functions count. Generated code does not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from checks.names import ROOT, VAGUE, Count, files_of, not_clean
from checks.prose import is_generated

LITERAL = re.compile(r"//[^\n]*|/\*[\s\S]*?\*/|\"(?:\\.|[^\"\\\n])*\"|`[^`]*`|'(?:\\.|[^'\\])+'")
NAMES = r"(\w+(?:, \w+)*)"
"""a, or a, b."""
TYPED = rf"{NAMES} +(?:\.\.\.)?[\w*\[(<]"
"""Names before the first character of their type."""
DECLARATION = re.compile(
    rf"{NAMES} :=|\b(?:var|const|type) {NAMES}|^func (?:\([^)]*\) )?{NAMES}|\bstruct\{{ {TYPED}", re.MULTILINE
)
SIGNATURE = re.compile(r"\bfunc\b.*")
PARAMETER = re.compile(rf"[(,] ?{TYPED}")
STRUCT = re.compile(r"\bstruct \{\n(.*?)^\t*\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(rf"^\t+{TYPED}", re.MULTILINE)
GROUP = re.compile(r"^(?:var|const|type) \(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
MEMBER = re.compile(rf"^\t{NAMES}", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Print the vague names of folders, or the problems of all Go code, and return the exit status."""
    count = Count()
    for file in _go_files(arguments):
        names = list(declared((ROOT / file).read_text()))
        if arguments:
            sys.stdout.writelines(f"{file}:{line}: {name}\n" for line, name in names if name.lower() in VAGUE)
        count.add_names(str(file), names)
    problems = [] if arguments else list(not_clean("Go", count))
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return min(len(problems), 1)


def declared(text: str) -> list[tuple[int, str]]:
    """Return the line and the name of each declaration in Go code that gofmt has formatted."""
    code = LITERAL.sub(lambda literal: "\n" * literal[0].count("\n"), text)
    matches = [
        *DECLARATION.finditer(code),
        *_within(SIGNATURE, PARAMETER, code),
        *_within(STRUCT, FIELD, code),
        *_within(GROUP, MEMBER, code),
    ]
    return sorted(
        (code.count("\n", 0, match.start(match.lastindex or 0)) + 1, name)
        for match in matches
        for name in match[match.lastindex or 0].split(", ")
        if name != "_"
    )


def _within(outer: re.Pattern[str], inner: re.Pattern[str], code: str) -> Iterator[re.Match[str]]:
    for match in outer.finditer(code):
        yield from inner.finditer(code, match.start(match.lastindex or 0), match.end())


def _go_files(folders: list[str]) -> list[Path]:
    return [file for file in files_of(".go", folders) if not is_generated(ROOT / file)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
