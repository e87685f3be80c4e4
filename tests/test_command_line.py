"""Command lines made of functions: what their parameters get, and what is said of bad words."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

from muster.command_line import Argument, Failed, Option, Program, Words, run, run_command
from tests.command import PLAIN, Result, invoke

GIVEN: dict[str, Any] = {}
DEFAULTS: dict[str, Any] = {
    "files": [],
    "only": None,
    "part": 1.0,
    "folder": Path("out"),
    "cdi": True,
    "quiet": False,
}


def measure(
    files: Annotated[list[str] | None, Argument(help="Files.")] = None,
    only: Annotated[list[str] | None, Option(("--only", "-o"), help="100 % of names.")] = None,
    part: Annotated[float, Option(min=0.5, max=1, env="PART")] = 1.0,
    folder: Annotated[Path, Option(help="Where to.", metavar="FOLDER")] = Path("out"),
    cdi: Annotated[bool, Option(env="CDI")] = True,
    quiet: Annotated[bool, Option(("--quiet", "-q"))] = False,
) -> int:
    """Measure something.

    Examples:

        measure a b
    """
    GIVEN.update(files=files, only=only, part=part, folder=folder, cdi=cdi, quiet=quiet)
    return 3 if quiet else 0


def rename(name: Annotated[str, Option(env="NAME")]) -> None:
    """Rename it."""
    raise Failed(f"{name} is\x1b taken", 4)


def other(words: Annotated[list[str], Words()]) -> None:
    """Run another program."""
    GIVEN["words"] = words


def version() -> None:
    """Print the version."""
    print("1.2")


PROGRAM = Program(
    "tool", "About it.", {"measure": measure, "rename": rename, "other": other, "version": version}
)


def ran(line: str, **variables: str) -> Result:
    GIVEN.clear()
    return invoke(partial(run, PROGRAM), *line.split(), env=PLAIN | variables)


@pytest.mark.parametrize(
    ("line", "variables", "values"),
    [
        ("measure", {}, {}),
        ("measure a -o x b --only y c", {}, {"files": ["a", "b", "c"], "only": ["x", "y"]}),
        ("measure -o x -- a b", {}, {"files": ["a", "b"], "only": ["x"]}),
        ("measure - --folder=f", {}, {"files": ["-"], "folder": Path("f")}),
        ("measure", {"PART": "0.5", "CDI": "off"}, {"part": 0.5, "cdi": False}),
        ("measure --part .75 --cdi", {"PART": "0.5", "CDI": "0"}, {"part": 0.75}),
        ("measure --no-cdi", {"PART": "", "CDI": ""}, {"cdi": False}),
    ],
)
def test_parameters_get_what_words_and_environment_say(
    line: str, variables: dict[str, str], values: dict[str, Any]
) -> None:
    assert ran(line, **variables).exit_code == 0
    assert DEFAULTS | values == GIVEN


@pytest.mark.parametrize(
    ("line", "variables", "text"),
    [
        ("measure --part 0.1", {}, "argument --part: 0.1 is less than 0.5"),
        ("measure --part 2", {}, "argument --part: 2.0 is more than 1"),
        ("measure", {"PART": "half"}, "argument --part: 'half' is not a number"),
        ("measure", {"CDI": "maybe"}, "error: CDI: 'maybe' is not one of 1, on, t, true, y, yes, 0"),
        ("measure --quie", {}, "unrecognized arguments: --quie"),
        ("rename", {}, "required: --name"),
        ("renam", {}, "invalid choice: 'renam'"),
    ],
)
def test_bad_words_end_with_2_and_change_nothing(line: str, variables: dict[str, str], text: str) -> None:
    result = ran(line, **variables)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert not GIVEN


def test_a_command_ends_with_the_status_that_it_returns_or_raises() -> None:
    assert ran("measure -q").exit_code == 3
    result = ran("rename", NAME="it")
    assert (result.exit_code, result.output) == (4, "error: it is\\x1b taken\n")
    assert ran("--version") == ran("version") == Result(0, "1.2\n", "1.2\n", "")


def test_another_program_gets_all_words() -> None:
    ran("other --help -x -- y --version")
    assert GIVEN["words"] == ["--help", "-x", "--", "y", "--version"]


def test_help_has_the_docstring_as_it_is_written() -> None:
    assert ran("").output == ran("--help").output
    assert "measure   Measure something." in ran("").output
    output = ran("measure --help").output
    assert "\n\nMeasure something.\n\nExamples:\n\n    measure a b\n\n" in output
    for text in (
        "100 % of names.",
        "[env var: PART] [default: 1.0]",
        "--cdi, --no-cdi",
        "[FILES ...]",
    ):
        assert text in output
    assert invoke(partial(run_command, measure, "tool measure"), "--help").output == output
