"""Find names in docstrings that their module does not have, such as a parameter that was renamed.

    python -m checks.docstring_names

A word in backticks that looks like a Python name must be a name or a word of a string in its module. It may
also be the name of a module, a builtin, or a whole string elsewhere in the service, such as a label's value.
Classes and constants of all modules may stand alone. Another name of another module has its class or module
before it: `GangSettings.session_s`.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator

from checks.prose import ROOT, is_generated

SERVICE = ROOT / "service" / "muster"
QUOTED_NAME = re.compile(r"`(_?(?:[a-z][a-z0-9_]{2,}|[A-Z]\w{2,}))(?:\(\))?`")
WORD = re.compile(r"\w+")


def main() -> int:
    """Print each unknown name with its place, and return the exit status."""
    files = [path for path in sorted(SERVICE.rglob("*.py")) if not is_generated(path)]
    trees = {path: ast.parse(path.read_text()) for path in files}
    common = {part for path in files for part in path.relative_to(SERVICE).with_suffix("").parts}
    for tree in trees.values():
        common.update(_strings(tree), _classes_and_constants(tree))
    problems = [
        f"{path.relative_to(ROOT)}:{line}: `{name}` is no name of this module\n"
        for path, tree in trees.items()
        for line, name in unknown_names(tree, common)
    ]
    sys.stdout.writelines(problems)
    return min(len(problems), 1)


def unknown_names(tree: ast.Module, common: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the first line of a docstring, and a name in it that neither the code nor `common` has."""
    docstrings: dict[ast.AST, tuple[int, str]] = {}
    module_names = {*common, *dir(builtins)}
    for node in ast.walk(tree):  # an expression comes before its constant
        match node:
            case ast.Expr(value=ast.Constant(value=str(string)) as constant):
                docstrings[constant] = constant.lineno, string
            case _ if node not in docstrings:
                module_names |= _names(node)
    for line, string in docstrings.values():
        for name in QUOTED_NAME.findall(string):
            if name not in module_names:
                yield line, name


def _strings(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module, which are mostly words of the outside world."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(string)):
                yield string


def _classes_and_constants(tree: ast.Module) -> Iterator[str]:
    """Yield the classes, constants and type aliases that a module defines."""
    for statement in tree.body:
        match statement:
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _names(node: ast.AST) -> set[str]:
    """Return the names and the words of strings in a node of the syntax tree, without its children."""
    texts = [
        getattr(node, field, None) for field in ("id", "attr", "arg", "name", "asname", "module", "value")
    ]
    return {word for text in texts if isinstance(text, str) for word in WORD.findall(text)}


if __name__ == "__main__":
    sys.exit(main())
