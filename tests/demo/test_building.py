"""The first build while the demo runs: its progress line, its end, and what is shown meanwhile."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from local_cluster.build import BuildError
from local_cluster.demo import engine
from local_cluster.demo.building import Building, minutes, time_left_s
from local_cluster.demo.show import WIDTH, Show
from local_cluster.recipes import Recipe, missing

EXPECTED = [50.0, 400.0, 100.0]
TIMES_LEFT: dict[str, tuple[Sequence[float], float, float]] = {
    "at the start": ((), 0.0, 550.0),
    "as fast as expected": ((), 20.0, 530.0),
    "the first takes longer than expected": ((), 80.0, 505.0),
    "a machine of half the speed": ((100.0,), 200.0, 800.0),
    "found in the compiler's cache": ((0.5,), 0.0, 100.0),
    "the last": ((50.0, 400.0), 40.0, 60.0),
    "all done": ((50.0, 400.0, 100.0), 0.0, 0.0),
}


@pytest.mark.parametrize("case", TIMES_LEFT)
def test_time_left(case: str) -> None:
    done, elapsed, seconds_left = TIMES_LEFT[case]
    assert time_left_s(EXPECTED, done, elapsed) == pytest.approx(seconds_left)


@pytest.mark.parametrize(("seconds", "text"), [(44.0, "40 s"), (95.0, "2 min"), (700.0, "12 min")])
def test_minutes(seconds: float, text: str) -> None:
    assert minutes(seconds) == text


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """Two programs that are not built, in a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    new_recipes = []
    for name in ("one", "two"):
        module = tmp_path / "go" / name
        module.mkdir(parents=True)
        for file in ("go.mod", "go.sum"):
            (module / file).write_text(name)
        new_recipes.append(Recipe(name, "v1", module, ".", "", "", 50.0))
    return new_recipes


def quiet() -> Console:
    return Console(file=io.StringIO())


def test_a_build_is_waited_for(recipes: list[Recipe], tmp_path: Path) -> None:
    bins = [tmp_path / "muster" / "bin" / recipe.key() for recipe in recipes]
    code = "".join(
        f"p = pathlib.Path({str(path)!r}); p.mkdir(parents=True); (p / {recipe.name!r}).touch()\n"
        for path, recipe in zip(bins, recipes, strict=True)
    )
    command = (sys.executable, "-c", f"import pathlib\n{code}")
    with Building(recipes, tmp_path / "log", command) as building:
        building.wait(quiet(), lambda: None)
        assert building.line() == "all programs are built"


def test_the_line_names_the_program_and_the_time_left(recipes: list[Recipe], tmp_path: Path) -> None:
    command = (sys.executable, "-c", "input()")
    with Building(recipes, tmp_path / "log", command) as building:
        assert building.line() == "building one (1 of 2), about 2 min left; once only"


def test_a_failure_is_told(recipes: list[Recipe], tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('error: no space left')")
    with (
        pytest.raises(BuildError, match=r"^no space left"),
        Building(recipes, tmp_path / "log", command) as building,
    ):
        building.wait(quiet(), lambda: None)


def test_leaving_early_ends_the_build(recipes: list[Recipe], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"import pathlib, threading\npathlib.Path({str(mark)!r}).touch()\nthreading.Event().wait()"

    def interrupted() -> None:
        if mark.exists():
            raise KeyboardInterrupt

    building = Building(recipes, tmp_path / "log", (sys.executable, "-c", code))
    with pytest.raises(KeyboardInterrupt), building:
        building.wait(quiet(), interrupted)
    assert building._process is not None
    assert building._process.poll() is not None


def test_nothing_is_started_where_all_is_built(tmp_path: Path) -> None:
    with Building([], tmp_path / "log", ("/nowhere",)) as building:
        building.wait(quiet(), lambda: None)
    assert not (tmp_path / "log").exists()


def test_the_engines_scenes_show_answers_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(Console(width=WIDTH, highlight=False, no_color=True))
    engine.tell(show, lambda: "building one (1 of 2)", lambda: None)
    output = capsys.readouterr().out
    assert output.count("building one (1 of 2)") == len(engine.SCENES)
    in_one_line = " ".join(output.split())
    assert in_one_line.count("proven optimal") == len(engine.SCENES) - 1
    assert "It would help: scope zone instead of rack" in in_one_line
    assert max(map(len, output.splitlines())) <= WIDTH


def test_missing_programs_are_in_the_order_of_the_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [recipe.name for recipe in missing()][:2] == ["etcd", "kube-apiserver"]
