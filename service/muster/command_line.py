"""Make command lines of functions, with argparse: the plugin of kubectl starts at once, from Python alone.

The parameters of a function are its arguments and options. Help texts stand in their annotations. The
docstring is shown as it is written.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import EnumType
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

Command = Callable[..., int | None]
"""A function that does a command's work and returns the exit status; None means 0."""

USAGE = 2
INTERRUPTED = 130
RED, PLAIN = "\x1b[31;1m", "\x1b[0m"
BOOLEANS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}
"""Values of an environment variable of a flag."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command. Without `flags`, the flag is the parameter's name, with --no- for a bool.

    `env` is the environment variable that is read if the option is not given.
    """

    flags: tuple[str, ...] = ()
    help: str = ""
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    env: str = ""


class Argument(Option):
    """An argument without a flag."""


@dataclass(frozen=True, slots=True)
class Words:
    """All words after the command, including options, which another program reads."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program with commands. With a command named version, it has the option --version too."""

    name: str
    about: str
    commands: Mapping[str, Command]


Kubeconfig = Annotated[
    Path | None, Option(help="Default: $KUBECONFIG, ~/.kube/config, else the pod's account.", metavar="FILE")
]
Context = Annotated[str | None, Option(help="Context in the kubeconfig.", metavar="NAME")]


class Failed(Exception):
    """Report that a command ends with an error."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def run(program: Program, arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name, else those of this process, and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    line = _parser_of_program(program).parse_args(words or ["--help"])
    return run_command(program.commands[line.command], f"{program.name} {line.command}", line.words)


def run_command(command: Command, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run one command with these arguments, else those of this process, and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        status = command(**_options(command, name, words))
        sys.stdout.flush()
    except Failed as problem:
        print_error(str(problem))
        return problem.code
    except BrokenPipeError:  # as of `| head`: nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return status or 0


def print_error(message: str) -> None:
    """Print an error. Control characters are escaped, because texts of a cluster may be in the message."""
    from muster.domain.printable import printable

    head = f"{RED}error: {PLAIN}" if sys.stderr.isatty() else "error: "
    print(head + "\n".join(map(printable, message.split("\n"))), file=sys.stderr)


def parameters(function: Callable[..., object]) -> Sequence[inspect.Parameter]:
    """Return the parameters with their annotations."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _parser_of_program(program: Program) -> argparse.ArgumentParser:
    """Return a parser that finds the command. The command's own parser reads the words after it."""
    parser = _new_parser(program.name, program.about)
    parser.set_defaults(words=[])
    if "version" in program.commands:
        parser.add_argument(
            "--version", dest="command", action="store_const", const="version", help="Print the version."
        )
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in program.commands.items():
        about = _escape_percent(inspect.getdoc(command) or "").partition("\n")[0]
        after = parsers.add_parser(
            name, help=about, add_help=False, prefix_chars="\0"
        )  # no word is an option
        after.add_argument("words", nargs=argparse.REMAINDER)
    return parser


def _new_parser(name: str, about: str) -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(
        name, description=_escape_percent(about), formatter_class=plain, allow_abbrev=False
    )


def _options(command: Command, name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the values of the command's parameters."""
    parser = _new_parser(name, inspect.getdoc(command) or "")
    for parameter in parameters(command):
        kind, specification = get_args(parameter.annotation)
        if isinstance(specification, Words):
            return {parameter.name: words}
        if kind is bool:
            _add_flag(parser, parameter, specification)
        else:
            _add_option(parser, parameter, kind, specification)
    return vars(parser.parse_intermixed_args(words))


def _add_flag(parser: argparse.ArgumentParser, parameter: inspect.Parameter, option: Option) -> None:
    text = os.environ.get(option.env) or str(parameter.default)
    if text.lower() not in BOOLEANS:
        raise Failed(f"{option.env}: {text!r} is not one of {', '.join(BOOLEANS)}", USAGE)
    parser.add_argument(
        *_flags(parameter, option),
        dest=parameter.name,
        action="store_true" if option.flags else argparse.BooleanOptionalAction,
        default=BOOLEANS[text.lower()],
        help=_help(option),
    )


def _add_option(
    parser: argparse.ArgumentParser, parameter: inspect.Parameter, kind: Any, option: Option
) -> None:
    value, several = _value_of(kind)
    default = None if parameter.default is parameter.empty else parameter.default
    text = os.environ.get(option.env)
    required = parameter.default is parameter.empty and not text
    metavar = option.metavar or parameter.name.upper()
    if isinstance(value, EnumType):
        metavar = f"[{'|'.join(choice.value for choice in value)}]"  # type: ignore[var-annotated]
    shared: dict[str, Any] = {
        "default": text or default,
        "type": _reader(value, option),
        "metavar": metavar,
        "help": _help(option, default),
    }
    if isinstance(option, Argument):
        nargs = "*" if several else None if required else "?"
        parser.add_argument(parameter.name, nargs=nargs, **shared)
    else:
        action = "append" if several else "store"
        flags = _flags(parameter, option)
        parser.add_argument(*flags, dest=parameter.name, action=action, required=required, **shared)


def _flags(parameter: inspect.Parameter, option: Option) -> Sequence[str]:
    return sorted(option.flags, key=len) or (f"--{parameter.name.replace('_', '-')}",)


def _help(option: Option, default: object = None) -> str:
    variable = f" [env var: {option.env}]" if option.env else ""
    return _escape_percent(option.help + variable + (f" [default: {default}]" if default else ""))


def _value_of(kind: Any) -> tuple[Any, bool]:
    """Return the type of a value, and whether there may be several."""
    if NoneType in get_args(kind):
        kind, _ = get_args(kind)
    return (get_args(kind)[0], True) if get_origin(kind) is list else (kind, False)


def _reader(value: Any, option: Option) -> Callable[[str], Any]:
    """Return the function that reads an option's value from a text."""

    def read(text: str) -> Any:
        try:
            number = value(text)
        except ValueError:
            expected = f"one of {', '.join(value)}" if isinstance(value, EnumType) else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}") from None
        if option.min is not None and number < option.min:
            raise argparse.ArgumentTypeError(f"{number} is less than {option.min}")
        if option.max is not None and number > option.max:
            raise argparse.ArgumentTypeError(f"{number} is more than {option.max}")
        return number

    return read


def _escape_percent(text: str) -> str:
    """Return the text with % escaped, because argparse formats help texts."""
    return text.replace("%", "%%")
