"""Find what is not plain English in pages, docstrings and comments: phrases, and long sentences.

    python -m checks.prose               the folders of [tool.prose] in pyproject.toml
    python -m checks.prose docs e2e      these

A line is wrong or it is not: there is no way to excuse one. A folder is checked once it is clean.
Sentences are counted in docstrings, in the folders of `short_sentences`.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BANNED = {
    r"of which": "turn the sentence around: subject, verb, object",
    r"none where": "None if …",
    r"none that": "no …",
    r"so (many|much|few)": "give the number or the limit its name",
    r"beside": "next to, with, apart from",
    r"nobody|whoever": "name the subject: no pod, whichever client",
    r"heard|wish(es|ed)?": "objects have fields and messages; they do not hear or wish",
    r"by way of": "through, by",
}
PATTERN = re.compile("|".join(rf"\b({phrase})\b" for phrase in BANNED), re.IGNORECASE)
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|https?://\S+")
"""Code and quotations are not our prose."""
MAX_WORDS = 25
"""Of one sentence, or of a part of it that ends with a colon or semicolon. Quoted code is one word."""
C_LIKE = {".go", ".proto"}
YAML = {".yaml", ".yml"}
COMMENT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`|//(?P<prose>[^\n]*)")
"""Strings come before comments: a string may contain //, and in Go a raw string may contain newlines."""
CHECKED = {".py", ".md", *C_LIKE, *YAML}
HASH_COMMENT = re.compile(r"(?:^|\s)#(?P<prose>.*)")
GENERATED = re.compile(r"^\W*(Code g|G)enerated .*DO NOT EDIT", re.MULTILINE)
Line = tuple[int, str]


def main(arguments: list[str]) -> int:
    """Print each banned phrase with its place, and return the exit status."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["prose"]
    problem_count = 0
    for path in _files(arguments or settings["folders"]):
        for number, problem in problems(path.read_text(), path.suffix):
            print(f"{path.relative_to(ROOT)}:{number}: {problem}")
            problem_count += 1
    for path in _files([] if arguments else settings.get("short_sentences", [])):
        for number, words in long_sentences(path.read_text()):
            print(f"{path.relative_to(ROOT)}:{number}: a sentence of {words} words; {MAX_WORDS} are enough")
            problem_count += 1
    return min(problem_count, 1)


def problems(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and a sentence for each banned phrase in the prose of a file."""
    for number, line in _prose(text, suffix):
        for match in PATTERN.finditer(QUOTED.sub("", line)):
            advice = list(BANNED.values())[_group(match)]
            yield number, f'"{match[0]}": {advice}'


def long_sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first line of each docstring of Python code with a long sentence, and its number of words."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(string))):
                paragraphs = re.split(r"\n\s*\n", QUOTED.sub("x", inspect.cleandoc(string)))
                prose = (paragraph for paragraph in paragraphs if not paragraph.startswith("    "))
                for sentence in (
                    sentence for paragraph in prose for sentence in re.split(r"[.!?:;]\s", paragraph)
                ):
                    if (words := len(sentence.split())) > MAX_WORDS:
                        yield node.lineno, words


def _group(match: re.Match[str]) -> int:
    """Return the index of the phrase that matched."""
    return next(i for i, phrase in enumerate(BANNED) if re.fullmatch(phrase, match[0], re.IGNORECASE))


def _files(folders: list[str]) -> Iterator[Path]:
    for folder in folders:
        path = ROOT / folder
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in files if file.suffix in CHECKED and not is_generated(file))


def is_generated(file: Path) -> bool:
    """Return whether a generator wrote the file. In Go, comments of the source may come before its mark."""
    return GENERATED.search(file.read_text()) is not None


def _prose(text: str, suffix: str) -> Iterator[Line]:
    if suffix == ".py":
        yield from _python(text)
    elif suffix == ".md":
        yield from _page(text)
    elif suffix in YAML:
        yield from _hash_comments(text)
    else:
        yield from _line_comments(text)


def _line_comments(text: str) -> Iterator[Line]:
    """Yield the // comments of Go or proto code."""
    for comment in COMMENT.finditer(text):
        if comment["prose"] is not None:
            yield text.count("\n", 0, comment.start()) + 1, comment["prose"]


def _hash_comments(text: str) -> Iterator[Line]:
    """Yield the # comments of YAML."""
    for number, line in enumerate(text.splitlines(), 1):
        if comment := HASH_COMMENT.search(line):
            yield number, comment["prose"]


def _page(text: str) -> Iterator[Line]:
    """Yield a page's lines without its blocks of code."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not line.startswith("    "):
            yield number, line


def _python(text: str) -> Iterator[Line]:
    """Yield the lines of comments, docstrings and the strings below attributes."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(string))):
                yield from enumerate(string.splitlines(), node.lineno)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
