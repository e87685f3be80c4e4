"""Count the Go names that are pronouns or participles, as `checks.names` does for Python.

    python -m checks.go_names         whether the Go code is clean
    python -m checks.go_names shim    where these folders have such names

Variables, parameters, results, fields, constants, types and functions count. Generated code does not.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from checks.names import BANNED, MAX_SHARE, ROOT, VAGUE

LITERAL = re.compile(r"//[^\n]*|/\*[\s\S]*?\*/|\"(?:\\.|[^\"\\\n])*\"|`[^`]*`|'(?:\\.|[^'\\])+'")
GENERATED = re.compile(r"^// Code generated .*DO NOT EDIT", re.MULTILINE)
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
    name_count, vague = 0, collections.Counter[str]()
    problems = []
    for file in _go_files(arguments):
        for line, name in declared((ROOT / file).read_text()):
            name_count += 1
            vague[name.lower()] += name.lower() in VAGUE
            if name.lower() in (VAGUE if arguments else BANNED):
                problems.append(f"{file}:{line}: {name}: a name says what it holds")
    if arguments:
        print("\n".join(problems))
        return 0
    if vague.total() > MAX_SHARE * name_count:
        words = ", ".join(f"{word} {number}" for word, number in vague.most_common(5))
        problems.append(f"{vague.total()} of {name_count} Go names say nothing of their value: {words}")
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


def _go_files(folders: list[str]) -> Iterator[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *(folders or ["."])]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for file in map(Path, sorted(set(output.splitlines()))):
        is_code = file.suffix == ".go" and (ROOT / file).exists()
        if is_code and not GENERATED.search((ROOT / file).read_text()):
            yield file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
