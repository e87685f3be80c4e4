"""The check of Go names finds them wherever Go declares a name, and the Go code is clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks import go_names


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("\tfound, each := a(other)\n", ["each", "found"]),
        ("\tfor _, each := range all {\n", ["each"]),
        ("\tif found := a(); found {\n", ["found"]),
        ("\tvar found, left int\n", ["found", "left"]),
        ("var (\n\tfound = 1\n\tleft  int\n)\n", ["found", "left"]),
        ("const (\n\tfound = iota\n\tleft\n)\n", ["found", "left"]),
        ("type found struct{}\n", ["found"]),
        ("type a struct {\n\tfound, left int\n\t*each\n\tkept.Other\n}\n", ["a", "found", "left"]),
        ("\tb := []struct{ found, left int }{}\n", ["b", "found", "left"]),
        ("func found(left, each int, rest ...T) (kept int) {\n", ["each", "found", "kept", "left", "rest"]),
        ("func (t *T) found(int, ...string) (bool, error) {\n", ["found", "t"]),
        ("\ta(b, func(each *T, _ int) bool { return each.found == left })\n", ["each"]),
        ('\t// found := 1\n\ta("found := 1", `\nfound := 1\n`)\n', []),
        ("\ta.found, b[left] = found, T{kept: left}\n\treturn found\n", []),
    ],
)
def test_declared_names(code: str, names: list[str]) -> None:
    assert sorted(name for _, name in go_names.declared(code)) == names


def test_the_line_is_that_of_the_name() -> None:
    assert go_names.declared("/* a\n*/\n\tx(`\n`)\n\tfound := 1\n") == [(5, "found")]


def test_the_go_code_is_clean() -> None:
    assert go_names.main([]) == 0


def test_a_name_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(go_names, "ROOT", tmp_path)
    monkeypatch.setattr(go_names, "_go_files", lambda _folders: [Path("a.go")])
    (tmp_path / "a.go").write_text("package a\n\nfunc Left() {}\n")
    assert go_names.main([]) == 1
    assert capsys.readouterr().err.startswith("a.go:3: Left: a name says what it holds\n")
    (tmp_path / "a.go").write_text("package a\n\nfunc Node() {}\n")
    assert go_names.main([]) == 0
    assert go_names.main(["a"]) == 0
