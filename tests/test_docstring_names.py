"""The check of docstrings finds names that their module does not have."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from checks import docstring_names

CODE = '''
from a.b import c as renamed
LIMIT = 1
"""Of `LIMIT` and `{word}`."""
class Kind:
    field: int
async def walk(items, *, flat=False):
    """Walk."""
    return items.first(deep=True), "some_key: text"
'''


@pytest.mark.parametrize(
    "word",
    [
        "walk",
        "walk()",
        "items",
        "flat",
        "field",
        "renamed",
        "first",
        "deep",
        "some_key",
        "b",
        "queue",
        "isinstance",
        "spec.field",
        "spec-field",
        "nodeName",
        "LIMIT",
        "Kind",
        "Queue",
        "x",
    ],
)
def test_names_of_the_module_and_other_words_are_left_alone(word: str) -> None:
    tree = ast.parse(CODE.replace("{word}", word))
    assert list(docstring_names.unknown_names(tree, {"queue", "Queue"})) == []


@pytest.mark.parametrize("word", ["old_name", "queue", "walk_all()", "_private", "MOST_ROWS", "Answer"])
def test_a_name_that_the_module_does_not_have_is_found(word: str) -> None:
    tree = ast.parse(CODE.replace("{word}", word))
    assert list(docstring_names.unknown_names(tree, set())) == [(4, word.removesuffix("()"))]


def test_an_unknown_name_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docstring_names, "ROOT", tmp_path)
    monkeypatch.setattr(docstring_names, "SERVICE", tmp_path)
    (tmp_path / "queue.py").write_text('"""The `queue`."""\n')
    assert docstring_names.main() == 0
    (tmp_path / "gang.py").write_text('MODE = "share"\n\n\nclass Gang: ...\n')
    (tmp_path / "node.py").write_text('"""The `queue` of `share`, `MODE`, `Gang` and `old_name`."""\n')
    assert docstring_names.main() == 1
    assert capsys.readouterr().out == "node.py:1: `old_name` is no name of this module\n"
