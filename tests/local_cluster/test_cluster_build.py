"""Building: cached by content, one builder at a time, and a failure shows what the compiler said."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from local_cluster import build
from local_cluster.build import BuildError, binary
from local_cluster.recipes import RECIPES, Recipe

FAKE_GO = """#!/bin/sh
# a Go that takes a moment, counts its calls and writes an executable where it is told to
echo call >> "$COUNT"
echo k8s.io/some/package
if [ -n "$BREAK" ]; then echo './main.go:3:1: syntax error: no such thing' >&2; exit 1; fi
while [ "$1" != -o ]; do shift; done
read -t 0.3 nothing < /dev/zero
printf '#!/bin/sh\\n' > "$2"
chmod +x "$2"
"""


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recipe:
    module = tmp_path / "module"
    module.mkdir()
    for name, text in {"go.mod": "module m", "go.sum": "", "main.go": "package main"}.items():
        (module / name).write_text(text)
    go = tmp_path / "go"
    go.write_text(FAKE_GO)
    go.chmod(0o755)
    new_recipe = Recipe("tool", "v1", module, ".", "", "no time")
    monkeypatch.setitem(RECIPES, "tool", new_recipe)
    monkeypatch.setattr(build, "find_go", lambda minor: go)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    return new_recipe


def calls(tmp_path: Path) -> int:
    return len((tmp_path / "count").read_text().splitlines())


def test_several_who_ask_at_once_get_one_build(recipe: Recipe, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as workers:
        paths = set(workers.map(lambda _: binary("tool", progress=io.StringIO()), range(4)))
    assert len(paths) == 1
    assert calls(tmp_path) == 1
    (path,) = paths
    assert path.parent.parent == tmp_path / "cache" / "muster" / "bin"
    assert path.parent.name.startswith("tool-v1-")


def test_changed_sources_are_another_binary_tests_are_not(recipe: Recipe) -> None:
    first = recipe.key()
    (recipe.module / "main_test.go").write_text("package main")
    (recipe.module / "testdata").mkdir()
    (recipe.module / "testdata" / "sample.go").write_text("package sample")
    assert recipe.key() == first
    (recipe.module / "main.go").write_text("package main // changed")
    assert recipe.key() != first


def test_a_failure_shows_the_compiler_s_words_and_leaves_nothing(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAK", "yes")
    with pytest.raises(BuildError) as problem:
        binary("tool", progress=io.StringIO())
    assert "go build in" in str(problem.value)
    assert "./main.go:3:1: syntax error: no such thing" in str(problem.value)
    assert "k8s.io/some/package" not in str(problem.value)
    assert [path for path in (tmp_path / "cache/muster/bin").iterdir() if path.is_dir()] == []
    monkeypatch.delenv("BREAK")
    assert binary("tool", progress=io.StringIO()).is_file()


def test_progress_says_what_it_does(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "REPORT_EVERY_S", 0.0)
    output = io.StringIO()
    binary("tool", progress=output)
    assert "tool v1: building with" in output.getvalue()
    assert "tool v1: built in" in output.getvalue()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(BuildError, match="'minikube' is not known: one of etcd, kube-apiserver"):
        binary("minikube")
