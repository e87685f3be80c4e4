"""The check of names finds pronouns and participles wherever Python binds a name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from checks import names


@pytest.mark.parametrize(
    ("code", "bound"),
    [
        ("found = 1", ["found"]),
        ("_found_ = 1", ["found"]),
        ("found: int = 1", ["found"]),
        ("found += 1", ["found"]),
        ("a, (found, *rest) = b", ["a", "found", "rest"]),
        ("if (found := 1): pass", ["found"]),
        ("for found in a: pass", ["found"]),
        ("[found for found in a]", ["found"]),
        ("with a as found: pass", ["found"]),
        ("try: pass\nexcept OSError as found: pass", ["found"]),
        ("def found(self, given, *rest, kept, **known): pass", ["given", "kept", "rest", "known"]),
        ("lambda found: 1", ["found"]),
        ("match a:\n  case [B() as found, *rest]: pass", ["found", "rest"]),
        ("match a:\n  case {'b': found, **rest}: pass", ["rest", "found"]),
        ("class A:\n  found: int = 1", []),
        ("a.found = found\nfound[1] = 2\nb(found=found)", []),
        ("import found", []),
        ("_ = 1", []),
    ],
)
def test_bound_names(code: str, bound: list[str]) -> None:
    assert sorted(name for _, name in names.assigned(code)) == sorted(bound)


@pytest.mark.parametrize(
    ("code", "bound"),
    [
        ("def found(): pass", ["found"]),
        ("async def _found_(): pass", ["found"]),
        ("class Found: pass", ["Found"]),
        ("class A:\n  found: int\n  def kept(self): self._said = 1", ["A", "found", "kept", "said"]),
        ("class A:\n  found = 1", ["A", "found"]),
        ("found = 1\na.found = found", []),
    ],
)
def test_fields_functions_and_classes(code: str, bound: list[str]) -> None:
    assert sorted(name for _, name in names.members(code)) == sorted(bound)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def limited(): pass", ["limited"]),
        ("async def _waiting() -> None: pass", ["waiting"]),
        ("class A:\n  def below(self) -> int: pass", ["below"]),
        ("def a():\n  def own(): pass", ["own"]),
        ("def limited() -> bool: pass", []),
        ("async def below() -> bool: pass", []),
        ("def limit_gpus(): pass\ndef gpus_below(): pass\ndef waiting_members(): pass", []),
        ("def reading() -> str: pass\ndef need(): pass", []),
        ("class Limited:\n  waiting: int\n  def __missing__(self): pass", []),
    ],
)
def test_functions_with_a_lone_word(code: str, words: list[str]) -> None:
    assert [word for _, word in names.lone_words(code)] == words


def test_only_functions_of_the_service_have_more_than_a_lone_word() -> None:
    code = "def limited(): pass\n"
    (problem,) = names.not_clean("a", _count(code, "service/muster/a.py"))
    assert problem == "service/muster/a.py:1: limited: a name says what it holds"
    assert list(names.not_clean("a", _count(code))) == []


def _count(text: str, place: str = "a.py") -> names.Count:
    count = names.Count()
    count.add(place, text)
    return count


def test_a_banned_name_makes_a_folder_unclean() -> None:
    nouns = "".join(f"node{number} = 1\n" for number in range(99))
    assert list(names.not_clean("a", _count(nouns))) == []
    assert list(names.not_clean("a", _count(nouns + "seen = 1\n"))) == []
    assert list(names.not_clean("a", _count(nouns + "each = 1\n"))) == [
        "a.py:100: each: a name says what it holds"
    ]


def test_a_bare_word_as_a_function_makes_a_folder_unclean() -> None:
    assert list(names.not_clean("a", _count("def first_node(): pass\n"))) == []
    assert list(names.not_clean("a", _count("def _first(): pass\n"))) == [
        "a.py:1: first: a name says what it holds"
    ]
    assert list(names.not_clean("a", _count("class Held: pass\n"))) == [
        "a.py:1: Held: a name says what it holds"
    ]


def test_few_names_of_a_clean_folder_are_vague() -> None:
    nouns = "".join(f"node{number} = 1\n" for number in range(98))
    (problem,) = names.not_clean("a", _count(nouns + "seen = 1\nheld = 1\n"))
    assert problem == "a: 2 of 100 names say nothing of their value (seen 1, held 1); at most 1.5%"


def test_the_table_begins_with_the_worst_folder() -> None:
    counts = {"a": _count("node = 1\n"), "b": _count("node = 1\neach = 1\n")}
    assert [line.split("  ")[-1] for line in names.table(counts).splitlines()[1:]] == ["each:1", "a"]


def test_every_folder_that_is_checked_is_there_and_clean() -> None:
    folders = tomllib.loads((names.ROOT / "pyproject.toml").read_text())["tool"]["names"]["folders"]
    assert folders == sorted(folders)
    assert [folder for folder in folders if not (names.ROOT / folder).exists()] == []
    assert names.main([]) == 0


def test_a_name_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(names, "ROOT", tmp_path)
    monkeypatch.setattr(names, "_python_files", lambda folders=(): [Path("a/b.py")])
    (tmp_path / "pyproject.toml").write_text('[tool.names]\nfolders = ["a"]\n')
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("each = 1\n")
    assert names.main([]) == 1
    assert capsys.readouterr().err.startswith("a/b.py:1: each: ")
    (tmp_path / "a" / "b.py").write_text("node = 1\n")
    assert names.main([]) == 0
