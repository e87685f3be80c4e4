"""Count the names that are a pronoun or a participle: such a name says nothing.

    python -m checks.names             the folders of [tool.names] in pyproject.toml
    python -m checks.names --all       a table of every folder with Python code
    python -m checks.names service     where these folders have such names

A folder is listed once it is clean: no local name and no parameter is in `BANNED`, and few are in `VAGUE`. No
field, function or class is in `BARE`, except in folders of `NOT_YET`. A function of the service has a verb
or a noun in its name (`lone_words`). Generated code does not count.
"""

from __future__ import annotations

import ast
import collections
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
BANNED = {
    *("found", "each", "left", "said", "known", "kept", "given", "asked", "told", "made", "taken", "chosen"),
    *("best", "rest"),
}
PRONOUNS = {
    *("one", "other", "others", "both", "it", "its", "own", "this", "that", "those", "these", "such", "some"),
    *("mine", "what", "who", "which", "where", "here", "there"),
}
PARTICIPLES = {"held", "named", "placed", "wanted", "needed", "used", "seen", "lost", "added", "gone"}
VAGUE = BANNED | PRONOUNS | PARTICIPLES
BARE = BANNED | {
    *("those", "here", "there", "on", "at", "then", "held", "joined", "counted"),
    *("first", "most", "least", "whole", "more", "every", "alone"),
}
"""No field, function or class is called by one of these words alone: `first_node` is fine, `first` is not."""
LONE = {
    *("above", "across", "after", "again", "against", "among", "back", "before", "below", "beside"),
    *("between", "beyond", "else", "near", "with", "within", "without", "alike", "both", "custom", "due"),
    *("exact", "fast", "few", "fewer", "fresh", "full", "last", "lower", "met", "narrow"),
    *("narrowest", "new", "next", "old", "only", "other", "own", "plain", "ready", "rough", "same", "unseen"),
    *("upper", "wide", "wider"),
}
"""More prepositions and adjectives. The name of a function has another word, as `free_gpus`."""
NOUNS = {
    *("binding", "encoding", "heading", "mapping", "need", "offering", "packing", "reading", "ring"),
    *("rounding", "setting", "sibling", "speed", "string", "warning"),
}
"""Nouns that end as participles do."""
NOT_YET = (
    "benchmarks",
    "e2e",
    "local_cluster",
    "scheduler-config",
    "tests",
)
"""Folders whose fields, functions and classes are not checked yet. This list may only shrink."""
KEYS_OF_JSON = {
    ("service/muster/adapters/page/detail.py", "at"),
    ("service/muster/domain/alternatives.py", "chosen"),
    ("service/muster/domain/causes/ill_formed.py", "first"),
    ("service/muster/domain/causes/not_planned.py", "more"),
    ("service/muster/domain/causes/not_planned.py", "most"),
    ("service/muster/domain/causes/out_of_place.py", "best"),
    ("service/muster/domain/causes/out_of_place.py", "each"),
    ("service/muster/domain/causes/too_little.py", "there"),
}
"""Bare names of fields, by file. Users read them as keys of JSON (docs/schemas, the page): they stay."""
MAX_SHARE = 0.015
"""Of the names of a clean folder. A few are right: `seen` may be a set of the values seen before."""
Name = tuple[int, str]


@dataclass
class Count:
    """How many names a folder has, and how many of them are vague."""

    names: int = 0
    vague: collections.Counter[str] = field(default_factory=collections.Counter)
    banned: list[str] = field(default_factory=list)
    """Where a name of `BANNED` or `BARE` is, or a function with a lone word, and the name."""

    @property
    def share(self) -> float:
        """Return the share of vague names."""
        return self.vague.total() / self.names if self.names else 0.0

    def add_names(self, place: str, names: Iterable[Name]) -> None:
        """Count the names of a file, each with its line."""
        for line, name in names:
            self.names += 1
            if name.lower() in VAGUE:
                self.vague[name.lower()] += 1
            if name.lower() in BANNED:
                self.banned.append(f"{place}:{line}: {name}")

    def add(self, place: str, text: str) -> None:
        """Count the names of a Python file."""
        self.add_names(place, assigned(text))
        if not place.startswith(NOT_YET):
            self.banned += [
                f"{place}:{line}: {name}"
                for line, name in members(text)
                if name.lower() in BARE and (place, name) not in KEYS_OF_JSON
            ]
        if place.startswith("service/muster/"):
            self.banned += [f"{place}:{line}: {name}" for line, name in lone_words(text)]


def main(arguments: list[str]) -> int:
    """Print what the arguments ask for, and return the exit status."""
    if arguments == ["--all"]:
        print(table(_by_folder(_python_files())))
        return 0
    if arguments:
        for file in _python_files(arguments):
            text = (ROOT / file).read_text()
            vague = [(line, name) for line, name in assigned(text) if name.lower() in VAGUE]
            vague += [(line, name) for line, name in members(text) if name.lower() in BARE]
            vague += lone_words(text) if file.is_relative_to("service/muster") else ()
            print(*(f"{file}:{line}: {name}\n" for line, name in sorted(vague)), sep="", end="")
        return 0
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["names"]
    problems = [line for folder in settings["folders"] for line in not_clean(folder, _count([folder]))]
    sys.stderr.writelines(f"{line}\n" for line in problems)
    return min(len(problems), 1)


def assigned(text: str) -> Iterator[Name]:
    """Yield the line and the name of each local name and each parameter, without outer underscores.

    Fields of classes are left out: many are keys of JSON, which users read.
    """
    for node in _without_fields(ast.parse(text)):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store(), lineno=line)
                | ast.arg(arg=name, lineno=line)
                | ast.ExceptHandler(name=str(name), lineno=line)
                | ast.MatchAs(name=str(name), lineno=line)
                | ast.MatchStar(name=str(name), lineno=line)
                | ast.MatchMapping(rest=str(name), lineno=line)
            ):
                if name.strip("_") not in ("", "self", "cls"):
                    yield line, name.strip("_")
            case _:
                pass


def members(text: str) -> Iterator[Name]:
    """Yield the line and the name of each field, function and class, without outer underscores."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef(body=body):
                yield node.lineno, node.name.strip("_")
                yield from (
                    (line, name.strip("_"))
                    for statement in body
                    if isinstance(statement, ast.AnnAssign | ast.Assign)
                    for line, name in _targets(statement)
                )
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name.strip("_")
            case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store(), lineno=line):
                yield line, name.strip("_")
            case _:
                pass


def lone_words(text: str) -> Iterator[Name]:
    """Yield each function whose name is one participle, preposition or adjective.

    A function that returns bool may have such a name: a call of it reads as a question.
    """
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(returns=ast.Name("bool")) | ast.AsyncFunctionDef(returns=ast.Name("bool")):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                word = name.strip("_")
                is_participle = word.endswith(("ed", "ing")) and word not in NOUNS and "_" not in word
                if (word in LONE or is_participle) and not name.startswith("__"):
                    yield node.lineno, word
            case _:
                pass


def _targets(statement: ast.AnnAssign | ast.Assign) -> Iterator[Name]:
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
    yield from ((target.lineno, target.id) for target in targets if isinstance(target, ast.Name))


def _without_fields(tree: ast.Module) -> Iterator[ast.AST]:
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    return (node for node in ast.walk(tree) if id(node) not in fields)


def not_clean(folder: str, count: Count) -> Iterator[str]:
    """Yield a sentence for each banned name in a folder, and one if too many names are vague."""
    yield from (f"{place}: a name says what it holds" for place in count.banned)
    if count.share > MAX_SHARE:
        words = ", ".join(f"{word} {number}" for word, number in count.vague.most_common(5))
        yield (
            f"{folder}: {count.vague.total()} of {count.names} names say nothing of their value ({words}); "
            f"at most {MAX_SHARE:.1%}"
        )


def table(counts: dict[str, Count]) -> str:
    """Return a line for each folder: the share and number of vague names, and the most frequent names."""
    whole = sum((count.vague for count in counts.values()), collections.Counter[str]())
    names = sum(count.names for count in counts.values())
    lines = [f"{_share(whole.total(), names)} {whole.total():5} of {names:5}  all folders"]
    for folder, count in sorted(counts.items(), key=lambda item: -item[1].share):
        words = " ".join(f"{word}:{number}" for word, number in count.vague.most_common(4))
        vague = count.vague.total()
        lines.append(f"{_share(vague, count.names)} {vague:5} of {count.names:5}  {folder}  {words}".rstrip())
    return "\n".join(lines)


def _share(vague: int, names: int) -> str:
    return f"{vague / max(names, 1):6.1%}"


def _count(folders: Iterable[str]) -> Count:
    count = Count()
    for file in _python_files(folders):
        count.add(str(file), (ROOT / file).read_text())
    return count


def _by_folder(files: Iterable[Path]) -> dict[str, Count]:
    counts: dict[str, Count] = collections.defaultdict(Count)
    for file in files:
        counts[str(file.parent)].add(str(file), (ROOT / file).read_text())
    return counts


def _python_files(folders: Iterable[str] = ()) -> list[Path]:
    """Return the Python files of folders, of all by default, without generated ones."""
    return [file for file in files_of(".py", folders) if "generated" not in file.parts]


def files_of(suffix: str, folders: Iterable[str] = ()) -> list[Path]:
    """Return the files of folders whose names end so, of all folders by default. git ignores none of them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = {Path(line) for line in output.splitlines() if line.endswith(suffix)}
    return sorted(file for file in files if (ROOT / file).exists())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
