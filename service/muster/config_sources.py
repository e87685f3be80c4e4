"""Read the service's settings: from a YAML file, then the environment, then the command line's flags.

A later source overrides an earlier source. A field that does not exist is an error that names its source: a
misspelt setting must not be ignored silently. Environment variables are `MUSTER__<SECTION>__<FIELD>`. A
single underscore would collide with the variables that Kubernetes sets for a Service named "muster"
(MUSTER_PORT).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from muster.config import Config

PREFIX = "MUSTER__"
_RENAMED = ("gangs.earmark_", "gangs.backfill_")
"""The old beginning of the names of some settings, and the new beginning."""
_WITHOUT_EFFECT = ("session_queue",)
"""Settings of earlier releases that are read and have no effect: a service with one still starts."""


class SettingsError(Exception):
    """Report settings that cannot be used. Each line names source, field and what is expected."""


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Merge the sources. `flags` are by dotted field ("http.port"), and None is a flag that was not given.

    Raises:
        SettingsError: A source cannot be read, or a setting is wrong. There is one line for each problem.
    """
    values: dict[str, Any] = {}
    sources: dict[tuple[str, ...], str] = {}
    if file is not None:
        _merge(values, sources, _read_file(file), str(file))
    for name, text in (os.environ if environment is None else environment).items():
        if name.startswith(PREFIX):
            path = tuple(part.lower() for part in name.removeprefix(PREFIX).split("__"))
            _set(values, sources, path, _parse_scalar(text), f"environment {name}")
    for dotted, value in (flags or {}).items():
        if value is not None:
            flag = "--" + dotted.replace(".", "-").replace("_", "-")
            _set(values, sources, tuple(dotted.split(".")), value, flag)
    for name in _WITHOUT_EFFECT:
        values.pop(name, None)
    try:
        return Config.model_validate(values)
    except ValidationError as wrong:
        lines = [_error_line(error["loc"], error["type"], error["msg"], sources) for error in wrong.errors()]
        raise SettingsError("\n".join(lines)) from None


def reference() -> str:
    """Return all settings with their defaults, as a YAML file that changes nothing."""
    return "\n".join(_reference_lines(_schema(), Config().model_dump(mode="json"), "")) + "\n"


@cache
def _schema() -> dict[str, Any]:
    return Config.model_json_schema()


def _schema_of_section(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting that is a section; {} for any other setting."""
    schema: dict[str, Any] = _schema()["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
    return schema if "properties" in schema else {}


def _reference_lines(section: dict[str, Any], defaults: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for name, field in section["properties"].items():
        if inner := _schema_of_section(field):
            lines += [f"{indent}{name}:", *_reference_lines(inner, defaults[name], indent + "  ")]
            continue
        shown = (
            yaml.safe_dump(defaults[name], default_flow_style=True, width=1000).removesuffix("...\n").strip()
        )
        lines += [f"{indent}# {' '.join(field['description'].split())}", f"{indent}{name}: {shown}"]
    return lines


def _read_file(file: Path) -> dict[str, Any]:
    try:
        read = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingsError(
            f"{file}: can't be read: {getattr(problem, 'strerror', None) or problem}"
        ) from problem
    except yaml.YAMLError as problem:
        raise SettingsError(f"{file}: no valid YAML: {problem}") from problem
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise SettingsError(f"{file}: a mapping of settings is expected, not {type(read).__name__}")
    return read


def _parse_scalar(text: str) -> Any:
    """Return the text as a YAML value, so that numbers, null and [a, b] work in the environment."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _merge(
    values: dict[str, Any],
    sources: dict[tuple[str, ...], str],
    read: Mapping[Any, Any],
    source: str,
    prefix: tuple[str, ...] = (),
) -> None:
    for key, value in read.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping):
            sources[path] = source
            _merge(values.setdefault(str(key), {}), sources, value, source, path)
        else:
            sources[path] = source
            values[str(key)] = value


def _set(
    values: dict[str, Any],
    sources: dict[tuple[str, ...], str],
    path: tuple[str, ...],
    value: Any,
    source: str,
) -> None:
    sources[path] = source
    for part in path[:-1]:
        inner = values.get(part)
        values[part] = values = inner if isinstance(inner, dict) else {}
    values[path[-1]] = value


_KEY_MARK, _OWN_CHECK = "[key]", "Value error, "
"""Additions of pydantic: to the path of an error in a key, and to a message of our own checks."""


def _error_line(
    location: tuple[int | str, ...], kind: str, message: str, sources: Mapping[tuple[str, ...], str]
) -> str:
    """Return the line of one error. The source is named by the longest known beginning of the error's
    path."""
    path = tuple(str(part) for part in location if part != _KEY_MARK)
    source = next(
        (sources[path[:end]] for end in range(len(path), 0, -1) if path[:end] in sources), "settings"
    )
    dotted = ".".join(path)
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        renamed = dotted.replace(*_RENAMED)
        if renamed != dotted:
            return f"{source}: {dotted} has a new name: {renamed}"
        section = _schema()
        for part in path[:-1]:
            section = _schema_of_section(section["properties"][part])
        return f"{source}: there is no setting {dotted!r}; known here: {', '.join(section['properties'])}"
    setting = "" if source == "--" + dotted.replace(".", "-").replace("_", "-") else f"{dotted}: "
    message = message.removeprefix(_OWN_CHECK)
    return f"{source}: {setting}{message[0].lower()}{message[1:]}"
