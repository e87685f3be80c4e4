"""Make command lines of functions: with argparse for the plugin of kubectl, with typer for `muster`.

The plugin must start at once: argparse takes 5 ms, and typer 170 ms. The parameters of a function are its
arguments and options. Help texts stand in their annotations.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import EnumType
from typing import Annotated, Any, get_args, get_origin

USAGE = 2
INTERRUPTED = 130
RED, PLAIN = "\x1b[31;1m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Argument:
    """What has no flag."""

    help: str


@dataclass(frozen=True, slots=True)
class Option:
    """What has flags: those named, else one with the parameter's name."""

    flags: tuple[str, ...]
    help: str
    metavar: str | None = None
    min: int | None = None


class Failed(Exception):
    """Report that a command ends with an error."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def run(program: str, about: str, commands: Mapping[str, Callable[..., None]]) -> int:
    """Run the command that the arguments of this process name, and return the exit status."""
    parser = parser_of(program, about, commands)
    options = vars(parser.parse_args(sys.argv[1:] or ["--help"]))
    try:
        commands[options.pop("command")](**options)
        sys.stdout.flush()
    except Failed as problem:
        complain(str(problem))
        return problem.code
    except BrokenPipeError:  # as of `| head`: nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def complain(message: str) -> None:
    """Print an error. What a cluster's objects say is no markup for the terminal."""
    from muster.domain.printable import printable

    head = f"{RED}error: {PLAIN}" if sys.stderr.isatty() else "error: "
    print(head + "\n".join(map(printable, message.split("\n"))), file=sys.stderr)


def parser_of(
    program: str, about: str, commands: Mapping[str, Callable[..., None]]
) -> argparse.ArgumentParser:
    """Return the parser of a program with these commands."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(program, description=about, allow_abbrev=False)
    added = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, function in commands.items():
        text = inspect.getdoc(function) or ""
        of_command = added.add_parser(
            name,
            help=_plain(text.partition("\n")[0]),
            description=_plain(text),
            formatter_class=plain,
            allow_abbrev=False,
        )
        for parameter in parameters(function):
            _add(of_command, parameter)
    return parser


def for_typer(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function as typer wants it."""
    import functools

    from muster.console import fail

    @functools.wraps(function)
    def called(**options: Any) -> None:
        try:
            function(**options)
        except Failed as problem:
            raise fail(str(problem), problem.code) from None

    of_typer = [each.replace(annotation=_of_typer(each.annotation)) for each in parameters(function)]
    called.__signature__ = inspect.Signature(of_typer)  # type: ignore[attr-defined]
    return called


def parameters(function: Callable[..., object]) -> Sequence[inspect.Parameter]:
    """Return the parameters with their annotations."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _add(parser: argparse.ArgumentParser, parameter: inspect.Parameter) -> None:
    kind, what = get_args(parameter.annotation)
    if isinstance(what, Argument):
        parser.add_argument(parameter.name, metavar=parameter.name.upper(), help=_plain(what.help))
        return
    flags = sorted(what.flags, key=len) or (f"--{parameter.name.replace('_', '-')}",)
    text, default = _plain(what.help), parameter.default
    if kind is bool:
        parser.add_argument(*flags, dest=parameter.name, action="store_true", help=text)
        return
    if isinstance(default, str) and default:
        text += f" [default: {default}]"
    reads, metavar = _reader(kind, what), what.metavar
    if isinstance(kind, EnumType):
        metavar = f"[{'|'.join(each.value for each in kind)}]"  # type: ignore[var-annotated]
    parser.add_argument(*flags, dest=parameter.name, type=reads, default=default, metavar=metavar, help=text)


def _reader(kind: Any, option: Option) -> Callable[[str], Any]:
    """Return what makes the value of an option of a text."""
    one = next((each for each in get_args(kind) if each is not type(None)), kind)

    def read(text: str) -> Any:
        try:
            value = one(text)
        except ValueError:
            expected = f"one of {', '.join(one)}" if isinstance(one, EnumType) else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}") from None
        if option.min is not None and value < option.min:
            raise argparse.ArgumentTypeError(f"{value} is less than {option.min}")
        return value

    return read


def _of_typer(annotation: Any) -> Any:
    import typer

    assert get_origin(annotation) is Annotated
    kind, what = get_args(annotation)
    if isinstance(what, Argument):
        return Annotated[kind, typer.Argument(help=what.help)]
    return Annotated[kind, typer.Option(*what.flags, help=what.help, metavar=what.metavar, min=what.min)]


def _plain(text: str) -> str:
    """Return a text in which argparse replaces nothing."""
    return text.replace("%", "%%")
