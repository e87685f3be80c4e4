"""The check of plain English finds phrases in prose, and nowhere else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from checks import prose

SENTENCES = {
    "of which": "GPUs of which two are free",
    "none where": "None where nothing fits",
    "none that": "none that is known",
    "so (many|much|few)": "so many as fit",
    "beside": "the shim beside the service",
    "nobody|whoever": "Nobody knows",
    "heard|wish(es|ed)?": "what the pod wishes",
    "by way of": "by way of a dry run",
}


@pytest.mark.parametrize("phrase", prose.BANNED)
def test_each_phrase_is_found_in_pages_docstrings_and_comments(phrase: str) -> None:
    line = SENTENCES[phrase]
    for text, suffix, number in (
        (f"# Title\n\n{line}\n", ".md", 3),
        (f'"""Do it.\n\n{line}\n"""\n', ".py", 3),
        (f"x = 1\n# {line}\n", ".py", 2),
        (f'x = 1\n"""{line}"""\n', ".py", 2),
        (f"message A {{\n  // {line}\n}}\n", ".proto", 2),
    ):
        assert [(at, prose.BANNED[phrase] in said) for at, said in prose.problems(text, suffix)] == [
            (number, True)
        ]


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("beside = nobody\n", ".py"),
        ('print("so many")\n', ".py"),
        ("# `beside` is a name, besides others\n", ".py"),
        ("```\nbeside\n```\n", ".md"),
        ("    make beside\n", ".md"),
        ('A user writes "beside".\n', ".md"),
        ("string beside = 1;\n", ".proto"),
    ],
)
def test_code_and_quotations_are_left_alone(text: str, suffix: str) -> None:
    assert list(prose.problems(text, suffix)) == []


def test_every_folder_that_is_checked_is_there() -> None:
    settings = tomllib.loads((prose.ROOT / "pyproject.toml").read_text())["tool"]["prose"]
    assert settings["folders"] == sorted(settings["folders"])
    assert [folder for folder in settings["folders"] if not (prose.ROOT / folder).exists()] == []


def test_a_phrase_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.prose]\nfolders = ["docs"]\n')
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("so many\n")
    assert prose.main([]) == 1
    assert capsys.readouterr().out.startswith("docs/page.md:1: ")
    (tmp_path / "docs" / "page.md").write_text("this many\n")
    assert prose.main([]) == 0
