"""docs/glossary.md: each term has one row, and each path and name of its last column is in the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "service/muster"
ROW = re.compile(r"(?m)^\| (?!term \||---)(.+?) \| (.+?) \| (.+?) \| (.+?) \|$")
ROWS = ROW.findall((REPOSITORY / "docs/glossary.md").read_text())


def texts(path: Path) -> str:
    """Return the text of a file, or of all files in a folder."""
    return "".join(file.read_text() for file in ([path] if path.is_file() else sorted(path.glob("*.py"))))


def test_each_term_has_one_row() -> None:
    terms = [term for row in ROWS for term in row[0].split(", ")]
    assert len(terms) > 80
    assert sorted(terms) == sorted(set(terms))


@pytest.mark.parametrize(("term", "code"), [(row[0], row[3]) for row in ROWS])
def test_the_code_of_a_term_is_in_the_tree(term: str, code: str) -> None:
    names = re.findall(r"`([^`]+)`", code)
    paths = [SOURCE / name for name in names if "/" in name]
    assert paths, term
    assert [path for path in paths if not path.exists()] == []
    text = "".join(map(texts, paths))
    missing = [name for name in names if "/" not in name and not re.search(rf"\b{name}\b", text)]
    assert missing == []
